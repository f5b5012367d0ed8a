//! Attention over some of the keys, and the merging of such partials into the whole.

use ndarray::IxDyn;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use qkv::{Alignment, bf16, f16};
use qkv_view::show;

use crate::array::{Number, give};
use crate::call::{Inputs, named, with_axes_of};
use crate::options::Options;
use crate::pool;
use crate::source::type_name;

/// Attention over some of the keys: an unfinished state of every row, which `merge` makes a whole of.
#[pyclass(frozen, module = "qkv")]
pub struct Partial {
    state: State,
    /// Whether the output has its axis of positions before that of heads.
    positions_first: bool,
    /// The natural log-sum-exp of each row over these keys, without sinks: (…, heads, len_query); -inf for a row that attends
    /// none of them.
    #[pyo3(get)]
    lse: Py<PyAny>,
}

/// A partial of the engine's, of any type.
pub enum State {
    F32(qkv::Partial<f32, IxDyn>),
    F64(qkv::Partial<f64, IxDyn>),
    F16(qkv::Partial<f16, IxDyn>),
    Bf16(qkv::Partial<bf16, IxDyn>),
}

/// Runs `$body` on a partial of the engine's, whatever its type.
macro_rules! with_state {
    ($state:expr, $partial:ident => $body:expr) => {
        match $state {
            State::F32($partial) => $body,
            State::F64($partial) => $body,
            State::F16($partial) => $body,
            State::Bf16($partial) => $body,
        }
    };
}

/// A type whose partials a [`State`] holds.
pub trait Held: Number {
    fn hold(partial: qkv::Partial<Self, IxDyn>) -> State;
    fn held(state: &State) -> Option<&qkv::Partial<Self, IxDyn>>;
}

macro_rules! held {
    ($($number:ident in $variant:ident),*) => {
        $(impl Held for $number {
            fn hold(partial: qkv::Partial<Self, IxDyn>) -> State {
                State::$variant(partial)
            }

            fn held(state: &State) -> Option<&qkv::Partial<Self, IxDyn>> {
                if let State::$variant(partial) = state { Some(partial) } else { None }
            }
        })*
    };
}

held!(f32 in F32, f64 in F64, f16 in F16, bf16 in Bf16);

#[pymethods]
impl Partial {
    /// The position of its first key.
    #[getter]
    fn key_offset(&self) -> i64 {
        with_state!(&self.state, partial => partial.key_offset())
    }

    /// How many keys it has seen or found masked.
    #[getter]
    fn len_key(&self) -> usize {
        with_state!(&self.state, partial => partial.len_key())
    }

    fn __repr__(&self) -> String {
        format!("Partial({} from position {} on)", show::count(self.len_key(), "key"), self.key_offset())
    }
}

/// # Errors
/// As for a call; and if the queries are aligned to the end of these keys, which are not all, or there are sinks.
pub fn partial<T: Held>(inputs: &Inputs<'_>, options: &Options<'_>) -> PyResult<Partial> {
    if options.causal == Some(Alignment::BottomRight) {
        return Err(PyValueError::new_err(
            "causal: got \"bottom-right\", want a position: a partial does not know where all keys end (is_causal=True with \
             query_offset)",
        ));
    }
    if options.has_sinks() {
        return Err(PyValueError::new_err(
            "sinks: got sinks of a partial, want none (give them to qkv.merge)",
        ));
    }
    let like = inputs.query.object();
    let (attention, views) = (options.attention()?, inputs.views::<T>()?);
    let partial = views.compute(inputs, &attention, options.threads, |call| call.partial())?;
    let lse = give(like, partial.lse())?.unbind();
    Ok(Partial { state: T::hold(partial), positions_first: options.positions_first, lse })
}

/// # Errors
/// If there is no partial, or types, shapes, keys or sinks do not fit.
pub fn merge<'py>(
    partials: &Bound<'py, PyTuple>,
    sinks: Option<Vec<f64>>,
    return_lse: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let partials: Vec<Bound<'py, Partial>> = partials
        .iter()
        .map(|partial| match partial.cast_into::<Partial>() {
            Ok(partial) => Ok(partial),
            Err(error) => {
                let got = type_name(&error.into_inner());
                Err(PyTypeError::new_err(format!("partials: got {got}, want what qkv.partial returns")))
            }
        })
        .collect::<PyResult<_>>()?;
    let Some(first) = partials.first() else {
        return Err(PyValueError::new_err("partials: got none, want at least one"));
    };
    fn of<'py, T: Held>(
        partials: &[Bound<'py, Partial>],
        (sinks, return_lse): (Option<Vec<f64>>, bool),
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = partials[0].py();
        let states: Option<Vec<_>> = partials.iter().map(|partial| T::held(&partial.get().state)).collect();
        let states = states.ok_or_else(|| {
            PyTypeError::new_err("partials: got partials of several dtypes, want those of one call's arrays")
        })?;
        let merged = pool::across(py, None, |_| qkv::merge(states, sinks.as_deref()));
        let merged = merged.map_err(|stop| stop.raised(&|_| None))?;
        let like = partials[0].get().lse.bind(py);
        let lse = merged.lse.filter(|_| return_lse).map(|lse| give(like, lse)).transpose()?;
        let output = with_axes_of(merged.output, partials[0].get().positions_first);
        named(give(like, output)?, None, lse)
    }
    match &first.get().state {
        State::F32(_) => of::<f32>(&partials, (sinks, return_lse)),
        State::F64(_) => of::<f64>(&partials, (sinks, return_lse)),
        State::F16(_) => of::<f16>(&partials, (sinks, return_lse)),
        State::Bf16(_) => of::<bf16>(&partials, (sinks, return_lse)),
    }
}
