//! The arithmetic program, as short as it can be said. Every fast path must equal it, bit for bit.
//!
//! It reads the checked problem pair by pair and shares no arithmetic with the fast paths but `exp`, `tanh`, `ln` and the
//! last rounding ([`Element::leave`]). NUMERICS.md says the same in words and gives the reasons.

use std::ops::Range;

use crate::element::{Element, Real};
use crate::problem::{Problem, Stage};
use crate::simd::Vector;
use crate::simd::math::{exp, tanh};
use crate::tile::{Pair, TILE};

/// Maximum, sum and output of a row over some keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct State<A> {
    pub(crate) max: A,
    pub(crate) sum: A,
    pub(crate) output: Vec<A>,
}

impl<A: Real> State<A> {
    fn empty(dim_value: usize) -> Self {
        Self { max: A::NEG_INFINITY, sum: A::ZERO, output: vec![A::ZERO; dim_value] }
    }

    /// Two neighbouring spans of keys, the older first.
    fn merge(older: Self, newer: Self) -> Self {
        if older.sum == A::ZERO {
            return newer;
        }
        if newer.sum == A::ZERO {
            return older;
        }
        let max = if older.max > newer.max { older.max } else { newer.max };
        let share = |of: A| if of == A::NEG_INFINITY { A::ZERO } else { exp(of - max) };
        let (a, b) = (share(older.max), share(newer.max));
        let merged = |old: A, new: A| new.mul_add(b, old * a);
        let output = older.output.iter().zip(&newer.output).map(|(&old, &new)| merged(old, new)).collect();
        Self { max, sum: merged(older.sum, newer.sum), output }
    }

    /// Takes the sink in.
    pub(crate) fn with_sink(mut self, sink: Option<A>) -> Self {
        if let Some(sink) = sink.filter(|&sink| sink > A::NEG_INFINITY) {
            let max = if sink > self.max { sink } else { self.max };
            let a = exp(self.max - max);
            self.sum = A::ONE.mul_add(exp(sink - max), self.sum * a);
            self.output.iter_mut().for_each(|o| *o = *o * a);
            self.max = max;
        }
        self
    }

    /// The row of the output, before it is rounded to its type.
    pub(crate) fn finish(&self, dropout_factor: Option<A>) -> impl Iterator<Item = A> + '_ {
        let mean = move |o: A| dropout_factor.map_or(o / self.sum, |factor| o / self.sum * factor);
        self.output.iter().map(move |&o| if self.sum == A::ZERO { A::ZERO } else { mean(o) + A::ZERO })
    }
}

/// A score after a stage; for [`Stage::Masked`], `None` where the key is masked.
pub(crate) fn score<T: Element>(
    problem: &Problem<'_, T>,
    pair: Pair,
    stage: Stage,
) -> Option<T::Accumulator> {
    let query = problem.query.row(pair.batch, pair.head, pair.query);
    let key = problem.key.row(pair.batch, problem.terms.key_head(pair.head), pair.key);
    let mut s = T::Accumulator::ZERO;
    for (&q, &k) in query.iter().zip(key) {
        s = q.widen().mul_add(k.widen(), s);
    }
    if stage >= Stage::Scaled {
        s = s * T::Accumulator::from_f64(problem.terms.scale);
    }
    if let (true, Some(cap)) = (stage >= Stage::Softcapped, problem.terms.softcap) {
        let inverse = T::Accumulator::from_f64(1.0 / cap);
        s = T::Accumulator::from_f64(cap) * tanh(s * inverse);
    }
    if stage >= Stage::Masked { masked(problem, pair, s) } else { Some(s) }
}

/// Whether the query may attend the key: no mask hides it, and no bias is -∞.
pub(crate) fn sees<T: Element>(problem: &Problem<'_, T>, pair: Pair) -> bool {
    let terms = &problem.terms;
    let computed = terms.biases.closures_at(pair, &terms.visibility);
    terms.visibility.sees(pair)
        && terms.biases.arrays_at(pair).chain(computed).all(|bias| bias != f64::NEG_INFINITY)
}

/// Whether dropout leaves the pair in.
pub(crate) fn keeps<T: Element>(problem: &Problem<'_, T>, pair: Pair) -> bool {
    problem.terms.dropout.as_ref().is_none_or(|dropout| dropout.keeps(pair, &problem.terms.visibility))
}

