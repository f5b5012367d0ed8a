//! The textbook's five steps, row by row in more precision than any result has.

use ndarray::ArrayD;
use pyo3::prelude::*;
use qkv::Error;
use qkv_view::scene::Shapes;

use crate::array::{Number, give};
use crate::call::{Inputs, named, with_axes_of, zeros};
use crate::options::Options;
use crate::pool;

/// Pairs of query and key whose every intermediate is held at a time.
const PAIRS: usize = 1 << 20;

/// # Errors
/// As for a call.
pub fn reference<'py, T: Number>(
    inputs: &Inputs<'py>,
    options: &Options<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let like = inputs.query.object();
    let (attention, views) = (options.attention()?, inputs.views::<T>()?);
    views.compute(inputs, &attention, options.threads, |call| call.check())?;
    let Shapes { lead, len_query, len_key, dim_value, .. } = inputs.shapes();
    let heads = lead.last().copied().unwrap_or(1);
    let numbers = |last: &[usize]| zeros::<f64>(&[&lead[..], &[len_query], last].concat());
    let (mut output, mut lse) = (numbers(&[dim_value])?, numbers(&[])?);
    let mut weights = options.wanted.weights.then(|| numbers(&[len_key])).transpose()?;
    let count = lse.len();
    let at_a_time = (PAIRS / len_key.max(1)).max(1);
    pool::across(like.py(), options.threads, |progress| {
        for start in (0..count).step_by(at_a_time) {
            if progress(start as u64, count as u64).is_break() {
                return Err(Error::Cancelled);
            }
            let rows: Vec<_> = (start..count.min(start + at_a_time))
                .map(|row| (row / (heads * len_query), row / len_query % heads, row % len_query))
                .collect();
            for (row, reference) in (start..).zip(views.call(&attention).reference(&rows)?) {
                write_row(&mut output, row, &reference.output);
                write_row(&mut lse, row, &[reference.lse]);
                if let Some(weights) = &mut weights {
                    write_row(weights, row, &reference.weights);
                }
            }
        }
        Ok(())
    })
    .map_err(|stop| inputs.raised(stop))?;
    let given = |array: Option<ArrayD<f64>>| array.map(|array| give(like, array)).transpose();
    let output = with_axes_of(output, options.positions_first);
    named(give(like, output)?, given(weights)?, given(options.wanted.lse.then_some(lse))?)
}

/// Writes the row of this number, counted flat, of a new array.
fn write_row(array: &mut ArrayD<f64>, row: usize, numbers: &[f64]) {
    let flat = array.as_slice_mut().expect("contiguous");
    flat[row * numbers.len()..][..numbers.len()].copy_from_slice(numbers);
}
