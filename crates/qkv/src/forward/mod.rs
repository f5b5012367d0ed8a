//! The forward pass: allocates what was asked for, and hands it to tasks to be filled.

mod decode;
mod join;
mod load;
mod matrix;
mod prefill;
mod rows;
mod schedule;
mod spare;
mod tasks;

use ndarray::{Array, ArrayD, ArrayViewMut, ArrayViewMutD, Dimension, IxDyn};

use crate::call::{AttentionOutput, Extras, Progress, RowStats};
use crate::element::{Element, Real};
use crate::error::{Error, show_shape};
use crate::partial::Partial;
use crate::planes::Extents;
use crate::problem::{Problem, Stage, Terms};
use crate::scalar;
use crate::simd::FloatEnvironment;
use crate::simd::math::ln;
use crate::tile::Pair;

pub(crate) use decode::{QUERIES as DECODE_QUERIES, Scratch as DecodeScratch};
pub(crate) use load::{Arrays, Matrices, Role, all_finite, rows_of_tile};
pub(crate) use matrix::{Matrix, weight};
pub(crate) use prefill::{Block, CHAINS, FEWER, Part, Products, Scratch as PrefillScratch, panel_lanes};
pub(crate) use rows::{Columns, Finish, Heads, MatrixTarget};
pub(crate) use schedule::{Source, each as each_task};
pub(crate) use spare::Buffers;
pub use tasks::Compiled;

/// What is wanted beside the output.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Want {
    pub(crate) lse: bool,
    pub(crate) row_stats: bool,
    pub(crate) weights: bool,
}

pub(crate) fn run<T: Element, D: Dimension>(
    problem: &Problem<'_, T>,
    want: Want,
    mut progress: Option<&mut Progress<'_>>,
) -> Result<AttentionOutput<T, D>, Error> {
    let mut output = zeros::<T>("output", &output_shape(problem))?;
    let Extras { lse, row_stats, weights } = fill(problem, want, output.view_mut(), &mut progress)?;
    Ok(AttentionOutput { output: shaped(output), lse, row_stats, weights })
}

pub(crate) fn run_into<T: Element, D: Dimension>(
    problem: &Problem<'_, T>,
    want: Want,
    output: ArrayViewMut<'_, T, D>,
    mut progress: Option<&mut Progress<'_>>,
) -> Result<Extras<T, D>, Error> {
    let shape = output_shape(problem);
    if *output.shape() != *shape {
        return Err(Error::shape("output", output.shape(), show_shape(&shape)));
    }
    fill(problem, want, output.into_dyn(), &mut progress)
}

fn output_shape<T: Element>(problem: &Problem<'_, T>) -> Extents {
    problem.terms.shape(&[problem.terms.len_query, problem.terms.dim_value])
}

