//! What is asked: [`Attention`] holds the options, [`Call`] puts them to arrays and names what is wanted back.
//!
//! Nothing is computed here. A call is checked into a [`Problem`], which the rooms below trust.

use std::ops::{ControlFlow, Range};

use ndarray::{Array, Array2, ArrayView, ArrayView1, ArrayView2, ArrayViewMut, Dimension, Ix2};

use crate::backward::{self, Backward, Gradients, ReferenceGradients};
use crate::bias::{Alibi, Bias, BiasFn};
use crate::element::Element;
use crate::error::Error;
use crate::forward;
use crate::inspect::{self, Inspection};
use crate::mask::{Alignment, MaskFn, Window};
use crate::partial::Partial;
use crate::plan::{self, Plan};
use crate::planes::{DynView, Extents};
use crate::problem::{Path, Problem, Stage};
use crate::reference::{self, ReferenceRow};
use crate::simd::Simd;
use crate::trace::{self, Trace};

/// Scaled dot-product attention, `softmax(Q Kᵀ · scale + bias) V`: its options.
///
/// Arrays are `(…, heads, len_query, dim)` for queries, `(…, key_heads, len_key, dim)` for keys,
/// `(…, key_heads, len_key, dim_value)` for values; rank 2 is one head. Leading axes broadcast. Query head `h` reads
/// key head `h / (heads / key_heads)`.
///
/// ```
/// use ndarray::array;
/// use qkv::{Alignment, Attention};
///
/// let query = array![[1.0f32, 0.0], [0.0, 1.0], [1.0, 1.0]];
/// let value = array![[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]];
/// let causal = Attention::new().causal(Alignment::TopLeft);
/// let output = causal.forward(query.view(), query.view(), value.view())?;
/// assert_eq!(output.row(0), value.row(0)); // the first query sees only the first key
/// # Ok::<(), qkv::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Attention<'a> {
    pub(crate) scale: Option<f64>,
    pub(crate) softcap: Option<f64>,
    pub(crate) causal: Option<Alignment>,
    pub(crate) prefix: Option<Vec<u64>>,
    pub(crate) query_offset: Option<i64>,
    pub(crate) key_offset: i64,
    pub(crate) window: Option<Window>,
    pub(crate) key_lengths: Option<Vec<usize>>,
    pub(crate) segments: Option<(DynView<'a, i64>, DynView<'a, i64>)>,
    pub(crate) masks: Vec<DynView<'a, bool>>,
    pub(crate) mask_fns: Vec<&'a dyn MaskFn>,
    pub(crate) biases: Vec<Bias<'a>>,
    pub(crate) alibi: Option<Alibi>,
    pub(crate) bias_fns: Vec<&'a dyn BiasFn>,
    pub(crate) sinks: Option<Vec<f64>>,
    pub(crate) dropout: Option<(f64, u64)>,
    pub(crate) dropout_offsets: (u64, u64),
    pub(crate) path: Option<Path>,
    pub(crate) simd: Option<Simd>,
    pub(crate) strict: bool,
}

impl<'a> Attention<'a> {
    /// Plain attention: scale `1/√dim`, every key visible to every query.
    pub fn new() -> Self {
        Self::default()
    }

    /// What scores are multiplied by, any finite number; `1/√dim` by default.
    pub fn scale(mut self, scale: f64) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Squeezes scaled scores into (-cap, cap): `cap · tanh(score / cap)`, before any bias or mask. Above 0.
    pub fn softcap(mut self, cap: f64) -> Self {
        self.softcap = Some(cap);
        self
    }

    /// A query attends only keys at its own position and before.
    pub fn causal(mut self, alignment: Alignment) -> Self {
        self.causal = Some(alignment);
        self
    }

    /// Keys at positions below this are open to all queries of a causal call: one number for all batches, or one
    /// each.
    pub fn prefix(mut self, positions: impl Into<Vec<u64>>) -> Self {
        self.prefix = Some(positions.into());
        self
    }

    /// The position of the first query, for windows, ALiBi and closures without causal order; 0 by default. (With
    /// it, give [`Alignment::Offset`].)
    pub fn query_offset(mut self, position: i64) -> Self {
        self.query_offset = Some(position);
        self
    }

