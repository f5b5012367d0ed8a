//! Arrays at the border: an argument's memory as views that the engine reads, and results as arrays of the kind that came in. No
//! numbers are copied, in either direction. How Python's objects are read is `source.rs`'s.

use std::ptr::NonNull;

use dlpark::DlpackElement;
use dlpark::ffi::{DLDataType, DLDataTypeCode};
use dlpark::python::ImportedDlpack;
use dlpark::python::consumer::exchange::ExchangeApi;
use ndarray::{ArrayD, ArrayView, ArrayViewD, ArrayViewMutD, Axis, IxDyn, ShapeBuilder};
use numpy::{PyArray, PyUntypedArray};
use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use qkv_view::show;
use smallvec::SmallVec;

use crate::exported::{Exported, managed};
use crate::source::type_name;

/// Extents or strides, without an allocation for up to four axes.
pub type Axes<N> = SmallVec<[N; 4]>;

/// The numbers that attention is computed with, which NumPy and DLPack know too.
pub trait Number:
    qkv::Element<Accumulator: numpy::Element + DlpackElement> + numpy::Element + DlpackElement + Default
{
}

impl Number for f32 {}
impl Number for f64 {}
impl Number for qkv::f16 {}
impl Number for qkv::bf16 {}

/// Runs `$body` with `$T` the element type of queries, keys and values.
macro_rules! with_number {
    ($array:expr, $T:ident => $body:expr) => {{
        let dtype = $array.dtype();
        if dtype.is::<f32>() {
            type $T = f32;
            $body
        } else if dtype.is::<f64>() {
            type $T = f64;
            $body
        } else if dtype.is::<qkv::f16>() {
            type $T = qkv::f16;
            $body
        } else if dtype.is::<qkv::bf16>() {
            type $T = qkv::bf16;
            $body
        } else {
            unreachable!("`Inputs` are of these types")
        }
    }};
}
pub(crate) use with_number;

/// Returns every number of an array, converted, if it is of one of these types.
macro_rules! converted {
    ($array:expr, [$($number:ty),*], $x:ident => $convert:expr) => {
        $(if $array.dtype.is::<$number>() {
            return $array.collected($array.numbers::<$number>()?, |&$x| $convert);
        })*
    };
}

/// An argument's array: where its numbers are, and what keeps them there.
pub struct Array<'py> {
    argument: &'static str,
    dtype: DLDataType,
    shape: Axes<usize>,
    /// In elements.
    strides: Axes<isize>,
    data: NonNull<u8>,
    is_writable: bool,
    /// The shape before axes were moved, put in front or repeated.
    given: Axes<usize>,
    /// The axis that was repeated.
    repeated: Option<usize>,
    object: Bound<'py, PyAny>,
    /// Of producers that hand over ownership.
    _tensor: Option<ImportedDlpack>,
}

/// Memory as its owner describes it.
pub struct Memory {
    pub dtype: DLDataType,
    pub shape: Axes<usize>,
    /// In elements.
    pub strides: Axes<isize>,
    /// Of the first element; whatever for an array without elements.
    pub data: *mut u8,
    pub is_writable: bool,
    /// What holds it, beside the object.
    pub tensor: Option<ImportedDlpack>,
}

/// For arrays without elements; aligned for all types.
const DANGLING: NonNull<u8> = NonNull::<u64>::dangling().cast();

impl<'py> Array<'py> {
    /// # Errors
    /// If there is no memory where elements should be, or elements stand at odd addresses.
    pub fn new(argument: &'static str, object: &Bound<'py, PyAny>, memory: Memory) -> PyResult<Self> {
        let Memory { dtype, shape, strides, data, is_writable, tensor } = memory;
        let is_empty = shape.contains(&0);
        if !is_empty && data.is_null() {
            return Err(PyTypeError::new_err(format!(
                "{argument}: got a {} without memory (a fake, functional or zero tensor), want one with numbers",
                type_name(object)
            )));
        }
        // Types of other sizes are not read.
        let size = dtype.element_size();
        if !fits(&shape, &strides, size) {
            return Err(PyValueError::new_err(format!(
                "{argument}: got shape {}, want one whose elements a machine word can count",
                show::shape(&shape)
            )));
        }
        if !is_empty && size.is_power_of_two() && !data.addr().is_multiple_of(size) {
            return Err(PyTypeError::new_err(format!(
                "{argument}: got numbers at odd addresses, want aligned ones (a copy)"
            )));
        }
        // An extent of 1 or 0 is never stepped over.
        let steps = strides.iter().zip(&shape);
        Ok(Self {
            argument,
            dtype,
            strides: steps.map(|(&step, &extent)| if extent > 1 { step } else { 0 }).collect(),
            given: shape.clone(),
            repeated: None,
            shape,
            data: NonNull::new(data).unwrap_or(DANGLING),
            is_writable,
            object: object.clone(),
            _tensor: tensor,
        })
    }

