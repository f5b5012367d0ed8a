//! One call: queries, keys and values as the engine takes them, and results as Python takes them back.

use dlpark::DlpackElement;
use ndarray::{ArrayD, ArrayViewD, ArrayViewMutD, IxDyn};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use qkv::{Attention, Call, Error, Stage};
use qkv_view::scene::Shapes;
use qkv_view::show;
use smallvec::SmallVec;

use crate::array::{Array, Number, give};
use crate::error::Stop;
use crate::options::{Function, Options};
use crate::{exported, pool, source};

/// As many as NumPy's arrays had for long, and results can be handed over with.
pub const MOST_AXES: usize = 32;

type Extents = SmallVec<[usize; 4]>;

/// The arguments of a function that takes queries, keys, values and options, read.
///
/// # Errors
/// As [`Options::new`], [`Inputs::new`] and [`Options::fill_seed`].
pub fn read<'py>(
    function: Function,
    arrays: [&Bound<'py, PyAny>; 3],
    positional: &Bound<'py, PyTuple>,
    named: Option<&Bound<'py, PyDict>>,
) -> PyResult<(Inputs<'py>, Options<'py>)> {
    let mut options = Options::new(function, positional, named)?;
    let inputs = Inputs::new(arrays, &options)?;
    options.fill_seed(function, inputs.query.object())?;
    Ok((inputs, options))
}

