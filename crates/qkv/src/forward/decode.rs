//! Keys, then value columns, in the lanes: for few queries over many keys.
//!
//! All query heads of a group share each key and value that is loaded. A long cache is cut over threads into spans,
//! aligned powers of two of chunks, whose states merge along the same tree as the chunks within them.

use std::ops::Range;

use super::load::{Arrays, Role, all_finite, rows_of_tile};
use super::rows::Target;
use crate::element::Real;
use crate::problem::{Stage, Terms};
use crate::scores::{self, Epilogue, ScoreScratch};
use crate::simd::math::exp;
use crate::simd::{Kernel, PADDING, Vector};
use crate::softmax::{Order, States, Tree};
use crate::tile::{CHUNK, Grid, Sort, TILE, Tile, cut};

/// Queries of each head that are worked on together.
pub(crate) const QUERIES: usize = 16;

/// Vectors of keys or value columns whose chains run side by side.
const VECTORS: usize = 4;

/// A thread's buffers, for blocks of up to [`QUERIES`] queries of each head of a group.
pub(crate) struct Scratch<A> {
    /// `(rows, dim)`
    query: Vec<A>,
    /// `(dim, TILE)`
    key: Vec<A>,
    /// `(TILE, columns)`: the dimension of values, padded to whole vectors.
    value: Vec<A>,
    /// `(rows, TILE)`, as are the weights
    scores: Vec<A>,
    weights: Vec<A>,
    tile_max: Vec<A>,
    factors: Vec<A>,
    /// Of the tile at hand, for each head of the group.
    sorts: Vec<Sort>,
    steps: ScoreScratch<A>,
    states: States<A>,
    tree: Tree<A>,
    columns: usize,
}

impl<A: Real> Scratch<A> {
    pub(crate) fn new(terms: &Terms<'_>) -> Self {
        let (rows, dim, dim_value) = (rows_of_block(terms), terms.dim, terms.dim_value);
        let (padded_rows, columns) = (rows.next_multiple_of(PADDING), dim_value.next_multiple_of(PADDING));
        let zeros = |count: usize| vec![A::ZERO; count];
        Self {
            query: zeros(rows * dim),
            key: zeros(dim * TILE),
            value: zeros(TILE * columns),
            scores: zeros(rows * TILE),
            weights: zeros(rows * TILE),
            tile_max: zeros(padded_rows),
            factors: zeros(padded_rows),
            sorts: Vec::with_capacity(terms.group),
            steps: ScoreScratch::new(QUERIES * TILE),
            states: States::new(Order::ColumnsInLanes, padded_rows, columns),
            tree: Tree::new(padded_rows),
            columns,
        }
    }

    pub(crate) fn bytes(terms: &Terms<'_>) -> usize {
        let (rows, dim, dim_value) = (rows_of_block(terms), terms.dim, terms.dim_value);
        let chunks = terms.len_key.div_ceil(CHUNK);
        let (padded_rows, columns) = (rows.next_multiple_of(PADDING), dim_value.next_multiple_of(PADDING));
        let numbers = rows * dim + dim * TILE + TILE * columns + 2 * rows * TILE + 4 * padded_rows;
        numbers * size_of::<A>()
            + ScoreScratch::<A>::bytes(QUERIES * TILE)
            + (1 + Tree::<A>::depth(chunks)) * States::<A>::bytes(padded_rows, columns)
    }
}

/// Rows that are worked on together: those of a block of queries of each head of a group.
fn rows_of_block(terms: &Terms<'_>) -> usize {
    terms.group * terms.len_query.min(QUERIES)
}

/// The same queries of each head of a group.
pub(crate) struct Block<'k, A> {
    pub(crate) terms: &'k Terms<'k>,
    pub(crate) arrays: &'k dyn Arrays<A>,
    pub(crate) batch: usize,
    pub(crate) key_head: usize,
    pub(crate) queries: Range<usize>,
}

/// Attention of a block over one span of keys.
pub(crate) struct Attend<'k, A> {
    pub(crate) block: Block<'k, A>,
    pub(crate) keys: Range<usize>,
    /// For each head of the group.
    pub(crate) targets: Vec<&'k mut dyn Target<A>>,
    pub(crate) scratch: &'k mut Scratch<A>,
}

