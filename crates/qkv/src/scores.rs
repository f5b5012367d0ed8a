//! The scores of one tile on the fast paths: from `q · k`, which a kernel has left in a buffer, to what the softmax
//! takes. From here on a masked score is exactly -∞, and no visible one is: those stop at the lowest finite number.

use crate::element::Real;
use crate::problem::{Stage, Terms};
use crate::simd::math::tanh;
use crate::simd::{Kernel, Register, Vector};
use crate::tile::{Grid, QUERY_BLOCK, Sort, Tile, Visible};

/// Buffers for one tile.
#[derive(Debug)]
pub(crate) struct ScoreScratch {
    visible: [Visible; QUERY_BLOCK],
    /// What closures write.
    allowed: Vec<bool>,
    computed: Vec<f64>,
}

impl ScoreScratch {
    pub(crate) fn new() -> Self {
        Self { visible: [0; QUERY_BLOCK], allowed: Vec::new(), computed: Vec::new() }
    }

    /// Of a tile with so many cells.
    pub(crate) fn bytes(cells: usize) -> usize {
        cells * (1 + size_of::<f64>()) + size_of::<Self>()
    }
}

/// What a product becomes before a kernel writes it down: times the scale and, where no softcap is to come, raised.
#[derive(Clone, Copy)]
pub(crate) struct Epilogue<V> {
    scale: V,
    lowest: V,
}

impl<V: Vector> Epilogue<V> {
    #[inline(always)]
    pub(crate) fn new(stage: Stage, terms: &Terms<'_>) -> Self {
        let scale = if stage >= Stage::Scaled { V::Lane::from_f64(terms.scale) } else { V::Lane::ONE };
        let raised = stage >= Stage::Masked && terms.softcap.is_none();
        let lowest = if raised { -V::Lane::MAX } else { V::Lane::NEG_INFINITY };
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
    sort == Sort::Full && terms.softcap.is_none() && terms.biases.is_empty()
}

/// Takes products that have had their [`Epilogue`] to a stage.
///
/// A kernel of its own, which others run where there is more to do than [`Epilogue`] did: it would weigh down each of
/// their loops that it was part of.
pub(crate) struct TakeTo<'k, 't, A> {
    pub(crate) stage: Stage,
    pub(crate) terms: &'k Terms<'t>,
    pub(crate) tile: &'k Tile,
    /// Of a mixed tile the products, which are masked on the way to the scores: a vector that is masked where it stands
    /// becomes a masked store, which some machines are slow at. Elsewhere they stand in `scores`.
    pub(crate) mixed: Option<&'k mut [A]>,
    /// Each line of neighbouring cells is of whole vectors; cells outside the tile hold numbers of no meaning.
    pub(crate) scores: Grid<'k, A>,
    pub(crate) scratch: &'k mut ScoreScratch,
}

impl<A: Real> Kernel<A> for TakeTo<'_, '_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Register<Lane = A>>(self) {
        let Self { stage, terms, tile, mut mixed, mut scores, scratch } = self;
        if let (true, Some(cap)) = (stage >= Stage::Softcapped, terms.softcap) {
            softcap::<V>(mixed.as_deref_mut().unwrap_or(scores.cells), cap);
        }
        if stage < Stage::Masked {
            if let Some(products) = mixed {
                scores.cells.copy_from_slice(products);
            }
            return;
        }
        if let Some(products) = mixed {
            terms.visibility.fill(tile, &mut scratch.visible[..tile.rows.len()], &mut scratch.allowed);
            mask::<V>(products, &scratch.visible, &mut scores, tile);
        }
        if !terms.biases.is_empty() {
            terms.biases.add::<V>(tile, &terms.visibility, &mut scores, &mut scratch.computed);
        }
    }
}

/// `cap · tanh(s / cap)`.
#[inline(always)]
fn softcap<V: Vector>(scores: &mut [V::Lane], cap: f64) {
    /// So many overlap.
    const VECTORS: usize = 4;
    let mut blocks = scores.chunks_exact_mut(VECTORS * V::LANES);
    for block in &mut blocks {
        softcapped(<[V; VECTORS]>::load(block), cap).store(block);
    }
    for scores in blocks.into_remainder().chunks_exact_mut(V::LANES) {
        softcapped(V::load(scores), cap).store(scores);
    }
}

#[inline(always)]
fn softcapped<V: Vector>(scores: V, cap: f64) -> V {
    let inverse = V::splat(V::Lane::from_f64(1.0 / cap));
    V::splat(V::Lane::from_f64(cap)).mul(tanh(scores.mul(inverse)))
}

/// From products to scores, which are -∞ where a key is not visible.
#[inline(always)]
fn mask<V: Register>(products: &[V::Lane], visible: &[Visible], scores: &mut Grid<'_, V::Lane>, tile: &Tile) {
    let (rows, keys) = (tile.rows.len(), tile.keys.len());
    if scores.has_queries_in_lanes() {
        let (bits_of_lane, step) = (8 * size_of::<V::Lane>(), scores.key_step);
        for row in (0..rows).step_by(V::LANES) {
            for first in (0..keys).step_by(bits_of_lane) {
                let mut shown = V::bits_of_each(&visible[row..], first as u32);
                let start = first * step + row;
                let cells = products[start..].chunks(step).zip(scores.cells[start..].chunks_mut(step));
                for (product, score) in cells.take(bits_of_lane) {
                    V::load(product).or_hidden(shown).store(score);
                    shown = shown.next_bit();
                }
            }
        }
    } else {
        for (row, &visible) in visible[..rows].iter().enumerate() {
            for key in (0..keys).step_by(V::LANES) {
                let at = row * scores.row_step + key;
                let shown = V::bits_of(visible << key);
                V::load(&products[at..]).or_hidden(shown).store(&mut scores.cells[at..]);
            }
        }
    }
}
