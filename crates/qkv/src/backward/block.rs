//! A block of queries against one tile of keys: its weights, what flows back through them, and the sums to which that adds.
//!
//! Weights and their gradients are made with queries in the lanes, as scores are. Each result is then the same kind of
//! sum, with columns in the lanes: of rows (keys, queries or `d_output`), each times a number of the tile.

use std::ops::Range;

use crate::element::Real;
use crate::forward::{
    Arrays, Block, CHAINS, FEWER, Matrices, Part, PrefillScratch, Role, all_finite, by_panels, rows_of_tile,
    weight,
};
use crate::problem::{Stage, Terms};
use crate::simd::math::tanh;
use crate::simd::{Ahead, Kernel, Numbers, PADDING, Register, Vector, Vectors, accumulate, by_chains};
use crate::tile::{QUERY_BLOCK, Sort, TILE, Tile, cut};

/// What is read, whatever its type.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'i, A> {
    pub(super) terms: &'i Terms<'i>,
    pub(super) arrays: &'i dyn Arrays<A>,
    pub(super) output: &'i dyn Matrices<A>,
    pub(super) d_output: &'i dyn Matrices<A>,
    /// Maximum and sum of each row of all batches and heads.
    pub(super) stats: [&'i [A]; 2],
}

/// Some pairs, and where what they add goes: in the order of batches, heads, blocks of queries and tiles of keys.
pub(super) struct Job<'j, A> {
    pub(super) batches: &'j [usize],
    pub(super) heads: Range<usize>,
    pub(super) queries: Range<usize>,
    pub(super) keys: Range<usize>,
    pub(super) to: Targets<'j, A>,
}

/// Of each gradient that is wanted the part that a job adds to. All batches of the job share it.
pub(super) struct Targets<'j, A> {
    /// `(heads, queries, dim)`
    pub(super) query: Option<&'j mut [A]>,
    /// `(keys, dim)`, shared by the heads.
    pub(super) key: Option<&'j mut [A]>,
    /// `(keys, dim_value)`, shared by the heads.
    pub(super) value: Option<&'j mut [A]>,
    pub(super) bias: Option<BiasTarget<'j, A>>,
}

/// `(queries or 1, keys or 1)`, shared by the heads.
pub(super) struct BiasTarget<'j, A> {
    pub(super) cells: &'j mut [A],
    pub(super) serves_all_queries: bool,
    pub(super) serves_all_keys: bool,
}

impl<A> Default for Targets<'_, A> {
    fn default() -> Self {
        Self { query: None, key: None, value: None, bias: None }
    }
}

/// A thread's buffers.
pub(super) struct Scratch<A> {
    /// The block's queries, transposed, and the scores of one panel.
    scores: PrefillScratch<A>,
    /// The block's `d_output`, panel after panel, each `(dim_value, lanes)`.
    d_output_lanes: Vec<A>,
    packed: Packed<A>,
    grids: Grids<A>,
}

/// Rows that do not lie in memory as they are needed.
struct Packed<A> {
    query: Vec<A>,
    d_output: Vec<A>,
    key: Vec<A>,
    value: Vec<A>,
}

/// What is known of each pair of a tile: `(TILE, QUERY_BLOCK)`, 0 where masked.
struct Grids<A> {
    weights: Vec<A>,
    /// The gradients of masked scores.
    masked: Vec<A>,
    /// The gradients of `q · k`.
    products: Vec<A>,
    /// Which pairs may be attended, where 0 does not say enough.
    visible: Vec<bool>,
    /// The slope of the softcap; of one panel.
    slopes: Vec<A>,
}