impl<A: Real> Kernel<A> for Attend<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector<Lane = A>>(self) {
        let Self { block, keys, targets, scratch } = self;
        let (count, visibility) = (block.queries.len(), &block.terms.visibility);
        let padded_rows = (block.terms.group * count).next_multiple_of(PADDING);
        let seen = visibility.keys_of_rows(block.batch, &block.queries);
        scratch.load_queries(&block);
        for (chunk, keys) in
            cut(seen.start.max(keys.start)..seen.end.min(keys.end), visibility.key_offset, CHUNK)
        {
            let mut any = false;
            for (_, keys) in cut(keys, visibility.key_offset, TILE) {
                if !scratch.sort(&block, &keys) {
                    continue;
                }
                if !any {
                    scratch.states.reset(padded_rows);
                    any = true;
                }
                scratch.push_tile::<V>(&block, keys);
            }
            if any {
                scratch.tree.push::<V>(chunk, &mut scratch.states);
            }
        }
        scratch.tree.fold::<V>(&mut scratch.states, padded_rows);
        for (at, (head, target)) in block.heads().zip(targets).enumerate() {
            for row in 0..count {
                target.finish(row, &mut scratch.states, at * count + row, block.terms.sink(head));
            }
        }
    }
}

impl<A> Block<'_, A> {
    fn heads(&self) -> Range<usize> {
        self.key_head * self.terms.group..(self.key_head + 1) * self.terms.group
    }

    fn tile(&self, head: usize, keys: &Range<usize>) -> Tile {
        Tile { batch: self.batch, head, rows: self.queries.clone(), keys: keys.clone() }
    }
}

impl<A: Real> Scratch<A> {
    fn load_queries(&mut self, block: &Block<'_, A>) {
        let (count, dim) = (block.queries.len(), block.terms.dim);
        for (at, head) in block.heads().enumerate() {
            let to = &mut self.query[at * count * dim..];
            block.arrays.rows(Role::Query, (block.batch, head), block.queries.clone(), to, dim);
        }
    }

    /// Takes a tile into the states of the chunk.
    #[inline(always)]
    fn push_tile<V: Vector<Lane = A>>(&mut self, block: &Block<'_, A>, keys: Range<usize>) {
        let (count, columns) = (keys.len(), self.columns);
        let rows = block.terms.group * block.queries.len();
        self.score::<V>(block, &keys);
        self.weigh::<V>(rows, count);
        // Lent for the time of the product.
        let mut packed = std::mem::take(&mut self.value);
        let of_value = (Role::Value, (block.batch, block.key_head));
        let value = rows_of_tile(block.arrays, of_value, keys, &mut packed, columns);
        // NaN and ∞ times a weight of 0 would be NaN, so where there are such values masked keys are left out.
        let finite = all_finite::<V>(value);
        for row in 0..rows {
            if finite {
                self.mix::<V, false>(row, value);
            } else {
                self.mix::<V, true>(row, value);
            }
        }
        self.value = packed;
    }

    /// Sorts the tile for each head; whether any sees something of it.
    fn sort(&mut self, block: &Block<'_, A>, keys: &Range<usize>) -> bool {
        self.sorts.clear();
        self.sorts.extend(block.heads().map(|head| block.terms.sort(&block.tile(head, keys))));
        self.sorts.iter().any(|&sort| sort != Sort::Empty)
    }

    /// Leaves the masked scores of a tile, which is sorted, in `scores`.
    #[inline(always)]
    fn score<V: Vector<Lane = A>>(&mut self, block: &Block<'_, A>, keys: &Range<usize>) {
        let (terms, dim) = (block.terms, block.terms.dim);
        block.arrays.columns(Role::Key, (block.batch, block.key_head), keys.clone(), &mut self.key, TILE);
        let cells_of_head = block.queries.len() * TILE;
        let epilogue = Epilogue::<V>::new(Stage::Masked, terms);
        for (at, head) in block.heads().enumerate() {
            let (tile, sort) = (block.tile(head, keys), self.sorts[at]);
            let cells = &mut self.scores[at * cells_of_head..(at + 1) * cells_of_head];
            if sort == Sort::Empty {
                cells.fill(A::NEG_INFINITY);
                continue;
            }
            for (row, scores) in cells.chunks_exact_mut(TILE).enumerate() {
                let row = at * block.queries.len() + row;
                products::<V>(&self.query[row * dim..(row + 1) * dim], &self.key, scores, epilogue);
            }
            let mut scores = Grid { cells, row_step: TILE, key_step: 1 };
            scores::take_to::<V>(Stage::Masked, terms, (&tile, sort), &mut scores, &mut self.steps);
        }
    }

