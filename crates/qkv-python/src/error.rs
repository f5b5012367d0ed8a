//! The engine's errors as Python's, in the names that Python has for arguments.

use pyo3::PyErr;
use pyo3::exceptions::{PyFileNotFoundError, PyIsADirectoryError, PyOSError, PyPermissionError};
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use qkv::Error;
use qkv_io::Fault;

/// Why a call did not finish.
pub enum Stop {
    /// The engine refused it, or was cancelled.
    Error(Error),
    /// A signal's handler raised, or there are no threads.
    Python(PyErr),
}

impl Stop {
    /// The exception. `shape` is an argument's as it was given, where the engine knows it otherwise.
    pub fn raised(self, shape: &dyn Fn(&str) -> Option<String>) -> PyErr {
        match self {
            Self::Error(error) => raised(error, shape),
            Self::Python(error) => error,
        }
    }
}

fn raised(error: Error, shape: &dyn Fn(&str) -> Option<String>) -> PyErr {
    match error {
        Error::Shape { argument, got, wanted, hint } => {
            let got = shape(argument).unwrap_or(got);
            PyValueError::new_err(said(argument, &format!("shape {got}"), &wanted, hint))
        }
        Error::Value { argument, got, wanted, hint } => {
            PyValueError::new_err(said(argument, &got, &wanted, hint))
        }
        Error::Memory { .. } => PyMemoryError::new_err(error.to_string()),
        other => PyRuntimeError::new_err(other.to_string()),
    }
}

fn said(argument: &str, got: &str, wanted: &str, hint: Option<String>) -> String {
    let argument = match argument {
        "mask" | "bias" => "attn_mask",
        "alibi" => "alibi_slopes",
        "dropout" => "dropout_p",
        "segments of queries" | "segments of keys" => "segment_ids",
        "output" => "out",
        own => own,
    };
    let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
    format!("{argument}: got {got}, want {wanted}{hint}")
}

/// The exception for a file that could not be read or written; its text names the file.
pub fn of_file(error: qkv_io::Error) -> PyErr {
    let text = error.to_string();
    match error.fault() {
        // Python makes FileNotFoundError and the like of the number.
        Fault::Io { source, .. } => match source.raw_os_error() {
            Some(number) => PyOSError::new_err((number, text)),
            None => PyOSError::new_err(text),
        },
        Fault::NotFound | Fault::NoDirectory { .. } => PyFileNotFoundError::new_err(text),
        Fault::IsDirectory => PyIsADirectoryError::new_err(text),
        Fault::ReadOnly => PyPermissionError::new_err(text),
        _ => PyValueError::new_err(text),
    }
}