/// Fills the output and makes what else is wanted.
fn fill<T: Element, D: Dimension>(
    problem: &Problem<'_, T>,
    want: Want,
    output: ArrayViewMutD<'_, T>,
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<Extras<T, D>, Error> {
    let _environment = FloatEnvironment::enter();
    let terms = &problem.terms;
    // All memory first: no long work before it turns out that a result has no room.
    let mut weights = want
        .weights
        .then(|| zeros::<T>("weights", &terms.shape(&[terms.len_query, terms.len_key])))
        .transpose()?;
    if !(want.lse || want.row_stats || want.weights) {
        T::attend(problem, Heads::all(output, terms.heads, None, Finish::Mean), progress)?;
        return Ok(Extras { lse: None, row_stats: None, weights: None });
    }
    let stats = statistics(problem, output, progress)?;
    if let Some(weights) = &mut weights {
        fill_weights(problem, &stats, weights.view_mut(), progress)?;
    }
    Ok(Extras {
        lse: want.lse.then(|| stats.lse()),
        row_stats: want.row_stats.then_some(stats),
        weights: weights.map(shaped),
    })
}

pub(crate) fn partial<T: Element, D: Dimension>(
    problem: &Problem<'_, T>,
    mut progress: Option<&mut Progress<'_>>,
) -> Result<Partial<T, D>, Error> {
    let _environment = FloatEnvironment::enter();
    let shape =
        [problem.terms.batches, problem.terms.heads, problem.terms.len_query, 2 + problem.terms.dim_value];
    let mut raw = zeros::<T::Accumulator>("partial", &shape)?;
    T::attend_wide(
        problem,
        Heads::all(raw.view_mut(), problem.terms.heads, None, Finish::Raw),
        &mut progress,
    )?;
    Ok(Partial::new(problem, raw))
}

/// The output together with each row's maximum and sum.
fn statistics<T: Element, D: Dimension>(
    problem: &Problem<'_, T>,
    output: ArrayViewMutD<'_, T>,
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<RowStats<T, D>, Error> {
    let shape = problem.terms.shape(&[problem.terms.len_query]);
    let mut max = zeros::<T::Accumulator>("row statistics", &shape)?;
    let mut sum = zeros::<T::Accumulator>("row statistics", &shape)?;
    let both = [&mut max, &mut sum].map(|array| array.as_slice_mut().expect("contiguous"));
    T::attend(problem, Heads::all(output, problem.terms.heads, Some(both), Finish::Mean), progress)?;
    Ok(RowStats { max: shaped(max), sum: shaped(sum) })
}

impl<T: Element, D: Dimension> RowStats<T, D> {
    /// The natural log-sum-exp of each row, `(…, heads, len_query)`: `max + ln(sum)`.
    ///
    /// It is for people and other libraries; at large scores it holds four digits less than the two numbers do.
    pub fn lse(&self) -> Array<T::Accumulator, D::Smaller> {
        let _environment = FloatEnvironment::enter();
        let mut lse = self.max.clone();
        lse.zip_mut_with(&self.sum, |max, &sum| *max = Element::leave(*max + ln(sum)));
        lse
    }
}

/// The matrix of weights, made again from the rows' maxima and sums.
fn fill_weights<T: Element, D: Dimension>(
    problem: &Problem<'_, T>,
    stats: &RowStats<T, D>,
    weights: ArrayViewMutD<'_, T>,
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<(), Error> {
    let rows = Heads::all(weights, problem.terms.heads, None, Finish::Mean);
    let stats = [&stats.max, &stats.sum].map(|array| array.as_slice().expect("contiguous"));
    T::matrix(problem, rows, (Stage::Weights, stats), progress)
}

pub(crate) fn scores<T: Element, D: Dimension>(
    problem: &Problem<'_, T>,
    stage: Stage,
    mut progress: Option<&mut Progress<'_>>,
) -> Result<Array<T::Accumulator, D>, Error> {
    let _environment = FloatEnvironment::enter();
    let mut scores = zeros::<T::Accumulator>(
        "scores",
        &problem.terms.shape(&[problem.terms.len_query, problem.terms.len_key]),
    )?;
    let rows = Heads::all(scores.view_mut(), problem.terms.heads, None, Finish::Mean);
    if stage == Stage::Weights {
        let mut output = zeros::<T>("output", &output_shape(problem))?;
        let stats: RowStats<T, D> = statistics(problem, output.view_mut(), &mut progress)?;
        let stats = [&stats.max, &stats.sum].map(|array| array.as_slice().expect("contiguous"));
        T::matrix_wide(problem, rows, (stage, stats), &mut progress)?;
    } else {
        T::matrix_wide(problem, rows, (stage, [&[], &[]]), &mut progress)?;
    }
    Ok(shaped(scores))
}

pub(crate) fn visible<T: Element, D: Dimension>(problem: &Problem<'_, T>) -> Result<Array<bool, D>, Error> {
    of_pairs(problem, "visible pairs", |pair| scalar::sees(problem, pair))
}

pub(crate) fn kept<T: Element, D: Dimension>(problem: &Problem<'_, T>) -> Result<Array<bool, D>, Error> {
    let Terms { dropout, visibility, .. } = &problem.terms;
    of_pairs(problem, "kept pairs", |pair| {
        dropout.as_ref().is_none_or(|dropout| dropout.keeps(pair, visibility))
    })
}

/// What is true of each pair.
fn of_pairs<T: Element, D: Dimension>(
    problem: &Problem<'_, T>,
    what: &'static str,
    is: impl Fn(Pair) -> bool,
) -> Result<Array<bool, D>, Error> {
    let shape = problem.terms.shape(&[problem.terms.len_query, problem.terms.len_key]);
    let mut pairs = filled(what, &shape, false)?;
    let flat = pairs.as_slice_mut().expect("contiguous");
    let rows = flat.chunks_mut(problem.terms.len_key.max(1)).enumerate();
    for (index, row) in rows {
        let (query, plane) = (index % problem.terms.len_query, index / problem.terms.len_query);
        let (batch, head) = (plane / problem.terms.heads, plane % problem.terms.heads);
        for (key, cell) in row.iter_mut().enumerate() {
            *cell = is(Pair { batch, head, query, key });
        }
    }
    Ok(shaped(pairs))
}

pub(crate) fn zeros<O: Element>(what: &'static str, shape: &[usize]) -> Result<ArrayD<O>, Error> {
    filled(what, shape, O::round(O::Accumulator::ZERO))
}

/// [`zeros`] that, where there are many, nobody has touched yet: for numbers that are written before they are read, so that the
/// threads that write them have the memory made for them.
pub(crate) fn untouched_zeros<O: Element>(what: &'static str, shape: &[usize]) -> Result<ArrayD<O>, Error> {
    allocated(what, shape, |count| bytemuck::allocation::try_zeroed_vec(count).ok())
}

/// A new array, or an error where there is no memory for it.
fn filled<O: Copy>(what: &'static str, shape: &[usize], x: O) -> Result<ArrayD<O>, Error> {
    allocated(what, shape, |count| {
        let mut numbers = Vec::new();
        numbers.try_reserve_exact(count).ok()?;
        numbers.resize(count, x);
        Some(numbers)
    })
}

fn allocated<O>(
    what: &'static str,
    shape: &[usize],
    numbers: impl FnOnce(usize) -> Option<Vec<O>>,
) -> Result<ArrayD<O>, Error> {
    let no_memory = || Error::no_memory(what, shape);
    let count =
        shape.iter().try_fold(1usize, |count, &axis| count.checked_mul(axis)).ok_or_else(no_memory)?;
    let numbers = numbers(count).ok_or_else(no_memory)?;
    ArrayD::from_shape_vec(IxDyn(shape), numbers).map_err(|_| no_memory())
}

pub(crate) fn shaped<O, D: Dimension>(array: ArrayD<O>) -> Array<O, D> {
    array.into_dimensionality().expect("the rank of the arguments")
}
