//! Which head of an input a command looks at, and the names of its queries and keys.

use std::collections::HashMap;
use std::ops::Range;

use anyhow::bail;
use clap::Args;
use qkv::Alignment;
use qkv_view::picture::Axis;

use crate::request::{Number, Request};

#[derive(Args, Clone, Copy, Debug, Default)]
pub struct HeadOptions {
    /// Which query head, counted from 0
    #[arg(long, value_name = "H", default_value_t = 0)]
    pub head: usize,

    /// Which batch, counted flat over all batch axes
    #[arg(long, value_name = "B", default_value_t = 0)]
    pub batch: usize,
}

impl HeadOptions {
    /// Refuses what the input does not have.
    pub fn check<T: Number>(self, request: &Request<'_, T>) -> anyhow::Result<()> {
        below("--batch", self.batch, request.extents.batches)?;
        below("--head", self.head, request.extents.heads)
    }
}

/// Refuses an index that does not exist.
pub fn below(option: &str, index: usize, count: usize) -> anyhow::Result<()> {
    match count {
        _ if index < count => Ok(()),
        0 => bail!("{option}: got {index}, but the input has none"),
        _ => bail!("{option}: got {index}, want a number below {count}"),
    }
}

/// The tokens of one batch of an input.
#[derive(Clone, Debug, Default)]
pub struct Tokens<'t> {
    pub keys: Option<&'t [String]>,
    pub queries: Option<&'t [String]>,
}

impl<'t> Tokens<'t> {
    /// Tokens name the keys; queries are the same ones where there are as many, or the last where they stand at the end.
    pub fn of<T: Number>(request: &'t Request<'_, T>, batch: usize) -> Self {
        let (len_query, len_key) = (request.extents.len_query, request.extents.len_key);
        let keys = request.input.tokens_of(batch).filter(|tokens| tokens.len() == len_key);
        let at_end = request.input.settings.causal == Some(Alignment::BottomRight);
        let first =
            if len_query == len_key { Some(0) } else { len_key.checked_sub(len_query).filter(|_| at_end) };
        Self { keys, queries: keys.zip(first).map(|(keys, first)| &keys[first..]) }
    }

    /// Numbers of which equal ones are equal tokens, of the queries and of the keys.
    pub fn ids(&self) -> Option<(Vec<u32>, Vec<u32>)> {
        let mut numbers = HashMap::new();
        let keys = self.keys?.iter().map(|token| {
            let next = numbers.len() as u32;
            *numbers.entry(token.as_str()).or_insert(next)
        });
        let keys: Vec<u32> = keys.collect();
        let queries = keys[keys.len() - self.queries?.len()..].to_vec();
        Some((queries, keys))
    }

    /// The axes of a picture of some queries and keys.
    pub fn axes(&self, queries: Range<usize>, keys: Range<usize>) -> [Axis<'t>; 2] {
        [("query", queries, self.queries), ("key", keys, self.keys)].map(|(name, range, labels)| {
            let axis = Axis::new(name, range);
            match labels {
                Some(labels) => axis.labels(labels),
                None => axis,
            }
        })
    }

    pub fn key(&self, key: usize) -> Option<&'t String> {
        self.keys.and_then(|tokens| tokens.get(key))
    }

    pub fn query(&self, query: usize) -> Option<&'t String> {
        self.queries.and_then(|tokens| tokens.get(query))
    }
}
