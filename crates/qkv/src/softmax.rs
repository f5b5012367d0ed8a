//! The online softmax of the fast paths: the states of a block of rows, and what happens to them when a tile is
//! pushed, when two spans of keys merge, and when all is done.

use crate::element::Real;
use crate::simd::Vector;
use crate::simd::math::exp;

/// What is next to what in the output of a block of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Column by column, the rows of a column side by side: queries in the lanes.
    RowsInLanes,
    /// Row by row: value columns in the lanes.
    ColumnsInLanes,
}

/// Maximum, sum and output of each row of a block over some keys.
///
/// Rows, and columns when these are in the lanes, are padded to whole vectors; padding is computed and never read.
#[derive(Clone, Debug)]
pub(crate) struct States<A> {
    order: Order,
    rows: usize,
    columns: usize,
    pub(crate) max: Vec<A>,
    pub(crate) sum: Vec<A>,
    pub(crate) output: Vec<A>,
}

/// What follows for a vector of rows from their new maxima.
#[derive(Clone, Copy)]
pub(crate) struct Raised<V> {
    /// What scores are to be reduced by.
    pub(crate) reference: V,
    /// What outputs are to be multiplied by: 1, which changes no bit, where a maximum did not grow.
    pub(crate) factor: V,
}

impl<A: Real> States<A> {
    /// Padded extents.
    pub(crate) fn new(order: Order, rows: usize, columns: usize) -> Self {
        Self {
            order,
            rows,
            columns,
            max: vec![A::NEG_INFINITY; rows],
            sum: vec![A::ZERO; rows],
            output: vec![A::ZERO; rows * columns],
        }
    }

    pub(crate) fn bytes(rows: usize, columns: usize) -> usize {
        (rows * (columns + 2)) * size_of::<A>()
    }

    /// Back to no keys seen, for another block of up to as many rows.
    pub(crate) fn reset(&mut self, rows: usize) {
        self.rows = rows;
        self.max.resize(rows, A::NEG_INFINITY);
        self.sum.resize(rows, A::ZERO);
        self.output.resize(rows * self.columns, A::ZERO);
        self.max.fill(A::NEG_INFINITY);
        self.sum.fill(A::ZERO);
        self.output.fill(A::ZERO);
    }

    /// Where a number of the output stands.
    #[inline(always)]
    pub(crate) fn index(&self, row: usize, column: usize) -> usize {
        match self.order {
            Order::RowsInLanes => column * self.rows + row,
            Order::ColumnsInLanes => row * self.columns + column,
        }
    }

    /// Raises the maxima of a vector of rows, from padded row `at` on, to those of a new tile. What was summed under the
    /// old ones is to be rescaled: the sums are, the outputs are left to the caller, who is about to add to them.
    #[inline(always)]
    pub(crate) fn raise<V: Vector<Lane = A>>(&mut self, at: usize, tile_max: V) -> Raised<V> {
        let (zero, none) = (V::splat(A::ZERO), V::splat(A::NEG_INFINITY));
        let old = V::load(&self.max[at..]);
        // + 0: a maximum of -0 and one of +0 must not differ.
        let tile = tile_max.add(zero);
        let max = old.if_less(tile, tile, old);
        let factor = old.if_less(tile, exp(old.sub(tile)), V::splat(A::ONE));
        V::load(&self.sum[at..]).mul(factor).store(&mut self.sum[at..]);
        max.store(&mut self.max[at..]);
        // A row of NaN alone has no maximum, and -∞ - -∞ must not appear.
        Raised { reference: max.if_equal(none, zero, max), factor }
    }

