//! `qkv explain`: the steps of attention, number by number, of a lesson, of the reader's own tokens, or of a few rows of
//! a file.

use std::io::Write;
use std::ops::Range;
use std::str::FromStr;

use anyhow::{anyhow, bail};
use clap::Args;
use ndarray::{Array2, ArrayD, IxDyn};
use qkv::{Attention, Trace};
use qkv_view::explain::{self, Embedding, Scale, Scene, Shapes, Step};
use qkv_view::row::Row;
use qkv_view::scale::{self, Comparison, Measure};
use qkv_view::text;
use serde_json::{Value, json};

use crate::describe::{self, Bound};
use crate::input::{Given, Input, Sources};
use crate::lesson::{self, Lesson};
use crate::machine::{self, Threads};
use crate::mask::as_f64;
use crate::options::AttentionOptions;
use crate::request::{Number, Request, with_element};
use crate::source::Source;
use crate::terminal::Terminal;

/// Queries and keys of a file that are shown where it is not said which: what fits 80 columns.
const SHOWN: [usize; 2] = [6, 5];
/// Pairs of query and key whose every intermediate is kept.
const MOST_PAIRS: usize = 1 << 26;
/// A weight matrix with more numbers than this is not printed.
const READABLE: usize = 100;

#[derive(Args, Debug, Default)]
pub struct Arguments {
    /// A file with arrays q, k and v (or x, alone or with a layer's weights); none: a lesson
    #[arg(value_name = "INPUT", conflicts_with_all = ["tokens", "dim", "words", "x"])]
    input: Option<Source>,

    /// How many tokens the lesson has
    #[arg(long, value_name = "N", default_value_t = 5)]
    tokens: usize,

    /// How many numbers the lesson has for a token: 3; in the second lesson for a head: 8
    #[arg(long, value_name = "N")]
    dim: Option<usize>,

    /// With INPUT: which batch, 0 by default. Without: the second lesson, with so many batches (and --heads)
    #[arg(long, value_name = "N")]
    batch: Option<usize>,

    /// Words of your own for tokens; equal words are equal tokens
    #[arg(long, value_name = "WORDS", conflicts_with_all = ["tokens", "x", "batch"])]
    words: Option<String>,

    /// Embeddings of your own, a row for each token: "1 0; 0 1; 1 1"
    #[arg(long, value_name = "ROWS", conflicts_with_all = ["tokens", "batch"])]
    x: Option<lesson::Rows>,

    /// Which head is shown
    #[arg(long, value_name = "H", default_value_t = 0)]
    head: usize,

    /// Which queries are shown, from A to before B; of a file by default the first few
    #[arg(long, value_name = "A:B")]
    queries: Option<Span>,

    /// Which keys are shown, from A to before B
    #[arg(long, value_name = "A:B")]
    keys: Option<Span>,

    /// One query's row as a weighted sum: which keys make it, and how much each moves it
    #[arg(long, value_name = "I", conflicts_with = "queries")]
    query: Option<usize>,

    /// Leaves the scale out and shows what it is for
    #[arg(long, conflicts_with = "scale")]
    no_scale: bool,

    /// No colours on a terminal
    #[arg(long)]
    plain: bool,

    /// Print one JSON object and nothing else
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    attention: AttentionOptions,
}

/// A half-open range; an end that is left out is the array's.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: Option<usize>,
    end: Option<usize>,
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || format!("want A:B, two numbers, such as 3:9; got {text:?}");
        let end = |text: &str| match text.trim() {
            "" => Ok(None),
            number => number.parse().map(Some).map_err(|_| wanted()),
        };
        let (start, stop) = text.split_once(':').ok_or_else(wanted)?;
        Ok(Self { start: end(start)?, end: end(stop)? })
    }
}

impl Span {
    fn within(self, length: usize, option: &str) -> anyhow::Result<Range<usize>> {
        let (start, end) = (self.start.unwrap_or(0), self.end.unwrap_or(length));
        if start >= end || end > length {
            bail!("{option}: got {start}:{end}, want a range that is not empty, within 0:{length}");
        }
        Ok(start..end)
    }
}

/// Whether the lesson's checks passed.
pub fn run(arguments: &Arguments, terminal: &mut Terminal) -> anyhow::Result<bool> {
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
    with_element!(input, T => {
        explain(&Request::<T>::new(&input, &options, simd)?, lesson.as_ref(), arguments, terminal)
    })
}