    /// The position of the first key, at least 0: how many keys a cache has dropped from its beginning.
    pub fn key_offset(mut self, position: i64) -> Self {
        self.key_offset = position;
        self
    }

    /// How many positions before and after its own a query sees; `None` is no bound.
    pub fn window(mut self, left: Option<u64>, right: Option<u64>) -> Self {
        self.window = Some(Window { left, right });
        self
    }

    /// How many of the keys count, from the first slot on: one number for all batches, or one each.
    pub fn key_lengths(mut self, lengths: impl Into<Vec<usize>>) -> Self {
        self.key_lengths = Some(lengths.into());
        self
    }

    /// Packed documents: a query attends keys that carry its id. `(len_query,)` and `(len_key,)`, or with a batch
    /// axis in front.
    pub fn segments<D: Dimension, E: Dimension>(
        mut self,
        query: ArrayView<'a, i64, D>,
        key: ArrayView<'a, i64, E>,
    ) -> Self {
        self.segments = Some((query.into_dyn(), key.into_dyn()));
        self
    }

    /// A boolean mask, true is “may attend”. It broadcasts, right-aligned, to `(…, heads, len_query, len_key)`.
    /// Several intersect.
    pub fn mask<D: Dimension>(mut self, mask: ArrayView<'a, bool, D>) -> Self {
        self.masks.push(mask.into_dyn());
        self
    }

    /// A mask that is computed where it is needed.
    pub fn mask_fn(mut self, mask: &'a dyn MaskFn) -> Self {
        self.mask_fns.push(mask);
        self
    }

    /// Numbers added to the scores, -∞ masks. It broadcasts, right-aligned, to `(…, heads, len_query, len_key)`.
    /// Several add up.
    pub fn bias(mut self, bias: impl Into<Bias<'a>>) -> Self {
        self.biases.push(bias.into());
        self
    }

    /// A bias that is computed where it is needed.
    pub fn bias_fn(mut self, bias: &'a dyn BiasFn) -> Self {
        self.bias_fns.push(bias);
        self
    }

    /// Takes each head's slope times the distance off the scores.
    pub fn alibi(mut self, alibi: Alibi) -> Self {
        self.alibi = Some(alibi);
        self
    }

    /// One score for each query head that takes part in the softmax without a value; -∞ is none.
    pub fn sinks(mut self, sinks: impl Into<Vec<f64>>) -> Self {
        self.sinks = Some(sinks.into());
        self
    }

    /// Leaves each weight out of the output with a probability from 0 to 1, and makes up for it by `1/(1 - probability)`; for learning: there is
    /// no switch that would turn it off elsewhere. 0 is no dropout, to the bit, and 1 gives zeros.
    ///
    /// Which are left out depends on the seed, batch, head, and the positions of query and key, and on nothing else: see
    /// [`Call::kept`]. Weights and log-sum-exp are those from before.
    ///
    /// Sources: Srivastava et al., “Dropout” (2014); Salmon et al., “Parallel random numbers” (2011), for Philox.
    pub fn dropout(mut self, probability: f64, seed: u64) -> Self {
        self.dropout = Some((probability, seed));
        self
    }

    /// What the first batch and head are to dropout, 0 by default: so that a part of a call drops what the whole drops.
    pub fn dropout_offsets(mut self, batch: u64, head: u64) -> Self {
        self.dropout_offsets = (batch, head);
        self
    }

    /// Forces a path, for tests and bug reports; then a small call is cut over threads like a large one. It never changes a bit.
    pub fn path(mut self, path: Path) -> Self {
        self.path = Some(path);
        self
    }

    /// Forces an instruction set, for tests and bug reports. It never changes a bit.
    pub fn simd(mut self, simd: Simd) -> Self {
        self.simd = Some(simd);
        self
    }

