//! Queries in the lanes: for many queries.
//!
//! A block of queries is cut into panels, as many queries as a few registers hold, and each is transposed once. Then each
//! number of a key, and of a value, meets the panel's queries together, so that maxima and sums need no step across lanes
//! and the weights come out as the second product wants them. A tile is taken in panel by panel, while its keys and
//! values are in the caches.

use std::ops::Range;

use super::load::{Arrays, Role, all_finite, rows_of_tile};
use super::rows::{Finish, Target};
use crate::dropout::{Dropout, LeaveOut};
use crate::element::Real;
use crate::problem::{Stage, Terms};
use crate::scores::{Epilogue, ScoreScratch, TakeTo, are_finished};
use crate::simd::math::exp;
use crate::simd::{Ahead, Kernel, Numbers, Register, Simd, Vector, Vectors, accumulate, by_chains};
use crate::softmax::{Order, Shifted, States, Tree, larger};
use crate::tile::{Grid, QUERY_BLOCK, Sort, TILE, Tile, cut};

/// Keys, or value columns, whose chains run side by side.
pub(crate) const CHAINS: usize = 6;
/// As many where fewer are left: 64 is ten times 6, and 4.
pub(crate) const FEWER: usize = 4;

/// Calls `by_panels` with panels no wider than the queries need, and than the registers hold [`CHAINS`] sums of.
macro_rules! by_panels {
    ($rows:expr, $V:ident, $kernel:ident) => {{
        let rows = $rows;
        if rows <= $V::LANES {
            $kernel.by_panels::<$V>()
        } else if rows <= 2 * $V::LANES || $V::REGISTERS < 32 {
            $kernel.by_panels::<[$V; 2]>()
        } else {
            $kernel.by_panels::<[$V; 4]>()
        }
    }};
}

pub(crate) use by_panels;

/// How many lanes the panels of so many queries have.
pub(crate) fn panel_lanes<A: Real>(simd: Simd, rows: usize) -> usize {
    struct Lanes {
        rows: usize,
    }

    impl Lanes {
        fn by_panels<P: Vector>(self) -> usize {
            P::LANES
        }
    }

    impl<A: Real> Kernel<A> for Lanes {
        type Output = usize;

        #[inline(always)]
        fn run<V: Register<Lane = A>>(self) -> usize {
            by_panels!(self.rows, V, self)
        }
    }

    simd.run::<A, _>(Lanes { rows })
}

/// A thread's buffers, for blocks of up to [`QUERY_BLOCK`] queries.
pub(crate) struct Scratch<A> {
    /// Panel after panel, each `(dim, lanes)`.
    query: Vec<A>,
    /// `(TILE, dim)`
    pub(super) key: Vec<A>,
    /// `(TILE, dim_value)`
    value: Vec<A>,
    /// Of one panel `(TILE, lanes)`, as are the weights.
    pub(crate) scores: Vec<A>,
    weights: Vec<A>,
    steps: ScoreScratch,
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
            steps: ScoreScratch::new(),
            states: States::new(Order::RowsInLanes, QUERY_BLOCK, dim_value),
            tree: Tree::new(QUERY_BLOCK),
        }
    }

    pub(crate) fn bytes(dim: usize, dim_value: usize, tiles: usize) -> usize {
        let numbers =
            dim * (QUERY_BLOCK + TILE) + TILE * dim_value + 2 * TILE * QUERY_BLOCK + 2 * QUERY_BLOCK;
        numbers * size_of::<A>()
            + ScoreScratch::bytes(TILE * QUERY_BLOCK)
            + (1 + Tree::<A>::depth(tiles)) * States::<A>::bytes(QUERY_BLOCK, dim_value)
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
    fn run<V: Register<Lane = A>>(self) {
        by_panels!(self.block.queries.len(), V, self);
    }
}

