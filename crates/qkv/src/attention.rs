//! What is asked of attention: [`Attention`] holds the options, which a [`Call`] puts to arrays. Nothing is computed here.

use ndarray::{Array, Array2, ArrayView, ArrayView2, ArrayViewMut, Dimension};

use crate::backward::Gradients;
use crate::bias::{Alibi, Bias, BiasFn};
use crate::call::{AttentionOutput, Call};
use crate::element::Element;
use crate::error::Error;
use crate::mask::{Alignment, MaskFn, Window};
use crate::planes::DynView;
use crate::problem::Path;
use crate::simd::Simd;
use crate::trace::Trace;

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
        Call::new(self, [query, key, value])
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
