//! What there is to say of each query and each key of a head, in one pass over its weights: where attention goes, how
//! spread it is, and which pairs stand out.
//!
//! Queries are cut into spans. A span writes what it finds of its own queries, and hands over what it found of the keys;
//! that is added up span after span, so that no sum depends on which thread was faster.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::influences::{self, Influences};
use super::patterns::{Patterns, Tokens};
use super::rank::{Ranked, Ranking, Ranks};
use super::strip::{Head, Strip, Strips, blocks};
use crate::call::Progress;
use crate::element::Real;
use crate::error::Error;
use crate::forward::{Buffers, each_task};
use crate::plan;
use crate::simd::{Kernel, Register};
use crate::tile::QUERY_BLOCK;

/// Queries of a span.
const SPAN: usize = 8 * QUERY_BLOCK;

/// What is to be found out about a head.
#[derive(Clone, Debug, Default)]
pub struct Survey<'t> {
    pub(super) queries: Option<Range<usize>>,
    pub(super) top: usize,
    pub(super) influence: bool,
    pub(super) first_keys: Option<usize>,
    pub(super) tokens: Option<(&'t [u32], &'t [u32])>,
}

impl<'t> Survey<'t> {
    /// Of all queries, without rankings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Of these queries alone.
    pub fn queries(mut self, queries: Range<usize>) -> Self {
        self.queries = Some(queries);
        self
    }

    /// Ranks so many keys for each query, and queries for each key.
    pub fn top(mut self, most: usize) -> Self {
        self.top = most;
        self
    }

    /// Ranks keys by influence too, which takes the outputs and so some times as long.
    pub fn influence(mut self) -> Self {
        self.influence = true;
        self
    }

    /// How many keys count as the first; 1 by default.
    pub fn first_keys(mut self, keys: usize) -> Self {
        self.first_keys = Some(keys);
        self
    }

    /// The token of each query and of each key, in numbers of which equal ones are equal tokens: for the patterns that
    /// need them.
    pub fn tokens(mut self, query: &'t [u32], key: &'t [u32]) -> Self {
        self.tokens = Some((query, key));
        self
    }
}

/// Where one query's attention goes. All of it is NaN if a weight is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QuerySurvey {
    /// The sum of its weights: 1, less with a sink, 0 if it attends nothing.
    pub mass: f64,
    /// `-Σ p ln p`, in nats. Its exponential is the effective number of keys.
    pub entropy: f64,
    /// How many positions away the keys are, in the mean by weight.
    pub distance: f64,
    /// The weight of the first keys.
    pub first: f64,
    /// The weight of the key at its own position.
    pub own: f64,
    /// The weight of the key at the position before.
    pub previous: f64,
    /// The weight of keys of the same token elsewhere; 0 without tokens.
    pub same_token: f64,
    /// The weight of keys that follow an earlier copy of its token; 0 without tokens.
    pub after_copy: f64,
}

/// What was found out about a head.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HeadSurvey {
    /// Which queries were looked at.
    pub queries: Range<usize>,
    /// Each of them.
    pub rows: Vec<QuerySurvey>,
    /// The keys of most weight for each of them.
    pub top_keys: Ranking,
    /// The keys of most influence for each of them, if that was asked for.
    pub top_influence: Option<Ranking>,
    /// The sum of the weights that each key gets from them.
    pub received: Vec<f64>,
    /// The queries that give each key the most weight.
    pub top_queries: Ranking,
}

/// A head in a few numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct HeadSummary {
    /// How many queries attend something and have weights that are numbers: the means are over these.
    pub queries: usize,
    /// How many attend nothing.
    pub empty: usize,
    /// How many have weights that are NaN.
    pub not_finite: usize,
    /// The mean of each number.
    pub mean: QuerySurvey,
    /// The mean of `exp(entropy)`.
    pub effective_keys: f64,
}

impl HeadSummary {
    /// Of a head's queries.
    pub fn of(rows: &[QuerySurvey]) -> Self {
        let mut summary = Self::default();
        for row in rows {
            match row.mass {
                0.0 => summary.empty += 1,
                mass if mass.is_nan() => summary.not_finite += 1,
                _ => {
                    summary.queries += 1;
                    summary.mean = summary.mean.zip(row, |sum, more| sum + more);
                    summary.effective_keys += libm::exp(row.entropy);
                }
            }
        }
        let count = summary.queries.max(1) as f64;
        summary.mean = summary.mean.zip(&QuerySurvey::default(), |sum, _| sum / count);
        summary.effective_keys /= count;
        summary
    }
}

