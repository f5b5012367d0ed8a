//! Which pairs are gone through for which gradient, by how many threads.
//!
//! Where heads keep all threads busy, a task is a group of heads with all their pairs: five products for each. Else
//! queries have tasks of their own, and keys: seven. A number of a result hears of its pairs in the same order either
//! way, so it is the same number.

use std::ops::Range;

use half::{bf16, f16};
use ndarray::ArrayD;
use smallvec::SmallVec;

use super::block::{Deltas, Inputs, Job, Scratch, Targets, Work};
use super::sums::BiasTarget;
use super::{Results, Returned};
use crate::bias::BiasPlanes;
use crate::call::Progress;
use crate::element::{Element, Real};
use crate::error::Error;
use crate::forward::{Buffers, each_task};
use crate::plan;
use crate::problem::{Problem, Terms};
use crate::simd::PADDING;
use crate::tile::{QUERY_BLOCK, TILE, cut};

/// Keys that a block of queries meets before the next is brought in: their gradients stay in the second cache.
const STRIP: usize = 4 * TILE;

/// Batches that share a matrix, ascending.
type Sharers = SmallVec<[usize; 1]>;

type Wide<T> = <T as Element>::Accumulator;

/// The gradients of each element type, compiled once in this crate; callers of the generic API would otherwise each
/// compile every kernel anew.
///
/// Public, like all that it names, only because [`Element`] is; no other crate can reach it.
pub trait Compiled: Sized {
    /// Fills the row deltas and adds to all results.
    fn gradients(
        problem: &Problem<'_, Self>,
        returned: &Returned<'_, Self>,
        deltas: &mut [Self::Accumulator],
        results: &mut Results<Self::Accumulator>,
        progress: &mut Option<&mut Progress<'_>>,
    ) -> Result<(), Error>
    where
        Self: Element;
}

macro_rules! compiled {
    ($($element:ident),*) => {
        // Not inlined, so that the code is here and not in each caller.
        $(impl Compiled for $element {
            #[inline(never)]
            fn gradients(
                problem: &Problem<'_, Self>,
                returned: &Returned<'_, Self>,
                deltas: &mut [Wide<Self>],
                results: &mut Results<Wide<Self>>,
                progress: &mut Option<&mut Progress<'_>>,
            ) -> Result<(), Error> {
                gradients(problem, returned, deltas, results, progress)
            }
        })*
    };
}

compiled!(f32, f64, f16, bf16);

