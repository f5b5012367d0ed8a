//! The work of a call cut into tasks, each of which fills rows of its own, by the path that serves the call.

use std::ops::Range;

use half::{bf16, f16};
use ndarray::ArrayViewD;

use super::rows::{Finish, Rows, Target, of_heads};
use super::{decode, join, prefill, schedule};
use crate::attention::Progress;
use crate::element::{Element, Real};
use crate::error::Error;
use crate::plan;
use crate::problem::{Path, Problem, Stage};
use crate::scalar;
use crate::simd::Simd;
use crate::tile::{Pair, QUERY_BLOCK};

type Wide<T> = <T as Element>::Accumulator;

/// The tasks of each element type, compiled once in this crate; callers of the generic API would otherwise each
/// compile every kernel anew.
///
/// Public, like all that it names, only because [`Element`] is; no other crate can reach it.
pub trait Compiled: Sized {
    /// Every row, finished.
    fn attend(
        problem: &Problem<'_, Self>,
        heads: Vec<Rows<'_, Self>>,
        progress: &mut Option<&mut Progress<'_>>,
    ) -> Result<(), Error>
    where
        Self: Element;

    /// Every row as it is before it is finished: `2 + dim_value` numbers.
    fn attend_raw(
        problem: &Problem<'_, Self>,
        heads: Vec<Rows<'_, Wide<Self>>>,
        progress: &mut Option<&mut Progress<'_>>,
    ) -> Result<(), Error>
    where
        Self: Element;

    /// A matrix of weights, from the rows' maxima and sums.
    fn matrix(
        problem: &Problem<'_, Self>,
        heads: Vec<Rows<'_, Self>>,
        stage: (Stage, [&[Wide<Self>]; 2]),
        progress: &mut Option<&mut Progress<'_>>,
    ) -> Result<(), Error>
    where
        Self: Element;

    /// A matrix of scores after a stage, or of weights, in the accumulator type.
    fn matrix_wide(
        problem: &Problem<'_, Self>,
        heads: Vec<Rows<'_, Wide<Self>>>,
        stage: (Stage, [&[Wide<Self>]; 2]),
        progress: &mut Option<&mut Progress<'_>>,
    ) -> Result<(), Error>
    where
        Self: Element;

