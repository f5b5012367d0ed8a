//! The Python package `qkv`: parse, let go of the interpreter, call, map the error.
//!
//! `source.rs` reads what Python hands in, as what `array.rs` describes; `options.rs` reads arguments; `call.rs` is one call, `backward.rs` its gradients; `pool.rs`
//! has the threads; `recording.rs` writes recordings, `explored.rs` looks into them. What needs torch, Transformers or ONNX is written in Python, beside this.

mod array;
mod backward;
mod call;
mod dropout;
mod error;
mod explain;
mod explored;
mod exported;
mod options;
mod partial;
mod plan;
mod pool;
mod recording;
mod reference;
mod simd;
mod source;

use pyo3::prelude::*;

/// The engine, as the package's Python modules see it; `_qkv.pyi` has its types.
#[pymodule]
mod _qkv {
    use std::ffi::OsString;
    use std::path::PathBuf;

    use pyo3::prelude::*;
    use pyo3::types::{PyDict, PyTuple};
    use qkv::Simd;

    #[pymodule_export]
    use super::explored::{Explored, Serving};
    #[pymodule_export]
    use super::partial::Partial;
    #[pymodule_export]
    use super::plan::Plan;
    #[pymodule_export]
    use super::recording::{ArrayFile, StreamWriter};