impl<A: Real> Scratch<A> {
    pub(super) fn new(terms: &Terms<'_>) -> Self {
        let (dim, dim_value) = (terms.dim, terms.dim_value);
        let zeros = |count: usize| vec![A::ZERO; count];
        // The last vector of a row may reach beyond its end.
        let rows = |count: usize, dim: usize| zeros(count * dim + PADDING);
        let pairs = TILE * QUERY_BLOCK;
        Self {
            scores: PrefillScratch::new(dim, 0),
            d_output_lanes: zeros(dim_value * QUERY_BLOCK),
            packed: Packed {
                query: rows(QUERY_BLOCK, dim),
                d_output: rows(QUERY_BLOCK, dim_value),
                key: rows(TILE, dim),
                value: zeros(TILE * dim_value),
            },
            grids: Grids {
                weights: zeros(pairs),
                masked: zeros(pairs),
                products: zeros(pairs),
                visible: vec![false; pairs],
                slopes: zeros(pairs),
            },
        }
    }
}

/// A job with what it reads.
pub(super) struct Work<'w, 'j, A> {
    pub(super) inputs: Inputs<'w, A>,
    /// Of each row of all batches and heads.
    pub(super) deltas: &'w [A],
    pub(super) job: Job<'j, A>,
    pub(super) scratch: &'w mut Scratch<A>,
}

impl<A: Real> Kernel<A> for Work<'_, '_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Register<Lane = A>>(self) {
        by_panels!(self.job.queries.len(), V, self, V);
    }
}

impl<A: Real> Work<'_, '_, A> {
    #[inline(always)]
    fn by_panels<V: Register<Lane = A>, P: Vector<Lane = A>>(mut self) {
        let (terms, heads) = (self.inputs.terms, self.job.heads.clone());
        for &batch in self.job.batches {
            for head in heads.clone() {
                for (_, queries) in cut(self.job.queries.clone(), 0, QUERY_BLOCK) {
                    let arrays = self.inputs.arrays;
                    self.add_block::<V, P>(&Block { terms, arrays, batch, head, queries });
                }
            }
        }
    }

    /// Adds what a block gives over all keys of the job.
    #[inline(always)]
    fn add_block<V: Register<Lane = A>, P: Vector<Lane = A>>(&mut self, block: &Block<'_, A>) {
        let Self { inputs, deltas, job, scratch } = self;
        let (terms, rows, at) = (block.terms, block.queries.len(), (block.batch, block.head));
        let seen = terms.visibility.keys_of_rows(block.batch, &block.queries);
        let seen = seen.start.max(job.keys.start)..seen.end.min(job.keys.end);
        let mut tiles = cut(seen, terms.visibility.key_offset, TILE)
            .map(|(_, keys)| block.tile(block.queries.clone(), keys))
            .map(|tile| (terms.sort(&tile), tile))
            .filter(|&(sort, _)| sort != Sort::Empty)
            .peekable();
        if tiles.peek().is_none() {
            return;
        }
        let Scratch { scores, d_output_lanes, packed, grids } = &mut **scratch;
        scores.load_queries::<P>(block);
        for first in (0..rows).step_by(P::LANES) {
            let queries = block.queries_of(&(first..rows.min(first + P::LANES)));
            let to = &mut d_output_lanes[first * terms.dim_value..][..P::LANES * terms.dim_value];
            inputs.d_output.columns(terms.simd, at, queries, (to, P::LANES), Ahead::NOTHING);
        }
        let start = (block.batch * terms.heads + block.head) * terms.len_query;
        let of_rows = start + block.queries.start..start + block.queries.end;
        let [max, sum] = inputs.stats.map(|stats| padded(&stats[of_rows.clone()]));
        let stats = [max, sum, padded(&deltas[of_rows])];

        let of_block = |matrices| Rows { matrices, at, rows: block.queries.clone() };
        let query = match job.to.key {
            Some(_) => {
                of_block(inputs.arrays.of(Role::Query)).vectors::<V>(terms, &mut packed.query, terms.dim)
            }
            None => &[],
        };
        let d_output = match job.to.value {
            Some(_) => of_block(inputs.d_output).vectors::<V>(terms, &mut packed.d_output, terms.dim_value),
            None => &[],
        };
        let block_is_finite = all_finite(query) && all_finite(d_output);

        for (sort, tile) in tiles {
            let of_key =
                |role| Rows { matrices: inputs.arrays.of(role), at: block.of_key(), rows: tile.keys.clone() };
            let key = of_key(Role::Key).vectors::<V>(terms, &mut packed.key, terms.dim);
            let of_value = inputs.arrays.of(Role::Value);
            let place = (block.of_key(), tile.keys.clone());
            let value = rows_of_tile(of_value, terms.simd, place, &mut packed.value, terms.dim_value);
            // NaN and ∞ times 0 would be NaN, so where there are such numbers masked pairs are left out.
            let select = sort == Sort::Mixed && !(block_is_finite && all_finite(key));
            for first in (0..rows).step_by(P::LANES) {
                let queries = block.queries_of(&(first..rows.min(first + P::LANES)));
                let part = part_of(terms, &tile, sort, queries, first);
                let panel = Panel {
                    terms,
                    part,
                    tile: &tile,
                    key,
                    value,
                    d_output: &d_output_lanes[first * terms.dim_value..],
                    stats: [
                        P::load(&stats[0][first..]),
                        P::load(&stats[1][first..]),
                        P::load(&stats[2][first..]),
                    ],
                };
                grids.fill(scores, &panel, select);
            }
            let keys = tile.keys.len();
            let visible = select.then_some(&grids.visible[..]);
            let of_keys = |numbers| Sums { numbers, visible, chain: QUERY_BLOCK, step: 1, steps: rows };
            let from = tile.keys.start - job.keys.start;
            if let Some(to) = &mut job.to.value {
                let to = &mut to[from * terms.dim_value..][..keys * terms.dim_value];
                of_keys(&grids.weights[..]).add_to::<V>(d_output, to, terms.dim_value);
            }
            if let Some(to) = &mut job.to.key {
                let to = &mut to[from * terms.dim..][..keys * terms.dim];
                of_keys(&grids.products[..]).add_to::<V>(query, to, terms.dim);
            }
            if let Some(to) = &mut job.to.query {
                let before = (block.head - job.heads.start) * job.queries.len();
                let from = before + block.queries.start - job.queries.start;
                let to = &mut to[from * terms.dim..][..rows * terms.dim];
                let numbers = &grids.products[..];
                Sums { numbers, visible, chain: 1, step: QUERY_BLOCK, steps: keys }
                    .add_to::<V>(key, to, terms.dim);
            }
            if let Some(to) = &mut job.to.bias {
                to.add::<V>(&grids.masked, (&job.queries, &job.keys), &tile);
            }
        }
    }
}

