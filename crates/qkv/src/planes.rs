//! An array of rank 2 and up as a stack of matrices: one for each batch and head, found by broadcasting.
//!
//! Queries, keys, values, masks and biases are all read through this. Axes of length 1 are never expanded; nothing
//! is copied.

use ndarray::{ArrayBase, ArrayView2, ArrayViewD, Axis, Ix2, IxDyn, ViewRepr};

use crate::error::Error;
use crate::tile::Tile;

/// `ArrayViewD` with its last parameter spelled out: left to its default, it would make the structs that hold a view
/// invariant in its lifetime.
pub(crate) type DynView<'a, T> = ArrayBase<ViewRepr<&'a T>, IxDyn, T>;

/// `ArrayView2`, spelled out as [`DynView`] is.
pub(crate) type PlaneView<'a, T> = ArrayBase<ViewRepr<&'a T>, Ix2, T>;

/// The matrices of an array `(…, rows, columns)` whose leading axes stand for `(…batch axes, heads)`.
///
/// Rows and columns keep the array's own extent; an extent of 1 serves every row or column (see [`Planes::at`]).
#[derive(Clone, Debug)]
pub(crate) struct Planes<'a, T> {
    planes: Vec<PlaneView<'a, T>>,
    /// For each leading axis of the call (heads first, then the batch axes from the last on): its extent there, and how far apart two
    /// neighbours are in `planes` (0 where the array has only one).
    axes: Vec<(usize, usize)>,
}

impl<'a, T> Planes<'a, T> {
    /// `lead` is the extent of each batch axis of the call and of its head axis. The array must have at most
    /// `lead.len() + 2` axes, each leading one of length 1 or of the call's extent.
    ///
    /// # Errors
    /// If there are more matrices than memory holds views of.
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
        let own = &array.shape()[..lead.len()];
        let count: usize = own.iter().product();
        let mut axes: Vec<(usize, usize)> = Vec::with_capacity(lead.len());
        let mut step = 1;
        for (&extent, &own) in lead.iter().zip(own).rev() {
            axes.push((extent, if own == 1 { 0 } else { step }));
            step *= own;
        }
        let own: Vec<usize> = own.to_vec();
        let mut planes = Vec::new();
        planes.try_reserve_exact(count).map_err(|_| Error::no_memory(what, array.shape()))?;
        planes.extend((0..count).map(|flat| plane(array.clone(), &own, flat)));
        Ok(Self { planes, axes })
    }

    /// The matrix of a batch (flat over the batch axes) and head.
    pub(crate) fn get(&self, batch: usize, head: usize) -> &ArrayView2<'a, T> {
        &self.planes[self.index(batch, head)]
    }

    /// Where the matrix of a batch and head stands in [`Planes::all`].
    pub(crate) fn index(&self, batch: usize, head: usize) -> usize {
        let (_, head_step) = self.axes[0];
        let mut rest = batch;
        let mut index = head * head_step;
        for &(extent, step) in &self.axes[1..] {
            index += rest % extent * step;
            rest /= extent;
        }
        index
    }

    /// The distinct matrices.
    pub(crate) fn all(&self) -> &[ArrayView2<'a, T>] {
        &self.planes
    }
}

impl<T: Copy> Planes<'_, T> {
    /// The number at a row and column, which an extent of 1 shares with all others.
    #[inline(always)]
    pub(crate) fn at(plane: &ArrayView2<'_, T>, row: usize, column: usize) -> T {
        let (rows, columns) = plane.dim();
        plane[[if rows == 1 { 0 } else { row }, if columns == 1 { 0 } else { column }]]
    }

    /// A tile's rows, counted from its first, as slices of its keys, where there is a column for each key and they lie
    /// one after the other.
    pub(crate) fn rows_of<'p>(
        plane: &'p ArrayView2<'_, T>,
        tile: &Tile,
    ) -> Option<impl Fn(usize) -> &'p [T]> {
        let (rows, columns) = plane.dim();
        let (first, keys) = (tile.rows.start, tile.keys.clone());
        let contiguous = columns > 1 && plane.strides()[1] == 1;
        contiguous.then_some(move |row: usize| {
            let row = plane.row(if rows == 1 { 0 } else { first + row });
            &row.to_slice().expect("contiguous")[keys.clone()]
        })
    }
}

fn plane<'a, T>(mut array: ArrayViewD<'a, T>, own: &[usize], flat: usize) -> ArrayView2<'a, T> {
    let mut below: usize = own.iter().product();
    let mut rest = flat;
    for &extent in own {
        below /= extent;
        array = array.index_axis_move(Axis(0), rest / below);
        rest %= below;
    }
    array.into_dimensionality::<Ix2>().expect("two axes are left")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::ArrayD;

    #[test]
    fn leading_axes_of_one_serve_all_batches_and_heads() {
        let array = ArrayD::from_shape_fn(vec![3, 1, 1, 2], |i| (i[0] * 2 + i[3]) as i32);
        let planes = Planes::new("array", array.view(), &[2, 3, 4]).unwrap();
        assert_eq!(planes.all().len(), 3);
        for (batch, head) in [(0, 0), (1, 3), (2, 2), (4, 1)] {
            assert_eq!(planes.get(batch, head)[[0, 1]], (batch % 3 * 2 + 1) as i32);
        }
    }
}
