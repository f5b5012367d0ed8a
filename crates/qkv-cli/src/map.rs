//! `qkv map`: a picture of one head, or a page of all heads, of any length.

use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::bail;
use clap::{Args, ValueEnum};
use ndarray::Array2;
use qkv::{Map, Of, Pool};
use qkv_view::picture::{self, Colours, Heatmap, Sheet};
use qkv_view::show;

use crate::describe;
use crate::head::{HeadOptions, Tokens};
use crate::input::{Input, Sources};
use crate::machine::{self, Threads};
use crate::options::AttentionOptions;
use crate::output::PictureFile;
use crate::progress::Progress;
use crate::request::{Extents, Number, Request, with_element};
use crate::source::Source;
use crate::span::Span;
use crate::terminal::Terminal;

/// Rows and columns of a picture, and of each of those on a sheet.
const SIZE: usize = 1024;
const THUMBNAIL: usize = 96;
/// A picture of fewer cells is drawn at twice the size.
const SMALL: usize = 512;
/// More cells on a side make no picture that anyone looks at.
const LARGEST: usize = 8192;

#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct Arguments {
    /// A file with arrays q, k and v, or a recording
    #[arg(value_name = "INPUT")]
    input: Source,

    #[command(flatten)]
    head: HeadOptions,

    /// What is shown
    #[arg(long, value_name = "WHAT", default_value = "weights")]
    of: Shown,

    /// What stands for the numbers that share a cell of the picture
    #[arg(long, value_name = "HOW", default_value = "max")]
    pool: Pooled,

    /// Cells of the picture on each side, at most [default: 1024, on a sheet 96]
    #[arg(long, value_name = "N")]
    size: Option<usize>,

    /// Which queries are shown, A up to but not including B [default: all]
    #[arg(long, value_name = "A:B")]
    queries: Option<Span>,

    /// Which keys are shown [default: all]
    #[arg(long, value_name = "A:B")]
    keys: Option<Span>,

    /// A page with a small picture of every head; of a recording, of every layer too
    #[arg(long, conflicts_with_all = ["head", "queries", "keys"])]
    sheet: bool,

    /// The picture: .png or .svg
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    #[command(flatten)]
    attention: AttentionOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shown {
    /// Who may attend whom
    Mask,
    /// q · k
    Scores,
    /// q · k times the scale
    Scaled,
    /// What softmax makes of the scores; 0 where masked
    Weights,
    /// How far a query's output would move without the key
    Influence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pooled {
    /// The largest; of scores, the one farthest from 0
    Max,
    /// The mean of all, masked ones too
    Mean,
    /// The sum
    Sum,
}

impl Shown {
    fn of(self) -> Of {
        match self {
            Self::Mask => Of::Mask,
            Self::Scores => Of::Scores,
            Self::Scaled => Of::Scaled,
            Self::Weights => Of::Weights,
            Self::Influence => Of::Influence,
        }
    }

    /// As a title, and beside the colour bar.
    fn words(self) -> [&'static str; 2] {
        match self {
            Self::Mask => ["Who may attend whom", "1: may attend"],
            Self::Scores => ["Scores", "q · k"],
            Self::Scaled => ["Scaled scores", "q · k × scale"],
            Self::Weights => ["Attention weights", "weight"],
            Self::Influence => ["Influence", "how far the output would move"],
        }
    }

    fn colours(self) -> Colours {
        match self {
            Self::Mask => Colours::sequential().map(picture::Map::Blues).range(0.0, 1.0),
            Self::Scores | Self::Scaled => Colours::diverging(),
            Self::Weights | Self::Influence => Colours::sequential().square_root(),
        }
    }
}

impl Pooled {
    fn pool(self, shown: Shown) -> Pool {
        match self {
            // Of scores the lowest say as much as the highest.
            Self::Max if matches!(shown, Shown::Scores | Shown::Scaled) => Pool::Farthest,
            Self::Max => Pool::Max,
            Self::Mean => Pool::Mean,
            Self::Sum => Pool::Sum,
        }
    }

    fn words(self, shown: Shown) -> &'static str {
        match self.pool(shown) {
            Pool::Farthest => "the number farthest from 0",
            Pool::Mean => "the mean",
            Pool::Sum => "the sum",
            _ => "the largest",
        }
    }
}