    /// Makes an error of a call that would be slower than it could be: on another instruction set than the machine's best,
    /// on a path that is not the fastest, or of queries, keys or values whose last axis is strided.
    pub fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// Puts the options to arrays; what is wanted back is said on the [`Call`].
    pub fn call<'c, T: Element, D: Dimension>(
        &'c self,
        query: ArrayView<'c, T, D>,
        key: ArrayView<'c, T, D>,
        value: ArrayView<'c, T, D>,
    ) -> Call<'c, T, D> {
        Call {
            attention: self,
            query,
            key,
            value,
            lse: false,
            row_stats: false,
            weights: false,
            progress: None,
        }
    }

    /// The output, `(…, heads, len_query, dim_value)`.
    ///
    /// # Errors
    /// If shapes or options do not fit; the error names the argument.
    pub fn forward<T: Element, D: Dimension>(
        &self,
        query: ArrayView<'_, T, D>,
        key: ArrayView<'_, T, D>,
        value: ArrayView<'_, T, D>,
    ) -> Result<Array<T, D>, Error> {
        Ok(self.call(query, key, value).run()?.output)
    }

    /// [`forward`](Self::forward) into an array of the caller's, of any strides.
    ///
    /// # Errors
    /// As `forward`, and if `output` has another shape than the result; then it is left as it was.
    pub fn forward_into<T: Element, D: Dimension>(
        &self,
        query: ArrayView<'_, T, D>,
        key: ArrayView<'_, T, D>,
        value: ArrayView<'_, T, D>,
        output: ArrayViewMut<'_, T, D>,
    ) -> Result<(), Error> {
        self.call(query, key, value).run_into(output).map(drop)
    }

    /// The gradients of queries, keys and values, from that of the output and what [`Call::run`] returned, which was asked for
    /// the row statistics. [`Call::backward`] has the other gradients too.
    ///
    /// ```
    /// use ndarray::{Array2, array};
    /// use qkv::Attention;
    ///
    /// let x = array![[1.0f32, 0.0], [0.0, 2.0]];
    /// let attention = Attention::new();
    /// let forward = attention.call(x.view(), x.view(), x.view()).row_stats().run()?;
    /// let ones = Array2::ones((2, 2)); // of the sum of the output
    /// let gradients = attention.backward(x.view(), x.view(), x.view(), &forward, ones.view())?;
    /// // Each value counts as often as it is looked at, and the weights of a query sum to 1.
    /// assert!((gradients.value.unwrap().column(0).sum() - 2.0).abs() < 1e-6);
    /// # Ok::<(), qkv::Error>(())
    /// ```
    ///
    /// # Errors
    /// If shapes or options do not fit, the row statistics are missing, or there is no memory for a result.
    pub fn backward<T: Element, D: Dimension>(
        &self,
        query: ArrayView<'_, T, D>,
        key: ArrayView<'_, T, D>,
        value: ArrayView<'_, T, D>,
        forward: &AttentionOutput<T, D>,
        d_output: ArrayView<'_, T, D>,
    ) -> Result<Gradients<T, D>, Error> {
        let row_stats = forward.row_stats.as_ref().ok_or_else(|| {
            Error::value("forward", "no row statistics", "those of each row").mended_by("Call::row_stats")
        })?;
        let call = self.call(query, key, value);
        call.backward(forward.output.view(), row_stats, d_output).query().key().value().run()
    }

    /// Every intermediate, named: see [`Trace`]. It takes memory for five matrices of every pair, and computes `q · k` anew
    /// for each of them.
    ///
    /// ```
    /// use ndarray::array;
    /// use qkv::Attention;
    ///
    /// let x = array![[1.0f32, 0.0], [0.0, 2.0]];
    /// let trace = Attention::new().scale(0.5).trace(x.view(), x.view(), x.view())?;
    /// assert_eq!(trace.scores, array![[1.0, 0.0], [0.0, 4.0]]);
    /// assert_eq!(trace.scaled, array![[0.5, 0.0], [0.0, 2.0]]);
    /// assert!((trace.weights.row(1).sum() - 1.0).abs() < 1e-6);
    /// # Ok::<(), qkv::Error>(())
    /// ```
    ///
    /// # Errors
    /// If shapes or options do not fit, or there is no memory for an array.
    pub fn trace<T: Element, D: Dimension>(
        &self,
        query: ArrayView<'_, T, D>,
        key: ArrayView<'_, T, D>,
        value: ArrayView<'_, T, D>,
    ) -> Result<Trace<T, D>, Error> {
        self.call(query, key, value).trace()
    }

    /// Which pairs one head of one batch may attend: `(len_query, len_key)`, true is “may attend”.
    ///
    /// # Errors
    /// If the options do not fit these lengths.
    pub fn visible(&self, len_query: usize, len_key: usize) -> Result<Array2<bool>, Error> {
        let rows = |len: usize| {
            ArrayView2::<f32>::from_shape((len, 0), &[])
                .map_err(|_| Error::no_memory("visible pairs", &[len_query, len_key]))
        };
        let (query, key) = (rows(len_query)?, rows(len_key)?);
        self.call(query, key, key).visible()
    }
}

