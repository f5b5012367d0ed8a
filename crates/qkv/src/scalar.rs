//! The arithmetic program, as short as it can be said. Every fast path must equal it, bit for bit.
//!
//! It reads the problem pair by pair and shares nothing with the fast paths but `exp`, `tanh` and `ln`. NUMERICS.md
//! says the same in words and gives the reasons.

use std::ops::Range;

use crate::bias::to_accumulator;
use crate::element::{Element, Real};
use crate::problem::{Problem, Stage};
use crate::simd::Vector;
use crate::simd::math::{exp, tanh};
use crate::tile::{CHUNK, Pair, TILE, cut};

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
    pub(crate) fn finish(&self) -> impl Iterator<Item = A> + '_ {
        self.output.iter().map(|&o| if self.sum == A::ZERO { A::ZERO } else { o / self.sum + A::ZERO })
    }
}

/// A score after a stage; for [`Stage::Masked`], `None` where the key is masked.
pub(crate) fn score<T: Element>(
    problem: &Problem<'_, T>,
    pair: Pair,
    stage: Stage,
) -> Option<T::Accumulator> {
    let query = problem.query.get(pair.batch, pair.head).row(pair.query);
    let key = problem.key.get(pair.batch, problem.terms.key_head(pair.head)).row(pair.key);
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

/// The score with its biases, or `None` where the key is masked.
fn masked<T: Element>(problem: &Problem<'_, T>, pair: Pair, mut s: T::Accumulator) -> Option<T::Accumulator> {
    let mut visible = problem.terms.visibility.sees(pair);
    let mut add = |s: &mut T::Accumulator, bias: T::Accumulator| {
        if bias == T::Accumulator::NEG_INFINITY {
            visible = false;
        } else {
            *s = *s + bias;
        }
    };
    problem.terms.biases.arrays_at(pair).for_each(|bias| add(&mut s, to_accumulator(bias)));
    if let Some(slopes) = &problem.terms.biases.slopes {
        let region = problem.terms.visibility.region(&pair.into());
        let distance = region.queries.start.abs_diff(region.keys.start);
        s = s + -(T::Accumulator::from_f64(slopes[pair.head]) * T::Accumulator::from_u64(distance));
    }
    problem
        .terms
        .biases
        .closures_at(pair, &problem.terms.visibility)
        .for_each(|bias| add(&mut s, to_accumulator(bias)));
    let lowest = -T::Accumulator::MAX;
    visible.then_some(if s < lowest { lowest } else { s })
}

/// The state of a row over all keys, without the sink.
pub(crate) fn row<T: Element>(
    problem: &Problem<'_, T>,
    (batch, head, query): (usize, usize, usize),
) -> State<T::Accumulator> {
    let empty = || State::empty(problem.terms.dim_value);
    // A binary counter over absolute chunks: subtree[i] covers 2^i chunks or is empty.
    let mut subtrees: Vec<State<T::Accumulator>> = vec![empty(); 64];
    for (number, keys) in cut(0..problem.terms.len_key, problem.terms.visibility.key_offset, CHUNK) {
        let mut node = chunk(problem, Pair { batch, head, query, key: 0 }, keys);
        let mut level = 0;
        while number >> level & 1 == 1 {
            node = State::merge(std::mem::replace(&mut subtrees[level], empty()), node);
            level += 1;
        }
        subtrees[level] = node;
    }
    subtrees.into_iter().fold(empty(), |newer, older| State::merge(older, newer))
}

fn chunk<T: Element>(problem: &Problem<'_, T>, row: Pair, keys: Range<usize>) -> State<T::Accumulator> {
    let mut state = State::empty(problem.terms.dim_value);
    for (_, keys) in cut(keys, problem.terms.visibility.key_offset, TILE) {
        let scores: Vec<_> =
            keys.clone().map(|key| score(problem, Pair { key, ..row }, Stage::Masked)).collect();
        push_tile(problem, row, &mut state, keys, &scores);
    }
    state
}

fn push_tile<T: Element>(
    problem: &Problem<'_, T>,
    row: Pair,
    state: &mut State<T::Accumulator>,
    keys: Range<usize>,
    scores: &[Option<T::Accumulator>],
) {
    let mut tile_max = T::Accumulator::NEG_INFINITY;
    for &s in scores.iter().flatten() {
        // NaN is never greater, so it is ignored here and shows up in the sum.
        tile_max = if s > tile_max { s } else { tile_max };
    }
    tile_max = tile_max + T::Accumulator::ZERO;
    if tile_max > state.max {
        let a = exp(state.max - tile_max);
        state.sum = state.sum * a;
        state.output.iter_mut().for_each(|o| *o = *o * a);
        state.max = tile_max;
    }
    // A row of NaN alone has no maximum, and -∞ - -∞ must not appear.
    let reference = if state.max == T::Accumulator::NEG_INFINITY { T::Accumulator::ZERO } else { state.max };
    let values = problem.value.get(row.batch, problem.terms.key_head(row.head));
    for (key, s) in keys.zip(scores) {
        if let Some(s) = *s {
            let p = exp(s - reference);
            state.sum = state.sum + p;
            for (o, &v) in state.output.iter_mut().zip(values.row(key)) {
                *o = p.mul_add(v.widen(), *o);
            }
        }
    }
}

/// The weight of a pair, from the row's state with its sink.
pub(crate) fn weight<A: Real>(score: Option<A>, max: A, sum: A) -> A {
    score.map_or(A::ZERO, |s| exp(s - max) / sum)
}
