//! What bounds or biases the scores of a call, in words.

use qkv::Alignment;

use crate::show;

/// Causal order: where queries and keys stand, and which keys are open to all.
pub struct Order<'a> {
    /// Of the queries among the keys.
    pub alignment: Alignment,
    /// The position of the first key.
    pub key_offset: i64,
    /// Positions below it are open to all queries: for all batches, or each.
    pub prefix: Option<&'a [u64]>,
    /// How many keys count, for all batches or each; all where it is not said.
    pub key_lengths: Option<&'a [usize]>,
    /// Queries of a head.
    pub len_query: usize,
    /// Keys of a head.
    pub len_key: usize,
}

impl Order<'_> {
    /// Where the first query stands, if that is the same in all batches.
    pub fn first_position(&self) -> Option<i64> {
        match self.alignment {
            Alignment::TopLeft => Some(0),
            Alignment::Offset(offset) => Some(offset),
            Alignment::BottomRight => {
                let length = match self.key_lengths {
                    None => self.len_key,
                    Some([length]) => *length,
                    Some(_) => return None,
                };
                Some(self.key_offset.saturating_add(length as i64) - self.len_query as i64)
            }
        }
    }

    /// The position of the first query is said where it is not plain.
    pub fn words(&self) -> String {
        let mut words = match self.alignment {
            Alignment::TopLeft if self.key_offset > 0 => {
                "top-left: query i attends positions up to i".to_string()
            }
            Alignment::TopLeft => "top-left: query i attends keys 0 to i".to_string(),
            Alignment::BottomRight => "bottom-right: the last query attends all keys that count".to_string(),
            Alignment::Offset(offset) => format!("query i attends keys up to position {offset} + i"),
        };
        let Self { key_offset, len_query, len_key, .. } = *self;
        if len_query != len_key {
            let stands = match self.first_position() {
                Some(position) => format!("query 0 stands at position {position}"),
                None => "query 0 stands where each batch's key length puts it".to_string(),
            };
            let (queries, keys) = (show::count(len_query, "query"), show::count(len_key, "key"));
            words += &format!(" ({queries}, {keys}: {stands})");
        }
        if key_offset > 0 {
            words += &format!("; key 0 stands at position {key_offset}");
        }
        match self.prefix {
            Some(prefix) if key_offset > 0 => {
                words += &format!("; positions below {} are open to all", list(prefix));
            }
            Some(prefix) => words += &format!("; the first {} keys are open to all", list(prefix)),
            None => {}
        }
        words
    }
}

/// How far a query sees.
pub fn window(left: Option<u64>, right: Option<u64>) -> String {
    let bound = |bound: Option<u64>| bound.map_or("any number".to_string(), |bound| bound.to_string());
    format!("positions from {} before its own to {} after", bound(left), bound(right))
}

/// How many keys count.
pub fn key_lengths(lengths: &[usize]) -> String {
    format!("the first {} keys count", list(lengths))
}

/// Packed documents, by the shapes of their ids.
pub fn segments(query: &[usize], key: &[usize]) -> String {
    format!("a query attends keys that carry its id; ids {} and {}", show::shape(query), show::shape(key))
}

/// ALiBi.
pub const ALIBI: &str = "each head's slope times the distance is taken off";

fn list<N: ToString>(numbers: &[N]) -> String {
    let numbers: Vec<_> = numbers.iter().map(N::to_string).collect();
    match &numbers[..] {
        [only] => only.clone(),
        each => format!("{} (by batch)", each.join(", ")),
    }
}
