//! `qkv diff`: two inputs beside each other, head by head: how far attention has moved.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use ndarray::Array2;
use qkv::{Map, Of, Pool, QueryDifference};
use qkv_view::picture::{Colours, Heatmap};
use qkv_view::show;

use crate::describe;
use crate::explore;
use crate::head::HeadOptions;
use crate::input::Layers;
use crate::machine::{self, Threads};
use crate::options::AttentionOptions;
use crate::output::PictureFile;
use crate::progress::Progress;
use crate::request::{Number, Request, with_element};
use crate::source::Source;
use crate::table::{Cell, Form, Table};
use crate::terminal::Terminal;

/// Cells of the picture on each side, at most, and pixels of a PNG for each of an SVG.
const SIZE: usize = 1024;
const SCALE: f32 = 1.0;

#[derive(Args, Debug)]
#[command(allow_negative_numbers = true, after_help = COLUMNS)]
pub struct Arguments {
    /// A file with arrays q, k and v, or a recording
    #[arg(value_name = "A")]
    one: Source,

    /// Another run of as many queries and keys, in any type: after fine-tuning, in bf16
    #[arg(value_name = "B")]
    other: Source,

    /// Only this query head
    #[arg(long, value_name = "H")]
    head: Option<usize>,

    /// Which batch, counted flat over all batch axes
    #[arg(long, value_name = "B", default_value_t = 0)]
    batch: usize,

    /// A picture of B's weights less A's, of one head: .png or .svg
    #[arg(short, long, value_name = "FILE", requires = "head")]
    output: Option<PathBuf>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    attention: AttentionOptions,
}

const COLUMNS: &str = "\
Columns:
  divergence  Jensen-Shannon divergence of a query's weights in A and B, in nats: the mean over the queries
  most        the same of the query where it is largest
  at          that query
  weight      the largest difference of two weights
  changed     queries for which another key has most weight";

impl Arguments {
    /// Whether a file is to be written.
    pub fn writes(&self) -> bool {
        self.output.is_some()
    }
}

pub fn run(arguments: &Arguments, terminal: &mut Terminal) -> anyhow::Result<bool> {
    let simd = machine::simd_from_environment()?;
    let file = arguments.output.as_deref().map(PictureFile::new).transpose()?;
    let threads = Threads::new(arguments.attention.threads)?;
    let mut one = Layers::new(&arguments.one, &arguments.attention)?;
    let mut other = Layers::new(&arguments.other, &arguments.attention)?;
    one.warning().into_iter().chain(other.warning()).for_each(|warning| terminal.warn(&warning));
    let layers = of_both(&one, &other)?;
    if file.is_some() && layers.len() > 1 {
        bail!("-o: a picture is of one head; say --layer N");
    }
    let progress = Progress::new("comparing");
    let mut heads = Vec::new();
    for (at, &layer) in layers.iter().enumerate() {
        let options = AttentionOptions { layer, ..arguments.attention.clone() };
        let (one, other) = (one.read(&options)?, other.read(&options)?);
        with_element!(one, T => with_element!(other, U => {
            let one = threads.run(|| Request::<T>::new(&one, &options, simd))?;
            let other = threads.run(|| Request::<U>::new(&other, &options, simd))?;
            describe::warn(&one, terminal);
            describe::warn(&other, terminal);
            let runs = Runs { one: &one, other: &other };
            let chosen = runs.check(arguments)?;
            for (number, &head) in chosen.iter().enumerate() {
                let report = progress.part(at * chosen.len() + number, layers.len() * chosen.len());
                let rows = threads.run(|| runs.compare(HeadOptions { head, batch: arguments.batch }, report))?;
                heads.push(Head::new(layer, head, &rows));
            }
            if let (Some(file), Some(head)) = (&file, arguments.head) {
                let place = HeadOptions { head, batch: arguments.batch };
                let numbers = threads.run(|| runs.map(place))?;
                file.write(&picture(&one, &other.input.title, place, &numbers), SCALE)?;
            }
        }));
    }
    drop(progress);
    print(&heads, arguments, terminal)?;
    Ok(true)
}

/// The layers that both have.
fn of_both(one: &Layers<'_>, other: &Layers<'_>) -> anyhow::Result<Vec<Option<usize>>> {
    let (one, other) = (one.numbers(), other.numbers());
    if one != other {
        let count = |layers: &[Option<usize>]| match layers {
            [None] => "no layers".to_string(),
            _ => show::count(layers.len(), "layer"),
        };
        bail!("A has {} and B {}; want the same ones, or one by --layer N", count(&one), count(&other));
    }
    Ok(one)
}

/// One layer of both inputs.
struct Runs<'r, 'a, T: Number, U: Number> {
    one: &'r Request<'a, T>,
    other: &'r Request<'a, U>,
}

impl<T: Number, U: Number> Runs<'_, '_, T, U> {
    /// The heads to be compared.
    fn check(&self, arguments: &Arguments) -> anyhow::Result<Vec<usize>> {
        let [own, others] = [&self.one.extents, &self.other.extents]
            .map(|extents| [extents.batches, extents.heads, extents.len_query, extents.len_key]);
        if own != others {
            let shown = |[batches, heads, queries, keys]: [usize; 4]| {
                [
                    show::count(batches, "batch"),
                    show::count(heads, "head"),
                    show::count(queries, "query"),
                    show::count(keys, "key"),
                ]
                .join(", ")
            };
            bail!(
                "{} has {}; want {}, as {} has",
                self.other.input.title,
                shown(others),
                shown(own),
                self.one.input.title
            );
        }
        let place = HeadOptions { head: arguments.head.unwrap_or(0), batch: arguments.batch };
        place.check(own[0], own[1])?;
        Ok(arguments.head.map_or((0..own[1]).collect(), |head| vec![head]))
    }

