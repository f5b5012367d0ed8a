//! The online softmax of the fast paths: the states of a block of rows over a tile, what happens to them when two spans
//! of keys merge, and when all is done.

use std::ops::Range;

use crate::element::Real;
use crate::simd::Vector;
use crate::simd::math::exp;

/// What is next to what in the output of a block of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// A vector of rows after another, each `(columns, lanes)`: queries in the lanes.
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
    lanes: usize,
    pub(crate) max: Vec<A>,
    pub(crate) sum: Vec<A>,
    pub(crate) output: Vec<A>,
}

impl<A: Real> States<A> {
    /// Padded extents.
    pub(crate) fn new(order: Order, rows: usize, columns: usize) -> Self {
        Self {
            order,
            rows,
            columns,
            lanes: 1,
            max: vec![A::NEG_INFINITY; rows],
            sum: vec![A::ZERO; rows],
            output: vec![A::ZERO; rows * columns],
        }
    }

    pub(crate) fn bytes(rows: usize, columns: usize) -> usize {
        (rows * (columns + 2)) * size_of::<A>()
    }

    /// Makes room for a block of up to as many rows and columns as there were at first. What the numbers are has no meaning.
    #[inline(always)]
    pub(crate) fn resize<V: Vector<Lane = A>>(&mut self, rows: usize, columns: usize) {
        self.rows = rows;
        self.columns = columns;
        self.lanes = V::LANES;
        self.max.resize(rows, A::NEG_INFINITY);
        self.sum.resize(rows, A::ZERO);
        self.output.resize(rows * self.columns, A::ZERO);
    }

    /// Some rows, whole vectors of them where rows are in the lanes, have seen no keys.
    pub(crate) fn clear(&mut self, rows: Range<usize>) {
        self.max[rows.clone()].fill(A::NEG_INFINITY);
        self.sum[rows.clone()].fill(A::ZERO);
        self.output[rows.start * self.columns..rows.end * self.columns].fill(A::ZERO);
    }

    /// Where the output of a row begins, and how far apart its columns are.
    #[inline(always)]
    fn line(&self, row: usize) -> (usize, usize) {
        match self.order {
            Order::RowsInLanes => {
                let lane = row % self.lanes;
                ((row - lane) * self.columns + lane, self.lanes)
            }
            Order::ColumnsInLanes => (row * self.columns, 1),
        }
    }

    /// The output of a row, column by column.
    pub(crate) fn output_of(&self, row: usize) -> impl Iterator<Item = A> + '_ {
        let (start, step) = self.line(row);
        (0..self.columns).map(move |column| self.output[start + column * step])
    }

    /// Writes the output of a row; for columns in the lanes.
    pub(crate) fn set_output(&mut self, row: usize, output: &[A]) {
        self.output[row * self.columns..][..output.len()].copy_from_slice(output);
    }

    /// The output of a vector of rows, from `row` on, in some columns: `(columns, lanes)`; for rows in the lanes.
    #[inline(always)]
    pub(crate) fn columns<V: Vector<Lane = A>>(&mut self, row: usize, columns: Range<usize>) -> &mut [A] {
        let start = row * self.columns + columns.start * V::LANES;
        &mut self.output[start..][..columns.len() * V::LANES]
    }

    /// Numbers that lie together in the output and come from one vector of rows, or from one row.
    #[inline(always)]
    fn line_len<V: Vector>(&self) -> usize {
        match self.order {
            Order::RowsInLanes => self.columns * V::LANES,
            Order::ColumnsInLanes => self.columns,
        }
    }

    /// Of a number for each row, what goes with each vector of a line.
    #[inline(always)]
    fn of_line<V: Vector<Lane = A>>(&self, of_rows: &[A], line: usize) -> V {
        match self.order {
            Order::RowsInLanes => V::load(&of_rows[line * V::LANES..]),
            Order::ColumnsInLanes => V::splat(of_rows[line]),
        }
    }

    /// Appends the states of the keys that follow; `a` and `b` have room for a number for each row.
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
            for (merged, old, new, to) in [
                (max, old_max, new_max, &mut self.max[..]),
                (sum, old_sum, new_sum, &mut self.sum[..]),
                (old_share, one, zero, &mut *a),
                (new_share, zero, one, &mut *b),
            ] {
                let passed = new_sum.if_equal(zero, old, merged);
                old_sum.if_equal(zero, new, passed).store(&mut to[at..]);
            }
        }
        // The factors 0 and 1 leave an empty side's zeros out, but for the sign of a zero, which no result shows.
        let len = self.line_len::<V>().max(1);
        let mut output = std::mem::take(&mut self.output);
        for (line, (older, newer)) in
            output.chunks_exact_mut(len).zip(newer.output.chunks_exact(len)).enumerate()
        {
            let (a, b): (V, V) = (self.of_line(a, line), self.of_line(b, line));
            for (older, newer) in older.chunks_exact_mut(V::LANES).zip(newer.chunks_exact(V::LANES)) {
                let old = V::load(older).mul(a);
                V::load(newer).mul_add(b, old).store(older);
            }
        }
        self.output = output;
    }

    /// From weighted sums over all keys to means, times a factor if there is one; 0 where no key was seen.
    #[inline(always)]
    pub(crate) fn divide<V: Vector<Lane = A>>(&mut self, factor: Option<A>) {
        let zero = V::splat(A::ZERO);
        let len = self.line_len::<V>().max(1);
        let mut output = std::mem::take(&mut self.output);
        for (line, output) in output.chunks_exact_mut(len).enumerate() {
            let sum: V = self.of_line(&self.sum, line);
            for output in output.chunks_exact_mut(V::LANES) {
                let mut mean = V::load(output).div(sum);
                if let Some(factor) = factor {
                    mean = mean.mul(V::splat(factor));
                }
                let mean = mean.add(zero);
                sum.if_equal(zero, zero, mean).store(output);
            }
        }
        self.output = output;
    }

    /// Takes a sink into some rows.
    #[inline(always)]
    pub(crate) fn take_sink(&mut self, rows: Range<usize>, sink: A) {
        if sink == A::NEG_INFINITY {
            return;
        }
        for row in rows {
            let old = self.max[row];
            let max = if old < sink { sink } else { old };
            let factor = exp(old - max);
            self.max[row] = max;
            self.sum[row] = A::ONE.mul_add(exp(sink - max), self.sum[row] * factor);
            let (start, step) = self.line(row);
            for column in 0..self.columns {
                let o = &mut self.output[start + column * step];
                *o = *o * factor;
            }
        }
    }
}

