//! `qkv top`: whom one query attends most, and which keys move it most; or who attends one key most.

use std::io::Write;
use std::ops::Range;

use clap::Args;
use qkv::{Inspection, Real, Stage, Survey};
use qkv_view::json::number;
use qkv_view::scene::token;
use qkv_view::show;
use serde_json::json;

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
#[command(allow_negative_numbers = true)]
pub struct Arguments {
    /// A file with arrays q, k and v, or a recording
    #[arg(value_name = "INPUT")]
    input: Source,

    /// The query whose keys are ranked, counted from 0
    #[arg(long, value_name = "I", conflicts_with = "key", required_unless_present = "key")]
    query: Option<usize>,

    /// The key whose queries are ranked, counted from 0
    #[arg(long, value_name = "J")]
    key: Option<usize>,

    /// How many are listed
    #[arg(long, short = 'n', value_name = "N", default_value_t = 10, value_parser = parse_at_least_one)]
    count: usize,

    #[command(flatten)]
    head: HeadOptions,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    attention: AttentionOptions,
}

pub fn run(arguments: &Arguments, terminal: &mut Terminal) -> anyhow::Result<bool> {
    let simd = machine::simd_from_environment()?;
    let input = Input::read(&Sources::input(&arguments.input), &arguments.attention)?;
    let threads = Threads::new(arguments.attention.threads)?;
    with_element!(input, T => {
        let request = threads.run(|| Request::<T>::new(&input, &arguments.attention, simd))?;
        describe::warn(&request, terminal);
        arguments.head.check(&request)?;
        let report = threads.run(|| match (arguments.query, arguments.key) {
            (Some(query), _) => of_query(&request, query, arguments),
            (_, Some(key)) => of_key(&request, key, arguments),
            (None, None) => unreachable!("one is required"),
        })?;
        report.print(arguments.form, terminal)?;
    });
    Ok(true)
}