impl QuerySurvey {
    /// Each number with that of another.
    fn zip(&self, other: &Self, with: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            mass: with(self.mass, other.mass),
            entropy: with(self.entropy, other.entropy),
            distance: with(self.distance, other.distance),
            first: with(self.first, other.first),
            own: with(self.own, other.own),
            previous: with(self.previous, other.previous),
            same_token: with(self.same_token, other.same_token),
            after_copy: with(self.after_copy, other.after_copy),
        }
    }
}

impl HeadSurvey {
    /// The head in a few numbers.
    pub fn summary(&self) -> HeadSummary {
        HeadSummary::of(&self.rows)
    }
}

/// # Errors
/// If progress cancelled.
pub(super) fn surveyed<A: Real>(
    head: &Head<'_, A>,
    survey: &Survey<'_>,
    queries: Range<usize>,
    influences: Option<&Influences<A>>,
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<HeadSurvey, Error> {
    let terms = head.terms;
    let patterns = Patterns {
        visibility: &terms.visibility,
        batch: head.batch,
        first_keys: survey.first_keys.unwrap_or(1),
        tokens: survey.tokens.map(|(query, key)| Tokens::new(query, key)),
    };
    let mut rows = vec![QuerySurvey::default(); queries.len()];
    // No more can rank than there are.
    let (most_keys, most_queries) = (survey.top.min(terms.len_key), survey.top.min(queries.len()));
    let mut top_keys = Ranking::new(queries.len(), most_keys);
    let mut top_influence = Ranking::new(queries.len(), if influences.is_some() { most_keys } else { 0 });
    let found = Mutex::new(InOrder::new(OfKeys::new(terms.len_key, most_queries)));
    let tasks = rows.chunks_mut(SPAN).zip(top_keys.parts(SPAN)).zip(top_influence.parts(SPAN)).enumerate();
    let tasks = tasks.map(|(number, ((rows, top_keys), top_influence))| {
        let start = queries.start + number * SPAN;
        let queries = start..start + rows.len();
        Span { head, patterns: &patterns, influences, number, queries, rows, top_keys, top_influence }
    });
    let total = queries.len().div_ceil(SPAN);
    let buffers = Buffers { kept: None, new: || Scratch::new(head) };
    each_task(
        (total, tasks),
        plan::threads(terms, queries.len()),
        progress,
        buffers,
        |scratch, mut span: Span<'_, A>| {
            let mut of_keys = OfKeys::new(terms.len_key, most_queries);
            span.survey(&mut of_keys, scratch);
            found.lock().unwrap_or_else(PoisonError::into_inner).take(span.number, of_keys);
        },
    )?;
    let OfKeys { received, top_queries } = found.into_inner().unwrap_or_else(PoisonError::into_inner).merged;
    let top_influence = influences.is_some().then_some(top_influence);
    Ok(HeadSurvey { queries, rows, top_keys, top_influence, received, top_queries })
}

/// What some queries say of all keys.
struct OfKeys {
    received: Vec<f64>,
    top_queries: Ranking,
}

impl OfKeys {
    fn new(len_key: usize, top: usize) -> Self {
        Self { received: vec![0.0; len_key], top_queries: Ranking::new(len_key, top) }
    }

    fn append(&mut self, later: &Self) {
        self.received.iter_mut().zip(&later.received).for_each(|(sum, more)| *sum += more);
        self.top_queries.append(&later.top_queries);
    }
}

/// What spans say, put together in their order; those that are early wait.
struct InOrder {
    merged: OfKeys,
    next: usize,
    waiting: BTreeMap<usize, OfKeys>,
}

impl InOrder {
    fn new(empty: OfKeys) -> Self {
        Self { merged: empty, next: 0, waiting: BTreeMap::new() }
    }

    fn take(&mut self, number: usize, found: OfKeys) {
        self.waiting.insert(number, found);
        while let Some(found) = self.waiting.remove(&self.next) {
            self.merged.append(&found);
            self.next += 1;
        }
    }
}

/// A thread's buffers.
struct Scratch<A> {
    strips: Strips<A>,
    influences: influences::Scratch<A>,
    /// Of each key of a strip, sum and maximum over a block's queries.
    keys: Vec<(f64, A)>,
}

