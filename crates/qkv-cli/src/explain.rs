//! `qkv explain`: the steps of attention, number by number, of a lesson, of the reader's own tokens, or of a few rows of
//! a file.

use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use ndarray::{Axis, IxDyn, Slice};
use qkv::{Attention, Real, Trace};
use qkv_view::explain;
use qkv_view::row::Row;
use qkv_view::scale::{self, Comparison, Measure};
use qkv_view::scene::{Embedding, Scale, Scene, Shapes};
use qkv_view::{lesson_picture, show, text};

use crate::compare::widened;
use crate::describe::{self, Bound};
use crate::head::below;
use crate::input::{Given, Input, Sources};
use crate::lesson::{Lesson, Rows};
use crate::machine::{self, Threads};
use crate::options::{AttentionOptions, AxisOrder};
use crate::output::PictureFile;
use crate::request::{Number, Request, typed, with_element};
use crate::source::Source;
use crate::span::Span;
use crate::terminal::Terminal;
use crate::{explain_json, lesson_checks};

/// Queries and keys of a file that are shown where it is not said which: what fits 80 columns.
const SHOWN: [usize; 2] = [6, 5];
/// Pairs of query and key whose every intermediate is kept.
const MOST_PAIRS: usize = 1 << 24;
/// Pixels of a PNG for each of the picture's own.
const PIXELS: f32 = 2.0;
/// A weight matrix with more numbers than this is not printed.
const READABLE: usize = 100;

#[derive(Args, Debug, Default)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub struct Arguments {
    /// A file with arrays q, k and v, or x (alone it is all three; with w_q, w_k and w_v, or the names of torch's
    /// layers, it is projected). None: a lesson
    #[arg(value_name = "INPUT", conflicts_with_all = ["tokens", "dim", "words", "x"])]
    input: Option<Source>,

    /// How many tokens the lesson has
    #[arg(long, value_name = "N", default_value_t = 5)]
    tokens: usize,

    /// How many numbers a query has [default: 3; with --batch or --heads, 8]
    #[arg(long, value_name = "N")]
    dim: Option<usize>,

    /// With INPUT: which batch is shown [default: 0]. Without: the second lesson, which draws q, k and v of N batches,
    /// each of --heads heads
    #[arg(long, value_name = "N")]
    batch: Option<usize>,

    /// Words of your own for tokens; equal words are equal tokens
    #[arg(long, value_name = "WORDS", conflicts_with_all = ["tokens", "x", "batch"])]
    words: Option<String>,

    /// Embeddings of your own, a row for each token: "1 0; 0 1; 1 1"
    #[arg(long, value_name = "ROWS", allow_hyphen_values = true, conflicts_with_all = ["tokens", "batch"])]
    x: Option<Rows>,

    /// Which head is shown
    #[arg(long, value_name = "H", default_value_t = 0)]
    head: usize,

    /// Which queries are shown, A up to but not including B [default: all of a lesson, the first 6 of a file]
    #[arg(long, value_name = "A:B")]
    queries: Option<Span>,

    /// Which keys are shown [default: all of a lesson, the first 5 of a file, all with --query]; weights
    /// always count all keys
    #[arg(long, value_name = "A:B")]
    keys: Option<Span>,

    /// One query's row as a weighted sum, counted from 0: which keys make it, and how much each moves it
    #[arg(long, value_name = "I", conflicts_with_all = ["queries", "keys"])]
    query: Option<usize>,

    /// Leaves the scale out, and shows what it is for
    #[arg(long, conflicts_with = "scale")]
    no_scale: bool,

    /// A picture of the shown scores before and after scaling, and of the weights: .png or .svg
    #[arg(short, long, value_name = "FILE", conflicts_with = "query")]
    output: Option<PathBuf>,

    /// No colours on a terminal
    #[arg(long)]
    plain: bool,

    /// Print one JSON object and nothing else
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    attention: AttentionOptions,
}

const EXAMPLES: &str = "\
Examples:
  qkv explain                                     the first lesson
  qkv explain --causal                            the same, without reading from the future
  qkv explain --batch 2 --heads 4 --causal        the second lesson
  qkv explain --words \"the cat sat\"               tokens of your own
  qkv explain layer.npz --head 1 --query 10       one row of a file";

