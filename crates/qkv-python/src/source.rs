//! Python's objects as arrays: NumPy's are read through their C structure, tensors through DLPack's C exchange where their library
//! has it and `__dlpack__` where not; lists and buffers become NumPy arrays first.

use dlpark::ffi::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType};
use dlpark::python::consumer::exchange::ExchangeApi;
use dlpark::python::{dlpack_device, from_dlpack};
use dlpark::{DlpackFlags, TensorRef};
use numpy::npyffi::NPY_ARRAY_WRITEABLE;
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyNotImplementedError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString, PyType};

use crate::array::{Array, Memory};

/// # Errors
/// If the object is no array, is not in the CPU's memory, or needs gradients.
pub fn read<'py>(argument: &'static str, object: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    if let Ok(array) = object.cast::<PyUntypedArray>() {
        return from_numpy(argument, array);
    }
    if let Some(api) = ExchangeApi::from_object(object.as_borrowed())? {
        let object = checked_tensor(argument, object)?;
        let memory = api.with_tensor_view_no_sync(object.as_borrowed(), |tensor, _| {
            // SAFETY: the producer has just filled it in; shape and strides stay readable while the tensor lives and the interpreter
            // is held.
            let tensor = unsafe { TensorRef::from_raw(tensor) };
            memory(argument, tensor.map_err(|error| bad(argument, error))?)
        });
        return Array::new(argument, &object, memory.map_err(|_| unreadable(argument, &object))??);
    }
    if object.hasattr("__dlpack__")? {
        let object = checked_tensor(argument, object)?;
        on_cpu(argument, dlpack_device(object.as_borrowed())?)?;
        let tensor = from_dlpack(object.as_borrowed(), None, None);
        let tensor = tensor.map_err(|_| unreadable(argument, &object))?;
        let mut memory = memory(argument, tensor.validate().map_err(|error| bad(argument, error))?)?;
        memory.is_writable = !tensor.flags().contains(DlpackFlags::READ_ONLY);
        memory.tensor = Some(tensor);
        return Array::new(argument, &object, memory);
    }
    from_other(argument, object)
}

fn from_numpy<'py>(argument: &'static str, array: &Bound<'py, PyUntypedArray>) -> PyResult<Array<'py>> {
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
    let wrong = |got: &str, wanted: &str| {
        Err(PyTypeError::new_err(format!("{argument}: got {got}, of {descr}, want {wanted}")))
    };
    if descr.is_native_byteorder() == Some(false) {
        let wanted = "this machine's byte order (array.astype(array.dtype.newbyteorder(\"=\")))";
        return wrong("an array", wanted);
    }
    let steps = array.shape().iter().zip(array.strides()).filter(|(extent, _)| **extent > 1);
    let fit = steps.clone().all(|(_, step)| size > 0 && step % size as isize == 0);
    if !array.is_empty() && !(fit && array.is_aligned()) {
        return wrong("an array at odd addresses", "an aligned one (array.copy())");
    }
    if array.hasattr("_fill_value")? {
        return wrong("a masked array", "a plain one, and a mask as attn_mask (array.filled())");
    }
    // SAFETY: the array is alive, and its structure is read while the interpreter is held.
    let fields = unsafe { &(*array.as_array_ptr()).fields };
    let memory = Memory {
        dtype,
        shape: array.shape().into(),
        strides: array.strides().iter().map(|step| step / size.max(1) as isize).collect(),
        data: fields.data.cast(),
        is_writable: fields.flags & NPY_ARRAY_WRITEABLE != 0,
        tensor: None,
    };
    Array::new(argument, array.as_any(), memory)
}

fn memory(argument: &str, tensor: TensorRef<'_>) -> PyResult<Memory> {
    on_cpu(argument, tensor.device())?;
    let strides = tensor.strides_or_compact().map_err(|error| bad(argument, error))?;
    Ok(Memory {
        dtype: tensor.dtype(),
        shape: tensor.shape().iter().map(|&extent| extent as usize).collect(),
        strides: strides.iter().map(|&step| step as isize).collect(),
        data: tensor.data_ptr().cast_mut().cast::<u8>().wrapping_add(tensor.byte_offset() as usize),
        is_writable: true,
        tensor: None,
    })
}

