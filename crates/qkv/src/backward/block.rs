//! A block of queries against one tile of keys: its weights, what flows back through them, and the sums to which that adds.
//!
//! Weights and their gradients are made with queries in the lanes, as scores are. Each result is then the same kind of
//! sum, with columns in the lanes: of rows (keys, queries or `d_output`), each times a number of the tile.

use std::ops::Range;

use smallvec::SmallVec;

use crate::dropout::LeaveOut;
use crate::element::Real;
use crate::forward::{
    Arrays, Block, CHAINS, FEWER, Matrices, Part, PrefillScratch, Products, Role, all_finite, by_panels,
    rows_of_tile, weight,
};
use crate::problem::{Stage, Terms};
use crate::simd::math::tanh;
use crate::simd::{self, Ahead, Kernel, PADDING, Register, Simd, Vector, Vectors, accumulate, by_chains};
use crate::tile::{Grid, QUERY_BLOCK, Sort, TILE, Tile, cut};

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
    pub(super) biases: SmallVec<[BiasTarget<'j, A>; 1]>,
}

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

impl<A> Default for Targets<'_, A> {
    fn default() -> Self {
        Self { query: None, key: None, value: None, biases: SmallVec::new() }
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
    /// As they are mixed: without those that are dropped.
    weights: Vec<A>,
    /// The gradients of masked scores.
    masked: Vec<A>,
    /// The gradients of `q · k`.
    products: Vec<A>,
    /// Which pairs may be attended, and which of these are mixed, where 0 does not say enough.
    visible: Vec<bool>,
    mixed: Vec<bool>,
    /// Of one panel, `(TILE, lanes)`: the gradients of weights, the slope of the softcap, and what dropout makes of a weight of 1.
    d_weights: Vec<A>,
    slopes: Vec<A>,
    factors: Vec<A>,
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
                mixed: vec![false; pairs],
                d_weights: zeros(pairs),
                slopes: zeros(pairs),
                factors: zeros(pairs),
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
        by_panels!(self.job.queries.len(), V, self);
    }
}

impl<A: Real> Work<'_, '_, A> {
    #[inline(always)]
    fn by_panels<P: Vector<Lane = A>>(mut self) {
        let (terms, heads) = (self.inputs.terms, self.job.heads.clone());
        for &batch in self.job.batches {
            for head in heads.clone() {
                for (_, queries) in cut(self.job.queries.clone(), 0, QUERY_BLOCK) {
                    let arrays = self.inputs.arrays;
                    self.add_block::<P>(&Block { terms, arrays, batch, head, queries });
                }
            }
        }
    }

    /// Adds what a block gives over all keys of the job.
    #[inline(always)]
    fn add_block<P: Vector<Lane = A>>(&mut self, block: &Block<'_, A>) {
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
            Some(_) => of_block(inputs.arrays.of(Role::Query)).vectors(terms, &mut packed.query, terms.dim),
            None => &[],
        };
        let d_output = match job.to.value {
            Some(_) => of_block(inputs.d_output).vectors(terms, &mut packed.d_output, terms.dim_value),
            None => &[],
        };
        let block_is_finite = all_finite(query) && all_finite(d_output);