impl<A: Real> Attend<'_, A> {
    #[inline(always)]
    fn by_panels<P: Vector<Lane = A>>(self) {
        let Self { block, target, scratch } = self;
        let (terms, rows) = (block.terms, block.queries.len());
        let (padded_rows, visibility) = (rows.next_multiple_of(P::LANES), &terms.visibility);
        scratch.load_queries(&block, P::LANES);
        let seen = visibility.keys_of_rows(block.batch, &block.queries);
        for (number, keys) in cut(seen, visibility.key_offset, TILE) {
            let tile = block.tile(block.queries.clone(), keys);
            let sort = terms.sort(&tile);
            if sort != Sort::Empty {
                scratch.states.resize::<P>(padded_rows, terms.dim_value);
                scratch.attend_tile::<P>(&block, &tile, sort);
                scratch.tree.push::<P>(number, &mut scratch.states);
            }
        }
        let states = &mut scratch.states;
        scratch.tree.fold::<P>(states, padded_rows, terms.dim_value);
        if target.finish() == Finish::Mean {
            if let Some(sink) = terms.sink(block.head) {
                states.take_sink(0..rows, sink);
            }
            states.divide::<P>(terms.dropout_factor());
        }
        for row in 0..rows {
            target.put_row(row, states, row);
        }
    }
}

impl<A> Block<'_, A> {
    pub(crate) fn tile(&self, rows: Range<usize>, keys: Range<usize>) -> Tile {
        Tile { batch: self.batch, head: self.head, rows, keys }
    }

    /// The queries of some rows of the block.
    pub(crate) fn queries_of(&self, rows: &Range<usize>) -> Range<usize> {
        self.queries.start + rows.start..self.queries.start + rows.end
    }

    /// Where keys and values of these queries are.
    pub(crate) fn of_key(&self) -> (usize, usize) {
        (self.batch, self.terms.key_head(self.head))
    }
}

/// The queries of one panel against the keys of a tile, or those of them that they can see.
pub(crate) struct Part {
    pub(crate) tile: Tile,
    pub(crate) sort: Sort,
    /// The panel's first row in the block.
    pub(crate) first: usize,
}

/// Values of the keys of a part, `(keys, columns)`.
#[derive(Clone, Copy)]
struct Values<'t, A> {
    numbers: &'t [A],
    columns: usize,
}

impl<A: Real> Scratch<A> {
    /// Transposes a block of queries, panel by panel.
    pub(crate) fn load_queries(&mut self, block: &Block<'_, A>, lanes: usize) {
        let (at, dim, rows) = ((block.batch, block.head), block.terms.dim, block.queries.len());
        for first in (0..rows).step_by(lanes) {
            let queries = block.queries_of(&(first..rows.min(first + lanes)));
            let to = &mut self.query[first * dim..][..lanes * dim];
            block.arrays.of(Role::Query).columns(block.terms.simd, at, queries, (to, lanes), Ahead::NOTHING);
        }
    }

    /// Leaves the states of a block over one tile, of which they see something, in `states`.
    #[inline(always)]
    fn attend_tile<P: Vector<Lane = A>>(&mut self, block: &Block<'_, A>, tile: &Tile, sort: Sort) {
        let (terms, rows) = (block.terms, block.queries.len());
        let (dim, columns) = (terms.dim, terms.dim_value);
        // Lent for the time of the products.
        let (mut keys, mut values) = (std::mem::take(&mut self.key), std::mem::take(&mut self.value));
        let (arrays, at) = (block.arrays, (block.of_key(), tile.keys.clone()));
        let key = rows_of_tile(arrays.of(Role::Key), terms.simd, at.clone(), &mut keys, dim);
        let value = rows_of_tile(arrays.of(Role::Value), terms.simd, at, &mut values, columns);
        // NaN and ∞ times a weight of 0 would be NaN, so where there are such values masked lanes are kept apart.
        let select = (sort == Sort::Mixed || terms.dropout.is_some()) && !all_finite(value);
        for first in (0..rows).step_by(P::LANES) {
            let queries = block.queries_of(&(first..rows.min(first + P::LANES)));
            let mut part = Part { tile: block.tile(queries, tile.keys.clone()), sort, first };
            if sort == Sort::Mixed {
                // Fewer queries may see fewer keys.
                let seen = terms.visibility.keys_of_rows(block.batch, &part.tile.rows);
                part.tile.keys = seen.start.max(tile.keys.start)..seen.end.min(tile.keys.end);
                part.sort = if part.tile.keys.is_empty() { Sort::Empty } else { terms.sort(&part.tile) };
            }
            if part.sort == Sort::Empty {
                self.states.clear(first..first + P::LANES);
                continue;
            }
            let keys = part.tile.keys.start - tile.keys.start..part.tile.keys.end - tile.keys.start;
            let maxima = self.score::<P>(terms, &part, &key[keys.start * dim..keys.end * dim], Stage::Masked);
            self.weigh(&part, maxima);
            if let Some(dropout) = &terms.dropout {
                self.leave_out::<P>(terms, dropout, &part);
            }
            let value = Values { numbers: &value[keys.start * columns..keys.end * columns], columns };
            self.mix_all::<P>(&part, value, select);
        }
        (self.key, self.value) = (keys, values);
    }

