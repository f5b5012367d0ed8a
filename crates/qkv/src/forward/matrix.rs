//! The matrix of scores or weights, for who asks for it: made by the kernels that make the output.

use std::ops::Range;

use super::load::{Role, rows_of_tile};
use super::prefill::{Block, Part, Scratch, by_panels};
use super::rows::{Columns, MatrixTarget};
use crate::element::Real;
use crate::problem::Stage;
use crate::simd::math::exp;
use crate::simd::{Kernel, Register, Vector};
use crate::tile::{QUERY_BLOCK, Sort, TILE, cut};

/// The block's part of the matrix of scores after a stage or, with maxima and sums, of weights.
pub struct Matrix<'k, A> {
    pub(crate) block: Block<'k, A>,
    pub(crate) stage: Stage,
    /// Of the block's rows, for [`Stage::Weights`].
    pub(crate) stats: [&'k [A]; 2],
    /// Which columns of the matrix are made.
    pub(crate) keys: Range<usize>,
    /// Its columns are keys, by their numbers.
    pub(crate) target: &'k mut dyn MatrixTarget<A>,
    pub(crate) scratch: &'k mut Scratch<A>,
}

impl<A: Real> Kernel<A> for Matrix<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Register<Lane = A>>(self) {
        by_panels!(self.block.queries.len(), V, self);
    }
}

impl<A: Real> Matrix<'_, A> {
    #[inline(always)]
    fn by_panels<P: Vector<Lane = A>>(self) {
        let Self { block, stage, stats: [max, sum], keys, target, scratch } = self;
        let (terms, rows) = (block.terms, block.queries.len());
        scratch.load_queries(&block, P::LANES);
        // Padded, as the rows in the lanes are.
        let mut stats = [[A::ONE; QUERY_BLOCK]; 2];
        stats[0][..max.len()].copy_from_slice(max);
        stats[1][..sum.len()].copy_from_slice(sum);
        for (_, keys) in cut(keys, terms.visibility.key_offset, TILE) {
            let sort = terms.sort(&block.tile(block.queries.clone(), keys.clone()));
            // Lent for the time of the products.
            let mut packed = std::mem::take(&mut scratch.key);
            let (of_key, at) = (block.arrays.of(Role::Key), (block.of_key(), keys.clone()));
            let key = rows_of_tile(of_key, terms.simd, at, &mut packed, terms.dim);
            for first in (0..rows).step_by(P::LANES) {
                let panel = first..rows.min(first + P::LANES);
                if sort == Sort::Empty && stage >= Stage::Masked {
                    scratch.scores[..keys.len() * P::LANES].fill(A::NEG_INFINITY);
                } else {
                    let part = Part { tile: block.tile(block.queries_of(&panel), keys.clone()), sort, first };
                    scratch.score_apart(terms, &part, key, stage.min(Stage::Masked), P::LANES);
                }
                let numbers = &mut scratch.scores[..keys.len() * P::LANES];
                if stage == Stage::Weights {
                    let [max, sum] = [P::load(&stats[0][first..]), P::load(&stats[1][first..])];
                    for scores in numbers.chunks_exact_mut(P::LANES) {
                        weight(P::load(scores), max, sum).store(scores);
                    }
                }
                target.set_columns(Columns { first: keys.start, rows: panel, numbers, lanes: P::LANES });
            }
            scratch.key = packed;
        }
    }
}

/// The weights of masked scores, in the lanes of a vector of rows.
#[inline(always)]
pub(crate) fn weight<V: Vector>(scores: V, max: V, sum: V) -> V {
    let weight = exp(scores.sub(max)).div(sum);
    scores.if_equal(V::splat(V::Lane::NEG_INFINITY), V::splat(V::Lane::ZERO), weight)
}
