//! A block of queries against one tile of keys: its weights, what flows back through them, and the sums to which that adds.
//!
//! Weights and their gradients are made with queries in the lanes, as scores are. Each result is then the same kind of
//! sum, with columns in the lanes: of rows (keys, queries or `d_output`), each times a number of the tile.

use std::ops::Range;

use smallvec::SmallVec;

use super::sums::{BiasTarget, Sums, TileNumbers};
use crate::dropout::LeaveOut;
use crate::element::Real;
use crate::forward::{
    Arrays, Block, Matrices, Part, PrefillScratch, Products, Role, all_finite, panel_lanes, rows_of_tile,
    weight,
};
use crate::problem::{Stage, Terms};
use crate::simd::math::tanh;
use crate::simd::{Ahead, Kernel, PADDING, Register, Vector};
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

/// Some pairs of one head, and where what they add goes: in the order of blocks of queries and tiles of keys.
pub(super) struct Job<'j, A> {
    pub(super) at: (usize, usize),
    pub(super) queries: Range<usize>,
    pub(super) keys: Range<usize>,
    pub(super) to: Targets<'j, A>,
}

/// Of each gradient that is wanted the part that a job adds to.
pub(super) struct Targets<'j, A> {
    /// `(queries, dim)`
    pub(super) query: Option<&'j mut [A]>,
    /// `(keys, dim)`
    pub(super) key: Option<&'j mut [A]>,
    /// `(keys, dim_value)`
    pub(super) value: Option<&'j mut [A]>,
    pub(super) biases: SmallVec<[BiasTarget<'j, A>; 1]>,
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
    /// After dropout.
    kept_weights: Vec<A>,
    /// The gradients of masked scores.
    d_scores: Vec<A>,
    /// The gradients of `q · k`.
    d_products: Vec<A>,
    /// Whether 0 does not say enough: which pairs may be attended, and which of these dropout keeps.
    select: bool,
    visible: Vec<bool>,
    kept: Vec<bool>,
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
                kept_weights: zeros(pairs),
                d_scores: zeros(pairs),
                d_products: zeros(pairs),
                select: false,
                visible: vec![false; pairs],
                kept: vec![false; pairs],
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

impl<A: Real> Work<'_, '_, A> {
    /// Goes through all pairs of the job.
    pub(super) fn run(mut self) {
        let Inputs { terms, arrays, .. } = self.inputs;
        let lanes = panel_lanes::<A>(terms.simd, self.job.queries.len());
        let (batch, head) = self.job.at;
        for (_, queries) in cut(self.job.queries.clone(), 0, QUERY_BLOCK) {
            self.add_block(&Block { terms, arrays, batch, head, queries }, lanes);
        }
    }

    /// Adds what a block gives over all keys of the job.
    fn add_block(&mut self, block: &Block<'_, A>, lanes: usize) {
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
        scores.load_queries(block, lanes);
        for first in (0..rows).step_by(lanes) {
            let queries = block.queries_of(&(first..rows.min(first + lanes)));
            let to = &mut d_output_lanes[first * terms.dim_value..][..lanes * terms.dim_value];
            inputs.d_output.columns(terms.simd, at, queries, (to, lanes), Ahead::NOTHING);
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
            let (of_value, place) = (inputs.arrays.of(Role::Value), (block.of_key(), tile.keys.clone()));
            let value = rows_of_tile(of_value, terms.simd, place, &mut packed.value, terms.dim_value);
            // NaN and ∞ times 0 would be NaN, so where there are such numbers pairs that are out are left out.
            let some_are_out = sort == Sort::Mixed || terms.dropout.is_some();
            grids.select = some_are_out && !(block_is_finite && all_finite(key));
            for first in (0..rows).step_by(lanes) {
                let queries = block.queries_of(&(first..rows.min(first + lanes)));
                let part = part_of(terms, &tile, sort, queries, first);
                let d_output = &d_output_lanes[first * terms.dim_value..];
                let stats = stats.each_ref().map(|stats| &stats[first..]);
                grids.fill(scores, &Panel { terms, part, tile: &tile, lanes, key, value, d_output, stats });
            }
            grids.add_to(job, block, &tile, Summed { query, key, d_output });
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
struct Panel<'p, A> {
    terms: &'p Terms<'p>,
    /// What these queries may see of the tile.
    part: Part,
    tile: &'p Tile,
    lanes: usize,
    /// The tile's, `(keys, dim)` and `(keys, dim_value)`.
    key: &'p [A],
    value: &'p [A],
    /// `(dim_value, lanes)`
    d_output: &'p [A],
    /// Maximum, sum and delta of each query.
    stats: [&'p [A]; 3],
}

/// Rows that are summed up, to be read by whole vectors: of a block queries and `d_output`, of a tile keys.
struct Summed<'r, A> {
    query: &'r [A],
    key: &'r [A],
    d_output: &'r [A],
}

impl<A: Real> Grids<A> {
    /// Fills the columns of a panel.
    fn fill(&mut self, scores: &mut PrefillScratch<A>, panel: &Panel<'_, A>) {
        let Panel { terms, part, tile, lanes, .. } = panel;
        let seen = match part.sort {
            Sort::Empty => 0..0,
            _ => part.tile.keys.start - tile.keys.start..part.tile.keys.end - tile.keys.start,
        };
        for key in (0..seen.start).chain(seen.end..tile.keys.len()) {
            let cells = key * QUERY_BLOCK + part.first..key * QUERY_BLOCK + part.first + lanes;
            for numbers in [&mut self.kept_weights, &mut self.d_scores, &mut self.d_products] {
                numbers[cells.clone()].fill(A::ZERO);
            }
            self.visible[cells.clone()].fill(false);
            self.kept[cells].fill(false);
        }
        if seen.is_empty() {
            return;
        }
        let key = &panel.key[seen.start * terms.dim..seen.end * terms.dim];
        let cells = ..seen.len() * lanes;
        if let Some(cap) = terms.softcap {
            scores.score_apart(terms, part, key, Stage::Scaled, *lanes);
            terms.simd.run(Slopes { cap, scaled: &scores.scores[cells], to: &mut self.slopes[cells] });
        }
        scores.score_apart(terms, part, key, Stage::Masked, *lanes);
        terms.simd.run(Products {
            query: panel.d_output,
            key: &panel.value[seen.start * terms.dim_value..seen.end * terms.dim_value],
            dim: terms.dim_value,
            terms,
            stage: Stage::Raw,
            lanes: *lanes,
            to: &mut self.d_weights[cells],
        });
        if let Some(dropout) = &terms.dropout {
            self.factors[cells].fill(A::from_f64(dropout.factor));
            terms.simd.run(LeaveOut {
                dropout,
                visibility: &terms.visibility,
                tile: &part.tile,
                weights: Grid { cells: &mut self.factors[cells], row_step: 1, key_step: *lanes },
                scores: &mut [],
            });
        }
        let scores = &scores.scores[cells];
        if self.select {
            for (at, &s) in scores.iter().enumerate() {
                let cell = (seen.start + at / lanes) * QUERY_BLOCK + part.first + at % lanes;
                self.visible[cell] = s != A::NEG_INFINITY;
                self.kept[cell] =
                    self.visible[cell] && (terms.dropout.is_none() || self.factors[at] != A::ZERO);
            }
        }
        let first_cell = seen.start * QUERY_BLOCK + part.first;
        terms.simd.run(Flow { terms, lanes: *lanes, scores, stats: panel.stats, first_cell, grids: self });
    }

    /// Adds a tile to all that its job has to fill.
    fn add_to(&self, job: &mut Job<'_, A>, block: &Block<'_, A>, tile: &Tile, rows: Summed<'_, A>) {
        let terms = block.terms;
        let (dim, dim_value, keys, queries) =
            (terms.dim, terms.dim_value, tile.keys.len(), block.queries.len());
        let of_keys =
            |numbers, within| TileNumbers { numbers, within, chain: QUERY_BLOCK, step: 1, steps: queries };
        let visible = self.select.then_some(&self.visible[..]);
        let from = tile.keys.start - job.keys.start;
        if let Some(to) = &mut job.to.value {
            let numbers = of_keys(&self.kept_weights[..], self.select.then_some(&self.kept[..]));
            let to = &mut to[from * dim_value..][..keys * dim_value];
            terms.simd.run(Sums { numbers, rows: rows.d_output, to, dim: dim_value });
        }
        if let Some(to) = &mut job.to.key {
            let numbers = of_keys(&self.d_products[..], visible);
            let to = &mut to[from * dim..][..keys * dim];
            terms.simd.run(Sums { numbers, rows: rows.query, to, dim });
        }
        if let Some(to) = &mut job.to.query {
            let numbers = TileNumbers {
                numbers: &self.d_products,
                within: visible,
                chain: 1,
                step: QUERY_BLOCK,
                steps: keys,
            };
            let from = block.queries.start - job.queries.start;
            let to = &mut to[from * dim..][..queries * dim];
            terms.simd.run(Sums { numbers, rows: rows.key, to, dim });
        }
        for to in &mut job.to.biases {
            to.add(terms.simd, &self.d_scores, tile, (tile.rows.start - job.queries.start, from));
        }
    }
}

/// `1 - tanh²` of scaled scores: the slope of the softcap.
struct Slopes<'s, A> {
    cap: f64,
    scaled: &'s [A],
    to: &'s mut [A],
}

impl<A: Real> Kernel<A> for Slopes<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Register<Lane = A>>(self) {
        let (inverse, zero, one) =
            (V::splat(A::from_f64(1.0 / self.cap)), V::splat(A::ZERO), V::splat(A::ONE));
        for (scaled, slope) in self.scaled.chunks_exact(V::LANES).zip(self.to.chunks_exact_mut(V::LANES)) {
            let t = tanh(V::load(scaled).mul(inverse));
            zero.sub(t).mul_add(t, one).store(slope);
        }
    }
}

/// From the scores of a panel and the gradients of its weights to all else that is known of its pairs.
struct Flow<'f, A> {
    terms: &'f Terms<'f>,
    lanes: usize,
    /// `(keys, lanes)`
    scores: &'f [A],
    stats: [&'f [A]; 3],
    /// Of the first pair in the grids.
    first_cell: usize,
    grids: &'f mut Grids<A>,
}

impl<A: Real> Kernel<A> for Flow<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Register<Lane = A>>(mut self) {
        /// Keys whose exponentials overlap.
        const KEYS: usize = 4;
        let keys = self.scores.len() / self.lanes;
        for lane in (0..self.lanes).step_by(V::LANES) {
            for key in (0..keys / KEYS * KEYS).step_by(KEYS) {
                self.keys::<V, KEYS>(key, lane);
            }
            for key in keys / KEYS * KEYS..keys {
                self.keys::<V, 1>(key, lane);
            }
        }
    }
}

