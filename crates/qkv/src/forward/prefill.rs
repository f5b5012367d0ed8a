//! Queries in the lanes: for many queries.
//!
//! A block of queries is cut into panels, as many queries as a few vectors hold, and each is transposed once. Then each
//! number of a key, and of a value, meets the panel's vectors, so that maxima and sums need no step across lanes and
//! the weights come out as the second product wants them. A tile is taken into the states panel by panel, while its keys
//! and values are in the caches.

use std::ops::Range;

use super::load::{Arrays, Role, all_finite, rows_of_tile};
use super::rows::Target;
use crate::element::Real;
use crate::problem::{Stage, Terms};
use crate::scores::{Epilogue, ScoreScratch, TakeTo, are_finished};
use crate::simd::math::exp;
use crate::simd::{Ahead, Kernel, Numbers, Vector, Vectors, accumulate};
use crate::softmax::{Order, Raised, States, Tree};
use crate::tile::{CHUNK, Grid, QUERY_BLOCK, Sort, TILE, Tile, cut};

/// Keys, or value columns, whose chains run side by side.
const CHAINS: usize = 6;
/// As many where fewer are left: 64 is ten times 6, and 4.
const FEWER: usize = 4;

/// A thread's buffers, for blocks of up to [`QUERY_BLOCK`] queries.
pub(crate) struct Scratch<A> {
    /// Panel after panel, each `(dim, lanes)`.
    query: Vec<A>,
    /// `(TILE, dim)`
    key: Vec<A>,
    /// `(TILE, dim_value)`
    value: Vec<A>,
    /// Of one panel `(TILE, lanes)`, as are the weights.
    scores: Vec<A>,
    weights: Vec<A>,
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
            steps: ScoreScratch::new(TILE * QUERY_BLOCK),
            states: States::new(Order::RowsInLanes, QUERY_BLOCK, dim_value),
            tree: Tree::new(QUERY_BLOCK),
        }
    }

    pub(crate) fn bytes(dim: usize, dim_value: usize, chunks: usize) -> usize {
        let numbers =
            dim * (QUERY_BLOCK + TILE) + TILE * dim_value + 2 * TILE * QUERY_BLOCK + 2 * QUERY_BLOCK;
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
        let width = scratch.load_queries::<V>(&block, wide::<V>());
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
        let terms = block.terms;
        scratch.load_queries::<V>(&block, NARROW);
        // Padded, as the rows in the lanes are.
        let mut stats = [[A::ONE; QUERY_BLOCK]; 2];
        stats[0][..max.len()].copy_from_slice(max);
        stats[1][..sum.len()].copy_from_slice(sum);
        for (_, keys) in cut(0..terms.len_key, terms.visibility.key_offset, TILE) {
            let tile = block.tile(keys);
            let sort = terms.sort(&tile);
            // Lent for the time of the products.
            let mut packed = std::mem::take(&mut scratch.key);
            let of_key = (Role::Key, block.of_key());
            let key = rows_of_tile(block.arrays, of_key, tile.keys.clone(), &mut packed, terms.dim);
            for panel in panels::<V>(block.queries.len(), NARROW) {
                if sort == Sort::Empty && stage >= Stage::Masked {
                    scratch.scores[..tile.keys.len() * V::LANES].fill(A::NEG_INFINITY);
                } else {
                    scratch.score::<V, NARROW>(&block, (&tile, sort), key, stage.min(Stage::Masked), &panel);
                }
                let first = panel.rows.start;
                let [max, sum] = [V::load(&stats[0][first..]), V::load(&stats[1][first..])];
                for (key, scores) in tile.keys.clone().zip(scratch.scores.chunks_exact_mut(V::LANES)) {
                    if stage == Stage::Weights {
                        let s = V::load(scores);
                        let weight = exp(s.sub(max)).div(sum);
                        s.if_equal(V::splat(A::NEG_INFINITY), V::splat(A::ZERO), weight).store(scores);
                    }
                    target.set_column(key, first, &scores[..panel.rows.len()]);
                }
            }
            scratch.key = packed;
        }
    }
}