    fn compare(
        &self,
        HeadOptions { head, batch }: HeadOptions,
        mut report: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> anyhow::Result<Vec<QueryDifference>> {
        let (one, other) = (self.one.attention(0), self.other.attention(0));
        let one = self.one.call(&one).inspect(batch, head).map_err(|error| self.one.explained(error))?;
        let other =
            self.other.call(&other).inspect(batch, head).map_err(|error| self.other.explained(error))?;
        one.difference(&other, Some(&mut report)).map_err(|error| self.one.explained(error))
    }

    /// B's weights less A's.
    fn map(&self, HeadOptions { head, batch }: HeadOptions) -> anyhow::Result<Array2<f64>> {
        let (one, other) = (self.one.attention(0), self.other.attention(0));
        let one = self.one.call(&one).inspect(batch, head).map_err(|error| self.one.explained(error))?;
        let other =
            self.other.call(&other).inspect(batch, head).map_err(|error| self.other.explained(error))?;
        let map = Map::new(Of::Weights).pool(Pool::Farthest).size(SIZE, SIZE);
        let progress = Progress::new("drawing");
        let mut report = |done, total| progress.report(done, total);
        other.map_less(&one, &map, Some(&mut report)).map_err(|error| self.one.explained(error))
    }
}

/// `one` is the first run, `other` the title of the second.
fn picture<T: Number>(
    one: &Request<'_, T>,
    other: &str,
    place: HeadOptions,
    numbers: &Array2<f64>,
) -> String {
    let HeadOptions { head, batch } = place;
    let (len_query, len_key) = (one.extents.len_query, one.extents.len_key);
    let [queries, keys] =
        explore::tokens(one.input, batch, (len_query, len_key)).axes(0..len_query, 0..len_key);
    let pooled = if numbers.dim() == (len_query, len_key) {
        String::new()
    } else {
        format!("; {} × {} cells, each the difference farthest from 0", numbers.nrows(), numbers.ncols())
    };
    Heatmap::new(numbers.view())
        .title(format!("Difference of attention weights, head {head}"))
        .subtitle(format!("{other} less {}{pooled}", one.input.title))
        .queries(queries)
        .keys(keys)
        .quantity("weight less weight")
        .colours(Colours::diverging())
        .svg()
}

/// One line of the table.
struct Head {
    layer: Option<usize>,
    head: usize,
    /// Queries without NaN.
    queries: usize,
    divergence: f64,
    most: (f64, usize),
    weight: f64,
    changed: usize,
}

impl Head {
    fn new(layer: Option<usize>, head: usize, rows: &[QueryDifference]) -> Self {
        let mut line =
            Self { layer, head, queries: 0, divergence: 0.0, most: (0.0, 0), weight: 0.0, changed: 0 };
        for (query, row) in rows.iter().enumerate().filter(|(_, row)| !row.divergence.is_nan()) {
            line.queries += 1;
            line.divergence += row.divergence;
            if row.divergence > line.most.0 {
                line.most = (row.divergence, query);
            }
            line.weight = line.weight.max(row.largest);
            line.changed += usize::from(row.changed());
        }
        line.divergence /= line.queries.max(1) as f64;
        line
    }
}

fn print(heads: &[Head], arguments: &Arguments, terminal: &mut Terminal) -> anyhow::Result<()> {
    let has_layers = heads.iter().any(|head| head.layer.is_some());
    let layer = has_layers.then_some("layer");
    let names = ["head", "divergence", "most", "at", "weight", "changed", "queries"];
    let columns: Vec<&str> = layer.into_iter().chain(names).collect();
    let row = |head: &Head| {
        let layer = has_layers.then(|| head.layer.map_or(Cell::Nothing, Cell::Count));
        let number = |x| if head.queries == 0 { Cell::Nothing } else { Cell::Number(x) };
        let at = if head.most.0 > 0.0 { Cell::Count(head.most.1) } else { Cell::Nothing };
        let cells = [
            Cell::Count(head.head),
            number(head.divergence),
            number(head.most.0),
            at,
            number(head.weight),
            Cell::Count(head.changed),
            Cell::Count(head.queries),
        ];
        layer.into_iter().chain(cells).collect()
    };
    let table = Table::new(&columns, heads.iter().map(row).collect());
    if arguments.form.json {
        writeln!(terminal, "{}", serde_json::json!({ "heads": table.json() }))?;
    } else if arguments.form.csv {
        write!(terminal, "{}", table.csv()?)?;
    } else {
        let [one, other] = [&arguments.one, &arguments.other].map(|source| source.path.display());
        writeln!(terminal, "{one} and {other}: {}", show::count(heads.len(), "head"))?;
        table.lines().iter().try_for_each(|line| writeln!(terminal, "{line}"))?;
        if let Some(output) = &arguments.output {
            writeln!(terminal, "wrote {}: weights of the second less those of the first", output.display())?;
        }
    }
    Ok(())
}