pub fn run(arguments: &Arguments, terminal: &mut Terminal) -> anyhow::Result<bool> {
    if let Some(size) = arguments.size.filter(|size| !(1..=LARGEST).contains(size)) {
        bail!("--size: got {size}, want 1 to {LARGEST}");
    }
    let file = PictureFile::new(&arguments.output)?;
    let threads = Threads::new(arguments.attention.threads)?;
    let since = Instant::now();
    let (svg, scale, told) = if arguments.sheet {
        sheet(arguments, &threads, terminal)?
    } else {
        one(arguments, &threads, terminal)?
    };
    file.write(&svg, scale)?;
    writeln!(terminal, "{told}")?;
    writeln!(terminal, "wrote    {}", arguments.output.display())?;
    let memory = machine::peak_bytes().map(|bytes| format!(", {} of memory at most", show::bytes(bytes)));
    writeln!(
        terminal,
        "time     {}{}",
        show::seconds(since.elapsed().as_secs_f64()),
        memory.unwrap_or_default()
    )?;
    Ok(true)
}

/// An SVG, pixels of a PNG for each of its own, and what it shows in words.
type Drawn = (String, f32, String);

fn one(arguments: &Arguments, threads: &Threads, terminal: &Terminal) -> anyhow::Result<Drawn> {
    let simd = machine::simd_from_environment()?;
    let input = Input::read(&Sources::input(&arguments.input), &arguments.attention)?;
    with_element!(input, T => {
        let request = threads.run(|| Request::<T>::new(&input, &arguments.attention, simd))?;
        describe::warn(&request, terminal);
        arguments.head.check(&request)?;
        let place = Place::new(&request, arguments)?;
        let numbers = threads.run(|| {
            let attention = request.attention(0);
            let HeadOptions { head, batch } = arguments.head;
            let progress = Progress::new("drawing");
            let mut report = |done, total| progress.report(done, total);
            let head = request.call(&attention).inspect_queries(batch, head, place.queries.clone());
            let numbers = head.and_then(|head| head.map(&place.map(arguments), Some(&mut report)));
            numbers.map_err(|error| request.explained(error))
        })?;
        Ok(place.drawn(&request, arguments, &numbers))
    })
}

/// The rectangle of a picture.
struct Place {
    queries: Range<usize>,
    keys: Range<usize>,
}

impl Place {
    fn new<T: Number>(request: &Request<'_, T>, arguments: &Arguments) -> anyhow::Result<Self> {
        let within = |span: Option<Span>, length, option| match span {
            Some(span) => span.within(length, option),
            None => Ok(0..length),
        };
        Ok(Self {
            queries: within(arguments.queries, request.extents.len_query, "--queries")?,
            keys: within(arguments.keys, request.extents.len_key, "--keys")?,
        })
    }

    fn map(&self, arguments: &Arguments) -> Map {
        let size = arguments.size.unwrap_or(SIZE);
        let map = Map::new(arguments.of.of()).pool(arguments.pool.pool(arguments.of)).size(size, size);
        map.keys(self.keys.clone())
    }

