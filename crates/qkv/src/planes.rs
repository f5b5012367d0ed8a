//! An array of rank 2 and up as a stack of matrices: one for each batch and head, found by broadcasting.
//!
//! Queries, keys, values, masks and biases are all read through this. Axes of length 1 are never expanded; nothing
//! is copied, and up to rank 4 nothing is allocated.

use std::ops::Range;

use ndarray::{ArrayBase, ArrayViewD, Axis, Ix1, Ix2, Ix4, IxDyn, ViewRepr};
use smallvec::SmallVec;

use crate::error::Error;
use crate::tile::Tile;

/// `ArrayViewD` with its last parameter spelled out: left to its default, it would make the structs that hold a view
/// invariant in its lifetime.
pub(crate) type DynView<'a, T> = ArrayBase<ViewRepr<&'a T>, IxDyn, T>;

/// `ArrayView2`, spelled out as [`DynView`] is.
pub(crate) type PlaneView<'a, T> = ArrayBase<ViewRepr<&'a T>, Ix2, T>;

/// `ArrayView1`, spelled out as [`DynView`] is.
type RowView<'a, T> = ArrayBase<ViewRepr<&'a T>, Ix1, T>;

/// `ArrayView4`, spelled out as [`DynView`] is: `(batch, heads, rows, columns)`.
type StackView<'a, T> = ArrayBase<ViewRepr<&'a T>, Ix4, T>;

/// The extents of some axes, without an allocation for up to four.
pub(crate) type Extents = SmallVec<[usize; 4]>;

/// The matrices of an array `(…, rows, columns)` whose leading axes stand for `(…batch axes, heads)`.
///
/// Rows and columns keep the array's own extent; an extent of 1 serves every row or column (see [`Planes::at`]).
#[derive(Clone, Debug)]
pub(crate) struct Planes<'a, T> {
    stacks: Stacks<'a, T>,
    /// For each batch axis of the call, from the last on: its extent there, and how far apart two neighbours are in a
    /// stack (last axis) or among the stacks; 0 where the array has only one.
    batch_axes: SmallVec<[(usize, usize); 2]>,
    /// The array's own last batch axis, heads, rows and columns.
    extents: [usize; 4],
}

/// One stack for calls of up to four axes; of more, one for each place on the axes before the last batch axis. (Not a
/// `SmallVec`, which would be invariant in the lifetime.)
#[derive(Clone, Debug)]
enum Stacks<'a, T> {
    One(StackView<'a, T>),
    Many(Vec<StackView<'a, T>>),
}

impl<'a, T> Planes<'a, T> {
    /// `lead` is the extent of each batch axis of the call and of its head axis. The array must have at most
    /// `lead.len() + 2` axes, each leading one of length 1 or of the call's extent.
    ///
    /// # Errors
    /// If there are more stacks than memory holds views of.
    pub(crate) fn new(
        what: &'static str,
        mut array: ArrayViewD<'a, T>,
        lead: &[usize],
    ) -> Result<Self, Error> {
        while array.ndim() < lead.len() + 2 {
            array = array.insert_axis(Axis(0));
        }
        // Matrices without numbers are all alike: one serves for all of them, however many there are.
        if array.is_empty() && !array.shape()[..lead.len()].contains(&0) {
            (0..lead.len()).for_each(|axis| array.collapse_axis(Axis(axis), 0));
        }
        let mut batch_axes = SmallVec::new();
        let mut step = 1;
        for (at, (&extent, &own)) in lead.iter().zip(array.shape()).rev().skip(1).enumerate() {
            batch_axes.push((extent, if own == 1 { 0 } else { step }));
            step *= if at == 0 { 1 } else { own };
        }
        if array.ndim() == 3 {
            array = array.insert_axis(Axis(0));
        }
        let (outer, extents) = array.shape().split_at(array.ndim() - 4);
        let extents = extents.try_into().expect("four axes");
        let stacks = if outer.is_empty() {
            Stacks::One(array.into_dimensionality().expect("four axes"))
        } else {
            let (outer, count) = (Extents::from_slice(outer), outer.iter().product());
            let mut stacks = Vec::new();
            stacks.try_reserve_exact(count).map_err(|_| Error::no_memory(what, array.shape()))?;
            stacks.extend((0..count).map(|flat| stack(array.clone(), &outer, flat)));
            Stacks::Many(stacks)
        };
        Ok(Self { stacks, batch_axes, extents })
    }

    /// The matrix of a batch (flat over the batch axes) and head.
    pub(crate) fn get(&self, batch: usize, head: usize) -> PlaneView<'a, T> {
        self.plane(self.place(batch, head))
    }

    /// A row of the matrix of a batch and head.
    pub(crate) fn row(&self, batch: usize, head: usize, row: usize) -> RowView<'a, T> {
        self.get(batch, head).index_axis_move(Axis(0), row)
    }

    /// Some rows of the matrix of a batch and head as they lie in memory, if nothing is between them.
    pub(crate) fn rows_in_place(&self, (batch, head): (usize, usize), rows: Range<usize>) -> Option<&'a [T]> {
        let columns = self.extents[3];
        Some(&self.get(batch, head).to_slice()?[rows.start * columns..rows.end * columns])
    }

    /// Whether the numbers of a row follow one another.
    pub(crate) fn rows_are_contiguous(&self) -> bool {
        let [.., rows, columns] = self.extents;
        columns <= 1 || rows == 0 || self.count() == 0 || self.distinct(0).strides()[1] == 1
    }

    /// Which of the distinct matrices that of a batch and head is.
    pub(crate) fn index(&self, batch: usize, head: usize) -> usize {
        let [stack, batch, head] = self.place(batch, head);
        (stack * self.extents[0] + batch) * self.extents[1] + head
    }

    /// One of the distinct matrices, by its index.
    pub(crate) fn distinct(&self, index: usize) -> PlaneView<'a, T> {
        let [batches, heads, ..] = self.extents;
        self.plane([index / heads / batches, index / heads % batches, index % heads])
    }

    /// How many distinct matrices there are.
    pub(crate) fn count(&self) -> usize {
        let stacks = match &self.stacks {
            Stacks::One(_) => 1,
            Stacks::Many(stacks) => stacks.len(),
        };
        stacks * self.extents[0] * self.extents[1]
    }

    /// Rows and columns of a matrix.
    pub(crate) fn dim(&self) -> (usize, usize) {
        (self.extents[2], self.extents[3])
    }

    /// Stack, batch within it, and head.
    fn place(&self, batch: usize, head: usize) -> [usize; 3] {
        let head = if self.extents[1] == 1 { 0 } else { head };
        match self.batch_axes[..] {
            [] => [0, 0, head],
            [(_, step)] => [0, batch * step, head],
            [(extent, step), ref outer @ ..] => {
                let (mut stack, mut rest) = (0, batch / extent);
                for &(extent, step) in outer {
                    stack += rest % extent * step;
                    rest /= extent;
                }
                [stack, batch % extent * step, head]
            }
        }
    }

    fn plane(&self, [stack, batch, head]: [usize; 3]) -> PlaneView<'a, T> {
        let stack = match &self.stacks {
            Stacks::One(stack) => stack,
            Stacks::Many(stacks) => &stacks[stack],
        };
        (*stack).index_axis_move(Axis(0), batch).index_axis_move(Axis(0), head)
    }
}