impl<A: Real> Scratch<A> {
    fn new(head: &Head<'_, A>) -> Self {
        Self { strips: Strips::new(head.terms), influences: influences::Scratch::new(), keys: Vec::new() }
    }
}

/// Some queries, and room for what is found out about them.
struct Span<'s, A> {
    head: &'s Head<'s, A>,
    patterns: &'s Patterns<'s>,
    influences: Option<&'s Influences<A>>,
    number: usize,
    queries: Range<usize>,
    rows: &'s mut [QuerySurvey],
    top_keys: Ranks<'s>,
    top_influence: Ranks<'s>,
}

impl<A: Real> Span<'_, A> {
    fn survey(&mut self, of_keys: &mut OfKeys, scratch: &mut Scratch<A>) {
        let Self { head, patterns, influences, .. } = *self;
        let mut ranks = of_keys.top_queries.parts(head.terms.len_key);
        let mut top_queries = ranks.next();
        for queries in blocks(self.queries.clone()) {
            let first = queries.start - self.queries.start;
            let mut sums = RowSums::new(head, &queries);
            for keys in head.seen(&queries, &(0..head.terms.len_key)) {
                let (scores, weights) = scratch.strips.weigh(head, &queries, &keys);
                head.terms.simd.run(OverStrip {
                    scores,
                    weights,
                    offset: head.offset(queries.start, keys.start),
                    sums: &mut sums,
                    keys: &mut scratch.keys,
                });
                patterns.add(weights, &mut self.rows[first..][..queries.len()]);
                rank_rows(&mut self.top_keys, first, &sums.largest, weights);
                if let Some(top_queries) = &mut top_queries {
                    rank_keys(top_queries, &scratch.keys, weights);
                }
                for (received, &(sum, _)) in of_keys.received[keys.clone()].iter_mut().zip(&scratch.keys) {
                    *received += sum;
                }
                if let Some(influences) = influences {
                    influences.of(head, (scores, weights), &mut scratch.influences);
                    let largest = [A::INFINITY; QUERY_BLOCK];
                    rank_rows(&mut self.top_influence, first, &largest, weights);
                }
            }
            for (row, survey) in self.rows[first..][..queries.len()].iter_mut().enumerate() {
                sums.finish(row, survey);
            }
        }
    }
}

/// Ranks the keys of a strip for each of its queries, of which those are looked at whose largest number would rank.
fn rank_rows<A: Real>(ranks: &mut Ranks<'_>, first: usize, largest: &[A; QUERY_BLOCK], strip: &Strip<A>) {
    for row in 0..strip.queries.len() {
        let mut bar = ranks.bar(first + row);
        if largest[row].to_f64() > bar {
            for (index, numbers) in strip.keys.clone().zip(strip.of_keys()) {
                let value = numbers[row].to_f64();
                if value > bar {
                    ranks.offer(first + row, Ranked { index, value });
                    bar = ranks.bar(first + row);
                }
            }
        }
    }
}

/// Ranks the queries of a strip for each of its keys.
fn rank_keys<A: Real>(ranks: &mut Ranks<'_>, of_keys: &[(f64, A)], strip: &Strip<A>) {
    for ((key, numbers), &(_, largest)) in strip.keys.clone().zip(strip.of_keys()).zip(of_keys) {
        if largest.to_f64() > ranks.bar(key) {
            for (index, value) in strip.queries.clone().zip(numbers) {
                ranks.offer(key, Ranked { index, value: value.to_f64() });
            }
        }
    }
}

/// Sums over the keys for each query of a block, in f64.
struct RowSums<A> {
    max: [A; QUERY_BLOCK],
    /// The logarithm of each row's sum.
    log_sum: [f64; QUERY_BLOCK],
    /// `Σ p`, `Σ p (s - max)` and `Σ p |distance|`
    mass: [f64; QUERY_BLOCK],
    below_max: [f64; QUERY_BLOCK],
    distance: [f64; QUERY_BLOCK],
    /// Of the last strip.
    largest: [A; QUERY_BLOCK],
}

