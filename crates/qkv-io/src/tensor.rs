//! Arrays whose element type is known only at run time: owned ([`Tensor`]) and borrowed ([`TensorView`]).

use crate::element::Element;
use crate::layout::Layout;
use crate::{Bytes, Data, Dtype, Fault};
use half::{bf16, f16};
use ndarray::{ArrayView, ArrayViewD, Dimension};

/// One array of a file.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "each variant is the dtype of its name")]
pub enum Tensor {
    Bool(Data<bool>),
    I8(Data<i8>),
    I16(Data<i16>),
    I32(Data<i32>),
    I64(Data<i64>),
    U8(Data<u8>),
    U16(Data<u16>),
    U32(Data<u32>),
    U64(Data<u64>),
    F16(Data<f16>),
    Bf16(Data<bf16>),
    F32(Data<f32>),
    F64(Data<f64>),
}

/// A borrowed array of any dtype and any strides: transposed, sliced, reversed or broadcast.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "each variant is the dtype of its name")]
pub enum TensorView<'a> {
    Bool(ArrayViewD<'a, bool>),
    I8(ArrayViewD<'a, i8>),
    I16(ArrayViewD<'a, i16>),
    I32(ArrayViewD<'a, i32>),
    I64(ArrayViewD<'a, i64>),
    U8(ArrayViewD<'a, u8>),
    U16(ArrayViewD<'a, u16>),
    U32(ArrayViewD<'a, u32>),
    U64(ArrayViewD<'a, u64>),
    F16(ArrayViewD<'a, f16>),
    Bf16(ArrayViewD<'a, bf16>),
    F32(ArrayViewD<'a, f32>),
    F64(ArrayViewD<'a, f64>),
}

/// Does the same with the array inside, whatever its dtype.
macro_rules! for_any {
    ($type:ident, $tensor:expr, $array:ident => $body:expr) => {
        match $tensor {
            $type::Bool($array) => $body,
            $type::I8($array) => $body,
            $type::I16($array) => $body,
            $type::I32($array) => $body,
            $type::I64($array) => $body,
            $type::U8($array) => $body,
            $type::U16($array) => $body,
            $type::U32($array) => $body,
            $type::U64($array) => $body,
            $type::F16($array) => $body,
            $type::Bf16($array) => $body,
            $type::F32($array) => $body,
            $type::F64($array) => $body,
        }
    };
}
pub(crate) use for_any;

impl Tensor {
    /// Reads an array from its bytes, which must be exactly as many as its layout needs.
    pub(crate) fn new(bytes: Bytes, layout: &Layout) -> Result<Self, Fault> {
        Ok(match layout.dtype() {
            Dtype::Bool => Tensor::Bool(Data::new(bytes, layout)?),
            Dtype::I8 => Tensor::I8(Data::new(bytes, layout)?),
            Dtype::I16 => Tensor::I16(Data::new(bytes, layout)?),
            Dtype::I32 => Tensor::I32(Data::new(bytes, layout)?),
            Dtype::I64 => Tensor::I64(Data::new(bytes, layout)?),
            Dtype::U8 => Tensor::U8(Data::new(bytes, layout)?),
            Dtype::U16 => Tensor::U16(Data::new(bytes, layout)?),
            Dtype::U32 => Tensor::U32(Data::new(bytes, layout)?),
            Dtype::U64 => Tensor::U64(Data::new(bytes, layout)?),
            Dtype::F16 => Tensor::F16(Data::new(bytes, layout)?),
            Dtype::Bf16 => Tensor::Bf16(Data::new(bytes, layout)?),
            Dtype::F32 => Tensor::F32(Data::new(bytes, layout)?),
            Dtype::F64 => Tensor::F64(Data::new(bytes, layout)?),
        })
    }

    /// The array, if its elements are of type `T`.
    pub fn data<T: Element>(&self) -> Option<&Data<T>> {
        T::unwrap(self)
    }

    /// The array, borrowed.
    pub fn view(&self) -> TensorView<'_> {
        for_any!(Tensor, self, data => data.view().into())
    }

    /// The type of the elements.
    pub fn dtype(&self) -> Dtype {
        fn of<T: Element>(_: &Data<T>) -> Dtype {
            T::DTYPE
        }
        for_any!(Tensor, self, data => of(data))
    }

    /// Length along each axis.
    pub fn shape(&self) -> &[usize] {
        for_any!(Tensor, self, data => data.shape())
    }

    /// Number of elements: 1 for an array without axes.
    pub fn len(&self) -> usize {
        self.shape().iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the elements take.
    pub fn nbytes(&self) -> usize {
        self.len() * self.dtype().size()
    }

    /// Whether the elements are viewed where the file's bytes are, without a copy.
    pub fn is_in_place(&self) -> bool {
        for_any!(Tensor, self, data => data.is_in_place())
    }
}

impl<T: Element> From<Data<T>> for Tensor {
    fn from(data: Data<T>) -> Self {
        T::wrap(data)
    }
}

impl TensorView<'_> {
    /// The type of the elements.
    pub fn dtype(&self) -> Dtype {
        fn of<T: Element>(_: &ArrayViewD<'_, T>) -> Dtype {
            T::DTYPE
        }
        for_any!(TensorView, self, view => of(view))
    }

    /// Length along each axis.
    pub fn shape(&self) -> &[usize] {
        for_any!(TensorView, self, view => view.shape())
    }

    /// Bytes that the elements take when each is written once.
    pub(crate) fn nbytes(&self) -> u64 {
        // In u64, and without overflow: a broadcast view may have far more elements than memory has bytes.
        let count = self.shape().iter().fold(1u64, |count, &length| count.saturating_mul(length as u64));
        count.saturating_mul(self.dtype().size() as u64)
    }
}

impl<'a, T: Element, D: Dimension> From<ArrayView<'a, T, D>> for TensorView<'a> {
    fn from(view: ArrayView<'a, T, D>) -> Self {
        T::wrap_view(view.into_dyn())
    }
}
