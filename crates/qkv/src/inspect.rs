//! How much a key matters to a query: what its deletion would do to the output.

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
    let scores: Vec<Option<f64>> = (0..terms.len_key).map(|key| score(key).map(Real::to_f64)).collect();
    let sink = terms.sink::<T::Accumulator>(head).map(Real::to_f64);
    let values = problem.value.get(batch, terms.key_head(head));
    let value = |key: usize| values.row(key).into_iter().map(|v| v.widen().to_f64());

    // The output and the weights, without one of the keys or with all.
    let attend = |without: Option<usize>| {
        let visible = || {
            (0..scores.len()).filter(|&key| Some(key) != without).filter_map(|key| Some((key, scores[key]?)))
        };
        let max = visible().map(|(_, s)| s).chain(sink).fold(f64::NEG_INFINITY, f64::max);
        let share = |s: f64| libm::exp(s - max);
        let sum: f64 = visible().map(|(_, s)| s).chain(sink).map(share).sum();
        let mut output = vec![0.0; terms.dim_value];
        for (key, s) in visible() {
            let weight = share(s) / sum;
            output.iter_mut().zip(value(key)).for_each(|(o, v)| *o += weight * v);
        }
        (output, max, sum)
    };
    let (output, max, sum) = attend(None);
    let norm = |differences: &mut dyn Iterator<Item = f64>| differences.map(|d| d * d).sum::<f64>().sqrt();
    let moved = |key: usize, s: f64| {
        let weight = libm::exp(s - max) / sum;
        if weight <= 0.5 {
            let away = norm(&mut value(key).zip(&output).map(|(v, o)| v - o));
            return weight / (1.0 - weight) * away;
        }
        // 1 - p has lost its digits: the row once more, without this key.
        let (rest, ..) = attend(Some(key));
        norm(&mut rest.iter().zip(&output).map(|(rest, o)| o - rest))
    };
    scores.iter().enumerate().map(|(key, s)| s.map_or(0.0, |s| moved(key, s))).collect()
}
