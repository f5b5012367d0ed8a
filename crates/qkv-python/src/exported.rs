//! Results for libraries that take arrays over by calling `__dlpack__` on an object.

use std::sync::Mutex;

use dlpark::allocation::dynamic::Initialized;
use dlpark::ffi::{DLDeviceType, DLManagedTensor, DLManagedTensorVersioned};
use dlpark::python::consumer::exchange::ExchangeApi;
use dlpark::{DlpackElement, Managed, ManagedTensorBase};
use ndarray::ArrayD;
use numpy::PyUntypedArray;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::source::type_name;

/// An array's memory as a DLPack tensor, which from now on owns it.
pub fn managed<T: DlpackElement + Send, M: ManagedTensorBase>(array: ArrayD<T>) -> PyResult<Managed<M>> {
    let initialized: Initialized<M> =
        Box::new(array).try_into().map_err(|error| PyBufferError::new_err(format!("{error}")))?;
    // SAFETY: dlpark itself described the array, which is whole and owned by its box.
    Ok(unsafe { initialized.finish() })
}

/// Makes the capsule, as `DLManagedTensorVersioned` or the structure before it.
type MakeCapsule = dyn for<'py> FnOnce(Python<'py>, bool) -> PyResult<Bound<'py, PyAny>> + Send;

/// A result on its way to the library that will own it.
#[pyclass(frozen, module = "qkv._qkv")]
pub struct Exported(Mutex<Option<Box<MakeCapsule>>>);

#[pymethods]
impl Exported {
    #[pyo3(signature = (*, max_version = None, **_request))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        max_version: Option<(u32, u32)>,
        _request: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let make = self.0.lock().ok().and_then(|mut make| make.take());
        let make = make.ok_or_else(|| PyBufferError::new_err("this result was handed over before"))?;
        make(py, max_version.is_some_and(|(major, _)| major >= 1))
    }

    fn __dlpack_device__(&self) -> (u32, i32) {
        (DLDeviceType::CPU.0, 0)
    }
}

impl Exported {
    /// Has the library of `like` take an array over.
    pub fn give<'py, T: DlpackElement + Send>(
        like: &Bound<'py, PyAny>,
        array: ArrayD<T>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, from_dlpack) = (like.py(), from_dlpack_of(like)?);
        let make: Box<MakeCapsule> = Box::new(|py, versioned| match versioned {
            true => managed::<T, DLManagedTensorVersioned>(array)?.into_pyobject(py),
            false => managed::<T, DLManagedTensor>(array)?.into_pyobject(py),
        });
        from_dlpack.call1((Bound::new(py, Self(Mutex::new(Some(make))))?,))
    }
}

/// Refuses an object whose library could not take results over, before they are computed.
///
/// # Errors
/// If it could not.
pub fn check(like: &Bound<'_, PyAny>) -> PyResult<()> {
    if like.is_instance_of::<PyUntypedArray>() || ExchangeApi::from_object(like.as_borrowed())?.is_some() {
        return Ok(());
    }
    from_dlpack_of(like).map(drop)
}

/// What takes results over for an object: its library's `from_dlpack`.
fn from_dlpack_of<'py>(like: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let library = match like.getattr_opt("__array_namespace__")? {
        Some(namespace) => namespace.call0()?,
        None => {
            let module: String = like.get_type().getattr("__module__")?.extract()?;
            like.py().import(module.split('.').next().unwrap_or(&module))?.into_any()
        }
    };
    library.getattr_opt("from_dlpack")?.ok_or_else(|| {
        let message = format!(
            "query: got a {}, whose library has no from_dlpack to take results; want an array of NumPy, torch or the array API",
            type_name(like)
        );
        PyTypeError::new_err(message)
    })
}