/// A number for each row of a block, as many as there are lanes.
fn padded<A: Real>(of_rows: &[A]) -> [A; QUERY_BLOCK] {
    let mut padded = [A::ONE; QUERY_BLOCK];
    padded[..of_rows.len()].copy_from_slice(of_rows);
    padded
}

/// Some rows of a matrix.
struct Rows<'r, A> {
    matrices: &'r dyn Matrices<A>,
    at: (usize, usize),
    rows: Range<usize>,
}

impl<'r, A: Real> Rows<'r, A> {
    /// One after the other, each to be read by whole vectors: where they lie, if no vector reaches beyond the last, or packed.
    #[inline(always)]
    fn vectors<V: Register<Lane = A>>(self, terms: &Terms<'_>, packed: &'r mut [A], dim: usize) -> &'r [A] {
        let Self { matrices, at, rows } = self;
        if dim.is_multiple_of(V::LANES)
            && let Some(rows) = matrices.in_place(at, rows.clone(), dim)
        {
            return rows;
        }
        let count = rows.len() * dim;
        matrices.rows(terms.simd, at, rows, &mut packed[..count], dim);
        &packed[..count + V::LANES]
    }
}

/// What some queries of a tile may see of it.
#[inline(always)]
fn part_of(terms: &Terms<'_>, tile: &Tile, sort: Sort, queries: Range<usize>, first: usize) -> Part {
    let mut part = Part { tile: Tile { rows: queries, ..tile.clone() }, sort, first };
    if sort == Sort::Mixed {
        // Fewer queries may see fewer keys.
        let seen = terms.visibility.keys_of_rows(tile.batch, &part.tile.rows);
        part.tile.keys = seen.start.max(tile.keys.start)..seen.end.min(tile.keys.end);
        part.sort = if part.tile.keys.is_empty() { Sort::Empty } else { terms.sort(&part.tile) };
    }
    part
}

