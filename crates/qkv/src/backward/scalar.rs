//! The arithmetic program of the gradients, as short as it can be said. Every fast path must equal it, bit for bit.
//!
//! Like the program of the forward pass it reads the checked problem pair by pair. Each number of a gradient is a sum of
//! chains, one for each batch, head, block of queries and tile of keys that add to it, in this order.

use std::ops::Range;

use super::{Results, Returned};
use crate::element::{Element, Real};
use crate::problem::{Problem, Stage};
use crate::scalar::{keeps, score, weight};
use crate::simd::Vector;
use crate::simd::math::{exp, tanh};
use crate::tile::{Pair, QUERY_BLOCK, TILE, cut};

/// What a visible pair hands on.
#[derive(Clone, Copy)]
struct PairGradients<A> {
    /// The weight after dropout; none if it is dropped.
    kept_weight: Option<A>,
    /// Of the masked score, and so of each bias.
    d_score: A,
    /// Of `q · k`.
    d_product: A,
}

/// For each row `Σ d_output · output`, less the gradient of its log-sum-exp: what a weight's gradient is measured from.
pub(super) fn deltas<T: Element>(
    problem: &Problem<'_, T>,
    returned: &Returned<'_, T>,
    deltas: &mut [T::Accumulator],
) {
    for (at, delta) in deltas.iter_mut().enumerate() {
        let (plane, query) = (at / problem.terms.len_query, at % problem.terms.len_query);
        let (batch, head) = (plane / problem.terms.heads, plane % problem.terms.heads);
        let [output, d_output] =
            [&returned.output, &returned.d_output].map(|planes| planes.row(batch, head, query));
        let mut sum = T::Accumulator::ZERO;
        for (&d, &y) in d_output.iter().zip(output) {
            sum = d.widen().mul_add(y.widen(), sum);
        }
        *delta = returned.d_lse.as_ref().map_or(sum, |d_lse| sum - d_lse[at]);
    }
}

pub(super) fn gradients<T: Element>(
    problem: &Problem<'_, T>,
    returned: &Returned<'_, T>,
    deltas: &[T::Accumulator],
    results: &mut Results<T::Accumulator>,
) {
    let terms = &problem.terms;
    for (batch, head) in (0..terms.batches).flat_map(|batch| (0..terms.heads).map(move |head| (batch, head)))
    {
        for (_, queries) in cut(0..terms.len_query, 0, QUERY_BLOCK) {
            for (_, keys) in cut(0..terms.len_key, terms.visibility.key_offset, TILE) {
                let pairs = Pairs { problem, returned, deltas, batch, head, queries: queries.clone(), keys };
                pairs.add_to(results);
            }
        }
    }
}

/// Some queries of one head against some keys.
struct Pairs<'t, 'a, T: Element> {
    problem: &'t Problem<'a, T>,
    returned: &'t Returned<'a, T>,
    deltas: &'t [T::Accumulator],
    batch: usize,
    head: usize,
    queries: Range<usize>,
    keys: Range<usize>,
}

impl<T: Element> Pairs<'_, '_, T> {
    fn pair(&self, query: usize, key: usize) -> Option<PairGradients<T::Accumulator>> {
        let (terms, &Self { batch, head, .. }) = (&self.problem.terms, self);
        let pair = Pair { batch, head, query, key };
        let s = score(self.problem, pair, Stage::Masked)?;
        let row = (batch * terms.heads + head) * terms.len_query + query;
        let [max, sum] = self.returned.stats.map(|of_rows| of_rows[row]);
        let weight = weight(Some(s), max, sum);
        let d_output = self.returned.d_output.row(batch, head, query);
        let value = self.problem.value.row(batch, terms.key_head(head), key);
        let mut d_weight = T::Accumulator::ZERO;
        for (&d, &v) in d_output.iter().zip(value) {
            d_weight = d.widen().mul_add(v.widen(), d_weight);
        }
        let kept_weight = keeps(self.problem, pair).then(|| match terms.dropout_factor::<T::Accumulator>() {
            Some(factor) => {
                d_weight = d_weight * factor;
                weight * factor
            }
            None => weight,
        });
        let d_weight = if kept_weight.is_some() { d_weight } else { T::Accumulator::ZERO };
        let d_score = weight * (d_weight - self.deltas[row]);
        let mut d_product = d_score;
        if let Some(cap) = terms.softcap {
            let scaled = score(self.problem, pair, Stage::Scaled)?;
            let t = tanh(scaled * T::Accumulator::from_f64(1.0 / cap));
            d_product = d_product * (-t).mul_add(t, T::Accumulator::ONE);
        }
        d_product = d_product * T::Accumulator::from_f64(terms.scale);
        Some(PairGradients { kept_weight, d_score, d_product })
    }

