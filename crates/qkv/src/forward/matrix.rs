//! The matrix of scores or weights, for who asks for it: made by the kernels that make the output.

use super::load::{Role, rows_of_tile};
use super::prefill::{Block, Part, Scratch};
use super::rows::Target;
use crate::element::Real;
use crate::problem::Stage;
use crate::simd::math::exp;
use crate::simd::{Kernel, Register};
use crate::tile::{QUERY_BLOCK, Sort, TILE, cut};

/// The block's part of the matrix of scores after a stage or, with maxima and sums, of weights.
pub(crate) struct Matrix<'k, A> {
    pub(crate) block: Block<'k, A>,
    pub(crate) stage: Stage,
    /// Of the block's rows, for [`Stage::Weights`].
    pub(crate) stats: [&'k [A]; 2],
    /// `(rows, len_key)`
    pub(crate) target: &'k mut dyn Target<A>,
    pub(crate) scratch: &'k mut Scratch<A>,
}

impl<A: Real> Kernel<A> for Matrix<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Register<Lane = A>>(self) {
        let Self { block, stage, stats: [max, sum], target, scratch } = self;
        let (terms, rows) = (block.terms, block.queries.len());
        scratch.load_queries::<V>(&block);
        // Padded, as the rows in the lanes are.
        let mut stats = [[A::ONE; QUERY_BLOCK]; 2];
        stats[0][..max.len()].copy_from_slice(max);
        stats[1][..sum.len()].copy_from_slice(sum);
        for (_, keys) in cut(0..terms.len_key, terms.visibility.key_offset, TILE) {
            let sort = terms.sort(&block.tile(block.queries.clone(), keys.clone()));
            // Lent for the time of the products.
            let mut packed = std::mem::take(&mut scratch.key);
            let of_key = (Role::Key, block.of_key());
            let key = rows_of_tile(block.arrays, of_key, keys.clone(), &mut packed, terms.dim);
            for first in (0..rows).step_by(V::LANES) {
                let panel = first..rows.min(first + V::LANES);
                if sort == Sort::Empty && stage >= Stage::Masked {
                    scratch.scores[..keys.len() * V::LANES].fill(A::NEG_INFINITY);
                } else {
                    let part = Part { tile: block.tile(block.queries_of(&panel), keys.clone()), sort, first };
                    scratch.score::<V>(terms, &part, key, stage.min(Stage::Masked));
                }
                let [max, sum] = [V::load(&stats[0][first..]), V::load(&stats[1][first..])];
                for (key, scores) in keys.clone().zip(scratch.scores.chunks_exact_mut(V::LANES)) {
                    if stage == Stage::Weights {
                        let s = V::load(scores);
                        let weight = exp(s.sub(max)).div(sum);
                        s.if_equal(V::splat(A::NEG_INFINITY), V::splat(A::ZERO), weight).store(scores);
                    }
                    target.set_column(key, first, &scores[..panel.len()]);
                }
            }
            scratch.key = packed;
        }
    }
}
