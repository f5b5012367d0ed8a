//! The matrix of one head pooled to a picture: each of its numbers stands for a rectangle of queries and keys.
//!
//! Rows of the picture are cut into tasks, each of which goes over its queries strip by strip, so that memory is that of the
//! picture however long the sequences are, and no number depends on the threads.

use std::ops::Range;

use ndarray::{Array2, ArrayViewMut2, Axis};

use super::numbers::Numbers;
use super::strip::{Strip, blocks, strips};
use crate::call::Progress;
use crate::error::Error;
use crate::forward::{Buffers, each_task, shaped, zeros};
use crate::plan;
use crate::simd::{Kernel, Register, Simd};
use crate::tile::QUERY_BLOCK;

/// Rows and columns of a map whose size is not given.
const SIZE: usize = 1024;
/// Queries that a task has at least, if its map has so many.
const TASK: usize = 4 * QUERY_BLOCK;

/// What a map shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Of {
    /// 1 where the query may attend the key, else 0.
    Mask,
    /// `q · k` of every pair, masked or not.
    Scores,
    /// The same times the scale.
    Scaled,
    /// `exp(score - max) / sum`; 0 where masked.
    Weights,
    /// How far the output would move without the key, as an L2 norm; 0 where masked.
    Influence,
}

/// What stands for a rectangle of numbers. One that is NaN makes it NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pool {
    /// The largest: no single weight is lost, however far out.
    Max,
    /// The mean of all pairs; those that are masked count as what they are.
    Mean,
    /// The sum.
    Sum,
    /// The one farthest from 0, with its sign, of two equally far ones the positive: for differences, and for scores.
    Farthest,
}

/// A picture of a head that is asked for: of all queries that are open and all keys, 1024 × 1024 or as many as there are, pooled by their
/// maximum; or as said.
#[derive(Clone, Debug)]
pub struct Map {
    of: Of,
    pool: Pool,
    grid: Grid,
    queries: Option<Range<usize>>,
    keys: Option<Range<usize>>,
}

/// How the numbers are shared out among the cells.
#[derive(Clone, Copy, Debug)]
enum Grid {
    /// Rows and columns at most.
    Size(usize, usize),
    /// Queries and keys of each cell.
    Cell(usize, usize),
}

impl Map {
    /// Of all queries that are open, and all keys.
    pub fn new(of: Of) -> Self {
        Self { of, pool: Pool::Max, grid: Grid::Size(SIZE, SIZE), queries: None, keys: None }
    }

    /// How numbers are pooled.
    pub fn pool(mut self, pool: Pool) -> Self {
        self.pool = pool;
        self
    }

    /// Rows and columns at most: a picture has no more than there are queries and keys.
    pub fn size(mut self, rows: usize, columns: usize) -> Self {
        self.grid = Grid::Size(rows, columns);
        self
    }

    /// In place of a size: each cell stands for so many queries and keys, at least 1 each, those at the ends for fewer. Maps of
    /// neighbouring rectangles that begin at multiples of it fit together.
    pub fn cell(mut self, queries: usize, keys: usize) -> Self {
        self.grid = Grid::Cell(queries.max(1), keys.max(1));
        self
    }

    /// Of these queries alone.
    pub fn queries(mut self, queries: Range<usize>) -> Self {
        self.queries = Some(queries);
        self
    }

    /// Of these keys alone.
    pub fn keys(mut self, keys: Range<usize>) -> Self {
        self.keys = Some(keys);
        self
    }

    /// Of a head with these queries and so many keys.
    pub(super) fn within(&self, queries: Range<usize>, len_key: usize) -> Area {
        let queries = self.queries.clone().unwrap_or(queries);
        let keys = self.keys.clone().unwrap_or(0..len_key);
        let (rows, columns) = match self.grid {
            Grid::Size(rows, columns) => (Bins::even(queries, rows), Bins::even(keys, columns)),
            Grid::Cell(rows, columns) => (Bins::every(queries, rows), Bins::every(keys, columns)),
        };
        Area { of: self.of, pool: self.pool, rows, columns }
    }
}

/// A map of a head whose lengths are known.
#[derive(Clone, Debug)]
pub(super) struct Area {
    pub(super) of: Of,
    pub(super) pool: Pool,
    pub(super) rows: Bins,
    pub(super) columns: Bins,
}

/// A range cut into parts, none of which is empty.
#[derive(Clone, Debug)]
pub(super) struct Bins {
    pub(super) range: Range<usize>,
    pub(super) count: usize,
    /// Of each part but the last; none, where all are of nearly the same length.
    size: Option<usize>,
}

