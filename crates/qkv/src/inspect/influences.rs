//! How much each key of a head matters to each of its queries, strip by strip.
//!
//! `o - o₋ⱼ = pⱼ (vⱼ - o) / (1 - pⱼ)`, where o is the output, o₋ⱼ the one without key j, pⱼ its weight and vⱼ its value. Where a
//! key has more than half of the weight, 1 - p has lost digits; the outputs without those keys come from one more call, in
//! which each is hidden from its query.

use std::ops::Range;

use ndarray::{Array2, ArrayView2, s};

use super::Inspection;
use super::strip::{Head, Strip, Strips, blocks};
use crate::call::Progress;
use crate::element::{Element, Real};
use crate::error::Error;
use crate::forward::{Buffers, Finish, Heads, Role, each_task, rows_of_tile, shaped, zeros};
use crate::mask::{Hint, MaskFn, Region, Visibility};
use crate::plan;
use crate::problem::Problem;
use crate::simd::{Kernel, Register, Vector};
use crate::tile::{Pair, QUERY_BLOCK};

/// A key of more weight than this is taken away by another call and not by the formula. No two keys can have so much.
const DOMINANT: f64 = 0.5;

/// What the influences of a whole head are made from.
pub(super) struct Influences<A> {
    first_query: usize,
    /// `(queries, dim_value)`, not rounded to the element type.
    output: Array2<A>,
    /// How far the output of each query would move without its dominant key, if it has one.
    without: Vec<f64>,
}

impl<A: Real> Influences<A> {
    pub(super) fn new<T: Element<Accumulator = A>>(
        inspection: &Inspection<'_, T>,
        head: &Head<'_, A>,
        progress: &mut Option<&mut Progress<'_>>,
    ) -> Result<Self, Error> {
        let (at, queries) = (inspection.at, inspection.queries());
        let output = output(&inspection.problem, at, &queries, progress)?;
        let dominant = dominant(head, progress)?;
        if dominant.iter().all(Option::is_none) {
            return Ok(Self { first_query: queries.start, output, without: Vec::new() });
        }
        let visibility = &inspection.problem.terms.visibility;
        let hidden = Hidden { first_query: queries.start, dominant: &dominant, visibility };
        let attention = inspection.attention.clone().mask_fn(&hidden);
        let [query, key, value] = inspection.arrays.clone();
        let problem = Problem::new(&attention, query, key, value)?.for_single_heads();
        let others = self::output(&problem, at, &queries, progress)?;
        let without = output.rows().into_iter().zip(others.rows()).map(|(output, others)| {
            let moved = output
                .iter()
                .zip(others)
                .map(|(&a, &b)| (a.to_f64() - b.to_f64()) * (a.to_f64() - b.to_f64()));
            moved.sum::<f64>().sqrt()
        });
        let without = without.collect();
        Ok(Self { first_query: queries.start, output, without })
    }

    /// Of the pairs of a strip, in place of their weights.
    pub(super) fn of(
        &self,
        head: &Head<'_, A>,
        (scores, weights): (&Strip<A>, &mut Strip<A>),
        scratch: &mut Scratch<A>,
    ) {
        let (queries, keys) = (scores.queries.clone(), scores.keys.clone());
        let columns = head.terms.dim_value;
        let at = ((head.batch, head.terms.key_head(head.head)), keys.clone());
        scratch.values.resize(keys.len().max(scratch.values.len() / columns.max(1)) * columns, A::ZERO);
        let values =
            rows_of_tile(head.arrays.of(Role::Value), head.terms.simd, at, &mut scratch.values, columns);
        let mut without = [0.0; QUERY_BLOCK];
        let rows = queries.start - self.first_query..queries.end - self.first_query;
        if let Some(own) = self.without.get(rows.clone()) {
            without[..own.len()].copy_from_slice(own);
        }
        let output = self.output.slice(s![rows, ..]);
        let (scores, cells) = (scores.of_keys(), weights.of_keys_mut());
        head.terms.simd.run(FromWeights {
            scores,
            cells,
            values,
            output,
            outputs: &mut scratch.outputs,
            without,
        });
    }
}

/// A thread's buffers.
pub(super) struct Scratch<A> {
    /// `(keys, dim_value)`
    values: Vec<A>,
    /// `(dim_value, QUERY_BLOCK)`
    outputs: Vec<[A; QUERY_BLOCK]>,
}

impl<A: Real> Scratch<A> {
    pub(super) fn new() -> Self {
        Self { values: Vec::new(), outputs: Vec::new() }
    }
}