    /// Leaves a panel's scores after a stage in `scores`; returns the largest of each row.
    #[inline(always)]
    pub(crate) fn score<P: Vector<Lane = A>>(
        &mut self,
        terms: &Terms<'_>,
        part: &Part,
        key: &[A],
        stage: Stage,
    ) -> P {
        let (count, dim) = (part.tile.keys.len(), terms.dim);
        let query = &self.query[part.first * dim..][..P::LANES * dim];
        let finished = are_finished(terms, part.sort);
        let mixed = part.sort == Sort::Mixed;
        let products = if mixed { &mut self.weights } else { &mut self.scores };
        let products = &mut products[..count * P::LANES];
        let epilogue = Epilogue::<P>::new(stage, terms);
        let mut maxima = P::splat(A::NEG_INFINITY);
        by_chains!(count, [CHAINS, FEWER], (at, KEYS) => {
            products_of::<P, KEYS>(query, (key, at, dim), products, epilogue, &mut maxima);
        });
        if finished {
            return maxima;
        }
        let cells = ..count * P::LANES;
        terms.simd.run(TakeTo {
            stage,
            terms,
            tile: &part.tile,
            mixed: mixed.then(|| &mut self.weights[cells]),
            scores: Grid { cells: &mut self.scores[cells], row_step: 1, key_step: P::LANES },
            scratch: &mut self.steps,
        });
        maxima = P::splat(A::NEG_INFINITY);
        for of_key in self.scores[..count * P::LANES].chunks_exact(P::LANES) {
            maxima = larger(P::load(of_key), maxima);
        }
        maxima
    }

    /// [`score`](Self::score) for who has other work than attention to do, compiled once for all of them; `lanes` are the panel's.
    pub(crate) fn score_apart(
        &mut self,
        terms: &Terms<'_>,
        part: &Part,
        key: &[A],
        stage: Stage,
        lanes: usize,
    ) {
        let mixed = part.sort == Sort::Mixed;
        let cells = ..part.tile.keys.len() * lanes;
        let to = if mixed { &mut self.weights[cells] } else { &mut self.scores[cells] };
        let query = &self.query[part.first * terms.dim..][..lanes * terms.dim];
        terms.simd.run(Products { query, key, dim: terms.dim, terms, stage, lanes, to });
        if are_finished(terms, part.sort) {
            return;
        }
        terms.simd.run(TakeTo {
            stage,
            terms,
            tile: &part.tile,
            mixed: mixed.then(|| &mut self.weights[cells]),
            scores: Grid { cells: &mut self.scores[cells], row_step: 1, key_step: lanes },
            scratch: &mut self.steps,
        });
    }

    /// From a panel's scores to unnormalised weights, and their sums.
    #[inline(always)]
    fn weigh<P: Vector<Lane = A>>(&mut self, part: &Part, maxima: P) {
        let Shifted { max, shift } = Shifted::by(maxima);
        let mut sums = P::splat(A::ZERO);
        let cells = part.tile.keys.len() * P::LANES;
        // Keys by twos, so that twice as many exponentials overlap.
        let mut scores = self.scores[..cells].chunks_exact(2 * P::LANES);
        let mut weights = self.weights[..cells].chunks_exact_mut(2 * P::LANES);
        for (scores, weights) in scores.by_ref().zip(weights.by_ref()) {
            // A masked score is -∞ and its exponential exactly 0.
            let p = exp(<[P; 2]>::load(scores).sub([shift; 2]));
            sums = sums.add(p[0]).add(p[1]);
            p.store(weights);
        }
        if let (last @ [_, ..], weights) = (scores.remainder(), weights.into_remainder()) {
            let p = exp(P::load(last).sub(shift));
            sums = sums.add(p);
            p.store(weights);
        }
        max.store(&mut self.states.max[part.first..]);
        sums.store(&mut self.states.sum[part.first..]);
    }

