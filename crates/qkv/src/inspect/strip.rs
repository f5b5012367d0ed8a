//! One head strip by strip: the scores and weights of a block of queries against some hundred keys, made by the kernels
//! that make the output, so that whatever is said of a head is said of the numbers that the engine computes with.

use std::ops::Range;

use ndarray::Array2;

use crate::element::{Element, Real};
use crate::forward::{Arrays, Block, Columns, Matrix, MatrixTarget, PrefillScratch, weight};
use crate::problem::{Stage, Terms};
use crate::simd::{Kernel, Register, Vector};
use crate::tile::{Pair, QUERY_BLOCK, Sort, TILE, Tile, cut};

/// Keys of a strip: long enough that bringing in the queries for each costs little, and so few that its numbers stay in the
/// second cache.
pub(crate) const STRIP: usize = 4 * TILE;

/// A number for each pair of some queries and keys.
pub(crate) struct Strip<A> {
    pub(crate) queries: Range<usize>,
    pub(crate) keys: Range<usize>,
    /// `(keys, QUERY_BLOCK)`; those beyond the last query are -∞, or as weights 0.
    cells: Vec<A>,
}

impl<A: Real> Strip<A> {
    pub(crate) fn new() -> Self {
        Self { queries: 0..0, keys: 0..0, cells: vec![A::ZERO; STRIP * QUERY_BLOCK] }
    }

    /// Another part of the head; its numbers are yet to be written.
    fn move_to(&mut self, queries: &Range<usize>, keys: &Range<usize>) {
        (self.queries, self.keys) = (queries.clone(), keys.clone());
    }

    /// Of each key the numbers of all queries of the block.
    pub(crate) fn of_keys(&self) -> &[[A; QUERY_BLOCK]] {
        &self.cells.as_chunks().0[..self.keys.len()]
    }

    pub(crate) fn of_keys_mut(&mut self) -> &mut [[A; QUERY_BLOCK]] {
        &mut self.cells.as_chunks_mut().0[..self.keys.len()]
    }

    /// The number of a query, counted from the strip's first, and a key of the head.
    pub(crate) fn at(&self, row: usize, key: usize) -> A {
        self.of_keys()[key - self.keys.start][row]
    }
}

impl Strip<f64> {
    /// Becomes another strip, in f64.
    pub(crate) fn widen<A: Real>(&mut self, from: &Strip<A>) {
        self.move_to(&from.queries, &from.keys);
        for (to, from) in self.of_keys_mut().iter_mut().zip(from.of_keys()) {
            *to = from.map(Real::to_f64);
        }
    }
}

impl<A: Real> MatrixTarget<A> for Strip<A> {
    fn set_columns(&mut self, columns: Columns<'_, A>) {
        let (rows, first, queries) = (columns.rows.clone(), self.keys.start, self.queries.len());
        for (key, numbers) in columns.each() {
            let to = &mut self.of_keys_mut()[key - first];
            to[rows.clone()].copy_from_slice(numbers);
            if rows.end == queries {
                to[queries..].fill(A::NEG_INFINITY);
            }
        }
    }
}

/// What is read of a head: all of a call but the type of its arrays.
#[derive(Clone)]
pub(crate) struct Head<'p, A> {
    pub(crate) terms: &'p Terms<'p>,
    pub(crate) arrays: &'p dyn Arrays<A>,
    pub(crate) batch: usize,
    pub(crate) head: usize,
    /// The queries that are open.
    pub(crate) queries: Range<usize>,
    /// Maximum and sum of each of them, if weights are wanted.
    pub(crate) stats: [&'p [A]; 2],
}

impl<'p, A: Real> Head<'p, A> {
    /// Maximum and sum of some of them.
    pub(crate) fn stats(&self, queries: &Range<usize>) -> [&'p [A]; 2] {
        let [start, end] = [queries.start, queries.end].map(|query| query - self.queries.start);
        self.stats.map(|all| &all[start..end])
    }

    /// The strips of some keys that queries of one block may see.
    pub(crate) fn seen<'s>(
        &'s self,
        queries: &'s Range<usize>,
        keys: &Range<usize>,
    ) -> impl Iterator<Item = Range<usize>> + 's {
        let seen = self.terms.visibility.keys_of_rows(self.batch, queries);
        let seen = seen.start.max(keys.start)..seen.end.min(keys.end);
        self.strips(seen).filter(|keys| self.sees(queries, keys))
    }

    /// Whether some query of a block may attend some key of a strip.
    pub(crate) fn sees(&self, queries: &Range<usize>, keys: &Range<usize>) -> bool {
        self.tiles(keys).any(|keys| self.sort(queries, &keys) != Sort::Empty)
    }

    /// Some keys, strip by strip.
    pub(crate) fn strips(&self, keys: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<'p, A> {
        strips(self.terms, keys)
    }

    /// The tiles of a strip.
    fn tiles(&self, keys: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<'p, A> {
        cut(keys.clone(), self.terms.visibility.key_offset, TILE).map(|(_, keys)| keys)
    }

    /// How many positions a query stands behind a key.
    pub(crate) fn offset(&self, query: usize, key: usize) -> f64 {
        let pair = Pair { batch: self.batch, head: self.head, query, key };
        let (query, key) = self.terms.visibility.positions(pair);
        (query - key) as f64
    }

    /// Of a tile.
    fn sort(&self, queries: &Range<usize>, keys: &Range<usize>) -> Sort {
        let (rows, keys) = (queries.clone(), keys.clone());
        self.terms.sort(&Tile { batch: self.batch, head: self.head, rows, keys })
    }
}