/// Whether the lesson's checks passed.
pub fn run(arguments: &Arguments, terminal: &mut Terminal) -> anyhow::Result<bool> {
    let file = arguments.output.as_deref().map(PictureFile::new).transpose()?;
    let simd = machine::simd_from_environment()?;
    // A lesson has no packed arrays: there the option says how many heads to draw.
    let mut options = arguments.attention.clone();
    let lesson = arguments.lesson()?;
    let input = match (&lesson, &arguments.input) {
        (Some(lesson), _) => {
            options.heads = None;
            lesson.input(&options)?
        }
        (None, input) => {
            let sources = Sources { input: input.as_ref(), query: None, key: None, value: None };
            Input::read(&sources, &options)?
        }
    };
    let threads = Threads::new(arguments.attention.threads)?;
    with_element!(input, T => {
        let request = threads.run(|| Request::<T>::new(&input, &options, simd))?;
        describe::warn(&request, terminal);
        let explained = threads.run(|| Explained::new(&request, lesson.as_ref(), arguments))?;
        if let Some(file) = &file {
            let scene = scene(&request, &explained.place, &explained.trace, scale_of(&request, arguments))?;
            file.write(&lesson_picture::svg(&scene), PIXELS)?;
        }
        explained.print(&request, lesson.as_ref(), arguments, terminal)
    })
}

impl Arguments {
    /// Whether a file is to be written.
    pub fn writes(&self) -> bool {
        self.output.is_some()
    }

    /// Which lesson is meant; none if there is an input.
    fn lesson(&self) -> anyhow::Result<Option<Lesson>> {
        if self.input.is_some() {
            return Ok(None);
        }
        let AttentionOptions { heads, seed, layout, .. } = self.attention;
        if layout != AxisOrder::default() {
            bail!("--layout: a lesson's arrays are not read from a file; leave it out");
        }
        if heads.is_some() && (self.words.is_some() || self.x.is_some()) {
            bail!("--heads: words and embeddings of your own have one head; leave it out");
        }
        let lesson = match (&self.words, &self.x) {
            (Some(words), _) => Lesson::words(words, self.dim, seed)?,
            (_, Some(x)) => Lesson::own(x.clone(), self.dim, seed),
            _ if heads.is_some() || self.batch.is_some() => {
                let counts =
                    [self.batch.unwrap_or(1), heads.unwrap_or(1), self.tokens, self.dim.unwrap_or(8)];
                Lesson::second(counts, seed)
            }
            _ => Lesson::first(self.tokens, self.dim, seed),
        };
        lesson.refuse_sizes()?;
        Ok(Some(lesson))
    }
}

/// All that is told, before it is printed.
struct Explained {
    place: Place,
    trace: Trace<f64, IxDyn>,
    /// How far the output of one query would move without each key.
    influence: Option<Vec<f64>>,
    /// With the scale and without.
    comparisons: Vec<Comparison>,
    checks: Vec<lesson_checks::Check>,
}

impl Explained {
    fn new<T: Number>(
        request: &Request<'_, T>,
        lesson: Option<&Lesson>,
        arguments: &Arguments,
    ) -> anyhow::Result<Self> {
        let place = Place::new(request, lesson.is_some(), arguments)?;
        let scaled = request.attention(0);
        let told = if arguments.no_scale { request.attention(0).scale(1.0) } else { request.attention(0) };
        let explained = |error| request.explained(error);
        let trace = place.trace(request, &told).map_err(explained)?;
        let influence =
            arguments.query.map(|query| request.call(&told).influence((place.batch, place.head, query)));
        let mut comparisons = Vec::new();
        if arguments.no_scale {
            let with = place.trace(request, &scaled).map_err(explained)?;
            let measure = |trace, scale| anyhow::Ok(Measure::of(&scene(request, &place, trace, scale)?));
            let both = [measure(&with, Scale::Default)?, measure(&trace, Scale::LeftOut)?];
            comparisons.push(Comparison { name: "this input".to_string(), both });
            let seed = arguments.attention.seed.unwrap_or(0);
            comparisons.extend(scale::growing(seed).map_err(explained)?);
        }
        let checks = match lesson {
            Some(_) => lesson_checks::checks(request, &told, &trace)?,
            None => Vec::new(),
        };
        Ok(Self { influence: influence.transpose().map_err(explained)?, place, trace, comparisons, checks })
    }