/// The queries of one panel against a tile.
struct Panel<'p, P: Vector> {
    terms: &'p Terms<'p>,
    /// What these queries may see of the tile.
    part: Part,
    tile: &'p Tile,
    /// The tile's, `(keys, dim)` and `(keys, dim_value)`.
    key: &'p [P::Lane],
    value: &'p [P::Lane],
    /// `(dim_value, lanes)`
    d_output: &'p [P::Lane],
    /// Maximum, sum and delta.
    stats: [P; 3],
}

impl<A: Real> Grids<A> {
    /// Fills the columns of a panel.
    #[inline(always)]
    fn fill<P: Vector<Lane = A>>(
        &mut self,
        scores: &mut PrefillScratch<A>,
        panel: &Panel<'_, P>,
        select: bool,
    ) {
        let Panel { terms, part, tile, key, .. } = panel;
        let seen = match part.sort {
            Sort::Empty => 0..0,
            _ => part.tile.keys.start - tile.keys.start..part.tile.keys.end - tile.keys.start,
        };
        for key in (0..seen.start).chain(seen.end..tile.keys.len()) {
            let cells = key * QUERY_BLOCK + part.first..key * QUERY_BLOCK + part.first + P::LANES;
            self.weights[cells.clone()].fill(A::ZERO);
            self.masked[cells.clone()].fill(A::ZERO);
            self.products[cells.clone()].fill(A::ZERO);
            self.visible[cells].fill(false);
        }
        if seen.is_empty() {
            return;
        }
        let (key, count) = (&key[seen.start * terms.dim..seen.end * terms.dim], seen.len());
        if let Some(cap) = terms.softcap {
            scores.score::<P>(terms, part, key, Stage::Scaled);
            let inverse = P::splat(A::from_f64(1.0 / cap));
            let cells = scores.scores.chunks_exact(P::LANES).zip(self.slopes.chunks_exact_mut(P::LANES));
            for (scaled, slope) in cells.take(count) {
                let t = tanh(P::load(scaled).mul(inverse));
                P::splat(A::ZERO).sub(t).mul_add(t, P::splat(A::ONE)).store(slope);
            }
        }
        scores.score::<P>(terms, part, key, Stage::Masked);
        by_chains!(count, [CHAINS, FEWER], (at, KEYS) => {
            d_weights::<P, KEYS>(panel, seen.start + at, &mut self.masked);
        });
        // Keys by twos, so that twice as many exponentials overlap.
        let scores = &scores.scores[..count * P::LANES];
        for at in (0..count - count % 2).step_by(2) {
            self.flow::<P, 2>(panel, scores, (at, seen.start + at));
        }
        if count % 2 == 1 {
            self.flow::<P, 1>(panel, scores, (count - 1, seen.end - 1));
        }
        if select {
            for (at, scores) in scores.chunks_exact(P::LANES).enumerate() {
                let cells = &mut self.visible[(seen.start + at) * QUERY_BLOCK + part.first..];
                for (visible, &s) in cells.iter_mut().zip(scores) {
                    *visible = s != A::NEG_INFINITY;
                }
            }
        }
    }

    /// From scores, and the gradients of weights that stand in `masked`, to all that is known of some keys of the tile;
    /// `of_part` is the first of them among those of the part.
    #[inline(always)]
    fn flow<P: Vector<Lane = A>, const KEYS: usize>(
        &mut self,
        panel: &Panel<'_, P>,
        scores: &[A],
        (of_part, of_tile): (usize, usize),
    ) {
        let [max, sum, delta] = panel.stats;
        let (none, zero) = (P::splat(A::NEG_INFINITY), P::splat(A::ZERO));
        let scale = P::splat(A::from_f64(panel.terms.scale));
        let scores = <[P; KEYS]>::load(&scores[of_part * P::LANES..]);
        let weights = weight(scores, [max; KEYS], [sum; KEYS]);
        for key in 0..KEYS {
            let at = (of_tile + key) * QUERY_BLOCK + panel.part.first;
            let masked = weights[key].mul(P::load(&self.masked[at..]).sub(delta));
            // Whatever the value of a masked pair is.
            let masked = scores[key].if_equal(none, zero, masked);
            let mut product = masked;
            if panel.terms.softcap.is_some() {
                product = product.mul(P::load(&self.slopes[(of_part + key) * P::LANES..]));
                product = scores[key].if_equal(none, zero, product);
            }
            weights[key].store(&mut self.weights[at..]);
            masked.store(&mut self.masked[at..]);
            product.mul(scale).store(&mut self.products[at..]);
        }
    }
}

