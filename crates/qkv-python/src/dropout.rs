//! Which pairs dropout keeps, to be looked at.

use ndarray::{ArrayViewD, IxDyn};
use numpy::PyArray;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use qkv::Attention;
use qkv_view::show;

use crate::error::Stop;
use crate::pool;

/// The pairs of a shape (…, heads, len_query, len_key) that a probability and a seed keep, for queries and keys that stand from these positions on.
///
/// # Errors
/// If the shape has no axes for queries and keys, the probability is none, or there is no memory.
pub fn mask<'py>(
    py: Python<'py>,
    (probability, seed): (f64, u64),
    shape: &[usize],
    (query_offset, key_offset): (i64, i64),
) -> PyResult<Bound<'py, PyAny>> {
    let [lead @ .., len_query, len_key] = shape else {
        let message = format!("shape: got {}, want (…, heads, len_query, len_key)", show::shape(shape));
        return Err(PyValueError::new_err(message));
    };
    // No pair's fate depends on what its query and key hold.
    let rows = |len: &usize| {
        let shape = [lead, &[*len, 0]].concat();
        ArrayViewD::<f32>::from_shape(IxDyn(&shape), &[])
            .map_err(|error| PyValueError::new_err(format!("shape: got {}: {error}", show::shape(&shape))))
    };
    let (query, key) = (rows(len_query)?, rows(len_key)?);
    let attention =
        Attention::new().dropout(probability, seed).query_offset(query_offset).key_offset(key_offset);
    let kept = pool::here(py, || attention.call(query, key.clone(), key).kept());
    kept.map(|kept| PyArray::from_owned_array(py, kept).into_any())
        .map_err(|stop: Stop| stop.raised(&|_| None))
}
