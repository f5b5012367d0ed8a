//! Joining the states of spans of keys that were worked on apart: by threads, or as partials.

use super::rows::{Finish, Target};
use crate::element::Real;
use crate::simd::{Kernel, PADDING, Register};
use crate::softmax::{Order, States, Tree};

/// A thread's buffers, for blocks of up to as many rows as a query block has.
pub(crate) struct Scratch<A> {
    states: States<A>,
    tree: Tree<A>,
}

impl<A: Real> Scratch<A> {
    pub(crate) fn new(rows: usize, dim_value: usize) -> Self {
        let rows = rows.next_multiple_of(PADDING);
        let columns = dim_value.next_multiple_of(PADDING);
        Self { states: States::new(Order::ColumnsInLanes, rows, columns), tree: Tree::new(rows) }
    }
}

/// Some rows of one head, from their states over every span.
pub(crate) struct Join<'k, A> {
    pub(crate) rows: usize,
    /// For each span, in order, the number of its first tile and `(rows, 2 + dim_value)` numbers.
    pub(crate) spans: Vec<(u64, &'k [A])>,
    pub(crate) dim_value: usize,
    pub(crate) sink: Option<A>,
    pub(crate) dropout_factor: Option<A>,
    pub(crate) target: &'k mut dyn Target<A>,
    pub(crate) scratch: &'k mut Scratch<A>,
}

impl<A: Real> Kernel<A> for Join<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Register<Lane = A>>(self) {
        let rows = self.rows.next_multiple_of(V::LANES);
        let columns = self.dim_value.next_multiple_of(V::LANES);
        let Scratch { states, tree } = self.scratch;
        for (tile, raw) in self.spans {
            states.resize::<V>(rows, columns);
            states.clear(0..rows);
            for (row, raw) in raw.chunks_exact(2 + self.dim_value).enumerate() {
                states.max[row] = raw[0];
                states.sum[row] = raw[1];
                states.set_output(row, &raw[2..]);
            }
            tree.push::<V>(tile, states);
        }
        tree.fold::<V>(states, rows, columns);
        if self.target.finish() == Finish::Mean {
            if let Some(sink) = self.sink {
                states.take_sink(0..self.rows, sink);
            }
            states.divide::<V>(self.dropout_factor);
        }
        for row in 0..self.rows {
            self.target.put_row(row, states, row);
        }
    }
}
