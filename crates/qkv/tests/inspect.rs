//! Heads opened for inspection: influence held against deleting the key, runs against each other, and what is refused.
//! (Matrices, maps and surveys are held against the whole matrix in `every_path.rs`.)

mod support;

use std::ops::ControlFlow;

use ndarray::{Array2, Array4, ArrayView1, array, s};
use qkv::{
    Alignment, Attention, Element, Error, HeadStats, Inspection, Map, Of, Pool, Progress, Stage, Survey,
    bf16, f16,
};

/// The length of the difference of a row's output with all keys and without one.
fn by_deleting(
    attention: &Attention<'_>,
    [q, k, v]: [&Array4<f64>; 3],
    row: (usize, usize, usize),
) -> Vec<f64> {
    let output = |attention: &Attention<'_>| {
        let output = attention.forward(q.view(), k.view(), v.view()).unwrap();
        output.slice(s![row.0, row.1, row.2, ..]).to_owned()
    };
    let whole = output(attention);
    let deleted = |key| {
        let others = Array2::from_shape_fn((q.dim().2, k.dim().2), |(_, j)| j != key);
        let moved = &whole - &output(&attention.clone().mask(others.view()));
        moved.iter().map(|d| d * d).sum::<f64>().sqrt()
    };
    (0..k.dim().2).map(deleted).collect()
}

#[test]
fn it_is_what_deleting_the_key_does() {
    let query = support::grid::<f64>(&[2, 4, 5, 8], 1).into_dimensionality().unwrap();
    let key = support::grid::<f64>(&[2, 2, 7, 8], 2).into_dimensionality().unwrap();
    let value: Array4<f64> = support::grid::<f64>(&[2, 2, 7, 3], 3).into_dimensionality().unwrap();
    for attention in [
        Attention::new(),
        Attention::new().causal(Alignment::TopLeft).scale(1.5),
        // One key has nearly all the weight.
        Attention::new().scale(40.0),
        Attention::new().scale(3.0).sinks([1.0, f64::NEG_INFINITY, 9.0, -2.0]).window(Some(1), Some(1)),
    ] {
        for row in [(0, 0, 0), (1, 3, 4), (1, 2, 1)] {
            let influence = attention.call(query.view(), key.view(), value.view()).influence(row).unwrap();
            for (key, (&got, want)) in
                influence.iter().zip(by_deleting(&attention, [&query, &key, &value], row)).enumerate()
            {
                // Both are sums of a few f64 products of numbers up to 1.
                let limit = 64.0 * f64::EPSILON * (1.0 + want);
                assert!((got - want).abs() <= limit, "{row:?}, key {key}: {got}, {want}");
            }
        }
    }
}

#[test]
fn a_key_that_others_hide_behind_still_has_an_exact_influence() {
    // The weights of the others, e^-60, are lost beside 1; deleting the first key brings out their plain mean.
    let query = array![[1.0f64]];
    let key = array![[60.0], [0.0], [0.0]];
    let value = array![[5.0, 0.0], [1.0, 2.0], [3.0, 0.0]];
    let influence =
        Attention::new().call(query.view(), key.view(), value.view()).influence((0, 0, 0)).unwrap();
    assert!((influence[0] - 10f64.sqrt()).abs() < 1e-12, "{influence:?}");
    assert!(influence[1] > 0.0 && influence[1] < 1e-24, "{influence:?}");
}

#[test]
fn deleting_the_only_key_leaves_the_zero_row_and_masked_keys_have_none() {
    let query = array![[1.0f32, 2.0], [0.5, -1.0]];
    let value = array![[3.0f32, 4.0], [f32::NAN, 1.0]];
    let causal = Attention::new().causal(Alignment::TopLeft);
    let influence = |row| causal.call(query.view(), query.view(), value.view()).influence((0, 0, row));
    assert_eq!(influence(0).unwrap(), [5.0, 0.0]);
    assert!(influence(1).unwrap().iter().all(|moved| moved.is_nan()));
    assert!(influence(2).unwrap_err().to_string().contains("row: got (0, 0, 2)"));
}

/// Heads with and without keys that have most of the weight, sinks, windows and masked values that are no numbers.
fn heads() -> [Attention<'static>; 4] {
    [
        Attention::new(),
        Attention::new().causal(Alignment::TopLeft).scale(6.0),
        Attention::new().scale(3.0).sinks([1.0, f64::NEG_INFINITY, 9.0, -2.0]).window(Some(3), Some(1)),
        Attention::new().causal(Alignment::Offset(-3)).softcap(4.0).scale(-2.0),
    ]
}