/// Some neighbouring queries of a block whose vectors are held in registers together.
struct Panel {
    /// Of the block; the first is a multiple of the lanes of a vector.
    rows: Range<usize>,
    /// The rows, padded to whole vectors.
    lanes: usize,
}

/// The panels of a block: so many vectors wide, and where the last of them would be empty [`NARROW`].
fn panels<V: Vector>(rows: usize, wide: usize) -> impl Iterator<Item = Panel> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let left = rows - start;
        let lanes = V::LANES * if left > (wide - 1) * V::LANES { wide } else { NARROW };
        let panel = Panel { rows: start..rows.min(start + lanes), lanes };
        start = panel.rows.end;
        (left > 0).then_some(panel)
    })
}

/// Vectors of a narrow panel.
const NARROW: usize = 1;

/// Vectors of a wide panel: with [`CHAINS`] sums for each, a number and the vectors themselves they fit the registers.
const fn wide<V: Vector>() -> usize {
    if V::REGISTERS < 32 { 2 } else { 4 }
}

impl<A> Block<'_, A> {
    fn tile(&self, keys: Range<usize>) -> Tile {
        Tile { batch: self.batch, head: self.head, rows: self.queries.clone(), keys }
    }

    /// The queries of a panel.
    fn queries_of(&self, panel: &Panel) -> Range<usize> {
        self.queries.start + panel.rows.start..self.queries.start + panel.rows.end
    }

    /// Where keys and values of these queries are.
    fn of_key(&self) -> (usize, usize) {
        (self.batch, self.terms.key_head(self.head))
    }
}

/// A tile as every panel of a block meets it.
struct TileRows<'t, A> {
    tile: &'t Tile,
    sort: Sort,
    /// `(keys, dim)`
    key: &'t [A],
    /// `(keys, dim_value)`
    value: &'t [A],
    /// Whether all values are finite.
    finite: bool,
}

impl<A: Real> Scratch<A> {
    /// Transposes a block of queries, panel by panel, each so many vectors wide; returns its padded width.
    #[inline(always)]
    fn load_queries<V: Vector<Lane = A>>(&mut self, block: &Block<'_, A>, wide: usize) -> usize {
        let (at, dim) = ((block.batch, block.head), block.terms.dim);
        for panel in panels::<V>(block.queries.len(), wide) {
            let to = &mut self.query[panel.rows.start * dim..][..panel.lanes * dim];
            block.arrays.columns(Role::Query, at, block.queries_of(&panel), to, panel.lanes);
        }
        block.queries.len().next_multiple_of(V::LANES)
    }