    /// Rows from `(batches, heads, len_query, 2 + dim_value)` states over spans of keys, each with its first chunk.
    fn join(
        heads: Vec<Rows<'_, Self>>,
        states: &[(u64, ArrayViewD<'_, Wide<Self>>)],
        sink: &(dyn Fn(usize) -> Option<Wide<Self>> + Sync),
        simd: Simd,
    ) -> Result<(), Error>
    where
        Self: Element;
}

macro_rules! compiled {
    ($($element:ident),*) => {
        // Not inlined, so that the code is here and not in each caller.
        $(impl Compiled for $element {
            #[inline(never)]
            fn attend(
                problem: &Problem<'_, Self>,
                heads: Vec<Rows<'_, Self>>,
                progress: &mut Option<&mut Progress<'_>>,
            ) -> Result<(), Error> {
                attend(problem, heads, progress)
            }

            #[inline(never)]
            fn attend_raw(
                problem: &Problem<'_, Self>,
                heads: Vec<Rows<'_, Wide<Self>>>,
                progress: &mut Option<&mut Progress<'_>>,
            ) -> Result<(), Error> {
                attend(problem, heads, progress)
            }

            #[inline(never)]
            fn matrix(
                problem: &Problem<'_, Self>,
                heads: Vec<Rows<'_, Self>>,
                stage: (Stage, [&[Wide<Self>]; 2]),
                progress: &mut Option<&mut Progress<'_>>,
            ) -> Result<(), Error> {
                matrix(problem, heads, stage, progress)
            }

            #[inline(never)]
            fn matrix_wide(
                problem: &Problem<'_, Self>,
                heads: Vec<Rows<'_, Wide<Self>>>,
                stage: (Stage, [&[Wide<Self>]; 2]),
                progress: &mut Option<&mut Progress<'_>>,
            ) -> Result<(), Error> {
                matrix(problem, heads, stage, progress)
            }

            #[inline(never)]
            fn join(
                heads: Vec<Rows<'_, Self>>,
                states: &[(u64, ArrayViewD<'_, Wide<Self>>)],
                sink: &(dyn Fn(usize) -> Option<Wide<Self>> + Sync),
                simd: Simd,
            ) -> Result<(), Error> {
                join(heads, states, sink, simd)
            }
        })*
    };
}

compiled!(f32, f64, f16, bf16);

/// Computes every row.
fn attend<T, O>(
    problem: &Problem<'_, T>,
    heads: Vec<Rows<'_, O>>,
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<(), Error>
where
    T: Element,
    O: Element<Accumulator = T::Accumulator>,
{
    match plan::choose(&problem.terms).0 {
        Path::Prefill => by_prefill(problem, heads, progress),
        Path::Decode => by_decode(problem, heads, progress),
        Path::Scalar => by_scalar(problem, heads, progress),
    }
}

fn by_prefill<T, O>(
    problem: &Problem<'_, T>,
    heads: Vec<Rows<'_, O>>,
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<(), Error>
where
    T: Element,
    O: Element<Accumulator = T::Accumulator>,
{
    let total = count_blocks(&heads, QUERY_BLOCK);
    let tasks = heads.into_iter().flat_map(|rows| rows.blocks(QUERY_BLOCK));
    let new_scratch = || prefill::Scratch::new(problem.terms.dim, problem.terms.dim_value);
    schedule::each((total, tasks), progress, new_scratch, |scratch, mut rows| {
        let block = prefill_block(problem, &rows);
        problem.terms.simd.run(prefill::Attend { block, target: &mut rows, scratch });
    })
}

fn prefill_block<'k, T: Element, O: Element>(
    problem: &'k Problem<'_, T>,
    rows: &Rows<'_, O>,
) -> prefill::Block<'k, T::Accumulator> {
    prefill::Block {
        terms: &problem.terms,
        arrays: problem,
        batch: rows.batch,
        head: rows.head,
        queries: rows.first..rows.first + rows.len(),
    }
}

fn by_scalar<T, O>(
    problem: &Problem<'_, T>,
    heads: Vec<Rows<'_, O>>,
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<(), Error>
where
    T: Element,
    O: Element<Accumulator = T::Accumulator>,
{
    let total = count_blocks(&heads, 1);
    let tasks = heads.into_iter().flat_map(|rows| rows.blocks(1));
    schedule::each(
        (total, tasks),
        progress,
        || (),
        |(), mut rows| {
            let state = scalar::row(problem, (rows.batch, rows.head, rows.first))
                .with_sink(problem.terms.sink(rows.head));
            let output: Vec<_> = match rows.finish {
                Finish::Mean => state.finish().collect(),
                Finish::Raw => state.output.clone(),
            };
            rows.put(0, state.max, state.sum, |column| output[column]);
        },
    )
}

fn by_decode<T, O>(
    problem: &Problem<'_, T>,
    heads: Vec<Rows<'_, O>>,
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<(), Error>
where
    T: Element,
    O: Element<Accumulator = T::Accumulator>,
{
    let spans = plan::decode_spans(&problem.terms);
    if let [(_, only)] = &spans[..] {
        return decode_tasks(problem, vec![(only.clone(), heads)], progress);
    }
    let (len_query, dim_value) = (problem.terms.len_query, problem.terms.dim_value);
    let axes = [problem.terms.batches, problem.terms.heads, len_query, 2 + dim_value];
    let mut states = Vec::with_capacity(spans.len());
    for _ in &spans {
        states.push(super::zeros::<T::Accumulator>("states of spans", &axes)?);
    }
    let parts = spans.iter().zip(&mut states).map(|((_, keys), states)| {
        (keys.clone(), of_heads(states.view_mut(), problem.terms.heads, None, Finish::Raw))
    });
    decode_tasks(problem, parts.collect(), progress)?;
    let states = spans.iter().zip(&states).map(|((chunk, _), states)| (*chunk, states.view()));
    let sinks = |head| problem.terms.sink(head);
    O::join(heads, &states.collect::<Vec<_>>(), &sinks, problem.terms.simd)
}

/// Every block of queries of every group over each span.
fn decode_tasks<T, O>(
    problem: &Problem<'_, T>,
    parts: Vec<(Range<usize>, Vec<Rows<'_, O>>)>,
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<(), Error>
where
    T: Element,
    O: Element<Accumulator = T::Accumulator>,
{
    let groups: usize = parts.iter().map(|(_, heads)| heads.len() / problem.terms.group).sum();
    let total = groups * problem.terms.len_query.div_ceil(decode::QUERIES);
    let tasks = parts.into_iter().flat_map(|(keys, heads)| {
        let blocks =
            groups_of(heads, problem.terms.group).flat_map(|group| blocks_of(group, decode::QUERIES));
        blocks.map(move |rows| (keys.clone(), rows))
    });
    let new_scratch = || decode::Scratch::new(&problem.terms);
    schedule::each((total, tasks), progress, new_scratch, |scratch, (keys, mut rows)| {
        let first = &rows[0];
        let block = decode::Block {
            terms: &problem.terms,
            arrays: problem,
            batch: first.batch,
            key_head: problem.terms.key_head(first.head),
            queries: first.first..first.first + first.len(),
        };
        let targets = rows.iter_mut().map(|rows| rows as &mut dyn Target<_>).collect();
        problem.terms.simd.run(decode::Attend { block, keys, targets, scratch });
    })
}

/// Into how many blocks of up to `rows` the rows are cut.
fn count_blocks<O: Element>(heads: &[Rows<'_, O>], rows: usize) -> usize {
    heads.iter().map(|head| head.len().div_ceil(rows)).sum()
}

fn groups_of<O: Element>(heads: Vec<Rows<'_, O>>, group: usize) -> impl Iterator<Item = Vec<Rows<'_, O>>> {
    let mut heads = heads.into_iter();
    std::iter::from_fn(move || {
        Some(heads.by_ref().take(group).collect::<Vec<_>>()).filter(|rows| !rows.is_empty())
    })
}

/// Blocks of the same queries of each head, last first.
fn blocks_of<O: Element>(
    mut group: Vec<Rows<'_, O>>,
    count: usize,
) -> impl Iterator<Item = Vec<Rows<'_, O>>> {
    std::iter::from_fn(move || {
        let blocks: Option<Vec<_>> = group.drain(..).map(|rows| rows.last_block(count)).collect();
        let (before, last) = blocks?.into_iter().unzip();
        group = before;
        Some(last)
    })
}

/// Joins `(batches, heads, len_query, 2 + dim_value)` states of each span; each comes with its first chunk.
fn join<O: Element>(
    heads: Vec<Rows<'_, O>>,
    states: &[(u64, ArrayViewD<'_, O::Accumulator>)],
    sink: &(dyn Fn(usize) -> Option<O::Accumulator> + Sync),
    simd: Simd,
) -> Result<(), Error> {
    let Some((_, first)) = states.first() else { return Ok(()) };
    let dim_value = first.shape()[3] - 2;
    let total = count_blocks(&heads, QUERY_BLOCK);
    let tasks = heads.into_iter().flat_map(|rows| rows.blocks(QUERY_BLOCK));
    let new_scratch = || join::Scratch::new(QUERY_BLOCK, dim_value);
    schedule::each((total, tasks), &mut None, new_scratch, |scratch, mut rows: Rows<'_, O>| {
        let spans = states.iter().map(|(chunk, states)| {
            let heads = states.shape()[1];
            let start = (rows.batch * heads + rows.head) * states.shape()[2] + rows.first;
            let states = states.to_slice().expect("contiguous");
            (*chunk, &states[start * (2 + dim_value)..(start + rows.len()) * (2 + dim_value)])
        });
        let spans = spans.collect();
        let sink = sink(rows.head);
        simd.run(join::Join { rows: rows.len(), spans, dim_value, sink, target: &mut rows, scratch });
    })
}

/// A matrix of scores or weights, `(…, heads, len_query, len_key)`.
fn matrix<T, O>(
    problem: &Problem<'_, T>,
    heads: Vec<Rows<'_, O>>,
    (stage, stats): (Stage, [&[T::Accumulator]; 2]),
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<(), Error>
where
    T: Element,
    O: Element<Accumulator = T::Accumulator>,
{
    let total = count_blocks(&heads, QUERY_BLOCK);
    let tasks = heads.into_iter().flat_map(|rows| rows.blocks(QUERY_BLOCK));
    let new_scratch = || prefill::Scratch::new(problem.terms.dim, 0);
    let scalar = plan::choose(&problem.terms).0 == Path::Scalar;
    schedule::each((total, tasks), progress, new_scratch, |scratch, mut rows: Rows<'_, O>| {
        let start = (rows.batch * problem.terms.heads + rows.head) * problem.terms.len_query + rows.first;
        let own = start..start + rows.len();
        let stats = stats.map(|all| all.get(own.clone()).unwrap_or(&[]));
        if scalar {
            scalar_matrix(problem, &mut rows, (stage, stats));
        } else {
            let block = prefill_block(problem, &rows);
            problem.terms.simd.run(prefill::Matrix { block, stage, stats, target: &mut rows, scratch });
        }
    })
}

fn scalar_matrix<T, O>(
    problem: &Problem<'_, T>,
    rows: &mut Rows<'_, O>,
    (stage, [max, sum]): (Stage, [&[T::Accumulator]; 2]),
) where
    T: Element,
    O: Element<Accumulator = T::Accumulator>,
{
    for row in 0..rows.len() {
        for key in 0..problem.terms.len_key {
            let pair = Pair { batch: rows.batch, head: rows.head, query: rows.first + row, key };
            let score = scalar::score(problem, pair, stage.min(Stage::Masked));
            let x = match stage {
                Stage::Weights => scalar::weight(score, max[row], sum[row]),
                _ => score.unwrap_or(T::Accumulator::NEG_INFINITY),
            };
            rows.set(row, key, x);
        }
    }
}
