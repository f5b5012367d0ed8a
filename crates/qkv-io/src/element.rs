//! The Rust types that a file's elements become, and how bytes become them.

use crate::{Data, Dtype, Fault, Tensor, TensorView};
use half::{bf16, f16};
use ndarray::ArrayViewD;
use std::fmt::Debug;

/// A type that an array's elements can have: `bool`, the integers of 1 to 8 bytes, [`struct@f16`],
/// [`struct@bf16`], `f32` and `f64`.
pub trait Element: Copy + Debug + PartialEq + Send + Sync + 'static + sealed::Stored {
    /// The name of the type at run time.
    const DTYPE: Dtype;
}

pub(crate) mod sealed {
    use super::*;

    /// What the crate itself needs of an element; being private, it keeps [`Element`] closed.
    pub trait Stored: Sized {
        /// The elements where their bytes are. `None` if the bytes are not aligned, or if the type is one that
        /// not every byte is valid for: those bytes could change after they were checked.
        fn in_place(bytes: &[u8]) -> Option<&[Self]>;

        /// The elements in memory of their own, each one's bytes reversed if `swapped`. `bytes` holds a whole
        /// number of them.
        fn copied(bytes: &[u8], swapped: bool) -> Result<Vec<Self>, Fault>;

        /// The bytes of elements, in this machine's order.
        fn bytes(elements: &[Self]) -> &[u8];

        fn wrap(data: Data<Self>) -> Tensor
        where
            Self: Element;

        fn unwrap(tensor: &Tensor) -> Option<&Data<Self>>
        where
            Self: Element;

        fn wrap_view(view: ArrayViewD<'_, Self>) -> TensorView<'_>
        where
            Self: Element;
    }
}

/// The part that is the same for all types but for the variant's name.
macro_rules! element {
    ($type:ty, $variant:ident, { $($conversions:item)* }) => {
        impl Element for $type {
            const DTYPE: Dtype = Dtype::$variant;
        }

        impl sealed::Stored for $type {
            $($conversions)*

            fn bytes(elements: &[Self]) -> &[u8] {
                bytemuck::cast_slice(elements)
            }

            fn wrap(data: Data<Self>) -> Tensor {
                Tensor::$variant(data)
            }

            fn unwrap(tensor: &Tensor) -> Option<&Data<Self>> {
                match tensor {
                    Tensor::$variant(data) => Some(data),
                    _ => None,
                }
            }

            fn wrap_view(view: ArrayViewD<'_, Self>) -> TensorView<'_> {
                TensorView::$variant(view)
            }
        }
    };
    ($($type:ty: $variant:ident),*) => {
        $(element!($type, $variant, {
            fn in_place(bytes: &[u8]) -> Option<&[Self]> {
                bytemuck::try_cast_slice(bytes).ok()
            }

            fn copied(bytes: &[u8], swapped: bool) -> Result<Vec<Self>, Fault> {
                copied_numbers(bytes, swapped)
            }
        });)*
    };
}

element!(i8: I8, i16: I16, i32: I32, i64: I64, u8: U8, u16: U16, u32: U32, u64: U64);
element!(f16: F16, bf16: Bf16, f32: F32, f64: F64);
element!(bool, Bool, {
    fn in_place(_: &[u8]) -> Option<&[Self]> {
        None
    }

    fn copied(bytes: &[u8], _: bool) -> Result<Vec<Self>, Fault> {
        copied_bools(bytes)
    }
});

fn copied_numbers<T: bytemuck::Pod>(bytes: &[u8], swapped: bool) -> Result<Vec<T>, Fault> {
    let count = bytes.len() / size_of::<T>();
    let mut elements = room_for(count)?;
    elements.resize(count, T::zeroed());
    let target: &mut [u8] = bytemuck::cast_slice_mut(&mut elements);
    target.copy_from_slice(bytes);
    if swapped {
        for element in target.chunks_exact_mut(size_of::<T>()) {
            element.reverse();
        }
    }
    Ok(elements)
}

fn copied_bools(bytes: &[u8]) -> Result<Vec<bool>, Fault> {
    let mut elements = room_for(bytes.len())?;
    for (index, &value) in bytes.iter().enumerate() {
        match value {
            0 => elements.push(false),
            1 => elements.push(true),
            _ => return Err(Fault::BadBool { index, value }),
        }
    }
    Ok(elements)
}

/// An empty vector with room for `count` elements; want of memory is the caller's error, not an abort.
pub(crate) fn room_for<T>(count: usize) -> Result<Vec<T>, Fault> {
    let mut elements = Vec::new();
    let bytes = count as u64 * size_of::<T>() as u64;
    elements.try_reserve_exact(count).map_err(|_| Fault::OutOfMemory { bytes })?;
    Ok(elements)
}