impl Arguments {
    /// Which lesson is meant; none if there is an input.
    fn lesson(&self) -> anyhow::Result<Option<Lesson>> {
        if self.input.is_some() {
            return Ok(None);
        }
        let AttentionOptions { heads, seed, .. } = self.attention;
        let own = self.words.is_some() || self.x.is_some();
        if own && heads.is_some() {
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
        lesson.check()?;
        Ok(Some(lesson))
    }
}

fn explain<T: Number>(
    request: &Request<'_, T>,
    lesson: Option<&Lesson>,
    arguments: &Arguments,
    terminal: &mut Terminal,
) -> anyhow::Result<bool> {
    for warning in request.input.warnings.iter().chain(&describe::implausible(request)) {
        terminal.warn(warning);
    }
    let threads = Threads::new(arguments.attention.threads)?;
    let place = Place::new(request, lesson.is_some(), arguments)?;
    let attention = request.attention(0);
    let unscaled = request.attention(0).scale(1.0);
    let trace = |attention: &Attention<'_>| {
        threads.run(|| place.trace(request, attention)).map_err(|error| request.explained(error))
    };
    let shown = trace(if arguments.no_scale { &unscaled } else { &attention })?;
    let scene = scene(request, &place, &shown, arguments.no_scale)?;
    let steps = explain::steps(&scene);
    let row = match arguments.query {
        Some(query) => {
            let attention = if arguments.no_scale { &unscaled } else { &attention };
            let influence = request.call(attention).influence((place.batch, place.head, query));
            Some(Row::new(&scene, query, &influence.map_err(|error| request.explained(error))?))
        }
        None => None,
    };
    let comparisons = if arguments.no_scale {
        let this = Comparison {
            name: "this input".to_string(),
            both: [Measure::new(&trace(&attention)?), Measure::new(&shown)],
        };
        let growing = threads.run(|| scale::growing(arguments.attention.seed.unwrap_or(0)));
        let mut all = vec![this];
        all.extend(growing.map_err(|error| request.explained(error))?);
        all
    } else {
        Vec::new()
    };
    let checks = match lesson {
        Some(_) => lesson::checks(request, &shown, &threads)?,
        None => Vec::new(),
    };

    if arguments.json {
        let object = object(&steps, row.as_ref(), &comparisons, &checks);
        writeln!(terminal, "{object}")?;
    } else {
        let shaded = !arguments.plain && Terminal::has_colours();
        write!(terminal, "{}", introduction(request, lesson, &place))?;
        match &row {
            Some(row) => write!(terminal, "{}", row.text(&scene))?,
            None => write!(terminal, "{}", text::page(&scene, &steps, shaded))?,
        }
        if !comparisons.is_empty() {
            write!(terminal, "{}", what_for(&comparisons))?;
        }
        write!(terminal, "{}", lesson::listed(&checks))?;
    }
    Ok(checks.iter().all(|check| check.passed))
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
        let below = |option: &str, index: usize, count: usize| match index < count {
            true => Ok(()),
            false => Err(anyhow!("{option}: got {index}, want a number below {count}")),
        };
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
        let rows = call.trace_head((self.batch, self.head), self.queries.clone())?;
        Ok(rows.widened().into_dyn())
    }
}

fn scene<'t, T: Number>(
    request: &Request<'_, T>,
    place: &Place,
    trace: &'t Trace<f64, IxDyn>,
    unscaled: bool,
) -> anyhow::Result<Scene<'t>> {
    let extents = &request.extents;
    let settings = &request.input.settings;
    let lead = |heads: usize| {
        let heads = (extents.rank > 2).then_some(heads);
        extents.batch_axes.iter().copied().chain(heads).collect::<Vec<_>>()
    };
    let sentence = |words: String| {
        let mut letters = words.chars();
        let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
        format!("{first}{}.", letters.as_str())
    };
    let causal = describe::causal(request).map(|words| format!("causal, {words}"));
    let bounds = describe::bounds(request);
    let tokens = request.input.tokens.as_ref();
    Ok(Scene {
        trace,
        shapes: Shapes {
            lead: lead(extents.heads),
            key_lead: lead(extents.key_heads),
            len_query: extents.len_query,
            len_key: extents.len_key,
            dim: extents.dim,
            dim_value: extents.dim_value,
        },
        plane: if place.whole { place.head } else { 0 },
        first_query: if place.whole { 0 } else { place.queries.start },
        queries: place.queries.clone(),
        keys: place.keys.clone(),
        embedding: embedding(request, place.batch)?,
        scale: match settings.scale {
            _ if unscaled => Scale::LeftOut,
            // A file may say the default.
            Some(scale) if (scale * (extents.dim.max(1) as f64).sqrt() - 1.0).abs() > 1e-6 => {
                Scale::Given(scale)
            }
            _ => Scale::Default,
        },
        softcap: settings.softcap,
        masks: causal.into_iter().chain(bounds.iter().map(Bound::line)).map(sentence).collect(),
        tokens: tokens
            .and_then(|batches| batches.get(place.batch).or(batches.first()).cloned())
            .filter(|tokens| tokens.len() == extents.len_key),
    })
}

