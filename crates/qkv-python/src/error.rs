//! The engine's errors as Python's, in the names that Python has for arguments.

use pyo3::PyErr;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use qkv::Error;

/// The exception for an error of the engine.
pub fn raised(error: Error) -> PyErr {
    match error {
        Error::Shape { argument, got, wanted, hint } => {
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
        "segments of queries" | "segments of keys" => "segment_ids",
        "output" => "out",
        own => own,
    };
    let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
    format!("{argument}: got {got}, want {wanted}{hint}")
}
