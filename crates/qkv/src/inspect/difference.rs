//! Two runs of one head beside each other: f32 and bf16, before fine-tuning and after. How far each query's attention has
//! moved, in one pass over both.

use std::ops::Range;

use super::numbers::Numbers;
use super::strip::{Head, Strip, blocks, strips};
use crate::call::Progress;
use crate::element::Real;
use crate::error::Error;
use crate::forward::{Buffers, each_task};
use crate::plan;
use crate::tile::QUERY_BLOCK;

/// Queries of a task.
const TASK: usize = 4 * QUERY_BLOCK;

/// How far one query's attention is from that of another run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueryDifference {
    /// The Jensen-Shannon divergence of the two rows of weights, in nats: 0 where they are equal, ln 2 where no key has
    /// weight in both. What a sink takes counts as one more key, and so does attending nothing. NaN if a weight is.
    ///
    /// Source: Lin, “Divergence measures based on the Shannon entropy” (1991).
    pub divergence: f64,
    /// The largest difference of two weights, without its sign.
    pub largest: f64,
    /// The key of most weight in either run, if there is one: of equal ones the first.
    pub top_keys: [Option<usize>; 2],
}

impl QueryDifference {
    /// Whether another key has most weight.
    pub fn changed(&self) -> bool {
        self.top_keys[0] != self.top_keys[1]
    }
}

/// What of a row is not on a key: on the sink, or on nothing.
pub(super) fn elsewhere<A: Real>(head: &Head<'_, A>) -> Vec<f64> {
    let [max, sum] = head.stats.map(|all| all.iter().map(|x| x.to_f64()));
    let sink = head.terms.sink::<A>(head.head).map_or(f64::NEG_INFINITY, Real::to_f64);
    let of_row = |(max, sum): (f64, f64)| match sum {
        0.0 => 1.0,
        _ if sink == f64::NEG_INFINITY => 0.0,
        _ => libm::exp(sink - max) / sum,
    };
    max.zip(sum).map(of_row).collect()
}

/// Of some queries; `numbers` are the weights of two runs, and `elsewhere` what their rows have beside.
///
/// # Errors
/// If progress cancelled.
pub(super) fn compared(
    numbers: [&dyn Numbers; 2],
    (queries, elsewhere): (Range<usize>, [&[f64]; 2]),
    progress: &mut Option<&mut Progress<'_>>,
) -> Result<Vec<QueryDifference>, Error> {
    let terms = numbers[0].terms();
    let mut rows = vec![QueryDifference::default(); queries.len()];
    let total = queries.len().div_ceil(TASK);
    let tasks =
        rows.chunks_mut(TASK).zip(elsewhere[0].chunks(TASK)).zip(elsewhere[1].chunks(TASK)).enumerate();
    let tasks = tasks.map(|(task, ((rows, of_one), of_other))| Part {
        first: queries.start + task * TASK,
        rows,
        elsewhere: [of_one, of_other],
    });
    let buffers = Buffers { kept: None, new: || [Strip::new(), Strip::new()] };
    let threads = plan::threads(terms, queries.len());
    each_task((total, tasks), threads, progress, buffers, |strips, part: Part<'_>| {
        part.compare(numbers, strips)
    })?;
    Ok(rows)
}

/// Some neighbouring queries.
struct Part<'r> {
    first: usize,
    rows: &'r mut [QueryDifference],
    elsewhere: [&'r [f64]; 2],
}

