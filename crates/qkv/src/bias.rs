//! What is added to the scores: arrays, ALiBi's slope times distance, and closures, in this order.
//!
//! A bias of exactly -∞ masks its key instead. Two finite biases never add up to a mask: each sum stops at the lowest
//! finite number.

use std::borrow::Cow;
use std::ops::Range;

use half::{bf16, f16};
use ndarray::{ArrayView, ArrayViewD, Dimension};

use crate::element::{Element, Real};
use crate::error::Error;
use crate::mask::{Hint, Region, Visibility};
use crate::planes::{DynView, Extents, PlaneView, Planes};
use crate::simd::{PADDING, Register, Vector, prefetch_after};
use crate::tile::{Grid, Pair, Sort, TILE, Tile, TileMap};

/// An array that is added to the scores, of any of the four types whatever the queries have.
///
/// It is used at the accumulator's width, never narrowed to the queries' first; a finite number that an f32
/// accumulator cannot hold stops at the largest it can.
#[derive(Clone, Debug)]
pub enum Bias<'a> {
    /// Of f16.
    F16(DynView<'a, f16>),
    /// Of bf16.
    Bf16(DynView<'a, bf16>),
    /// Of f32.
    F32(DynView<'a, f32>),
    /// Of f64.
    F64(DynView<'a, f64>),
}

macro_rules! bias_from {
    ($($variant:ident: $element:ident),*) => {
        $(impl<'a, D: Dimension> From<ArrayView<'a, $element, D>> for Bias<'a> {
            fn from(array: ArrayView<'a, $element, D>) -> Self {
                Self::$variant(array.into_dyn())
            }
        })*
    };
}

bias_from!(F16: f16, Bf16: bf16, F32: f32, F64: f64);

impl Bias<'_> {
    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Self::F16(array) => array.shape(),
            Self::Bf16(array) => array.shape(),
            Self::F32(array) => array.shape(),
            Self::F64(array) => array.shape(),
        }
    }
}

/// ALiBi: each head's penalty for a position of distance.
#[derive(Clone, Debug, PartialEq)]
pub enum Alibi {
    /// The paper's slopes, by the number of heads: powers of 2^(-8/H), and for an H that is no power of two those
    /// of the next lower one, followed by every second of the next higher one.
    ///
    /// Source: Press, Smith, Lewis, “Train Short, Test Long” (2022), section 3 and its code.
    Paper,
    /// One for each query head.
    Slopes(Vec<f64>),
}

impl Alibi {
    pub(crate) fn slopes(&self, heads: usize) -> Cow<'_, [f64]> {
        match self {
            Self::Slopes(slopes) => Cow::Borrowed(slopes),
            Self::Paper if heads == 0 => Cow::Borrowed(&[]),
            Self::Paper => {
                let geometric =
                    |heads: usize| (1..=heads).map(move |head| libm::exp2(-8.0 * head as f64 / heads as f64));
                let lower = 1 << heads.ilog2();
                geometric(lower).chain(geometric(2 * lower).step_by(2)).take(heads).collect()
            }
        }
    }
}

/// A bias that is computed instead of stored. Any `Fn(&Region, &mut [f64]) + Sync` is one.
///
/// The answer for a pair must depend only on batch, head and the two positions.
pub trait BiasFn: Sync {
    /// Sets `bias[query * region.width() + key]` for each pair, counted from the region's start; all are 0 on entry.
    /// -∞ masks the pair.
    fn fill(&self, region: &Region, bias: &mut [f64]);

    /// What is known of the region as a whole: `Empty` if all of it is -∞, `Full` if none is.
    fn hint(&self, _region: &Region) -> Hint {
        Hint::Mixed
    }
}

impl<F: Fn(&Region, &mut [f64]) + Sync> BiasFn for F {
    fn fill(&self, region: &Region, bias: &mut [f64]) {
        self(region, bias);
    }
}

/// All biases of a call, checked, in the order in which they are added.
pub(crate) struct Biases<'a> {
    pub(crate) arrays: Vec<BiasPlanes<'a>>,
    /// One for each head.
    pub(crate) slopes: Option<Cow<'a, [f64]>>,
    pub(crate) closures: &'a [&'a dyn BiasFn],
}

pub(crate) struct BiasPlanes<'a> {
    /// As it was given.
    shape: Extents,
    planes: TypedPlanes<'a>,
    tiles: TileMap,
}

