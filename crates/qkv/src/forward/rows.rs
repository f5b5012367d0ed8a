//! Where finished rows go: to the caller's output, whatever its strides, and to the row statistics; or unfinished,
//! to a partial.

use std::ops::Range;

use ndarray::{ArrayViewMut, ArrayViewMut2, ArrayViewMut3, ArrayViewMut4, ArrayViewMutD, Axis, RemoveAxis};
use smallvec::SmallVec;

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
    /// Maximum, sum and weighted sum as they are, in this order in one row: the output has two columns more. There are
    /// more keys to come, and a sink is taken in once, at the end.
    Raw,
}

impl<'o, O: Element> Rows<'o, O> {
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

    /// Blocks of up to `count` rows, cut where queries are multiples of it as masks are sorted, last first: with a causal mask
    /// those are the heaviest.
    pub(crate) fn blocks(self, count: usize) -> impl Iterator<Item = Self> {
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let rows = rest.take()?;
            if rows.len() > 0 && rows.first / count == (rows.first + rows.len() - 1) / count {
                return Some(rows);
            }
            let (before, last) = rows.last_block(count)?;
            rest = Some(before);
            Some(last)
        })
    }

    /// What comes before the last block, and that block.
    pub(crate) fn last_block(self, count: usize) -> Option<(Self, Self)> {
        let ragged = (self.first + self.len()) % count;
        (self.len() > 0).then(|| self.split_last(if ragged == 0 { count } else { ragged }))
    }

    /// Writes a row that is finished as [`Finish`] wants it.
    pub(crate) fn put(
        &mut self,
        row: usize,
        max: O::Accumulator,
        sum: O::Accumulator,
        output: impl Iterator<Item = O::Accumulator>,
    ) {
        if let Some([maxima, sums]) = &mut self.stats {
            maxima[row] = Element::leave(max);
            sums[row] = Element::leave(sum);
        }
        let mut to = self.output.row_mut(row);
        match self.finish {
            // A slice is gone through faster.
            Finish::Mean => match to.as_slice_mut() {
                Some(to) => to.iter_mut().zip(output).for_each(|(y, mean)| *y = O::leave(mean)),
                None => to.iter_mut().zip(output).for_each(|(y, mean)| *y = O::leave(mean)),
            },
            Finish::Raw => {
                to[0] = O::round(max);
                to[1] = O::round(sum);
                to.iter_mut().skip(2).zip(output).for_each(|(y, sum)| *y = O::round(sum));
            }
        }
    }

    /// Writes one number of a matrix that is not an output of attention but of scores or weights.
    pub(crate) fn set(&mut self, row: usize, column: usize, x: O::Accumulator) {
        self.output[[row, column]] = O::leave(x);
    }
}

/// What kernels write outputs to, whatever its type.
pub(crate) trait Target<A> {
    /// What rows are to be when they are put.
    fn finish(&self) -> Finish;

    /// Writes a row; in `states`, which have seen all keys and are finished as it wants them, it is `from`.
    fn put_row(&mut self, row: usize, states: &States<A>, from: usize);
}

/// What kernels write a matrix of scores or weights to, whatever its type.
pub(crate) trait MatrixTarget<A> {
    fn set_columns(&mut self, columns: Columns<'_, A>);
}

/// Some rows of neighbouring columns.
#[derive(Clone, Debug)]
pub(crate) struct Columns<'n, A> {
    pub(crate) first: usize,
    pub(crate) rows: Range<usize>,
    /// `(columns, lanes)`; lanes beyond the rows hold numbers of no meaning.
    pub(crate) numbers: &'n [A],
    pub(crate) lanes: usize,
}

impl<'n, A> Columns<'n, A> {
    /// Each column with its number and its part of the rows.
    pub(crate) fn each(&self) -> impl Iterator<Item = (usize, &'n [A])> {
        let rows = self.rows.len();
        (self.first..)
            .zip(self.numbers.chunks_exact(self.lanes))
            .map(move |(column, lanes)| (column, &lanes[..rows]))
    }
}

impl<O: Element> Target<O::Accumulator> for Rows<'_, O> {
    fn finish(&self) -> Finish {
        self.finish
    }

    fn put_row(&mut self, row: usize, states: &States<O::Accumulator>, from: usize) {
        self.put(row, states.max[from], states.sum[from], states.output_of(from));
    }
}

impl<O: Element> MatrixTarget<O::Accumulator> for Rows<'_, O> {
    fn set_columns(&mut self, columns: Columns<'_, O::Accumulator>) {
        for (column, numbers) in columns.each() {
            for (row, &x) in columns.rows.clone().zip(numbers) {
                self.set(row, column, x);
            }
        }
    }
}