    /// From scores to unnormalised weights; maxima and sums move on.
    #[inline(always)]
    fn weigh<V: Vector<Lane = A>>(&mut self, rows: usize, count: usize) {
        for row in 0..rows {
            let scores = &self.scores[row * TILE..row * TILE + count];
            // NaN is never greater, so it is ignored here and shows up in the sum.
            self.tile_max[row] = scores.iter().fold(A::NEG_INFINITY, |max, &s| if max < s { s } else { max });
        }
        self.states.raise::<V>(&mut self.tile_max, &mut self.factors);
        for row in 0..rows {
            let reference = V::splat(self.tile_max[row]);
            let scores = self.scores[row * TILE..(row + 1) * TILE].chunks_exact(V::LANES);
            let weights = &mut self.weights[row * TILE..(row + 1) * TILE];
            for (s, p) in scores.zip(weights.chunks_exact_mut(V::LANES)) {
                // A masked score is -∞ and its exponential exactly 0.
                exp(V::load(s).sub(reference)).store(p);
            }
            // The sum is one chain, whatever the lanes.
            self.states.sum[row] = weights[..count].iter().fold(self.states.sum[row], |sum, &p| sum + p);
        }
    }

    /// Adds the weighted values of a tile, `(keys, columns)`, to the output of one row.
    #[inline(always)]
    fn mix<V: Vector<Lane = A>, const SELECT: bool>(&mut self, row: usize, value: &[A]) {
        let mut column = 0;
        while column + VECTORS * V::LANES <= self.columns {
            self.mix_columns::<V, VECTORS, SELECT>(row, value, column);
            column += VECTORS * V::LANES;
        }
        while column < self.columns {
            self.mix_columns::<V, 1, SELECT>(row, value, column);
            column += V::LANES;
        }
    }

    #[inline(always)]
    fn mix_columns<V, const R: usize, const SELECT: bool>(&mut self, row: usize, value: &[A], column: usize)
    where
        V: Vector<Lane = A>,
    {
        let start = self.states.index(row, column);
        let output = &mut self.states.output[start..start + R * V::LANES];
        let mut sums = [V::splat(A::ZERO); R];
        for (r, sum) in sums.iter_mut().enumerate() {
            *sum = V::load(&output[r * V::LANES..]);
        }
        let weights = &self.weights[row * TILE..(row + 1) * TILE];
        let scores = &self.scores[row * TILE..(row + 1) * TILE];
        for ((&p, &s), value) in weights.iter().zip(scores).zip(value.chunks_exact(self.columns)) {
            // NaN and ∞ times a weight of 0 would be NaN.
            if SELECT && s == A::NEG_INFINITY {
                continue;
            }
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = V::splat(p).mul_add(V::load(&value[column + r * V::LANES..]), *sum);
            }
        }
        for (r, sum) in sums.into_iter().enumerate() {
            sum.store(&mut output[r * V::LANES..]);
        }
    }
}

/// `q · k` of one query with the keys of a tile, `(dim, TILE)`.
#[inline(always)]
fn products<V: Vector>(query: &[V::Lane], key: &[V::Lane], scores: &mut [V::Lane], epilogue: Epilogue<V>) {
    for at in (0..TILE).step_by(VECTORS * V::LANES) {
        let mut sums = [V::splat(V::Lane::ZERO); VECTORS];
        for (&q, key) in query.iter().zip(key.chunks_exact(TILE)) {
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = V::splat(q).mul_add(V::load(&key[at + r * V::LANES..]), *sum);
            }
        }
        for (r, sum) in sums.into_iter().enumerate() {
            epilogue.of(sum).store(&mut scores[at + r * V::LANES..]);
        }
    }
}