    fn drawn<T: Number>(
        &self,
        request: &Request<'_, T>,
        arguments: &Arguments,
        numbers: &Array2<f64>,
    ) -> Drawn {
        let HeadOptions { head, batch } = arguments.head;
        let [title, quantity] = arguments.of.words();
        let of_batch = if request.extents.batches > 1 { format!(" of batch {batch}") } else { String::new() };
        let cells = cells(numbers.dim(), (self.queries.len(), self.keys.len()), arguments);
        let (queries, keys) = (show::count(self.queries.len(), "query"), show::count(self.keys.len(), "key"));
        let causal = describe::causal(request).map_or(String::new(), |words| format!("; causal, {words}"));
        let [query_axis, key_axis] = Tokens::of(request, batch).axes(self.queries.clone(), self.keys.clone());
        let svg = Heatmap::new(numbers.view())
            .title(format!("{title}, head {head}{of_batch}"))
            .subtitle(format!("{}: {queries} × {keys}{causal}{cells}", request.input.title))
            .queries(query_axis)
            .keys(key_axis)
            .quantity(quantity)
            .colours(arguments.of.colours())
            .svg();
        let (rows, columns) = numbers.dim();
        let told = format!("head     {head}{of_batch}: {}, {queries} × {keys}{cells}", title.to_lowercase());
        (svg, if rows.max(columns) < SMALL { 2.0 } else { 1.0 }, told)
    }
}

/// What a cell stands for, where it stands for more than one number.
fn cells(cells: (usize, usize), pairs: (usize, usize), arguments: &Arguments) -> String {
    if cells == pairs {
        return String::new();
    }
    let each = |pairs: usize, cells: usize| pairs.div_ceil(cells.max(1));
    format!(
        "; {} × {} cells, each {} of up to {} × {} pairs",
        cells.0,
        cells.1,
        arguments.pool.words(arguments.of),
        each(pairs.0, cells.0),
        each(pairs.1, cells.1)
    )
}

fn sheet(arguments: &Arguments, threads: &Threads, terminal: &Terminal) -> anyhow::Result<Drawn> {
    let simd = machine::simd_from_environment()?;
    let layers = Input::layers(&arguments.input, &arguments.attention)?;
    let size = arguments.size.unwrap_or(THUMBNAIL);
    let map = Map::new(arguments.of.of()).pool(arguments.pool.pool(arguments.of)).size(size, size);
    let progress = Progress::new("drawing");
    let mut thumbnails = Vec::new();
    let (mut heads, mut title) = (0, String::new());
    for (at, &layer) in layers.iter().enumerate() {
        let options = AttentionOptions { layer, ..arguments.attention.clone() };
        let input = Input::read(&Sources::input(&arguments.input), &options)?;
        with_element!(input, T => {
            let request = threads.run(|| Request::<T>::new(&input, &options, simd))?;
            if at == 0 {
                describe::warn(&request, terminal);
            }
            HeadOptions { head: 0, batch: arguments.head.batch }.check(&request)?;
            heads = request.extents.heads;
            let Extents { len_query, len_key, .. } = request.extents;
            title = format!(
                "{}: {} × {}{}",
                arguments.input.path.display(),
                show::count(len_query, "query"),
                show::count(len_key, "key"),
                cells((size.min(len_query), size.min(len_key)), (len_query, len_key), arguments)
            );
            for head in 0..heads {
                let mut report = progress.part(at * heads + head, layers.len() * heads);
                let attention = request.attention(0);
                let numbers = threads.run(|| {
                    let head = request.call(&attention).inspect(arguments.head.batch, head)?;
                    head.map(&map, Some(&mut report))
                });
                let caption = match layer {
                    Some(layer) => format!("layer {layer}, head {head}"),
                    None => format!("head {head}"),
                };
                thumbnails.push((numbers.map_err(|error| request.explained(error))?, caption));
            }
        });
    }
    let [what, quantity] = arguments.of.words();
    let mut sheet = Sheet::new()
        .title(format!("{what} of {}", show::count(thumbnails.len(), "head")))
        .subtitle(title)
        .quantity(quantity)
        .colours(arguments.of.colours());
    // A line for each layer, if that is not too long.
    if layers.len() > 1 && heads <= 16 {
        sheet = sheet.columns(heads);
    }
    for (numbers, caption) in &thumbnails {
        sheet = sheet.thumbnail(numbers.view(), caption.clone());
    }
    Ok((sheet.svg(), 1.0, format!("heads    {}: {}", thumbnails.len(), what.to_lowercase())))
}