fn arrays<T: Element>(len_query: usize, len_key: usize) -> [Array4<T>; 3] {
    let array = |shape: &[usize], stream| support::grid::<T>(shape, stream).into_dimensionality().unwrap();
    [array(&[2, 4, len_query, 8], 1), array(&[2, 2, len_key, 8], 2), array(&[2, 2, len_key, 5], 3)]
}

#[test]
fn maps_and_rankings_of_influence_are_those_of_each_row() {
    let [query, key, value] = arrays::<f64>(70, 150);
    for attention in heads() {
        let call = || attention.call(query.view(), key.view(), value.view());
        let head = call().inspect(1, 2).unwrap();
        let map = head.map(&Map::new(Of::Influence), None).unwrap();
        let survey = head.survey(&Survey::new().top(4).influence(), None).unwrap();
        let ranking = survey.top_influence.unwrap();
        for i in 0..70 {
            let rows = call().influence((1, 2, i)).unwrap();
            for (j, (&got, &want)) in map.row(i).iter().zip(&rows).enumerate() {
                assert!((got - want).abs() <= 1e-12 * (1.0 + want), "{i}, {j}: {got}, {want}");
            }
            let mut sorted: Vec<f64> = rows.iter().copied().filter(|&moved| moved > 0.0).collect();
            sorted.sort_by(|a, b| b.total_cmp(a));
            for (ranked, want) in ranking.of(i).iter().zip(&sorted) {
                assert!((ranked.value - want).abs() <= 1e-12 * (1.0 + want), "{i}: {ranked:?}, {want}");
                assert!((rows[ranked.index] - ranked.value).abs() <= 1e-12 * (1.0 + want));
            }
            assert_eq!(ranking.of(i).len(), sorted.len().min(4));
        }
    }
}

#[test]
fn influence_in_half_precision_is_not_rounded_to_it() {
    let [query, key, value] = arrays::<bf16>(20, 90);
    let attention = Attention::new().causal(Alignment::BottomRight).scale(2.0);
    let call = || attention.call(query.view(), key.view(), value.view());
    let map = call().inspect(0, 3).unwrap().map(&Map::new(Of::Influence), None).unwrap();
    for i in 0..20 {
        for (&got, want) in map.row(i).iter().zip(call().influence((0, 3, i)).unwrap()) {
            assert!((got - want).abs() <= 1e-5 * (1.0 + want), "{got}, {want}");
        }
    }
}

#[test]
fn masked_values_that_are_no_numbers_have_no_influence_and_visible_ones_make_it_nan() {
    let [query, key, mut value] = arrays::<f32>(100, 100);
    value[[0, 0, 70, 1]] = f32::NAN;
    value[[0, 0, 90, 2]] = f32::INFINITY;
    let causal = Attention::new().causal(Alignment::TopLeft);
    let head = causal.call(query.view(), key.view(), value.view()).inspect(0, 1).unwrap();
    let map = head.map(&Map::new(Of::Influence), None).unwrap();
    assert!(map.slice(s![..70, ..]).iter().all(|moved| moved.is_finite()));
    assert!(map.slice(s![70.., ..70]).iter().all(|moved| moved.is_nan()));
    assert!(map.indexed_iter().all(|((i, j), &moved)| j <= i || moved == 0.0));
    // The weights know nothing of it.
    assert!(head.survey(&Survey::new(), None).unwrap().rows.iter().all(|row| row.mass > 0.99));
}

#[test]
fn nan_and_rows_that_attend_nothing_are_told_apart() {
    let [mut query, mut key, value] = arrays::<f32>(130, 130);
    query[[0, 1, 128, 3]] = f32::NAN;
    key[[0, 0, 100, 0]] = f32::NAN;
    let attention = Attention::new().causal(Alignment::Offset(-5));
    let head = attention.call(query.view(), key.view(), value.view()).inspect(0, 1).unwrap();
    let survey = head.survey(&Survey::new().top(2), None).unwrap();
    let summary = survey.summary();
    // Those from 105 on see the key, and 128 is NaN itself.
    assert_eq!((summary.empty, summary.not_finite, summary.queries), (5, 25, 100));
    assert!(summary.mean.entropy.is_finite() && summary.mean.distance.is_finite());
    assert!(survey.top_keys.of(128).is_empty() && survey.top_keys.of(2).is_empty());
    let map = head.map(&Map::new(Of::Weights).size(13, 13), None).unwrap();
    for ((row, column), x) in map.indexed_iter() {
        // Of a row that is NaN all visible keys are.
        let nan = row * 10 + 9 >= 105 && column * 10 <= row * 10 + 9 - 5;
        assert_eq!(x.is_nan(), nan, "{row}, {column}: {x}");
    }
}

