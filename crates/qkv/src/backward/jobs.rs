//! Which pairs are gone through by which thread, and when.
//!
//! A task is a part of the queries of one head against a part of its keys, and adds to all gradients: five products. Tasks
//! that add to the same numbers do so in the order of batches, heads, queries and keys, and others side by side
//! (`order.rs`), so that each number is added up in the same order however many threads there are.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use half::{bf16, f16};
use ndarray::{ArrayD, ArrayViewMut, ArrayViewMut2, Axis, RemoveAxis};
use smallvec::SmallVec;

use super::block::{Inputs, Job, Scratch, Targets, Work};
use super::deltas::fill_deltas;
use super::order::Order;
use super::sums::BiasTarget;
use super::{Results, Returned};
use crate::call::Progress;
use crate::element::{Element, Real};
use crate::error::Error;
use crate::forward::{Buffers, each_task};
use crate::plan;
use crate::problem::{Problem, Terms};
use crate::tile::{QUERY_BLOCK, TILE, cut};

/// Keys that a block of queries meets before the next is brought in: their gradients stay in the second cache.
const STRIP: usize = 4 * TILE;

/// Parts that the queries of a head are cut into at most, for what is known of each task is to stay less than the rows.
const PARTS: usize = 16;

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
    fill_deltas(inputs, returned.d_lse.as_deref(), deltas, progress)?;
    let pass = Pass { inputs, deltas };
    let cuts = pass.cuts();
    let of_query = |batch, head| problem.query.index(batch, head);
    let of_key = |batch, head| problem.key.index(batch, terms.key_head(head));
    let of_value = |batch, head| problem.value.index(batch, terms.key_head(head));
    let mut sums = Vec::new();
    sums.extend(results.query.as_mut().and_then(|query| Sum::new(Of::Query, query, &cuts, of_query)));
    sums.extend(results.key.as_mut().and_then(|key| Sum::new(Of::Key, key, &cuts, of_key)));
    sums.extend(results.value.as_mut().and_then(|value| Sum::new(Of::Value, value, &cuts, of_value)));
    // To one number for all pairs of a head all keys of a block are added before the next block: a pass of its own.
    let (uncut, mut apart) = ([terms.len_query, terms.len_key].map(whole), Vec::new());
    for (bias, cells) in terms.biases.arrays.iter().zip(&mut results.biases) {
        let of_bias = |batch, head| bias.index(batch, head);
        match bias.dim() {
            (1, 1) => apart.extend(Sum::new(Of::Bias, cells, &uncut, of_bias)),
            _ => sums.extend(Sum::new(Of::Bias, cells, &cuts, of_bias)),
        }
    }
    pass.run(&sums, &cuts, progress)?;
    pass.run(&apart, &uncut, progress)
}

/// What a gradient is of.
#[derive(Clone, Copy)]
enum Of {
    Query,
    Key,
    Value,
    Bias,
}

/// Where the queries of a head are cut, and its keys.
type Cuts = [Vec<Range<usize>>; 2];

fn whole(extent: usize) -> Vec<Range<usize>> {
    std::iter::once(0..extent).collect()
}

/// A gradient that is summed up: the parts of its matrices, one after the other.
struct Sum<'r, A> {
    of: Of,
    /// To which matrix a batch and head add.
    matrix: Box<dyn Fn(usize, usize) -> usize + Sync + 'r>,
    /// How many parts of a matrix there are along the queries, and the keys; 1 where a part serves all.
    counts: [usize; 2],
    parts: Vec<Mutex<Part<'r, A>>>,
}

/// What one task at a time adds to.
struct Part<'r, A> {
    numbers: ArrayViewMut2<'r, A>,
    /// Whether no task has.
    is_new: bool,
}

impl<'r, A: Real> Sum<'r, A> {
    /// None if there are no numbers.
    fn new(
        of: Of,
        numbers: &'r mut ArrayD<A>,
        [queries, keys]: &Cuts,
        matrix: impl Fn(usize, usize) -> usize + Sync + 'r,
    ) -> Option<Self> {
        let axis = |from_end| numbers.ndim().checked_sub(from_end).map_or(1, |axis| numbers.shape()[axis]);
        let (count, rows, columns) = (numbers.len(), axis(2), axis(1));
        if count == 0 {
            return None;
        }
        let shape = (count / (rows * columns), rows, columns);
        let numbers = numbers.view_mut().into_shape_with_order(shape).expect("contiguous");
        let cut = |extent, at: &[Range<usize>]| if extent == 1 { whole(1) } else { at.to_vec() };
        let (rows, columns) = match of {
            Of::Query => (cut(rows, queries), whole(columns)),
            Of::Key | Of::Value => (cut(rows, keys), whole(columns)),
            Of::Bias => (cut(rows, queries), cut(columns, keys)),
        };
        let counts = match of {
            Of::Key | Of::Value => [1, rows.len()],
            Of::Query | Of::Bias => [rows.len(), columns.len()],
        };
        let matrices = (0..shape.0).map(|matrix| matrix..matrix + 1);
        let parts = split(numbers, 0, matrices)
            .flat_map(|matrix| split(matrix, 1, rows.iter().cloned()))
            .flat_map(|rows| split(rows, 2, columns.iter().cloned()))
            .map(|numbers| Mutex::new(Part { numbers: numbers.index_axis_move(Axis(0), 0), is_new: true }));
        Some(Self { of, matrix: Box::new(matrix), counts, parts: parts.collect() })
    }

