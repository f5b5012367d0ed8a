//! Python's objects as arrays: NumPy's are read through their C structure, tensors through DLPack's C exchange where their library
//! has it and `__dlpack__` where not; lists and buffers become NumPy arrays first.

use dlpark::ffi::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType};
use dlpark::python::consumer::exchange::ExchangeApi;
use dlpark::python::{ImportedDlpack, dlpack_device, from_dlpack};
use dlpark::{DlpackFlags, TensorRef};
use numpy::npyffi::NPY_ARRAY_WRITEABLE;
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{
    PyException, PyMemoryError, PyNotImplementedError, PyOSError, PyTypeError, PyValueError,
};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString, PyTuple, PyType};

use crate::array::{Array, Memory};

/// # Errors
/// If the object is no array, is not in the CPU's memory, or needs gradients.
pub fn read<'py>(argument: &'static str, object: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    if let Ok(array) = object.cast::<PyUntypedArray>() {
        return from_numpy(argument, array);
    }
    if is_tensor(object)? {
        // A view that is only marked as negated has other numbers in memory.
        let is_negated = ask(object, intern!(object.py(), "is_neg"))?;
        let object = if is_negated { object.call_method0("resolve_neg")? } else { object.clone() };
        check_tensor(argument, &object)?;
        return match ExchangeApi::from_object(object.as_borrowed())? {
            Some(api) => viewed(argument, &object, &api),
            None => imported(argument, &object),
        };
    }
    from_other(argument, object)
}

/// An array that is written, and not a copy of it.
///
/// # Errors
/// As [`read`], and if the object is nothing that can be written in place.
pub fn read_to_write<'py>(argument: &'static str, object: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    if let Ok(array) = object.cast::<PyUntypedArray>() {
        return from_numpy(argument, array);
    }
    if !is_tensor(object)? || ask(object, intern!(object.py(), "is_neg"))? {
        let wanted = "an array or tensor that is written in place";
        return Err(PyTypeError::new_err(format!("{argument}: got {}, want {wanted}", type_name(object))));
    }
    check_tensor(argument, object)?;
    // This way says too whether it may be written.
    imported(argument, object)
}

/// Tells torch that a tensor of its own was written.
pub fn written(object: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = object.py();
    if is_torchs(object)? && !ask(object, intern!(py, "is_inference"))? {
        let graph = torch(py)?.getattr("autograd")?.getattr("graph")?;
        graph.call_method1("increment_version", (object,))?;
    }
    Ok(())
}

/// A seed for dropout: drawn from torch's generator for a tensor of torch's, which its users seed, and else from the system's.
///
/// # Errors
/// If the system has none.
pub fn drawn_seed(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    if is_torchs(object)? {
        let drawn =
            torch(object.py())?.call_method1("randint", (i64::MAX, PyTuple::new(object.py(), [1])?))?;
        return drawn.call_method0("item")?.extract();
    }
    getrandom::u64()
        .map_err(|error| PyOSError::new_err(format!("seed: none to be had of the system: {error}")))
}

/// Whether an object hands its memory over by DLPack.
fn is_tensor(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(is_torchs_own(object) || object.get_type().hasattr(intern!(object.py(), "__dlpack__"))?)
}

/// Through a view that the object's library makes of it for now, which is quicker than `imported`.
fn viewed<'py>(
    argument: &'static str,
    object: &Bound<'py, PyAny>,
    api: &ExchangeApi,
) -> PyResult<Array<'py>> {
    let memory = api.with_tensor_view_no_sync(object.as_borrowed(), |tensor, _| {
        // SAFETY: the producer has just filled it in; shape and strides stay readable while the tensor lives and the interpreter
        // is held.
        let tensor = unsafe { TensorRef::from_raw(tensor) };
        memory(argument, &tensor.map_err(|error| bad(argument, error))?)
    });
    let memory = memory.map_err(|error| replaced(error, unreadable(argument, object)))??;
    // Tensors of zeros alone have no memory, and a view of one an offset from nowhere.
    if memory.data.addr() < 1 << 40 && ask(object, intern!(object.py(), "_is_zerotensor"))? {
        return Array::new(argument, object, Memory { data: std::ptr::null_mut(), ..memory });
    }
    Array::new(argument, object, memory)
}