/// Whether torch records what is computed from one of these.
///
/// # Errors
/// If a tensor does not answer.
pub fn records_gradients(
    arrays: [&Bound<'_, PyAny>; 3],
    positional: &Bound<'_, PyTuple>,
    named: Option<&Bound<'_, PyDict>>,
) -> PyResult<bool> {
    for array in arrays {
        if source::records_gradients(array)? {
            return Ok(true);
        }
    }
    for option in positional.iter().chain(named.into_iter().flat_map(|named| named.values())) {
        if source::records_gradients(&option)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Queries, keys and values of one type and rank, `(…, heads, len, dim)`.
pub struct Inputs<'py> {
    pub query: Array<'py>,
    pub key: Array<'py>,
    pub value: Array<'py>,
}

impl<'py> Inputs<'py> {
    /// # Errors
    /// If one is no array, they differ in type, the layout has no axis for heads, or heads do not fit.
    pub fn new([query, key, value]: [&Bound<'py, PyAny>; 3], options: &Options<'_>) -> PyResult<Self> {
        let mut inputs = Self {
            query: source::read("query", query)?,
            key: source::read("key", key)?,
            value: source::read("value", value)?,
        };
        if !inputs.query.is_floating() {
            return Err(inputs.query.wrong_dtype("float32, float64, float16 or bfloat16 (cast it)"));
        }
        let dtype = inputs.query.dtype();
        for other in [&inputs.key, &inputs.value] {
            if other.dtype() != dtype {
                let wanted = format!("{}, as the query has", inputs.query.dtype_name());
                return Err(other.wrong_dtype(&wanted));
            }
        }
        exported::check(inputs.query.object())?;
        for array in inputs.each() {
            if array.shape().len() < 2 {
                return Err(array.wrong_shape("(len, dim) or (…, heads, len, dim)"));
            }
        }
        if options.positions_first {
            inputs.each_mut().into_iter().try_for_each(heads_first)?;
        }
        let rank = inputs.each().map(|array| array.shape().len()).into_iter().max().unwrap_or(0);
        if let Some(array) = inputs.each().into_iter().find(|array| array.shape().len() > MOST_AXES) {
            return Err(array.wrong_shape(&format!("{MOST_AXES} axes at most")));
        }
        inputs.each_mut().into_iter().for_each(|array| array.pad(rank));
        if rank > 2 && !options.enable_gqa {
            inputs.share_heads(rank - 3)?;
        }
        Ok(inputs)
    }

    /// Without grouped heads there are as many of each, or one, which then serves for all.
    fn share_heads(&mut self, axis: usize) -> PyResult<()> {
        let heads = self.each().map(|array| array.shape()[axis]);
        let most = heads.into_iter().find(|&heads| heads != 1).unwrap_or(1);
        let [query, key, value] = heads;
        if ![key, value].iter().all(|&own| own == 1 || own == most) {
            let (argument, own) = if key != 1 && key != most { ("key", key) } else { ("value", value) };
            let beside = if argument == "key" { String::new() } else { format!(" and {key} key heads") };
            return Err(PyValueError::new_err(format!(
                "{argument}: got {own} {argument} heads for {query} query heads{beside}, want as many, or one (or \
                 scaled_dot_product_attention with enable_gqa=True, where query heads share keys and values in groups)"
            )));
        }
        self.query.repeat(axis, most)?;
        // One of each is shared by all.
        if key != value {
            self.key.repeat(axis, most)?;
            self.value.repeat(axis, most)?;
        }
        Ok(())
    }

    fn each(&self) -> [&Array<'py>; 3] {
        [&self.query, &self.key, &self.value]
    }

    fn each_mut(&mut self) -> [&mut Array<'py>; 3] {
        [&mut self.query, &mut self.key, &mut self.value]
    }

    /// The exception for a call on them that did not finish, with shapes as they were given.
    pub fn raised(&self, stop: Stop) -> PyErr {
        let named = |argument: &str| self.each().into_iter().find(|array| array.argument() == argument);
        stop.raised(&|argument| named(argument).map(Array::shown))
    }

    /// # Errors
    /// If they are not of this type.
    pub fn views<T: DlpackElement>(&self) -> PyResult<Views<'_, T>> {
        Ok(Views { query: self.query.numbers()?, key: self.key.numbers()?, value: self.value.numbers()? })
    }

    /// How many there are of each, for arrays that fit.
    pub fn shapes(&self) -> Shapes {
        let output = self.output_shape();
        let rank = output.len();
        let lead = output[..rank - 2].to_vec();
        let mut key_lead = lead.clone();
        if let Some(heads) = key_lead.last_mut() {
            *heads = self.key.shape()[rank - 3];
        }
        Shapes {
            lead,
            key_lead,
            len_query: output[rank - 2],
            len_key: self.key.shape()[rank - 2],
            dim: self.query.shape()[rank - 1],
            dim_value: output[rank - 1],
        }
    }

    /// `(…, heads, len_query, dim_value)`, if they fit.
    pub fn output_shape(&self) -> Extents {
        let [query, key, value] = self.each().map(Array::shape);
        let mut shape = Extents::from(query);
        for axis in 0..shape.len().saturating_sub(3) {
            let extents = [query[axis], key[axis], value[axis]];
            shape[axis] = extents.into_iter().find(|&extent| extent != 1).unwrap_or(1);
        }
        let last = shape.len() - 1;
        shape[last] = value[last];
        shape
    }
}

/// Moves the axis of heads before that of positions.
pub fn heads_first(array: &mut Array<'_>) -> PyResult<()> {
    let Some(axis) = array.shape().len().checked_sub(3) else {
        return Err(array.wrong_shape("(…, len, heads, dim), as layout=\"bshd\" has them"));
    };
    array.swap_axes(axis, axis + 1);
    Ok(())
}

/// Queries, keys and values as the engine reads them.
pub struct Views<'a, T> {
    query: ArrayViewD<'a, T>,
    key: ArrayViewD<'a, T>,
    value: ArrayViewD<'a, T>,
}

impl<T: Number> Views<'_, T> {
    pub fn call<'c>(&'c self, attention: &'c Attention<'c>) -> Call<'c, T, IxDyn> {
        attention.call(self.query.view(), self.key.view(), self.value.view())
    }

    /// Computes something of the call: on this thread if that is all it takes, else across the pool's. `inputs` are those that
    /// these are views of.
    pub fn compute<R: Send>(
        &self,
        inputs: &Inputs<'_>,
        attention: &Attention<'_>,
        threads: Option<usize>,
        compute: impl FnOnce(Call<'_, T, IxDyn>) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        let py = inputs.query.object().py();
        let done = if self.call(attention).asks_for_threads() {
            pool::across(py, threads, |progress| compute(self.call(attention).progress(progress)))
        } else {
            pool::here(py, || compute(self.call(attention)))
        };
        done.map_err(|stop| inputs.raised(stop))
    }
}

/// What a call gives back, for Python.
pub struct Attended<'py> {
    pub output: Bound<'py, PyAny>,
    pub weights: Option<Bound<'py, PyAny>>,
    pub lse: Option<Bound<'py, PyAny>>,
    /// Maximum and sum.
    pub row_stats: Option<[Bound<'py, PyAny>; 2]>,
}

