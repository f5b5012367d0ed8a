//! Dropout: what users of others met, and what is promised of it. (Every path, type, layout and number of threads:
//! `every_path.rs`; its gradients: `backward.rs`.)

mod support;

use ndarray::{ArrayD, ArrayViewD, Axis, IxDyn, s};
use qkv::{Alignment, Attention, Path};
use support::{grids, on_every_path, same_bits, views};

/// pytorch #124464, #99293: whoever asks for dropout gets it, and 0 is none.
#[test]
fn a_probability_of_0_is_no_dropout_and_of_1_gives_zeros() {
    let arrays = grids::<f32>([&[2, 3, 70, 16], &[2, 3, 130, 16], &[2, 3, 130, 24]]);
    let plain = Attention::new().causal(Alignment::BottomRight);
    let [q, k, v] = views(&arrays);
    let want = plain.forward(q.clone(), k.clone(), v.clone()).unwrap();
    let none = plain.clone().dropout(0.0, 7).forward(q.clone(), k.clone(), v.clone()).unwrap();
    same_bits("probability 0", none.view(), want.view());
    let all = plain.clone().dropout(1.0, 7).forward(q.clone(), k.clone(), v.clone()).unwrap();
    assert!(all.iter().all(|&y| y == 0.0));
    let half = |seed| plain.clone().dropout(0.5, seed).forward(q.clone(), k.clone(), v.clone()).unwrap();
    assert_eq!(half(7), half(7));
    assert!(half(7) != half(8) && half(7) != want);
}

/// pytorch #42929: returned weights that sum to more than 1. Ours are those from before, and so is the log-sum-exp.
#[test]
fn weights_and_log_sum_exp_are_from_before() {
    let arrays = grids::<f32>([&[1, 2, 9, 8]; 3]);
    let [q, k, v] = views(&arrays);
    let run = |attention: Attention<'_>| {
        attention.call(q.clone(), k.clone(), v.clone()).weights().lse().run().unwrap()
    };
    let (plain, dropped) = (run(Attention::new()), run(Attention::new().dropout(0.2, 3)));
    assert_eq!(plain.weights, dropped.weights);
    assert_eq!(plain.lse, dropped.lse);
    assert_ne!(plain.output, dropped.output);
}

/// The output is the mean of what is kept, made up for.
#[test]
fn what_is_kept_is_what_is_mixed() {
    let arrays = grids::<f64>([&[2, 2, 70, 8], &[2, 2, 200, 8], &[2, 2, 200, 5]]);
    let [q, k, v] = views(&arrays);
    let attention = Attention::new().dropout(0.3, 11);
    let call = || attention.call(q.clone(), k.clone(), v.clone());
    let (result, kept) = (call().weights().run().unwrap(), call().kept().unwrap());
    let mixed = result.weights.unwrap() * kept.mapv(|kept| if kept { 1.0 / 0.7 } else { 0.0 });
    for (at, got) in result.output.indexed_iter() {
        let lane = mixed.slice(s![at[0], at[1], at[2], ..]);
        let wanted = lane.dot(&v.slice(s![at[0], at[1], .., at[3]]));
        assert!((got - wanted).abs() < 1e-13, "{got} {wanted}");
    }
}

/// pytorch PR #187225: the same pairs are kept whatever the threads and tiles, as many as should be, and no two heads alike.
#[test]
fn a_pair_has_its_fate_from_seed_and_place_alone() {
    let arrays = grids::<f32>([&[2, 3, 130, 4], &[2, 3, 257, 4], &[2, 3, 257, 4]]);
    let [q, k, v] = views(&arrays);
    let attention = Attention::new().dropout(0.25, 1 << 40);
    let kept = attention.call(q.clone(), k.clone(), v.clone()).kept().unwrap();
    let pairs = kept.len() as f64;
    let share = kept.iter().filter(|&&kept| kept).count() as f64 / pairs;
    assert!((share - 0.75).abs() < 4.0 * (0.25 * 0.75 / pairs).sqrt(), "{share}");
    let heads: Vec<_> = kept
        .axis_iter(Axis(0))
        .flat_map(|batch| batch.axis_iter(Axis(0)).map(|head| head.to_owned()).collect::<Vec<_>>())
        .collect();
    for (at, head) in heads.iter().enumerate() {
        assert!(heads[..at].iter().all(|other| other != head));
    }
    on_every_path(&attention, [q.clone(), k.clone(), v.clone()]);
    // A part of a call is told where it stands.
    let part = |array: &ArrayViewD<'_, f32>| array.slice(s![1..2, 1..3, .., ..]).into_dyn().to_owned();
    let parts = [part(&q), part(&k), part(&v)];
    let [q_part, k_part, v_part] = views(&parts);
    let of_part = attention.clone().dropout_offsets(1, 1);
    let whole = attention.forward(q.clone(), k.clone(), v.clone()).unwrap();
    let got = of_part.forward(q_part, k_part, v_part).unwrap();
    same_bits("a part", got.view(), part(&whole.view()).view());
}