impl<A: Real> Flow<'_, A> {
    #[inline(always)]
    fn keys<V: Vector<Lane = A>, const KEYS: usize>(&mut self, first: usize, lane: usize) {
        let Self { terms, lanes, scores, stats: [max, sum, delta], first_cell, grids } = self;
        let [max, sum, delta] = [V::load(&max[lane..]), V::load(&sum[lane..]), V::load(&delta[lane..])];
        let (none, zero) = (V::splat(A::NEG_INFINITY), V::splat(A::ZERO));
        let scale = V::splat(A::from_f64(terms.scale));
        let mut of_keys = [none; KEYS];
        for (key, s) in of_keys.iter_mut().enumerate() {
            *s = V::load(&scores[(first + key) * *lanes + lane..]);
        }
        let weights = weight(of_keys, [max; KEYS], [sum; KEYS]);
        for key in 0..KEYS {
            let of_panel = (first + key) * *lanes + lane;
            let cell = *first_cell + (first + key) * QUERY_BLOCK + lane;
            let (mut kept_weight, mut d_weight) = (weights[key], V::load(&grids.d_weights[of_panel..]));
            if terms.dropout.is_some() {
                let factor = V::load(&grids.factors[of_panel..]);
                kept_weight = factor.if_equal(zero, zero, kept_weight.mul(factor));
                d_weight = factor.if_equal(zero, zero, d_weight.mul(factor));
            }
            let d_score = weights[key].mul(d_weight.sub(delta));
            // Whatever the value of a masked pair is.
            let d_score = of_keys[key].if_equal(none, zero, d_score);
            let mut d_product = d_score;
            if terms.softcap.is_some() {
                d_product = d_product.mul(V::load(&grids.slopes[of_panel..]));
                d_product = of_keys[key].if_equal(none, zero, d_product);
            }
            kept_weight.store(&mut grids.kept_weights[cell..]);
            d_score.store(&mut grids.d_scores[cell..]);
            d_product.mul(scale).store(&mut grids.d_products[cell..]);
        }
    }
}