    fn print<T: Number>(
        &self,
        request: &Request<'_, T>,
        lesson: Option<&Lesson>,
        arguments: &Arguments,
        terminal: &mut Terminal,
    ) -> anyhow::Result<bool> {
        let scene = scene(request, &self.place, &self.trace, scale_of(request, arguments))?;
        let row = self.influence.as_ref().zip(arguments.query);
        let row = row.map(|(influence, query)| Row::new(&scene, query, influence));
        if arguments.json {
            let steps = explain::steps(&scene);
            let object = explain_json::object(&steps, row.as_ref(), &self.comparisons, &self.checks);
            writeln!(terminal, "{object}")?;
        } else {
            let shaded = !arguments.plain && Terminal::has_colours();
            write!(terminal, "{}", introduction(request, &scene, lesson, &self.place))?;
            match &row {
                Some(row) => write!(terminal, "{}", row.text(&scene))?,
                None => terminal.write_coloured(&text::page(&scene, &explain::steps(&scene), shaded))?,
            }
            if !self.comparisons.is_empty() {
                write!(terminal, "{}", scale::text(&self.comparisons))?;
            }
            write!(terminal, "{}", lesson_checks::listed(&self.checks))?;
            if let Some(output) = &arguments.output {
                writeln!(terminal, "wrote    {}", output.display())?;
            }
        }
        Ok(self.checks.iter().all(|check| check.passed))
    }
}

/// What scores are multiplied by, to be told.
fn scale_of<T: Number>(request: &Request<'_, T>, arguments: &Arguments) -> Scale {
    let default = 1.0 / (request.extents.dim.max(1) as f64).sqrt();
    match request.scale() {
        _ if arguments.no_scale => Scale::LeftOut,
        // A file may say the default, rounded.
        scale if scale as f32 == default as f32 => Scale::Default,
        scale => Scale::Given(scale),
    }
}

/// Which numbers are shown.
struct Place {
    /// Whether all of the call is traced, and not only the shown queries of one head.
    whole: bool,
    batch: usize,
    head: usize,
    queries: Range<usize>,
    keys: Range<usize>,
}

impl Place {
    fn new<T: Number>(request: &Request<'_, T>, whole: bool, arguments: &Arguments) -> anyhow::Result<Self> {
        let extents = &request.extents;
        let batch = if whole { 0 } else { arguments.batch.unwrap_or(0) };
        if extents.rows() == 0 {
            bail!("{}: has no query in any head of any batch: nothing to explain", request.input.title);
        }
        below("--batch", batch, extents.batches)?;
        below("--head", arguments.head, extents.heads)?;
        let most = |length: usize, shown: usize| 0..if whole { length } else { length.min(shown) };
        let queries = match (arguments.query, arguments.queries) {
            (Some(query), _) => {
                below("--query", query, extents.len_query)?;
                query..query + 1
            }
            (None, Some(span)) => span.within(extents.len_query, "--queries")?,
            (None, None) => most(extents.len_query, SHOWN[0]),
        };
        let keys = match arguments.keys {
            Some(span) => span.within(extents.len_key, "--keys")?,
            // One row is told whole.
            None if arguments.query.is_some() => 0..extents.len_key,
            None => most(extents.len_key, SHOWN[1]),
        };
        let pairs = queries.len().saturating_mul(extents.len_key);
        if pairs > MOST_PAIRS {
            bail!(
                "--queries: {} queries of {} keys are {pairs} pairs, and every number of each is kept; want at most \
                 {MOST_PAIRS}",
                queries.len(),
                extents.len_key
            );
        }
        Ok(Self { whole, batch, head: arguments.head, queries, keys })
    }

    /// `batch 0, head 2, queries 3:9 of 319, keys 0:5 of 319`
    fn words<T: Number>(&self, request: &Request<'_, T>) -> String {
        let Self { batch, head, queries, keys, .. } = self;
        let extents = &request.extents;
        let shared = match extents.heads / extents.key_heads.max(1) {
            group if group > 1 => format!(" (which reads key head {})", head / group),
            _ => String::new(),
        };
        format!(
            "batch {batch}, head {head}{shared}, queries {}:{} of {}, keys {}:{} of {}",
            queries.start, queries.end, extents.len_query, keys.start, keys.end, extents.len_key
        )
    }