    pub fn argument(&self) -> &'static str {
        self.argument
    }

    pub fn dtype(&self) -> DLDataType {
        self.dtype
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The shape as it was given, before axes were moved, put in front or repeated.
    pub fn given(&self) -> &[usize] {
        &self.given
    }

    /// The axis, if there is one, that had length 1 and was repeated.
    pub fn repeated(&self) -> Option<usize> {
        self.repeated
    }

    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    pub fn is_boolean(&self) -> bool {
        self.dtype.matches(DLDataType::BOOL)
    }

    /// Whether it is of whole numbers, signed or not.
    pub fn is_integer(&self) -> bool {
        matches!(self.dtype.code, DLDataTypeCode::INT | DLDataTypeCode::UINT)
    }

    /// Whether it is of numbers that attention is computed with.
    pub fn is_floating(&self) -> bool {
        [DLDataType::F32, DLDataType::F64, DLDataType::F16, DLDataType::BF16].contains(&self.dtype)
    }

    /// Puts axes of length 1 in front, up to a rank.
    pub fn pad(&mut self, rank: usize) {
        while self.shape.len() < rank {
            self.shape.insert(0, 1);
            self.strides.insert(0, 0);
        }
    }

    pub fn swap_axes(&mut self, one: usize, other: usize) {
        self.shape.swap(one, other);
        self.strides.swap(one, other);
    }

    /// Repeats an axis, if it has length 1, without a copy.
    ///
    /// # Errors
    /// If there are more elements then than a machine word can count.
    pub fn repeat(&mut self, axis: usize, extent: usize) -> PyResult<()> {
        if self.shape[axis] == 1 && extent != 1 {
            self.shape[axis] = extent;
            self.strides[axis] = 0;
            self.repeated = Some(axis);
        }
        if fits(&self.shape, &self.strides, self.dtype.element_size()) {
            return Ok(());
        }
        Err(self.wrong_shape(&format!("one that can be repeated for {extent} heads")))
    }

    /// The shape for errors: as it was given, and as it is read where that differs.
    pub fn shown(&self) -> String {
        let given = show::shape(&self.given);
        if self.given == self.shape {
            given
        } else {
            format!("{given}, read as {}", show::shape(&self.shape))
        }
    }

    /// What results are made like.
    pub fn object(&self) -> &Bound<'py, PyAny> {
        &self.object
    }

    pub fn wrong_dtype(&self, wanted: &str) -> PyErr {
        PyTypeError::new_err(format!("{}: got dtype {}, want {wanted}", self.argument, self.dtype_name()))
    }

    pub fn wrong_shape(&self, wanted: &str) -> PyErr {
        PyValueError::new_err(format!(
            "{}: got shape {}, want {wanted}",
            self.argument,
            show::shape(&self.shape)
        ))
    }

    /// The dtype's name, as its own library writes it.
    pub fn dtype_name(&self) -> String {
        let name = self.object.getattr("dtype").map(|dtype| dtype.to_string());
        let name = name.unwrap_or_else(|_| name_of(self.dtype));
        name.trim_start_matches("torch.").to_string()
    }

    /// The numbers, of the type that they have.
    ///
    /// # Errors
    /// If they have another.
    pub fn numbers<T: DlpackElement>(&self) -> PyResult<ArrayViewD<'_, T>> {
        if !self.dtype.is::<T>() {
            return Err(self.wrong_dtype(&name_of(T::DTYPE)));
        }
        // SAFETY: of this type, by the check; any bits are a number of it.
        Ok(unsafe { self.view() })
    }

    /// True and false.
    ///
    /// # Errors
    /// If it is of anything else, or some byte is neither 0 nor 1.
    pub fn booleans(&self) -> PyResult<ArrayViewD<'_, bool>> {
        if !self.is_boolean() {
            return Err(self.wrong_dtype("bool"));
        }
        // SAFETY: of bytes, by the check.
        let mut bytes: ArrayViewD<'_, u8> = unsafe { self.view() };
        for axis in 0..bytes.ndim() {
            if self.strides[axis] == 0 && bytes.len_of(Axis(axis)) > 1 {
                bytes.collapse_axis(Axis(axis), 0);
            }
        }
        let largest = match bytes.as_slice_memory_order() {
            Some(bytes) => bytes.iter().fold(0, |largest, &byte| byte.max(largest)),
            None => bytes.fold(0, |largest, &byte| byte.max(largest)),
        };
        if largest > 1 {
            let message = format!("{}: got a boolean whose byte is {largest}, want 0 or 1", self.argument);
            return Err(PyValueError::new_err(message));
        }
        // SAFETY: each byte is 0 or 1, as just seen; who writes others meanwhile does what `view` tells of.
        Ok(unsafe { self.view() })
    }

    /// The numbers, to be written.
    ///
    /// # Errors
    /// If they have another type, may not be written, or lie in one another's place.
    ///
    /// # Safety
    /// No other view may be of the same memory: see [`overlaps`](Self::overlaps).
    pub unsafe fn numbers_mut<T: DlpackElement>(&mut self) -> PyResult<ArrayViewMutD<'_, T>> {
        if !self.dtype.is::<T>() {
            return Err(self.wrong_dtype(&format!("{}, as the query has", name_of(T::DTYPE))));
        }
        let refused = |got: &str| {
            PyValueError::new_err(format!("{}: got {got}, want one that can be written", self.argument))
        };
        if !self.is_writable {
            return Err(refused("a read-only array"));
        }
        if self.has_overlap() {
            return Err(refused("an array whose elements share memory"));
        }
        let Layout { shape, strides, reversed, data } = self.layout();
        let shape = IxDyn(&shape).strides(IxDyn(&strides));
        // SAFETY: as in `view`; no two elements share an address, and other views lie elsewhere, as the caller has seen.
        let mut view = unsafe { ArrayViewMutD::from_shape_ptr(shape, data.cast().as_ptr()) };
        reversed.into_iter().for_each(|axis| view.invert_axis(Axis(axis)));
        Ok(view)
    }

    /// # Safety
    /// `T` must be the type of its elements, and their bits valid for it.
    unsafe fn view<T>(&self) -> ArrayViewD<'_, T> {
        let Layout { shape, strides, reversed, data } = self.layout();
        let shape = IxDyn(&shape).strides(IxDyn(&strides));
        // SAFETY: the owner says that these elements are there and aligned, and holds them while `object` and `_tensor` are held;
        // `fits` has seen that offsets do not overflow. That another thread writes to them or takes their memory away meanwhile
        // is as undefined as it is for the owner's own functions, which let go of the interpreter too.
        let mut view = unsafe { ArrayView::from_shape_ptr(shape, data.cast().as_ptr()) };
        reversed.into_iter().for_each(|axis| view.invert_axis(Axis(axis)));
        view
    }

    fn layout(&self) -> Layout {
        let backwards = self.shape.iter().zip(&self.strides).filter(|(_, step)| **step < 0);
        let below: isize = backwards.map(|(&extent, &step)| step * (extent as isize - 1)).sum();
        let below = if self.is_empty() { 0 } else { below * self.dtype.element_size() as isize };
        Layout {
            shape: self.shape.clone(),
            strides: self.strides.iter().map(|step| step.unsigned_abs()).collect(),
            reversed: (0..self.shape.len()).filter(|&axis| self.strides[axis] < 0).collect(),
            data: NonNull::new(self.data.as_ptr().wrapping_offset(below)).unwrap_or(DANGLING),
        }
    }

    /// Whether two elements may have one address.
    fn has_overlap(&self) -> bool {
        let axes = self.shape.iter().zip(&self.strides).filter(|(extent, _)| **extent > 1);
        let mut axes: Axes<(usize, usize)> =
            axes.map(|(&extent, step)| (step.unsigned_abs(), extent)).collect();
        axes.sort_unstable();
        let mut reach = 0;
        !self.is_empty()
            && axes.iter().any(|&(step, extent)| {
                let overlaps = step <= reach;
                reach += step * (extent - 1);
                overlaps
            })
    }

    /// Whether the memory of two arrays, from the lowest to the highest address, has bytes in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        let span = |array: &Self| {
            let Layout { shape, strides, data, .. } = array.layout();
            let reach: usize = shape.iter().zip(&strides).map(|(extent, step)| (extent - 1) * step).sum();
            let start = data.addr().get();
            start..start + (reach + 1) * array.dtype.element_size()
        };
        if self.is_empty() || other.is_empty() {
            return false;
        }
        let (own, others) = (span(self), span(other));
        own.start < others.end && others.start < own.end
    }

    fn collected<T, O>(&self, view: ArrayViewD<'_, T>, convert: impl Fn(&T) -> O) -> PyResult<ArrayD<O>> {
        // Of memory that is repeated there may be more elements than memory holds.
        let no_memory = || {
            let shape = show::shape(&self.given);
            PyMemoryError::new_err(format!("{}: no memory for an array of shape {shape}", self.argument))
        };
        let mut numbers = Vec::new();
        numbers.try_reserve_exact(view.len()).map_err(|_| no_memory())?;
        numbers.extend(view.iter().map(convert));
        ArrayD::from_shape_vec(view.raw_dim(), numbers).map_err(|_| no_memory())
    }

    /// Numbers of any type, in f64.
    ///
    /// # Errors
    /// If it is not of numbers.
    pub fn widened(&self) -> PyResult<ArrayD<f64>> {
        converted!(self, [f32, qkv::f16, qkv::bf16, i32, i16, i8, u32, u16, u8], x => f64::from(x));
        converted!(self, [f64, i64, u64], x => x as f64);
        Err(self.wrong_dtype("numbers"))
    }

    /// Whole numbers.
    ///
    /// # Errors
    /// If it is of anything else, booleans and u64 among it.
    pub fn integers(&self) -> PyResult<ArrayD<i64>> {
        converted!(self, [i64], x => x);
        converted!(self, [i32, i16, i8, u32, u16, u8], x => i64::from(x));
        Err(self.wrong_dtype("whole numbers, int64 at most"))
    }

    /// Whether some number of it is -∞; no, for what is of no floats.
    ///
    /// # Errors
    /// As [`numbers`](Self::numbers), which is asked for the type that they have.
    pub fn has_negative_infinity(&self) -> PyResult<bool> {
        macro_rules! any {
            ($($number:ty),*) => {
                $(if self.dtype.is::<$number>() {
                    return Ok(self.numbers::<$number>()?.iter().any(|&x| x == <$number>::NEG_INFINITY));
                })*
            };
        }
        any!(f32, f64, qkv::f16, qkv::bf16);
        Ok(false)
    }

    /// Where it is not 0, whatever it is of.
    ///
    /// # Errors
    /// If it is of no numbers.
    pub fn is_nonzero(&self) -> PyResult<ArrayD<bool>> {
        if self.is_boolean() {
            return self.collected(self.booleans()?, |&x| x);
        }
        converted!(self, [f32, f64], x => x != 0.0);
        converted!(self, [qkv::f16, qkv::bf16], x => x.to_f32() != 0.0);
        converted!(self, [i64, i32, i16, i8, u64, u32, u16, u8], x => x != 0);
        Err(self.wrong_dtype("bool or numbers"))
    }
}