/// The score with its biases, or `None` where the key is masked.
fn masked<T: Element>(problem: &Problem<'_, T>, pair: Pair, mut s: T::Accumulator) -> Option<T::Accumulator> {
    if !sees(problem, pair) {
        return None;
    }
    let terms = &problem.terms;
    s = raised(s);
    for bias in terms.biases.arrays_at(pair) {
        s = raised(s + rounded_bias(bias));
    }
    if let Some(slopes) = &terms.biases.slopes {
        let (query, key) = terms.visibility.positions(pair);
        let slope = T::Accumulator::from_f64(slopes[pair.head]);
        s = raised(s + -(slope * T::Accumulator::from_u64(query.abs_diff(key))));
    }
    for bias in terms.biases.closures_at(pair, &terms.visibility) {
        s = raised(s + rounded_bias(bias));
    }
    Some(s)
}

/// A visible score is never -∞; NaN stays.
fn raised<A: Real>(s: A) -> A {
    if s < -A::MAX { -A::MAX } else { s }
}

/// A finite bias beyond the accumulator's range stops at its largest number: rounding makes no mask.
fn rounded_bias<A: Real>(bias: f64) -> A {
    let largest = A::MAX.to_f64();
    if bias.is_infinite() { A::from_f64(bias) } else { A::from_f64(bias.clamp(-largest, largest)) }
}

/// All keys, cut where their absolute positions pass a multiple of [`TILE`]; each tile with its number.
fn tiles<T: Element>(problem: &Problem<'_, T>) -> Vec<(u64, Range<usize>)> {
    let number = |key: usize| (problem.terms.visibility.key_offset as u64 + key as u64) / TILE as u64;
    let mut tiles: Vec<(u64, Range<usize>)> = Vec::new();
    for key in 0..problem.terms.len_key {
        match tiles.last_mut() {
            Some((last, tile)) if *last == number(key) => tile.end = key + 1,
            _ => tiles.push((number(key), key..key + 1)),
        }
    }
    tiles
}

/// The state of a row over all keys, without the sink.
pub(crate) fn row<T: Element>(
    problem: &Problem<'_, T>,
    (batch, head, query): (usize, usize, usize),
) -> State<T::Accumulator> {
    let empty = || State::empty(problem.terms.dim_value);
    // A binary counter over absolute tiles: subtree[i] covers 2^i tiles or is empty.
    let mut subtrees: Vec<State<T::Accumulator>> = vec![empty(); 64];
    for (number, keys) in tiles(problem) {
        let mut node = tile(problem, Pair { batch, head, query, key: 0 }, keys);
        let mut level = 0;
        while number >> level & 1 == 1 {
            node = State::merge(std::mem::replace(&mut subtrees[level], empty()), node);
            level += 1;
        }
        subtrees[level] = node;
    }
    subtrees.into_iter().fold(empty(), |newer, older| State::merge(older, newer))
}

fn tile<T: Element>(problem: &Problem<'_, T>, row: Pair, keys: Range<usize>) -> State<T::Accumulator> {
    let mut state = State::empty(problem.terms.dim_value);
    let scores: Vec<_> = keys.clone().map(|key| score(problem, Pair { key, ..row }, Stage::Masked)).collect();
    for &s in scores.iter().flatten() {
        // NaN is never greater, so it is ignored here and shows up in the sum.
        state.max = if s > state.max { s } else { state.max };
    }
    // + 0: a maximum of -0 and one of +0 must not differ.
    state.max = state.max + T::Accumulator::ZERO;
    // A row of NaN alone has no maximum, and -∞ - -∞ must not appear.
    let reference = if state.max == T::Accumulator::NEG_INFINITY { T::Accumulator::ZERO } else { state.max };
    let values = problem.value.get(row.batch, problem.terms.key_head(row.head));
    for (key, s) in keys.zip(scores) {
        if let Some(s) = s {
            let p = exp(s - reference);
            state.sum = state.sum + p;
            if !keeps(problem, Pair { key, ..row }) {
                continue;
            }
            for (o, &v) in state.output.iter_mut().zip(values.row(key)) {
                *o = p.mul_add(v.widen(), *o);
            }
        }
    }
    state
}

/// The weight of a pair, from the row's state with its sink.
pub(crate) fn weight<A: Real>(score: Option<A>, max: A, sum: A) -> A {
    score.map_or(A::ZERO, |s| exp(s - max) / sum)
}
