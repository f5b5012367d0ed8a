//! The table of heads: what is said of each.

use qkv::HeadSummary;
use serde_json::{Map, Value, json};

use crate::json::number;

/// The names of the columns. `keys` is the effective number of keys, `self` the weight of the query's own position, `same`
/// that of the same token elsewhere, `after` that of what followed the token earlier.
pub const COLUMNS: [&str; 10] =
    ["entropy", "keys", "distance", "first", "self", "previous", "same", "after", "empty", "nan"];

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

/// A line of the table.
pub fn row(layer: Option<usize>, head: usize, entries: &[Entry; COLUMNS.len()]) -> Value {
    let place = [("layer", json!(layer)), ("head", json!(head))];
    let numbers = COLUMNS.into_iter().zip(entries.iter().map(|entry| entry.json()));
    place
        .into_iter()
        .chain(numbers)
        .map(|(name, value)| (name.to_string(), value))
        .collect::<Map<_, _>>()
        .into()
}