/// An array as `ndarray` reads memory: with strides that have no sign.
struct Layout {
    shape: Axes<usize>,
    strides: Axes<usize>,
    /// The axes that run backwards.
    reversed: Axes<usize>,
    /// The lowest address.
    data: NonNull<u8>,
}

/// Whether extents multiply, and steps add up to bytes, without overflow: what `ndarray` asks of a view.
fn fits(shape: &[usize], strides: &[isize], size: usize) -> bool {
    let most = isize::MAX as usize;
    let count = shape
        .iter()
        .filter(|&&extent| extent > 0)
        .try_fold(1usize, |count, &extent| count.checked_mul(extent));
    let reach = shape.iter().zip(strides).try_fold(1usize, |reach, (&extent, step)| {
        extent.saturating_sub(1).checked_mul(step.unsigned_abs())?.checked_add(reach)
    });
    let bytes = reach.and_then(|reach| reach.checked_mul(size));
    count.is_some_and(|count| count <= most) && bytes.is_some_and(|bytes| bytes <= most)
}

/// A dtype's name where no library gives it one: `float32`.
fn name_of(dtype: DLDataType) -> String {
    let kind = match dtype.code {
        DLDataTypeCode::INT => "int",
        DLDataTypeCode::UINT => "uint",
        DLDataTypeCode::FLOAT => "float",
        DLDataTypeCode::BFLOAT => "bfloat",
        DLDataTypeCode::COMPLEX => "complex",
        DLDataTypeCode::BOOL => return "bool".to_string(),
        _ => return "one of another library".to_string(),
    };
    format!("{kind}{}", dtype.bits)
}

/// An array of a result, of the kind that `like` is of. Its memory changes hands; nothing is copied.
pub fn give<'py, T: numpy::Element + DlpackElement + Send>(
    like: &Bound<'py, PyAny>,
    array: ArrayD<T>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = like.py();
    if like.is_instance_of::<PyUntypedArray>() {
        return Ok(PyArray::from_owned_array(py, array).into_any());
    }
    match ExchangeApi::from_object(like.as_borrowed())? {
        Some(api) => api.managed_tensor_to_py_object_no_sync(managed(array)?, py),
        None => Exported::give(like, array),
    }
}
