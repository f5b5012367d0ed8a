//! One head inspected, against the same said of its whole matrix: plainly, pair by pair.

use std::ops::Range;

use ndarray::{Array2, ArrayD, IxDyn, s};
use qkv::{Call, Element, Inspection, Map, Of, Pool, Ranked, Ranking, Real, Stage, Survey};

use super::{Rng, same_bits};

/// The matrices of one head, `(len_query, len_key)`, and what its rows are made of.
pub struct Whole<T: Element> {
    pub raw: Array2<T::Accumulator>,
    pub scaled: Array2<T::Accumulator>,
    pub masked: Array2<T::Accumulator>,
    pub weights: Array2<T::Accumulator>,
    pub max: Vec<T::Accumulator>,
    pub sum: Vec<T::Accumulator>,
    /// Where the first query stands behind the first key.
    pub offset: i64,
}

/// A plane of an array of any rank, by its flat number.
pub fn plane<A: Copy>(array: &ArrayD<A>, number: usize) -> Array2<A> {
    let rank = array.ndim();
    let (rows, columns) = (array.shape()[rank - 2], array.shape()[rank - 1]);
    let numbers = array.iter().skip(number * rows * columns).take(rows * columns).copied().collect();
    Array2::from_shape_vec((rows, columns), numbers).unwrap()
}

/// All that can be asked of a head, with ranges and sizes drawn.
pub fn assert_inspected<T: Element>(
    call: Call<'_, T, IxDyn>,
    at: (usize, usize),
    whole: &Whole<T>,
    rng: &mut Rng,
) {
    let head = call.inspect(at.0, at.1).unwrap();
    let stats = head.stats(None).unwrap();
    assert!(stats.max() == whole.max && stats.sum() == whole.sum || whole.sum.iter().any(|x| x.is_nan()));
    let (len_query, len_key) = head.lengths();
    let (queries, keys) = (range(len_query, rng), range(len_key, rng));
    for (stage, matrix) in [
        (Stage::Raw, &whole.raw),
        (Stage::Scaled, &whole.scaled),
        (Stage::Masked, &whole.masked),
        (Stage::Weights, &whole.weights),
    ] {
        let got = head.matrix(stage, queries.clone(), keys.clone(), None).unwrap();
        let want = matrix.slice(s![queries.clone(), keys.clone()]);
        same_bits(&format!("{stage:?} of {queries:?} × {keys:?}"), got.view().into_dyn(), want.into_dyn());
    }
    assert_maps(&head, whole, (&queries, &keys), rng);
    assert_survey(&head, whole, queries, rng);
    let difference = head.difference(&head, None).unwrap();
    for (row, weights) in difference.iter().zip(whole.weights.rows()) {
        let nan = weights.iter().any(|w| w.is_nan());
        assert!(if nan { row.divergence.is_nan() } else { row.divergence == 0.0 && row.largest == 0.0 });
    }
}

fn range(length: usize, rng: &mut Rng) -> Range<usize> {
    let start = rng.below(length + 1);
    start..start + rng.below(length - start + 1)
}

fn assert_maps<T: Element>(
    head: &Inspection<'_, T>,
    whole: &Whole<T>,
    (queries, keys): (&Range<usize>, &Range<usize>),
    rng: &mut Rng,
) {
    let of = |of| -> Array2<f64> {
        match of {
            Of::Mask => whole.masked.mapv(|s| f64::from(u8::from(s != T::Accumulator::NEG_INFINITY))),
            Of::Scores => whole.raw.mapv(Real::to_f64),
            Of::Scaled => whole.scaled.mapv(Real::to_f64),
            _ => whole.weights.mapv(Real::to_f64),
        }
    };
    for shown in [Of::Mask, Of::Scores, Of::Scaled, Of::Weights] {
        for pool in [Pool::Max, Pool::Mean, Pool::Sum, Pool::Farthest] {
            let size = (1 + rng.below(80), 1 + rng.below(300));
            let map = Map::new(shown).pool(pool).queries(queries.clone()).keys(keys.clone());
            let by_cells = rng.below(2) == 0;
            let map = if by_cells { map.cell(size.0, size.1) } else { map.size(size.0, size.1) };
            let counted = |range: &Range<usize>, size: usize| match by_cells {
                true => range.len().div_ceil(size),
                false => size.min(range.len()),
            };
            let (row_count, column_count) = (counted(queries, size.0), counted(keys, size.1));
            let got = head.map(&map, None).unwrap();
            assert_eq!(got.dim(), (row_count, column_count));
            let numbers = of(shown);
            for ((row, column), &got) in got.indexed_iter() {
                let part = |range: &Range<usize>, (size, count): (usize, usize), at: usize| {
                    let edge = |at: usize| match by_cells {
                        true => range.end.min(range.start + at * size),
                        false => range.start + at * range.len() / count,
                    };
                    edge(at)..edge(at + 1)
                };
                let rows = part(queries, (size.0, row_count), row);
                let columns = part(keys, (size.1, column_count), column);
                let part: Vec<f64> = numbers.slice(s![rows, columns]).iter().copied().collect();
                assert_pooled(
                    pool,
                    got,
                    &part,
                    &format!(
                        "{shown:?} {pool:?} of {queries:?} × {keys:?} in {size:?}, by cells: {by_cells}"
                    ),
                );
            }
        }
    }
}

