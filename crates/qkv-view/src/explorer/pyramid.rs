//! A head's matrix at all sizes, as maps of the earth have it: level 0 is one cell for all, the last has a cell for each pair, and
//! from one level to the next cells are half as long.
//!
//! Down to some level the cells are kept: that level, the base, is made once from all pairs, some rows at a time, and
//! the ones above of it. Finer cells are made when they are asked for; a tile of them is a small part of the whole.

use std::ops::Range;

use ndarray::{Array2, ArrayView2, s};
use qkv::{Map, Of, Pool};

use super::shown::Shown;
use super::source::Stats;
use super::work::queries_of_piece;
use crate::picture::{self, Scale};

/// Rows and columns of a tile.
pub const TILE: usize = 256;
/// Of the base, where that leaves tiles that are quickly made.
const SIDE: usize = 1024;
/// A tile of cells half as long is quickly made.
const LONGEST_CELL: usize = 32;
/// Of the base, whatever the tiles take.
const LARGEST_SIDE: usize = 4096;

/// Numbers of the base that are looked at to find colours.
const SAMPLED: usize = 1 << 20;

/// How the levels of a head are cut into cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// Queries and keys.
    pub lengths: (usize, usize),
}

impl Levels {
    fn longest(self) -> usize {
        self.lengths.0.max(self.lengths.1).max(1)
    }

    /// How many levels there are.
    pub fn count(self) -> usize {
        self.longest().next_power_of_two().trailing_zeros() as usize + 1
    }

    /// Queries and keys of a cell.
    pub fn cell(self, level: usize) -> usize {
        1 << (self.count() - 1 - level)
    }

    /// Rows and columns of tiles that a level has.
    pub fn tiles(self, level: usize) -> (usize, usize) {
        let (rows, columns) = self.cells(level);
        (rows.div_ceil(TILE), columns.div_ceil(TILE))
    }

    /// Queries and keys of one of its tiles.
    pub fn tile(self, level: usize, x: usize, y: usize) -> [Range<usize>; 2] {
        let side = TILE * self.cell(level);
        let range = |at: usize, length: usize| (at * side).min(length)..((at + 1) * side).min(length);
        [range(y, self.lengths.0), range(x, self.lengths.1)]
    }

    /// The level whose cells are kept.
    pub(super) fn base(self) -> usize {
        let cell = self.finest_within(SIDE).min(LONGEST_CELL).max(self.finest_within(LARGEST_SIDE));
        self.count() - 1 - cell.trailing_zeros() as usize
    }

    fn cells(self, level: usize) -> (usize, usize) {
        let cell = self.cell(level);
        (self.lengths.0.div_ceil(cell), self.lengths.1.div_ceil(cell))
    }

    /// Queries and keys of a cell at the finest level that has no more than `side` of them on a side.
    pub(super) fn finest_within(self, side: usize) -> usize {
        self.longest().div_ceil(side).next_power_of_two()
    }
}

/// All levels that are kept.
pub(super) struct Pyramid {
    shown: Shown,
    levels: Levels,
    /// Rows of the base, as far as they are known.
    base: Vec<f32>,
    /// The levels above the base, level 0 first; none until the base is whole.
    above: Vec<Array2<f32>>,
    /// Colours for what is known so far, and whether there are numbers above them.
    scale: (Scale, bool),
    stats: Stats,
}

impl Pyramid {
    pub fn new(shown: Shown, levels: Levels) -> Self {
        let scale = (picture::colours(shown.of).scale([].into_iter()), false);
        Self { shown, levels, base: Vec::new(), above: Vec::new(), scale, stats: Stats::default() }
    }

    fn width(&self) -> usize {
        self.levels.cells(self.levels.base()).1
    }

    fn rows(&self) -> usize {
        // A base without columns is whole from the beginning.
        self.base.len().checked_div(self.width()).unwrap_or(self.levels.cells(self.levels.base()).0)
    }

    /// Of the base, how many rows are known, and how many there are.
    pub fn progress(&self) -> (usize, usize) {
        (self.rows(), self.levels.cells(self.levels.base()).0)
    }