    use crate::array::with_number;
    use crate::backward::{self, Returned};
    use crate::call::{self, Inputs};
    use crate::options::{Function, Given, Options};
    use crate::{dropout, explain, explored, partial, pool, recording, reference, simd, source};

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
        with_number!(inputs.query, T => call::attend::<T>(&inputs, options))?.named()
    }

    /// Scaled dot-product attention, softmax(Q Kᵀ · scale + mask) V, with torch's signature and more options by keyword.
    ///
    /// query is (…, heads, len_query, dim), key (…, key_heads, len_key, dim), value (…, key_heads, len_key, dim_value); rank 2 is one
    /// head; leading axes broadcast. They are NumPy arrays, torch tensors in the CPU's memory, or anything with DLPack or the buffer
    /// protocol, of float32, float64, float16 or bfloat16, one for all three; of any strides, read where they lie.
    ///
    /// Returns the output (…, heads, len_query, dim_value), of the query's kind and dtype and contiguous; or an AttentionResult of what
    /// was asked for, in the order output, weights, lse. A row that may attend nothing is 0. NaN in keys and values that are masked
    /// away cannot reach the output.
    ///
    /// Of torch's function:
    ///
    /// - attn_mask broadcasts to (…, heads, len_query, len_key): booleans, where True is "may attend", or floats of any width,
    ///   which are added to the scores; -inf masks.
    /// - dropout_p: the part of the weights that is left out of the output, whatever a model's mode; others are divided by
    ///   1 - dropout_p. Weights and lse are from before. 0.0 drops nothing, and draws no seed.
    /// - is_causal: a query attends keys at its own position and before; both are counted from the first (top-left). It goes with
    ///   attn_mask: masks intersect.
    /// - scale: what scores are multiplied by, 1/√dim by default.
    /// - enable_gqa: query heads share key heads in groups; without it there are as many of each, or one.
    ///
    /// More:
    ///
    /// - causal: "top-left", or "bottom-right", where the last query stands at the last key that counts.
    /// - prefix: keys at positions below this are open to all queries of a causal call; an int, or (batch,).
    /// - query_offset, key_offset: the positions of the first query and key; with is_causal, windows and ALiBi.
    /// - softcap: cap · tanh(score / cap), before masks.
    /// - window: (left, right), how many positions before and after its own a query sees; None is no bound.
    /// - key_lengths: how many keys count, from the first on; an int, or (batch,).
    /// - segment_ids: a query attends keys that carry its id; (batch, len), or a pair for queries and keys.
    /// - alibi_slopes: (heads,), what distance takes off the scores.
    /// - sinks: (heads,), scores that take part in the softmax without a value.
    /// - layout: "bhsd", or "bshd" for arrays and output (…, len, heads, dim).
    /// - return_weights: the weights (…, heads, len_query, len_key), in the query's dtype; the one option that takes memory for
    ///   every pair.
    /// - return_lse: the natural log-sum-exp of each row, (…, heads, len_query), float32 for half floats; -inf for a row that attends
    ///   nothing.
    /// - out: where the output is written: of its shape and dtype, writable, in memory of its own; not where gradients are recorded.
    /// - threads: how many threads, 1 to 1024, by default those of set_num_threads; no bit of a result depends on it.
    /// - seed: of dropout, a whole number of 64 bits with a sign; by default drawn for each call, from torch's generator for tensors and
    ///   from the system for other arrays. Calls with one seed drop the same pairs.
    ///
    /// Torch records gradients of query, key, value, a float attn_mask and sinks, through the output and the lse. Where it compiles a
    /// graph, it can look into this function once qkv.torch is imported.
    ///
    /// Raises TypeError for a wrong dtype, kind or device, ValueError for a wrong shape or value, NotImplementedError for other
    /// arguments that require gradients, for forward derivatives and torch.func, and on the way back for gradients through the
    /// weights and gradients of gradients; MemoryError where there is no room for a result. Ctrl-C interrupts.
    ///
    /// Sources: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1; Dao et al., "FlashAttention" (2022), for the one
    /// pass over keys; Press et al., "Train Short, Test Long" (2022), for ALiBi.
    #[pyfunction]
    #[pyo3(
        signature = (query, key, value, *args, **options),
        text_signature = "(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, *, \
                          causal=None, prefix=None, query_offset=None, key_offset=0, softcap=None, window=None, \
                          key_lengths=None, segment_ids=None, alibi_slopes=None, sinks=None, layout='bhsd', \
                          return_weights=False, return_lse=False, seed=None, out=None, threads=None)"
    )]
    fn scaled_dot_product_attention<'py>(
        query: &Any<'py>,
        key: &Any<'py>,
        value: &Any<'py>,
        args: &Bound<'py, PyTuple>,
        options: Option<&Dict<'py>>,
    ) -> PyResult<Any<'py>> {
        if source::is_watched(query)? || call::records_gradients([query, key, value], args, options)? {
            return backward::recorded([query, key, value], args, options);
        }
        let (inputs, options) = call::read(Function::Attention, [query, key, value], args, options)?;
        with_number!(inputs.query, T => call::attend::<T>(&inputs, options))?.named()
    }

    /// scaled_dot_product_attention, and what its gradients are computed from: (output, weights or None, lse or None, (row_max,
    /// row_sum)), the last two (…, heads, len_query) in the accumulator type.
    ///
    /// Raises as it does; and ValueError for dropout without a seed.
    #[pyfunction]
    #[pyo3(signature = (query, key, value, *args, **options), text_signature = "(query, key, value, *args, **options)")]
    fn forward<'py>(
        query: &Any<'py>,
        key: &Any<'py>,
        value: &Any<'py>,
        args: &Bound<'py, PyTuple>,
        options: Option<&Dict<'py>>,
    ) -> PyResult<call::Parts<'py>> {
        let (inputs, options) = call::read(Function::Forward, [query, key, value], args, options)?;
        with_number!(inputs.query, T => call::attend::<T>(&inputs, options)).map(call::Attended::parts)
    }

    /// Raises what scaled_dot_product_attention would for arguments that it does not take; of shapes only what ranks tell.
    #[pyfunction]
    #[pyo3(signature = (query, key, value, *args, **options), text_signature = "(query, key, value, *args, **options)")]
    fn check<'py>(
        query: &Any<'py>,
        key: &Any<'py>,
        value: &Any<'py>,
        args: &Bound<'py, PyTuple>,
        options: Option<&Dict<'py>>,
    ) -> PyResult<()> {
        call::read(Function::Check, [query, key, value], args, options).map(drop)
    }

    /// The gradients of query, key, value, attn_mask and sinks, each as it is wanted, or None.
    ///
    /// arrays are (query, key, value), returned is (output, row_max, row_sum) of forward, and arrived are the gradients (d_output,
    /// d_lse), of which the second may be None. Options are those that forward had. Each gradient has the shape of what it is
    /// of; those of attn_mask and sinks are in the accumulator type.
    ///
    /// Raises as forward does.
    #[pyfunction]
    #[pyo3(name = "backward", signature = (arrays, returned, arrived, wanted, **options))]
    fn backward_of<'py>(
        arrays: [Any<'py>; 3],
        returned: [Any<'py>; 3],
        arrived: (Any<'py>, Option<Any<'py>>),
        wanted: backward::WantedGradients,
        options: Option<&Dict<'py>>,
    ) -> PyResult<[Option<Any<'py>>; 5]> {
        let py = arrived.0.py();
        let [query, key, value] = arrays.each_ref();
        let (inputs, options) =
            call::read(Function::Backward, [query, key, value], &PyTuple::empty(py), options)?;
        let [output, row_max, row_sum] = returned.each_ref();
        let returned = Returned::new([output, row_max, row_sum, &arrived.0], arrived.1.as_ref(), &options)?;
        with_number!(inputs.query, T => backward::backward::<T>(&inputs, &returned, &options, wanted))
    }

    /// Which pairs dropout keeps: booleans of NumPy, of a shape (…, heads, len_query, len_key).
    ///
    /// A pair's fate depends on seed, batch (counted flat), head, and the positions of its query and key alone, so a call with this seed and
    /// dropout_p keeps these pairs; query_offset and key_offset are as there.
    ///
    /// Raises ValueError for a probability outside 0 to 1, and for a shape of fewer than two axes.
    #[pyfunction]
    #[pyo3(
        signature = (seed, shape, dropout_p, *, query_offset = None, key_offset = None),
        text_signature = "(seed, shape, dropout_p, *, query_offset=0, key_offset=0)"
    )]
    fn dropout_mask<'py>(
        py: Python<'py>,
        seed: &Any<'py>,
        shape: &Any<'py>,
        dropout_p: &Any<'py>,
        query_offset: Option<&Any<'py>>,
        key_offset: Option<&Any<'py>>,
    ) -> PyResult<Any<'py>> {
        let offset =
            |name, value: Option<&Any<'py>>| value.map_or(Ok(0), |value| Given::new(name, value).integer());
        let offsets = (offset("query_offset", query_offset)?, offset("key_offset", key_offset)?);
        let seed = Given::new("seed", seed).integer()? as u64;
        let probability = Given::new("dropout_p", dropout_p).number()?;
        let shape = Given::new("shape", shape).shape()?;
        dropout::mask(py, (probability, seed), &shape, offsets)
    }

    /// Attention over some of the keys: an unfinished state of every row, to be merged with others.
    ///
    /// Arguments are those of scaled_dot_product_attention, but for dropout, sinks, which merge takes, results, and causal="bottom-right",
    /// since a partial does not know where all keys end; key_offset says where these keys begin. Returns a Partial, with its
    /// key_offset, len_key and lse.
    #[pyfunction]
    #[pyo3(
        name = "partial",
        signature = (query, key, value, *args, **options),
        text_signature = "(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, \
                          **options)"
    )]
    fn partial_of<'py>(
        query: &Any<'py>,
        key: &Any<'py>,
        value: &Any<'py>,
        args: &Bound<'py, PyTuple>,
        options: Option<&Dict<'py>>,
    ) -> PyResult<Partial> {
        let (inputs, options) = call::read(Function::Partial, [query, key, value], args, options)?;
        with_number!(inputs.query, T => partial::partial::<T>(&inputs, &options))
    }

    /// Attention over the keys of all partials, which come in any order and must not overlap.
    ///
    /// Where each partial holds a whole aligned subtree of keys (64 · 2ⁿ from a multiple of that position on; the last may be
    /// shorter), the bits are those of one call over all keys. sinks are (heads,). Returns the output, or an AttentionResult with
    /// the lse.
    ///
    /// Raises TypeError for what is no Partial or of another dtype, ValueError for none, other shapes, or keys that overlap.
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

    /// What a call would do, and why: print it, or ask for its to_dict(). Nothing is computed.
    ///
    /// Arguments are those of scaled_dot_product_attention, but for results.
    #[pyfunction]
    #[pyo3(
        signature = (query, key, value, *args, **options),
        text_signature = "(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, \
                          **options)"
    )]
    fn plan<'py>(
        query: &Any<'py>,
        key: &Any<'py>,
        value: &Any<'py>,
        args: &Bound<'py, PyTuple>,
        options: Option<&Dict<'py>>,
    ) -> PyResult<Plan> {
        let (inputs, options) = call::read(Function::Plan, [query, key, value], args, options)?;
        with_number!(inputs.query, T => {
            let (attention, views) = (options.attention()?, inputs.views::<T>()?);
            views.compute(&inputs, &attention, options.threads, |call| call.plan()).map(Plan)
        })
    }

    /// The textbook's five steps with plain loops, row by row in more precision than any result has: the truth, slowly.
    ///
    /// Arguments are those of scaled_dot_product_attention, but for out; weights and lse are from before dropout. Returns float64.
    #[pyfunction]
    #[pyo3(
        name = "reference",
        signature = (query, key, value, *args, **options),
        text_signature = "(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, \
                          **options)"
    )]
    fn reference_of<'py>(
        query: &Any<'py>,
        key: &Any<'py>,
        value: &Any<'py>,
        args: &Bound<'py, PyTuple>,
        options: Option<&Dict<'py>>,
    ) -> PyResult<Any<'py>> {
        let (inputs, options) = call::read(Function::Reference, [query, key, value], args, options)?;
        with_number!(inputs.query, T => reference::reference::<T>(&inputs, &options))
    }

    /// The scores after one stage, (…, heads, len_query, len_key), as the engine computes them: in float32 for half floats.
    ///
    /// stage is "raw" (q · k), "scaled", "softcapped", "masked" (biases added, -inf where masked; the default) or "weights". Other
    /// arguments are those of scaled_dot_product_attention, but for results.
    #[pyfunction]
    #[pyo3(
        signature = (query, key, value, *args, **options),
        text_signature = "(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, \
                          **options)"
    )]
    fn scores<'py>(
        query: &Any<'py>,
        key: &Any<'py>,
        value: &Any<'py>,
        args: &Bound<'py, PyTuple>,
        options: Option<&Dict<'py>>,
    ) -> PyResult<Any<'py>> {
        let (inputs, options) = call::read(Function::Scores, [query, key, value], args, options)?;
        with_number!(inputs.query, T => call::scores::<T>(&inputs, &options))
    }

    /// Tells the steps of one head with their numbers, formulas, and what to see in them; prints that unless print=False.
    ///
    /// batch (counted flat) and head say which; queries=(start, stop) and keys=(start, stop) which part, by default the first 6 and
    /// 5; row=i is one query as a weighted sum of its keys, and how much each moves it. tokens are names of keys. Other arguments
    /// are those of scaled_dot_product_attention, but for results.
    ///
    /// Returns {"steps": [{"name", "formula", "shape", "values"}]}, values in float64, and with row {"row": {"query", "keys": [{"key",
    /// "token", "masked", "weight", "influence"}], "output"}}; influence is the L2 norm of the output's move without that key.
    #[pyfunction]
    #[pyo3(
        name = "explain",
        signature = (query, key, value, *args, **options),
        text_signature = "(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, \
                          **options)"
    )]
    fn explain_steps<'py>(
        query: &Any<'py>,
        key: &Any<'py>,
        value: &Any<'py>,
        args: &Bound<'py, PyTuple>,
        options: Option<&Dict<'py>>,
    ) -> PyResult<Dict<'py>> {
        let (inputs, options) = call::read(Function::Explain, [query, key, value], args, options)?;
        with_number!(inputs.query, T => explain::explain::<T>(&inputs, &options))
    }

    /// Writes a file, which appears whole or not at all.
    #[pyfunction]
    fn write_file(py: Python<'_>, path: PathBuf, bytes: &[u8]) -> PyResult<()> {
        recording::write_file(py, path, bytes)
    }

    /// A map of so many cells, drawn as SVG, as PNG.
    #[pyfunction]
    fn png(py: Python<'_>, svg: &str, rows: usize, columns: usize) -> PyResult<Vec<u8>> {
        explored::png(py, svg, (rows, columns))
    }

    /// Runs the command `qkv` with these arguments, the first its own name, and gives its exit status. Ctrl-C ends the process.
    #[pyfunction]
    fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
        py.detach(|| qkv_cli::run(arguments))
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

    /// Sets how many threads a call runs on, 1 to 1024, where it does not say so itself: one for each core until it is set, whatever
    /// torch.set_num_threads says. Small calls stay on their caller's.
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