    /// The number of the part that a task adds to.
    fn number(&self, task: Task) -> usize {
        let [queries, keys] = self.counts;
        let matrix = (self.matrix)(task.batch, task.head);
        (matrix * queries + task.queries % queries) * keys + task.keys % keys
    }

    /// That part. It is free: no other task that adds to it is under way.
    fn part(&self, task: Task) -> MutexGuard<'_, Part<'r, A>> {
        self.parts[self.number(task)].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A view, cut along an axis.
fn split<'r, A, D: RemoveAxis>(
    view: ArrayViewMut<'r, A, D>,
    axis: usize,
    at: impl Iterator<Item = Range<usize>>,
) -> impl Iterator<Item = ArrayViewMut<'r, A, D>> {
    let mut rest = Some(view);
    at.map_while(move |range| {
        let (first, after) = rest.take()?.split_at(Axis(axis), range.len());
        rest = Some(after);
        Some(first)
    })
}

/// Which queries meet which keys, as numbers of their parts.
#[derive(Clone, Copy)]
struct Task {
    batch: usize,
    head: usize,
    queries: usize,
    keys: usize,
}

/// All pairs of a call.
struct Pass<'p, A> {
    inputs: Inputs<'p, A>,
    deltas: &'p [A],
}

impl<A: Real> Pass<'_, A> {
    fn threads(&self) -> usize {
        plan::threads(self.inputs.terms, self.deltas.len())
    }

    /// As few parts as keep all threads busy, though those of a head wait for each other.
    fn cuts(&self) -> Cuts {
        let (terms, wanted) = (self.inputs.terms, 2 * self.threads());
        let groups = terms.batches * terms.heads / terms.group;
        let shorter = terms.len_query.min(terms.len_key);
        let are_enough = |edge: &usize| groups * shorter.div_ceil(*edge) >= wanted;
        let edge = [STRIP, STRIP / 2].into_iter().find(are_enough).unwrap_or(TILE);
        let of_queries = terms.len_query.div_ceil(PARTS.max(wanted)).next_multiple_of(QUERY_BLOCK).max(edge);
        [
            cut(0..terms.len_query, 0, of_queries).map(|(_, queries)| queries).collect(),
            cut(0..terms.len_key, terms.visibility.key_offset, edge).map(|(_, keys)| keys).collect(),
        ]
    }

    /// Adds up some gradients.
    fn run(
        &self,
        sums: &[Sum<'_, A>],
        cuts: &Cuts,
        progress: &mut Option<&mut Progress<'_>>,
    ) -> Result<(), Error> {
        if sums.is_empty() {
            return Ok(());
        }
        let &Terms { batches, heads, .. } = self.inputs.terms;
        let [queries, keys] = cuts.each_ref().map(Vec::len);
        let total = batches * heads * queries * keys;
        let task = |at: usize| {
            let (plane, queries, keys) = (at / keys / queries, at / keys % queries, at % keys);
            Task { batch: plane / heads, head: plane % heads, queries, keys }
        };
        let tasks = (0..total).map(|at| {
            let task = task(at);
            sums.iter().map(move |sum| sum.number(task))
        });
        let parts: Vec<_> = sums.iter().map(|sum| sum.parts.len()).collect();
        let order = Order::new(&parts, tasks);
        let buffers = Buffers { kept: None, new: || Scratch::new(self.inputs.terms) };
        each_task((total, order), self.threads(), progress, buffers, |scratch, at| {
            self.add(task(at), sums, cuts, scratch);
        })
    }

    /// Adds what a task gives.
    fn add(&self, task: Task, sums: &[Sum<'_, A>], cuts: &Cuts, scratch: &mut Scratch<A>) {
        let mut parts: SmallVec<[_; 4]> = sums.iter().map(|sum| (sum.of, sum.part(task))).collect();
        let mut to = Targets::default();
        for (of, part) in &mut parts {
            let is_new = std::mem::take(&mut part.is_new);
            let numbers = part.numbers.view_mut();
            match of {
                Of::Query => to.query = numbers.into_slice(),
                Of::Key => to.key = numbers.into_slice(),
                Of::Value => to.value = numbers.into_slice(),
                Of::Bias => to.biases.push(BiasTarget { cells: numbers, is_new }),
            }
        }
        let [queries, keys] = [&cuts[0][task.queries], &cuts[1][task.keys]].map(Range::clone);
        let job = Job { at: (task.batch, task.head), queries, keys, to };
        Work { inputs: self.inputs, deltas: self.deltas, job, scratch }.run();
    }
}