        for (sort, tile) in tiles {
            let of_key =
                |role| Rows { matrices: inputs.arrays.of(role), at: block.of_key(), rows: tile.keys.clone() };
            let key = of_key(Role::Key).vectors(terms, &mut packed.key, terms.dim);
            let of_value = inputs.arrays.of(Role::Value);
            let place = (block.of_key(), tile.keys.clone());
            let value = rows_of_tile(of_value, terms.simd, place, &mut packed.value, terms.dim_value);
            // NaN and ∞ times 0 would be NaN, so where there are such numbers masked pairs are left out.
            let some_are_out = sort == Sort::Mixed || terms.dropout.is_some();
            let select = some_are_out && !(block_is_finite && all_finite(key));
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
            let of_keys =
                |numbers, visible| Numbers { numbers, visible, chain: QUERY_BLOCK, step: 1, steps: rows };
            let from = tile.keys.start - job.keys.start;
            if let Some(to) = &mut job.to.value {
                let (numbers, dim) =
                    (of_keys(&grids.weights, select.then_some(&grids.mixed[..])), terms.dim_value);
                let to = &mut to[from * dim..][..keys * dim];
                terms.simd.run(Sums { numbers, rows: d_output, to, dim });
            }
            if let Some(to) = &mut job.to.key {
                let (numbers, dim) = (of_keys(&grids.products, visible), terms.dim);
                let to = &mut to[from * dim..][..keys * dim];
                terms.simd.run(Sums { numbers, rows: query, to, dim });
            }
            if let Some(to) = &mut job.to.query {
                let dim = terms.dim;
                let numbers = &grids.products[..];
                let numbers = Numbers { numbers, visible, chain: 1, step: QUERY_BLOCK, steps: keys };
                let before = (block.head - job.heads.start) * job.queries.len();
                let from = before + block.queries.start - job.queries.start;
                let to = &mut to[from * dim..][..rows * dim];
                terms.simd.run(Sums { numbers, rows: key, to, dim });
            }
            for to in &mut job.to.biases {
                to.add(terms.simd, &grids.masked, block.head - job.heads.start, &tile);
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
    fn vectors(self, terms: &Terms<'_>, packed: &'r mut [A], dim: usize) -> &'r [A] {
        let Self { matrices, at, rows } = self;
        if dim.is_multiple_of(PADDING)
            && let Some(rows) = matrices.in_place(at, rows.clone(), dim)
        {
            return rows;
        }
        let count = rows.len() * dim;
        matrices.rows(terms.simd, at, rows, &mut packed[..count], dim);
        &packed[..count + PADDING]
    }
}

/// What some queries of a tile may see of it.
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
            self.visible[cells.clone()].fill(false);
            self.mixed[cells].fill(false);
        }
        if seen.is_empty() {
            return;
        }
        let (key, count) = (&key[seen.start * terms.dim..seen.end * terms.dim], seen.len());
        if let Some(cap) = terms.softcap {
            scores.score_apart(terms, part, key, Stage::Scaled, P::LANES);
            let inverse = P::splat(A::from_f64(1.0 / cap));
            let cells = scores.scores.chunks_exact(P::LANES).zip(self.slopes.chunks_exact_mut(P::LANES));
            for (scaled, slope) in cells.take(count) {
                let t = tanh(P::load(scaled).mul(inverse));
                P::splat(A::ZERO).sub(t).mul_add(t, P::splat(A::ONE)).store(slope);
            }
        }
        scores.score_apart(terms, part, key, Stage::Masked, P::LANES);
        let dim = terms.dim_value;
        terms.simd.run(Products {
            query: panel.d_output,
            key: &panel.value[seen.start * dim..seen.end * dim],
            dim,
            terms,
            stage: Stage::Raw,
            lanes: P::LANES,
            to: &mut self.d_weights[..count * P::LANES],
        });
        if let Some(dropout) = &terms.dropout {
            let cells = ..count * P::LANES;
            self.factors[cells].fill(A::from_f64(dropout.factor));
            terms.simd.run(LeaveOut {
                dropout,
                visibility: &terms.visibility,
                tile: &part.tile,
                weights: Grid { cells: &mut self.factors[cells], row_step: 1, key_step: P::LANES },
                scores: &mut [],
            });
        }
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
                let mixed = &mut self.mixed[(seen.start + at) * QUERY_BLOCK + part.first..];
                mixed[..P::LANES].copy_from_slice(&cells[..P::LANES]);
                if terms.dropout.is_some() {
                    for (mixed, &factor) in mixed.iter_mut().zip(&self.factors[at * P::LANES..][..P::LANES]) {
                        *mixed &= factor != A::ZERO;
                    }
                }
            }
        }
    }

    /// From the scores and the gradients of weights to all that is known of some keys; the first of them in the part and in the tile.
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
        let d_weights = <[P; KEYS]>::load(&self.d_weights[of_part * P::LANES..]);
        let weights = weight(scores, [max; KEYS], [sum; KEYS]);
        for key in 0..KEYS {
            let at = (of_tile + key) * QUERY_BLOCK + panel.part.first;
            let (mut mixed, mut d_weight) = (weights[key], d_weights[key]);
            if panel.terms.dropout.is_some() {
                let factor = P::load(&self.factors[(of_part + key) * P::LANES..]);
                mixed = factor.if_equal(zero, zero, mixed.mul(factor));
                d_weight = factor.if_equal(zero, zero, d_weight.mul(factor));
            }
            let masked = weights[key].mul(d_weight.sub(delta));
            // Whatever the value of a masked pair is.
            let masked = scores[key].if_equal(none, zero, masked);
            let mut product = masked;
            if panel.terms.softcap.is_some() {
                product = product.mul(P::load(&self.slopes[(of_part + key) * P::LANES..]));
                product = scores[key].if_equal(none, zero, product);
            }
            mixed.store(&mut self.weights[at..]);
            masked.store(&mut self.masked[at..]);
            product.mul(scale).store(&mut self.products[at..]);
        }
    }
}

/// Numbers of a tile, of each result one for each step.
#[derive(Clone, Copy)]
struct Numbers<'n, A> {
    numbers: &'n [A],
    /// If some pairs are to be left out, which are not.
    visible: Option<&'n [bool]>,
    /// How far apart those of two results are, and of two steps.
    chain: usize,
    step: usize,
    steps: usize,
}

/// Chains over a tile: rows, `(steps, dim)`, each times its number for the result; they are added to `(results, dim)`.
struct Sums<'s, A> {
    numbers: Numbers<'s, A>,
    rows: &'s [A],
    to: &'s mut [A],
    dim: usize,
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
        if self.numbers.visible.is_some() {
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
        let Numbers { numbers, visible, chain, step, steps } = self.numbers;
        let (first, dim) = (at * chain, self.dim);
        match visible {
            Some(visible) if SELECT => {
                for i in (0..steps).filter(|i| visible[first + i * step]) {
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
    fn add(&mut self, simd: Simd, grid: &[A], head: usize, tile: &Tile) {
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