/// Queries that come one after the other, over a cache that lost its beginning, meet the same pairs.
#[test]
fn positions_decide_and_not_places_in_an_array() {
    let arrays = grids::<f32>([&[1, 2, 100, 8]; 3]);
    let [q, k, v] = views(&arrays);
    let causal = |at| Attention::new().causal(Alignment::Offset(at)).window(Some(20), None).dropout(0.4, 5);
    let whole = causal(0).forward(q.clone(), k.clone(), v.clone()).unwrap();
    for (query, dropped) in [(3usize, 0usize), (64, 44), (99, 70)] {
        let rows = |array: &ArrayViewD<'_, f32>, rows: std::ops::Range<usize>| -> ArrayD<f32> {
            array.slice_axis(Axis(2), rows.into()).to_owned()
        };
        let last = rows(&q, query..query + 1);
        let (keys, values) = (rows(&k, dropped..query + 1), rows(&v, dropped..query + 1));
        let attention = causal(query as i64).key_offset(dropped as i64);
        let got = attention.forward(last.view(), keys.view(), values.view()).unwrap();
        same_bits("one query", got.view(), rows(&whole.view(), query..query + 1).view());
    }
}

/// A dropped value is not looked at, even if it is NaN; a kept one is.
#[test]
fn what_a_dropped_value_holds_does_not_matter() {
    let mut arrays = grids::<f32>([&[1, 1, 40, 8], &[1, 1, 90, 8], &[1, 1, 90, 8]]);
    let attention = Attention::new().dropout(0.5, 9);
    let run = |arrays: &[ArrayD<f32>; 3], path| {
        let [q, k, v] = views(arrays);
        attention.clone().path(path).forward(q, k, v).unwrap()
    };
    let [q, k, v] = views(&arrays);
    let kept = attention.call(q, k, v).kept().unwrap();
    let clean = run(&arrays, Path::Scalar);
    arrays[2].slice_mut(s![.., .., 70, ..]).fill(f32::NAN);
    for path in Path::ALL {
        let got = run(&arrays, path);
        for query in 0..40 {
            let row = |output: &ArrayD<f32>| output.slice(s![0, 0, query, ..]).to_owned();
            match kept[IxDyn(&[0, 0, query, 70])] {
                true => assert!(row(&got).iter().all(|y| y.is_nan())),
                false => assert_eq!(row(&got), row(&clean), "{path}"),
            }
        }
    }
}

#[test]
fn what_is_no_probability_is_refused() {
    let x = support::grid::<f32>(&[3, 4], 0);
    for (probability, shown) in [(-0.1, "-0.1"), (1.5, "1.5"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        let error =
            Attention::new().dropout(probability, 0).forward(x.view(), x.view(), x.view()).unwrap_err();
        assert_eq!(error.to_string(), format!("dropout: got {shown}, want a probability from 0 to 1"));
    }
    let error = Attention::new().dropout(0.5, 0);
    let error = error.call(x.view(), x.view(), x.view()).partial().unwrap_err();
    assert_eq!(error.to_string(), "dropout: got dropout in a partial, want none, for it has no weights yet");
}

/// What is looked at is from before.
#[test]
fn traces_and_influence_have_no_dropout() {
    let x = ndarray::array![[1.0f32, 0.0], [0.0, 2.0], [0.5, -1.0]];
    let (plain, dropping) = (Attention::new(), Attention::new().dropout(0.5, 3));
    let call = |attention: &Attention<'_>| {
        let call = || attention.call(x.view(), x.view(), x.view());
        let trace = call().trace().unwrap();
        (trace, call().trace_head((0, 0), 1..3).unwrap(), call().influence((0, 0, 1)).unwrap())
    };
    assert_eq!(call(&dropping), call(&plain));
    let output = |attention: &Attention<'_>| attention.forward(x.view(), x.view(), x.view()).unwrap();
    assert_ne!(output(&dropping), output(&plain));
}
