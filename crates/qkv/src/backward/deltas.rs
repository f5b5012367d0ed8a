//! For each row `Σ d_output · output`, less the gradient of its log-sum-exp: what a weight's gradient is measured from.

use std::ops::Range;

use super::block::Inputs;
use crate::call::Progress;
use crate::element::Real;
use crate::error::Error;
use crate::forward::{Buffers, each_task};
use crate::plan;
use crate::simd::{Ahead, Kernel, PADDING, Register};
use crate::tile::QUERY_BLOCK;

/// Fills the deltas of all batches and heads, flat.
///
/// # Errors
/// If progress cancelled.
pub(super) fn fill_deltas<A: Real>(
    inputs: Inputs<'_, A>,
    d_lse: Option<&[A]>,
    deltas: &mut [A],
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<(), Error> {
    let terms = inputs.terms;
    let threads = plan::threads(terms, deltas.len());
    let blocks = deltas.len() / terms.len_query * terms.len_query.div_ceil(QUERY_BLOCK);
    let tasks = deltas.chunks_mut(terms.len_query).enumerate().flat_map(|(plane, of_head)| {
        let at = (plane / terms.heads, plane % terms.heads);
        (0..)
            .step_by(QUERY_BLOCK)
            .zip(of_head.chunks_mut(QUERY_BLOCK))
            .map(move |(first, to)| (at, first, to))
    });
    let new = || [(); 2].map(|()| vec![A::ZERO; terms.dim_value * PADDING]);
    each_task((blocks, tasks), threads, progress, Buffers { kept: None, new }, |lanes, (at, first, to)| {
        let queries = first..first + to.len();
        terms.simd.run(Deltas { inputs, at, queries, to, lanes });
    })?;
    for (delta, &d_lse) in deltas.iter_mut().zip(d_lse.into_iter().flatten()) {
        *delta = *delta - d_lse;
    }
    Ok(())
}

/// `Σ d_output · output` of some queries of one head.
struct Deltas<'d, A> {
    inputs: Inputs<'d, A>,
    at: (usize, usize),
    queries: Range<usize>,
    to: &'d mut [A],
    /// Of `output` and `d_output`, each `(dim_value, lanes)`.
    lanes: &'d mut [Vec<A>; 2],
}

impl<A: Real> Kernel<A> for Deltas<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Register<Lane = A>>(self) {
        let Self { inputs, at, queries, to, lanes: [output, d_output] } = self;
        let terms = inputs.terms;
        for (first, to) in (queries.start..).step_by(V::LANES).zip(to.chunks_mut(V::LANES)) {
            let rows = first..first + to.len();
            for (matrices, lanes) in [(inputs.output, &mut *output), (inputs.d_output, &mut *d_output)] {
                matrices.columns(terms.simd, at, rows.clone(), (lanes, V::LANES), Ahead::NOTHING);
            }
            let mut sums = V::splat(A::ZERO);
            let both = d_output.chunks_exact(V::LANES).zip(output.chunks_exact(V::LANES));
            for (d_output, output) in both.take(terms.dim_value) {
                sums = V::load(d_output).mul_add(V::load(output), sums);
            }
            let mut padded = [A::ZERO; PADDING];
            sums.store(&mut padded);
            to.copy_from_slice(&padded[..to.len()]);
        }
    }
}
