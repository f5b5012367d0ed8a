//! The scores of one tile on the fast paths: from `q · k`, which a kernel has left in a buffer, to what the softmax
//! takes. From here on a masked score is exactly -∞, and no visible one is: those stop at the largest negative
//! number.

use crate::bias::BiasScratch;
use crate::element::Real;
use crate::problem::{Stage, Terms};
use crate::simd::Vector;
use crate::simd::math::tanh;
use crate::tile::{Grid, Sort, Tile};

/// Buffers for one tile.
#[derive(Debug)]
pub(crate) struct ScoreScratch<A> {
    visible: Vec<bool>,
    from_closures: Vec<bool>,
    bias: BiasScratch<A>,
}

impl<A: Real> ScoreScratch<A> {
    pub(crate) fn new(cells: usize) -> Self {
        let bias = BiasScratch { bias: vec![A::ZERO; cells], computed: Vec::new() };
        Self { visible: vec![false; cells], from_closures: Vec::new(), bias }
    }

    pub(crate) fn bytes(cells: usize) -> usize {
        cells * (1 + size_of::<A>())
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
        let s = product.mul(self.scale);
        // NaN is not below, so it stays.
        s.if_less(self.lowest, self.lowest, s)
    }
}

/// Whether scores change after the scale, other than by being masked.
fn changes_later(terms: &Terms<'_>) -> bool {
    terms.softcap.is_some() || !terms.biases.is_empty()
}

/// Takes scores that have had their [`Epilogue`] to a stage. The number of cells is a multiple of the lanes; cells
/// outside the tile hold numbers of no meaning before and after.
#[inline(always)]
pub(crate) fn take_to<V>(
    stage: Stage,
    terms: &Terms<'_>,
    (tile, sort): (&Tile, Sort),
    scores: &mut Grid<'_, V::Lane>,
    scratch: &mut ScoreScratch<V::Lane>,
) where
    V: Vector,
{
    if let (true, Some(cap)) = (stage >= Stage::Softcapped, terms.softcap) {
        let inverse = V::splat(V::Lane::from_f64(1.0 / cap));
        let cap = V::splat(V::Lane::from_f64(cap));
        each_vector::<V>(scores.cells, |s| cap.mul(tanh(s.mul(inverse))));
    }
    if stage >= Stage::Masked {
        mask::<V>(terms, (tile, sort), scores, scratch);
    }
}

#[inline(always)]
fn mask<V>(
    terms: &Terms<'_>,
    (tile, sort): (&Tile, Sort),
    scores: &mut Grid<'_, V::Lane>,
    scratch: &mut ScoreScratch<V::Lane>,
) where
    V: Vector,
{
    let ScoreScratch { visible, from_closures, bias } = scratch;
    let mut visible = (sort == Sort::Mixed).then(|| {
        let cells = &mut visible[..scores.cells.len()];
        let mut visible = Grid { cells, row_step: scores.row_step, key_step: scores.key_step };
        terms.visibility.fill(tile, &mut visible, from_closures);
        visible
    });
    if !terms.biases.is_empty() {
        terms.biases.add(tile, &terms.visibility, scores, &mut visible, bias);
    }
    if changes_later(terms) {
        let lowest = V::splat(-V::Lane::MAX);
        each_vector::<V>(scores.cells, |s| s.if_less(lowest, lowest, s));
    }
    if let Some(visible) = visible {
        for (s, &visible) in scores.cells.iter_mut().zip(visible.cells.iter()) {
            *s = if visible { *s } else { V::Lane::NEG_INFINITY };
        }
    }
}

#[inline(always)]
fn each_vector<V: Vector>(numbers: &mut [V::Lane], f: impl Fn(V) -> V) {
    for chunk in numbers.chunks_exact_mut(V::LANES) {
        f(V::load(chunk)).store(chunk);
    }
}
