//! The scores of one tile on the fast paths: from `q · k`, which a kernel has left in a buffer, to what the softmax
//! takes. From here on a masked score is exactly -∞, and no visible one is: those stop at the largest negative
//! number.

use crate::bias::BiasScratch;
use crate::element::Real;
use crate::problem::{Stage, Terms};
use crate::simd::math::tanh;
use crate::simd::{Kernel, PADDING, Register, Vector};
use crate::tile::{Grid, Sort, TILE, Tile};

/// Buffers for one tile.
#[derive(Debug)]
pub(crate) struct ScoreScratch<A> {
    visible: Vec<u8>,
    from_closures: Vec<bool>,
    bias: BiasScratch<A>,
}

impl<A: Real> ScoreScratch<A> {
    pub(crate) fn new(cells: usize) -> Self {
        let rows = vec![A::ZERO; PADDING * TILE];
        let bias = BiasScratch { bias: vec![A::ZERO; cells], rows, computed: Vec::new() };
        Self { visible: vec![0; cells], from_closures: Vec::new(), bias }
    }

    pub(crate) fn bytes(cells: usize) -> usize {
        // Two of bytes, and what closures compute in f64.
        cells * (2 + size_of::<f64>() + size_of::<A>()) + PADDING * TILE * size_of::<A>()
    }
}

/// What a product becomes before a kernel writes it down: times the scale, and where nothing else is to come raised to
/// the lowest score that is visible.
#[derive(Clone, Copy)]
pub(crate) struct Epilogue<V> {
    scale: V,
    lowest: V,
}

impl<V: Vector> Epilogue<V> {
    #[inline(always)]
    pub(crate) fn new(stage: Stage, terms: &Terms<'_>) -> Self {
        let scale = if stage >= Stage::Scaled { V::Lane::from_f64(terms.scale) } else { V::Lane::ONE };
        let last = stage >= Stage::Masked && !changes_later(terms);
        let lowest = if last { -V::Lane::MAX } else { V::Lane::NEG_INFINITY };
        Self { scale: V::splat(scale), lowest: V::splat(lowest) }
    }

    #[inline(always)]
    pub(crate) fn of(self, product: V) -> V {
        // NaN stays: of the two the maximum then gives the second.
        self.lowest.max(product.mul(self.scale))
    }
}

/// Whether products that have had their [`Epilogue`] are what the softmax takes.
pub(crate) fn are_finished(terms: &Terms<'_>, sort: Sort) -> bool {
    sort == Sort::Full && !changes_later(terms)
}

/// Whether scores change after the scale, other than by being masked.
fn changes_later(terms: &Terms<'_>) -> bool {
    terms.softcap.is_some() || !terms.biases.is_empty()
}

/// Takes scores that have had their [`Epilogue`] to a stage.
///
/// A kernel of its own, which others run where there is more to do than [`Epilogue`] did: it would weigh down each of
/// their loops that it was part of.
pub(crate) struct TakeTo<'k, 't, A> {
    pub(crate) stage: Stage,
    pub(crate) terms: &'k Terms<'t>,
    pub(crate) tile: &'k Tile,
    pub(crate) sort: Sort,
    /// The number of cells is a multiple of the lanes; those outside the tile hold numbers of no meaning.
    /// Overwritten: afterwards all do.
    pub(crate) products: Grid<'k, A>,
    /// Where the scores go, cell by cell.
    pub(crate) scores: &'k mut [A],
    pub(crate) scratch: &'k mut ScoreScratch<A>,
}

impl<A: Real> Kernel<A> for TakeTo<'_, '_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Register<Lane = A>>(self) {
        let Self { stage, terms, tile, sort, mut products, scores, scratch } = self;
        if let (true, Some(cap)) = (stage >= Stage::Softcapped, terms.softcap) {
            let inverse = V::splat(A::from_f64(1.0 / cap));
            let cap = V::splat(A::from_f64(cap));
            for cells in products.cells.chunks_exact_mut(V::LANES) {
                cap.mul(tanh(V::load(cells).mul(inverse))).store(cells);
            }
        }
        if stage < Stage::Masked {
            scores.copy_from_slice(products.cells);
            return;
        }
        let ScoreScratch { visible, from_closures, bias } = scratch;
        let mut visible = (sort == Sort::Mixed).then(|| {
            let cells = &mut visible[..products.cells.len()];
            Grid { cells, row_step: products.row_step, key_step: products.key_step }
        });
        if let Some(visible) = &mut visible {
            terms.visibility.fill(tile, visible, from_closures);
        }
        if !terms.biases.is_empty() {
            terms.biases.add::<V>(tile, &terms.visibility, &mut products, &mut visible, bias);
        }
        // From one buffer to the other, since a vector that is stored where it was loaded from becomes a masked store,
        // which some machines are slow at.
        let lowest = V::splat(-A::MAX);
        let cells = products.cells.chunks_exact(V::LANES).zip(scores.chunks_exact_mut(V::LANES));
        match visible {
            Some(visible) => {
                for ((s, to), visible) in cells.zip(visible.cells.chunks_exact(V::LANES)) {
                    // NaN stays: of the two the maximum then gives the second.
                    lowest.max(V::load(s)).or_masked(visible).store(to);
                }
            }
            None => {
                for (s, to) in cells {
                    lowest.max(V::load(s)).store(to);
                }
            }
        }
    }
}