impl Part<'_> {
    fn compare(self, numbers: [&dyn Numbers; 2], both: &mut [Strip<f64>; 2]) {
        let terms = numbers[0].terms();
        let mut makers = numbers.map(Numbers::maker);
        for queries in blocks(self.first..self.first + self.rows.len()) {
            let mut sums = [Sums::default(); QUERY_BLOCK];
            for keys in strips(terms, 0..terms.len_key) {
                if !numbers.iter().any(|numbers| numbers.sees(&queries, &keys)) {
                    continue;
                }
                for (maker, strip) in makers.iter_mut().zip(both.iter_mut()) {
                    maker.make(&queries, &keys, strip);
                }
                let [a, b] = both.each_ref().map(Strip::of_keys);
                for ((key, a), b) in keys.zip(a).zip(b) {
                    for ((sums, &a), &b) in sums.iter_mut().zip(a).zip(b).take(queries.len()) {
                        sums.add(key, [a, b]);
                    }
                }
            }
            for (query, sums) in queries.zip(&sums) {
                let row = query - self.first;
                self.rows[row] = sums.finish(self.elsewhere.map(|all| all[row]));
            }
        }
    }
}

/// Over the keys of one query.
#[derive(Clone, Copy, Default)]
struct Sums {
    twice_divergence: f64,
    largest: f64,
    /// The key of most weight in either run.
    top: [(usize, f64); 2],
}

impl Sums {
    fn finish(&self, elsewhere: [f64; 2]) -> QueryDifference {
        QueryDifference {
            divergence: (self.twice_divergence + twice_divergence(elsewhere)) / 2.0,
            largest: self.largest,
            top_keys: self.top.map(|(key, weight)| (weight > 0.0).then_some(key)),
        }
    }

    fn add(&mut self, key: usize, weights: [f64; 2]) {
        self.twice_divergence += twice_divergence(weights);
        let moved = (weights[0] - weights[1]).abs();
        // NaN stays, once it is there.
        if moved > self.largest || moved.is_nan() {
            self.largest = moved;
        }
        for (top, weight) in self.top.iter_mut().zip(weights) {
            if weight > top.1 {
                *top = (key, weight);
            }
        }
    }
}

/// `a ln(a/m) + b ln(b/m)` with `m = (a + b)/2`: a key's part of twice the divergence.
///
/// With `x = (a - b)/(a + b)` it is `m ((1 + x) ln(1 + x) + (1 - x) ln(1 - x))`, whose terms nearly cancel where x is small; there
/// its series `m Σ x²ᵏ / (k (2k - 1))` is summed.
fn twice_divergence([a, b]: [f64; 2]) -> f64 {
    /// The series then has some 50 bits after [`TERMS`] terms.
    const SMALL: f64 = 0.125;
    const TERMS: u32 = 8;
    let sum = a + b;
    if sum == 0.0 {
        return 0.0;
    }
    let (mean, x) = (sum / 2.0, (a - b) / sum);
    if x.abs() <= SMALL {
        let square = x * x;
        let series = (1..=TERMS).rev().fold(0.0, |series, k| {
            let k = f64::from(k);
            square * (1.0 / (k * (2.0 * k - 1.0)) + series)
        });
        return mean * series;
    }
    let share = |x: f64| if x == 0.0 { 0.0 } else { x * libm::log(x) };
    mean * (share(1.0 + x) + share(1.0 - x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_the_divergence_meet() {
        assert_eq!(twice_divergence([0.0, 0.0]), 0.0);
        assert_eq!(twice_divergence([0.25, 0.25]), 0.0);
        let whole = twice_divergence([1.0, 0.0]);
        assert!((whole - core::f64::consts::LN_2).abs() < 1e-15, "{whole}");
        for x in [0.1249, 0.1, 0.03, 1e-3] {
            let (a, b) = (0.5 * (1.0 + x), 0.5 * (1.0 - x));
            let direct = a * libm::log1p(x) + b * libm::log1p(-x);
            let series = twice_divergence([a, b]);
            assert!((series - direct).abs() < 1e-15, "{x}: {series} {direct}");
        }
        // Of tiny differences nothing is left but the square.
        let tiny = twice_divergence([0.5 + 1e-9, 0.5 - 1e-9]);
        assert!((tiny / (0.5 * 4e-18) - 1.0).abs() < 1e-6, "{tiny}");
        assert!(twice_divergence([f64::NAN, 0.1]).is_nan());
    }
}
