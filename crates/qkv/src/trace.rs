//! The trace: every intermediate of a call, kept and named. It is made by the kernels that make the output, so its
//! numbers are those that the fast paths compute with. Only the weights of a few rows are written down once more, by
//! their formula.

use std::ops::Range;

use ndarray::{Array, Array2, ArrayD, ArrayView, Dimension, Ix2, IxDyn, s};

use crate::call::{Progress, RowStats};
use crate::element::{Element, Real};
use crate::error::Error;
use crate::forward::{self, Finish, Heads, Want, shaped, zeros};
use crate::problem::{Problem, Stage};
use crate::scalar;
use crate::simd::FloatEnvironment;

/// Every intermediate of a call, from the queries to the output.
///
/// Shapes are those of the call, or with one head's matrices, where a trace of one head was asked for.
/// Scores are in the accumulator type, as the engine has them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Trace<T: Element, D: Dimension> {
    /// `(…, heads, len_query, dim)`
    pub query: Array<T, D>,
    /// `(…, key_heads, len_key, dim)`
    pub key: Array<T, D>,
    /// `(…, key_heads, len_key, dim_value)`
    pub value: Array<T, D>,
    /// `q · k` of every pair: `(…, heads, len_query, len_key)`, like the next four.
    pub scores: Array<T::Accumulator, D>,
    /// Times the scale.
    pub scaled: Array<T::Accumulator, D>,
    /// Squeezed by the softcap; as `scaled` where there is none.
    pub softcapped: Array<T::Accumulator, D>,
    /// With biases added, and -∞ where masked.
    pub masked: Array<T::Accumulator, D>,
    /// `exp(masked - max) / sum`: each row sums to 1, or to less with a sink; 0 where masked.
    pub weights: Array<T, D>,
    /// `(…, heads, len_query, dim_value)`: the values' mean by weight, whatever dropout would leave out of it.
    pub output: Array<T, D>,
    /// Maximum and sum of each row, `(…, heads, len_query)`.
    pub row_stats: RowStats<T, D>,
}

impl<T: Element, D: Dimension> Trace<T, D> {
    /// The same numbers in f64, and with the number of axes left open: for those who show them.
    pub fn widened(self) -> Trace<f64, IxDyn> {
        fn wide<T: Element, D: Dimension>(array: Array<T, D>) -> ArrayD<f64> {
            array.mapv(|x| x.widen().to_f64()).into_dyn()
        }
        Trace {
            query: wide(self.query),
            key: wide(self.key),
            value: wide(self.value),
            scores: wide(self.scores),
            scaled: wide(self.scaled),
            softcapped: wide(self.softcapped),
            masked: wide(self.masked),
            weights: wide(self.weights),
            output: wide(self.output),
            row_stats: RowStats { max: wide(self.row_stats.max), sum: wide(self.row_stats.sum) },
        }
    }
}

