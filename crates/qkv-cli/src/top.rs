//! `qkv top`: whom one query attends most, and which keys move it most; or who attends one key most.

use std::io::Write;

use anyhow::bail;
use clap::Args;
use qkv_view::explorer::{KeyRanks, Layer, Opening, QueryRanks, Ranked};
use qkv_view::scene::token;
use qkv_view::show;
use serde_json::{Value, json};

use crate::explore;
use crate::head::{HeadOptions, below};
use crate::options::{AttentionOptions, hidden, parse_at_least_one};
use crate::progress::Progress;
use crate::source::Source;
use crate::table::{Cell, Form, Table};
use crate::terminal::Terminal;

#[derive(Args, Debug)]
#[command(allow_negative_numbers = true, mut_arg("seed", hidden))]
pub struct Arguments {
    /// A file with arrays q, k and v, or a recording
    #[arg(value_name = "INPUT")]
    input: Source,

    /// The query whose keys are ranked, counted from 0
    #[arg(long, value_name = "I", conflicts_with = "key")]
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
    if arguments.query.or(arguments.key).is_none() {
        bail!("say --query I, whom that query attends, or --key J, who attends that key");
    }
    let opened = explore::open_one(&arguments.input, &arguments.attention)?;
    opened.warnings.iter().for_each(|warning| terminal.warn(warning));
    let layer = &opened.layers[0];
    arguments.head.check(layer.facts().batches, layer.facts().heads)?;
    let report = match (arguments.query, arguments.key) {
        (Some(query), _) => of_query(layer, query, arguments)?,
        (_, Some(key)) => of_key(layer, key, arguments)?,
        (None, None) => unreachable!("one is given"),
    };
    report.print(arguments.form, terminal)?;
    Ok(true)
}

/// A heading, and tables under it.
struct Report {
    title: String,
    facts: Vec<String>,
    tables: Vec<(&'static str, Table)>,
    json: Value,
}

impl Report {
    fn print(&self, form: Form, terminal: &mut Terminal) -> anyhow::Result<()> {
        if form.json {
            writeln!(terminal, "{}", self.json)?;
        } else if form.csv {
            write!(terminal, "{}", Table::joined("ranked", &self.tables).csv()?)?;
        } else {
            writeln!(terminal, "{}", self.title)?;
            self.facts.iter().try_for_each(|fact| writeln!(terminal, "{fact}"))?;
            for (name, table) in &self.tables {
                writeln!(terminal, "\n{name}")?;
                table
                    .filled(&["token"])
                    .lines()
                    .iter()
                    .try_for_each(|line| writeln!(terminal, "  {line}"))?;
            }
        }
        Ok(())
    }
}

fn of_query(layer: &explore::Layer, query: usize, arguments: &Arguments) -> anyhow::Result<Report> {
    let HeadOptions { head, batch } = arguments.head;
    below("--query", query, layer.facts().len_query)?;
    let tokens = layer.tokens(batch);
    let place = Opening { batch, head, queries: Some(query..query + 1), stats: None };
    let ranks = layer.see(&place, |head| Ok(QueryRanks::new(head, query, arguments.count)?))?;
    let mut facts = Vec::new();
    match ranks.row.mass {
        0.0 => facts.push("It may attend nothing: every weight is 0.".to_string()),
        mass if mass.is_nan() => {
            facts.push("Its weights are NaN: its query, or a key that it sees, is.".to_string())
        }
        _ => {
            facts.push(format!(
                "entropy {} nats, as of {} keys of equal weight; mean distance {} positions",
                show::number(ranks.row.entropy),
                show::rounded(ranks.effective_keys()),
                show::rounded(ranks.row.distance)
            ));
            facts.push(beside(ranks.others, "key", ranks.rest));
        }
    }
    let table = |list: &[Ranked]| table(list, "key", |key| tokens.key(key));
    Ok(Report {
        title: format!("{} of head {head}, {}", named("query", query, tokens.query(query)), layer.title()),
        facts,
        tables: vec![("by weight", table(&ranks.by_weight)), ("by influence", table(&ranks.by_influence))],
        json: placed(ranks.json(&tokens), arguments.head),
    })
}

fn of_key(layer: &explore::Layer, key: usize, arguments: &Arguments) -> anyhow::Result<Report> {
    let HeadOptions { head, batch } = arguments.head;
    below("--key", key, layer.facts().len_key)?;
    let tokens = layer.tokens(batch);
    let place = Opening { batch, head, ..Opening::default() };
    let progress = Progress::new("reading scores");
    let mut report = |done, total| progress.report(done, total);
    let ranks =
        layer.see(&place, |head| Ok(KeyRanks::new(head, key, arguments.count, Some(&mut report))?))?;
    let mean = if ranks.queries == 0 { 0.0 } else { ranks.received / ranks.queries as f64 };
    Ok(Report {
        title: format!("{} of head {head}, {}", named("key", key, tokens.key(key)), layer.title()),
        facts: vec![
            format!(
                "weight {} in all, from {}: {} from each in the mean",
                show::rounded(ranks.received),
                show::count(ranks.queries, "query"),
                show::number(mean)
            ),
            beside(ranks.others, "query", ranks.rest),
        ],
        tables: vec![("by weight", table(&ranks.by_weight, "query", |query| tokens.query(query)))],
        json: placed(ranks.json(&tokens), arguments.head),
    })
}

fn beside(others: usize, kind: &str, rest: f64) -> String {
    match others {
        0 => "beside those listed: none".to_string(),
        _ => format!(
            "beside those listed: {} of weight {} together",
            show::count(others, kind),
            show::rounded(rest)
        ),
    }
}

fn table<'t>(list: &[Ranked], kind: &str, token: impl Fn(usize) -> Option<&'t String>) -> Table {
    let cells = |ranked: &Ranked| {
        vec![
            Cell::Count(ranked.index),
            Cell::text(token(ranked.index)),
            Cell::Number(ranked.weight),
            Cell::Number(ranked.influence),
        ]
    };
    Table::new(&[kind, "token", "weight", "influence"], list.iter().map(cells).collect())
}

fn placed(mut json: Value, HeadOptions { head, batch }: HeadOptions) -> Value {
    json["head"] = json!(head);
    json["batch"] = json!(batch);
    json
}

fn named(what: &str, index: usize, name: Option<&String>) -> String {
    match name {
        Some(name) => format!("{what} {index} ({})", token(name)),
        None => format!("{what} {index}"),
    }
}
