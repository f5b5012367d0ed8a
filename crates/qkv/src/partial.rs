//! Attention over some of the keys, and the merging of such partials into the whole.
//!
//! That is how work may be cut over machines, and how a cache may be kept in pieces.

use std::marker::PhantomData;

use ndarray::{Array, ArrayD, Axis, Dimension};

use crate::call::{AttentionOutput, RowStats};
use crate::element::{Element, Real};
use crate::error::{Error, show_shape};
use crate::forward::{self, Finish, Heads};
use crate::problem::{Problem, check_sinks};
use crate::simd::math::ln;
use crate::simd::{FloatEnvironment, Simd};
use crate::tile::TILE;

/// The unfinished state of every row over some keys: maximum, sum and weighted sum of values, before any rounding
/// and without the sink.
///
/// Where each partial holds a whole aligned subtree of tiles (64 · 2ⁿ keys from a multiple of that position on; the
/// last may be shorter), merging them gives the bits of one call over all keys. Otherwise the result is
/// within the error law.
#[derive(Clone, Debug)]
pub struct Partial<T: Element, D: Dimension> {
    key_offset: i64,
    len_key: usize,
    heads: usize,
    /// The caller's batch axes and heads.
    lead: Vec<usize>,
    simd: Simd,
    /// `(batches, heads, len_query, 2 + dim_value)`: maximum, sum, then the weighted sum.
    states: ArrayD<T::Accumulator>,
    rank: PhantomData<D>,
}

impl<T: Element, D: Dimension> Partial<T, D> {
    pub(crate) fn new(problem: &Problem<'_, T>, states: ArrayD<T::Accumulator>) -> Self {
        Self {
            key_offset: problem.terms.visibility.key_offset,
            len_key: problem.terms.len_key,
            heads: problem.terms.heads,
            lead: problem.terms.shape(&[]).to_vec(),
            simd: problem.terms.simd,
            states,
            rank: PhantomData,
        }
    }

    /// The position of its first key.
    pub fn key_offset(&self) -> i64 {
        self.key_offset
    }

    /// The shape of the output that it is a part of.
    fn output_shape(&self) -> Vec<usize> {
        let [_, _, len_query, width] = *self.states.shape() else { unreachable!("four axes") };
        self.lead.iter().copied().chain([len_query, width - 2]).collect()
    }

    /// How many keys it has seen or found masked.
    pub fn len_key(&self) -> usize {
        self.len_key
    }

    /// The natural log-sum-exp of each row over these keys, without the sink: `(…, heads, len_query)`.
    pub fn lse(&self) -> Array<T::Accumulator, D::Smaller> {
        let _environment = FloatEnvironment::enter();
        let lse = self.states.map_axis(Axis(3), |row| Element::leave(row[0] + ln(row[1])));
        let len_query = self.states.shape()[2];
        let shape: Vec<usize> = self.lead.iter().copied().chain([len_query]).collect();
        forward::shaped(lse.into_shape_with_order(shape).expect("the same numbers"))
    }
}

/// Attention over the keys of all partials, which may come in any order; with the row statistics and the
/// log-sum-exp. `sinks`, if any, are one score for each query head.
///
/// # Errors
/// If there is no partial, if shapes differ, if keys overlap, or if sinks do not fit.
pub fn merge<'p, T: Element, D: Dimension + 'p>(
    partials: impl IntoIterator<Item = &'p Partial<T, D>>,
    sinks: Option<&[f64]>,
) -> Result<AttentionOutput<T, D>, Error> {
    let mut sorted: Vec<&Partial<T, D>> = partials.into_iter().collect();
    // One that saw no key stands before those that begin where it does.
    sorted.sort_by_key(|partial| (partial.key_offset, partial.len_key));
    let Some(first) = sorted.first() else {
        return Err(Error::value("partials", "none", "at least one"));
    };
    check(&sorted)?;
    if let Some(sinks) = sinks {
        check_sinks::<T::Accumulator>(sinks, first.heads)?;
    }
    let shape = |last: &[usize]| -> Vec<usize> { first.lead.iter().chain(last).copied().collect() };
    let [_, _, len_query, width] = *first.states.shape() else { unreachable!("four axes") };
    let mut output = forward::zeros::<T>("output", &shape(&[len_query, width - 2]))?;
    let mut max = forward::zeros::<T::Accumulator>("row statistics", &shape(&[len_query]))?;
    let mut sum = max.clone();
    let both = [&mut max, &mut sum].map(|array| array.as_slice_mut().expect("contiguous"));
    let rows = Heads::all(output.view_mut(), first.heads, Some(both), Finish::Mean);
    let states: Vec<_> = sorted
        .iter()
        .map(|partial| (partial.key_offset as u64 / TILE as u64, partial.states.view()))
        .collect();
    let sink = |head: usize| sinks.map(|sinks| T::Accumulator::from_f64(sinks[head]));
    T::join(rows, &states, &sink, None, first.simd)?;
    let stats = RowStats { max: forward::shaped(max), sum: forward::shaped(sum) };
    Ok(AttentionOutput {
        output: forward::shaped(output),
        lse: Some(stats.lse()),
        row_stats: Some(stats),
        weights: None,
    })
}

/// The same rows, and keys that do not overlap.
fn check<T: Element, D: Dimension>(sorted: &[&Partial<T, D>]) -> Result<(), Error> {
    for pair in sorted.windows(2) {
        let [one, other] = pair else { unreachable!("windows of two") };
        if one.states.shape() != other.states.shape() || one.lead != other.lead {
            let wanted = format!("{} as another has", show_shape(&one.output_shape()));
            return Err(Error::shape("partials", &other.output_shape(), wanted));
        }
        let end = one.key_offset.saturating_add_unsigned(one.len_key as u64);
        if end > other.key_offset {
            let got = format!("keys up to position {end} and keys from position {} on", other.key_offset);
            return Err(Error::value("partials", got, "keys that do not overlap"));
        }
    }
    Ok(())
}
