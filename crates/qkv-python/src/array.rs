//! Arrays at the border: what Python hands in becomes views that the engine reads, and results become arrays of the kind
//! that came in.
//!
//! NumPy's arrays are read through their C structure, tensors through DLPack's C exchange where their library has it and
//! `__dlpack__` where not; lists and buffers become NumPy arrays first. No numbers are copied, in either direction.

use std::ptr::NonNull;

use dlpark::ffi::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType};
use dlpark::python::consumer::exchange::ExchangeApi;
use dlpark::python::{ImportedDlpack, dlpack_device, from_dlpack};
use dlpark::{DlpackElement, DlpackFlags, TensorRef};
use ndarray::{ArrayD, ArrayView, ArrayViewD, ArrayViewMutD, Axis, IxDyn, ShapeBuilder};
use numpy::npyffi::NPY_ARRAY_WRITEABLE;
use numpy::{PyArray, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyNotImplementedError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString};
use qkv_view::show;
use smallvec::SmallVec;

use crate::exported::{Exported, managed};

/// Extents or strides, without an allocation for up to four axes.
type Axes<N> = SmallVec<[N; 4]>;

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
            return Ok($array.numbers::<$number>()?.map(|&$x| $convert));
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
    object: Bound<'py, PyAny>,
    /// Of producers that hand over ownership.
    _tensor: Option<ImportedDlpack>,
}