/// A tile's maxima, and what scores are reduced by before their exponentials are taken.
pub(crate) struct Shifted<V> {
    pub(crate) max: V,
    pub(crate) shift: V,
}

impl<V: Vector> Shifted<V> {
    /// From the largest scores.
    #[inline(always)]
    pub(crate) fn by(largest: V) -> Self {
        let zero = V::splat(V::Lane::ZERO);
        // + 0: a maximum of -0 and one of +0 must not differ.
        let max = largest.add(zero);
        // A row of NaN alone has no maximum, and -∞ - -∞ must not appear.
        Self { max, shift: max.if_equal(V::splat(V::Lane::NEG_INFINITY), zero, max) }
    }
}

/// The larger of scores and the maximum so far: NaN is never greater, so it is ignored here and shows up in the sum.
#[inline(always)]
pub(crate) fn larger<V: Vector>(scores: V, max: V) -> V {
    scores.max(max)
}

/// The fixed binary tree over absolute tiles, along which their states merge.
///
/// Its nodes are aligned powers of two of tiles; tiles that were skipped are empty and so change nothing. Two nodes merge
/// as soon as no tile to come can fall between them in the tree.
#[derive(Debug)]
pub(crate) struct Tree<A> {
    /// Some tile of each pending node, and its states; oldest first.
    nodes: Vec<(u64, States<A>)>,
    spare: Vec<States<A>>,
    a: Vec<A>,
    b: Vec<A>,
}

impl<A: Real> Tree<A> {
    pub(crate) fn new(rows: usize) -> Self {
        Self { nodes: Vec::new(), spare: Vec::new(), a: vec![A::ZERO; rows], b: vec![A::ZERO; rows] }
    }

    /// How many nodes can be pending at once over some tiles.
    pub(crate) fn depth(tiles: usize) -> usize {
        tiles.checked_ilog2().map_or(0, |log| log as usize + 2)
    }

    /// Appends a tile, later than all before; `states` is left with numbers of no meaning.
    #[inline(always)]
    pub(crate) fn push<V: Vector<Lane = A>>(&mut self, tile: u64, states: &mut States<A>) {
        while let [.., (older, _), (newer, _)] = self.nodes[..]
            && level(older, newer) <= level(newer, tile)
        {
            self.merge_last::<V>();
        }
        let mut node = self.spare.pop().unwrap_or_else(|| states.clone());
        std::mem::swap(&mut node, states);
        self.nodes.push((tile, node));
    }

    /// Merges what is pending, newest first, into `states`, of so many padded rows and columns, and is empty again.
    #[inline(always)]
    pub(crate) fn fold<V: Vector<Lane = A>>(&mut self, states: &mut States<A>, rows: usize, columns: usize) {
        while self.nodes.len() > 1 {
            self.merge_last::<V>();
        }
        match self.nodes.pop() {
            Some((_, whole)) => self.spare.push(std::mem::replace(states, whole)),
            None => {
                states.resize::<V>(rows, columns);
                states.clear(0..rows);
            }
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

/// How high in the tree two tiles meet.
fn level(one: u64, other: u64) -> u32 {
    u64::BITS - (one ^ other).leading_zeros()
}
