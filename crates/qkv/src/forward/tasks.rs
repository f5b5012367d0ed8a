//! The work of a call cut into tasks, each of which fills rows of its own, by the path that serves the call.

use std::iter::once;
use std::ops::Range;

use half::{bf16, f16};
use ndarray::ArrayViewD;
use smallvec::SmallVec;

use super::rows::{Finish, Heads, Rows, Target};
use super::spare::Buffers;
use super::{decode, join, matrix, prefill, schedule};
use crate::call::Progress;
use crate::element::{Element, Real};
use crate::error::Error;
use crate::plan;
use crate::problem::{Path, Problem, Stage, Terms};
use crate::scalar;
use crate::simd::Simd;
use crate::tile::{Pair, QUERY_BLOCK, TILE};

type Wide<T> = <T as Element>::Accumulator;

/// The tasks of each element type, compiled once in this crate; callers of the generic API would otherwise each
/// compile every kernel anew.
///
/// Public, like all that it names, only because [`Element`] is; no other crate can reach it.
pub trait Compiled: Sized {
    /// Every row, finished.
    fn attend(
        problem: &Problem<'_, Self>,
        heads: Heads<'_, Self>,
        progress: &mut Option<&mut Progress<'_>>,
    ) -> Result<(), Error>
    where
        Self: Element;

    /// Every row in the accumulator type: finished, or as it is before, `2 + dim_value` numbers.
    fn attend_wide(
        problem: &Problem<'_, Self>,
        heads: Heads<'_, Wide<Self>>,
        progress: &mut Option<&mut Progress<'_>>,
    ) -> Result<(), Error>
    where
        Self: Element;

    /// A matrix of weights, from the rows' maxima and sums.
    fn matrix(
        problem: &Problem<'_, Self>,
        heads: Heads<'_, Self>,
        stage: (Stage, [&[Wide<Self>]; 2]),
        progress: &mut Option<&mut Progress<'_>>,
    ) -> Result<(), Error>
    where
        Self: Element;

    /// A matrix of scores after a stage, or of weights, in the accumulator type.
    fn matrix_wide(
        problem: &Problem<'_, Self>,
        heads: Heads<'_, Wide<Self>>,
        stage: (Stage, [&[Wide<Self>]; 2]),
        progress: &mut Option<&mut Progress<'_>>,
    ) -> Result<(), Error>
    where
        Self: Element;

