//! Whom one query attends most and which keys move it most; who attends one key most.

use std::ops::Range;

use qkv::{Error, Map, Of, Progress, QuerySurvey, Survey};
use serde_json::{Value, json};

use super::source::{Head, Tokens};
use crate::json::number;

/// A pair: one is what was asked about, this is the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    /// The number of the key, or of the query.
    pub index: usize,
    /// The query's weight for the key.
    pub weight: f64,
    /// How far the query's output would move without the key.
    pub influence: f64,
}

/// Where a query's attention goes.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryRanks {
    /// Which query.
    pub query: usize,
    /// In the whole.
    pub row: QuerySurvey,
    /// Keys, the one of most weight first.
    pub by_weight: Vec<Ranked>,
    /// Keys, the one of most influence first.
    pub by_influence: Vec<Ranked>,
    /// How many keys beside those by weight have any.
    pub others: usize,
    /// Their weight.
    pub rest: f64,
}

impl QueryRanks {
    /// Of a head whose queries include this one; up to `count` keys in each list.
    ///
    /// # Errors
    /// As the engine's.
    pub fn new(head: &dyn Head, query: usize, count: usize) -> Result<Self, Error> {
        let only = query..query + 1;
        let survey = head.survey(&Survey::new().queries(only.clone()).top(count), None)?;
        let weights = weights(head, only, 0..head.lengths().1, None)?;
        let influence = head.influence(query)?;
        let ranked = |index: usize| Ranked { index, weight: weights[index], influence: influence[index] };
        let by_weight: Vec<Ranked> = survey.top_keys.of(0).iter().map(|key| ranked(key.index)).collect();
        let mut others = weights.clone();
        by_weight.iter().for_each(|key| others[key.index] = 0.0);
        Ok(Self {
            query,
            row: survey.rows[0],
            by_influence: largest(&influence, count).into_iter().map(ranked).collect(),
            by_weight,
            others: others.iter().filter(|&&weight| weight > 0.0).count(),
            rest: others.iter().sum(),
        })
    }

    /// As many keys of equal weight would have its entropy.
    pub fn effective_keys(&self) -> f64 {
        if self.row.mass == 0.0 { 0.0 } else { libm::exp(self.row.entropy) }
    }

    /// All of it, with the tokens' names.
    pub fn json(&self, tokens: &Tokens<'_>) -> Value {
        let listed = |list: &[Ranked]| listed(list, "key", |key| tokens.key(key));
        json!({
            "query": self.query,
            "token": tokens.query(self.query),
            "mass": number(self.row.mass),
            "entropy": number(self.row.entropy),
            "effective_keys": number(self.effective_keys()),
            "distance": number(self.row.distance),
            "rest": number(self.rest),
            "by_weight": listed(&self.by_weight),
            "by_influence": listed(&self.by_influence),
        })
    }
}

/// Where a key's attention comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyRanks {
    /// Which key.
    pub key: usize,
    /// The sum of its weights over the queries.
    pub received: f64,
    /// How many queries give it any.
    pub queries: usize,
    /// How many queries beside those listed give it any.
    pub others: usize,
    /// Their weight.
    pub rest: f64,
    /// Queries, the one that gives it the most weight first.
    pub by_weight: Vec<Ranked>,
}

impl KeyRanks {
    /// Of a head with all its queries; up to `count` of them in the list.
    ///
    /// # Errors
    /// As the engine's, and if progress cancelled.
    pub fn new(
        head: &dyn Head,
        key: usize,
        count: usize,
        progress: Option<&mut Progress<'_>>,
    ) -> Result<Self, Error> {
        let weights = weights(head, head.queries(), key..key + 1, progress)?;
        let ranked = |query: usize| {
            Ok(Ranked { index: query, weight: weights[query], influence: head.influence(query)?[key] })
        };
        let listed = largest(&weights, count);
        let mut others = weights.clone();
        listed.iter().for_each(|&query| others[query] = 0.0);
        let giving = |weights: &[f64]| weights.iter().filter(|&&weight| weight > 0.0).count();
        Ok(Self {
            key,
            received: weights.iter().sum(),
            queries: giving(&weights),
            others: giving(&others),
            rest: others.iter().sum(),
            by_weight: listed.into_iter().map(ranked).collect::<Result<_, Error>>()?,
        })
    }

    /// All of it, with the tokens' names.
    pub fn json(&self, tokens: &Tokens<'_>) -> Value {
        json!({
            "key": self.key,
            "token": tokens.key(self.key),
            "received": number(self.received),
            "queries": self.queries,
            "rest": number(self.rest),
            "by_weight": listed(&self.by_weight, "query", |query| tokens.query(query)),
        })
    }
}

/// One row or one column of weights.
fn weights(
    head: &dyn Head,
    queries: Range<usize>,
    keys: Range<usize>,
    progress: Option<&mut Progress<'_>>,
) -> Result<Vec<f64>, Error> {
    let map = Map::new(Of::Weights).cell(1, 1).queries(queries).keys(keys);
    Ok(head.map(&map, progress)?.into_raw_vec_and_offset().0)
}

/// The places of the largest numbers above 0, the largest first, and of equal ones the earlier.
pub(super) fn largest(numbers: &[f64], count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..numbers.len()).filter(|&at| numbers[at] > 0.0).collect();
    let before = |a: &usize, b: &usize| numbers[*b].total_cmp(&numbers[*a]).then(a.cmp(b));
    if count < places.len() {
        places.select_nth_unstable_by(count, before);
        places.truncate(count);
    }
    places.sort_unstable_by(before);
    places
}

fn listed<'t>(list: &[Ranked], kind: &str, token: impl Fn(usize) -> Option<&'t String>) -> Value {
    let one = |ranked: &Ranked| {
        json!({
            kind: ranked.index,
            "token": token(ranked.index),
            "weight": number(ranked.weight),
            "influence": number(ranked.influence),
        })
    };
    list.iter().map(one).collect()
}