    pub fn is_whole(&self) -> bool {
        let (done, total) = self.progress();
        done == total
    }

    /// Which queries are to be read next, and the map of them that is wanted.
    pub fn next(&self) -> Option<(Range<usize>, Map)> {
        let (len_query, len_key) = self.levels.lengths;
        let cell = self.levels.cell(self.levels.base());
        let start = self.rows() * cell;
        let count = queries_of_piece(len_key).next_multiple_of(cell);
        (!self.is_whole()).then(|| (start..len_query.min(start + count), self.shown.map(cell)))
    }

    /// Takes in what [`next`](Self::next) wanted.
    pub fn take(&mut self, rows: &Array2<f64>, stats: Option<&Stats>) {
        let is_first = self.base.is_empty();
        self.base.extend(rows.iter().map(|&x| narrowed(x)));
        if let Some(stats) = stats {
            self.stats.append(stats);
        }
        let is_whole = self.is_whole();
        // While it is built, colours stay those of its first part.
        if is_whole || is_first {
            self.scale = self.coloured();
        }
        if is_whole {
            self.base.shrink_to_fit();
            self.pool_upwards();
        }
    }

    fn pool_upwards(&mut self) {
        let base = self.levels.base();
        for level in (0..base).rev() {
            let below = self.kept(level + 1).expect("levels are made from below");
            let pooled = halved(below, self.shown, self.levels, level + 1);
            self.above.insert(0, pooled);
        }
    }

    /// A level, if its cells are kept.
    fn kept(&self, level: usize) -> Option<ArrayView2<'_, f32>> {
        let base = self.levels.base();
        if level == base {
            return ArrayView2::from_shape((self.rows(), self.width()), &self.base).ok();
        }
        // While it is made, only the lowest are there.
        let missing = base - self.above.len().min(base);
        self.above.get(level.checked_sub(missing)?).map(|cells| cells.view())
    }

    /// The cells of a tile, if they are kept.
    pub fn tile(&self, level: usize, x: usize, y: usize) -> Option<Array2<f64>> {
        let kept = self.kept(level).filter(|_| self.is_whole())?;
        let (rows, columns) = kept.dim();
        let part = |at: usize, length: usize| (at * TILE).min(length)..((at + 1) * TILE).min(length);
        let (rows, columns) = (part(y, rows), part(x, columns));
        Some(kept.slice(s![rows, columns]).mapv(f64::from))
    }

    /// The whole at the finest level that has no more than `side` cells on a side, fewer than the base.
    pub fn whole(&self, side: usize) -> Option<Array2<f64>> {
        let cell = self.levels.finest_within(side);
        let level = self.levels.count() - 1 - cell.trailing_zeros() as usize;
        Some(self.kept(level).filter(|_| self.is_whole())?.mapv(f64::from))
    }

    /// Colours for what is known so far, and whether there are numbers above them.
    pub fn scale(&self) -> (&Scale, bool) {
        (&self.scale.0, self.scale.1)
    }

    fn coloured(&self) -> (Scale, bool) {
        let all = || self.base.iter().map(|&x| f64::from(x));
        // Where a scale is trimmed, some of very many numbers say where; an odd step meets all columns.
        let step = match self.shown.of {
            Of::Weights | Of::Influence => self.base.len().div_ceil(SAMPLED) | 1,
            Of::Mask | Of::Scores | Of::Scaled => 1,
        };
        let scale = picture::colours(self.shown.of).scale(all().step_by(step));
        let above = all().any(|x| x.is_finite() && x > scale.high());
        (scale, above)
    }

    /// Maxima and sums, once all are known.
    pub fn stats(&self) -> Option<&Stats> {
        // Where there are no keys nothing was read, and there are none.
        let are_all_known = self.is_whole() && self.stats.queries() == self.levels.lengths.0;
        (are_all_known && self.shown.needs_stats()).then_some(&self.stats)
    }

    /// What it takes, or will take.
    pub fn bytes(&self) -> usize {
        let (rows, columns) = self.levels.cells(self.levels.base());
        let stats = if self.shown.needs_stats() { Stats::bytes(self.levels.lengths.0) } else { 0 };
        rows * columns * size_of::<f32>() * 4 / 3 + stats
    }
}