    /// Appends the states of the keys that follow.
    #[inline(always)]
    pub(crate) fn merge<V: Vector<Lane = A>>(&mut self, newer: &Self, a: &mut [A], b: &mut [A]) {
        let (zero, one, none) = (V::splat(A::ZERO), V::splat(A::ONE), V::splat(A::NEG_INFINITY));
        for at in (0..self.rows).step_by(V::LANES) {
            let (old_max, new_max) = (V::load(&self.max[at..]), V::load(&newer.max[at..]));
            let (old_sum, new_sum) = (V::load(&self.sum[at..]), V::load(&newer.sum[at..]));
            let max = new_max.if_less(old_max, old_max, new_max);
            let old_share = old_max.if_equal(none, zero, exp(old_max.sub(max)));
            let new_share = new_max.if_equal(none, zero, exp(new_max.sub(max)));
            let sum = new_sum.mul_add(new_share, old_sum.mul(old_share));
            // An empty side is the identity: the other's numbers pass unchanged.
            let pass =
                |merged: V, old: V, new: V| old_sum.if_equal(zero, new, new_sum.if_equal(zero, old, merged));
            pass(max, old_max, new_max).store(&mut self.max[at..]);
            pass(sum, old_sum, new_sum).store(&mut self.sum[at..]);
            pass(old_share, one, zero).store(&mut a[at..]);
            pass(new_share, zero, one).store(&mut b[at..]);
        }
        // The factors 0 and 1 leave an empty side's zeros out, but for the sign of a zero, which no result shows.
        let line = match self.order {
            Order::RowsInLanes => self.rows,
            Order::ColumnsInLanes => self.columns,
        };
        let lines = self.output.chunks_exact_mut(line.max(1)).zip(newer.output.chunks_exact(line.max(1)));
        for (index, (older, newer)) in lines.enumerate() {
            for at in (0..line).step_by(V::LANES) {
                let (a, b) = match self.order {
                    Order::RowsInLanes => (V::load(&a[at..]), V::load(&b[at..])),
                    Order::ColumnsInLanes => (V::splat(a[index]), V::splat(b[index])),
                };
                let old = V::load(&older[at..]).mul(a);
                V::load(&newer[at..]).mul_add(b, old).store(&mut older[at..]);
            }
        }
    }

    /// A number of the finished output of a row that has seen all keys.
    pub(crate) fn mean(&self, row: usize, column: usize) -> A {
        if self.sum[row] == A::ZERO {
            A::ZERO
        } else {
            self.output[self.index(row, column)] / self.sum[row] + A::ZERO
        }
    }

    /// Takes a sink into one row.
    pub(crate) fn take_sink(&mut self, row: usize, sink: A) {
        if sink == A::NEG_INFINITY {
            return;
        }
        let old = self.max[row];
        let max = if old < sink { sink } else { old };
        let factor = exp(old - max);
        self.max[row] = max;
        self.sum[row] = A::ONE.mul_add(exp(sink - max), self.sum[row] * factor);
        for column in 0..self.columns {
            let at = self.index(row, column);
            self.output[at] = self.output[at] * factor;
        }
    }
}

/// The fixed binary tree over absolute chunks, along which the states of chunks merge.
///
/// Its nodes are aligned powers of two of chunks; chunks that were skipped are empty and so change nothing. Two
/// nodes merge as soon as no chunk to come can fall between them in the tree.
#[derive(Debug)]
pub(crate) struct Tree<A> {
    /// Some chunk of each pending node, and its states; oldest first.
    nodes: Vec<(u64, States<A>)>,
    spare: Vec<States<A>>,
    a: Vec<A>,
    b: Vec<A>,
}

impl<A: Real> Tree<A> {
    pub(crate) fn new(rows: usize) -> Self {
        Self { nodes: Vec::new(), spare: Vec::new(), a: vec![A::ZERO; rows], b: vec![A::ZERO; rows] }
    }

    /// How many nodes can be pending at once over some chunks.
    pub(crate) fn depth(chunks: usize) -> usize {
        chunks.checked_ilog2().map_or(0, |log| log as usize + 2)
    }

    /// Appends a chunk, later than all before; `states` is left with numbers of no meaning.
    #[inline(always)]
    pub(crate) fn push<V: Vector<Lane = A>>(&mut self, chunk: u64, states: &mut States<A>) {
        while let [.., (older, _), (newer, _)] = self.nodes[..]
            && level(older, newer) <= level(newer, chunk)
        {
            self.merge_last::<V>();
        }
        let mut node = self.spare.pop().unwrap_or_else(|| states.clone());
        std::mem::swap(&mut node, states);
        self.nodes.push((chunk, node));
    }

    /// Merges what is pending, newest first, into `states`, of `rows` padded rows, and is empty again.
    #[inline(always)]
    pub(crate) fn fold<V: Vector<Lane = A>>(&mut self, states: &mut States<A>, rows: usize) {
        while self.nodes.len() > 1 {
            self.merge_last::<V>();
        }
        match self.nodes.pop() {
            Some((_, whole)) => self.spare.push(std::mem::replace(states, whole)),
            None => states.reset(rows),
        }
    }

    #[inline(always)]
    fn merge_last<V: Vector<Lane = A>>(&mut self) {
        if let Some((_, newer)) = self.nodes.pop()
            && let Some((_, older)) = self.nodes.last_mut()
        {
            older.merge::<V>(&newer, &mut self.a, &mut self.b);
            self.spare.push(newer);
        }
    }
}

/// How high in the tree two chunks meet.
fn level(one: u64, other: u64) -> u32 {
    u64::BITS - (one ^ other).leading_zeros()
}