/// The rows of one head after another; up to rank 4 they are found without an allocation.
pub struct Heads<'o, O: Element> {
    /// What is to come: stacks `(batches, heads, rows, columns)`, batches of the stack at hand, heads of the batch at hand.
    stacks: smallvec::IntoIter<[ArrayViewMut4<'o, O>; 1]>,
    batches: Option<ArrayViewMut4<'o, O>>,
    heads: Option<ArrayViewMut3<'o, O>>,
    stats: Option<[&'o mut [O::Accumulator]; 2]>,
    /// How many are to come, and how many rows each has.
    left: usize,
    rows_of_head: usize,
    /// Batch, head and first query of the next, and how many heads a batch has.
    next: (usize, usize, usize),
    heads_of_batch: usize,
    finish: Finish,
}

impl<'o, O: Element> Heads<'o, O> {
    /// Those of every batch and head of a result, `(…, heads, len_query, columns)`.
    pub(crate) fn all(
        output: ArrayViewMutD<'o, O>,
        heads: usize,
        stats: Option<[&'o mut [O::Accumulator]; 2]>,
        finish: Finish,
    ) -> Self {
        Self::new(output, ((0, 0, 0), heads), stats, finish)
    }

    /// Those of some queries of one head, from query `first` on.
    pub(crate) fn one(
        output: ArrayViewMut2<'o, O>,
        (batch, head, first): (usize, usize, usize),
        stats: Option<[&'o mut [O::Accumulator]; 2]>,
        finish: Finish,
    ) -> Self {
        Self::new(output.into_dyn(), ((batch, head, first), 1), stats, finish)
    }

    fn new(
        mut output: ArrayViewMutD<'o, O>,
        (next, heads_of_batch): ((usize, usize, usize), usize),
        stats: Option<[&'o mut [O::Accumulator]; 2]>,
        finish: Finish,
    ) -> Self {
        let rows_of_head = output.shape()[output.ndim() - 2];
        let mut stacks = SmallVec::new();
        let mut left = 0;
        // Else there is nothing to write, however many batches there may be.
        if rows_of_head > 0 && !(output.is_empty() && stats.as_ref().is_none_or(|[max, _]| max.is_empty())) {
            left = output.shape().iter().rev().skip(2).product();
            while output.ndim() < 4 {
                output = output.insert_axis(Axis(0));
            }
            split(output, &mut stacks);
        }
        let stacks = stacks.into_iter();
        Self { stacks, batches: None, heads: None, stats, left, rows_of_head, next, heads_of_batch, finish }
    }

    /// How many rows they have together.
    pub(crate) fn rows(&self) -> usize {
        self.left * self.rows_of_head
    }

    /// Into how many blocks of up to `rows` they are cut.
    pub(crate) fn blocks(&self, rows: usize) -> usize {
        let (_, _, first) = self.next;
        self.left * (first % rows + self.rows_of_head).div_ceil(rows)
    }
}

impl<'o, O: Element> Iterator for Heads<'o, O> {
    type Item = Rows<'o, O>;

    fn next(&mut self) -> Option<Self::Item> {
        let output = loop {
            if let Some(head) = take_first(&mut self.heads) {
                break head;
            }
            self.heads = take_first(&mut self.batches);
            if self.heads.is_none() {
                self.batches = Some(self.stacks.next()?);
            }
        };
        let stats = self.stats.as_mut().map(|stats| {
            stats.each_mut().map(|rest| {
                let (own, after) = std::mem::take(rest).split_at_mut(self.rows_of_head);
                *rest = after;
                own
            })
        });
        let (batch, head, first) = self.next;
        self.left -= 1;
        self.next =
            if head + 1 < self.heads_of_batch { (batch, head + 1, first) } else { (batch + 1, 0, first) };
        Some(Rows { batch, head, first, output, stats, finish: self.finish })
    }
}

/// Takes what is first along the first axis.
fn take_first<'o, O, D: RemoveAxis>(
    rest: &mut Option<ArrayViewMut<'o, O, D>>,
) -> Option<ArrayViewMut<'o, O, D::Smaller>> {
    let all = rest.take().filter(|rest| rest.len_of(Axis(0)) > 0)?;
    let (first, after) = all.split_at(Axis(0), 1);
    *rest = Some(after);
    Some(first.index_axis_move(Axis(0), 0))
}

/// The stacks of an array, in order.
fn split<'o, O>(array: ArrayViewMutD<'o, O>, stacks: &mut SmallVec<[ArrayViewMut4<'o, O>; 1]>) {
    if array.ndim() == 4 {
        stacks.push(array.into_dimensionality().expect("four axes"));
        return;
    }
    let mut rest = Some(array);
    while let Some(first) = take_first(&mut rest) {
        split(first, stacks);
    }
}
