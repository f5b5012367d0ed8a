//! Keys, then value columns, in the lanes: for few queries over many keys.
//!
//! All query heads of a group share each key and value that is loaded. A long cache is cut over threads into spans,
//! aligned powers of two of tiles, whose states merge along the same tree as the tiles within them.

use std::ops::Range;

use smallvec::SmallVec;

use super::load::{Arrays, Role, all_finite, rows_of_tile};
use super::rows::{Finish, Target};
use crate::dropout::{Dropout, LeaveOut};
use crate::element::Real;
use crate::problem::{Stage, Terms};
use crate::scores::{Epilogue, ScoreScratch, TakeTo, are_finished};
use crate::simd::math::exp;
use crate::simd::{Ahead, Kernel, Numbers, PADDING, Register, Vector, Vectors, accumulate, by_chains};
use crate::softmax::{Order, Shifted, States, Tree, larger};
use crate::tile::{Grid, Sort, TILE, Tile, cut};

/// Queries of each head that are worked on together.
pub(crate) const QUERIES: usize = 16;

/// Heads of a group whose rows are handed over without an allocation.
pub(crate) const GROUP: usize = 8;

/// Registers, of keys or value columns, held against [`CHAINS`] rows at once: eight sums, as many as two units of four cycles want.
const WIDE: usize = 2;
const CHAINS: usize = 4;
/// Rows at once where fewer are left.
const FEWER: usize = 2;

/// A thread's buffers, for blocks of up to [`QUERIES`] queries of each head of a group.
pub(crate) struct Scratch<A> {
    /// `(rows, dim)`
    query: Vec<A>,
    /// `(dim, keys)`: as many keys as go into the lanes together.
    key: Vec<A>,
    /// `(TILE, columns)`: the dimension of values, padded to whole vectors.
    value: Vec<A>,
    /// `(rows, TILE)`, as are the weights
    scores: Vec<A>,
    weights: Vec<A>,
    /// Of the tile at hand, for each head of the group.
    sorts: Vec<Sort>,
    steps: ScoreScratch,
    states: States<A>,
    tree: Tree<A>,
    /// The dimension of values, padded to whole vectors of the instruction set at hand.
    columns: usize,
}

impl<A: Real> Scratch<A> {
    pub(crate) fn new(terms: &Terms<'_>) -> Self {
        let (rows, dim, dim_value) = (rows_of_block(terms), terms.dim, terms.dim_value);
        let (padded_rows, columns) = (rows.next_multiple_of(PADDING), dim_value.next_multiple_of(PADDING));
        let zeros = |count: usize| vec![A::ZERO; count];
        Self {
            query: zeros(rows * dim),
            key: zeros(dim * WIDE * PADDING),
            value: zeros(TILE * columns),
            scores: zeros(rows * TILE),
            weights: zeros(rows * TILE),
            sorts: Vec::with_capacity(terms.group),
            steps: ScoreScratch::new(),
            states: States::new(Order::ColumnsInLanes, padded_rows, columns),
            tree: Tree::new(padded_rows),
            columns,
        }
    }