enum TypedPlanes<'a> {
    F16(Planes<'a, f16>),
    Bf16(Planes<'a, bf16>),
    F32(Planes<'a, f32>),
    F64(Planes<'a, f64>),
}

impl<'a> BiasPlanes<'a> {
    pub(crate) fn new(bias: &Bias<'a>, lead: &[usize], key_offset: i64) -> Result<Self, Error> {
        fn sorted<'a, T: Element>(
            array: &ArrayViewD<'a, T>,
            lead: &[usize],
            key_offset: i64,
        ) -> Result<(Planes<'a, T>, TileMap), Error> {
            let planes = Planes::new("bias", array.clone(), lead)?;
            let unmasked = |x: T| x.widen().to_f64() != f64::NEG_INFINITY;
            let tiles = TileMap::new("bias", &planes, key_offset, unmasked)?;
            Ok((planes, tiles))
        }
        macro_rules! typed {
            ($($variant:ident),*) => {
                match bias {
                    $(Bias::$variant(array) => {
                        let (planes, tiles) = sorted(array, lead, key_offset)?;
                        let shape = Extents::from_slice(array.shape());
                        Ok(Self { shape, planes: TypedPlanes::$variant(planes), tiles })
                    })*
                }
            };
        }
        typed!(F16, Bf16, F32, F64)
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Rows and columns of a matrix: 1, or as many as there are queries and keys.
    pub(crate) fn dim(&self) -> (usize, usize) {
        let of = |from_end: usize| self.shape.len().checked_sub(from_end).map_or(1, |axis| self.shape[axis]);
        (of(2), of(1))
    }

    /// Which of the distinct matrices that of a batch and head is.
    pub(crate) fn index(&self, batch: usize, head: usize) -> usize {
        match &self.planes {
            TypedPlanes::F16(planes) => planes.index(batch, head),
            TypedPlanes::Bf16(planes) => planes.index(batch, head),
            TypedPlanes::F32(planes) => planes.index(batch, head),
            TypedPlanes::F64(planes) => planes.index(batch, head),
        }
    }

    fn at(&self, batch: usize, head: usize, query: usize, key: usize) -> f64 {
        match &self.planes {
            TypedPlanes::F16(planes) => Planes::at(&planes.get(batch, head), query, key).to_f64(),
            TypedPlanes::Bf16(planes) => Planes::at(&planes.get(batch, head), query, key).to_f64(),
            TypedPlanes::F32(planes) => Planes::at(&planes.get(batch, head), query, key).into(),
            TypedPlanes::F64(planes) => Planes::at(&planes.get(batch, head), query, key),
        }
    }

    /// Adds a tile's biases to its scores.
    #[inline(always)]
    fn add<V: Register>(&self, tile: &Tile, scores: &mut Grid<'_, V::Lane>) {
        match &self.planes {
            TypedPlanes::F16(planes) => add::<V, _>(planes, tile, scores),
            TypedPlanes::Bf16(planes) => add::<V, _>(planes, tile, scores),
            TypedPlanes::F32(planes) => add::<V, _>(planes, tile, scores),
            TypedPlanes::F64(planes) => add::<V, _>(planes, tile, scores),
        }
    }
}

/// A type that biases are stored in.
trait Stored: Element {
    /// As many of the accumulator type as a vector has lanes.
    fn load<V: Register>(from: &[Self]) -> V;
}

macro_rules! stored {
    ($($stored:ident by $load:ident),*) => {
        $(impl Stored for $stored {
            #[inline(always)]
            fn load<V: Register>(from: &[Self]) -> V {
                V::$load(from)
            }
        })*
    };
}

stored!(f16 by load_f16, bf16 by load_bf16, f32 by load_f32);

impl Stored for f64 {
    #[inline(always)]
    fn load<V: Register>(from: &[Self]) -> V {
        let mut lanes = [V::Lane::ZERO; PADDING];
        for (lane, &x) in lanes[..V::LANES].iter_mut().zip(from) {
            *lane = to_accumulator(x);
        }
        V::load(&lanes)
    }
}

/// [`BiasPlanes::add`] for one type.
#[inline(always)]
fn add<V: Register, T: Stored>(planes: &Planes<'_, T>, tile: &Tile, scores: &mut Grid<'_, V::Lane>) {
    let plane = &planes.get(tile.batch, tile.head);
    let (rows, keys) = (tile.rows.len(), tile.keys.len());
    let Some(of_row) = Planes::rows_of(plane, tile) else {
        return add_one_by_one(plane, tile, scores, (0..rows, 0..keys));
    };
    let whole_keys = keys / V::LANES * V::LANES;
    if scores.has_queries_in_lanes() {
        let whole_rows = rows / V::LANES * V::LANES;
        for row in (0..whole_rows).step_by(V::LANES) {
            let mut slices: [&[T]; PADDING] = [&[]; PADDING];
            for (i, slice) in slices[..V::LANES].iter_mut().enumerate() {
                *slice = of_row(row + i);
                // The next tile's follow in memory.
                prefetch_after(slice);
            }
            for first in (0..whole_keys).step_by(V::LANES) {
                let mut square = [V::splat(V::Lane::ZERO); PADDING];
                for (bias, of_row) in square.iter_mut().zip(&slices[..V::LANES]) {
                    *bias = <T as Stored>::load(&of_row[first..]);
                }
                V::transpose(&mut square);
                for (key, &bias) in square[..V::LANES].iter().enumerate() {
                    let cells = &mut scores.cells[(first + key) * scores.key_step + row..][..V::LANES];
                    with_bias(V::load(cells), bias).store(cells);
                }
            }
        }
        add_one_by_one(plane, tile, scores, (0..whole_rows, whole_keys..keys));
        add_one_by_one(plane, tile, scores, (whole_rows..rows, 0..keys));
    } else {
        for row in 0..rows {
            let bias = of_row(row);
            for key in (0..whole_keys).step_by(V::LANES) {
                let cells = &mut scores.cells[row * scores.row_step + key..][..V::LANES];
                with_bias(V::load(cells), <T as Stored>::load(&bias[key..])).store(cells);
            }
        }
        add_one_by_one(plane, tile, scores, (0..rows, whole_keys..keys));
    }
}

/// [`add`] for some rows and keys of the tile.
fn add_one_by_one<A: Real, T: Element>(
    plane: &PlaneView<'_, T>,
    tile: &Tile,
    scores: &mut Grid<'_, A>,
    (rows, keys): (Range<usize>, Range<usize>),
) {
    for row in rows {
        for key in keys.clone() {
            let bias = Planes::at(plane, tile.rows.start + row, tile.keys.start + key);
            let cell = &mut scores[(row, key)];
            *cell = with_bias(*cell, to_accumulator(bias.widen().to_f64()));
        }
    }
}

/// A score with a bias, of which -∞ hides the pair. One that is hidden stays so, and others never become -∞.
#[inline(always)]
fn with_bias<V: Vector>(score: V, bias: V) -> V {
    let none = V::splat(V::Lane::NEG_INFINITY);
    bias.if_equal(none, none, with_finite_bias(score, bias))
}

/// [`with_bias`] for biases that hide nothing, even where they are -∞ by overflow.
#[inline(always)]
fn with_finite_bias<V: Vector>(score: V, bias: V) -> V {
    let none = V::splat(V::Lane::NEG_INFINITY);
    // NaN stays: of the two the maximum then gives the second.
    let sum = V::splat(-V::Lane::MAX).max(score.add(bias));
    score.if_equal(none, none, sum)
}

impl Biases<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.arrays.is_empty() && self.slopes.is_none() && self.closures.is_empty()
    }

    /// Only -∞ counts here: whether it masks all pairs of a tile, none, or some.
    pub(crate) fn sort(&self, tile: &Tile, visibility: &Visibility<'_>) -> Sort {
        let mut sort = Sort::Full;
        for array in &self.arrays {
            sort = sort.and(|| array.tiles.sort(array.index(tile.batch, tile.head), tile));
        }
        for closure in self.closures {
            sort = sort.and(|| closure.hint(&visibility.region(tile)).into());
        }
        sort
    }

    /// What the arrays add to one pair, in call order, as the caller gave it.
    pub(crate) fn arrays_at(&self, pair: Pair) -> impl Iterator<Item = f64> + '_ {
        self.arrays.iter().map(move |array| array.at(pair.batch, pair.head, pair.query, pair.key))
    }

    /// What the closures add to one pair, in call order.
    pub(crate) fn closures_at<'s>(
        &'s self,
        pair: Pair,
        visibility: &'s Visibility<'_>,
    ) -> impl Iterator<Item = f64> + 's {
        let region = visibility.region(&pair.into());
        self.closures.iter().map(move |closure| {
            let mut bias = [0.0];
            closure.fill(&region, &mut bias);
            bias[0]
        })
    }

    /// Adds all biases of a tile to its scores, which are masked.
    #[inline(always)]
    pub(crate) fn add<V: Register>(
        &self,
        tile: &Tile,
        visibility: &Visibility<'_>,
        scores: &mut Grid<'_, V::Lane>,
        computed: &mut Vec<f64>,
    ) {
        for array in &self.arrays {
            array.add::<V>(tile, scores);
        }
        if let Some(slopes) = &self.slopes {
            add_penalties::<V>(V::Lane::from_f64(slopes[tile.head]), &visibility.region(tile), scores);
        }
        for closure in self.closures {
            let region = visibility.region(tile);
            computed.clear();
            computed.resize(region.len(), 0.0);
            closure.fill(&region, computed);
            for (row, of_row) in computed.chunks_exact(region.width()).enumerate() {
                for (key, &bias) in of_row.iter().enumerate() {
                    scores[(row, key)] = with_bias(scores[(row, key)], to_accumulator(bias));
                }
            }
        }
    }
}

