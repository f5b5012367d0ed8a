//! How much a key matters to one query: what its deletion would do to the output.

use ndarray::ArrayView2;

use crate::element::{Element, Real};
use crate::problem::{Problem, Stage};
use crate::scalar;
use crate::simd::FloatEnvironment;
use crate::tile::Pair;

/// For each key, how far the output of a row would move without it: `‖o - o₋ⱼ‖`, with
/// `o - o₋ⱼ = pⱼ (vⱼ - o) / (1 - pⱼ)`; 0 for a masked key. In f64, from the scores that the engine computes with.
pub(crate) fn influence<T: Element>(
    problem: &Problem<'_, T>,
    (batch, head, query): (usize, usize, usize),
) -> Vec<f64> {
    let _environment = FloatEnvironment::enter();
    let terms = &problem.terms;
    let score = |key| scalar::score(problem, Pair { batch, head, query, key }, Stage::Masked);
    let row = Row {
        scores: (0..terms.len_key).map(|key| score(key).map(Real::to_f64)).collect(),
        sink: terms.sink::<T::Accumulator>(head).map(Real::to_f64),
        values: problem.value.get(batch, terms.key_head(head)),
    };
    let whole = row.attend(None);
    let moved = |key: usize, s: f64| {
        let weight = libm::exp(s - whole.max) / whole.sum;
        if weight > 0.5 {
            // 1 - p has lost its digits: the row once more, without this key. There is but one such key.
            return distance(row.attend(Some(key)).output.into_iter(), &whole.output);
        }
        weight / (1.0 - weight) * distance(row.value(key), &whole.output)
    };
    row.scores.iter().enumerate().map(|(key, s)| s.map_or(0.0, |s| moved(key, s))).collect()
}

/// One row's keys.
struct Row<'a, T> {
    /// `None` where masked.
    scores: Vec<Option<f64>>,
    sink: Option<f64>,
    /// `(len_key, dim_value)`
    values: ArrayView2<'a, T>,
}

/// What comes of it.
struct Attended {
    max: f64,
    sum: f64,
    output: Vec<f64>,
}

impl<T: Element> Row<'_, T> {
    fn value(&self, key: usize) -> impl Iterator<Item = f64> + '_ {
        self.values.row(key).into_iter().map(|v| v.widen().to_f64())
    }

    /// Over all keys, or all but one.
    fn attend(&self, without: Option<usize>) -> Attended {
        let others = (0..self.scores.len()).filter(|&key| Some(key) != without);
        let visible: Vec<(usize, f64)> = others.filter_map(|key| Some((key, self.scores[key]?))).collect();
        let scores = || visible.iter().map(|&(_, s)| s).chain(self.sink);
        let max = scores().fold(f64::NEG_INFINITY, f64::max);
        let sum = scores().map(|s| libm::exp(s - max)).sum();
        let mut output = vec![0.0; self.values.ncols()];
        for (key, s) in visible {
            let weight = libm::exp(s - max) / sum;
            output.iter_mut().zip(self.value(key)).for_each(|(o, v)| *o += weight * v);
        }
        Attended { max, sum, output }
    }
}

/// The length of a difference.
fn distance(from: impl Iterator<Item = f64>, to: &[f64]) -> f64 {
    from.zip(to).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt()
}
