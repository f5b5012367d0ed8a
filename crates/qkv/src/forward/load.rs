//! Bringing in the numbers of one block: widened, whatever their type and strides, and laid out for the lanes.

use std::ops::Range;

use ndarray::{ArrayView1, ArrayView2, s};

use crate::element::{Element, Real};
use crate::planes::Planes;
use crate::problem::Problem;
use crate::simd::{PADDING, Vector};

/// Which array of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Query,
    Key,
    Value,
}

/// The arrays of a call as kernels see them: in the accumulator type, block by block.
pub(crate) trait Arrays<A>: Sync {
    /// Some rows of a batch and head (for keys and values the key head), one after the other, `stride` apart; the
    /// padding between them keeps what it held.
    fn rows(&self, role: Role, at: (usize, usize), rows: Range<usize>, to: &mut [A], stride: usize);

    /// Some rows as they lie in memory, if they are of the accumulator type and already `stride` apart without padding.
    fn in_place(&self, role: Role, at: (usize, usize), rows: Range<usize>, stride: usize) -> Option<&[A]>;

    /// The same transposed: columns one after the other, `stride` apart; what pads the rows of a column is 0.
    fn columns(&self, role: Role, at: (usize, usize), rows: Range<usize>, to: &mut [A], stride: usize);
}

impl<T: Element> Arrays<T::Accumulator> for Problem<'_, T> {
    fn rows(
        &self,
        role: Role,
        (batch, head): (usize, usize),
        rows: Range<usize>,
        to: &mut [T::Accumulator],
        stride: usize,
    ) {
        load_rows(self.planes(role).get(batch, head), rows, to, stride);
    }

    fn in_place(
        &self,
        role: Role,
        (batch, head): (usize, usize),
        rows: Range<usize>,
        stride: usize,
    ) -> Option<&[T::Accumulator]> {
        let plane = self.planes(role).get(batch, head);
        if plane.ncols() != stride {
            return None;
        }
        T::as_wide(plane.slice(s![rows, ..]).to_slice()?)
    }

    fn columns(
        &self,
        role: Role,
        (batch, head): (usize, usize),
        rows: Range<usize>,
        to: &mut [T::Accumulator],
        stride: usize,
    ) {
        load_columns(self.planes(role).get(batch, head), rows, to, stride);
    }
}

impl<'a, T: Element> Problem<'a, T> {
    fn planes(&self, role: Role) -> &Planes<'a, T> {
        match role {
            Role::Query => &self.query,
            Role::Key => &self.key,
            Role::Value => &self.value,
        }
    }
}

fn load_rows<T: Element>(
    from: &ArrayView2<'_, T>,
    rows: Range<usize>,
    to: &mut [T::Accumulator],
    stride: usize,
) {
    let columns = from.ncols();
    if columns == 0 {
        return;
    }
    for (row, to) in rows.zip(to.chunks_exact_mut(stride)) {
        load_row(from.row(row), &mut to[..columns]);
    }
}

/// One row, into a slice of its length.
#[inline]
pub(crate) fn load_row<T: Element>(from: ArrayView1<'_, T>, to: &mut [T::Accumulator]) {
    match from.as_slice() {
        Some(from) => T::widen_slice(from, to),
        None => to.iter_mut().zip(from).for_each(|(to, &x)| *to = x.widen()),
    }
}

/// Some rows, `stride` apart: where they lie if that will do, else brought into `packed`.
pub(crate) fn rows_of_tile<'r, A>(
    arrays: &'r dyn Arrays<A>,
    (role, at): (Role, (usize, usize)),
    rows: Range<usize>,
    packed: &'r mut [A],
    stride: usize,
) -> &'r [A] {
    if let Some(rows) = arrays.in_place(role, at, rows.clone(), stride) {
        return rows;
    }
    let packed = &mut packed[..rows.len() * stride];
    arrays.rows(role, at, rows, packed, stride);
    packed
}

/// Whether all numbers are finite: 0 times anything else is NaN, which no sum takes away.
#[inline(always)]
pub(crate) fn all_finite<V: Vector>(numbers: &[V::Lane]) -> bool {
    const CHAINS: usize = 4;
    let zero = V::splat(V::Lane::ZERO);
    let mut sums = [zero; CHAINS];
    let mut blocks = numbers.chunks_exact(CHAINS * V::LANES);
    for block in &mut blocks {
        for (at, sum) in sums.iter_mut().enumerate() {
            *sum = V::load(&block[at * V::LANES..]).mul_add(zero, *sum);
        }
    }
    let mut lanes = [V::Lane::ZERO; PADDING];
    let mut finite = blocks.remainder().iter().all(|x| x.is_finite());
    for sum in sums {
        sum.store(&mut lanes);
        finite &= lanes[..V::LANES].iter().all(|x| x.is_finite());
    }
    finite
}

fn load_columns<T: Element>(
    from: &ArrayView2<'_, T>,
    rows: Range<usize>,
    to: &mut [T::Accumulator],
    stride: usize,
) {
    let count = rows.len();
    for (at, row) in rows.enumerate() {
        for (column, &x) in from.row(row).iter().enumerate() {
            to[column * stride + at] = x.widen();
        }
    }
    for column in to.chunks_exact_mut(stride).take(from.ncols()) {
        column[count..].fill(T::Accumulator::ZERO);
    }
}
