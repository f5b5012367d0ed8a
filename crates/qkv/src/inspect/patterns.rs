//! Weights at the places that are looked for in heads: the first keys, the query itself, the key before it, and, where the
//! tokens are known, other places of the same token and what followed it before.

use std::collections::HashMap;
use std::ops::Range;

use super::strip::Strip;
use super::survey::QuerySurvey;
use crate::element::Real;
use crate::mask::Visibility;
use crate::tile::Pair;

/// What is looked for.
pub(super) struct Patterns<'p> {
    pub(super) visibility: &'p Visibility<'p>,
    pub(super) batch: usize,
    /// How many keys count as the first.
    pub(super) first_keys: usize,
    pub(super) tokens: Option<Tokens>,
}

/// Where the token of each query stands among the keys.
pub(super) struct Tokens {
    /// Of each query, a range of `slots`.
    of_queries: Vec<Range<usize>>,
    /// The keys, those of one token together and in order.
    slots: Vec<usize>,
}

impl Tokens {
    pub(super) fn new(query: &[u32], key: &[u32]) -> Self {
        let mut slots: Vec<usize> = (0..key.len()).collect();
        slots.sort_by_key(|&slot| (key[slot], slot));
        let mut ranges: HashMap<u32, Range<usize>> = HashMap::new();
        for (at, &slot) in slots.iter().enumerate() {
            ranges.entry(key[slot]).or_insert(at..at).end = at + 1;
        }
        let of_queries = query.iter().map(|token| ranges.get(token).cloned().unwrap_or(0..0)).collect();
        Self { of_queries, slots }
    }

    /// The keys of a range that carry the token of a query.
    fn copies(&self, query: usize, keys: Range<usize>) -> &[usize] {
        let all = &self.slots[self.of_queries[query].clone()];
        let [start, end] = [keys.start, keys.end].map(|bound| all.partition_point(|&slot| slot < bound));
        &all[start..end]
    }
}

impl Patterns<'_> {
    /// Takes in a strip of weights; `rows` are its queries.
    pub(super) fn add<A: Real>(&self, weights: &Strip<A>, rows: &mut [QuerySurvey]) {
        let keys = &weights.keys;
        for (row, (query, survey)) in weights.queries.clone().zip(rows).enumerate() {
            let at = |key: usize| weights.at(row, key).to_f64();
            let weight = |key: Option<usize>| key.filter(|key| keys.contains(key)).map_or(0.0, at);
            survey.first += (keys.start..keys.end.min(self.first_keys)).map(at).sum::<f64>();
            // The key that stands where the query stands.
            let (position, first) =
                self.visibility.positions(Pair { batch: self.batch, head: 0, query, key: 0 });
            let own = position - first;
            survey.own += weight(usize::try_from(own).ok());
            survey.previous += weight(usize::try_from(own - 1).ok());
            let Some(tokens) = &self.tokens else { continue };
            let others = tokens.copies(query, keys.clone()).iter().filter(|&&key| key as i64 != own);
            survey.same_token += others.map(|&key| at(key)).sum::<f64>();
            let before = keys.start.saturating_sub(1)..keys.end - 1;
            let earlier = tokens.copies(query, before).iter().filter(|&&key| (key as i64) < own);
            survey.after_copy += earlier.map(|&key| weight(Some(key + 1))).sum::<f64>();
        }
    }
}