impl<T: Copy> Planes<'_, T> {
    /// The number at a row and column, which an extent of 1 shares with all others.
    #[inline(always)]
    pub(crate) fn at(plane: &PlaneView<'_, T>, row: usize, column: usize) -> T {
        let (rows, columns) = plane.dim();
        plane[[if rows == 1 { 0 } else { row }, if columns == 1 { 0 } else { column }]]
    }

    /// A tile's rows, counted from its first, as slices of its keys, where there is a column for each key and they lie
    /// one after the other.
    pub(crate) fn rows_of<'p>(plane: &'p PlaneView<'_, T>, tile: &Tile) -> Option<impl Fn(usize) -> &'p [T]> {
        let (rows, columns) = plane.dim();
        let (first, keys) = (tile.rows.start, tile.keys.clone());
        let contiguous = columns > 1 && plane.strides()[1] == 1;
        contiguous.then_some(move |row: usize| {
            let row = plane.row(if rows == 1 { 0 } else { first + row });
            &row.to_slice().expect("contiguous")[keys.clone()]
        })
    }
}

fn stack<'a, T>(mut array: ArrayViewD<'a, T>, outer: &[usize], flat: usize) -> StackView<'a, T> {
    let mut below: usize = outer.iter().product();
    let mut rest = flat;
    for &extent in outer {
        below /= extent;
        array = array.index_axis_move(Axis(0), rest / below);
        rest %= below;
    }
    array.into_dimensionality().expect("four axes are left")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::ArrayD;

    #[test]
    fn leading_axes_of_one_serve_all_batches_and_heads() {
        let array = ArrayD::from_shape_fn(vec![3, 1, 1, 2], |i| (i[0] * 2 + i[3]) as i32);
        let planes = Planes::new("array", array.view(), &[2, 3, 4]).unwrap();
        assert_eq!(planes.count(), 3);
        for (batch, head) in [(0, 0), (1, 3), (2, 2), (4, 1)] {
            assert_eq!(planes.get(batch, head)[[0, 1]], (batch % 3 * 2 + 1) as i32);
        }
    }

    #[test]
    fn every_rank_has_its_matrices_in_order() {
        for lead in [&[3][..], &[2, 3], &[4, 2, 3], &[2, 4, 2, 3]] {
            let shape: Vec<usize> = lead.iter().copied().chain([2, 5]).collect();
            let array =
                ArrayD::from_shape_vec(shape, (0..lead.iter().product::<usize>() * 10).collect()).unwrap();
            let planes = Planes::new("array", array.view(), lead).unwrap();
            for index in 0..planes.count() {
                assert_eq!(planes.index(index / 3, index % 3), index);
                for plane in [planes.get(index / 3, index % 3), planes.distinct(index)] {
                    assert_eq!(plane[[1, 2]], index * 10 + 7);
                }
            }
        }
    }
}
