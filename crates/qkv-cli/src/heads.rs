//! `qkv heads`: every head of an input in a few numbers, so that heads can be sorted and found.

use std::io::Write;

use clap::Args;
use clap::builder::PossibleValuesParser;
use qkv_view::explorer::{self, COLUMNS, Entry, Layer, Line};
use qkv_view::show;

use crate::explore;
use crate::head::below;
use crate::options::{AttentionOptions, parse_at_least_one};
use crate::progress::Progress;
use crate::source::Source;
use crate::table::{Cell, Form, Table};
use crate::terminal::Terminal;

#[derive(Args, Debug)]
#[command(allow_negative_numbers = true, after_help = MEANINGS)]
pub struct Arguments {
    /// A file with arrays q, k and v, or a recording, of which all layers are shown
    #[arg(value_name = "INPUT")]
    input: Source,

    /// Which column the heads are sorted by, the largest number first [default: as they are numbered]
    #[arg(long, value_name = "COLUMN", value_parser = PossibleValuesParser::new(COLUMNS))]
    sort: Option<String>,

    /// The smallest number first
    #[arg(long, requires = "sort")]
    reverse: bool,

    /// How many heads are listed [default: all]
    #[arg(long, short = 'n', value_name = "N", value_parser = parse_at_least_one)]
    count: Option<usize>,

    /// How many keys count as the first
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_at_least_one)]
    first_keys: usize,

    /// Which batch, counted flat over all batch axes
    #[arg(long, value_name = "B", default_value_t = 0)]
    batch: usize,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    attention: AttentionOptions,
}

const MEANINGS: &str = "\
Columns, means over the queries that attend something:
  entropy         of the weights, in nats
  effective_keys  the mean of its exponential: as many keys of equal weight would have it
  distance        positions between query and key, by weight
  first           weight of the first key (--first-keys N: of the first N)
  self            weight of the query's own position
  previous        weight of the position before
  same            weight of the same token elsewhere          (needs tokens)
  after           weight of what followed the token earlier   (needs tokens)
  empty           queries that attend nothing
  nan             queries whose weights are NaN";

pub fn run(arguments: &Arguments, terminal: &mut Terminal) -> anyhow::Result<bool> {
    let opened = explore::open(&arguments.input, &arguments.attention)?;
    opened.warnings.iter().for_each(|warning| terminal.warn(warning));
    let mut heads = surveyed(&opened.layers, arguments)?;
    if let Some(at) = COLUMNS.iter().position(|name| Some(*name) == arguments.sort.as_deref()) {
        heads.sort_by(|a, b| {
            let ascending = a.entries[at].rank().total_cmp(&b.entries[at].rank());
            if arguments.reverse { ascending } else { ascending.reverse() }
        });
    }
    heads.truncate(arguments.count.unwrap_or(usize::MAX));
    print(&heads, &arguments.input, arguments.form, terminal)?;
    Ok(true)
}

fn surveyed(layers: &[explore::Layer], arguments: &Arguments) -> anyhow::Result<Vec<Line>> {
    for layer in layers {
        below("--batch", arguments.batch, layer.facts().batches)?;
    }
    let progress = Progress::new("surveying");
    let mut report = |done, total| progress.report(done, total);
    let layers = layers.iter().map(|layer| layer as &dyn Layer);
    explorer::surveyed(layers, arguments.batch, arguments.first_keys, &mut report)
        .map_err(anyhow::Error::from_boxed)
}

fn print(heads: &[Line], source: &Source, form: Form, terminal: &mut Terminal) -> anyhow::Result<()> {
    let has_layers = heads.iter().any(|head| head.layer.is_some());
    let names: Vec<&str> = has_layers.then_some("layer").into_iter().chain(["head"]).chain(COLUMNS).collect();
    let cell = |entry: &Entry| match *entry {
        Entry::Mean(x) => Cell::Number(x),
        Entry::Count(count) => Cell::Count(count),
        Entry::Nothing => Cell::Nothing,
    };
    let row = |head: &Line| {
        let layer = has_layers.then(|| head.layer.map_or(Cell::Nothing, Cell::Count));
        let place = layer.into_iter().chain([Cell::Count(head.head)]);
        place.chain(head.entries.iter().map(cell)).collect()
    };
    let table = Table::new(&names, heads.iter().map(row).collect());
    if form.json {
        writeln!(terminal, "{}", serde_json::json!({ "heads": table.json() }))?;
    } else if form.csv {
        write!(terminal, "{}", table.csv()?)?;
    } else {
        writeln!(terminal, "{} of {}", show::count(heads.len(), "head"), source.path.display())?;
        table.lines().iter().try_for_each(|line| writeln!(terminal, "{line}"))?;
    }
    Ok(())
}