impl Bins {
    /// So many parts of nearly the same length, or as many as there are indices.
    fn even(range: Range<usize>, count: usize) -> Self {
        Self { count: count.min(range.len()), range, size: None }
    }

    /// Parts of this length, and the rest.
    fn every(range: Range<usize>, size: usize) -> Self {
        Self { count: range.len().div_ceil(size), range, size: Some(size) }
    }

    /// Where a part begins; of `count`, where all end.
    pub(super) fn start(&self, bin: usize) -> usize {
        let before = match self.size {
            Some(size) => bin.saturating_mul(size).min(self.range.len()),
            None => (bin as u128 * self.range.len() as u128 / self.count.max(1) as u128) as usize,
        };
        self.range.start + before
    }

    /// Which part an index of the range is in.
    fn of(&self, index: usize) -> usize {
        let before = index - self.range.start;
        match self.size {
            Some(size) => before / size,
            None => {
                let scaled = (before + 1) as u128 * self.count as u128;
                (scaled.div_ceil(self.range.len() as u128) - 1) as usize
            }
        }
    }

    /// A span of the range, which is not empty, cut where parts end; each with its part.
    pub(super) fn cut(&self, span: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
        let (first, last) = (self.of(span.start), self.of(span.end - 1));
        (first..=last)
            .map(move |bin| (bin, span.start.max(self.start(bin))..span.end.min(self.start(bin + 1))))
    }
}

/// # Errors
/// If there is no memory for the picture, or progress cancelled.
pub(super) fn pooled(
    numbers: &dyn Numbers,
    area: &Area,
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<Array2<f64>, Error> {
    let mut picture: Array2<f64> = shaped(zeros::<f64>("map", &[area.rows.count, area.columns.count])?);
    if picture.is_empty() {
        return Ok(picture);
    }
    picture.fill(area.pool.of_nothing());
    let rows_of_task = TASK.div_ceil(area.rows.range.len().div_ceil(area.rows.count));
    let total = area.rows.count.div_ceil(rows_of_task);
    let tasks = picture.axis_chunks_iter_mut(Axis(0), rows_of_task).enumerate();
    let tasks = tasks.map(|(task, rows)| Painting { numbers, area, first: task * rows_of_task, rows });
    let threads = plan::threads(numbers.terms(), area.rows.range.len());
    let buffers = Buffers { kept: None, new: || Strip::new() };
    each_task((total, tasks), threads, progress, buffers, |strip, mut painting: Painting<'_>| {
        painting.paint(strip);
    })?;
    Ok(picture)
}

/// Some neighbouring rows of the picture.
struct Painting<'m> {
    numbers: &'m dyn Numbers,
    area: &'m Area,
    /// The number of the first.
    first: usize,
    rows: ArrayViewMut2<'m, f64>,
}

impl Painting<'_> {
    fn paint(&mut self, strip: &mut Strip<f64>) {
        let Self { numbers, area, .. } = *self;
        let (terms, mut maker) = (numbers.terms(), numbers.maker());
        let end = self.first + self.rows.nrows();
        for queries in blocks(area.rows.start(self.first)..area.rows.start(end)) {
            for keys in strips(terms, area.columns.range.clone()) {
                if numbers.sees(&queries, &keys) {
                    maker.make(&queries, &keys, strip);
                    self.fold(terms.simd, strip);
                } else {
                    self.fold_zeros(&queries, &keys);
                }
            }
        }
        if area.pool == Pool::Mean {
            self.divide();
        }
    }

    /// Takes in the numbers of a strip.
    fn fold(&mut self, simd: Simd, strip: &Strip<f64>) {
        let (area, pool) = (self.area, self.area.pool);
        for (column, keys) in area.columns.cut(strip.keys.clone()) {
            let numbers = &strip.of_keys()[keys.start - strip.keys.start..keys.end - strip.keys.start];
            let pooled = simd.run(OverKeys { numbers, pool });
            for (row, queries) in area.rows.cut(strip.queries.clone()) {
                let to = &mut self.rows[[row - self.first, column]];
                for query in queries {
                    *to = pool.with(*to, pooled[query - strip.queries.start]);
                }
            }
        }
    }

    /// Takes in a strip of zeros.
    fn fold_zeros(&mut self, queries: &Range<usize>, keys: &Range<usize>) {
        for (column, _) in self.area.columns.cut(keys.clone()) {
            for (row, _) in self.area.rows.cut(queries.clone()) {
                let to = &mut self.rows[[row - self.first, column]];
                *to = self.area.pool.with(*to, 0.0);
            }
        }
    }

    /// From sums to means.
    fn divide(&mut self) {
        let Area { rows, columns, .. } = self.area;
        for (row, mut numbers) in (self.first..).zip(self.rows.rows_mut()) {
            let queries = rows.start(row + 1) - rows.start(row);
            for (column, sum) in numbers.iter_mut().enumerate() {
                let keys = columns.start(column + 1) - columns.start(column);
                *sum /= queries as f64 * keys as f64;
            }
        }
    }
}