/// Finite numbers stay finite.
fn narrowed(x: f64) -> f32 {
    if x.is_finite() { x.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32 } else { x as f32 }
}

/// The level above a level: each cell stands for up to four.
fn halved(below: ArrayView2<'_, f32>, shown: Shown, levels: Levels, level: usize) -> Array2<f32> {
    let (rows, columns) = levels.cells(level - 1);
    let cell = levels.cell(level);
    // The cells at the ends stand for fewer pairs.
    let pairs = |row: usize, column: usize| {
        let length = |at: usize, length: usize| cell.min(length - at * cell) as f64;
        length(row, levels.lengths.0) * length(column, levels.lengths.1)
    };
    Array2::from_shape_fn((rows, columns), |(row, column)| {
        let four =
            [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(down, across)| (2 * row + down, 2 * column + across));
        let there = four.into_iter().filter_map(|at| Some((f64::from(*below.get(at)?), pairs(at.0, at.1))));
        narrowed(pooled(there, shown))
    })
}

/// Numbers that each stand for so many pairs, pooled as [`Pool`] has it.
fn pooled(numbers: impl Iterator<Item = (f64, f64)>, shown: Shown) -> f64 {
    let most = |larger: fn(f64, f64) -> bool, numbers: &mut dyn Iterator<Item = f64>| {
        let most = numbers.reduce(|a, b| match () {
            () if a.is_nan() || b.is_nan() => f64::NAN,
            () if larger(b, a) => b,
            () => a,
        });
        most.unwrap_or(f64::NAN)
    };
    match shown.pooling() {
        Pool::Mean => {
            let sums = numbers.fold((0.0, 0.0), |(sum, all), (x, pairs)| (sum + x * pairs, all + pairs));
            sums.0 / sums.1
        }
        Pool::Sum => numbers.map(|(x, _)| x).sum(),
        Pool::Max => most(|b, a| b > a, &mut numbers.map(|(x, _)| x)),
        Pool::Farthest => {
            let is_farther = |b: f64, a: f64| (b.abs(), b) > (a.abs(), a);
            most(is_farther, &mut numbers.map(|(x, _)| x))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pyramid of given numbers, read as it asks for them.
    fn built(values: &Array2<f64>, shown: Shown) -> Pyramid {
        let mut pyramid = Pyramid::new(shown, Levels { lengths: values.dim() });
        let cell = pyramid.levels.cell(pyramid.levels.base());
        while let Some((queries, _)) = pyramid.next() {
            assert!(!queries.is_empty() && queries.start % cell == 0);
            let rows = queries.len().div_ceil(cell);
            let map = Array2::from_shape_fn((rows, values.ncols().div_ceil(cell)), |(row, column)| {
                pool(values, shown, cell, (queries.start / cell + row, column))
            });
            assert!(pyramid.tile(0, 0, 0).is_none());
            pyramid.take(&map, None);
        }
        pyramid
    }

    fn pool(values: &Array2<f64>, shown: Shown, cell: usize, (row, column): (usize, usize)) -> f64 {
        let (rows, columns) = values.dim();
        let part = |at: usize, length: usize| at * cell..length.min((at + 1) * cell);
        pooled(values.slice(s![part(row, rows), part(column, columns)]).iter().map(|&x| (x, 1.0)), shown)
    }

    fn assert_levels(rows: usize, columns: usize, shown: Shown) {
        let values =
            Array2::from_shape_fn((rows, columns), |(i, j)| ((i * 37 + j * 101) % 997) as f64 - 500.25);
        let pyramid = built(&values, shown);
        let levels = pyramid.levels;
        assert_eq!(levels.cell(levels.count() - 1), 1);
        let (all_rows, all_columns) = levels.cells(0);
        assert_eq!((all_rows, all_columns), (1, 1));
        for level in 0..levels.count() {
            let [queries, keys] = levels.tile(level, 0, 0);
            assert_eq!((queries.start, keys.start), (0, 0));
            let Some(tile) = pyramid.tile(level, 0, 0) else {
                assert!(level > levels.base());
                continue;
            };
            for ((row, column), &x) in tile.indexed_iter() {
                let want = pool(&values, shown, levels.cell(level), (row, column));
                assert!(
                    (x - want).abs() <= 1e-4 * want.abs().max(1.0),
                    "{level} {row} {column}: {x}, {want}"
                );
            }
        }
    }

    #[test]
    fn every_kept_level_is_that_of_all_pairs() {
        let weights = |pool| Shown { of: Of::Weights, pool };
        for (rows, columns) in [(1, 1), (5, 3), (300, 1000), (1025, 700), (2500, 1)] {
            assert_levels(rows, columns, weights(Pool::Max));
            assert_levels(rows, columns, weights(Pool::Mean));
            assert_levels(rows, columns, weights(Pool::Sum));
            assert_levels(rows, columns, Shown { of: Of::Scores, pool: Pool::Max });
        }
    }

    #[test]
    fn tiles_cover_a_level_and_no_more() {
        let levels = Levels { lengths: (1000, 300) };
        assert_eq!((levels.count(), levels.cell(0), levels.cell(10)), (11, 1024, 1));
        assert_eq!(levels.tile(10, 1, 3), [768..1000, 256..300]);
        assert_eq!((levels.tiles(10), levels.tiles(2), levels.tiles(0)), ((4, 2), (1, 1), (1, 1)));
        assert_eq!(Levels { lengths: (0, 0) }.tiles(0), (0, 0));
    }

    #[test]
    fn what_is_kept_is_bounded_and_so_is_a_tile() {
        for (length, cell) in [(1, 1), (1024, 1), (1025, 2), (8000, 8), (100_000, 32), (1_000_000, 256)] {
            let levels = Levels { lengths: (length, length) };
            assert_eq!(levels.cell(levels.base()), cell);
            assert!(levels.cells(levels.base()).0 <= LARGEST_SIDE);
        }
    }

    #[test]
    fn nan_stays_and_finite_numbers_stay_finite() {
        let mut values = Array2::from_elem((4, 4), 1e300);
        values[[3, 0]] = f64::NAN;
        let pyramid = built(&values, Shown { of: Of::Scores, pool: Pool::Max });
        assert!(pyramid.tile(0, 0, 0).unwrap()[[0, 0]].is_nan());
        assert_eq!(pyramid.tile(1, 0, 0).unwrap()[[0, 0]], f64::from(f32::MAX));
        assert_eq!(pyramid.whole(2).unwrap().dim(), (2, 2));
    }

    #[test]
    fn infinities_are_pooled_the_same_in_any_order() {
        let in_any_order = |numbers: [f64; 3], of, pool| {
            let pooled =
                |numbers: [f64; 3]| pooled(numbers.map(|x| (x, 1.0)).into_iter(), Shown { of, pool });
            let [a, b, c] = numbers;
            let first = pooled(numbers);
            for other in [[a, c, b], [b, a, c], [b, c, a], [c, a, b], [c, b, a]] {
                assert_eq!(pooled(other).to_bits(), first.to_bits(), "{other:?} {of:?} {pool:?}");
            }
            first
        };
        let infinite = [f64::INFINITY, 1.0, f64::NEG_INFINITY];
        for of in [Of::Weights, Of::Scores] {
            assert_eq!(in_any_order(infinite, of, Pool::Max), f64::INFINITY);
            assert!(in_any_order([f64::INFINITY, f64::NAN, 2.0], of, Pool::Max).is_nan());
            for pool in [Pool::Mean, Pool::Sum] {
                assert!(pooled(infinite.map(|x| (x, 1.0)).into_iter(), Shown { of, pool }).is_nan());
            }
        }
        assert_eq!(in_any_order([-2.0, 2.0, 1.0], Of::Scores, Pool::Max), 2.0);
    }

    #[test]
    fn without_queries_or_keys_there_is_nothing_to_read() {
        for lengths in [(0, 5), (5, 0), (0, 0)] {
            let pyramid = Pyramid::new(Shown { of: Of::Mask, pool: Pool::Max }, Levels { lengths });
            assert!(pyramid.is_whole() && pyramid.next().is_none());
        }
    }
}