    pub(crate) fn bytes(terms: &Terms<'_>) -> usize {
        let (rows, dim, dim_value) = (rows_of_block(terms), terms.dim, terms.dim_value);
        let tiles = terms.len_key.div_ceil(TILE);
        let (padded_rows, columns) = (rows.next_multiple_of(PADDING), dim_value.next_multiple_of(PADDING));
        let numbers = rows * dim + dim * WIDE * PADDING + TILE * columns + 2 * rows * TILE + 2 * padded_rows;
        numbers * size_of::<A>()
            + ScoreScratch::bytes(QUERIES * TILE)
            + (1 + Tree::<A>::depth(tiles)) * States::<A>::bytes(padded_rows, columns)
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
    pub(crate) targets: SmallVec<[&'k mut dyn Target<A>; GROUP]>,
    pub(crate) scratch: &'k mut Scratch<A>,
}

impl<A: Real> Kernel<A> for Attend<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Register<Lane = A>>(self) {
        let Self { block, keys, targets, scratch } = self;
        let (count, visibility) = (block.queries.len(), &block.terms.visibility);
        let padded_rows = (block.terms.group * count).next_multiple_of(V::LANES);
        let columns = block.terms.dim_value.next_multiple_of(V::LANES);
        scratch.columns = columns;
        let seen = visibility.keys_of_rows(block.batch, &block.queries);
        scratch.load_queries(&block);
        let span = seen.start.max(keys.start)..seen.end.min(keys.end);
        for (number, keys) in cut(span, visibility.key_offset, TILE) {
            if scratch.sort(&block, &keys) {
                scratch.states.resize::<V>(padded_rows, columns);
                scratch.attend_tile::<V>(&block, keys);
                scratch.tree.push::<V>(number, &mut scratch.states);
            }
        }
        let states = &mut scratch.states;
        scratch.tree.fold::<V>(states, padded_rows, columns);
        let rows_of_heads = (0..block.terms.group).map(|at| at * count..(at + 1) * count);
        if targets.iter().all(|target| target.finish() == Finish::Mean) {
            for (head, rows) in block.heads().zip(rows_of_heads.clone()) {
                if let Some(sink) = block.terms.sink(head) {
                    states.take_sink(rows, sink);
                }
            }
            states.divide::<V>(block.terms.dropout_factor());
        }
        for (rows, target) in rows_of_heads.zip(targets) {
            for (row, from) in rows.enumerate() {
                target.put_row(row, states, from);
            }
        }
    }
}

impl<A> Block<'_, A> {
    fn heads(&self) -> Range<usize> {
        self.key_head * self.terms.group..(self.key_head + 1) * self.terms.group
    }