/// Leaves `d_output · value` of a panel with a few keys of the tile, from `at` on, in a grid.
#[inline(always)]
fn d_weights<P: Vector, const KEYS: usize>(panel: &Panel<'_, P>, at: usize, grid: &mut [P::Lane]) {
    let dim = panel.terms.dim_value;
    let mut sums = [P::splat(P::Lane::ZERO); KEYS];
    let d_output = Vectors { numbers: panel.d_output, stride: P::LANES };
    let values = Numbers { numbers: &panel.value[at * dim..], chain: dim, step: 1 };
    accumulate(&mut sums, dim, d_output, values, Ahead::NOTHING);
    for (key, sum) in sums.into_iter().enumerate() {
        sum.store(&mut grid[(at + key) * QUERY_BLOCK + panel.part.first..]);
    }
}

/// Chains over a tile: each of some rows, times its number for the result's row.
struct Sums<'s, A> {
    numbers: &'s [A],
    /// If some pairs are to be left out, which are not.
    visible: Option<&'s [bool]>,
    /// How far apart in the tile two results' numbers are, and two steps.
    chain: usize,
    step: usize,
    steps: usize,
}

impl<A: Real> Sums<'_, A> {
    /// Adds them to `to`, `(results, dim)`; `rows` are `(steps, dim)`.
    #[inline(always)]
    fn add_to<V: Register<Lane = A>>(&self, rows: &[A], to: &mut [A], dim: usize) {
        let mut column = 0;
        while column < dim {
            let left = dim - column;
            if V::REGISTERS >= 32 && left >= 4 * V::LANES {
                self.add_columns::<[V; 4]>(rows, to, (column, dim));
                column += 4 * V::LANES;
            } else if left >= 2 * V::LANES {
                self.add_columns::<[V; 2]>(rows, to, (column, dim));
                column += 2 * V::LANES;
            } else {
                self.add_columns::<V>(rows, to, (column, dim));
                column += V::LANES;
            }
        }
    }

    #[inline(always)]
    fn add_columns<V: Vector<Lane = A>>(&self, rows: &[A], to: &mut [A], place: (usize, usize)) {
        let results = to.len() / place.1;
        if self.visible.is_some() {
            for at in 0..results {
                self.add_chains::<V, 1, true>(rows, to, (at, place));
            }
            return;
        }
        by_chains!(results, [CHAINS, FEWER], (at, RESULTS) => {
            self.add_chains::<V, RESULTS, false>(rows, to, (at, place));
        });
    }

    /// A few results, from `at` on, in a vector of columns.
    #[inline(always)]
    fn add_chains<V: Vector<Lane = A>, const RESULTS: usize, const SELECT: bool>(
        &self,
        rows: &[A],
        to: &mut [A],
        (at, (column, dim)): (usize, (usize, usize)),
    ) {
        let mut sums = [V::splat(A::ZERO); RESULTS];
        let Self { numbers, visible, chain, step, steps } = *self;
        let first = at * chain;
        match visible {
            Some(visible) if SELECT => {
                for i in (0..steps).filter(|i| visible[first + i * step]) {
                    let row = V::load(&rows[i * dim + column..]);
                    sums[0] = row.mul_add(V::splat(numbers[first + i * step]), sums[0]);
                }
            }
            _ => {
                let rows = Vectors { numbers: &rows[column..], stride: dim };
                let numbers = Numbers { numbers: &numbers[first..], chain, step };
                accumulate(&mut sums, steps, rows, numbers, Ahead::NOTHING);
            }
        }
        for (result, sum) in sums.into_iter().enumerate() {
            let to = &mut to[(at + result) * dim..][column..dim];
            if to.len() >= V::LANES {
                V::load(to).add(sum).store(to);
            } else {
                let mut lanes = [A::ZERO; 4 * PADDING];
                sum.store(&mut lanes);
                for (to, lane) in to.iter_mut().zip(lanes) {
                    *to = *to + lane;
                }
            }
        }
    }
}