    fn add_to(&self, results: &mut Results<T::Accumulator>) {
        let (problem, &Self { batch, head, .. }) = (self.problem, self);
        let key_head = problem.terms.key_head(head);
        let (queries, keys) = (self.queries.clone(), self.keys.clone());
        let pairs: Vec<Vec<_>> =
            queries.clone().map(|query| keys.clone().map(|key| self.pair(query, key)).collect()).collect();
        let at = |query: usize, key: usize| pairs[query - queries.start][key - keys.start];
        if let Some(d_query) = &mut results.query {
            for query in queries.clone() {
                let row = rows_of(d_query, problem.query.index(batch, head), query);
                let from = |key| Some((at(query, key)?.d_product, problem.key.row(batch, key_head, key)));
                add_chain(row, keys.clone().filter_map(from));
            }
        }
        if let Some(d_key) = &mut results.key {
            for key in keys.clone() {
                let row = rows_of(d_key, problem.key.index(batch, key_head), key);
                let from = |query| Some((at(query, key)?.d_product, problem.query.row(batch, head, query)));
                add_chain(row, queries.clone().filter_map(from));
            }
        }
        if let Some(d_value) = &mut results.value {
            for key in keys.clone() {
                let row = rows_of(d_value, problem.value.index(batch, key_head), key);
                let from = |query| {
                    Some((at(query, key)?.kept_weight?, self.returned.d_output.row(batch, head, query)))
                };
                add_chain(row, queries.clone().filter_map(from));
            }
        }
        for (array, bias) in results.biases.iter_mut().zip(&problem.terms.biases.arrays) {
            let (rows, columns) = bias.dim();
            let cells = array.as_slice_mut().expect("contiguous");
            let start = bias.index(batch, head) * rows * columns;
            let d_score = |query, key| at(query, key).map(|pair: PairGradients<_>| pair.d_score);
            let sum = |terms: &mut dyn Iterator<Item = Option<T::Accumulator>>| {
                terms.flatten().fold(T::Accumulator::ZERO, |sum, e| sum + e)
            };
            let mut add = |query: usize, key: usize, x| {
                let cell = &mut cells[start + query % rows * columns + key % columns];
                *cell = Element::leave(*cell + x);
            };
            // What serves all keys or queries takes the tile's chain.
            let of_row = |query| sum(&mut keys.clone().map(|key| d_score(query, key)));
            match (rows, columns) {
                (1, 1) => add(0, 0, sum(&mut queries.clone().map(|query| Some(of_row(query))))),
                (1, _) => keys.clone().for_each(|key| {
                    add(0, key, sum(&mut queries.clone().map(|query| d_score(query, key))));
                }),
                (_, 1) => queries.clone().for_each(|query| add(query, 0, of_row(query))),
                _ => queries.clone().for_each(|query| {
                    keys.clone()
                        .for_each(|key| add(query, key, sum(&mut std::iter::once(d_score(query, key)))));
                }),
            }
        }
    }
}

/// A row of one of an array's matrices.
fn rows_of<A: Real>(array: &mut ndarray::ArrayD<A>, plane: usize, row: usize) -> &mut [A] {
    let (rows, columns) = (array.shape()[array.ndim() - 2], array.shape()[array.ndim() - 1]);
    let start = (plane * rows + row) * columns;
    &mut array.as_slice_mut().expect("contiguous")[start..start + columns]
}

/// Adds a chain of rows, each times its number.
fn add_chain<'r, T: Element>(
    to: &mut [T::Accumulator],
    from: impl Iterator<Item = (T::Accumulator, ndarray::ArrayView1<'r, T>)>,
) {
    let mut chain = vec![T::Accumulator::ZERO; to.len()];
    for (weight, row) in from {
        for (sum, &x) in chain.iter_mut().zip(row) {
            *sum = weight.mul_add(x.widen(), *sum);
        }
    }
    for (to, sum) in to.iter_mut().zip(chain) {
        *to = Element::leave(*to + sum);
    }
}

/// The gradient of each head's sink: a chain over the queries of each block, the blocks and batches added.
pub(super) fn sinks<T: Element>(
    problem: &Problem<'_, T>,
    returned: &Returned<'_, T>,
    deltas: &[T::Accumulator],
) -> Vec<T::Accumulator> {
    let terms = &problem.terms;
    let of_head = |head: usize| {
        let sink = terms.sink::<T::Accumulator>(head).filter(|&sink| sink > T::Accumulator::NEG_INFINITY);
        let mut total = T::Accumulator::ZERO;
        let Some(sink) = sink else { return total };
        for batch in 0..terms.batches {
            let start = (batch * terms.heads + head) * terms.len_query;
            for (_, rows) in cut(0..terms.len_query, 0, QUERY_BLOCK) {
                let mut chain = T::Accumulator::ZERO;
                for row in rows.start + start..rows.end + start {
                    let [max, sum] = returned.stats.map(|of_rows| of_rows[row]);
                    chain = chain - exp(sink - max) / sum * deltas[row];
                }
                total = total + chain;
            }
        }
        total
    };
    (0..terms.heads).map(of_head).collect()
}