    /// Part of a matrix of scores or weights, into a target of any kind.
    fn columns(simd: Simd, part: matrix::Matrix<'_, Wide<Self>>)
    where
        Self: Element;

    /// Rows from `(batches, heads, len_query, 2 + dim_value)` states over spans of keys, each with its first tile.
    fn join(
        heads: Heads<'_, Self>,
        states: &[(u64, ArrayViewD<'_, Wide<Self>>)],
        sink: &(dyn Fn(usize) -> Option<Wide<Self>> + Sync),
        dropout_factor: Option<Wide<Self>>,
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
                heads: Heads<'_, Self>,
                progress: &mut Option<&mut Progress<'_>>,
            ) -> Result<(), Error> {
                attend(problem, heads, progress)
            }

            #[inline(never)]
            fn attend_wide(
                problem: &Problem<'_, Self>,
                heads: Heads<'_, Wide<Self>>,
                progress: &mut Option<&mut Progress<'_>>,
            ) -> Result<(), Error> {
                attend(problem, heads, progress)
            }

            #[inline(never)]
            fn matrix(
                problem: &Problem<'_, Self>,
                heads: Heads<'_, Self>,
                stage: (Stage, [&[Wide<Self>]; 2]),
                progress: &mut Option<&mut Progress<'_>>,
            ) -> Result<(), Error> {
                matrix(problem, heads, stage, progress)
            }

            #[inline(never)]
            fn matrix_wide(
                problem: &Problem<'_, Self>,
                heads: Heads<'_, Wide<Self>>,
                stage: (Stage, [&[Wide<Self>]; 2]),
                progress: &mut Option<&mut Progress<'_>>,
            ) -> Result<(), Error> {
                matrix(problem, heads, stage, progress)
            }

            #[inline(never)]
            fn columns(simd: Simd, part: matrix::Matrix<'_, Wide<Self>>) {
                simd.run(part);
            }

            #[inline(never)]
            fn join(
                heads: Heads<'_, Self>,
                states: &[(u64, ArrayViewD<'_, Wide<Self>>)],
                sink: &(dyn Fn(usize) -> Option<Wide<Self>> + Sync),
                dropout_factor: Option<Wide<Self>>,
                simd: Simd,
            ) -> Result<(), Error> {
                join(heads, states, sink, dropout_factor, simd)
            }
        })*
    };
}

compiled!(f32, f64, f16, bf16);

/// Computes every row.
fn attend<T, O>(
    problem: &Problem<'_, T>,
    heads: Heads<'_, O>,
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<(), Error>
where
    T: Element,
    O: Element<Accumulator = T::Accumulator>,
{
    // Else buffers would be made for nothing, and of whatever size.
    if heads.rows() == 0 {
        return Ok(());
    }
    match plan::choose(&problem.terms).0 {
        Path::Prefill => by_prefill(problem, heads, progress),
        Path::Decode => by_decode(problem, heads, progress),
        Path::Scalar => by_scalar(problem, heads, progress),
    }
}

fn by_prefill<T, O>(
    problem: &Problem<'_, T>,
    heads: Heads<'_, O>,
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<(), Error>
where
    T: Element,
    O: Element<Accumulator = T::Accumulator>,
{
    let threads = plan::threads(&problem.terms, heads.rows());
    let tasks = (heads.blocks(QUERY_BLOCK), heads.flat_map(|rows| rows.blocks(QUERY_BLOCK)));
    let buffers = prefill_buffers(&problem.terms);
    schedule::each(tasks, threads, progress, buffers, |scratch, mut rows| {
        let block = prefill_block(problem, &rows);
        problem.terms.simd.run(prefill::Attend { block, target: &mut rows, scratch });
    })
}

fn prefill_buffers<A: Real>(terms: &Terms<'_>) -> Buffers<impl Fn() -> prefill::Scratch<A>> {
    let (dim, dim_value) = (terms.dim, terms.dim_value);
    let bytes = prefill::Scratch::<A>::bytes(dim, dim_value, terms.len_key.div_ceil(TILE));
    Buffers {
        kept: Some(([dim, dim_value, 0, 0], bytes)),
        new: move || prefill::Scratch::new(dim, dim_value),
    }
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
    heads: Heads<'_, O>,
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<(), Error>
where
    T: Element,
    O: Element<Accumulator = T::Accumulator>,
{
    let threads = plan::threads(&problem.terms, heads.rows());
    let tasks = (heads.blocks(1), heads.flat_map(|rows| rows.blocks(1)));
    let buffers = Buffers { kept: None, new: || () };
    schedule::each(tasks, threads, progress, buffers, |(), mut rows| {
        let state = scalar::row(problem, (rows.batch, rows.head, rows.first))
            .with_sink(problem.terms.sink(rows.head));
        let output: Vec<_> = match rows.finish {
            Finish::Mean => state.finish(problem.terms.dropout_factor()).collect(),
            Finish::Raw => state.output.clone(),
        };
        rows.put(0, state.max, state.sum, output.into_iter());
    })
}

fn by_decode<T, O>(
    problem: &Problem<'_, T>,
    heads: Heads<'_, O>,
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<(), Error>
where
    T: Element,
    O: Element<Accumulator = T::Accumulator>,
{
    let threads = plan::threads(&problem.terms, heads.rows());
    let spans = plan::decode_spans(&problem.terms, threads);
    let tasks = spans.len() * heads.blocks(decode::QUERIES) / problem.terms.group;
    if let [(_, only)] = &spans[..] {
        return decode_tasks(problem, (tasks, once((only.clone(), heads))), threads, progress);
    }
    let (len_query, dim_value) = (problem.terms.len_query, problem.terms.dim_value);
    let axes = [problem.terms.batches, problem.terms.heads, len_query, 2 + dim_value];
    let mut states = Vec::with_capacity(spans.len());
    for _ in &spans {
        states.push(super::zeros::<T::Accumulator>("states of spans", &axes)?);
    }
    let parts = spans.iter().zip(&mut states).map(|((_, keys), states)| {
        (keys.clone(), Heads::all(states.view_mut(), problem.terms.heads, None, Finish::Raw))
    });
    decode_tasks(problem, (tasks, parts), threads, progress)?;
    let states = spans.iter().zip(&states).map(|((tile, _), states)| (*tile, states.view()));
    let sinks = |head| problem.terms.sink(head);
    O::join(heads, &states.collect::<Vec<_>>(), &sinks, problem.terms.dropout_factor(), problem.terms.simd)
}

/// Every block of queries of every group over each span.
fn decode_tasks<'o, T, O>(
    problem: &Problem<'_, T>,
    (total, parts): (usize, impl Iterator<Item = (Range<usize>, Heads<'o, O>)> + Send),
    threads: usize,
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<(), Error>
where
    T: Element,
    O: Element<Accumulator = T::Accumulator>,
{
    let group = problem.terms.group;
    let tasks = parts.flat_map(|(keys, heads)| {
        let blocks = groups_of(heads, group).flat_map(|group| blocks_of(group, decode::QUERIES));
        blocks.map(move |rows| (keys.clone(), rows))
    });
    let queries = problem.terms.len_query.min(decode::QUERIES);
    let sizes = [group, queries, problem.terms.dim, problem.terms.dim_value];
    let buffers = Buffers {
        kept: Some((sizes, decode::Scratch::<T::Accumulator>::bytes(&problem.terms))),
        new: || decode::Scratch::new(&problem.terms),
    };
    schedule::each((total, tasks), threads, progress, buffers, |scratch, (keys, mut rows)| {
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

/// The same rows of each head of a group.
type Group<'o, O> = SmallVec<[Rows<'o, O>; decode::GROUP]>;

fn groups_of<'o, O: Element>(mut heads: Heads<'o, O>, group: usize) -> impl Iterator<Item = Group<'o, O>> {
    std::iter::from_fn(move || {
        Some(heads.by_ref().take(group).collect::<Group<'o, O>>()).filter(|rows| !rows.is_empty())
    })
}

/// Blocks of the same queries of each head, last first.
fn blocks_of<O: Element>(mut group: Group<'_, O>, count: usize) -> impl Iterator<Item = Group<'_, O>> {
    std::iter::from_fn(move || {
        let mut last = Group::new();
        for rows in std::mem::take(&mut group) {
            let (before, block) = rows.last_block(count)?;
            group.push(before);
            last.push(block);
        }
        (!last.is_empty()).then_some(last)
    })
}

/// Joins `(batches, heads, len_query, 2 + dim_value)` states of each span; each comes with its first tile.
fn join<O: Element>(
    heads: Heads<'_, O>,
    states: &[(u64, ArrayViewD<'_, O::Accumulator>)],
    sink: &(dyn Fn(usize) -> Option<O::Accumulator> + Sync),
    dropout_factor: Option<O::Accumulator>,
    simd: Simd,
) -> Result<(), Error> {
    let Some((_, first)) = states.first() else { return Ok(()) };
    let dim_value = first.shape()[3] - 2;
    let threads = rayon::current_num_threads();
    let tasks = (heads.blocks(QUERY_BLOCK), heads.flat_map(|rows| rows.blocks(QUERY_BLOCK)));
    let buffers = Buffers { kept: None, new: || join::Scratch::new(QUERY_BLOCK, dim_value) };
    schedule::each(tasks, threads, &mut None, buffers, |scratch, mut rows: Rows<'_, O>| {
        let spans = states.iter().map(|(tile, states)| {
            let heads = states.shape()[1];
            let start = (rows.batch * heads + rows.head) * states.shape()[2] + rows.first;
            let states = states.to_slice().expect("contiguous");
            (*tile, &states[start * (2 + dim_value)..(start + rows.len()) * (2 + dim_value)])
        });
        let spans = spans.collect();
        let sink = sink(rows.head);
        simd.run(join::Join {
            rows: rows.len(),
            spans,
            dim_value,
            sink,
            dropout_factor,
            target: &mut rows,
            scratch,
        });
    })
}

/// A matrix of scores or weights, `(…, heads, len_query, len_key)`.
fn matrix<T, O>(
    problem: &Problem<'_, T>,
    heads: Heads<'_, O>,
    (stage, stats): (Stage, [&[T::Accumulator]; 2]),
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<(), Error>
where
    T: Element,
    O: Element<Accumulator = T::Accumulator>,
{
    // Else buffers would be made for nothing, and of whatever size.
    if heads.rows() == 0 {
        return Ok(());
    }
    let threads = plan::threads(&problem.terms, heads.rows());
    let tasks = (heads.blocks(QUERY_BLOCK), heads.flat_map(|rows| rows.blocks(QUERY_BLOCK)));
    // Those of attention too, so that a small call has one set of them.
    let buffers = prefill_buffers(&problem.terms);
    let scalar = plan::choose(&problem.terms).0 == Path::Scalar;
    schedule::each(tasks, threads, progress, buffers, |scratch, mut rows: Rows<'_, O>| {
        let start = (rows.batch * problem.terms.heads + rows.head) * problem.terms.len_query + rows.first;
        let own = start..start + rows.len();
        let stats = stats.map(|all| all.get(own.clone()).unwrap_or(&[]));
        if scalar {
            scalar_matrix(problem, &mut rows, (stage, stats));
        } else {
            let (block, keys) = (prefill_block(problem, &rows), 0..problem.terms.len_key);
            problem.terms.simd.run(matrix::Matrix { block, stage, stats, keys, target: &mut rows, scratch });
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
