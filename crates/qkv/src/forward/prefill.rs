//! Queries in the lanes: for many queries.
//!
//! A block of queries is transposed once. Then each number of a key, and of a value, meets a vector of queries, so
//! that maxima and sums need no step across lanes and the weights come out as the second product wants them.

use std::ops::Range;

use super::load::{Arrays, Role, all_finite, rows_of_tile};
use super::rows::Target;
use crate::element::Real;
use crate::problem::{Stage, Terms};
use crate::scores::{self, Epilogue, ScoreScratch};
use crate::simd::math::exp;
use crate::simd::{Kernel, Vector};
use crate::softmax::{Order, States, Tree};
use crate::tile::{CHUNK, Grid, QUERY_BLOCK, Sort, TILE, Tile, cut};

/// Keys, or value columns, whose chains run side by side against [`VECTORS`] vectors of queries.
const BROADCASTS: usize = 6;
const VECTORS: usize = 2;
/// As many of what is left: 64 is ten times 6, and 4.
const FEWER: usize = 4;

/// A thread's buffers, for blocks of up to [`QUERY_BLOCK`] queries.
pub(crate) struct Scratch<A> {
    /// `(dim, width)`: the width is the block's queries, padded to whole vectors.
    query: Vec<A>,
    /// `(TILE, dim)`
    key: Vec<A>,
    /// `(TILE, dim_value)`
    value: Vec<A>,
    /// `(TILE, width)`, as are the weights
    scores: Vec<A>,
    weights: Vec<A>,
    tile_max: Vec<A>,
    factors: Vec<A>,
    steps: ScoreScratch<A>,
    states: States<A>,
    tree: Tree<A>,
}

impl<A: Real> Scratch<A> {
    pub(crate) fn new(dim: usize, dim_value: usize) -> Self {
        let zeros = |count: usize| vec![A::ZERO; count];
        Self {
            query: zeros(dim * QUERY_BLOCK),
            key: zeros(TILE * dim),
            value: zeros(TILE * dim_value),
            scores: zeros(TILE * QUERY_BLOCK),
            weights: zeros(TILE * QUERY_BLOCK),
            tile_max: zeros(QUERY_BLOCK),
            factors: zeros(QUERY_BLOCK),
            steps: ScoreScratch::new(TILE * QUERY_BLOCK),
            states: States::new(Order::RowsInLanes, QUERY_BLOCK, dim_value),
            tree: Tree::new(QUERY_BLOCK),
        }
    }

    pub(crate) fn bytes(dim: usize, dim_value: usize, chunks: usize) -> usize {
        let numbers =
            dim * (QUERY_BLOCK + TILE) + TILE * dim_value + 2 * TILE * QUERY_BLOCK + 4 * QUERY_BLOCK;
        numbers * size_of::<A>()
            + ScoreScratch::<A>::bytes(TILE * QUERY_BLOCK)
            + (1 + Tree::<A>::depth(chunks)) * States::<A>::bytes(QUERY_BLOCK, dim_value)
    }
}

/// A block of queries of one head.
pub(crate) struct Block<'k, A> {
    pub(crate) terms: &'k Terms<'k>,
    pub(crate) arrays: &'k dyn Arrays<A>,
    pub(crate) batch: usize,
    pub(crate) head: usize,
    pub(crate) queries: Range<usize>,
}

/// Attention of a block over all the keys that it may attend.
pub(crate) struct Attend<'k, A> {
    pub(crate) block: Block<'k, A>,
    pub(crate) target: &'k mut dyn Target<A>,
    pub(crate) scratch: &'k mut Scratch<A>,
}