/// Through a tensor that holds the memory for us.
fn imported<'py>(argument: &'static str, object: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    let unreadable = |error| replaced(error, unreadable(argument, object));
    let tensor = match ExchangeApi::from_object(object.as_borrowed())? {
        Some(api) => {
            let tensor = api.import_managed_no_sync(object.as_borrowed()).map_err(unreadable)?;
            ImportedDlpack::Versioned(tensor.into_parts().0)
        }
        None => {
            on_cpu(argument, dlpack_device(object.as_borrowed()).map_err(unreadable)?)?;
            match from_dlpack(object.as_borrowed(), None, None) {
                // Before DLPack 1.0 nobody asked for a version.
                Err(error) if error.is_instance_of::<PyTypeError>(object.py()) => {
                    let capsule = object.call_method0("__dlpack__").map_err(unreadable)?;
                    from_dlpack(capsule.as_borrowed(), None, None).map_err(unreadable)?
                }
                imported => imported.map_err(unreadable)?,
            }
        }
    };
    let mut memory = memory(argument, &tensor.validate().map_err(|error| bad(argument, error))?)?;
    memory.is_writable = !tensor.flags().intersects(DlpackFlags::READ_ONLY | DlpackFlags::IS_COPIED);
    memory.tensor = Some(tensor);
    Array::new(argument, object, memory)
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
    let is_readable = array.is_empty() || (fit && array.is_aligned());
    if !is_readable {
        return wrong("an array at odd addresses", "an aligned one (array.copy())");
    }
    if is_masked(array)? {
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

fn memory(argument: &str, tensor: &TensorRef<'_>) -> PyResult<Memory> {
    on_cpu(argument, tensor.device())?;
    let strides = tensor.strides_or_compact().map_err(|error| bad(argument, error))?;
    // Without memory there is none at an offset either.
    let offset = if tensor.data_ptr().is_null() { 0 } else { tensor.byte_offset() as usize };
    Ok(Memory {
        dtype: tensor.dtype(),
        shape: tensor.shape().iter().map(|&extent| extent as usize).collect(),
        strides: strides.iter().map(|&step| step as isize).collect(),
        data: tensor.data_ptr().cast_mut().cast::<u8>().wrapping_add(offset),
        is_writable: false,
        tensor: None,
    })
}

/// Whether an array has a mask of its own, which its memory does not hold.
fn is_masked(array: &Bound<'_, PyUntypedArray>) -> PyResult<bool> {
    if array.is_exact_instance_of::<PyUntypedArray>() {
        return Ok(false);
    }
    let class = array.py().import("numpy.ma")?.getattr("MaskedArray")?;
    array.is_instance(&class)
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
    let array = numpy.call_method1("asarray", (object,)).map_err(|error| replaced(error, no_array()))?;
    let array = array.cast_into::<PyUntypedArray>()?;
    // What NumPy knows nothing of comes as one object.
    if array.dtype().kind() == b'O' {
        return Err(no_array());
    }
    from_numpy(argument, &array)
}

/// Refuses a tensor whose memory does not hold its numbers, or of which something would get lost.
fn check_tensor(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<()> {
    refuse_gradients(argument, object)?;
    if !is_plain(object)? {
        let is_mask = argument == "attn_mask";
        let mend =
            if is_mask { " (is_causal=True or causal=\"bottom-right\" for a causal mask)" } else { "" };
        return Err(PyTypeError::new_err(format!(
            "{argument}: got a {}, a tensor of a class that has its own functions, want a plain one{mend}",
            type_name(object),
        )));
    }
    Ok(())
}

/// What a method says that takes nothing and says yes or no; no, where there is none.
fn ask(object: &Bound<'_, PyAny>, method: &Bound<'_, PyString>) -> PyResult<bool> {
    object.getattr_opt(method)?.map_or(Ok(false), |method| method.call0()?.is_truthy())
}

/// Refuses a tensor that gradients are recorded of, backward or forward.
///
/// # Errors
/// If it is one.
pub fn refuse_gradients(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = object.py();
    if !is_torchs(object)? {
        return Ok(());
    }
    let refused = |got: &str, mend: &str| {
        Err(PyNotImplementedError::new_err(format!(
            "{argument}: got a tensor {got} computed here; want {mend}"
        )))
    };
    if records_gradients(object)? {
        let mend = format!("{argument}.detach(), or a call under torch.no_grad()");
        return refused("that requires gradients, which are not", &mend);
    }
    static FORWARD: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let forward =
        FORWARD.get_or_try_init(py, || py.import("torch.autograd.forward_ad").map(Bound::unbind))?;
    let forward = forward.bind(py);
    let is_recording = forward.getattr(intern!(py, "_current_level"))?.extract::<i64>()? >= 0;
    if is_recording && !forward.call_method1("unpack_dual", (object,))?.getattr("tangent")?.is_none() {
        let mend = "its primal alone (torch.autograd.forward_ad.unpack_dual)";
        return refused("with a forward derivative, which is not", mend);
    }
    Ok(())
}

/// Whether what is computed from an object is recorded, for gradients on the way back. Where they are off, none are missed.
///
/// # Errors
/// If a tensor does not answer.
pub fn records_gradients(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = object.py();
    Ok(is_torchs(object)?
        && object.getattr(intern!(py, "requires_grad"))?.is_truthy()?
        && torch(py)?.call_method0(intern!(py, "is_grad_enabled"))?.is_truthy()?)
}

/// Whether torch looks into what is computed from an object: a tracer, a mode, or a transform. `qkv._operator` asks for forward
/// derivatives too, which are refused here when an array is read, and for function modes, which see no difference.
///
/// # Errors
/// If torch does not answer.
pub fn is_watched(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    static ASKED: PyOnceLock<[Py<PyAny>; 3]> = PyOnceLock::new();
    let py = object.py();
    if !is_torchs(object)? {
        return Ok(false);
    }
    let [modes, tracer, transform] = ASKED.get_or_try_init(py, || {
        let inner = torch(py)?.getattr("_C")?;
        let transform = inner.getattr("_functorch")?.getattr("peek_interpreter_stack")?.unbind();
        let of = |name| PyResult::Ok(inner.getattr(name)?.unbind());
        PyResult::Ok([of("_len_torch_dispatch_stack")?, of("_get_tracing_state")?, transform])
    })?;
    Ok(modes.bind(py).call0()?.is_truthy()?
        || !tracer.bind(py).call0()?.is_none()
        || !transform.bind(py).call0()?.is_none())
}

/// Whether an object is a tensor of torch's, or of a class made from it.
fn is_torchs(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    if is_torchs_own(object) {
        return Ok(true);
    }
    let is_plain = object.is_instance_of::<PyUntypedArray>() || object.is_none();
    Ok(!is_plain && object.hasattr(intern!(object.py(), "__torch_function__"))?)
}

/// torch, of which there is a tensor.
fn torch(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static TORCH: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let torch = TORCH.get_or_try_init(py, || py.import("torch").map(Bound::unbind))?;
    Ok(torch.bind(py))
}

/// `torch.Tensor`, once there was one.
static TENSOR: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// Whether an object is a tensor and nothing more: what most are, so that most questions can be spared.
fn is_torchs_own(object: &Bound<'_, PyAny>) -> bool {
    TENSOR
        .get(object.py())
        .is_some_and(|tensor| object.get_type_ptr() == tensor.bind(object.py()).as_type_ptr())
}

/// Whether a tensor is of torch's own classes, or of one that is no more than another name for them: others may keep their
/// numbers elsewhere.
fn is_plain(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    if is_torchs_own(object) {
        return Ok(true);
    }
    let (py, class) = (object.py(), object.get_type());
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

/// An error in our words, caused by one in another library's; what is no error of the input stays as it is.
fn replaced(cause: PyErr, error: PyErr) -> PyErr {
    Python::attach(|py| {
        if !cause.is_instance_of::<PyException>(py) || cause.is_instance_of::<PyMemoryError>(py) {
            return cause;
        }
        error.set_cause(py, Some(cause));
        error
    })
}

fn bad(argument: &str, error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("{argument}: got what DLPack does not allow, {error}"))
}

/// What an object is, for errors.
pub fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map(|name| name.to_string()).unwrap_or_else(|_| "object".to_string())
}
