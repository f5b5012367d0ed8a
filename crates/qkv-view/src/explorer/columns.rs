//! The table of heads: what is said of each.

use std::ops::ControlFlow;

use qkv::{HeadSummary, Survey};
use serde_json::{Map, Value, json};

use super::source::{Failure, Layer, Opening};
use crate::json::number;

/// The names of the columns. `effective_keys` are as many as would have the entropy with equal weights, `self` is the weight of the query's own position, `same`
/// that of the same token elsewhere, `after` that of what followed the token earlier.
pub const COLUMNS: [&str; 10] =
    ["entropy", "effective_keys", "distance", "first", "self", "previous", "same", "after", "empty", "nan"];

/// Tokens of queries and of keys as numbers, as [`Tokens::ids`](super::Tokens::ids) has them.
pub(super) type Ids = (Vec<u32>, Vec<u32>);

/// What a table needs to know of each query; of tokens, if they are known.
pub(super) fn survey(ids: Option<&Ids>) -> Survey<'_> {
    match ids {
        Some((queries, keys)) => Survey::new().tokens(queries, keys),
        None => Survey::new(),
    }
}

/// One number of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Entry {
    /// A mean over the queries that attend something.
    Mean(f64),
    /// How many queries.
    Count(usize),
    /// Of no query there is no mean, and without tokens nothing is known of them.
    Nothing,
}

/// A head's numbers, in the order of the columns.
pub fn entries(summary: &HeadSummary, has_tokens: bool) -> [Entry; COLUMNS.len()] {
    let mean =
        |known: bool, x: f64| if known && summary.queries > 0 { Entry::Mean(x) } else { Entry::Nothing };
    let of = &summary.mean;
    [
        mean(true, of.entropy),
        mean(true, summary.effective_keys),
        mean(true, of.distance),
        mean(true, of.first),
        mean(true, of.own),
        mean(true, of.previous),
        mean(has_tokens, of.same_token),
        mean(has_tokens, of.after_copy),
        Entry::Count(summary.empty),
        Entry::Count(summary.not_finite),
    ]
}

impl Entry {
    /// What heads are sorted by; NaN where there is nothing.
    pub fn rank(self) -> f64 {
        match self {
            Self::Mean(x) => x,
            Self::Count(count) => count as f64,
            Self::Nothing => f64::NAN,
        }
    }

    fn json(self) -> Value {
        match self {
            Self::Mean(x) => number(x),
            Self::Count(count) => json!(count),
            Self::Nothing => Value::Null,
        }
    }
}

/// One head of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The layer's number, if it has one.
    pub layer: Option<usize>,
    /// Which head of it.
    pub head: usize,
    /// In the order of the columns.
    pub entries: [Entry; COLUMNS.len()],
}

/// All heads of one batch, which all layers must have; `first_keys` keys count as the first. Progress counts thousandths of a head.
///
/// # Errors
/// As the engine's, and if progress cancelled.
pub fn surveyed<'l>(
    layers: impl Iterator<Item = &'l dyn Layer> + Clone,
    batch: usize,
    first_keys: usize,
    progress: &mut (dyn FnMut(u64, u64) -> ControlFlow<()> + Send),
) -> Result<Vec<Line>, Failure> {
    const STEPS: u64 = 1000;
    let count: usize = layers.clone().map(|layer| layer.facts().heads).sum();
    let mut lines = Vec::new();
    for layer in layers {
        let ids = layer.tokens(batch).ids();
        let survey = survey(ids.as_ref()).first_keys(first_keys);
        for head in 0..layer.facts().heads {
            let before = lines.len() as u64 * STEPS;
            let mut report =
                |done: u64, total: u64| progress(before + done * STEPS / total.max(1), count as u64 * STEPS);
            let place = Opening { batch, head, ..Opening::default() };
            let found = layer.see(&place, |head| Ok(head.survey(&survey, Some(&mut report))?.summary()))?;
            let entries = entries(&found, ids.is_some());
            lines.push(Line { layer: layer.facts().layer, head, entries });
        }
    }
    Ok(lines)
}

/// A line of the page's table as JSON, by the titles that its columns have there.
pub fn row(layer: Option<usize>, head: usize, entries: &[Entry; COLUMNS.len()]) -> Value {
    let place = [("layer", json!(layer)), ("head", json!(head))];
    let titles = COLUMNS.map(|name| if name == "effective_keys" { "keys" } else { name });
    let numbers = titles.into_iter().zip(entries.iter().map(|entry| entry.json()));
    place
        .into_iter()
        .chain(numbers)
        .map(|(name, value)| (name.to_string(), value))
        .collect::<Map<_, _>>()
        .into()
}