#[test]
fn two_runs_differ_as_their_weights_do() {
    let [query, key, value] = arrays::<f32>(150, 140);
    let [half_query, half_key, half_value] =
        [&query, &key, &value].map(|array| array.mapv(|x| bf16::from_f32(x * 1.3)));
    for (one, other) in [
        (Attention::new(), Attention::new().causal(Alignment::TopLeft)),
        (
            Attention::new().causal(Alignment::Offset(-2)),
            Attention::new().causal(Alignment::Offset(-4)).scale(1.0),
        ),
        (Attention::new().sinks([0.0, 1.0, 2.0, 3.0]), Attention::new()),
    ] {
        let one = one.call(query.view(), key.view(), value.view()).inspect(1, 3).unwrap();
        let other = other.call(half_query.view(), half_key.view(), half_value.view()).inspect(1, 3).unwrap();
        let weights = |matrix: Array2<f32>| matrix.mapv(f64::from);
        let a = weights(one.matrix(Stage::Weights, 0..150, 0..140, None).unwrap());
        let b = weights(other.matrix(Stage::Weights, 0..150, 0..140, None).unwrap());
        for (i, row) in one.difference(&other, None).unwrap().iter().enumerate() {
            let (a, b) = (a.row(i), b.row(i));
            // What is missing to 1 is the sink's, or nothing's, if it is more than rounding.
            let rest =
                |row: &ArrayView1<'_, f64>| Some(1.0 - row.sum()).filter(|&rest| rest > 1e-5).unwrap_or(0.0);
            let part = |a: f64, b: f64| if a == 0.0 { 0.0 } else { a * libm::log(2.0 * a / (a + b)) };
            let pairs = a.iter().zip(b).map(|(&a, &b)| (a, b)).chain([(rest(&a), rest(&b))]);
            let want = pairs.map(|(a, b)| part(a, b) + part(b, a)).sum::<f64>() / 2.0;
            assert!((row.divergence - want).abs() < 1e-6, "{i}: {}, {want}", row.divergence);
            let largest = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert_eq!(row.largest, largest);
            for (top, row) in row.top_keys.iter().zip([a, b]) {
                let most = row.iter().copied().fold(0.0, f64::max);
                assert_eq!(top.map_or(0.0, |key| row[key]), most);
            }
        }
        let map =
            one.map_less(&other, &Map::new(Of::Weights).pool(Pool::Farthest).size(150, 140), None).unwrap();
        assert_eq!(map, &a - &b);
    }
}

#[test]
fn statistics_of_a_time_before_serve_again() {
    let [query, key, value] = arrays::<f16>(40, 60);
    let attention = Attention::new().causal(Alignment::BottomRight);
    let call = || attention.call(query.view(), key.view(), value.view());
    let first = call().inspect(1, 1).unwrap();
    let again = call().inspect(1, 1).unwrap().with_stats(first.stats(None).unwrap().clone()).unwrap();
    let map = Map::new(Of::Weights).size(20, 20);
    assert_eq!(first.map(&map, None).unwrap(), again.map(&map, None).unwrap());
    let others = first.stats(None).unwrap().clone();
    let error = call().inspect_queries(1, 1, 3..9).unwrap().with_stats(others).err().unwrap();
    assert_eq!(error.to_string(), "stats: got those of 0..40, want those of 3..9, which are open");
    // A part of them, kept as numbers.
    let stats = first.stats(None).unwrap();
    let part = HeadStats::new(3, stats.max()[3..9].to_vec(), stats.sum()[3..9].to_vec()).unwrap();
    let part = call().inspect_queries(1, 1, 3..9).unwrap().with_stats(part).unwrap();
    let map = map.queries(3..9);
    assert_eq!(part.map(&map, None).unwrap(), first.map(&map, None).unwrap());
}