    /// Where their keys and values are.
    fn of_key(&self) -> (usize, usize) {
        (self.batch, self.key_head)
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
            block.arrays.of(Role::Query).rows(
                block.terms.simd,
                (block.batch, head),
                block.queries.clone(),
                to,
                dim,
            );
        }
    }

    /// Leaves the states over one tile, which is sorted, in `states`.
    #[inline(always)]
    fn attend_tile<V: Register<Lane = A>>(&mut self, block: &Block<'_, A>, keys: Range<usize>) {
        let (count, columns) = (keys.len(), self.columns);
        let rows = block.terms.group * block.queries.len();
        // While this tile is worked on, the next is on its way: its keys while these are turned over, its values during the
        // products, a half in each.
        let next = keys.end..keys.end + TILE;
        let [next_key, next_value] =
            [Role::Key, Role::Value].map(|role| block.arrays.of(role).memory(block.of_key(), next.clone()));
        self.score::<V>(block, &keys, next_key, next_value.shares(0..1, 2));
        self.weigh::<V>(rows, count);
        if let Some(dropout) = &block.terms.dropout {
            self.leave_out(block, dropout, &keys);
        }
        // Lent for the time of the product.
        let mut packed = std::mem::take(&mut self.value);
        let (of_value, at) = (block.arrays.of(Role::Value), (block.of_key(), keys.clone()));
        let value = rows_of_tile(of_value, block.terms.simd, at, &mut packed, columns);
        // NaN and ∞ times a weight of 0 would be NaN, so where there are such values masked keys are left out.
        let all_count = self.sorts.iter().all(|&sort| sort == Sort::Full) && block.terms.dropout.is_none();
        if all_count || all_finite(value) {
            self.mix_all::<V>(block, value, next_value.shares(1..2, 2));
        } else {
            for row in 0..rows {
                for column in (0..columns).step_by(V::LANES) {
                    self.mix::<V, 1, true>(row, value, column, Ahead::NOTHING);
                }
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
    fn score<V: Vector<Lane = A>>(
        &mut self,
        block: &Block<'_, A>,
        keys: &Range<usize>,
        next_key: Ahead<'_>,
        next_value: Ahead<'_>,
    ) {
        let (terms, dim) = (block.terms, block.terms.dim);
        let (count, rows) = (keys.len(), terms.group * block.queries.len());
        let lanes = <[V; WIDE]>::LANES;
        let epilogue = Epilogue::<[V; WIDE]>::new(Stage::Masked, terms);
        let strips = count.div_ceil(lanes);
        for (index, at) in (0..count).step_by(lanes).enumerate() {
            let strip = keys.start + at..keys.end.min(keys.start + at + lanes);
            let key = &mut self.key[..dim * lanes];
            let of_strip = next_key.shares(index..index + 1, strips);
            block.arrays.of(Role::Key).columns(terms.simd, block.of_key(), strip, (key, lanes), of_strip);
            let ahead = next_value.shares(index..index + 1, strips);
            by_chains!(rows, [CHAINS, FEWER], (row, ROWS) => {
                self.products::<_, ROWS>((row, dim), at, epilogue, ahead.first(row));
            });
        }
        let cells_of_head = block.queries.len() * TILE;
        for (at, head) in block.heads().enumerate() {
            let (tile, sort) = (block.tile(head, keys), self.sorts[at]);
            let cells = at * cells_of_head..(at + 1) * cells_of_head;
            let scores = &mut self.scores[cells.clone()];
            if sort == Sort::Empty {
                scores.fill(A::NEG_INFINITY);
            } else if !are_finished(terms, sort) {
                let mixed = (sort == Sort::Mixed).then(|| {
                    let products = &mut self.weights[cells];
                    products.copy_from_slice(scores);
                    products
                });
                terms.simd.run(TakeTo {
                    stage: Stage::Masked,
                    terms,
                    tile: &tile,
                    mixed,
                    scores: Grid { cells: scores, row_step: TILE, key_step: 1 },
                    scratch: &mut self.steps,
                });
            }
        }
    }

    /// `q · k` of a few rows, from `row` on, with the keys that are in the lanes, the tile's from `at` on, and what becomes
    /// of it.
    #[inline(always)]
    fn products<V: Vector<Lane = A>, const ROWS: usize>(
        &mut self,
        (row, dim): (usize, usize),
        at: usize,
        epilogue: Epilogue<V>,
        ahead: Ahead<'_>,
    ) {
        let mut sums = [V::splat(A::ZERO); ROWS];
        let keys = Vectors { numbers: &self.key, stride: V::LANES };
        let queries = Numbers { numbers: &self.query[row * dim..], chain: dim, step: 1 };
        accumulate(&mut sums, dim, keys, queries, ahead);
        for (sum, scores) in sums.into_iter().zip(self.scores[row * TILE..].chunks_exact_mut(TILE)) {
            epilogue.of(sum).store(&mut scores[at..]);
        }
    }

    /// From scores to unnormalised weights, and their maxima and sums.
    #[inline(always)]
    fn weigh<V: Register<Lane = A>>(&mut self, rows: usize, count: usize) {
        let padded = count.next_multiple_of(V::LANES);
        let cells = self.scores.chunks_exact_mut(TILE).zip(self.weights.chunks_exact_mut(TILE));
        for ((scores, weights), max) in cells.zip(&mut self.states.max[..rows]) {
            let scores = &mut scores[..padded];
            // What fills the last vector is no key.
            scores[count..].fill(A::NEG_INFINITY);
            let mut lanes = V::splat(A::NEG_INFINITY);
            for scores in scores.chunks_exact(V::LANES) {
                lanes = larger(V::load(scores), lanes);
            }
            let mut maxima = [A::NEG_INFINITY; PADDING];
            lanes.store(&mut maxima);
            let largest = maxima.into_iter().fold(A::NEG_INFINITY, |max, s| larger(s, max));
            let shifted = Shifted::by(largest);
            *max = shifted.max;
            let shift = V::splat(shifted.shift);
            for (s, p) in scores.chunks_exact(V::LANES).zip(weights.chunks_exact_mut(V::LANES)) {
                // A masked score is -∞ and its exponential exactly 0.
                exp(V::load(s).sub(shift)).store(p);
            }
        }
        // Each sum is one chain, whatever the lanes; several run side by side.
        let sums = self.states.sum[..rows].chunks_mut(CHAINS);
        for (sums, weights) in sums.zip(self.weights.chunks(CHAINS * TILE)) {
            sums.fill(A::ZERO);
            for key in 0..count {
                for (row, sum) in sums.iter_mut().enumerate() {
                    *sum = *sum + weights[row * TILE + key];
                }
            }
        }
    }

    /// Takes dropped pairs out of a tile's weights and scores.
    fn leave_out(&mut self, block: &Block<'_, A>, dropout: &Dropout, keys: &Range<usize>) {
        let cells_of_head = block.queries.len() * TILE;
        for (at, head) in block.heads().enumerate() {
            let cells = at * cells_of_head..(at + 1) * cells_of_head;
            block.terms.simd.run(LeaveOut {
                dropout,
                visibility: &block.terms.visibility,
                tile: &block.tile(head, keys),
                weights: Grid { cells: &mut self.weights[cells.clone()], row_step: TILE, key_step: 1 },
                scores: &mut self.scores[cells],
            });
        }
    }

    /// The weighted sums of the values of a tile, `(keys, columns)`, for all rows.
    #[inline(always)]
    fn mix_all<V: Vector<Lane = A>>(&mut self, block: &Block<'_, A>, value: &[A], ahead: Ahead<'_>) {
        let lanes = <[V; WIDE]>::LANES;
        let all = self.columns.div_ceil(lanes);
        for (at, column) in (0..self.columns).step_by(lanes).enumerate() {
            let ahead = ahead.shares(at..at + 1, all);
            if column + lanes <= self.columns {
                self.mix_rows::<[V; WIDE]>(block, value, column, ahead);
            } else {
                self.mix_rows::<V>(block, value, column, ahead);
            }
        }
    }

    /// [`mix_all`](Self::mix_all) for a few columns, from `column` on.
    #[inline(always)]
    fn mix_rows<V: Vector<Lane = A>>(
        &mut self,
        block: &Block<'_, A>,
        value: &[A],
        column: usize,
        ahead: Ahead<'_>,
    ) {
        let rows = block.terms.group * block.queries.len();
        by_chains!(rows, [CHAINS, FEWER], (row, ROWS) => {
            self.mix::<V, ROWS, false>(row, value, column, ahead.first(row));
        });
    }

    #[inline(always)]
    fn mix<V: Vector<Lane = A>, const ROWS: usize, const SELECT: bool>(
        &mut self,
        row: usize,
        value: &[A],
        column: usize,
        ahead: Ahead<'_>,
    ) {
        let columns = self.columns;
        let mut sums = [V::splat(A::ZERO); ROWS];
        let (scores, weights) = (&self.scores[row * TILE..], &self.weights[row * TILE..]);
        if SELECT {
            for (key, value) in value.chunks_exact(columns).enumerate() {
                for (chain, sum) in sums.iter_mut().enumerate() {
                    if scores[chain * TILE + key] != A::NEG_INFINITY {
                        let p = V::splat(weights[chain * TILE + key]);
                        *sum = p.mul_add(V::load(&value[column..]), *sum);
                    }
                }
            }
        } else {
            let values = Vectors { numbers: &value[column..], stride: columns };
            let weights = Numbers { numbers: weights, chain: TILE, step: 1 };
            accumulate(&mut sums, value.len() / columns, values, weights, ahead);
        }
        for (sum, output) in
            sums.into_iter().zip(self.states.output[row * columns..].chunks_exact_mut(columns))
        {
            sum.store(&mut output[column..]);
        }
    }
}