impl<A: Real> BiasTarget<'_, A> {
    /// Adds a tile, `(keys, QUERY_BLOCK)`, of a job of these queries and keys.
    #[inline(always)]
    fn add<V: Register<Lane = A>>(
        &mut self,
        grid: &[A],
        (queries, keys): (&Range<usize>, &Range<usize>),
        tile: &Tile,
    ) {
        let (rows, columns) = (tile.rows.len(), tile.keys.len());
        let of_row =
            |row: usize| (0..columns).fold(A::ZERO, |sum, column| sum + grid[column * QUERY_BLOCK + row]);
        let (from_query, from_key) = (tile.rows.start - queries.start, tile.keys.start - keys.start);
        match (self.serves_all_queries, self.serves_all_keys) {
            (true, true) => {
                self.cells[0] = self.cells[0] + (0..rows).fold(A::ZERO, |sum, row| sum + of_row(row));
            }
            (true, false) => {
                for (cell, of_key) in
                    self.cells[from_key..].iter_mut().zip(grid.chunks(QUERY_BLOCK).take(columns))
                {
                    *cell = *cell + of_key[..rows].iter().fold(A::ZERO, |sum, &e| sum + e);
                }
            }
            (false, true) => {
                for (row, cell) in self.cells[from_query..][..rows].iter_mut().enumerate() {
                    *cell = *cell + of_row(row);
                }
            }
            (false, false) => {
                let width = keys.len();
                add_transposed::<V>(
                    grid,
                    (rows, columns),
                    &mut self.cells[from_query * width + from_key..],
                    width,
                );
            }
        }
    }
}

/// Adds a tile, `(keys, QUERY_BLOCK)`, to cells whose rows are queries, `width` apart.
#[inline(always)]
fn add_transposed<V: Register>(
    grid: &[V::Lane],
    (rows, columns): (usize, usize),
    cells: &mut [V::Lane],
    width: usize,
) {
    let whole = (rows / V::LANES * V::LANES, columns / V::LANES * V::LANES);
    for row in (0..whole.0).step_by(V::LANES) {
        for column in (0..whole.1).step_by(V::LANES) {
            let mut square = [V::splat(V::Lane::ZERO); PADDING];
            for (i, of_key) in square[..V::LANES].iter_mut().enumerate() {
                *of_key = V::load(&grid[(column + i) * QUERY_BLOCK + row..]);
            }
            V::transpose(&mut square);
            for (i, &of_query) in square[..V::LANES].iter().enumerate() {
                let cells = &mut cells[(row + i) * width + column..][..V::LANES];
                V::load(cells).add(of_query).store(cells);
            }
        }
    }
    let edge = (0..rows).flat_map(|row| {
        let from = if row < whole.0 { whole.1 } else { 0 };
        (from..columns).map(move |column| (row, column))
    });
    for (row, column) in edge {
        let cell = &mut cells[row * width + column];
        *cell = *cell + grid[column * QUERY_BLOCK + row];
    }
}

/// `Σ d_output · output` of some queries of one head.
pub(super) struct Deltas<'d, A> {
    pub(super) inputs: Inputs<'d, A>,
    pub(super) at: (usize, usize),
    pub(super) queries: Range<usize>,
    pub(super) to: &'d mut [A],
    /// Of `output` and `d_output`, each `(dim_value, lanes)`.
    pub(super) lanes: &'d mut [Vec<A>; 2],
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
