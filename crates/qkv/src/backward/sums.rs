//! What a tile adds to the results: chains of rows, each times a number of the tile, with columns in the lanes; and to a bias
//! the tile itself.

use crate::element::Real;
use crate::forward::{CHAINS, FEWER};
use crate::simd::{self, Ahead, Kernel, PADDING, Register, Simd, Vector, Vectors, accumulate, by_chains};
use crate::tile::{QUERY_BLOCK, Tile};

/// Some heads, rows and columns of a bias, whose axes of 1 serve all.
pub(super) struct BiasTarget<'j, A> {
    pub(super) cells: &'j mut [A],
    /// How far apart two heads are; 0 where one serves all.
    pub(super) of_head: usize,
    /// The query and key that the cells begin with.
    pub(super) first: (usize, usize),
    /// Rows and columns of the whole matrix.
    pub(super) dim: (usize, usize),
}

/// Numbers of a tile, of each result one for each step.
#[derive(Clone, Copy)]
pub(super) struct Numbers<'n, A> {
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
    pub(super) numbers: Numbers<'s, A>,
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
        let Numbers { numbers, within, chain, step, steps } = self.numbers;
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
                let numbers = simd::Numbers { numbers: &numbers[first..], chain, step };
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
    pub(super) fn reborrow(&mut self) -> BiasTarget<'_, A> {
        BiasTarget { cells: self.cells, ..*self }
    }

    /// Adds a tile, `(keys, QUERY_BLOCK)`, of one of the heads.
    pub(super) fn add(&mut self, simd: Simd, grid: &[A], head: usize, tile: &Tile) {
        let (rows, columns) = (tile.rows.len(), tile.keys.len());
        let (from_query, from_key) = (tile.rows.start - self.first.0, tile.keys.start - self.first.1);
        let cells = &mut self.cells[head * self.of_head..];
        let of_row =
            |row: usize| (0..columns).fold(A::ZERO, |sum, column| sum + grid[column * QUERY_BLOCK + row]);
        match self.dim {
            (1, 1) => cells[0] = added(cells[0], (0..rows).fold(A::ZERO, |sum, row| sum + of_row(row))),
            (1, _) => {
                let of_keys = grid.chunks(QUERY_BLOCK).map(|of_key| &of_key[..rows]);
                for (cell, of_key) in cells[from_key..][..columns].iter_mut().zip(of_keys) {
                    *cell = added(*cell, of_key.iter().fold(A::ZERO, |sum, &e| sum + e));
                }
            }
            (_, 1) => {
                for (row, cell) in cells[from_query..][..rows].iter_mut().enumerate() {
                    *cell = added(*cell, of_row(row));
                }
            }
            (_, width) => {
                let cells = &mut cells[from_query * width + from_key..];
                simd.run(AddTransposed { grid, rows, columns, cells, width });
            }
        }
    }
}

/// Adds a tile, `(keys, QUERY_BLOCK)`, to cells whose rows are queries, `width` apart.
struct AddTransposed<'a, A> {
    grid: &'a [A],
    rows: usize,
    columns: usize,
    cells: &'a mut [A],
    width: usize,
}

impl<A: Real> Kernel<A> for AddTransposed<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Register<Lane = A>>(self) {
        let Self { grid, rows, columns, cells, width } = self;
        let (whole_rows, whole_columns) = (rows / V::LANES * V::LANES, columns / V::LANES * V::LANES);
        for row in (0..whole_rows).step_by(V::LANES) {
            for column in (0..whole_columns).step_by(V::LANES) {
                let mut square = [V::splat(A::ZERO); PADDING];
                for (i, of_key) in square[..V::LANES].iter_mut().enumerate() {
                    *of_key = V::load(&grid[(column + i) * QUERY_BLOCK + row..]);
                }
                V::transpose(&mut square);
                for (i, &of_query) in square[..V::LANES].iter().enumerate() {
                    let cells = &mut cells[(row + i) * width + column..][..V::LANES];
                    added(V::load(cells), of_query).store(cells);
                }
            }
        }
        for row in 0..rows {
            for column in if row < whole_rows { whole_columns } else { 0 }..columns {
                let cell = &mut cells[row * width + column];
                *cell = added(*cell, grid[column * QUERY_BLOCK + row]);
            }
        }
    }
}