    /// Takes dropped pairs out of a panel's weights and scores.
    #[inline(always)]
    fn leave_out<P: Vector<Lane = A>>(&mut self, terms: &Terms<'_>, dropout: &Dropout, part: &Part) {
        let cells = ..part.tile.keys.len() * P::LANES;
        terms.simd.run(LeaveOut {
            dropout,
            visibility: &terms.visibility,
            tile: &part.tile,
            weights: Grid { cells: &mut self.weights[cells], row_step: 1, key_step: P::LANES },
            scores: &mut self.scores[cells],
        });
    }

    /// The weighted sums of values, for a panel.
    #[inline(always)]
    fn mix_all<P: Vector<Lane = A>>(&mut self, part: &Part, value: Values<'_, A>, select: bool) {
        let columns = value.columns;
        if select {
            for at in 0..columns {
                self.mix::<P, 1, true>(part, value, at);
            }
            return;
        }
        by_chains!(columns, [CHAINS, FEWER], (at, COLUMNS) => self.mix::<P, COLUMNS, false>(part, value, at));
    }

    /// [`mix_all`](Self::mix_all) for a few columns, from `column` on.
    #[inline(always)]
    fn mix<P: Vector<Lane = A>, const COLUMNS: usize, const SELECT: bool>(
        &mut self,
        part: &Part,
        value: Values<'_, A>,
        column: usize,
    ) {
        let count = part.tile.keys.len();
        let mut sums = [P::splat(A::ZERO); COLUMNS];
        let numbers = &value.numbers[column..];
        if SELECT {
            let scores = self.scores.chunks_exact(P::LANES).zip(self.weights.chunks_exact(P::LANES));
            for ((scores, weights), value) in scores.zip(numbers.chunks(value.columns)) {
                let (s, p) = (P::load(scores), P::load(weights));
                for (sum, &v) in sums.iter_mut().zip(value) {
                    let mixed = p.mul_add(P::splat(v), *sum);
                    *sum = s.if_equal(P::splat(A::NEG_INFINITY), *sum, mixed);
                }
            }
        } else {
            let weights = Vectors { numbers: &self.weights, stride: P::LANES };
            let values = Numbers { numbers, chain: 1, step: value.columns };
            accumulate(&mut sums, count, weights, values, Ahead::NOTHING);
        }
        let output = self.states.columns::<P>(part.first, column..column + COLUMNS);
        for (sum, output) in sums.into_iter().zip(output.chunks_exact_mut(P::LANES)) {
            sum.store(output);
        }
    }
}

/// `q · k` of a panel of queries, `(dim, lanes)`, with some keys, `(keys, dim)`, after the [`Epilogue`] of a stage: `(keys, lanes)`.
pub(crate) struct Products<'k, A> {
    pub(crate) query: &'k [A],
    pub(crate) key: &'k [A],
    pub(crate) dim: usize,
    pub(crate) terms: &'k Terms<'k>,
    pub(crate) stage: Stage,
    /// Those of a panel.
    pub(crate) lanes: usize,
    pub(crate) to: &'k mut [A],
}

impl<A: Real> Kernel<A> for Products<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Register<Lane = A>>(self) {
        by_panels!(self.lanes, V, self);
    }
}

impl<A: Real> Products<'_, A> {
    #[inline(always)]
    fn by_panels<P: Vector<Lane = A>>(self) {
        let Self { query, key, dim, terms, stage, lanes, to } = self;
        let epilogue = Epilogue::<P>::new(stage, terms);
        let mut maxima = P::splat(A::NEG_INFINITY);
        by_chains!(to.len() / lanes, [CHAINS, FEWER], (at, KEYS) => {
            products_of::<P, KEYS>(query, (key, at, dim), to, epilogue, &mut maxima);
        });
    }
}

