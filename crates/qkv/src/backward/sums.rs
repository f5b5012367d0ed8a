//! What a tile adds to the results: chains of rows, each times a number of the tile, with columns in the lanes; and to a bias
//! the tile itself.

use ndarray::{ArrayViewMut2, s};

use crate::element::Real;
use crate::forward::{CHAINS, FEWER};
use crate::simd::{Ahead, Kernel, Numbers, PADDING, Register, Simd, Vector, Vectors, accumulate, by_chains};
use crate::tile::{QUERY_BLOCK, Tile};

/// Some rows and columns of a bias; an axis of 1 serves all.
pub(super) struct BiasTarget<'j, A> {
    pub(super) cells: ArrayViewMut2<'j, A>,
    /// Whether all are still 0.
    pub(super) is_new: bool,
}

/// Numbers of a tile, of each result one for each step.
#[derive(Clone, Copy)]
pub(super) struct TileNumbers<'n, A> {
    pub(super) numbers: &'n [A],
    /// If some pairs are to be left out, which are in.
    pub(super) within: Option<&'n [bool]>,
    /// How far apart those of two results are, and of two steps.
    pub(super) chain: usize,
    pub(super) step: usize,
    pub(super) steps: usize,
}

/// Chains over a tile: rows, `(steps, dim)`, each times its number for the result; they are added to `(results, dim)`.
pub(super) struct Sums<'s, A> {
    pub(super) numbers: TileNumbers<'s, A>,
    pub(super) rows: &'s [A],
    pub(super) to: &'s mut [A],
    pub(super) dim: usize,
}

impl<A: Real> Kernel<A> for Sums<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Register<Lane = A>>(mut self) {
        let mut column = 0;
        while column < self.dim {
            let left = self.dim - column;
            if V::REGISTERS >= 32 && left >= 4 * V::LANES {
                self.add_columns::<[V; 4]>(column);
                column += 4 * V::LANES;
            } else if left >= 2 * V::LANES {
                self.add_columns::<[V; 2]>(column);
                column += 2 * V::LANES;
            } else {
                self.add_columns::<V>(column);
                column += V::LANES;
            }
        }
    }
}

impl<A: Real> Sums<'_, A> {
    #[inline(always)]
    fn add_columns<V: Vector<Lane = A>>(&mut self, column: usize) {
        let results = self.to.len() / self.dim;
        if self.numbers.within.is_some() {
            for at in 0..results {
                self.add_chains::<V, 1, true>(at, column);
            }
            return;
        }
        by_chains!(results, [CHAINS, FEWER], (at, RESULTS) => self.add_chains::<V, RESULTS, false>(at, column));
    }

    /// A few results, from `at` on, in a vector of columns.
    #[inline(always)]
    fn add_chains<V: Vector<Lane = A>, const RESULTS: usize, const SELECT: bool>(
        &mut self,
        at: usize,
        column: usize,
    ) {
        let mut sums = [V::splat(A::ZERO); RESULTS];
        let TileNumbers { numbers, within, chain, step, steps } = self.numbers;
        let (first, dim) = (at * chain, self.dim);
        match within {
            Some(within) if SELECT => {
                for i in (0..steps).filter(|i| within[first + i * step]) {
                    let row = V::load(&self.rows[i * dim + column..]);
                    sums[0] = row.mul_add(V::splat(numbers[first + i * step]), sums[0]);
                }
            }
            _ => {
                let rows = Vectors { numbers: &self.rows[column..], stride: dim };
                let numbers = Numbers { numbers: &numbers[first..], chain, step };
                accumulate(&mut sums, steps, rows, numbers, Ahead::NOTHING);
            }
        }
        for (result, sum) in sums.into_iter().enumerate() {
            let to = &mut self.to[(at + result) * dim..][column..dim];
            if to.len() >= V::LANES {
                added(V::load(to), sum).store(to);
            } else {
                let mut lanes = [A::ZERO; 4 * PADDING];
                sum.store(&mut lanes);
                for (to, lane) in to.iter_mut().zip(lanes) {
                    *to = added(*to, lane);
                }
            }
        }
    }
}