/// A heading, and tables under it.
struct Report {
    title: String,
    facts: Vec<String>,
    tables: Vec<(&'static str, Table)>,
    json: serde_json::Value,
}

impl Report {
    fn print(&self, form: Form, terminal: &mut Terminal) -> anyhow::Result<()> {
        if form.json {
            let mut object = self.json.clone();
            for (name, table) in &self.tables {
                object[name.replace(' ', "_")] = table.json();
            }
            writeln!(terminal, "{object}")?;
        } else if form.csv {
            write!(terminal, "{}", Table::joined("ranked", &self.tables).csv()?)?;
        } else {
            writeln!(terminal, "{}", self.title)?;
            self.facts.iter().try_for_each(|fact| writeln!(terminal, "{fact}"))?;
            for (name, table) in &self.tables {
                writeln!(terminal, "\n{name}")?;
                table.lines().iter().try_for_each(|line| writeln!(terminal, "  {line}"))?;
            }
        }
        Ok(())
    }
}

fn of_query<T: Number>(
    request: &Request<'_, T>,
    query: usize,
    arguments: &Arguments,
) -> anyhow::Result<Report> {
    let place = arguments.head;
    below("--query", query, request.extents.len_query)?;
    let tokens = Tokens::of(request, place.batch);
    let attention = request.attention(0);
    let explained = |error| request.explained(error);
    let call = request.call(&attention);
    let head = call.inspect_queries(place.batch, place.head, query..query + 1).map_err(explained)?;
    let survey = head.survey(&Survey::new().top(arguments.count), None).map_err(explained)?;
    let row = survey.rows[0];
    let weights = weights(&head, query..query + 1, 0..request.extents.len_key).map_err(explained)?;
    let influence =
        request.call(&attention).influence((place.batch, place.head, query)).map_err(explained)?;
    let by_weight: Vec<usize> = survey.top_keys.of(0).iter().map(|ranked| ranked.index).collect();
    let by_influence = largest(&influence, arguments.count);
    let table = |keys: &[usize]| {
        let cells = |&key: &usize| {
            vec![
                Cell::Count(key),
                Cell::text(tokens.key(key)),
                Cell::Number(weights[key]),
                Cell::Number(influence[key]),
            ]
        };
        Table::new(&["key", "token", "weight", "influence"], keys.iter().map(cells).collect())
    };
    let others: Vec<f64> =
        (0..weights.len()).filter(|key| !by_weight.contains(key)).map(|key| weights[key]).collect();
    let rest: f64 = others.iter().sum();
    let name = named("query", query, tokens.query(query));
    let mut facts = Vec::new();
    match row.mass {
        0.0 => facts.push("It may attend nothing: every weight is 0.".to_string()),
        mass if mass.is_nan() => {
            facts.push("Its weights are NaN: its query, or a key that it sees, is.".to_string())
        }
        _ => {
            let keys = libm::exp(row.entropy);
            facts.push(format!(
                "entropy {} nats, as of {} keys of equal weight; mean distance {} positions",
                show::number(row.entropy),
                show::number(keys),
                show::number(row.distance)
            ));
            let attended = others.iter().filter(|&&weight| weight > 0.0).count();
            facts.push(format!(
                "beside those listed: {} of weight {} together",
                show::count(attended, "key"),
                show::number(rest)
            ));
        }
    }
    let json = json!({
        "query": query,
        "token": Cell::text(tokens.query(query)).json(),
        "head": place.head,
        "batch": place.batch,
        "mass": number(row.mass),
        "entropy": number(row.entropy),
        "effective_keys": number(if row.mass == 0.0 { 0.0 } else { libm::exp(row.entropy) }),
        "distance": number(row.distance),
        "rest": number(rest),
    });
    Ok(Report {
        title: format!("{name} of head {}, {}", place.head, request.input.title),
        facts,
        tables: vec![("by weight", table(&by_weight)), ("by influence", table(&by_influence))],
        json,
    })
}

fn of_key<T: Number>(request: &Request<'_, T>, key: usize, arguments: &Arguments) -> anyhow::Result<Report> {
    let place = arguments.head;
    below("--key", key, request.extents.len_key)?;
    let tokens = Tokens::of(request, place.batch);
    let attention = request.attention(0);
    let explained = |error| request.explained(error);
    let head = request.call(&attention).inspect(place.batch, place.head).map_err(explained)?;
    let weights = weights(&head, 0..request.extents.len_query, key..key + 1).map_err(explained)?;
    let queries = largest(&weights, arguments.count);
    let mut rows = Vec::new();
    for &query in &queries {
        let influence =
            request.call(&attention).influence((place.batch, place.head, query)).map_err(explained)?;
        rows.push(vec![
            Cell::Count(query),
            Cell::text(tokens.query(query)),
            Cell::Number(weights[query]),
            Cell::Number(influence[key]),
        ]);
    }
    let received: f64 = weights.iter().sum();
    let attending = weights.iter().filter(|&&weight| weight > 0.0).count();
    let mean = if attending == 0 { 0.0 } else { received / attending as f64 };
    let name = named("key", key, tokens.key(key));
    Ok(Report {
        title: format!("{name} of head {}, {}", place.head, request.input.title),
        facts: vec![format!(
            "weight {} in all, from {}: {} from each in the mean",
            show::number(received),
            show::count(attending, "query"),
            show::number(mean)
        )],
        tables: vec![("by weight", Table::new(&["query", "token", "weight", "influence"], rows))],
        json: json!({
            "key": key,
            "token": Cell::text(tokens.key(key)).json(),
            "head": place.head,
            "batch": place.batch,
            "received": number(received),
            "queries": attending,
        }),
    })
}

/// One row or one column of weights.
fn weights<T: Number>(
    head: &Inspection<'_, T>,
    queries: Range<usize>,
    keys: Range<usize>,
) -> Result<Vec<f64>, qkv::Error> {
    let progress = Progress::new("reading scores");
    let mut report = |done, total| progress.report(done, total);
    let matrix = head.matrix(Stage::Weights, queries, keys, Some(&mut report))?;
    Ok(matrix.iter().map(|&weight| weight.to_f64()).collect())
}

/// The places of the largest numbers above 0, the largest first.
fn largest(numbers: &[f64], count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..numbers.len()).filter(|&at| numbers[at] > 0.0).collect();
    places.sort_by(|&a, &b| numbers[b].total_cmp(&numbers[a]));
    places.truncate(count);
    places
}

fn named(what: &str, index: usize, name: Option<&String>) -> String {
    match name {
        Some(name) => format!("{what} {index} ({})", token(name)),
        None => format!("{what} {index}"),
    }
}