impl<A: Real> Kernel<A> for Attend<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) {
        let Self { block, target, scratch } = self;
        let visibility = &block.terms.visibility;
        let width = scratch.load_queries::<V>(&block);
        let seen = visibility.keys_of_rows(block.batch, &block.queries);
        for (chunk, keys) in cut(seen, visibility.key_offset, CHUNK) {
            let mut any = false;
            for (_, keys) in cut(keys, visibility.key_offset, TILE) {
                let tile = block.tile(keys);
                let sort = block.terms.sort(&tile);
                if sort == Sort::Empty {
                    continue;
                }
                if !any {
                    scratch.states.reset(width);
                    any = true;
                }
                scratch.push_tile::<V>(&block, (&tile, sort), width);
            }
            if any {
                scratch.tree.push::<V>(chunk, &mut scratch.states);
            }
        }
        scratch.tree.fold::<V>(&mut scratch.states, width);
        for row in 0..block.queries.len() {
            target.finish(row, &mut scratch.states, row, block.terms.sink(block.head));
        }
    }
}

/// The block's part of the matrix of scores after a stage or, with maxima and sums, of weights.
pub(crate) struct Matrix<'k, A> {
    pub(crate) block: Block<'k, A>,
    pub(crate) stage: Stage,
    /// Of the block's rows, for [`Stage::Weights`].
    pub(crate) stats: [&'k [A]; 2],
    /// `(rows, len_key)`
    pub(crate) target: &'k mut dyn Target<A>,
    pub(crate) scratch: &'k mut Scratch<A>,
}

impl<A: Real> Kernel<A> for Matrix<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) {
        let Self { block, stage, stats: [max, sum], target, scratch } = self;
        let (terms, rows) = (block.terms, block.queries.len());
        let width = scratch.load_queries::<V>(&block);
        for (_, keys) in cut(0..terms.len_key, terms.visibility.key_offset, TILE) {
            let tile = block.tile(keys);
            let sort = terms.sort(&tile);
            if sort == Sort::Empty && stage >= Stage::Masked {
                scratch.scores[..tile.keys.len() * width].fill(A::NEG_INFINITY);
            } else {
                scratch.score::<V>(&block, (&tile, sort), stage.min(Stage::Masked), width);
            }
            for (key, scores) in tile.keys.zip(scratch.scores.chunks_exact_mut(width)) {
                if stage == Stage::Weights {
                    for ((s, &max), &sum) in scores.iter_mut().zip(max).zip(sum) {
                        *s = if *s == A::NEG_INFINITY { A::ZERO } else { exp(*s - max) / sum };
                    }
                }
                target.set_column(key, &scores[..rows]);
            }
        }
    }
}

impl<A> Block<'_, A> {
    fn tile(&self, keys: Range<usize>) -> Tile {
        Tile { batch: self.batch, head: self.head, rows: self.queries.clone(), keys }
    }

    /// Where keys and values of these queries are.
    fn of_key(&self) -> (usize, usize) {
        (self.batch, self.terms.key_head(self.head))
    }
}

impl<A: Real> Scratch<A> {
    /// Transposes a block of queries; returns its padded width.
    #[inline(always)]
    fn load_queries<V: Vector<Lane = A>>(&mut self, block: &Block<'_, A>) -> usize {
        let width = block.queries.len().next_multiple_of(V::LANES);
        let at = (block.batch, block.head);
        block.arrays.columns(Role::Query, at, block.queries.clone(), &mut self.query, width);
        width
    }