/// Called now and then on the caller's thread with how much is done and how much there is; `Break` cancels.
pub type Progress<'c> = dyn FnMut(u64, u64) -> ControlFlow<()> + 'c;

/// Options and arrays together, and what is wanted back beside the output.
///
/// ```
/// use ndarray::Array4;
/// use qkv::Attention;
///
/// let (query, key) = (Array4::<f32>::ones((1, 4, 3, 8)), Array4::<f32>::ones((1, 2, 5, 8)));
/// let attention = Attention::new();
/// let result = attention.call(query.view(), key.view(), key.view()).lse().weights().run()?;
/// assert_eq!(result.weights.unwrap().shape(), [1, 4, 3, 5]);
/// assert_eq!(result.lse.unwrap().shape(), [1, 4, 3]);
/// # Ok::<(), qkv::Error>(())
/// ```
#[must_use = "nothing is computed before `run`"]
pub struct Call<'c, T, D: Dimension> {
    attention: &'c Attention<'c>,
    query: ArrayView<'c, T, D>,
    key: ArrayView<'c, T, D>,
    value: ArrayView<'c, T, D>,
    lse: bool,
    row_stats: bool,
    weights: bool,
    progress: Option<&'c mut Progress<'c>>,
}

/// What a call gives back: the output, and what else was asked for.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AttentionOutput<T: Element, D: Dimension> {
    /// `(…, heads, len_query, dim_value)`
    pub output: Array<T, D>,
    /// The natural log-sum-exp of each row of masked scores, sink included: `(…, heads, len_query)`; -∞ for a row
    /// that attends nothing.
    pub lse: Option<Array<T::Accumulator, D::Smaller>>,
    /// What exact weights are made from.
    pub row_stats: Option<RowStats<T, D>>,
    /// `(…, heads, len_query, len_key)`; masked pairs are exactly 0.
    pub weights: Option<Array<T, D>>,
}

/// What else a call was asked for, beside an output that the caller holds; see [`AttentionOutput`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Extras<T: Element, D: Dimension> {
    /// `(…, heads, len_query)`
    pub lse: Option<Array<T::Accumulator, D::Smaller>>,
    /// What exact weights are made from.
    pub row_stats: Option<RowStats<T, D>>,
    /// `(…, heads, len_query, len_key)`
    pub weights: Option<Array<T, D>>,
}

/// Maximum and sum of each row: the weight of a score `s` is `exp(s - max) / sum`, as exact as the output.
///
/// A row that attends nothing has -∞ and 0; with a sink, the sink and 1.
#[derive(Clone, Debug, PartialEq)]
pub struct RowStats<T: Element, D: Dimension> {
    /// The largest visible score, or the sink if that is larger: `(…, heads, len_query)`.
    pub max: Array<T::Accumulator, D::Smaller>,
    /// The sum of `exp(score - max)` over visible scores and the sink: `(…, heads, len_query)`.
    pub sum: Array<T::Accumulator, D::Smaller>,
}

impl<'c, T: Element, D: Dimension> Call<'c, T, D> {
    /// Asks for the log-sum-exp.
    pub fn lse(mut self) -> Self {
        self.lse = true;
        self
    }

    /// Asks for maximum and sum of each row.
    pub fn row_stats(mut self) -> Self {
        self.row_stats = true;
        self
    }

    /// Asks for the weights; this alone takes memory for every pair.
    pub fn weights(mut self) -> Self {
        self.weights = true;
        self
    }

