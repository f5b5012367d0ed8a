//! Which pairs dropout keeps, to be looked at.

use ndarray::{ArrayViewD, IxDyn};
use numpy::PyArray;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use qkv::Attention;
use qkv_view::show;

use crate::error::Stop;
use crate::pool;

/// The pairs of a shape (…, heads, len_query, len_key) that a probability and a seed keep, for queries and keys that stand from
/// these positions on.
///
/// # Errors
/// If the probability is not within 0 and 1, or there is no memory.
pub fn mask<'py>(
    py: Python<'py>,
    (probability, seed): (f64, u64),
    shape: &[usize],
    (query_offset, key_offset): (i64, i64),
) -> PyResult<Bound<'py, PyAny>> {
    let (lead, of_head) = shape.split_at(shape.len() - 2);
    // No pair's fate depends on what its query and key hold.
    let rows = |len: usize| {
        let message = || format!("shape: got {}, want fewer pairs", show::shape(shape));
        ArrayViewD::<f32>::from_shape(IxDyn(&[lead, &[len, 0]].concat()), &[])
            .map_err(|_| PyValueError::new_err(message()))
    };
    let (query, key) = (rows(of_head[0])?, rows(of_head[1])?);
    let attention =
        Attention::new().dropout(probability, seed).query_offset(query_offset).key_offset(key_offset);
    let kept = pool::here(py, || attention.call(query, key.clone(), key).kept());
    kept.map(|kept| PyArray::from_owned_array(py, kept).into_any())
        .map_err(|stop: Stop| stop.raised(&|_| None))
}