    /// Leaves the scores of a tile after a stage in `scores`.
    #[inline(always)]
    fn score<V>(&mut self, block: &Block<'_, A>, (tile, sort): (&Tile, Sort), stage: Stage, width: usize)
    where
        V: Vector<Lane = A>,
    {
        let (count, dim) = (tile.keys.len(), block.terms.dim);
        let of_key = (Role::Key, block.of_key());
        let key = rows_of_tile(block.arrays, of_key, tile.keys.clone(), &mut self.key, dim);
        let query = &self.query[..dim * width];
        let scores = &mut self.scores[..count * width];
        let epilogue = Epilogue::<V>::new(stage, block.terms);
        let mut at = 0;
        while at + BROADCASTS <= count {
            products::<V, BROADCASTS>((query, width), &key[at * dim..], &mut scores[at * width..], epilogue);
            at += BROADCASTS;
        }
        while at + FEWER <= count {
            products::<V, FEWER>((query, width), &key[at * dim..], &mut scores[at * width..], epilogue);
            at += FEWER;
        }
        for at in at..count {
            products::<V, 1>((query, width), &key[at * dim..], &mut scores[at * width..], epilogue);
        }
        let mut scores = Grid { cells: &mut self.scores[..count * width], row_step: 1, key_step: width };
        scores::take_to::<V>(stage, block.terms, (tile, sort), &mut scores, &mut self.steps);
    }

    /// Takes a tile into the states of the chunk.
    #[inline(always)]
    fn push_tile<V>(&mut self, block: &Block<'_, A>, (tile, sort): (&Tile, Sort), width: usize)
    where
        V: Vector<Lane = A>,
    {
        let (count, columns) = (tile.keys.len(), block.terms.dim_value);
        self.score::<V>(block, (tile, sort), Stage::Masked, width);
        self.weigh::<V>(count, width);
        // Lent for the time of the product.
        let mut packed = std::mem::take(&mut self.value);
        let of_value = (Role::Value, block.of_key());
        let value = rows_of_tile(block.arrays, of_value, tile.keys.clone(), &mut packed, columns);
        // NaN and ∞ times a weight of 0 would be NaN, so where there are such values masked lanes are kept apart.
        if all_finite::<V>(value) {
            self.mix_all::<V, false>(value, columns, width);
        } else {
            self.mix_all::<V, true>(value, columns, width);
        }
        self.value = packed;
    }

    /// From scores to unnormalised weights; maxima and sums move on.
    #[inline(always)]
    fn weigh<V: Vector<Lane = A>>(&mut self, count: usize, width: usize) {
        for lane in (0..width).step_by(V::LANES) {
            let mut max = V::splat(A::NEG_INFINITY);
            for key in 0..count {
                let s = V::load(&self.scores[key * width + lane..]);
                // NaN is never greater, so it is ignored here and shows up in the sum.
                max = max.if_less(s, s, max);
            }
            max.store(&mut self.tile_max[lane..]);
        }
        self.states.raise::<V>(&mut self.tile_max, &mut self.factors);
        for lane in (0..width).step_by(V::LANES) {
            let reference = V::load(&self.tile_max[lane..]);
            let mut sum = V::load(&self.states.sum[lane..]);
            for key in 0..count {
                let at = key * width + lane;
                // A masked score is -∞ and its exponential exactly 0.
                let p = exp(V::load(&self.scores[at..]).sub(reference));
                sum = sum.add(p);
                p.store(&mut self.weights[at..]);
            }
            sum.store(&mut self.states.sum[lane..]);
        }
    }

    /// Adds the weighted values of a tile, `(keys, columns)`, to the output.
    #[inline(always)]
    fn mix_all<V: Vector<Lane = A>, const SELECT: bool>(
        &mut self,
        value: &[A],
        columns: usize,
        width: usize,
    ) {
        let mut at = 0;
        while at + BROADCASTS <= columns {
            self.mix::<V, BROADCASTS, SELECT>(value, at..columns, width);
            at += BROADCASTS;
        }
        while at + FEWER <= columns {
            self.mix::<V, FEWER, SELECT>(value, at..columns, width);
            at += FEWER;
        }
        for at in at..columns {
            self.mix::<V, 1, SELECT>(value, at..columns, width);
        }
    }

    /// [`mix_all`](Self::mix_all) for the first columns of a range.
    #[inline(always)]
    fn mix<V: Vector<Lane = A>, const COLUMNS: usize, const SELECT: bool>(
        &mut self,
        value: &[A],
        columns: Range<usize>,
        width: usize,
    ) {
        let mut lane = 0;
        while lane + VECTORS * V::LANES <= width {
            self.mix_lanes::<V, COLUMNS, VECTORS, SELECT>(value, columns.clone(), (lane, width));
            lane += VECTORS * V::LANES;
        }
        if lane < width {
            self.mix_lanes::<V, COLUMNS, 1, SELECT>(value, columns, (lane, width));
        }
    }

    #[inline(always)]
    fn mix_lanes<V, const COLUMNS: usize, const R: usize, const SELECT: bool>(
        &mut self,
        value: &[A],
        columns: Range<usize>,
        (lane, width): (usize, usize),
    ) where
        V: Vector<Lane = A>,
    {
        let place = |column: usize, r: usize| (columns.start + column) * width + lane + r * V::LANES;
        let output = &mut self.states.output;
        let mut sums = [[V::splat(A::ZERO); R]; COLUMNS];
        for (column, sums) in sums.iter_mut().enumerate() {
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = V::load(&output[place(column, r)..]);
            }
        }
        let weights = self.weights.chunks_exact(width).zip(self.scores.chunks_exact(width));
        for ((weights, scores), value) in weights.zip(value.chunks_exact(columns.end)) {
            let value = &value[columns.start..columns.start + COLUMNS];
            let mut p = [V::splat(A::ZERO); R];
            for (r, p) in p.iter_mut().enumerate() {
                *p = V::load(&weights[lane + r * V::LANES..]);
            }
            for (sums, &v) in sums.iter_mut().zip(value) {
                let v = V::splat(v);
                for r in 0..R {
                    let mixed = p[r].mul_add(v, sums[r]);
                    sums[r] = if SELECT {
                        let s = V::load(&scores[lane + r * V::LANES..]);
                        s.if_equal(V::splat(A::NEG_INFINITY), sums[r], mixed)
                    } else {
                        mixed
                    };
                }
            }
        }
        for (column, sums) in sums.into_iter().enumerate() {
            for (r, sum) in sums.into_iter().enumerate() {
                sum.store(&mut output[place(column, r)..]);
            }
        }
    }
}

/// `q · k` of a block of queries, `(dim, width)`, with the next `KEYS` keys, `(KEYS, dim)`, and what becomes of it.
#[inline(always)]
fn products<V: Vector, const KEYS: usize>(
    (query, width): (&[V::Lane], usize),
    key: &[V::Lane],
    scores: &mut [V::Lane],
    epilogue: Epilogue<V>,
) {
    let mut lane = 0;
    while lane + VECTORS * V::LANES <= width {
        products_of_lanes::<V, KEYS, VECTORS>(query, (lane, width), key, scores, epilogue);
        lane += VECTORS * V::LANES;
    }
    if lane < width {
        products_of_lanes::<V, KEYS, 1>(query, (lane, width), key, scores, epilogue);
    }
}

#[inline(always)]
fn products_of_lanes<V: Vector, const KEYS: usize, const R: usize>(
    query: &[V::Lane],
    (lane, width): (usize, usize),
    key: &[V::Lane],
    scores: &mut [V::Lane],
    epilogue: Epilogue<V>,
) {
    let dim = query.len() / width;
    let mut keys: [&[V::Lane]; KEYS] = [&[]; KEYS];
    for (at, of_key) in keys.iter_mut().enumerate() {
        *of_key = &key[at * dim..][..dim];
    }
    let mut sums = [[V::splat(V::Lane::ZERO); R]; KEYS];
    for e in 0..dim {
        // The queries stay in registers while each key's number passes: sums, queries and one number fit 16.
        let mut q = [V::splat(V::Lane::ZERO); R];
        for (r, q) in q.iter_mut().enumerate() {
            *q = V::load(&query[e * width + lane + r * V::LANES..]);
        }
        for (sums, key) in sums.iter_mut().zip(keys) {
            let k = V::splat(key[e]);
            for r in 0..R {
                sums[r] = q[r].mul_add(k, sums[r]);
            }
        }
    }
    for (at, sums) in sums.into_iter().enumerate() {
        for (r, sum) in sums.into_iter().enumerate() {
            epilogue.of(sum).store(&mut scores[at * width + lane + r * V::LANES..]);
        }
    }
}