impl Pool {
    fn of_nothing(self) -> f64 {
        if self == Self::Max { f64::NEG_INFINITY } else { 0.0 }
    }

    #[inline(always)]
    fn with(self, a: f64, b: f64) -> f64 {
        match self {
            Self::Mean | Self::Sum => a + b,
            // Comparisons would drop it.
            _ if a.is_nan() || b.is_nan() => f64::NAN,
            Self::Max => {
                if b > a {
                    b
                } else {
                    a
                }
            }
            Self::Farthest => {
                // Of +∞ and −∞, too, the order of the pairs does not choose.
                if b.abs() > a.abs() || b.abs() == a.abs() && b > a { b } else { a }
            }
        }
    }
}

/// A few keys' numbers pooled to one for each query of the block.
struct OverKeys<'s> {
    numbers: &'s [[f64; QUERY_BLOCK]],
    pool: Pool,
}

impl Kernel<f64> for OverKeys<'_> {
    type Output = [f64; QUERY_BLOCK];

    #[inline(always)]
    fn run<V: Register<Lane = f64>>(self) -> Self::Output {
        // One loop for each, without a choice in it.
        match self.pool {
            Pool::Max => over_keys(self.numbers, Pool::Max),
            Pool::Farthest => over_keys(self.numbers, Pool::Farthest),
            Pool::Mean | Pool::Sum => over_keys(self.numbers, Pool::Sum),
        }
    }
}

#[inline(always)]
fn over_keys(numbers: &[[f64; QUERY_BLOCK]], pool: Pool) -> [f64; QUERY_BLOCK] {
    /// Queries whose pooled numbers are kept in registers.
    const SIDE_BY_SIDE: usize = 16;
    let mut pooled = [pool.of_nothing(); QUERY_BLOCK];
    for (chunk, pooled) in pooled.as_chunks_mut::<SIDE_BY_SIDE>().0.iter_mut().enumerate() {
        for of_key in numbers {
            let of_key = &of_key.as_chunks::<SIDE_BY_SIDE>().0[chunk];
            for lane in 0..SIDE_BY_SIDE {
                pooled[lane] = pool.with(pooled[lane], of_key[lane]);
            }
        }
    }
    pooled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinities_are_pooled_the_same_in_any_order() {
        let (plus, minus) = (f64::INFINITY, f64::NEG_INFINITY);
        let pooled = |pool: Pool, numbers: [f64; 3]| {
            let column = numbers.map(|x| [x; QUERY_BLOCK]);
            over_keys(&column, pool)[0]
        };
        for [a, b, c] in [[plus, 1.0, minus], [minus, 1.0, plus], [1.0, minus, plus], [plus, minus, 1.0]] {
            assert_eq!((pooled(Pool::Max, [a, b, c]), pooled(Pool::Farthest, [a, b, c])), (plus, plus));
            assert!(pooled(Pool::Sum, [a, b, c]).is_nan());
            let with_nan = [Pool::Max, Pool::Farthest, Pool::Sum].map(|pool| pooled(pool, [a, f64::NAN, c]));
            assert!(with_nan.iter().all(|x| x.is_nan()));
        }
    }

    #[test]
    fn parts_of_a_range_touch_and_none_is_empty() {
        let even = [(0..10, 3), (5..6, 1), (7..1007, 64), (0..64, 64), (3..200_003, 1024)];
        let every = [(0..10, 3), (5..6, 8), (7..1007, 64), (0..64, 1), (3..200_003, usize::MAX)];
        let even = even.map(|(range, count)| Bins::even(range, count));
        for bins in even.into_iter().chain(every.map(|(range, size)| Bins::every(range, size))) {
            let Bins { range, count, .. } = bins.clone();
            assert_eq!((bins.start(0), bins.start(count)), (range.start, range.end));
            for index in range.clone() {
                let bin = bins.of(index);
                assert!(
                    bins.start(bin) <= index && index < bins.start(bin + 1),
                    "{range:?}, {count}: {index}"
                );
            }
            let parts: Vec<_> = bins.cut(range.clone()).collect();
            assert_eq!(parts.len(), count);
            assert!(parts.iter().enumerate().all(|(at, (bin, part))| at == *bin && !part.is_empty()));
        }
    }
}