fn gradients<T: Element>(
    problem: &Problem<'_, T>,
    returned: &Returned<'_, T>,
    deltas: &mut [T::Accumulator],
    results: &mut Results<T::Accumulator>,
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<(), Error> {
    let terms = &problem.terms;
    if deltas.is_empty() {
        return Ok(());
    }
    let (output, d_output) = (&returned.output, &returned.d_output);
    let inputs = Inputs { terms, arrays: problem, output, d_output, stats: returned.stats };
    fill_deltas(inputs, deltas, progress)?;
    if let Some(d_lse) = &returned.d_lse {
        for (delta, &d_lse) in deltas.iter_mut().zip(d_lse) {
            *delta = *delta - d_lse;
        }
    }
    let batches = terms.batches;
    let [query, key, value] = [&problem.query, &problem.key, &problem.value]
        .map(|planes| sharers(batches, |batch| planes.index(batch, 0)));
    let pass = Pass { inputs, deltas };
    let mut biases: Vec<_> = terms.biases.arrays.iter().zip(&mut results.biases).collect();
    let wants_both = results.query.is_some() && (results.key.is_some() || results.value.is_some());
    let none_shared = [&query, &key, &value].iter().all(|sharers| sharers.len() == batches);
    if wants_both && none_shared && pass.suits_heads() {
        let (own, shared) = biases.into_iter().partition(|(bias, _)| pass.is_of_one_head(bias));
        biases = shared;
        pass.by_heads([&mut results.query, &mut results.key, &mut results.value], own, progress)?;
    } else {
        pass.by_queries(&query, &mut results.query, progress)?;
        if key == value {
            pass.by_keys(&key, [&mut results.key, &mut results.value], progress)?;
        } else {
            pass.by_keys(&key, [&mut results.key, &mut None], progress)?;
            pass.by_keys(&value, [&mut None, &mut results.value], progress)?;
        }
    }
    for (bias, cells) in biases {
        pass.by_bias(bias, cells, progress)?;
    }
    Ok(())
}

/// For each distinct matrix of the first head its batches, in the order of the matrices.
fn sharers(batches: usize, index: impl Fn(usize) -> usize) -> Vec<Sharers> {
    let mut indexed: Vec<_> = (0..batches).map(|batch| (index(batch), batch)).collect();
    indexed.sort_unstable();
    indexed
        .chunk_by(|a, b| a.0 == b.0)
        .map(|of_one| of_one.iter().map(|&(_, batch)| batch).collect())
        .collect()
}

fn fill_deltas<A: Real>(
    inputs: Inputs<'_, A>,
    deltas: &mut [A],
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<(), Error> {
    let terms = inputs.terms;
    let threads = plan::threads(terms, deltas.len());
    let blocks = deltas.len() / terms.len_query * terms.len_query.div_ceil(QUERY_BLOCK);
    let tasks = deltas.chunks_mut(terms.len_query).enumerate().flat_map(|(plane, of_head)| {
        let at = (plane / terms.heads, plane % terms.heads);
        (0..)
            .step_by(QUERY_BLOCK)
            .zip(of_head.chunks_mut(QUERY_BLOCK))
            .map(move |(first, to)| (at, first, to))
    });
    let new = || [(); 2].map(|()| vec![A::ZERO; terms.dim_value * PADDING]);
    each_task((blocks, tasks), threads, progress, Buffers { kept: None, new }, |lanes, (at, first, to)| {
        let queries = first..first + to.len();
        terms.simd.run(Deltas { inputs, at, queries, to, lanes });
    })
}

/// A way through the pairs of a call.
struct Pass<'p, A> {
    inputs: Inputs<'p, A>,
    deltas: &'p [A],
}

impl<'p, A: Real> Pass<'p, A> {
    fn terms(&self) -> &'p Terms<'p> {
        self.inputs.terms
    }

    fn threads(&self) -> usize {
        plan::threads(self.terms(), self.deltas.len())
    }

    /// Whether groups of heads, which cannot be cut, are done sooner for all that than rows with two products more.
    fn suits_heads(&self) -> bool {
        let (groups, threads) =
            (self.terms().batches * self.terms().heads / self.terms().group, self.threads());
        5 * groups.div_ceil(threads) * threads <= 7 * groups
    }

    /// Whether each head of each batch has a matrix of its own, to which strips of keys can add one after the other.
    fn is_of_one_head(&self, bias: &BiasPlanes<'_>) -> bool {
        let batches = sharers(self.terms().batches, |batch| bias.index(batch, 0)).len();
        batches == self.terms().batches && !self.serves_all_heads(bias) && bias.dim() != (1, 1)
    }

    fn serves_all_heads(&self, bias: &BiasPlanes<'_>) -> bool {
        self.terms().heads > 1 && bias.index(0, 0) == bias.index(0, 1)
    }

    /// A task for each group of heads, which no batch shares, and the biases that are theirs alone.
    fn by_heads(
        &self,
        [query, key, value]: [&mut Option<ArrayD<A>>; 3],
        biases: Vec<(&BiasPlanes<'_>, &mut ArrayD<A>)>,
        progress: &mut Option<&mut Progress<'_>>,
    ) -> Result<(), Error> {
        let terms = self.terms();
        let &Terms { group, len_query, len_key, dim, dim_value, .. } = terms;
        let key_heads = terms.heads / group;
        let groups = terms.batches * key_heads;
        let [mut query, mut key, mut value] = [query, key, value].map(whole);
        let biases = biases.into_iter().map(|(bias, cells)| (bias.dim(), cells.as_slice_mut()));
        let mut biases = biases.collect::<Vec<_>>();
        let tasks = (0..groups).map(|at| {
            let biases = biases.iter_mut().map(|(dim, rest)| {
                let of_head = dim.0 * dim.1;
                let cells = take_first(rest, group * of_head).unwrap_or_default();
                BiasTarget { cells, of_head, first: (0, 0), dim: *dim }
            });
            let biases = biases.collect::<SmallVec<[_; 1]>>();
            let query = take_first(&mut query, group * len_query * dim);
            let key = take_first(&mut key, len_key * dim);
            (at, query, key, take_first(&mut value, len_key * dim_value), biases)
        });
        self.each((groups, tasks), progress, |scratch, (at, mut query, mut key, mut value, mut biases)| {
            let heads = at % key_heads * group..(at % key_heads + 1) * group;
            for keys in strips(terms) {
                let to = Targets {
                    query: query.as_deref_mut(),
                    key: take_first(&mut key, keys.len() * dim),
                    value: take_first(&mut value, keys.len() * dim_value),
                    biases: biases.iter_mut().map(BiasTarget::reborrow).collect(),
                };
                let batches = &[at / key_heads];
                self.work(scratch, Job { batches, heads: heads.clone(), queries: 0..len_query, keys, to });
            }
        })
    }

    /// A task for each block of queries, against all keys.
    fn by_queries(
        &self,
        sharers: &[Sharers],
        result: &mut Option<ArrayD<A>>,
        progress: &mut Option<&mut Progress<'_>>,
    ) -> Result<(), Error> {
        let &Terms { heads, len_query, len_key, dim, .. } = self.terms();
        let mut rest = whole(result);
        if rest.is_none() {
            return Ok(());
        }
        let matrices = sharers.iter().flat_map(|batches| (0..heads).map(move |head| (batches, head)));
        let tasks = matrices.flat_map(|(batches, head)| {
            let rows = take_first(&mut rest, len_query * dim).unwrap_or_default();
            // Last first: with a causal mask those are the heaviest.
            let blocks = (0..).step_by(QUERY_BLOCK).zip(rows.chunks_mut(QUERY_BLOCK * dim));
            blocks
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
                .map(move |(first, rows)| (batches, head, first, rows))
        });
        let total = sharers.len() * heads * len_query.div_ceil(QUERY_BLOCK);
        self.each((total, tasks), progress, |scratch, (batches, head, first, rows)| {
            let queries = first..first + rows.len() / dim;
            let to = Targets { query: Some(rows), ..Targets::default() };
            self.work(scratch, Job { batches, heads: head..head + 1, queries, keys: 0..len_key, to });
        })
    }

    /// A task for each strip of keys, against all queries of its group of heads; keys and values that the same batches share.
    fn by_keys(
        &self,
        sharers: &[Sharers],
        [key, value]: [&mut Option<ArrayD<A>>; 2],
        progress: &mut Option<&mut Progress<'_>>,
    ) -> Result<(), Error> {
        let terms = self.terms();
        let &Terms { group, len_query, dim, dim_value, .. } = terms;
        let key_heads = terms.heads / group;
        let [mut key, mut value] = [whole(key), whole(value)];
        if key.is_none() && value.is_none() {
            return Ok(());
        }
        let matrices = sharers.iter().flat_map(|batches| (0..key_heads).map(move |head| (batches, head)));
        let tasks = matrices.flat_map(|(batches, head)| strips(terms).map(move |keys| (batches, head, keys)));
        let tasks = tasks.map(|(batches, head, keys)| {
            let key = take_first(&mut key, keys.len() * dim);
            (batches, head, keys.clone(), key, take_first(&mut value, keys.len() * dim_value))
        });
        let total = sharers.len() * key_heads * strips(terms).count();
        self.each((total, tasks), progress, |scratch, (batches, head, keys, key, value)| {
            let heads = head * group..(head + 1) * group;
            let to = Targets { key, value, ..Targets::default() };
            self.work(scratch, Job { batches, heads, queries: 0..len_query, keys, to });
        })
    }

    /// A task for each part of a bias: all batches and heads that it serves, in order.
    fn by_bias(
        &self,
        bias: &BiasPlanes<'_>,
        cells: &mut ArrayD<A>,
        progress: &mut Option<&mut Progress<'_>>,
    ) -> Result<(), Error> {
        let terms = self.terms();
        let &Terms { len_query, len_key, .. } = terms;
        let dim = bias.dim();
        let parts: Vec<(Range<usize>, Range<usize>)> = if dim.0 > 1 {
            cut(0..len_query, 0, QUERY_BLOCK).map(|(_, queries)| (queries, 0..len_key)).collect()
        } else if dim.1 > 1 {
            strips(terms).map(|keys| (0..len_query, keys)).collect()
        } else {
            vec![(0..len_query, 0..len_key)]
        };
        let Some(cells) = cells.as_slice_mut().filter(|cells| !cells.is_empty()) else { return Ok(()) };
        let mut rest = Some(cells);
        let step = if self.serves_all_heads(bias) { terms.heads } else { 1 };
        let sharers = sharers(terms.batches, |batch| bias.index(batch, 0));
        let heads = || (0..terms.heads).step_by(step).map(|head| head..head + step);
        let matrices = sharers.iter().flat_map(|batches| heads().map(move |heads| (batches, heads)));
        let tasks = matrices.flat_map(|(batches, heads)| {
            parts.iter().map(move |(queries, keys)| (batches, heads.clone(), queries, keys))
        });
        let tasks = tasks.map(|(batches, heads, queries, keys)| {
            let count = queries.len().min(dim.0) * keys.len().min(dim.1);
            (batches, heads, queries, keys, take_first(&mut rest, count).unwrap_or_default())
        });
        let total = sharers.len() * heads().count() * parts.len();
        self.each((total, tasks), progress, |scratch, (batches, heads, queries, keys, cells)| {
            let bias = BiasTarget { cells, of_head: 0, first: (queries.start, keys.start), dim };
            let to = Targets { biases: [bias].into_iter().collect(), ..Targets::default() };
            self.work(scratch, Job { batches, heads, queries: queries.clone(), keys: keys.clone(), to });
        })
    }

    fn each<Task: Send>(
        &self,
        tasks: (usize, impl Iterator<Item = Task> + Send),
        progress: &mut Option<&mut Progress<'_>>,
        run: impl Fn(&mut Scratch<A>, Task) + Sync,
    ) -> Result<(), Error> {
        let buffers = Buffers { kept: None, new: || Scratch::new(self.terms()) };
        each_task(tasks, self.threads(), progress, buffers, run)
    }

    fn work(&self, scratch: &mut Scratch<A>, job: Job<'_, A>) {
        let &Self { inputs, deltas } = self;
        Work { inputs, deltas, job, scratch }.run();
    }
}

/// All keys, strip by strip.
fn strips(terms: &Terms<'_>) -> impl Iterator<Item = Range<usize>> + use<> {
    cut(0..terms.len_key, terms.visibility.key_offset, STRIP).map(|(_, keys)| keys)
}

/// All numbers of a result, if there are any.
fn whole<A>(result: &mut Option<ArrayD<A>>) -> Option<&mut [A]> {
    result.as_mut()?.as_slice_mut().filter(|numbers| !numbers.is_empty())
}

/// Takes the first numbers off a result, if it is wanted.
fn take_first<'r, A>(rest: &mut Option<&'r mut [A]>, count: usize) -> Option<&'r mut [A]> {
    let (first, after) = rest.take()?.split_at_mut(count);
    *rest = Some(after);
    Some(first)
}