impl<A: Real> RowSums<A> {
    fn new(head: &Head<'_, A>, queries: &Range<usize>) -> Self {
        let zeros = [0.0; QUERY_BLOCK];
        let mut sums = Self {
            max: [A::ZERO; QUERY_BLOCK],
            log_sum: zeros,
            mass: zeros,
            below_max: zeros,
            distance: zeros,
            largest: [A::ZERO; QUERY_BLOCK],
        };
        for (row, (&max, &sum)) in head.stats(queries)[0].iter().zip(head.stats(queries)[1]).enumerate() {
            sums.max[row] = max;
            sums.log_sum[row] = libm::log(sum.to_f64());
        }
        sums
    }

    /// `-Σ p ln p`, with `ln p = s - max - ln(sum)`: sums of numbers of one sign, so that nothing cancels.
    fn finish(&self, row: usize, survey: &mut QuerySurvey) {
        let mass = self.mass[row];
        survey.mass = mass;
        if mass != 0.0 {
            survey.entropy = mass * self.log_sum[row] - self.below_max[row];
            survey.distance = self.distance[row] / mass;
        }
    }
}

/// Takes a strip of weights into sums over its keys, and over its queries.
struct OverStrip<'s, A> {
    scores: &'s Strip<A>,
    weights: &'s Strip<A>,
    /// How far the first query stands behind the first key.
    offset: f64,
    sums: &'s mut RowSums<A>,
    keys: &'s mut Vec<(f64, A)>,
}

/// Queries whose sums are kept in registers.
const SIDE_BY_SIDE: usize = 8;

impl<A: Real> Kernel<A> for OverStrip<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Register<Lane = A>>(self) {
        let Self { scores, weights, offset, sums, keys } = self;
        for chunk in 0..QUERY_BLOCK / SIDE_BY_SIDE {
            over_keys(chunk, scores, weights, offset, sums);
        }
        keys.clear();
        for of_key in weights.of_keys() {
            let (mut sum, mut largest) = ([0.0; SIDE_BY_SIDE], [A::ZERO; SIDE_BY_SIDE]);
            for numbers in of_key.as_chunks::<SIDE_BY_SIDE>().0 {
                for lane in 0..SIDE_BY_SIDE {
                    sum[lane] += numbers[lane].to_f64();
                    largest[lane] = if numbers[lane] > largest[lane] { numbers[lane] } else { largest[lane] };
                }
            }
            let largest = largest.into_iter().fold(A::ZERO, |a, b| if b > a { b } else { a });
            keys.push((sum.into_iter().sum(), largest));
        }
    }
}

#[inline(always)]
fn over_keys<A: Real>(
    chunk: usize,
    scores: &Strip<A>,
    weights: &Strip<A>,
    offset: f64,
    sums: &mut RowSums<A>,
) {
    let rows = chunk * SIDE_BY_SIDE..(chunk + 1) * SIDE_BY_SIDE;
    let of = |numbers: &[f64; QUERY_BLOCK]| -> [f64; SIDE_BY_SIDE] { numbers.as_chunks().0[chunk] };
    let (mut mass, mut below_max, mut distance) = (of(&sums.mass), of(&sums.below_max), of(&sums.distance));
    let max = sums.max.as_chunks::<SIDE_BY_SIDE>().0[chunk];
    // How far each query stands behind the key.
    let mut behind: [f64; SIDE_BY_SIDE] = std::array::from_fn(|lane| offset + (rows.start + lane) as f64);
    let mut largest = [A::ZERO; SIDE_BY_SIDE];
    for (scores, weights) in scores.of_keys().iter().zip(weights.of_keys()) {
        let scores = &scores.as_chunks::<SIDE_BY_SIDE>().0[chunk];
        let weights = &weights.as_chunks::<SIDE_BY_SIDE>().0[chunk];
        for lane in 0..SIDE_BY_SIDE {
            let weight = weights[lane].to_f64();
            mass[lane] += weight;
            // 0 times -∞ is to be 0.
            let below = weight * (scores[lane] - max[lane]).to_f64();
            below_max[lane] += if weight == 0.0 { 0.0 } else { below };
            distance[lane] += weight * behind[lane].abs();
            behind[lane] -= 1.0;
            largest[lane] = if weights[lane] > largest[lane] { weights[lane] } else { largest[lane] };
        }
    }
    sums.mass[rows.clone()].copy_from_slice(&mass);
    sums.below_max[rows.clone()].copy_from_slice(&below_max);
    sums.distance[rows.clone()].copy_from_slice(&distance);
    sums.largest[rows].copy_from_slice(&largest);
}
