//! The Python package `qkv`: parse, let go of the interpreter, call, map the error.
//!
//! `array.rs` reads what Python hands in and hands results over; `options.rs` reads arguments; `call.rs` is one call; `pool.rs`
//! has the threads. What needs torch, Transformers or ONNX is written in Python, beside this.

mod array;
mod call;
mod error;
mod explain;
mod exported;
mod options;
mod partial;
mod plan;
mod pool;
mod reference;
mod simd;

use pyo3::prelude::*;

/// The engine, as the package's Python modules see it; `__init__.pyi` documents what each takes and returns.
#[pymodule]
mod _qkv {
    use pyo3::prelude::*;
    use pyo3::types::{PyDict, PyTuple};
    use qkv::Simd;

    #[pymodule_export]
    use super::partial::Partial;
    #[pymodule_export]
    use super::plan::Plan;

    use crate::array::with_number;
    use crate::call::{self, Inputs};

    use crate::options::{Function, Given, Options};
    use crate::{explain, partial, pool, reference, simd};

    type Any<'py> = Bound<'py, PyAny>;
    type Dict<'py> = Bound<'py, PyDict>;

    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    /// The lesson's own function: scaled dot-product attention, softmax(Q Kᵀ / √d) V.
    ///
    /// Q is (…, heads, len_query, dim), K (…, heads, len_key, dim), V (…, heads, len_key, dim_value), or (len, dim) of one head. A
    /// mask of any dtype blocks where it is 0; it broadcasts to (…, heads, len_query, len_key). Returns the output (…, heads,
    /// len_query, dim_value) and the weights (…, heads, len_query, len_key), whose rows sum to 1; a row that may attend nothing is 0 in
    /// both.
    ///
    /// Raises TypeError for what is no array of float32, float64, float16 or bfloat16, ValueError for shapes that do not fit.
    ///
    /// Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1.
    #[pyfunction]
    #[pyo3(signature = (Q, K, V, mask = None))]
    #[allow(non_snake_case, reason = "the lesson's names")]
    fn attention<'py>(
        Q: &Any<'py>,
        K: &Any<'py>,
        V: &Any<'py>,
        mask: Option<&Any<'py>>,
    ) -> PyResult<Any<'py>> {
        let options = Options::of_lesson(mask)?;
        let inputs = Inputs::new([Q, K, V], &options)?;
        with_number!(inputs.query, T => call::attend::<T>(&inputs, options))
    }

    #[pyfunction]
    #[pyo3(signature = (query, key, value, *args, **options))]
    fn scaled_dot_product_attention<'py>(
        query: &Any<'py>,
        key: &Any<'py>,
        value: &Any<'py>,
        args: &Bound<'py, PyTuple>,
        options: Option<&Dict<'py>>,
    ) -> PyResult<Any<'py>> {
        let options = Options::new(Function::Attention, args, options)?;
        let inputs = Inputs::new([query, key, value], &options)?;
        with_number!(inputs.query, T => call::attend::<T>(&inputs, options))
    }

    #[pyfunction]
    #[pyo3(name = "partial", signature = (query, key, value, *args, **options))]
    fn partial_of<'py>(
        query: &Any<'py>,
        key: &Any<'py>,
        value: &Any<'py>,
        args: &Bound<'py, PyTuple>,
        options: Option<&Dict<'py>>,
    ) -> PyResult<Partial> {
        let options = Options::new(Function::Partial, args, options)?;
        let inputs = Inputs::new([query, key, value], &options)?;
        with_number!(inputs.query, T => partial::partial::<T>(&inputs, &options))
    }

    #[pyfunction]
    #[pyo3(signature = (*partials, sinks = None, return_lse = false))]
    fn merge<'py>(
        partials: &Bound<'py, PyTuple>,
        sinks: Option<Any<'py>>,
        return_lse: bool,
    ) -> PyResult<Any<'py>> {
        let sinks = sinks.map(|value| Given { name: "sinks", value }.per_head()).transpose()?;
        partial::merge(partials, sinks, return_lse)
    }

    #[pyfunction]
    #[pyo3(signature = (query, key, value, *args, **options))]
    fn plan<'py>(
        query: &Any<'py>,
        key: &Any<'py>,
        value: &Any<'py>,
        args: &Bound<'py, PyTuple>,
        options: Option<&Dict<'py>>,
    ) -> PyResult<Plan> {
        let options = Options::new(Function::Plan, args, options)?;
        let inputs = Inputs::new([query, key, value], &options)?;
        with_number!(inputs.query, T => {
            let (attention, views) = (options.attention()?, inputs.views::<T>()?);
            views.compute(query.py(), &attention, options.threads, |call| call.plan()).map(Plan)
        })
    }

    #[pyfunction]
    #[pyo3(name = "reference", signature = (query, key, value, *args, **options))]
    fn reference_of<'py>(
        query: &Any<'py>,
        key: &Any<'py>,
        value: &Any<'py>,
        args: &Bound<'py, PyTuple>,
        options: Option<&Dict<'py>>,
    ) -> PyResult<Any<'py>> {
        let options = Options::new(Function::Reference, args, options)?;
        let inputs = Inputs::new([query, key, value], &options)?;
        with_number!(inputs.query, T => reference::reference::<T>(&inputs, &options))
    }

    #[pyfunction]
    #[pyo3(name = "explain", signature = (query, key, value, *args, **options))]
    fn explain_steps<'py>(
        query: &Any<'py>,
        key: &Any<'py>,
        value: &Any<'py>,
        args: &Bound<'py, PyTuple>,
        options: Option<&Dict<'py>>,
    ) -> PyResult<Dict<'py>> {
        let options = Options::new(Function::Explain, args, options)?;
        let inputs = Inputs::new([query, key, value], &options)?;
        with_number!(inputs.query, T => explain::explain::<T>(&inputs, &options))
    }

    /// The instruction set that calls run on: "avx512", "avx2" or "portable". The environment variable QKV_SIMD forces one; no bit
    /// of a result depends on it.
    ///
    /// Raises ValueError if QKV_SIMD names none, or one that this machine has not.
    #[pyfunction]
    #[pyo3(name = "simd")]
    fn simd_name() -> PyResult<&'static str> {
        Ok(simd::forced()?.unwrap_or_else(Simd::best).name())
    }

    /// Sets how many threads a call runs on, 1 to 1024, where it does not say so itself. Small calls stay on their caller's.
    ///
    /// Raises ValueError for other numbers.
    #[pyfunction]
    fn set_num_threads(py: Python<'_>, n: i64) -> PyResult<()> {
        pool::set_wanted(py, pool::checked("n", n)?);
        Ok(())
    }

    /// How many threads a call runs on, where it does not say so itself: one for each core, or as set_num_threads has it.
    #[pyfunction]
    fn get_num_threads(py: Python<'_>) -> PyResult<usize> {
        pool::wanted(py)
    }
}