/// Of all batches and heads. The arrays are the caller's own.
pub(crate) fn whole<T: Element, D: Dimension>(
    problem: &Problem<'_, T>,
    [query, key, value]: [ArrayView<'_, T, D>; 3],
    mut progress: Option<&mut Progress<'_>>,
) -> Result<Trace<T, D>, Error> {
    let [query, key, value] = [copied("query", query)?, copied("key", key)?, copied("value", value)?];
    let mut scores = |stage| forward::scores::<T, D>(problem, stage, progress.as_deref_mut());
    let scores =
        [scores(Stage::Raw)?, scores(Stage::Scaled)?, scores(Stage::Softcapped)?, scores(Stage::Masked)?];
    let want = Want { row_stats: true, weights: true, ..Want::default() };
    let result = forward::run::<T, D>(problem, want, progress)?;
    let (Some(weights), Some(row_stats)) = (result.weights, result.row_stats) else {
        unreachable!("asked for")
    };
    let [scores, scaled, softcapped, masked] = scores;
    let output = result.output;
    Ok(Trace { query, key, value, scores, scaled, softcapped, masked, weights, output, row_stats })
}

/// Some queries of one batch and head, and all its keys.
pub(crate) fn head<T: Element>(
    problem: Problem<'_, T>,
    (batch, head): (usize, usize),
    queries: Range<usize>,
    mut progress: Option<&mut Progress<'_>>,
) -> Result<Trace<T, Ix2>, Error> {
    let terms = &problem.terms;
    problem.check_head((batch, head))?;
    if queries.start > queries.end || queries.end > terms.len_query {
        let wanted = format!("a range within 0..{}", terms.len_query);
        return Err(Error::value("queries", format!("{queries:?}"), wanted));
    }
    let problem = problem.for_single_heads();
    let _environment = FloatEnvironment::enter();
    let key_head = problem.terms.key_head(head);
    let query = copied("query", problem.query.get(batch, head).slice(s![queries.clone(), ..]))?;
    let key = copied("key", problem.key.get(batch, key_head).view())?;
    let value = copied("value", problem.value.get(batch, key_head).view())?;
    let rows = HeadRows { problem: &problem, at: (batch, head, queries.start), count: queries.len() };
    let mut scores = |stage| rows.scores(stage, &mut progress);
    let scores =
        [scores(Stage::Raw)?, scores(Stage::Scaled)?, scores(Stage::Softcapped)?, scores(Stage::Masked)?];
    let (output, row_stats) = rows.output(&mut progress)?;
    let [scores, scaled, softcapped, masked] = scores;
    let weights = weights(&masked, &row_stats)?;
    Ok(Trace { query, key, value, scores, scaled, softcapped, masked, weights, output, row_stats })
}

/// Rows of one batch and head.
struct HeadRows<'p, 'a, T: Element> {
    problem: &'p Problem<'a, T>,
    /// Batch, head, and the first query.
    at: (usize, usize, usize),
    count: usize,
}

impl<T: Element> HeadRows<'_, '_, T> {
    fn scores(
        &self,
        stage: Stage,
        progress: &mut Option<&mut Progress<'_>>,
    ) -> Result<Array2<T::Accumulator>, Error> {
        let mut scores = zeros::<T::Accumulator>("scores", &[self.count, self.problem.terms.len_key])?;
        let target = scores.view_mut().into_dimensionality().expect("two axes");
        let rows = Heads::one(target, self.at, None, Finish::Mean);
        T::matrix_wide(self.problem, rows, (stage, [&[], &[]]), progress)?;
        Ok(shaped(scores))
    }

    fn output(
        &self,
        progress: &mut Option<&mut Progress<'_>>,
    ) -> Result<(Array2<T>, RowStats<T, Ix2>), Error> {
        let mut output = zeros::<T>("output", &[self.count, self.problem.terms.dim_value])?;
        let statistics = || zeros::<T::Accumulator>("row statistics", &[self.count]);
        let (mut max, mut sum) = (statistics()?, statistics()?);
        let both = [&mut max, &mut sum].map(|array| array.as_slice_mut().expect("contiguous"));
        let target = output.view_mut().into_dimensionality().expect("two axes");
        T::attend(self.problem, Heads::one(target, self.at, Some(both), Finish::Mean), progress)?;
        Ok((shaped(output), RowStats { max: shaped(max), sum: shaped(sum) }))
    }
}

fn weights<T: Element>(
    masked: &Array2<T::Accumulator>,
    stats: &RowStats<T, Ix2>,
) -> Result<Array2<T>, Error> {
    let mut weights: Array2<T> = shaped(zeros::<T>("weights", masked.shape())?);
    let stats = stats.max.iter().zip(&stats.sum);
    for ((row, mut weights), (&max, &sum)) in masked.rows().into_iter().zip(weights.rows_mut()).zip(stats) {
        for (weight, &s) in weights.iter_mut().zip(row) {
            // A visible score is never -∞.
            let visible = Some(s).filter(|&s| s != T::Accumulator::NEG_INFINITY);
            *weight = T::leave(scalar::weight(visible, max, sum));
        }
    }
    Ok(weights)
}

/// The caller's array, kept, or an error where there is no memory for it.
fn copied<T: Element, D: Dimension>(
    what: &'static str,
    array: ArrayView<'_, T, D>,
) -> Result<Array<T, D>, Error> {
    let mut copy: Array<T, D> = shaped(zeros::<T>(what, array.shape())?);
    copy.assign(&array);
    Ok(copy)
}
