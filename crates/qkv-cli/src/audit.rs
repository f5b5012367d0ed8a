//! The audit: some rows of a finished result computed again by the textbook in f64.

use std::collections::BTreeSet;

use ndarray::ArrayView4;
use qkv::error_limit;

use crate::compare::{Gauge, largest, sample_limit, widened};
use crate::request::{Extents, Number, Request};

/// How many rows are drawn.
pub const ROWS: usize = 16;

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
    let call = request.call(&attention);
    let (mut ours, mut plain) = (Gauge::default(), Gauge::default());
    let references = call.reference(&rows).map_err(|error| request.explained(error))?;
    let mut largest_score: f64 = 0.0;
    for (&(batch, head, query), reference) in rows.iter().zip(references) {
        // Only scores that carry weight can move the output.
        let weighty = reference.masked.iter().zip(&reference.weights).filter(|pair| *pair.1 > 0.0);
        largest_score = largest_score.max(largest(weighty.map(|pair| *pair.0)));
        let own = output.slice(ndarray::s![batch, head, query, ..]);
        ours.push_all(own.iter().map(|&x| widened(x)), reference.output.iter().copied());
        plain.push_all(reference.plain_output, reference.output);
    }
    let law = error_limit::<T>(plain.error, ours.largest);
    let limit = sample_limit::<T>(law, largest_score, largest(request.arrays.value.iter().copied()));
    Ok(Audit { rows: rows.len(), max_error: ours.error, limit })
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