    /// Takes a tile into the states of the chunk, whose rows are padded to `width`.
    #[inline(always)]
    fn push_tile<V>(&mut self, block: &Block<'_, A>, (tile, sort): (&Tile, Sort), width: usize)
    where
        V: Vector<Lane = A>,
    {
        let (dim, dim_value) = (block.terms.dim, block.terms.dim_value);
        // Lent for the time of the products.
        let (mut keys, mut values) = (std::mem::take(&mut self.key), std::mem::take(&mut self.value));
        let [of_key, of_value] = [Role::Key, Role::Value].map(|role| (role, block.of_key()));
        let key = rows_of_tile(block.arrays, of_key, tile.keys.clone(), &mut keys, dim);
        let value = rows_of_tile(block.arrays, of_value, tile.keys.clone(), &mut values, dim_value);
        let rows = TileRows { tile, sort, key, value, finite: all_finite::<V>(value) };
        for panel in panels::<V>(block.queries.len(), wide::<V>()) {
            if panel.lanes == V::LANES {
                self.push_panel::<V, NARROW>(block, &rows, &panel, width);
            } else if wide::<V>() == 2 {
                self.push_panel::<V, 2>(block, &rows, &panel, width);
            } else {
                self.push_panel::<V, 4>(block, &rows, &panel, width);
            }
        }
        (self.key, self.value) = (keys, values);
    }

    #[inline(always)]
    fn push_panel<V, const R: usize>(
        &mut self,
        block: &Block<'_, A>,
        rows: &TileRows<'_, A>,
        panel: &Panel,
        width: usize,
    ) where
        V: Vector<Lane = A>,
    {
        let maxima = self.score::<V, R>(block, (rows.tile, rows.sort), rows.key, Stage::Masked, panel);
        let factors = self.weigh::<V, R>(rows.tile.keys.len(), panel.rows.start, maxima);
        // NaN and ∞ times a weight of 0 would be NaN, so where there are such values masked lanes are kept apart.
        let (columns, place) = (block.terms.dim_value, (panel.rows.start, width));
        if rows.finite {
            self.mix_all::<V, R>(rows.value, columns, place, factors);
        } else {
            for column in 0..columns {
                self.mix::<V, 1, R, true>(rows.value, (column, columns), place, factors);
            }
        }
    }

    /// Leaves a panel's scores of a tile after a stage in `scores`; returns the largest of each row.
    #[inline(always)]
    fn score<V: Vector<Lane = A>, const R: usize>(
        &mut self,
        block: &Block<'_, A>,
        (tile, sort): (&Tile, Sort),
        key: &[A],
        stage: Stage,
        panel: &Panel,
    ) -> [V; R] {
        let (count, dim) = (tile.keys.len(), block.terms.dim);
        let lanes = R * V::LANES;
        let query = &self.query[panel.rows.start * dim..][..lanes * dim];
        let finished = are_finished(block.terms, sort);
        // Where there is more to do, by way of the other buffer.
        let products = if finished { &mut self.scores } else { &mut self.weights };
        let products = &mut products[..count * lanes];
        let epilogue = Epilogue::<V>::new(stage, block.terms);
        let mut maxima = [V::splat(A::NEG_INFINITY); R];
        let mut at = 0;
        while at + CHAINS <= count {
            products_of::<V, CHAINS, R>(query, (key, at, dim), products, epilogue, &mut maxima);
            at += CHAINS;
        }
        while at + FEWER <= count {
            products_of::<V, FEWER, R>(query, (key, at, dim), products, epilogue, &mut maxima);
            at += FEWER;
        }
        for at in at..count {
            products_of::<V, 1, R>(query, (key, at, dim), products, epilogue, &mut maxima);
        }
        if finished {
            return maxima;
        }
        let of_panel = Tile { rows: block.queries_of(panel), ..tile.clone() };
        block.terms.simd.run(TakeTo {
            stage,
            terms: block.terms,
            tile: &of_panel,
            sort,
            products: Grid { cells: &mut self.weights[..count * lanes], row_step: 1, key_step: lanes },
            scores: &mut self.scores[..count * lanes],
            scratch: &mut self.steps,
        });
        maxima = [V::splat(A::NEG_INFINITY); R];
        for of_key in self.scores[..count * lanes].chunks_exact(lanes) {
            for (r, max) in maxima.iter_mut().enumerate() {
                // NaN is never greater, so it is ignored here and shows up in the sum.
                *max = V::load(&of_key[r * V::LANES..]).max(*max);
            }
        }
        maxima
    }

    /// From a panel's scores to unnormalised weights; maxima and sums move on. Returns what its outputs are to be
    /// multiplied by.
    #[inline(always)]
    fn weigh<V: Vector<Lane = A>, const R: usize>(
        &mut self,
        count: usize,
        first: usize,
        maxima: [V; R],
    ) -> [V; R] {
        let lanes = R * V::LANES;
        let [mut references, mut factors, mut sums] = [maxima; 3];
        for (r, max) in maxima.into_iter().enumerate() {
            let at = first + r * V::LANES;
            Raised { reference: references[r], factor: factors[r] } = self.states.raise(at, max);
            sums[r] = V::load(&self.states.sum[at..]);
        }
        let scores = self.scores[..count * lanes].chunks_exact(lanes);
        for (scores, weights) in scores.zip(self.weights.chunks_exact_mut(lanes)) {
            for r in 0..R {
                // A masked score is -∞ and its exponential exactly 0.
                let p = exp(V::load(&scores[r * V::LANES..]).sub(references[r]));
                sums[r] = sums[r].add(p);
                p.store(&mut weights[r * V::LANES..]);
            }
        }
        for (r, sum) in sums.into_iter().enumerate() {
            sum.store(&mut self.states.sum[first + r * V::LANES..]);
        }
        factors
    }

    /// Adds the weighted values of a tile, `(keys, columns)`, to a panel's output times its factors. The panel begins at
    /// row `first` of `width`.
    #[inline(always)]
    fn mix_all<V: Vector<Lane = A>, const R: usize>(
        &mut self,
        value: &[A],
        columns: usize,
        place: (usize, usize),
        factors: [V; R],
    ) {
        let mut at = 0;
        while at + CHAINS <= columns {
            self.mix::<V, CHAINS, R, false>(value, (at, columns), place, factors);
            at += CHAINS;
        }
        while at + FEWER <= columns {
            self.mix::<V, FEWER, R, false>(value, (at, columns), place, factors);
            at += FEWER;
        }
        for at in at..columns {
            self.mix::<V, 1, R, false>(value, (at, columns), place, factors);
        }
    }

    /// [`mix_all`](Self::mix_all) for a few columns, from `column` of `columns` on.
    #[inline(always)]
    fn mix<V: Vector<Lane = A>, const COLUMNS: usize, const R: usize, const SELECT: bool>(
        &mut self,
        value: &[A],
        (column, columns): (usize, usize),
        (first, width): (usize, usize),
        factors: [V; R],
    ) {
        let lanes = R * V::LANES;
        let steps = value.len() / columns;
        let mut sums = [[V::splat(A::ZERO); R]; COLUMNS];
        let at = |chain: usize, r: usize| (column + chain) * width + first + r * V::LANES;
        for (chain, sums) in sums.iter_mut().enumerate() {
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = V::load(&self.states.output[at(chain, r)..]).mul(factors[r]);
            }
        }
        let value = &value[column..];
        if SELECT {
            let scores = self.scores.chunks_exact(lanes).zip(self.weights.chunks_exact(lanes));
            for ((scores, weights), value) in scores.zip(value.chunks(columns)) {
                for (sums, &v) in sums.iter_mut().zip(value) {
                    for (r, sum) in sums.iter_mut().enumerate() {
                        let (s, p) = (V::load(&scores[r * V::LANES..]), V::load(&weights[r * V::LANES..]));
                        let mixed = p.mul_add(V::splat(v), *sum);
                        *sum = s.if_equal(V::splat(A::NEG_INFINITY), *sum, mixed);
                    }
                }
            }
        } else {
            let weights = Vectors { numbers: &self.weights, stride: lanes };
            accumulate(
                &mut sums,
                steps,
                weights,
                Numbers { numbers: value, chain: 1, step: columns },
                Ahead::NOTHING,
            );
        }
        for (chain, sums) in sums.into_iter().enumerate() {
            for (r, sum) in sums.into_iter().enumerate() {
                sum.store(&mut self.states.output[at(chain, r)..]);
            }
        }
    }
}

/// `q · k` of a panel of queries, `(dim, lanes)`, with a few keys, from `at` on, of `(keys, dim)`, and what becomes of it;
/// maxima follow.
#[inline(always)]
fn products_of<V: Vector, const KEYS: usize, const R: usize>(
    query: &[V::Lane],
    (key, at, dim): (&[V::Lane], usize, usize),
    scores: &mut [V::Lane],
    epilogue: Epilogue<V>,
    maxima: &mut [V; R],
) {
    let lanes = R * V::LANES;
    let mut sums = [[V::splat(V::Lane::ZERO); R]; KEYS];
    let queries = Vectors { numbers: query, stride: lanes };
    accumulate(
        &mut sums,
        dim,
        queries,
        Numbers { numbers: &key[at * dim..], chain: dim, step: 1 },
        Ahead::NOTHING,
    );
    for (sums, scores) in sums.into_iter().zip(scores[at * lanes..].chunks_exact_mut(lanes)) {
        for (r, sum) in sums.into_iter().enumerate() {
            let s = epilogue.of(sum);
            // NaN is never greater, so it is ignored here and shows up in the sum.
            maxima[r] = s.max(maxima[r]);
            s.store(&mut scores[r * V::LANES..]);
        }
    }
}