fn assert_pooled(pool: Pool, got: f64, part: &[f64], what: &str) {
    let count = part.len() as f64;
    let (sum, size) = part.iter().fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
    let nan = part.iter().any(|x| x.is_nan());
    let farthest = |a: f64, &b: &f64| if (b.abs(), b) > (a.abs(), a) { b } else { a };
    let exact = match pool {
        Pool::Max => part.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        Pool::Farthest => part.iter().fold(0.0, farthest),
        Pool::Mean => sum / count,
        _ => sum,
    };
    if nan || exact.is_nan() {
        assert!(got.is_nan(), "{what}: got {got}, wanted NaN");
        return;
    }
    match pool {
        Pool::Max | Pool::Farthest => assert_eq!(got, exact, "{what}"),
        // Sums in another order.
        _ => assert!(got == exact || (got - exact).abs() <= 1e-13 * size, "{what}: {got}, {exact}"),
    }
}

fn assert_survey<T: Element>(
    head: &Inspection<'_, T>,
    whole: &Whole<T>,
    queries: Range<usize>,
    rng: &mut Rng,
) {
    let (len_query, len_key) = head.lengths();
    let mut tokens = |length: usize| (0..length).map(|_| rng.below(3) as u32).collect::<Vec<_>>();
    let (query, key) = (tokens(len_query), tokens(len_key));
    let survey = Survey::new().top(3).first_keys(2).tokens(&query, &key).queries(queries.clone());
    let got = head.survey(&survey, None).unwrap();
    assert_eq!(
        (got.queries.clone(), got.rows.len(), got.received.len()),
        (queries.clone(), queries.len(), len_key)
    );
    for (at, i) in queries.clone().enumerate() {
        let weights = whole.weights.row(i).mapv(Real::to_f64);
        let row = &got.rows[at];
        let own = whole.offset + i as i64;
        let sum = |of: &dyn Fn(usize) -> f64| (0..len_key).map(|j| of(j) * weights[j]).sum::<f64>();
        let when = |holds: &dyn Fn(i64) -> bool| sum(&|j| f64::from(u8::from(holds(j as i64))));
        let distance = sum(&|j| (own - j as i64).abs() as f64);
        let mass: f64 = weights.sum();
        let entropy: f64 = weights.iter().map(|&w| if w == 0.0 { 0.0 } else { -w * libm::log(w) }).sum();
        let after = |j: i64| j > 0 && j - 1 < own && key[j as usize - 1] == query[i];
        for (what, got, want, limit) in [
            ("mass", row.mass, mass, 1e-12),
            // From scores: the weights themselves have been rounded.
            ("entropy", row.entropy, entropy, 64.0 * <T::Accumulator as Element>::EPSILON * (1.0 + entropy)),
            (
                "distance",
                row.distance,
                if mass == 0.0 { 0.0 } else { distance / mass },
                1e-12 * (1.0 + distance),
            ),
            ("first", row.first, when(&|j| j < 2), 1e-12),
            ("own", row.own, when(&|j| j == own), 1e-12),
            ("previous", row.previous, when(&|j| j == own - 1), 1e-12),
            ("same token", row.same_token, when(&|j| j != own && key[j as usize] == query[i]), 1e-12),
            ("after a copy", row.after_copy, when(&after), 1e-12),
        ] {
            let agrees = (got - want).abs() <= limit || weights.iter().any(|w| w.is_nan());
            assert!(agrees, "query {i}, {what}: {got}, {want}");
        }
        assert!(mass.is_nan() == row.mass.is_nan(), "query {i}: {} {mass}", row.mass);
        assert_ranked(&got.top_keys, at, &weights.to_vec(), 0, &format!("query {i}"));
    }
    for j in 0..len_key {
        let weights: Vec<f64> = queries.clone().map(|i| whole.weights[[i, j]].to_f64()).collect();
        let sum: f64 = weights.iter().sum();
        let got_sum = got.received[j];
        assert!((got_sum - sum).abs() <= 1e-12 * (1.0 + sum) || got_sum.is_nan() && sum.is_nan());
        assert_ranked(&got.top_queries, j, &weights, queries.start, &format!("key {j}"));
    }
    let summary = got.summary();
    let empty = got.rows.iter().filter(|row| row.mass == 0.0).count();
    let nan = got.rows.iter().filter(|row| row.mass.is_nan()).count();
    assert_eq!(
        (summary.empty, summary.not_finite, summary.queries),
        (empty, nan, queries.len() - empty - nan)
    );
}

fn assert_ranked(ranking: &Ranking, at: usize, weights: &[f64], first: usize, what: &str) {
    let mut want: Vec<Ranked> = weights
        .iter()
        .enumerate()
        .filter(|&(_, &w)| w > 0.0)
        .map(|(index, &value)| Ranked { index: first + index, value })
        .collect();
    want.sort_by(|a, b| b.value.total_cmp(&a.value));
    want.truncate(3);
    assert_eq!(ranking.of(at), want, "{what}");
}
