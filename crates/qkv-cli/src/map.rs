//! `qkv map`: a picture of one head, or a page of all heads, of any length.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::bail;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use qkv::{Of, Pool};
use qkv_view::explorer::{self, Choice, Drawing, Facts, Layer, OF, POOLS, Shown};
use qkv_view::picture::{self, Sheet};
use qkv_view::show;

use crate::explore;
use crate::head::{HeadOptions, below};
use crate::machine;
use crate::options::AttentionOptions;
use crate::output::PictureFile;
use crate::progress::Progress;
use crate::source::Source;
use crate::span::Span;
use crate::terminal::Terminal;

/// Rows and columns of a picture, and of each of those on a sheet.
const SIZE: usize = 1024;
const THUMBNAIL: usize = 96;
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
    #[arg(long, value_name = "WHAT", default_value = "weights", value_parser = one_of(&OF))]
    of: Of,

    /// What stands for the numbers that share a cell of the picture
    #[arg(long, value_name = "HOW", default_value = "max", value_parser = one_of(&POOLS))]
    pool: Pool,

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

/// One of the choices, with its meaning in the help.
fn one_of<T: Copy + Send + Sync>(choices: &'static [Choice<T>]) -> impl TypedValueParser<Value = T> {
    let values = choices.iter().map(|choice| PossibleValue::new(choice.name).help(choice.meaning));
    PossibleValuesParser::new(values)
        .map(|name| explorer::named(choices, &name).expect("the parser knows no other names"))
}

impl Arguments {
    fn shown(&self) -> Shown {
        Shown { of: self.of, pool: self.pool }
    }

    fn drawing(&self, facts: &Facts, head: usize, default_size: usize) -> anyhow::Result<Drawing> {
        let within = |span: Option<Span>, length, option| match span {
            Some(span) => span.within(length, option),
            None => Ok(0..length),
        };
        Ok(Drawing {
            batch: self.head.batch,
            head,
            shown: self.shown(),
            size: self.size.unwrap_or(default_size),
            queries: within(self.queries, facts.len_query, "--queries")?,
            keys: within(self.keys, facts.len_key, "--keys")?,
        })
    }
}

pub fn run(arguments: &Arguments, terminal: &mut Terminal) -> anyhow::Result<bool> {
    if let Some(size) = arguments.size.filter(|size| !(1..=LARGEST).contains(size)) {
        bail!("--size: got {size}, want 1 to {LARGEST}");
    }
    let file = PictureFile::new(&arguments.output)?;
    let since = Instant::now();
    let (svg, scale, told) =
        if arguments.sheet { sheet(arguments, terminal)? } else { one(arguments, terminal)? };
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

fn one(arguments: &Arguments, terminal: &Terminal) -> anyhow::Result<Drawn> {
    let opened = explore::open_one(&arguments.input, &arguments.attention)?;
    opened.warnings.iter().for_each(|warning| terminal.warn(warning));
    let layer = &opened.layers[0];
    arguments.head.check(layer.facts().batches, layer.facts().heads)?;
    let drawing = arguments.drawing(layer.facts(), arguments.head.head, SIZE)?;
    let numbers = {
        let progress = Progress::new("drawing");
        let mut report = |done, total| progress.report(done, total);
        layer.see(&drawing.opening(), |head| drawing.numbers(head, Some(&mut report)))?
    };
    let svg = drawing.svg(layer, &arguments.input.path.display().to_string(), &numbers);
    Ok((svg, picture::png_scale(numbers.dim()), format!("head     {}", drawing.words(layer, &numbers))))
}

fn sheet(arguments: &Arguments, terminal: &Terminal) -> anyhow::Result<Drawn> {
    let opened = explore::open(&arguments.input, &arguments.attention)?;
    opened.warnings.iter().for_each(|warning| terminal.warn(warning));
    let layers = &opened.layers;
    let of = arguments.of;
    let count = layers.iter().map(|layer| layer.facts().heads).sum();
    let progress = Progress::new("drawing");
    let mut thumbnails = Vec::new();
    for layer in layers {
        let facts = layer.facts();
        below("--batch", arguments.head.batch, facts.batches)?;
        for head in 0..facts.heads {
            let drawing = arguments.drawing(facts, head, THUMBNAIL)?;
            let mut report = progress.part(thumbnails.len(), count);
            let numbers = layer.see(&drawing.opening(), |head| drawing.numbers(head, Some(&mut report)))?;
            let of_layer = facts.layer.map_or(String::new(), |layer| format!("layer {layer}, "));
            thumbnails.push((numbers, format!("{of_layer}head {head}")));
        }
    }
    let (facts, size) = (layers[0].facts(), arguments.size.unwrap_or(THUMBNAIL));
    let (len_query, len_key) = (facts.len_query, facts.len_key);
    let mut sheet = Sheet::new()
        .title(format!("{} of {}", picture::title(of), show::count(thumbnails.len(), "head")))
        .subtitle(format!(
            "{}: {} × {}{}",
            arguments.input.path.display(),
            show::count(len_query, "query"),
            show::count(len_key, "key"),
            arguments.shown().cells((size.min(len_query), size.min(len_key)), (len_query, len_key))
        ))
        .quantity(picture::quantity(of))
        .colours(picture::colours(of));
    // A line for each layer, if that is not too long.
    if layers.len() > 1 && facts.heads <= 16 {
        sheet = sheet.columns(facts.heads);
    }
    for (numbers, caption) in &thumbnails {
        sheet = sheet.thumbnail(numbers.view(), caption.clone());
    }
    let told = format!("heads    {}: {}", thumbnails.len(), picture::title(of).to_lowercase());
    Ok((sheet.svg(), 1.0, told))
}
