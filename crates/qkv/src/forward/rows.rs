//! Where finished rows go: to the caller's output, whatever its strides, and to the row statistics; or unfinished,
//! to a partial.

use ndarray::{ArrayViewMut2, ArrayViewMutD, Axis, Ix2};

use crate::element::Element;
use crate::softmax::States;

/// Some neighbouring rows of one batch and head.
pub struct Rows<'o, O: Element> {
    pub(crate) batch: usize,
    pub(crate) head: usize,
    /// The query of the first row.
    pub(crate) first: usize,
    /// `(rows, dim_value)`
    output: ArrayViewMut2<'o, O>,
    stats: Option<[&'o mut [O::Accumulator]; 2]>,
    pub(crate) finish: Finish,
}

/// What a row is when it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The weighted mean, rounded.
    Mean,
    /// Maximum, sum and weighted sum as they are, in this order in one row: the output has two columns more.
    Raw,
}

impl<'o, O: Element> Rows<'o, O> {
    /// The rows of some queries of one head, from query `first` on; nothing where there is nothing to write.
    pub(crate) fn of_head(
        output: ArrayViewMut2<'o, O>,
        (batch, head, first): (usize, usize, usize),
        stats: Option<[&'o mut [O::Accumulator]; 2]>,
        finish: Finish,
    ) -> Vec<Self> {
        let empty = output.is_empty() && stats.as_ref().is_none_or(|[max, _]| max.is_empty());
        if empty { Vec::new() } else { vec![Self { batch, head, first, output, stats, finish }] }
    }

    pub(crate) fn len(&self) -> usize {
        self.output.nrows()
    }

    /// Takes up to `count` rows off the end.
    fn split_last(self, count: usize) -> (Self, Self) {
        let at = self.len().saturating_sub(count);
        let Self { batch, head, first, output, stats, finish } = self;
        let (output, last_output) = output.split_at(Axis(0), at);
        let (stats, last_stats) = match stats {
            Some([max, sum]) => {
                let ((max, last_max), (sum, last_sum)) = (max.split_at_mut(at), sum.split_at_mut(at));
                (Some([max, sum]), Some([last_max, last_sum]))
            }
            None => (None, None),
        };
        let last = Self { batch, head, first: first + at, output: last_output, stats: last_stats, finish };
        (Self { batch, head, first, output, stats, finish }, last)
    }

    /// Blocks of up to `count` rows that begin at multiples of it, last first: with a causal mask those are the
    /// heaviest.
    pub(crate) fn blocks(self, count: usize) -> impl Iterator<Item = Self> {
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let (before, last) = rest.take()?.last_block(count)?;
            rest = Some(before);
            Some(last)
        })
    }

    /// What comes before the last block, and that block.
    pub(crate) fn last_block(self, count: usize) -> Option<(Self, Self)> {
        let ragged = self.len() % count;
        (self.len() > 0).then(|| self.split_last(if ragged == 0 { count } else { ragged }))
    }

    /// Writes a row that is finished as [`Finish`] wants it.
    pub(crate) fn put(
        &mut self,
        row: usize,
        max: O::Accumulator,
        sum: O::Accumulator,
        output: impl Fn(usize) -> O::Accumulator,
    ) {
        if let Some([maxima, sums]) = &mut self.stats {
            maxima[row] = Element::leave(max);
            sums[row] = Element::leave(sum);
        }
        let mut to = self.output.row_mut(row);
        match self.finish {
            Finish::Mean => to.iter_mut().enumerate().for_each(|(column, y)| *y = O::leave(output(column))),
            Finish::Raw => {
                to[0] = O::round(max);
                to[1] = O::round(sum);
                to.iter_mut().skip(2).enumerate().for_each(|(column, o)| *o = O::round(output(column)));
            }
        }
    }

    /// Writes one number of a matrix that is not an output of attention but of scores or weights.
    pub(crate) fn set(&mut self, row: usize, column: usize, x: O::Accumulator) {
        self.output[[row, column]] = O::leave(x);
    }
}

/// What kernels write to, whatever its type.
pub(crate) trait Target<A> {
    /// Finishes and writes a row; in `states`, which have seen all keys, it is `from`.
    fn finish(&mut self, row: usize, states: &mut States<A>, from: usize, sink: Option<A>);

    /// Writes part of a column, from row `first` on, of a matrix that is not an output of attention but of scores or
    /// weights.
    fn set_column(&mut self, column: usize, first: usize, numbers: &[A]);
}

impl<O: Element> Target<O::Accumulator> for Rows<'_, O> {
    fn finish(
        &mut self,
        row: usize,
        states: &mut States<O::Accumulator>,
        from: usize,
        sink: Option<O::Accumulator>,
    ) {
        // A sink is taken in once, at the end; raw states have more keys to come.
        if let (Finish::Mean, Some(sink)) = (self.finish, sink) {
            states.take_sink(from, sink);
        }
        let (max, sum) = (states.max[from], states.sum[from]);
        match self.finish {
            Finish::Mean => self.put(row, max, sum, |column| states.mean(from, column)),
            Finish::Raw => self.put(row, max, sum, |column| states.output[states.index(from, column)]),
        }
    }

    fn set_column(&mut self, column: usize, first: usize, numbers: &[O::Accumulator]) {
        for (row, &x) in numbers.iter().enumerate() {
            self.set(first + row, column, x);
        }
    }
}

/// The rows of every batch and head of a result, `(…, heads, len_query, dim_value)`.
pub(crate) fn of_heads<'o, O: Element>(
    output: ArrayViewMutD<'o, O>,
    heads: usize,
    mut stats: Option<[&'o mut [O::Accumulator]; 2]>,
    finish: Finish,
) -> Vec<Rows<'o, O>> {
    let len_query = output.shape()[output.ndim() - 2];
    // Nothing to write, however many batches there may be.
    if len_query == 0 || output.is_empty() && stats.as_ref().is_none_or(|[max, _]| max.is_empty()) {
        return Vec::new();
    }
    let mut planes = Vec::new();
    split(output, &mut planes);
    planes
        .into_iter()
        .enumerate()
        .map(|(index, output)| {
            let own = stats.as_mut().map(|stats| {
                stats.each_mut().map(|rest| {
                    let (own, after) = std::mem::take(rest).split_at_mut(len_query);
                    *rest = after;
                    own
                })
            });
            Rows { batch: index / heads, head: index % heads, first: 0, output, stats: own, finish }
        })
        .collect()
}

/// The matrices of an array, in order.
fn split<'o, O>(array: ArrayViewMutD<'o, O>, planes: &mut Vec<ArrayViewMut2<'o, O>>) {
    if array.ndim() == 2 {
        planes.push(array.into_dimensionality::<Ix2>().expect("two axes"));
        return;
    }
    let mut rest = array;
    while rest.len_of(Axis(0)) > 0 {
        let (first, after) = rest.split_at(Axis(0), 1);
        split(first.index_axis_move(Axis(0), 0), planes);
        rest = after;
    }
}
