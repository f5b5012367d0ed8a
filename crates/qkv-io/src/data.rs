//! A typed array, in the file's bytes or in memory of its own.

use crate::element::Element;
use crate::layout::Layout;
use crate::{Bytes, Fault};
use ndarray::{ArrayD, ArrayViewD, IxDyn, ShapeBuilder, StrideShape};

/// An array of elements of one type.
///
/// It keeps the file's bytes alive for as long as it needs them, so it may outlive the [`crate::Bundle`] it came
/// from; cloning an array that is in place copies nothing.
#[derive(Clone, Debug)]
pub struct Data<T> {
    store: Store<T>,
}

#[derive(Clone, Debug)]
enum Store<T> {
    /// Checked when made: the bytes are aligned for `T` and are as many as the layout needs.
    InPlace {
        bytes: Bytes,
        layout: Layout,
    },
    Owned(ArrayD<T>),
}

impl<T: Element> Data<T> {
    /// Views the bytes where they are if they are fit for it, else copies them.
    pub(crate) fn new(bytes: Bytes, layout: &Layout) -> Result<Self, Fault> {
        let raw = bytes.as_ref();
        if raw.len() != layout.nbytes() {
            return Err(layout.size_mismatch(raw.len() as u64));
        }
        let store = if !layout.swapped() && T::in_place(raw).is_some() {
            Store::InPlace { bytes, layout: layout.clone() }
        } else {
            let elements = T::copied(raw, layout.swapped())?;
            let array = ArrayD::from_shape_vec(strided(layout), elements);
            Store::Owned(array.expect("as many elements as the layout has"))
        };
        Ok(Data { store })
    }

    /// The array as its shape reads. A file in Fortran order gives Fortran strides, not a copy.
    pub fn view(&self) -> ArrayViewD<'_, T> {
        match &self.store {
            Store::InPlace { bytes, layout } => {
                let elements = T::in_place(bytes.as_ref()).expect("aligned, as checked in `new`");
                ArrayViewD::from_shape(strided(layout), elements).expect("as many elements as the layout has")
            }
            Store::Owned(array) => array.view(),
        }
    }

    /// Length along each axis.
    pub fn shape(&self) -> &[usize] {
        match &self.store {
            Store::InPlace { layout, .. } => layout.shape(),
            Store::Owned(array) => array.shape(),
        }
    }

    /// Whether the elements are viewed where the file's bytes are, without a copy.
    pub fn is_in_place(&self) -> bool {
        matches!(self.store, Store::InPlace { .. })
    }

    /// The array in memory of its own; copies only if it is in place.
    pub fn into_array(self) -> ArrayD<T> {
        match self.store {
            Store::InPlace { .. } => self.view().to_owned(),
            Store::Owned(array) => array,
        }
    }
}

impl<T> From<ArrayD<T>> for Data<T> {
    fn from(array: ArrayD<T>) -> Self {
        Data { store: Store::Owned(array) }
    }
}

fn strided(layout: &Layout) -> StrideShape<IxDyn> {
    IxDyn(layout.shape()).set_f(layout.fortran()).into()
}