/// `q · k` of a panel of queries, `(dim, lanes)`, with a few keys, from `at` on, of `(keys, dim)`, and what becomes of it;
/// maxima follow.
#[inline(always)]
fn products_of<P: Vector, const KEYS: usize>(
    query: &[P::Lane],
    (key, at, dim): (&[P::Lane], usize, usize),
    scores: &mut [P::Lane],
    epilogue: Epilogue<P>,
    maxima: &mut P,
) {
    let mut sums = [P::splat(P::Lane::ZERO); KEYS];
    let queries = Vectors { numbers: query, stride: P::LANES };
    let keys = Numbers { numbers: &key[at * dim..], chain: dim, step: 1 };
    accumulate(&mut sums, dim, queries, keys, Ahead::NOTHING);
    let scores = &mut scores[at * P::LANES..][..KEYS * P::LANES];
    for (sum, scores) in sums.into_iter().zip(scores.chunks_exact_mut(P::LANES)) {
        let s = epilogue.of(sum);
        *maxima = larger(s, *maxima);
        s.store(scores);
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, Ix2};

    use super::*;
    use crate::forward::rows::Heads;
    use crate::problem::{Path, Problem};
    use crate::{Alignment, Attention, Generator};

    /// Panels of as many registers as AVX-512 has room for, on any machine.
    struct Widest<'k, A>(Attend<'k, A>);

    impl<A: Real> Kernel<A> for Widest<'_, A> {
        type Output = ();

        #[inline(always)]
        fn run<V: Register<Lane = A>>(self) {
            self.0.by_panels::<[V; 4]>();
        }
    }

    fn widest_is_scalar<A: Real>(attention: &Attention<'_>, [query, key, value]: &[Array2<A>; 3]) {
        let problem = Problem::new(attention, query.view(), key.view(), value.view()).unwrap();
        let (len_query, dim_value) = (query.nrows(), value.ncols());
        let mut output = Array2::<A>::from_elem((len_query, dim_value), A::NAN);
        let mut scratch = Scratch::new(problem.terms.dim, dim_value);
        let heads = Heads::one(output.view_mut(), (0, 0, 0), None, Finish::Mean);
        for mut rows in heads.flat_map(|rows| rows.blocks(QUERY_BLOCK)) {
            let queries = rows.first..rows.first + rows.len();
            let block = Block { terms: &problem.terms, arrays: &problem, batch: 0, head: 0, queries };
            let attend = Attend { block, target: &mut rows, scratch: &mut scratch };
            problem.terms.simd.run(Widest(attend));
        }
        let scalar = attention.clone().path(Path::Scalar);
        let wanted = scalar.forward(query.view(), key.view(), value.view()).unwrap();
        let bits = |numbers: &Array2<A>| numbers.mapv(|x| x.to_f64().to_bits());
        assert_eq!(bits(&output), bits(&wanted));
    }

    fn check<A: Real>() {
        let draw = |seed, shape: [usize; 2]| {
            let drawn = Generator::new(seed).randn(&shape).unwrap();
            drawn.mapv(A::from_f32).into_dimensionality::<Ix2>().unwrap()
        };
        let mask = Array2::from_shape_fn((150, 200), |(query, key)| (7 * query + 3 * key) % 5 != 0);
        let bias = draw(4, [150, 200]);
        let bias = bias.mapv(|x| x.to_f64());
        let plain = Attention::new();
        for attention in [
            plain.clone(),
            plain.clone().causal(Alignment::BottomRight),
            plain.clone().window(Some(40), Some(5)).sinks([0.5]),
            plain.clone().mask(mask.view()).softcap(3.0),
            plain.clone().bias(bias.view()).mask(mask.view()),
        ] {
            let mut arrays = [draw(1, [150, 20]), draw(2, [200, 20]), draw(3, [200, 19])];
            widest_is_scalar(&attention, &arrays);
            arrays[2][[70, 3]] = A::NAN;
            arrays[2][[130, 4]] = A::INFINITY;
            widest_is_scalar(&attention, &arrays);
        }
    }

    #[test]
    fn panels_may_be_of_any_width() {
        check::<f32>();
        check::<f64>();
    }
}