/// Lists and buffers, by way of NumPy.
fn from_other<'py>(argument: &'static str, object: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    let is_scalar = object.is_instance_of::<PyFloat>()
        || object.is_instance_of::<PyInt>()
        || object.is_instance_of::<PyBool>()
        || object.is_instance_of::<PyString>()
        || object.is_instance_of::<PyBytes>()
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
    let array = numpy.call_method1("asarray", (object,)).map_err(|_| no_array())?;
    let array = array.cast_into::<PyUntypedArray>()?;
    // What NumPy knows nothing of comes as one object.
    if array.dtype().kind() == b'O' {
        return Err(no_array());
    }
    from_numpy(argument, &array)
}

/// A tensor whose memory holds its numbers, and nothing that goes lost when they are read.
fn checked_tensor<'py>(argument: &str, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    refuse_gradients(argument, object)?;
    if !is_plain(object)? {
        return Err(PyTypeError::new_err(format!(
            "{argument}: got a {}, a tensor of a class that has its own functions, want a plain one{}",
            type_name(object),
            if argument == "attn_mask" {
                " (is_causal=True or causal=\"bottom-right\" for a causal mask)"
            } else {
                ""
            }
        )));
    }
    // A view that is only marked as negated has other numbers in memory.
    match object.getattr_opt(pyo3::intern!(py, "is_neg"))? {
        Some(is_neg) if is_neg.call0()?.is_truthy()? => object.call_method0("resolve_neg"),
        _ => Ok(object.clone()),
    }
}

/// Refuses a tensor that gradients are recorded of, backward or forward.
///
/// # Errors
/// If it is one.
pub fn refuse_gradients(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = object.py();
    let Some(requires_grad) = object.getattr_opt(pyo3::intern!(py, "requires_grad"))? else { return Ok(()) };
    let refused = |mend: &str| {
        Err(PyNotImplementedError::new_err(format!(
            "{argument}: got a tensor that requires gradients, which qkv does not compute yet; want {mend}"
        )))
    };
    // Where none are recorded, none are missed.
    if requires_grad.is_truthy()?
        && torch(py)?.call_method0(pyo3::intern!(py, "is_grad_enabled"))?.is_truthy()?
    {
        return refused(&format!("{argument}.detach(), or a call under torch.no_grad()"));
    }
    let forward =
        torch(py)?.getattr(pyo3::intern!(py, "autograd"))?.getattr(pyo3::intern!(py, "forward_ad"))?;
    let is_recording = forward.getattr(pyo3::intern!(py, "_current_level"))?.extract::<i64>()? >= 0;
    if is_recording && !forward.call_method1("unpack_dual", (object,))?.getattr("tangent")?.is_none() {
        return refused("its primal alone (torch.autograd.forward_ad.unpack_dual)");
    }
    Ok(())
}

/// torch, of which there is a tensor.
fn torch(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static TORCH: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let torch = TORCH.get_or_try_init(py, || py.import("torch").map(Bound::unbind))?;
    Ok(torch.bind(py))
}

/// Whether a tensor is of torch's own classes, or of one that is no more than another name for them: others may keep their
/// numbers elsewhere.
fn is_plain(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    static TENSOR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let (py, class) = (object.py(), object.get_type());
    if TENSOR.get(py).is_some_and(|tensor| class.is(tensor)) {
        return Ok(true);
    }
    let Some(own) = class.getattr_opt("__torch_function__")? else { return Ok(true) };
    let tensor = torch(py)?.getattr("Tensor")?.cast_into::<PyType>()?;
    if class.is(&tensor) {
        TENSOR.get_or_init(py, || tensor.unbind());
        return Ok(true);
    }
    let disabled = torch(py)?.getattr("_C")?.getattr("_disabled_torch_function_impl")?;
    let torchs = tensor.getattr("__torch_function__")?.getattr("__func__")?;
    let inherits = own.is(&disabled) || own.getattr_opt("__func__")?.is_some_and(|own| own.is(&torchs));
    let dispatch = "__torch_dispatch__";
    Ok(inherits && class.getattr(dispatch)?.is(&tensor.getattr(dispatch)?))
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

fn unreadable(argument: &str, object: &Bound<'_, PyAny>) -> PyErr {
    let told = |attribute: &str| object.getattr(attribute).map(|value| value.to_string()).ok();
    let place = told("device").map(|device| format!(" on {device}")).unwrap_or_default();
    let layout = told("layout").map(|layout| format!(", {layout}")).unwrap_or_default();
    PyTypeError::new_err(format!(
        "{argument}: got a {}{place}{layout}, without plain memory to read, want a dense one in the CPU's memory",
        type_name(object)
    ))
}

fn bad(argument: &str, error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("{argument}: got what DLPack does not allow, {error}"))
}

/// What an object is, for errors.
pub fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map(|name| name.to_string()).unwrap_or_else(|_| "object".to_string())
}
