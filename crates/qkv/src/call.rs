//! A [`Call`]: options and arrays together, and what is wanted back.
//!
//! It is checked into a [`Problem`], which the rooms below trust.

use std::ops::{ControlFlow, Range};

use ndarray::{Array, ArrayView, ArrayView1, ArrayView2, ArrayViewMut, Dimension, Ix2};

use crate::attention::Attention;
use crate::backward::{self, Backward, ReferenceGradients};
use crate::element::Element;
use crate::error::Error;
use crate::forward;
use crate::inspect::{self, Inspection};
use crate::mask::Alignment;
use crate::partial::Partial;
use crate::plan::{self, Plan};
use crate::planes::{DynView, Extents};
use crate::problem::{Problem, Stage};
use crate::reference::{self, ReferenceRow};
use crate::trace::{self, Trace};

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
    pub(crate) fn new(attention: &'c Attention<'c>, [query, key, value]: [ArrayView<'c, T, D>; 3]) -> Self {
        Self { attention, query, key, value, lse: false, row_stats: false, weights: false, progress: None }
    }

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

    /// Every intermediate, named, of all batches and heads; without dropout.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn trace(self) -> Result<Trace<T, D>, Error> {
        let problem = self.problem()?.before_dropout();
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
        trace::head(self.problem()?.before_dropout(), (batch, head), queries, self.progress)
    }

    /// How much each key matters to one query: how far, as an L2 norm, the row's output would move if that key were
    /// deleted; 0 for a masked key, and without dropout. Deleting the only key leaves the zero row. `(batch, head, query)`, the batch counted
    /// flat over all batch axes; one number for each key, in f64 and without another call. Progress is not reported.
    ///
    /// # Errors
    /// As [`run`](Self::run), and if the row does not exist.
    pub fn influence(&self, row: (usize, usize, usize)) -> Result<Vec<f64>, Error> {
        let problem = self.problem()?.before_dropout();
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
    /// As [`run`](Self::run); if the queries are aligned to the end of these keys, which are not all; and for sinks, which
    /// [`merge`](crate::merge()) takes, and dropout.
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
            return Err(Error::value("dropout", "dropout in a partial", "none, for it has no weights yet"));
        }
        forward::partial(&problem, self.progress)
    }

    /// The gradients of a loss, of all that a call takes; [`Attention::backward`] is enough for queries, keys and values.
    ///
    /// `output` and `row_stats` are what [`run`](Self::run) returned for this very call, asked for [`row_stats`](Self::row_stats);
    /// `d_output` is the loss's gradient with respect to the output, of its shape, with any strides. Which gradients are wanted is
    /// said on the [`Backward`], whose `run` has the errors. Bits of a gradient depend on threads and instruction set as little
    /// as those of an output.
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

    /// The gradients from the textbook's formulas with whole matrices, at more precision than any result has, of one batch and
    /// head, `at`, the batch counted flat over all batch axes. `d_output` is `(len_query, dim_value)`, `d_lse` `(len_query)`; see
    /// [`ReferenceGradients`].
    ///
    /// # Errors
    /// If shapes or options do not fit, or the head does not exist.
    pub fn reference_backward(
        &self,
        at: (usize, usize),
        d_output: ArrayView2<'_, T>,
        d_lse: Option<ArrayView1<'_, T::Accumulator>>,
    ) -> Result<ReferenceGradients, Error> {
        backward::reference_gradients(&self.problem()?, at, d_output, d_lse)
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
