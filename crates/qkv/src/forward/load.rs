//! Bringing in the numbers of one block: widened, whatever their type and strides, and laid out for the lanes.

use std::ops::Range;

use ndarray::ArrayView1;

use crate::element::{Element, Real};
use crate::planes::{PlaneView, Planes};
use crate::problem::Problem;
use crate::simd::{Ahead, Kernel, PADDING, Register, Simd, transpose};

/// Which array of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Query,
    Key,
    Value,
}

/// The arrays of a call as kernels see them, whatever their type.
pub(crate) trait Arrays<A>: Sync {
    fn of(&self, role: Role) -> &dyn Matrices<A>;
}

impl<T: Element> Arrays<T::Accumulator> for Problem<'_, T> {
    fn of(&self, role: Role) -> &dyn Matrices<T::Accumulator> {
        match role {
            Role::Query => &self.query,
            Role::Key => &self.key,
            Role::Value => &self.value,
        }
    }
}

/// The matrices of an array as kernels see them: in the accumulator type, block by block. `at` is a batch and head, for keys
/// and values the key head.
pub(crate) trait Matrices<A>: Sync {
    /// Some rows, one after the other, `stride` apart; the padding between them keeps what it held.
    fn rows(&self, simd: Simd, at: (usize, usize), rows: Range<usize>, to: &mut [A], stride: usize);

    /// Some rows as they lie in memory, if they are of the accumulator type and already `stride` apart without padding.
    fn in_place(&self, at: (usize, usize), rows: Range<usize>, stride: usize) -> Option<&[A]>;

    /// Some rows, transposed: columns one after the other, `stride` apart, which is whole vectors; what pads the rows of a
    /// column has no meaning. Meanwhile other memory is asked for.
    fn columns(
        &self,
        simd: Simd,
        at: (usize, usize),
        rows: Range<usize>,
        to: (&mut [A], usize),
        ahead: Ahead<'_>,
    );

    /// The memory of those rows that exist, if it is all of a piece.
    fn memory(&self, at: (usize, usize), rows: Range<usize>) -> Ahead<'_>;
}

impl<T: Element> Matrices<T::Accumulator> for Planes<'_, T> {
    fn rows(
        &self,
        simd: Simd,
        (batch, head): (usize, usize),
        rows: Range<usize>,
        to: &mut [T::Accumulator],
        stride: usize,
    ) {
        simd.run(Rows { from: &self.get(batch, head), rows, to, stride });
    }

    fn in_place(&self, at: (usize, usize), rows: Range<usize>, stride: usize) -> Option<&[T::Accumulator]> {
        if self.dim().1 != stride {
            return None;
        }
        T::as_wide(self.rows_in_place(at, rows)?)
    }

    fn columns(
        &self,
        simd: Simd,
        (batch, head): (usize, usize),
        rows: Range<usize>,
        (to, stride): (&mut [T::Accumulator], usize),
        ahead: Ahead<'_>,
    ) {
        simd.run(Columns { from: &self.get(batch, head), rows, to, stride, ahead });
    }

    fn memory(&self, at: (usize, usize), rows: Range<usize>) -> Ahead<'_> {
        let end = rows.end.min(self.dim().0);
        let rows = self.rows_in_place(at, rows.start.min(end)..end);
        rows.map_or(Ahead::NOTHING, |numbers| Ahead(bytemuck::cast_slice(numbers)))
    }
}

/// Some rows of a matrix, widened.
struct Rows<'k, 'a, T: Element> {
    from: &'k PlaneView<'a, T>,
    rows: Range<usize>,
    to: &'k mut [T::Accumulator],
    stride: usize,
}

impl<T: Element> Kernel<T::Accumulator> for Rows<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Register<Lane = T::Accumulator>>(self) {
        let columns = self.from.ncols();
        if columns == 0 {
            return;
        }
        for (row, to) in self.rows.zip(self.to.chunks_exact_mut(self.stride)) {
            load_row::<T, V>(self.from.row(row), &mut to[..columns]);
        }
    }
}

/// One row, into a slice of its length.
#[inline(always)]
fn load_row<T: Element, V: Register<Lane = T::Accumulator>>(
    from: ArrayView1<'_, T>,
    to: &mut [T::Accumulator],
) {
    let whole = match from.as_slice() {
        Some(from) => {
            for (from, to) in from.chunks_exact(V::LANES).zip(to.chunks_exact_mut(V::LANES)) {
                T::load::<V>(from).store(to);
            }
            from.len() / V::LANES * V::LANES
        }
        None => 0,
    };
    for at in whole..to.len() {
        to[at] = from[at].widen();
    }
}

/// Some rows, `stride` apart: where they lie if that will do, else brought into `packed`.
pub(crate) fn rows_of_tile<'r, A>(
    matrices: &'r dyn Matrices<A>,
    simd: Simd,
    (at, rows): ((usize, usize), Range<usize>),
    packed: &'r mut [A],
    stride: usize,
) -> &'r [A] {
    if let Some(rows) = matrices.in_place(at, rows.clone(), stride) {
        return rows;
    }
    let packed = &mut packed[..rows.len() * stride];
    matrices.rows(simd, at, rows, packed, stride);
    packed
}

/// Whether all numbers are finite: 0 times anything else is NaN, which no sum takes away.
#[inline(always)]
pub(crate) fn all_finite<A: Real>(numbers: &[A]) -> bool {
    // Without a way out, so that the compiler works on vectors.
    let mut finite = true;
    for x in numbers {
        finite &= x.is_finite();
    }
    finite
}

/// Some rows of a matrix, widened and transposed.
struct Columns<'k, 'a, T: Element> {
    from: &'k PlaneView<'a, T>,
    rows: Range<usize>,
    to: &'k mut [T::Accumulator],
    stride: usize,
    ahead: Ahead<'k>,
}

impl<T: Element> Kernel<T::Accumulator> for Columns<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Register<Lane = T::Accumulator>>(self) {
        let Self { from, rows, to, stride, ahead } = self;
        let (count, columns) = (rows.len(), from.ncols());
        if columns == 0 {
            return;
        }
        let vectors = count.div_ceil(V::LANES);
        for (vector, at) in (0..count).step_by(V::LANES).enumerate() {
            let ahead = ahead.shares(vector..vector + 1, vectors);
            let here = count.min(at + V::LANES) - at;
            let first = rows.start + at;
            let mut slices: [&[T]; PADDING] = [&[]; PADDING];
            for (lane, slice) in slices[..V::LANES].iter_mut().enumerate() {
                // The last row fills the lanes that are left.
                *slice = from.row(first + lane.min(here - 1)).to_slice().unwrap_or_default();
            }
            // Rows that are no slices go number by number.
            let done = transpose::<T, V>(&slices, &mut to[at..], stride, ahead);
            for lane in (0..here).filter(|_| done < columns) {
                for (column, &x) in from.row(first + lane).iter().enumerate().skip(done) {
                    to[column * stride + at + lane] = x.widen();
                }
            }
        }
    }
}