/// A result with a chain more; every NaN is the canonical one.
#[inline(always)]
fn added<V: Vector>(result: V, chain: V) -> V {
    let sum = result.add(chain);
    sum.if_equal(sum, sum, V::splat(V::Lane::NAN))
}

impl<A: Real> BiasTarget<'_, A> {
    /// Adds a tile, `(keys, QUERY_BLOCK)`, that begins at a row and a column.
    pub(super) fn add(
        &mut self,
        simd: Simd,
        grid: &[A],
        tile: &Tile,
        (first_row, first_column): (usize, usize),
    ) {
        let (rows, columns) = (tile.rows.len(), tile.keys.len());
        let cells = &mut self.cells;
        let of_row =
            |row: usize| (0..columns).fold(A::ZERO, |sum, column| sum + grid[column * QUERY_BLOCK + row]);
        let add = |cell: &mut A, sum: A| *cell = added(*cell, sum);
        match cells.dim() {
            (1, 1) => add(&mut cells[[0, 0]], (0..rows).fold(A::ZERO, |sum, row| sum + of_row(row))),
            (1, _) => {
                let of_keys = grid.chunks(QUERY_BLOCK).map(|of_key| &of_key[..rows]);
                for (column, of_key) in (first_column..first_column + columns).zip(of_keys) {
                    add(&mut cells[[0, column]], of_key.iter().fold(A::ZERO, |sum, &e| sum + e));
                }
            }
            (_, 1) => (0..rows).for_each(|row| add(&mut cells[[first_row + row, 0]], of_row(row))),
            _ => {
                let range = s![first_row..first_row + rows, first_column..first_column + columns];
                simd.run(AddTransposed { grid, cells: cells.slice_mut(range), are_new: self.is_new });
            }
        }
    }
}

/// Adds a tile, `(keys, QUERY_BLOCK)`, to cells whose rows are queries.
struct AddTransposed<'a, A> {
    grid: &'a [A],
    cells: ArrayViewMut2<'a, A>,
    /// Whether the cells are 0, and need not be brought in.
    are_new: bool,
}

impl<A: Real> Kernel<A> for AddTransposed<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Register<Lane = A>>(self) {
        let Self { grid, mut cells, are_new } = self;
        let (rows, columns) = cells.dim();
        let (whole_rows, whole_columns) = (rows / V::LANES * V::LANES, columns / V::LANES * V::LANES);
        for row in (0..whole_rows).step_by(V::LANES) {
            let mut slices: [&mut [A]; PADDING] = Default::default();
            let mut of_rows = cells.slice_mut(s![row..row + V::LANES, ..]);
            for (slice, of_row) in slices.iter_mut().zip(of_rows.rows_mut()) {
                *slice = of_row.into_slice().unwrap_or_default();
            }
            for column in (0..whole_columns).step_by(V::LANES) {
                let mut square = [V::splat(A::ZERO); PADDING];
                for (i, of_key) in square[..V::LANES].iter_mut().enumerate() {
                    *of_key = V::load(&grid[(column + i) * QUERY_BLOCK + row..]);
                }
                V::transpose(&mut square);
                for (slice, &of_query) in slices[..V::LANES].iter_mut().zip(&square) {
                    let cells = &mut slice[column..][..V::LANES];
                    let before = if are_new { V::splat(A::ZERO) } else { V::load(cells) };
                    added(before, of_query).store(cells);
                }
            }
        }
        for row in 0..rows {
            for column in if row < whole_rows { whole_columns } else { 0 }..columns {
                let cell = &mut cells[[row, column]];
                *cell = added(*cell, grid[column * QUERY_BLOCK + row]);
            }
        }
    }
}