impl<'py> Array<'py> {
    /// # Errors
    /// If the object is no array, is not in the CPU's memory, or needs gradients.
    pub fn new(argument: &'static str, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(array) = object.cast::<PyUntypedArray>() {
            return Self::from_numpy(argument, array);
        }
        if let Some(api) = ExchangeApi::from_object(object.as_borrowed())? {
            let object = checked_tensor(argument, object)?;
            let viewed = api.with_tensor_view_no_sync(object.as_borrowed(), |tensor, _| {
                // SAFETY: the producer has just filled it in; shape and strides stay readable while the tensor lives and the
                // GIL is held.
                let tensor = unsafe { TensorRef::from_raw(tensor) };
                Self::from_tensor(argument, &object, tensor.map_err(|error| bad(argument, error))?)
            });
            return viewed.map_err(|error| unreadable(argument, &object, error))?;
        }
        if object.hasattr("__dlpack__")? {
            let object = checked_tensor(argument, object)?;
            on_cpu(argument, dlpack_device(object.as_borrowed())?)?;
            let tensor = from_dlpack(object.as_borrowed(), None, None);
            let tensor = tensor.map_err(|error| unreadable(argument, &object, error))?;
            let read_only = tensor.flags().contains(DlpackFlags::READ_ONLY);
            let view = tensor.validate().map_err(|error| bad(argument, error))?;
            let mut array = Self::from_tensor(argument, &object, view)?;
            array.is_writable &= !read_only;
            array._tensor = Some(tensor);
            return Ok(array);
        }
        Self::from_other(argument, object)
    }

    fn from_numpy(argument: &'static str, array: &Bound<'py, PyUntypedArray>) -> PyResult<Self> {
        let descr = array.dtype();
        let size = descr.itemsize();
        let scalar = |code| DLDataType::scalar(code, 8 * size as u8);
        let dtype = match descr.kind() {
            b'f' if size <= 8 => scalar(DLDataTypeCode::FLOAT),
            b'i' => scalar(DLDataTypeCode::INT),
            b'u' => scalar(DLDataTypeCode::UINT),
            b'b' => scalar(DLDataTypeCode::BOOL),
            _ if descr.typeobj().name()? == "bfloat16" => scalar(DLDataTypeCode::BFLOAT),
            _ => DLDataType::scalar(DLDataTypeCode::OPAQUEHANDLE, 8),
        };
        let usable = |wanted: &str, mend: &str| {
            PyTypeError::new_err(format!("{argument}: got an array of {descr}, want {wanted} ({mend})"))
        };
        if descr.is_native_byteorder() == Some(false) {
            return Err(usable("this machine's byte order", "array.astype(array.dtype.newbyteorder(\"=\"))"));
        }
        // An extent of 1 or 0 is never stepped over.
        let steps = array.shape().iter().zip(array.strides());
        let steps = steps.map(|(&extent, &step)| if extent > 1 { step } else { 0 });
        let strides: Axes<isize> = steps.collect();
        let fits = |step: &isize| size > 0 && step % size as isize == 0;
        let is_readable = array.is_empty() || (array.is_aligned() && strides.iter().all(fits));
        if !is_readable {
            return Err(usable("whole numbers at aligned addresses", "array.copy()"));
        }
        // SAFETY: the array is alive, and its structure is read under the GIL.
        let (data, flags) =
            unsafe { ((*array.as_array_ptr()).fields.data, (*array.as_array_ptr()).fields.flags) };
        Ok(Self {
            argument,
            dtype,
            shape: array.shape().into(),
            strides: strides.iter().map(|step| step / size.max(1) as isize).collect(),
            data: NonNull::new(data.cast()).unwrap_or(DANGLING),
            is_writable: flags & NPY_ARRAY_WRITEABLE != 0,
            object: array.as_any().clone(),
            _tensor: None,
        })
    }

    fn from_tensor(
        argument: &'static str,
        object: &Bound<'py, PyAny>,
        tensor: TensorRef<'_>,
    ) -> PyResult<Self> {
        on_cpu(argument, tensor.device())?;
        let strides = tensor.strides_or_compact().map_err(|error| bad(argument, error))?;
        if tensor.data_ptr().is_null() && tensor.num_elements() > 0 {
            return Err(PyTypeError::new_err(format!(
                "{argument}: got a {} without memory (a fake, functional or zero tensor), want one with numbers",
                type_name(object)
            )));
        }
        // SAFETY: only added up here; what may be read is for `view` to say.
        let data = unsafe { tensor.offset_bytes_ptr() }.map_err(|error| bad(argument, error))?;
        let data = NonNull::new(data.cast_mut());
        let data = data.unwrap_or(DANGLING);
        if tensor.num_elements() > 0 && !data.addr().get().is_multiple_of(tensor.dtype().element_size()) {
            return Err(PyTypeError::new_err(format!(
                "{argument}: got numbers at odd addresses, want aligned ones (a copy)"
            )));
        }
        let extents = tensor.shape().iter().map(|&extent| extent as usize);
        let steps = strides.iter().zip(tensor.shape());
        Ok(Self {
            argument,
            dtype: tensor.dtype(),
            shape: extents.collect(),
            strides: steps.map(|(&step, &extent)| if extent > 1 { step as isize } else { 0 }).collect(),
            data,
            is_writable: true,
            object: object.clone(),
            _tensor: None,
        })
    }

    /// Lists and buffers, by way of NumPy.
    fn from_other(argument: &'static str, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let is_scalar = object.is_instance_of::<PyFloat>()
            || object.is_instance_of::<PyInt>()
            || object.is_instance_of::<PyBool>()
            || object.is_instance_of::<PyString>()
            || object.is_none();
        let no_array = || {
            PyTypeError::new_err(format!(
                "{argument}: got {}, want an array: of NumPy, torch, or anything with DLPack or the buffer protocol",
                type_name(object)
            ))
        };
        if is_scalar {
            return Err(no_array());
        }
        let numpy = object.py().import("numpy")?;
        let array = numpy.call_method1("asarray", (object,)).map_err(|error| bad(argument, error))?;
        let array = array.cast_into::<PyUntypedArray>()?;
        // Bytes without a meaning come as one scalar, what NumPy knows nothing of as an object.
        if array.dtype().kind() == b'O' || object.is_instance_of::<PyBytes>() {
            return Err(no_array());
        }
        Self::from_numpy(argument, &array)
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

    /// Repeats an axis of length 1, without a copy.
    pub fn repeat(&mut self, axis: usize, extent: usize) {
        self.shape[axis] = extent;
        self.strides[axis] = 0;
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
        // SAFETY: each byte is 0 or 1, as just seen.
        Ok(unsafe { self.view() })
    }

    /// The numbers, to be written.
    ///
    /// # Errors
    /// If they have another type, may not be written, or lie in one another's place.
    pub fn numbers_mut<T: DlpackElement>(&mut self) -> PyResult<ArrayViewMutD<'_, T>> {
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
        // SAFETY: as in `view`; no two elements share an address, and inputs lie elsewhere, as the caller has seen.
        let mut view = unsafe { ArrayViewMutD::from_shape_ptr(shape, data.cast().as_ptr()) };
        reversed.into_iter().for_each(|axis| view.invert_axis(Axis(axis)));
        Ok(view)
    }

    /// # Safety
    /// `T` must be the type of its elements, and their bits valid for it.
    unsafe fn view<T>(&self) -> ArrayViewD<'_, T> {
        let Layout { shape, strides, reversed, data } = self.layout();
        let shape = IxDyn(&shape).strides(IxDyn(&strides));
        // SAFETY: the owner says that these elements are there and aligned, and holds them while `object` is held. That another
        // thread writes to them meanwhile is as undefined as it is for the owner's own library.
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

    /// Where it is not 0, whatever it is of.
    ///
    /// # Errors
    /// If it is of no numbers.
    pub fn is_nonzero(&self) -> PyResult<ArrayD<bool>> {
        if self.is_boolean() {
            return Ok(self.booleans()?.to_owned());
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

/// For arrays without elements; aligned for all types.
const DANGLING: NonNull<u8> = NonNull::<u64>::dangling().cast();

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

/// What is wrong with a tensor before its memory is looked at, where it says so; else the tensor, with its numbers as they are.
fn checked_tensor<'py>(argument: &str, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let holds = |attribute: &Bound<'py, PyString>| -> PyResult<bool> {
        Ok(object.getattr_opt(attribute)?.is_some_and(|value| value.is_truthy().unwrap_or(false)))
    };
    if holds(pyo3::intern!(py, "requires_grad"))? {
        // Where no gradients are recorded, none are missed.
        let torch = py.import(pyo3::intern!(py, "torch"))?;
        if torch.call_method0(pyo3::intern!(py, "is_grad_enabled"))?.is_truthy()? {
            return Err(PyNotImplementedError::new_err(format!(
                "{argument}: got a tensor that requires gradients, which qkv does not compute yet; want {argument}.detach(), or \
                 a call under torch.no_grad()"
            )));
        }
    }
    // A view that is only marked as negated has other numbers in memory.
    match object.getattr_opt(pyo3::intern!(py, "is_neg"))? {
        Some(is_neg) if is_neg.call0()?.is_truthy()? => object.call_method0("resolve_neg"),
        _ => Ok(object.clone()),
    }
}

fn on_cpu(argument: &str, device: DLDevice) -> PyResult<()> {
    let in_reach = [DLDeviceType::CPU, DLDeviceType::CUDAHOST, DLDeviceType::ROCMHOST];
    if in_reach.contains(&device.device_type) {
        return Ok(());
    }
    let name = match device.device_type {
        DLDeviceType::CUDA | DLDeviceType::CUDAMANAGED => "cuda".to_string(),
        DLDeviceType::ROCM => "rocm".to_string(),
        DLDeviceType::METAL => "metal".to_string(),
        DLDeviceType::VULKAN => "vulkan".to_string(),
        DLDeviceType::ONEAPI => "oneapi".to_string(),
        DLDeviceType(other) => format!("DLPack device {other}"),
    };
    Err(PyTypeError::new_err(format!(
        "{argument}: got a tensor on {name}:{}, want one in the CPU's memory (.cpu())",
        device.device_id
    )))
}

fn unreadable(argument: &str, object: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let device = object.getattr("device").map(|device| format!(" on {device}")).unwrap_or_default();
    let message = format!(
        "{argument}: got a {}{device} that has no plain memory to read ({}), want a dense one in the CPU's memory",
        type_name(object),
        first_line(&error.to_string()),
    );
    PyTypeError::new_err(message)
}

fn bad(argument: &str, error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("{argument}: {}", first_line(&error.to_string())))
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// What an object is, for errors.
pub fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map(|name| name.to_string()).unwrap_or_else(|_| "object".to_string())
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