/// Some keys, strip by strip.
pub(crate) fn strips(terms: &Terms<'_>, keys: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    cut(keys, terms.visibility.key_offset, STRIP).map(|(_, keys)| keys)
}

/// Queries cut into blocks, where masks are sorted.
pub(crate) fn blocks(queries: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    cut(queries, 0, QUERY_BLOCK).map(|(_, queries)| queries)
}

/// A thread's buffers: what it makes strips with, and the two that it has.
pub(crate) struct Strips<A> {
    scratch: PrefillScratch<A>,
    scores: Strip<A>,
    weights: Strip<A>,
}

impl<A: Real> Strips<A> {
    pub(crate) fn new(terms: &Terms<'_>) -> Self {
        Self { scratch: PrefillScratch::new(terms.dim, 0), scores: Strip::new(), weights: Strip::new() }
    }

    /// The scores of a block and a strip after a stage.
    pub(crate) fn score(
        &mut self,
        head: &Head<'_, A>,
        stage: Stage,
        queries: &Range<usize>,
        keys: &Range<usize>,
    ) -> &Strip<A> {
        self.scores.move_to(queries, keys);
        let Head { terms, arrays, batch, head, .. } = head.clone();
        let block = Block { terms, arrays, batch, head, queries: queries.clone() };
        let (target, scratch) = (&mut self.scores, &mut self.scratch);
        A::columns(
            terms.simd,
            Matrix { block, stage, stats: [&[], &[]], keys: keys.clone(), target, scratch },
        );
        &self.scores
    }

    /// The masked scores of a block and a strip, and the weights that they become.
    pub(crate) fn weigh(
        &mut self,
        head: &Head<'_, A>,
        queries: &Range<usize>,
        keys: &Range<usize>,
    ) -> (&Strip<A>, &mut Strip<A>) {
        self.score(head, Stage::Masked, queries, keys);
        self.weights.move_to(queries, keys);
        let (scores, weights) = (self.scores.of_keys(), self.weights.of_keys_mut());
        head.terms.simd.run(Weigh { stats: head.stats(queries), scores, weights });
        (&self.scores, &mut self.weights)
    }

    /// 1 where a query of the block may attend a key of the strip, else 0. Scores are computed only where that is seen by them.
    pub(crate) fn see(
        &mut self,
        head: &Head<'_, A>,
        queries: &Range<usize>,
        keys: &Range<usize>,
    ) -> &Strip<A> {
        for tile in head.tiles(keys) {
            let sort = head.sort(queries, &tile);
            if sort == Sort::Mixed {
                self.score(head, Stage::Masked, queries, &tile);
            }
            self.weights.move_to(queries, keys);
            let scores = self.scores.of_keys();
            let tile = tile.start - keys.start..tile.end - keys.start;
            for (at, visible) in self.weights.of_keys_mut()[tile].iter_mut().enumerate() {
                match sort {
                    Sort::Empty => visible.fill(A::ZERO),
                    Sort::Full => visible[..queries.len()].fill(A::ONE),
                    Sort::Mixed => {
                        let seen = |s: A| if s == A::NEG_INFINITY { A::ZERO } else { A::ONE };
                        *visible = scores[at].map(seen);
                    }
                }
            }
        }
        &self.weights
    }
}

/// From a strip of masked scores to one of weights.
struct Weigh<'s, A> {
    /// Maximum and sum of each query.
    stats: [&'s [A]; 2],
    scores: &'s [[A; QUERY_BLOCK]],
    weights: &'s mut [[A; QUERY_BLOCK]],
}

impl<A: Real> Kernel<A> for Weigh<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Register<Lane = A>>(self) {
        self.by::<[V; 2]>();
    }
}

impl<A: Real> Weigh<'_, A> {
    #[inline(always)]
    fn by<V: Vector<Lane = A>>(self) {
        let Self { stats: [max, sum], scores, weights } = self;
        let mut stats = [[A::ONE; QUERY_BLOCK]; 2];
        stats[0][..max.len()].copy_from_slice(max);
        stats[1][..sum.len()].copy_from_slice(sum);
        for at in (0..QUERY_BLOCK).step_by(V::LANES) {
            let [max, sum] = [V::load(&stats[0][at..]), V::load(&stats[1][at..])];
            for (scores, weights) in scores.iter().zip(weights.iter_mut()) {
                weight(V::load(&scores[at..]), max, sum).store(&mut weights[at..]);
            }
        }
    }
}

/// Writes some rows and columns of the matrix of scores after a stage, or of weights.
pub(crate) fn write<A: Real>(
    head: &Head<'_, A>,
    stage: Stage,
    (queries, keys): (&Range<usize>, &Range<usize>),
    matrix: &mut Array2<A>,
) {
    let mut strips = Strips::new(head.terms);
    for block in blocks(queries.clone()) {
        for strip in head.strips(keys.clone()) {
            let strip = match stage {
                Stage::Weights => &*strips.weigh(head, &block, &strip).1,
                _ => strips.score(head, stage, &block, &strip),
            };
            for (key, numbers) in strip.keys.clone().zip(strip.of_keys()) {
                for (query, &x) in block.clone().zip(numbers) {
                    matrix[[query - queries.start, key - keys.start]] = Element::leave(x);
                }
            }
        }
    }
}