/// Adds ALiBi's penalties: the slope times the distance, negated.
#[inline(always)]
fn add_penalties<V: Register>(slope: V::Lane, region: &Region, scores: &mut Grid<'_, V::Lane>) {
    let (rows, keys) = ((region.queries.end - region.queries.start) as usize, region.width());
    let farthest =
        region.queries.start.abs_diff(region.keys.end).max(region.queries.end.abs_diff(region.keys.start));
    // Whole numbers as large as a padded line's are exact.
    let exact = 1.0 / V::Lane::EPSILON;
    if farthest as f64 + ((PADDING * TILE) as f64) < exact {
        let mut ramp = [V::Lane::ZERO; PADDING];
        for (lane, step) in ramp.iter_mut().enumerate() {
            *step = V::Lane::from_u64(lane as u64);
        }
        let (ramp, minus_slope) = (V::load(&ramp), V::splat(-slope));
        // A line's cells are neighbours in memory: queries that grow, or keys, with which the difference shrinks.
        let (lines, length, along_line, to_next) = if scores.has_queries_in_lanes() {
            (keys, scores.key_step, 1.0, -1)
        } else {
            (rows, scores.row_step, -1.0, 1)
        };
        let sign = V::splat(V::Lane::from_f64(along_line));
        for (line, cells) in scores.cells.chunks_exact_mut(length).take(lines).enumerate() {
            let first = region.queries.start - region.keys.start + to_next * line as i64;
            for (at, cells) in cells.chunks_exact_mut(V::LANES).enumerate() {
                let along = ramp.add(V::splat(V::Lane::from_u64((at * V::LANES) as u64)));
                let difference = along.mul_add(sign, V::splat(V::Lane::from_f64(first as f64)));
                let distance = difference.max(V::splat(V::Lane::ZERO).sub(difference));
                with_finite_bias(V::load(cells), minus_slope.mul(distance)).store(cells);
            }
        }
        return;
    }
    for (row, query) in region.queries.clone().enumerate() {
        for (column, key) in region.keys.clone().enumerate() {
            let penalty = -(slope * V::Lane::from_u64(query.abs_diff(key)));
            scores[(row, column)] = with_finite_bias(scores[(row, column)], penalty);
        }
    }
}

/// The nearest accumulator; a finite number never becomes infinite, so it can never become a mask.
pub(crate) fn to_accumulator<A: Real>(x: f64) -> A {
    if x.is_finite() { A::from_f64(x.clamp(-A::MAX.to_f64(), A::MAX.to_f64())) } else { A::from_f64(x) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_follow_the_papers_rule() {
        assert_eq!(
            *Alibi::Paper.slopes(8),
            [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]
        );
        let six = Alibi::Paper.slopes(6);
        assert_eq!(six[..4], [0.25, 0.0625, 0.015625, 0.00390625]);
        assert_eq!(six[4..], [0.5, 0.125]);
        assert_eq!(*Alibi::Paper.slopes(1), [0.00390625]);
    }
}