/// Attention, with all that was asked for.
///
/// # Errors
/// If shapes or options do not fit, there is no memory, or a signal raised.
pub fn attend<'py, T: Number>(inputs: &Inputs<'py>, mut options: Options<'py>) -> PyResult<Attended<'py>> {
    let like = inputs.query.object();
    let mut out = options.out.take();
    if let Some(out) = &mut out {
        if options.positions_first {
            heads_first(out)?;
        }
        check_out(out, inputs, &options)?;
    }
    let attention = options.attention()?;
    let views = inputs.views::<T>()?;
    let wanted = options.wanted;
    let run_into = |target: ArrayViewMutD<'_, T>| {
        let extras =
            views.compute(inputs, &attention, options.threads, |call| wanted.of(call).run_into(target))?;
        PyResult::Ok((extras.weights, extras.lse, extras.row_stats))
    };
    let (output, (weights, lse, row_stats)) = if let Some(mut out) = out {
        // SAFETY: `check_out` has seen that it lies apart from all inputs.
        let extras = run_into(unsafe { out.numbers_mut()? })?;
        source::written(out.object())?;
        (out.object().clone(), extras)
    } else if options.positions_first {
        let mut shape = inputs.output_shape();
        let axis = shape.len() - 3;
        shape.swap(axis, axis + 1);
        let mut output = zeros::<T>(&shape)?;
        let mut target = output.view_mut();
        target.swap_axes(axis, axis + 1);
        let extras = run_into(target)?;
        (give(like, output)?, extras)
    } else {
        let result = views.compute(inputs, &attention, options.threads, |call| wanted.of(call).run())?;
        (give(like, result.output)?, (result.weights, result.lse, result.row_stats))
    };
    let row_stats = row_stats.map(|stats| PyResult::Ok([give(like, stats.max)?, give(like, stats.sum)?]));
    Ok(Attended {
        output,
        weights: weights.map(|weights| give(like, weights)).transpose()?,
        lse: lse.map(|lse| give(like, lse)).transpose()?,
        row_stats: row_stats.transpose()?,
    })
}

/// The scores after a stage, in the accumulator type.
///
/// # Errors
/// As [`attend`].
pub fn scores<'py, T: Number>(inputs: &Inputs<'py>, options: &Options<'py>) -> PyResult<Bound<'py, PyAny>> {
    let like = inputs.query.object();
    let (attention, views) = (options.attention()?, inputs.views::<T>()?);
    let stage = options.stage.unwrap_or(Stage::Masked);
    let scores = views.compute(inputs, &attention, options.threads, |call| call.scores(stage))?;
    give(like, scores)
}

/// An array `(…, heads, len, dim)` of a result with its axes as the caller counts them, contiguous.
pub fn with_axes_of<T: Number>(mut array: ArrayD<T>, positions_first: bool) -> ArrayD<T> {
    if positions_first {
        let rank = array.ndim();
        array.swap_axes(rank - 3, rank - 2);
        return array.as_standard_layout().into_owned();
    }
    array
}

/// Refuses what the output must not be written to.
fn check_out(out: &Array<'_>, inputs: &Inputs<'_>, options: &Options<'_>) -> PyResult<()> {
    let wrong =
        |got: String, wanted: String| Err(PyValueError::new_err(format!("out: got {got}, want {wanted}")));
    let shape = inputs.output_shape();
    if *out.shape() != *shape {
        let axes = if options.positions_first { " (with its axes as bhsd)" } else { "" };
        return wrong(format!("shape {}{axes}", show::shape(out.shape())), show::shape(&shape));
    }
    match inputs.each().into_iter().chain(options.attn_mask()).find(|input| out.overlaps(input)) {
        Some(input) => wrong(format!("memory of {}", input.argument()), "memory of its own".to_string()),
        None => Ok(()),
    }
}

/// A new array, or an error where there is no memory for it.
pub fn zeros<T: Number>(shape: &[usize]) -> PyResult<ArrayD<T>> {
    let no_memory =
        || PyMemoryError::new_err(format!("output: no memory for an array of shape {}", show::shape(shape)));
    let count = shape.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent));
    let count = count.ok_or_else(no_memory)?;
    let mut numbers = Vec::new();
    numbers.try_reserve_exact(count).map_err(|_| no_memory())?;
    numbers.resize(count, T::default());
    ArrayD::from_shape_vec(shape, numbers).map_err(|_| no_memory())
}

/// Output, weights, lse, and maximum and sum of each row.
pub type Parts<'py> =
    (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>, Option<Bound<'py, PyAny>>, Option<[Bound<'py, PyAny>; 2]>);

impl<'py> Attended<'py> {
    pub fn parts(self) -> Parts<'py> {
        (self.output, self.weights, self.lse, self.row_stats)
    }

    /// As the caller of Python's function gets it.
    pub fn named(self) -> PyResult<Bound<'py, PyAny>> {
        named(self.output, self.weights, self.lse)
    }
}

/// The output alone, or a named tuple of what was asked for.
pub fn named<'py>(
    output: Bound<'py, PyAny>,
    weights: Option<Bound<'py, PyAny>>,
    lse: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    static RESULTS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let py = output.py();
    let name = match (&weights, &lse) {
        (None, None) => return Ok(output),
        (Some(_), None) => pyo3::intern!(py, "OutputAndWeights"),
        (None, Some(_)) => pyo3::intern!(py, "OutputAndLse"),
        (Some(_), Some(_)) => pyo3::intern!(py, "OutputWeightsAndLse"),
    };
    let results = RESULTS.get_or_try_init(py, || py.import("qkv._results").map(Bound::unbind))?;
    let members: Vec<_> = [Some(output), weights, lse].into_iter().flatten().collect();
    results.bind(py).getattr(name)?.call1(PyTuple::new(py, members)?)
}