#[test]
fn some_queries_alone_say_what_they_say_among_all() {
    let [query, key, value] = arrays::<f32>(300, 200);
    for attention in heads() {
        let call = || attention.call(query.view(), key.view(), value.view());
        let (all, some) = (call().inspect(1, 2).unwrap(), call().inspect_queries(1, 2, 70..233).unwrap());
        assert_eq!((some.queries(), some.lengths()), (70..233, (300, 200)));
        for of in [Of::Weights, Of::Influence, Of::Mask] {
            let map = Map::new(of).size(50, 60);
            let want = all.map(&map.clone().queries(70..233), None).unwrap();
            assert_eq!(some.map(&map, None).unwrap(), want, "{of:?}");
        }
        let survey = Survey::new().top(3).influence();
        let want = all.survey(&survey.clone().queries(70..233), None).unwrap();
        assert_eq!(some.survey(&survey, None).unwrap(), want);
        let other = call().inspect_queries(0, 2, 70..233).unwrap();
        let want = all.difference(&call().inspect(0, 2).unwrap(), None).unwrap();
        assert_eq!(some.difference(&other, None).unwrap(), want[70..233]);
        let error = some.matrix(Stage::Masked, 69..80, 0..1, None).err().unwrap();
        assert_eq!(error.to_string(), "queries: got 69..80, want a range within 70..233");
        assert!(all.difference(&other, None).is_err());
    }
    let plain = Attention::new();
    let one = plain.call(query.view(), key.view(), value.view()).inspect_queries(0, 0, 299..299).unwrap();
    assert!(one.survey(&Survey::new(), None).unwrap().rows.is_empty());
}

#[test]
fn what_does_not_exist_is_refused() {
    let [query, key, value] = arrays::<f32>(6, 9);
    let attention = Attention::new();
    let call = || attention.call(query.view(), key.view(), value.view());
    let refused = |result: Result<Inspection<'_, f32>, Error>| result.err().unwrap().to_string();
    assert_eq!(refused(call().inspect(2, 0)), "batch: got 2, want a number below 2");
    assert_eq!(refused(call().inspect(0, 4)), "head: got 4, want a number below 4");
    let head = call().inspect(0, 0).unwrap();
    let map = |map: Map| head.map(&map, None).err().map(|error| error.to_string());
    assert_eq!(map(Map::new(Of::Mask).queries(3..7)).unwrap(), "queries: got 3..7, want a range within 0..6");
    #[allow(clippy::reversed_empty_ranges, reason = "it is to be refused")]
    let backwards = Map::new(Of::Mask).keys(5..4);
    assert_eq!(map(backwards).unwrap(), "keys: got 5..4, want a range within 0..9");
    let error = head.survey(&Survey::new().tokens(&[1; 6], &[1; 6]), None).err().unwrap();
    assert_eq!(error.to_string(), "tokens: got shape (6,), want (9,)");
    let [query, key, value] = arrays::<f32>(6, 8);
    let other = attention.call(query.view(), key.view(), value.view()).inspect(0, 0).unwrap();
    let error = head.difference(&other, None).err().unwrap();
    assert_eq!(
        error.to_string(),
        "other: got 6 queries and 8 keys, want 6 queries and 9 keys, as this run has"
    );
    let error = HeadStats::<f32>::new(0, vec![0.0; 2], vec![1.0]).err().unwrap();
    assert_eq!(error.to_string(), "sum: got shape (1,), want (2,)");
    assert!(head.influence(6).is_err());
    // Nothing to see is no mistake.
    assert_eq!(head.map(&Map::new(Of::Weights).keys(4..4), None).unwrap().dim(), (6, 0));
    assert_eq!(head.map(&Map::new(Of::Weights).size(0, 3), None).unwrap().dim(), (0, 3));
    assert!(head.survey(&Survey::new().queries(2..2), None).unwrap().rows.is_empty());
}

#[test]
fn long_work_can_be_watched_and_stopped() {
    let [query, key, value] = arrays::<f32>(1500, 1500);
    let attention = Attention::new();
    let head = attention.call(query.view(), key.view(), value.view()).inspect(0, 0).unwrap();
    for work in 0..3 {
        let run = |progress: &mut Progress<'_>| match work {
            0 => head.map(&Map::new(Of::Influence), Some(progress)).map(drop),
            1 => head.survey(&Survey::new(), Some(progress)).map(drop),
            _ => head.difference(&head, Some(progress)).map(drop),
        };
        let mut seen = Vec::new();
        run(&mut |done, total| {
            seen.push((done, total));
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(seen[0].0, 0);
        assert!(seen.last().is_some_and(|(done, total)| done == total && *total > 1), "{seen:?}");
        let stopped = run(&mut |_, _| ControlFlow::Break(()));
        assert_eq!(stopped, Err(Error::Cancelled));
    }
}