/// Where queries, keys and values come from, if a layer has made them.
fn embedding<T: Number>(request: &Request<'_, T>, batch: usize) -> anyhow::Result<Option<Embedding>> {
    let Given::Layer { x, weights } = &request.input.given else { return Ok(None) };
    let numbers = as_f64(&x.tensor.view());
    let x_shape = numbers.shape().to_vec();
    let [.., len, dim_model] = x_shape[..] else { bail!("{}: want at least two axes", x.origin) };
    let batches = numbers.len() / (len * dim_model).max(1);
    let stacked = numbers.into_shape_with_order((batches.max(1), len, dim_model))?;
    let by_name = |name: &str| -> Option<Array2<f64>> {
        let (_, array) = weights.iter().find(|(own, _)| own.eq_ignore_ascii_case(name))?;
        let small = Some(array).filter(|array| array.tensor.shape().iter().product::<usize>() <= READABLE)?;
        as_f64(&small.tensor.view()).into_dimensionality().ok()
    };
    let weight = |name: &str| by_name(name);
    let readable = match [weight("w_q"), weight("w_k"), weight("w_v")] {
        [Some(query), Some(key), Some(value)] => Some([query, key, value]),
        _ => None,
    };
    let biased = weights.iter().any(|(_, array)| array.tensor.shape().len() == 1);
    let x = stacked.index_axis_move(ndarray::Axis(0), batch);
    Ok(Some(Embedding { x, x_shape, weights: readable, biased }))
}

/// What is explained, before the first step.
fn introduction<T: Number>(request: &Request<'_, T>, lesson: Option<&Lesson>, place: &Place) -> String {
    let mut words =
        "Scaled dot-product attention, step by step: output = softmax(Q·Kᵀ / √d) · V\n\n".to_string();
    if let Some(lesson) = lesson {
        return words + &text::wrapped(&lesson.introduction()) + "\n\n";
    }
    words += &format!("input    {}\n", request.input.title);
    for line in describe::reading(request) {
        words += &format!("{line}\n");
    }
    if !request.input.settings.notes.is_empty() {
        words += &format!("metadata {}\n", request.input.settings.notes.join("; "));
    }
    words + &text::hanging("shown  ", &place.words(request)) + "\n\n"
}

fn what_for(comparisons: &[Comparison]) -> String {
    let words = "Below this input: 64 queries and keys of growing dimension d, drawn by randn. A dot product of d such \
                 numbers has variance d. With 1/√d the scores keep variance 1. Without it they grow, the weights pile up \
                 on one key (entropy, in nats, falls to 0), and softmax stops answering to its scores: its gradient, \
                 Σ p·(1 − p) over a row, falls to 0 too, so that a model could no longer learn from it.";
    format!(
        "{}\n{}\n\n{}\n\n",
        text::heading("What the scale is for"),
        scale::table(comparisons),
        text::wrapped(words)
    )
}

fn object(steps: &[Step], row: Option<&Row>, comparisons: &[Comparison], checks: &[lesson::Check]) -> Value {
    let steps: Vec<_> = steps
        .iter()
        .map(|step| {
            json!({
                "name": step.name,
                "formula": step.formula,
                "shape": step.values.shape(),
                "values": nested(&step.values),
            })
        })
        .collect();
    let mut object = json!({ "steps": steps });
    if let Some(row) = row {
        let keys = row.parts.iter().map(|part| {
            json!({
                "key": part.key,
                "token": part.token,
                "score": number(part.score),
                "weight": number(part.weight),
                "influence": number(part.influence),
            })
        });
        object["row"] = json!({
            "query": row.query,
            "keys": keys.collect::<Vec<_>>(),
            "output": row.output.iter().map(|&y| number(y)).collect::<Vec<_>>(),
        });
    }
    if !comparisons.is_empty() {
        let measure = |measure: &Measure| {
            json!({
                "variance": number(measure.variance),
                "entropy": number(measure.entropy),
                "gradient": number(measure.gradient),
            })
        };
        let each = comparisons.iter().map(|Comparison { name, both: [with, without] }| {
            json!({ "name": name, "with": measure(with), "without": measure(without) })
        });
        object["scale"] = each.collect();
    }
    if !checks.is_empty() {
        let each = checks.iter().map(|check| {
            let verdict = if check.passed { "pass" } else { "fail" };
            json!({ "name": check.name, "what": check.what, "verdict": verdict })
        });
        object["checks"] = each.collect();
    }
    object
}

/// An array as lists in lists.
fn nested(array: &ArrayD<f64>) -> Value {
    match array.ndim() {
        0 => array.iter().map(|&x| number(x)).next().unwrap_or_default(),
        _ => array.outer_iter().map(|part| nested(&part.to_owned())).collect(),
    }
}

/// JSON has no infinities and no NaN; as texts, Python's `float` and JavaScript's `Number` read them.
fn number(x: f64) -> Value {
    match x {
        x if x.is_nan() => json!("NaN"),
        f64::INFINITY => json!("Infinity"),
        f64::NEG_INFINITY => json!("-Infinity"),
        x => json!(x),
    }
}
