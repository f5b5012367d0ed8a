//! The gradients of a call, which torch's autograd asks for.

use ndarray::{Array1, ArrayD, ArrayViewD, Axis, IxDyn};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use qkv::RowStats;

use crate::array::{Array, Number, give};
use crate::call::{Inputs, heads_first, with_axes_of};
use crate::options::Options;
use crate::source;

/// What [`attend`](crate::call::attend) gave back for a call, and the gradients with respect to it.
pub struct Returned<'py> {
    output: Array<'py>,
    row_max: Array<'py>,
    row_sum: Array<'py>,
    d_output: Array<'py>,
    d_lse: Option<Array<'py>>,
}

impl<'py> Returned<'py> {
    /// # Errors
    /// If one is no array.
    pub fn new(
        [output, row_max, row_sum, d_output]: [&Bound<'py, PyAny>; 4],
        d_lse: Option<&Bound<'py, PyAny>>,
        options: &Options<'py>,
    ) -> PyResult<Self> {
        let mut returned = Self {
            output: source::read("output", output)?,
            row_max: source::read("row_max", row_max)?,
            row_sum: source::read("row_sum", row_sum)?,
            d_output: source::read("d_output", d_output)?,
            d_lse: d_lse.map(|d_lse| source::read("d_lse", d_lse)).transpose()?,
        };
        if options.positions_first {
            heads_first(&mut returned.output)?;
            heads_first(&mut returned.d_output)?;
        }
        Ok(returned)
    }
}

/// Of the query, key, value, attn_mask and sinks: which gradients are wanted.
pub type WantedGradients = [bool; 5];

/// The gradients that are wanted, each of the shape of what it is of: those of the attn_mask and of sinks in the accumulator type,
/// and the latter for each head.
///
/// # Errors
/// If shapes, types or options do not fit, there is no memory, or a signal raised.
pub fn backward<'py, T: Number>(
    inputs: &Inputs<'py>,
    returned: &Returned<'py>,
    options: &Options<'py>,
    wanted: WantedGradients,
) -> PyResult<[Option<Bound<'py, PyAny>>; 5]> {
    let (attention, views) = (options.attention()?, inputs.views::<T>()?);
    let (output, d_output) = (returned.output.numbers()?, returned.d_output.numbers()?);
    let stats = RowStats::<T, IxDyn> {
        max: returned.row_max.numbers()?.into_owned(),
        sum: returned.row_sum.numbers()?.into_owned(),
    };
    let d_lse: Option<ArrayViewD<'_, T::Accumulator>> =
        returned.d_lse.as_ref().map(Array::numbers).transpose()?;
    let gradients = views.compute(inputs, &attention, options.threads, |call| {
        let mut backward = call.backward(output.view(), &stats, d_output.view());
        if let Some(d_lse) = &d_lse {
            backward = backward.d_lse(d_lse.view());
        }
        let [query, key, value, attn_mask, sinks] = wanted;
        backward = if query { backward.query() } else { backward };
        backward = if key { backward.key() } else { backward };
        backward = if value { backward.value() } else { backward };
        backward = if attn_mask { backward.biases() } else { backward };
        backward = if sinks { backward.sinks() } else { backward };
        backward.run()
    })?;
    let like = inputs.query.object();
    let of_input = |gradient: Option<ArrayD<T>>, input: &Array<'py>| {
        gradient.map(|gradient| give(like, as_given(gradient, input, options.positions_first))).transpose()
    };
    // There is one bias that has numbers, or none.
    let of_mask = gradients.biases.and_then(|biases| biases.into_iter().next());
    Ok([
        of_input(gradients.query, &inputs.query)?,
        of_input(gradients.key, &inputs.key)?,
        of_input(gradients.value, &inputs.value)?,
        of_mask.map(|gradient| give(like, gradient)).transpose()?,
        gradients.sinks.map(|gradient| give(like, Array1::from_vec(gradient).into_dyn())).transpose()?,
    ])
}

/// A gradient with the shape and axes that its input was given with. What was repeated for all heads has the sum.
fn as_given<T: Number>(gradient: ArrayD<T>, input: &Array<'_>, positions_first: bool) -> ArrayD<T> {
    let gradient = match input.repeated() {
        Some(axis) => summed(&gradient, Axis(axis)),
        None => gradient,
    };
    let gradient = with_axes_of(gradient, positions_first);
    gradient.into_shape_with_order(input.given()).expect("as many numbers as were given")
}

/// The sum over an axis, in order, rounded once.
fn summed<T: Number>(numbers: &ArrayD<T>, axis: Axis) -> ArrayD<T> {
    let mut sum = numbers.index_axis(axis, 0).mapv(T::widen);
    for part in numbers.axis_iter(axis).skip(1) {
        sum.zip_mut_with(&part, |sum, &x| *sum = *sum + x.widen());
    }
    T::narrow(sum).insert_axis(axis)
}

/// A call that torch records or looks into, by its operator.
///
/// # Errors
/// As `qkv.torch.attention`.
pub fn recorded<'py>(
    [query, key, value]: [&Bound<'py, PyAny>; 3],
    positional: &Bound<'py, PyTuple>,
    named: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    static OPERATOR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = query.py();
    let import = || PyResult::Ok(py.import("qkv.torch")?.getattr("attention")?.unbind());
    let operator = OPERATOR.get_or_try_init(py, import)?.bind(py);
    let arrays = PyTuple::new(py, [query, key, value])?;
    operator.call(arrays.as_sequence().concat(positional.as_sequence())?.to_tuple()?, named)
}
