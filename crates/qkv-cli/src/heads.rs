//! `qkv heads`: every head of an input in a few numbers, so that heads can be sorted and found.

use std::io::Write;

use clap::{Args, ValueEnum};
use qkv::{HeadSummary, Survey};
use qkv_view::show;

use crate::describe;
use crate::head::{HeadOptions, Tokens, below};
use crate::input::{Input, Sources};
use crate::machine::{self, Threads};
use crate::options::{AttentionOptions, parse_at_least_one};
use crate::progress::Progress;
use crate::request::{Number, Request, with_element};
use crate::source::Source;
use crate::table::{Cell, Form, Table};
use crate::terminal::Terminal;

#[derive(Args, Debug)]
#[command(allow_negative_numbers = true, after_help = COLUMNS)]
pub struct Arguments {
    /// A file with arrays q, k and v, or a recording, of which all layers are shown
    #[arg(value_name = "INPUT")]
    input: Source,

    /// Which column the heads are sorted by, the largest number first [default: as they are numbered]
    #[arg(long, value_name = "COLUMN")]
    sort: Option<Column>,

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

const COLUMNS: &str = "\
Columns, means over the queries that attend something:
  entropy    of the weights, in nats
  keys       its exponential: as many keys of equal weight would have it
  distance   positions between query and key, by weight
  first      weight of the first key (--first-keys N: of the first N)
  self       weight of the query's own position
  previous   weight of the position before
  same       weight of the same token elsewhere          (needs tokens)
  after      weight of what followed the token earlier   (needs tokens)
  empty      queries that attend nothing
  nan        queries whose weights are NaN";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Column {
    Entropy,
    Keys,
    Distance,
    First,
    #[value(name = "self")]
    Own,
    Previous,
    Same,
    After,
    Empty,
    Nan,
}

/// One line of the table.
struct Head {
    layer: Option<usize>,
    head: usize,
    summary: HeadSummary,
    has_tokens: bool,
}

pub fn run(arguments: &Arguments, terminal: &mut Terminal) -> anyhow::Result<bool> {
    let simd = machine::simd_from_environment()?;
    let threads = Threads::new(arguments.attention.threads)?;
    let layers = Input::layers(&arguments.input, &arguments.attention)?;
    let progress = Progress::new("surveying");
    let mut heads = Vec::new();
    for (at, &layer) in layers.iter().enumerate() {
        let options = AttentionOptions { layer, ..arguments.attention.clone() };
        let input = Input::read(&Sources::input(&arguments.input), &options)?;
        with_element!(input, T => {
            let request = threads.run(|| Request::<T>::new(&input, &options, simd))?;
            if at == 0 {
                describe::warn(&request, terminal);
            }
            below("--batch", arguments.batch, request.extents.batches)?;
            for head in 0..request.extents.heads {
                let part = progress.part(at * request.extents.heads + head, layers.len() * request.extents.heads);
                heads.push(threads.run(|| surveyed(&request, (layer, head), arguments, part))?);
            }
        });
    }
    drop(progress);
    if let Some(column) = arguments.sort {
        heads.sort_by(|a, b| {
            let ascending = column.of(a).unwrap_or(f64::NAN).total_cmp(&column.of(b).unwrap_or(f64::NAN));
            if arguments.reverse { ascending } else { ascending.reverse() }
        });
    }
    heads.truncate(arguments.count.unwrap_or(usize::MAX));
    print(&heads, &arguments.input, arguments.form, terminal)?;
    Ok(true)
}

fn surveyed<T: Number>(
    request: &Request<'_, T>,
    (layer, head): (Option<usize>, usize),
    arguments: &Arguments,
    mut report: impl FnMut(u64, u64) -> std::ops::ControlFlow<()>,
) -> anyhow::Result<Head> {
    let place = HeadOptions { head, batch: arguments.batch };
    let tokens = Tokens::of(request, place.batch);
    let ids = tokens.ids();
    let mut survey = Survey::new().first_keys(arguments.first_keys);
    if let Some((queries, keys)) = &ids {
        survey = survey.tokens(queries, keys);
    }
    let attention = request.attention(0);
    let explained = |error| request.explained(error);
    let opened = request.call(&attention).inspect(place.batch, place.head).map_err(explained)?;
    let summary = opened.survey(&survey, Some(&mut report)).map_err(explained)?.summary();
    Ok(Head { layer, head, summary, has_tokens: ids.is_some() })
}

impl Column {
    /// Of a head; nothing where the tokens are not known.
    fn of(self, head: &Head) -> Option<f64> {
        let summary = &head.summary;
        Some(match self {
            Self::Entropy => summary.entropy,
            Self::Keys => summary.effective_keys,
            Self::Distance => summary.distance,
            Self::First => summary.first,
            Self::Own => summary.own,
            Self::Previous => summary.previous,
            Self::Same | Self::After if !head.has_tokens => return None,
            Self::Same => summary.same_token,
            Self::After => summary.after_copy,
            Self::Empty => summary.empty as f64,
            Self::Nan => summary.not_finite as f64,
        })
    }

    fn cell(self, head: &Head) -> Cell {
        match self {
            // Of no query there is no mean.
            Self::Empty => Cell::Count(head.summary.empty),
            Self::Nan => Cell::Count(head.summary.not_finite),
            _ if head.summary.queries == 0 => Cell::Nothing,
            _ => self.of(head).map_or(Cell::Nothing, Cell::Number),
        }
    }
}

fn print(heads: &[Head], source: &Source, form: Form, terminal: &mut Terminal) -> anyhow::Result<()> {
    let has_layers = heads.iter().any(|head| head.layer.is_some());
    let columns: Vec<(String, Column)> = Column::value_variants()
        .iter()
        .filter_map(|&column| Some((column.to_possible_value()?.get_name().to_string(), column)))
        .collect();
    let names = has_layers.then_some("layer").into_iter().map(str::to_string).chain(["head".to_string()]);
    let names = names.chain(columns.iter().map(|(name, _)| name.clone())).collect();
    let row = |head: &Head| {
        let layer = has_layers.then(|| head.layer.map_or(Cell::Nothing, Cell::Count));
        let place = layer.into_iter().chain([Cell::Count(head.head)]);
        place.chain(columns.iter().map(|(_, column)| column.cell(head))).collect()
    };
    let table = Table { columns: names, rows: heads.iter().map(row).collect() };
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