/// Outputs of a head in the accumulator type.
fn output<T: Element>(
    problem: &Problem<'_, T>,
    (batch, head): (usize, usize),
    queries: &Range<usize>,
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<Array2<T::Accumulator>, Error> {
    let mut output = zeros::<T::Accumulator>("output", &[queries.len(), problem.terms.dim_value])?;
    let target = output.view_mut().into_dimensionality().expect("two axes");
    T::attend_wide(problem, Heads::one(target, (batch, head, queries.start), None, Finish::Mean), progress)?;
    Ok(shaped(output))
}

/// The key of each query that has more than half of its weight.
fn dominant<A: Real>(
    head: &Head<'_, A>,
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<Vec<Option<usize>>, Error> {
    let terms = head.terms;
    let mut dominant = vec![None; head.queries.len()];
    let total = blocks(head.queries.clone()).count();
    let mut rest = &mut dominant[..];
    let tasks = blocks(head.queries.clone()).map(|queries| {
        let (own, after) = std::mem::take(&mut rest).split_at_mut(queries.len());
        rest = after;
        (queries, own)
    });
    let threads = plan::threads(terms, head.queries.len());
    let buffers = Buffers { kept: None, new: || Strips::new(terms) };
    each_task((total, tasks), threads, progress, buffers, |strips, (queries, dominant)| {
        // A weight is at most 1 / sum.
        if head.stats(&queries)[1].iter().all(|&sum| sum.to_f64() * DOMINANT >= 1.0) {
            return;
        }
        for keys in head.seen(&queries, &(0..terms.len_key)) {
            let (_, weights) = strips.weigh(head, &queries, &keys);
            for (key, weights) in keys.zip(weights.of_keys()) {
                for (dominant, weight) in dominant.iter_mut().zip(weights) {
                    if weight.to_f64() > DOMINANT {
                        *dominant = Some(key);
                    }
                }
            }
        }
    })?;
    Ok(dominant)
}

/// Hides the dominant key of each query.
struct Hidden<'d> {
    first_query: usize,
    dominant: &'d [Option<usize>],
    visibility: &'d Visibility<'d>,
}

impl Hidden<'_> {
    /// The pairs of a region that are hidden, counted from its start.
    fn pairs(&self, region: &Region) -> impl Iterator<Item = (usize, usize)> {
        let first = Pair { batch: region.batch, head: region.head, query: self.first_query, key: 0 };
        let (first_query, first_key) = self.visibility.positions(first);
        let queries =
            (region.queries.start - first_query) as usize..(region.queries.end - first_query) as usize;
        let keys = (region.keys.start - first_key) as usize..(region.keys.end - first_key) as usize;
        self.dominant[queries].iter().enumerate().filter_map(move |(query, key)| {
            let key = key.filter(|key| keys.contains(key))?;
            Some((query, key - keys.start))
        })
    }
}

impl MaskFn for Hidden<'_> {
    fn fill(&self, region: &Region, visible: &mut [bool]) {
        for (query, key) in self.pairs(region) {
            visible[query * region.width() + key] = false;
        }
    }

    fn hint(&self, region: &Region) -> Hint {
        if self.pairs(region).next().is_none() { Hint::Full } else { Hint::Mixed }
    }
}

/// From weights of a block and a strip to influences.
struct FromWeights<'s, A> {
    scores: &'s [[A; QUERY_BLOCK]],
    /// Weights at first.
    cells: &'s mut [[A; QUERY_BLOCK]],
    /// `(keys, dim_value)`
    values: &'s [A],
    /// `(queries, dim_value)`
    output: ArrayView2<'s, A>,
    /// Room for the same, transposed.
    outputs: &'s mut Vec<[A; QUERY_BLOCK]>,
    without: [f64; QUERY_BLOCK],
}

/// Keys whose distances are summed side by side.
const CHAINS: usize = 4;

impl<A: Real> Kernel<A> for FromWeights<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Register<Lane = A>>(self) {
        self.by::<[V; 2]>();
    }
}

impl<A: Real> FromWeights<'_, A> {
    #[inline(always)]
    fn by<P: Vector<Lane = A>>(self) {
        let Self { scores, cells, values, output, outputs, without } = self;
        let (rows, columns) = output.dim();
        outputs.resize(columns, [A::ZERO; QUERY_BLOCK]);
        for (row, output) in output.rows().into_iter().enumerate() {
            for (outputs, &y) in outputs.iter_mut().zip(output) {
                outputs[row] = y;
            }
        }
        let mut squares = [[A::ZERO; QUERY_BLOCK]; CHAINS];
        let groups = scores.chunks(CHAINS).zip(cells.chunks_mut(CHAINS));
        for (group, (scores, cells)) in groups.enumerate() {
            let values = &values[group * CHAINS * columns..][..cells.len() * columns];
            for at in (0..rows).step_by(P::LANES) {
                squared_distances::<P>(outputs, at, values, &mut squares);
            }
            for ((scores, cells), squares) in scores.iter().zip(cells).zip(&squares) {
                for lane in 0..QUERY_BLOCK {
                    let weight = cells[lane].to_f64();
                    let by_formula = weight / (1.0 - weight) * squares[lane].to_f64().sqrt();
                    let moved = if weight > DOMINANT { without[lane] } else { by_formula };
                    // A masked key's value may be anything.
                    let masked = scores[lane] == A::NEG_INFINITY;
                    cells[lane] = A::from_f64(if masked { 0.0 } else { moved });
                }
            }
        }
    }
}

/// `‖v - o‖²` of up to [`CHAINS`] values, `(keys, dim_value)`, and a vector of outputs, from row `at` on.
#[inline(always)]
fn squared_distances<P: Vector>(
    outputs: &[[P::Lane; QUERY_BLOCK]],
    at: usize,
    values: &[P::Lane],
    squares: &mut [[P::Lane; QUERY_BLOCK]; CHAINS],
) {
    let columns = outputs.len();
    let mut sums = [P::splat(P::Lane::ZERO); CHAINS];
    let keys = values.len().checked_div(columns).unwrap_or(0);
    for (column, outputs) in outputs.iter().enumerate() {
        let output = P::load(&outputs[at..]);
        for (key, sum) in sums.iter_mut().enumerate() {
            // The last key fills the chains that are left.
            let value = values[key.min(keys - 1) * columns + column];
            let moved = P::splat(value).sub(output);
            *sum = moved.mul_add(moved, *sum);
        }
    }
    for (sum, squares) in sums.into_iter().zip(squares) {
        sum.store(&mut squares[at..]);
    }
}
