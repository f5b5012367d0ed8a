//! The trace: every intermediate of a call, kept and named. It is made by the kernels that make the output, so its
//! numbers are those that the fast paths compute with.

use std::ops::Range;

use ndarray::{Array, Array2, ArrayView, Dimension, Ix2, IxDyn, s};

use crate::attention::RowStats;
use crate::element::{Element, Real};
use crate::error::Error;
use crate::forward::{self, Finish, Rows, Want, shaped, zeros};
use crate::problem::{Path, Problem, Stage};
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
    /// `(…, heads, len_query, dim_value)`: the values' mean by weight.
    pub output: Array<T, D>,
    /// Maximum and sum of each row, `(…, heads, len_query)`.
    pub row_stats: RowStats<T, D>,
}

impl<T: Element, D: Dimension> Trace<T, D> {
    /// The same numbers in f64.
    pub fn widened(&self) -> Trace<f64, D> {
        fn wide<T: Element, D: Dimension>(array: &Array<T, D>) -> Array<f64, D> {
            array.map(|&x| x.widen().to_f64())
        }
        Trace {
            query: wide(&self.query),
            key: wide(&self.key),
            value: wide(&self.value),
            scores: wide(&self.scores),
            scaled: wide(&self.scaled),
            softcapped: wide(&self.softcapped),
            masked: wide(&self.masked),
            weights: wide(&self.weights),
            output: wide(&self.output),
            row_stats: RowStats { max: wide(&self.row_stats.max), sum: wide(&self.row_stats.sum) },
        }
    }
}

impl<T: Element> Trace<T, Ix2> {
    /// The same, with the number of axes left open.
    pub fn into_dyn(self) -> Trace<T, IxDyn> {
        Trace {
            query: self.query.into_dyn(),
            key: self.key.into_dyn(),
            value: self.value.into_dyn(),
            scores: self.scores.into_dyn(),
            scaled: self.scaled.into_dyn(),
            softcapped: self.softcapped.into_dyn(),
            masked: self.masked.into_dyn(),
            weights: self.weights.into_dyn(),
            output: self.output.into_dyn(),
            row_stats: RowStats { max: self.row_stats.max.into_dyn(), sum: self.row_stats.sum.into_dyn() },
        }
    }
}

/// Of all batches and heads. The arrays are the caller's own.
pub(crate) fn whole<T: Element, D: Dimension>(
    problem: &Problem<'_, T>,
    [query, key, value]: [ArrayView<'_, T, D>; 3],
) -> Result<Trace<T, D>, Error> {
    let scores = |stage| forward::scores::<T, D>(problem, stage, None);
    let [scores, scaled, softcapped, masked] =
        [scores(Stage::Raw)?, scores(Stage::Scaled)?, scores(Stage::Softcapped)?, scores(Stage::Masked)?];
    let want = Want { row_stats: true, weights: true, ..Want::default() };
    let result = forward::run::<T, D>(problem, want, None)?;
    let (Some(weights), Some(row_stats)) = (result.weights, result.row_stats) else {
        unreachable!("asked for")
    };
    Ok(Trace {
        query: copied("query", query)?,
        key: copied("key", key)?,
        value: copied("value", value)?,
        scores,
        scaled,
        softcapped,
        masked,
        weights,
        output: result.output,
        row_stats,
    })
}

/// Some queries of one batch and head, and all its keys.
pub(crate) fn head<T: Element>(
    mut problem: Problem<'_, T>,
    (batch, head): (usize, usize),
    queries: Range<usize>,
) -> Result<Trace<T, Ix2>, Error> {
    let terms = &mut problem.terms;
    check("batch", batch, terms.batches)?;
    check("head", head, terms.heads)?;
    if queries.start > queries.end || queries.end > terms.len_query {
        let wanted = format!("a range within 0..{}", terms.len_query);
        return Err(Error::value("queries", format!("{queries:?}"), wanted));
    }
    if terms.path != Some(Path::Scalar) {
        // Decode is cut for whole groups of heads. The bits are the same.
        terms.path = Some(Path::Prefill);
    }
    let _environment = FloatEnvironment::enter();
    let at = (batch, head, queries.start);
    let scores = |stage| head_scores(&problem, at, queries.len(), stage);
    let [scores, scaled, softcapped, masked] =
        [scores(Stage::Raw)?, scores(Stage::Scaled)?, scores(Stage::Softcapped)?, scores(Stage::Masked)?];
    let (output, row_stats) = head_output(&problem, at, queries.len())?;
    let mut weights = zeros::<T>("weights", masked.shape())?;
    for ((row, mut weights), stats) in
        masked.rows().into_iter().zip(weights.rows_mut()).zip(row_stats.max.iter().zip(&row_stats.sum))
    {
        for (weight, &s) in weights.iter_mut().zip(row) {
            // A visible score is never -∞.
            let visible = Some(s).filter(|&s| s != T::Accumulator::NEG_INFINITY);
            *weight = T::leave(scalar::weight(visible, *stats.0, *stats.1));
        }
    }
    let key_head = problem.terms.key_head(head);
    Ok(Trace {
        query: copied("query", problem.query.get(batch, head).slice(s![queries, ..]))?,
        key: copied("key", problem.key.get(batch, key_head).view())?,
        value: copied("value", problem.value.get(batch, key_head).view())?,
        scores,
        scaled,
        softcapped,
        masked,
        weights: shaped(weights),
        output,
        row_stats,
    })
}

fn check(what: &'static str, index: usize, count: usize) -> Result<(), Error> {
    if index < count {
        return Ok(());
    }
    Err(Error::value(what, index, format!("a number below {count}")))
}

fn head_scores<T: Element>(
    problem: &Problem<'_, T>,
    at: (usize, usize, usize),
    len_query: usize,
    stage: Stage,
) -> Result<Array2<T::Accumulator>, Error> {
    let mut scores: Array2<T::Accumulator> =
        shaped(zeros::<T::Accumulator>("scores", &[len_query, problem.terms.len_key])?);
    let rows = Rows::of_head(scores.view_mut(), at, None, Finish::Mean);
    T::matrix_wide(problem, rows, (stage, [&[], &[]]), &mut None)?;
    Ok(scores)
}

fn head_output<T: Element>(
    problem: &Problem<'_, T>,
    at: (usize, usize, usize),
    len_query: usize,
) -> Result<(Array2<T>, RowStats<T, Ix2>), Error> {
    let mut output: Array2<T> = shaped(zeros::<T>("output", &[len_query, problem.terms.dim_value])?);
    let statistics = || zeros::<T::Accumulator>("row statistics", &[len_query]);
    let (mut max, mut sum) = (statistics()?, statistics()?);
    let both = [&mut max, &mut sum].map(|array| array.as_slice_mut().expect("contiguous"));
    T::attend(problem, Rows::of_head(output.view_mut(), at, Some(both), Finish::Mean), &mut None)?;
    Ok((output, RowStats { max: shaped(max), sum: shaped(sum) }))
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
