//! The audit: some rows of a finished result computed again by the textbook in f64.

use std::collections::BTreeSet;

use ndarray::ArrayView4;
use qkv::{Attention, error_limit};

use crate::compare::{Gauge, largest, sample_limit, widened};
use crate::request::{Extents, Number, Request};

/// How many rows are drawn.
pub const ROWS: usize = 16;
/// Rows whose reference is computed at once.
pub const ROWS_AT_ONCE: usize = 256;

pub struct Audit {
    pub rows: usize,
    pub max_error: f64,
    /// By the error law, as far as it holds for a sample.
    pub limit: f64,
}

impl Audit {
    pub fn passed(&self) -> bool {
        self.max_error.is_finite() && self.max_error <= self.limit
    }
}

/// Holds rows of `output`, `(batch, head, query, dim_value)`, against the reference.
pub fn audit<T: Number>(
    request: &Request<'_, T>,
    output: ArrayView4<'_, T>,
    seed: u64,
) -> anyhow::Result<Audit> {
    let rows = draw(&request.extents, 0, ROWS, seed);
    let attention = request.attention(0);
    let measured = against_reference(request, &attention, &rows, output)?;
    Ok(Audit { rows: rows.len(), max_error: measured.ours.error, limit: measured.limit(request) })
}

/// Rows of a result, and the plain five steps, measured by the reference.
#[derive(Default)]
pub struct Measured {
    pub ours: Gauge,
    pub plain: Gauge,
    /// The largest score that carries weight: others cannot move the output.
    largest_score: f64,
}

impl Measured {
    /// By the error law, as far as it holds for some rows.
    pub fn limit<T: Number>(&self, request: &Request<'_, T>) -> f64 {
        let law = error_limit::<T>(self.plain.error, self.ours.largest);
        sample_limit::<T>(law, self.largest_score, largest(request.arrays.value.iter().copied()))
    }
}

/// Holds rows of `output`, `(batch, head, query, dim_value)`, against the reference of a call with these options.
pub fn against_reference<T: Number>(
    request: &Request<'_, T>,
    attention: &Attention<'_>,
    rows: &[(usize, usize, usize)],
    output: ArrayView4<'_, T>,
) -> anyhow::Result<Measured> {
    let call = request.call(attention);
    let mut measured = Measured::default();
    for rows in rows.chunks(ROWS_AT_ONCE) {
        let references = call.reference(rows).map_err(|error| request.explained(error))?;
        for (&(batch, head, query), reference) in rows.iter().zip(references) {
            let weighty = reference.masked.iter().zip(&reference.weights).filter(|pair| *pair.1 > 0.0);
            measured.largest_score = measured.largest_score.max(largest(weighty.map(|pair| *pair.0)));
            let own = output.slice(ndarray::s![batch, head, query, ..]);
            measured.ours.push_all(own.iter().map(|&x| widened(x)), reference.output.iter().copied());
            measured.plain.push_all(reference.plain_output, reference.output);
        }
    }
    Ok(measured)
}

/// Different rows `(batch, head, query)` with queries from `first` on: `count` of them, or all if there are no more.
pub fn draw(extents: &Extents, first: usize, count: usize, seed: u64) -> Vec<(usize, usize, usize)> {
    let queries = extents.len_query - first;
    let total = extents.batches * extents.heads * queries;
    let row = |index: usize| {
        let (plane, query) = (index / queries, index % queries);
        (plane / extents.heads, plane % extents.heads, first + query)
    };
    if total <= count {
        return (0..total).map(row).collect();
    }
    let mut random = SplitMix(seed);
    let mut drawn = BTreeSet::new();
    while drawn.len() < count {
        drawn.insert((random.next() % total as u64) as usize);
    }
    drawn.into_iter().map(row).collect()
}

/// Steele, Lea, Flood, “Fast splittable pseudorandom number generators” (2014).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