    fn trace<T: Number>(
        &self,
        request: &Request<'_, T>,
        attention: &Attention<'_>,
    ) -> Result<Trace<f64, IxDyn>, qkv::Error> {
        let call = request.call(attention);
        if self.whole {
            return Ok(call.trace()?.widened());
        }
        Ok(call.trace_head((self.batch, self.head), self.queries.clone())?.widened())
    }
}

fn scene<'t, T: Number>(
    request: &Request<'_, T>,
    place: &Place,
    trace: &'t Trace<f64, IxDyn>,
    scale: Scale,
) -> anyhow::Result<Scene<'t>> {
    let extents = &request.extents;
    let settings = &request.input.settings;
    let causal = describe::causal(request).map(|words| format!("causal, {words}"));
    let bounds = describe::bounds(request);
    let tokens = request.input.tokens_of(place.batch);
    Ok(Scene {
        trace,
        shapes: Shapes {
            lead: extents.lead(),
            key_lead: extents.key_lead(),
            len_query: extents.len_query,
            len_key: extents.len_key,
            dim: extents.dim,
            dim_value: extents.dim_value,
        },
        plane: if place.whole { place.head } else { 0 },
        first_query: if place.whole { 0 } else { place.queries.start },
        queries: place.queries.clone(),
        keys: place.keys.clone(),
        embedding: embedding(request, place)?,
        scale,
        softcap: settings.softcap,
        biased: settings.alibi || request.input.mask.as_ref().is_some_and(|mask| mask.kind() == "additive"),
        masks: causal
            .into_iter()
            .chain(bounds.iter().map(Bound::line))
            .map(|words| text::sentence(&words))
            .collect(),
        tokens: tokens.filter(|tokens| tokens.len() == extents.len_key).map(<[String]>::to_vec),
    })
}

/// Where queries, keys and values come from, if a layer has made them.
fn embedding<T: Number>(request: &Request<'_, T>, place: &Place) -> anyhow::Result<Option<Embedding>> {
    let (Given::Layer { x, .. }, Some(layer)) = (&request.input.given, &request.layer) else {
        return Ok(None);
    };
    let x = typed::<T>(&x.tensor)?.view();
    let x_shape = x.shape().to_vec();
    // The batch of this number, counted flat over all batch axes.
    let mut rows = x;
    let mut rest = place.batch;
    while rows.ndim() > 2 {
        let inner: usize = rows.shape()[1..rows.ndim() - 2].iter().product();
        rows.index_axis_inplace(Axis(0), rest / inner.max(1));
        rest %= inner.max(1);
    }
    rows.slice_axis_inplace(Axis(0), Slice::from(place.queries.clone()));
    let weights = layer.weights().map(|weight| {
        let readable = layer.heads() == 1 && weight.len() <= READABLE;
        readable.then(|| weight.mapv(Real::to_f64))
    });
    Ok(Some(Embedding {
        x: rows.mapv(widened).into_dimensionality()?,
        x_shape,
        weights,
        biased: layer.biases().map(|bias| bias.is_some()),
        has_output: layer.has_output(),
    }))
}

/// What is explained, before the first step.
fn introduction<T: Number>(
    request: &Request<'_, T>,
    scene: &Scene<'_>,
    lesson: Option<&Lesson>,
    place: &Place,
) -> String {
    let scale = match scene.scale {
        Scale::Default => " / √d".to_string(),
        Scale::Given(scale) => format!(" · {}", show::number(scale)),
        Scale::LeftOut => String::new(),
    };
    let title = format!("Attention step by step: output = softmax(Q·Kᵀ{scale}) · V");
    if let Some(lesson) = lesson {
        return format!("{title}\n\n{}\n\n", text::wrapped(&lesson.introduction()));
    }
    let mut lines = vec![title, String::new()];
    lines.extend(describe::input(request).iter().map(|line| text::below(line, 9)));
    lines.push(text::hanging("shown  ", &place.words(request)));
    lines.join("\n") + "\n\n"
}