    /// Reports progress to, and may be cancelled by, a function that is called on this thread. A call may have several
    /// passes, each of which counts from 0.
    pub fn progress(mut self, progress: &'c mut Progress<'c>) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Computes.
    ///
    /// # Errors
    /// If shapes or options do not fit, if there is no memory for a result, or if progress cancelled.
    pub fn run(self) -> Result<AttentionOutput<T, D>, Error> {
        let (problem, want) = (self.problem()?, self.want());
        forward::run(&problem, want, self.progress)
    }

    /// Computes, with the output in an array of the caller's, of any strides; what else was asked for comes back. When
    /// cancelled, some of the output is written.
    ///
    /// # Errors
    /// As [`run`](Self::run), and if `output` has another shape than the result; then it is left as it was.
    pub fn run_into(self, output: ArrayViewMut<'_, T, D>) -> Result<Extras<T, D>, Error> {
        let (problem, want) = (self.problem()?, self.want());
        forward::run_into(&problem, want, output, self.progress)
    }

    /// The scores after one of the stages, `(…, heads, len_query, len_key)`, in the accumulator type, which holds
    /// what a half float could not. Only [`Stage::Weights`] reads the values: it runs the forward pass first.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn scores(self, stage: Stage) -> Result<Array<T::Accumulator, D>, Error> {
        let problem = self.problem()?;
        forward::scores(&problem, stage, self.progress)
    }

    /// Every intermediate, named, of all batches and heads.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn trace(self) -> Result<Trace<T, D>, Error> {
        let problem = self.problem()?;
        trace::whole(&problem, [self.query, self.key, self.value], self.progress)
    }

    /// Every intermediate, named, of some queries of one head: `query` is `(queries, dim)`, `key` `(len_key, dim)`, the
    /// scores `(queries, len_key)`, bit for bit the rows of [`trace`](Self::trace). The batch is counted flat over all
    /// batch axes. Memory and work are those of these rows, and of the head's keys and values.
    ///
    /// # Errors
    /// As [`run`](Self::run), and if the batch, the head or a query does not exist.
    pub fn trace_head(
        self,
        (batch, head): (usize, usize),
        queries: Range<usize>,
    ) -> Result<Trace<T, Ix2>, Error> {
        trace::head(self.problem()?, (batch, head), queries, self.progress)
    }

    /// How much each key matters to one query: how far, as an L2 norm, the row's output would move if that key were
    /// deleted; 0 for a masked key. Deleting the only key leaves the zero row. `(batch, head, query)`, the batch counted
    /// flat over all batch axes; one number for each key, in f64 and without another call. Progress is not reported.
    ///
    /// # Errors
    /// As [`run`](Self::run), and if the row does not exist.
    pub fn influence(&self, row: (usize, usize, usize)) -> Result<Vec<f64>, Error> {
        let problem = self.problem()?;
        problem.check_row(row)?;
        Ok(inspect::influence(&problem, row))
    }

    /// One head opened for inspection, the batch counted flat over all batch axes: its weights, pooled or summed up in ways that
    /// never store them all. Nothing is computed yet; progress is given to what computes, and not here.
    ///
    /// # Errors
    /// If shapes or options do not fit, or the batch or head does not exist.
    pub fn inspect(self, batch: usize, head: usize) -> Result<Inspection<'c, T>, Error> {
        Inspection::new(self.attention, self.arrays(), (batch, head), None)
    }

    /// [`inspect`](Self::inspect) of some neighbouring queries alone, with work for these alone.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect), and if a query does not exist.
    pub fn inspect_queries(
        self,
        batch: usize,
        head: usize,
        queries: Range<usize>,
    ) -> Result<Inspection<'c, T>, Error> {
        Inspection::new(self.attention, self.arrays(), (batch, head), Some(queries))
    }

    /// The unfinished state over these keys, to be merged with others.
    ///
    /// # Errors
    /// As [`run`](Self::run); and if the queries are aligned to the end of these keys, which are not all.
    pub fn partial(self) -> Result<Partial<T, D>, Error> {
        if self.attention.causal == Some(Alignment::BottomRight) {
            return Err(Error::value("causal", "bottom-right", "a position")
                .mended_by("a partial does not know where all keys end: use Alignment::Offset"));
        }
        if self.attention.sinks.is_some() {
            return Err(Error::value("sinks", "sinks in a partial", "none").mended_by("give them to merge"));
        }
        let problem = self.problem()?;
        if problem.terms.dropout.is_some() {
            return Err(Error::value("dropout", "dropout in a partial", "none"));
        }
        forward::partial(&problem, self.progress)
    }

    /// The gradients of a loss, from that of the output, `d_output`, and what [`run`](Self::run) returned for this call:
    /// the output and, asked for by [`row_stats`](Self::row_stats), maximum and sum of each row. What is wanted is said on
    /// the [`Backward`]. Bits of a gradient depend on threads and instruction set as little as those of an output.
    pub fn backward<'b>(
        self,
        output: ArrayView<'b, T, D>,
        row_stats: &'b RowStats<T, D>,
        d_output: ArrayView<'b, T, D>,
    ) -> Backward<'b, T, D>
    where
        'c: 'b,
    {
        Backward {
            problem: self.problem(),
            shapes: [self.query.shape(), self.key.shape(), self.value.shape()].map(Extents::from_slice),
            output,
            row_stats,
            d_output,
            d_lse: None,
            wanted: Default::default(),
            progress: self.progress.map(|progress| progress as &mut Progress<'b>),
        }
    }

    /// The gradients from the textbook's formulas with whole matrices, at more precision than any result has, of one
    /// head of one batch whose `d_output` is `(len_query, dim_value)`; see [`ReferenceGradients`].
    ///
    /// # Errors
    /// If shapes or options do not fit, or the head does not exist.
    pub fn reference_backward(
        &self,
        at: (usize, usize),
        d_output: ArrayView2<'_, T>,
        d_lse: Option<ArrayView1<'_, T::Accumulator>>,
    ) -> Result<ReferenceGradients, Error> {
        backward::reference(&self.problem()?, at, d_output, d_lse)
    }

    /// Which pairs may be attended, `(…, heads, len_query, len_key)`; true is “may attend”.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn visible(self) -> Result<Array<bool, D>, Error> {
        forward::visible(&self.problem()?)
    }

    /// Which pairs [dropout](Attention::dropout) keeps, masked ones among them: `(…, heads, len_query, len_key)`. Without dropout, all.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn kept(self) -> Result<Array<bool, D>, Error> {
        forward::kept(&self.problem()?)
    }

    /// Whether the arrays and options fit, without computing anything.
    ///
    /// # Errors
    /// If shapes or options do not fit.
    pub fn check(&self) -> Result<(), Error> {
        self.problem().map(drop)
    }

    /// Whether [`run`](Self::run) asks for threads of a rayon pool: the one that its caller is in, or else the global one.
    /// A small call does not, and stays on its caller's thread.
    pub fn asks_for_threads(&self) -> bool {
        let shapes = [self.query.shape(), self.key.shape(), self.value.shape()];
        plan::asks_for_threads(self.attention, shapes)
    }

    /// What would be done, and why.
    ///
    /// # Errors
    /// If shapes or options do not fit.
    pub fn plan(&self) -> Result<Plan, Error> {
        Ok(Plan::new::<T>(&self.problem()?.terms))
    }

    /// Rows computed by the textbook's five steps at more precision than any result has; see [`ReferenceRow`].
    /// Rows are `(batch, head, query)`, the batch counted flat over all batch axes.
    ///
    /// # Errors
    /// If shapes or options do not fit, or a row does not exist.
    pub fn reference(&self, rows: &[(usize, usize, usize)]) -> Result<Vec<ReferenceRow>, Error> {
        reference::rows(&self.problem()?, rows)
    }

    fn arrays(&self) -> [DynView<'c, T>; 3] {
        [&self.query, &self.key, &self.value].map(|array| array.clone().into_dyn())
    }

    fn want(&self) -> forward::Want {
        forward::Want { lse: self.lse, row_stats: self.row_stats, weights: self.weights }
    }

    fn problem(&self) -> Result<Problem<'c, T>, Error> {
        Problem::new(self.attention, self.query.clone(), self.key.clone(), self.value.clone())
    }
}
