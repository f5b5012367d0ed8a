//! Gradients: against differences of the forward pass, and what users of others met.

#[path = "../examples/previous_token.rs"]
#[allow(dead_code)] // what prints
mod previous_token;
mod support;

use std::ops::ControlFlow;

use ndarray::{Array, Array1, Array2, ArrayD, ArrayViewD, Axis, Dimension, IxDyn, arr1, s};
use qkv::{Alibi, Alignment, Attention, AttentionOutput, Element, Gradients, Path, Region, RowStats};
use rayon::prelude::*;
use support::differentiated::{gradients, same_gradients};
use support::{Rng, same_bits};

fn drawn(shape: &[usize], rng: &mut Rng) -> ArrayD<f64> {
    ArrayD::from_shape_simple_fn(IxDyn(shape), || rng.number() / 2.0)
}

fn forward(attention: &Attention<'_>, [q, k, v]: &[ArrayD<f64>; 3]) -> AttentionOutput<f64, IxDyn> {
    attention.call(q.view(), k.view(), v.view()).lse().row_stats().run().unwrap()
}

/// What a test's options are made from.
#[derive(Clone, Copy)]
struct Parts<'p> {
    arrays: &'p [ArrayD<f64>; 3],
    biases: &'p [ArrayD<f64>],
    sinks: &'p [f64],
}

/// A loss whose gradients are `d_output` and `d_lse`.
fn loss(
    attention: &Attention<'_>,
    arrays: &[ArrayD<f64>; 3],
    d_output: &ArrayD<f64>,
    d_lse: &ArrayD<f64>,
) -> f64 {
    let result = forward(attention, arrays);
    let finite = |lse: f64| if lse.is_finite() { lse } else { 0.0 };
    (&result.output * d_output).sum()
        + result.lse.unwrap().iter().zip(d_lse).map(|(&a, b)| finite(a) * b).sum::<f64>()
}

/// Every gradient against central differences, one number at a time.
fn assert_differences(
    what: &str,
    shapes: [&[usize]; 3],
    bias_shapes: &[&[usize]],
    sinks: &[f64],
    options: impl Fn(&Parts<'_>, &mut dyn FnMut(Attention<'_>)),
) {
    let mut rng = Rng::new(7);
    let arrays = shapes.map(|shape| drawn(shape, &mut rng));
    let biases: Vec<_> = bias_shapes.iter().map(|shape| drawn(shape, &mut rng)).collect();
    let parts = Parts { arrays: &arrays, biases: &biases, sinks };
    let mut computed = None;
    options(&parts, &mut |attention| {
        let result = forward(&attention, &arrays);
        let d_output = result.output.mapv(|_| rng.number());
        let d_lse = result.lse.as_ref().unwrap().mapv(|_| rng.number());
        let [q, k, v] = arrays.each_ref().map(|array| array.view());
        let got = gradients(&attention, [q, k, v], &result, d_output.view(), Some(&d_lse));
        computed = Some((got, d_output, d_lse));
    });
    let (got, d_output, d_lse) = computed.unwrap();
    let loss = |parts: &Parts<'_>| {
        let mut sum = 0.0;
        options(parts, &mut |attention| sum = loss(&attention, parts.arrays, &d_output, &d_lse));
        sum
    };

    const STEP: f64 = 1e-5;
    let differ = |change: &dyn Fn(f64) -> f64| (change(STEP) - change(-STEP)) / (2.0 * STEP);
    let check = |which: &str, at: usize, got: f64, wanted: f64| {
        assert!((got - wanted).abs() < 2e-8, "{what}: {which}[{at}]: got {got}, differences give {wanted}");
    };
    let of_arrays = [("d_query", &got.query), ("d_key", &got.key), ("d_value", &got.value)];
    for (which, (name, gradient)) in of_arrays.into_iter().enumerate() {
        for (at, &gradient) in gradient.as_ref().unwrap().iter().enumerate() {
            let wanted = differ(&|step| {
                let mut changed = arrays.clone();
                changed[which].as_slice_mut().unwrap()[at] += step;
                loss(&Parts { arrays: &changed, biases: &biases, sinks })
            });
            check(name, at, gradient, wanted);
        }
    }
    // Options may add others, which stay as they are.
    for (which, gradient) in got.biases.unwrap().iter().take(biases.len()).enumerate() {
        for (at, &gradient) in gradient.iter().enumerate() {
            let wanted = differ(&|step| {
                let mut changed = biases.clone();
                changed[which].as_slice_mut().unwrap()[at] += step;
                loss(&Parts { arrays: &arrays, biases: &changed, sinks })
            });
            check("d_bias", at, gradient, wanted);
        }
    }
    for (at, &gradient) in got.sinks.unwrap_or_default().iter().enumerate() {
        let wanted = differ(&|step| {
            let mut changed = sinks.to_vec();
            changed[at] += step;
            loss(&Parts { arrays: &arrays, biases: &biases, sinks: &changed })
        });
        check("d_sink", at, gradient, wanted);
    }
}

/// Grouped heads among them (a key head's gradient is its group's sum), and every way to mask.
#[test]
fn gradients_are_what_differences_say() {
    let (query, key, value) = (&[2, 4, 5, 3][..], &[2, 2, 7, 3][..], &[2, 2, 7, 2][..]);
    let shapes = [query, key, value];
    let mask = ArrayD::from_shape_fn(IxDyn(&[5, 7]), |at| at[0] != 2 && (at[0] + 3 * at[1]) % 4 != 0);
    let ids = (arr1(&[0i64, 0, 1, 1, 2]), arr1(&[0i64, 0, 0, 1, 1, 2, 2]));
    let parity = |region: &Region, visible: &mut [bool]| {
        visible
            .iter_mut()
            .enumerate()
            .for_each(|(at, visible)| *visible = !(region.head + at).is_multiple_of(3));
    };
    assert_differences("plain", shapes, &[], &[], |_, then| then(Attention::new()));
    assert_differences("causal", shapes, &[], &[], |_, then| {
        then(Attention::new().causal(Alignment::BottomRight))
    });
    assert_differences("prefix", shapes, &[], &[], |_, then| {
        then(Attention::new().causal(Alignment::Offset(2)).prefix([4]).key_offset(1))
    });
    assert_differences("window", shapes, &[], &[], |_, then| {
        then(Attention::new().query_offset(2).window(Some(1), Some(1)))
    });
    assert_differences("lengths", shapes, &[], &[], |_, then| then(Attention::new().key_lengths([3, 6])));
    assert_differences("mask", shapes, &[], &[], |_, then| then(Attention::new().mask(mask.view())));
    assert_differences("closure", shapes, &[], &[], |_, then| then(Attention::new().mask_fn(&parity)));
    assert_differences("segments", shapes, &[], &[], |_, then| {
        then(Attention::new().segments(ids.0.view(), ids.1.view()))
    });
    let steps = |_: &Region, bias: &mut [f64]| {
        bias.iter_mut()
            .enumerate()
            .for_each(|(at, bias)| *bias = if at % 4 == 1 { f64::NEG_INFINITY } else { 0.1 * at as f64 });
    };
    assert_differences("closure of biases", shapes, &[], &[], |_, then| {
        then(Attention::new().bias_fn(&steps))
    });
    let holes = mask.mapv(|visible| if visible { 0.0 } else { f64::NEG_INFINITY });
    assert_differences("biases that mask", shapes, &[&[4, 1, 7]], &[], |parts, then| {
        then(Attention::new().bias(parts.biases[0].view()).bias(holes.view()));
    });
    assert_differences("scale", shapes, &[], &[], |_, then| then(Attention::new().scale(-0.7)));
    assert_differences("softcap", shapes, &[], &[], |_, then| {
        then(Attention::new().softcap(0.9).causal(Alignment::TopLeft))
    });
    assert_differences("dropout", shapes, &[], &[], |_, then| then(Attention::new().dropout(0.4, 6)));
    assert_differences("alibi", shapes, &[], &[], |_, then| {
        then(Attention::new().alibi(Alibi::Paper).scale(1.3))
    });
    assert_differences("slopes", shapes, &[], &[], |_, then| {
        then(Attention::new().alibi(Alibi::Slopes(vec![0.5, -0.25, 0.0, 1.0])).query_offset(3))
    });
    assert_differences("sinks", shapes, &[], &[0.3, -1.0, 0.0, 0.7], |parts, then| {
        then(Attention::new().sinks(parts.sinks).mask(mask.view()));
    });
    assert_differences("all", shapes, &[&[5, 7], &[2, 1, 1, 7]], &[0.3, -1.0, 0.0, 0.7], |parts, then| {
        let attention = Attention::new().sinks(parts.sinks).softcap(1.5).causal(Alignment::BottomRight);
        then(parts.biases.iter().fold(attention, |attention, bias| attention.bias(bias.view())));
    });
    let broadcast: [[&[usize]; 3]; 3] = [
        [&[1, 2, 4, 3], &[3, 1, 5, 3], &[3, 1, 5, 2]],
        [&[3, 2, 4, 3], &[1, 2, 5, 3], &[3, 2, 5, 2]],
        [&[2, 1, 2, 4, 3], &[1, 3, 1, 5, 3], &[2, 1, 1, 5, 2]],
    ];
    for shapes in broadcast {
        assert_differences("broadcast", shapes, &[], &[], |_, then| {
            then(Attention::new().causal(Alignment::TopLeft))
        });
    }
    assert_differences(
        "as many heads as queries",
        [&[2, 4, 4, 3], &[2, 4, 4, 3], &[2, 4, 4, 3]],
        &[],
        &[],
        |_, then| then(Attention::new()),
    );
    assert_differences("one head", [&[4, 3], &[5, 3], &[5, 2]], &[], &[], |_, then| then(Attention::new()));
}

/// xformers #783, flash-sparse-attention PR #190, jax #30593: a bias that broadcasts has the sum, in its own shape.
#[test]
fn a_bias_that_broadcasts_has_a_gradient_of_its_own_shape() {
    let shapes: [&[usize]; 3] = [&[2, 2, 6, 4], &[2, 2, 10, 4], &[2, 2, 10, 3]];
    let axes: [&[usize]; 8] = [
        &[1, 1, 1, 10],
        &[2, 1, 1],
        &[1, 2, 6, 1],
        &[6, 10],
        &[10],
        &[2, 1, 6, 10],
        &[2, 2, 1, 10],
        &[1, 1, 1, 1],
    ];
    for bias in axes {
        assert_differences(&format!("{bias:?}"), shapes, &[bias], &[], |parts, then| {
            then(Attention::new().bias(parts.biases[0].view()));
        });
    }
}

fn returned<T: Element, D: Dimension>(
    attention: &Attention<'_>,
    [q, k, v]: [&Array<T, D>; 3],
) -> (Array<T, D>, RowStats<T, D>) {
    let result = attention.call(q.view(), k.view(), v.view()).row_stats().run().unwrap();
    (result.output, result.row_stats.unwrap())
}

/// pytorch #148476: only the mask needs a gradient. A shift of a row's scores changes nothing, so its gradient sums to 0.
#[test]
fn a_bias_alone_can_have_a_gradient_and_its_rows_sum_to_zero() {
    let [q, k, v] = support::grids::<f64>([&[1, 1, 64, 16]; 3]);
    let bias = support::grid::<f64>(&[1, 1, 64, 64], 3);
    let attention = Attention::new().bias(bias.view());
    let (output, stats) = returned(&attention, [&q, &k, &v]);
    let call = attention.call(q.view(), k.view(), v.view());
    let got = call.backward(output.view(), &stats, v.view()).biases().run().unwrap();
    assert!(got.query.is_none() && got.key.is_none() && got.value.is_none() && got.sinks.is_none());
    let gradient = &got.biases.unwrap()[0];
    assert!(gradient.iter().any(|x| x.abs() > 1e-3));
    for row in gradient.rows() {
        assert!(row.sum().abs() < 1e-13, "{}", row.sum());
    }
}

/// diffusers PR #14341, TransformerEngine #3216: wrong only where heads equal keys, or from the second batch on.
#[test]
fn a_batch_is_its_parts() {
    let arrays = support::grids::<f32>([&[2, 16, 16, 8]; 3]);
    let d_output = support::grid::<f32>(&[2, 16, 16, 8], 4);
    let attention = Attention::new().causal(Alignment::TopLeft);
    let run = |[q, k, v]: [ArrayViewD<'_, f32>; 3], d_output: ArrayViewD<'_, f32>| {
        let forward = attention.call(q.clone(), k.clone(), v.clone()).row_stats().run().unwrap();
        gradients(&attention, [q, k, v], &forward, d_output, None)
    };
    let whole = run(support::views(&arrays), d_output.view());
    for batch in 0..2 {
        let part = |array: &ArrayD<f32>| array.slice(s![batch..batch + 1, .., .., ..]).into_dyn().to_owned();
        let parts = arrays.each_ref().map(part);
        let own = run(support::views(&parts), part(&d_output).view());
        for (whole, own) in [(&whole.query, own.query), (&whole.key, own.key), (&whole.value, own.value)] {
            same_bits("a batch", part(whole.as_ref().unwrap()).view(), own.unwrap().view());
        }
    }
}

/// Tasks of one head wait for each other, and a closure that turns to rayon may find some of its own call, or another call, to do
/// meanwhile: none may wait for what lies below it on its stack.
#[test]
fn calls_whose_closures_turn_to_rayon_end() {
    let arrays = support::grids::<f32>([&[1, 1, 520, 8]; 3]);
    let [q, k, v] = support::views(&arrays);
    let turning = |_: &Region, visible: &mut [bool]| {
        visible.par_chunks_mut(1000).for_each(|some| {
            std::thread::sleep(std::time::Duration::from_micros(100));
            some.fill(true);
        });
    };
    let run = |attention: &Attention<'_>| {
        let (output, stats) = returned(attention, [&arrays[0], &arrays[1], &arrays[2]]);
        let mut report = |_, _| ControlFlow::Continue(());
        let call = attention.call(q.clone(), k.clone(), v.clone()).progress(&mut report);
        call.backward(output.view(), &stats, v.view()).query().key().value().biases().run().unwrap()
    };
    let want = run(&Attention::new());
    for threads in [2, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            (0..12)
                .into_par_iter()
                .for_each(|_| same_gradients(&run(&Attention::new().mask_fn(&turning)), &want));
        });
    }
}

/// pytorch #133671, flash-attention #355: a gradient of the output with other strides.
#[test]
fn strides_of_the_output_gradient_change_nothing() {
    let arrays = support::grids::<f32>([&[2, 3, 70, 24]; 3]);
    let [q, k, v] = support::views(&arrays);
    let attention = Attention::new();
    let forward = attention.call(q.clone(), k.clone(), v.clone()).row_stats().run().unwrap();
    let plain = support::grid::<f32>(&[2, 3, 70, 24], 4);
    let mut turned = ArrayD::zeros(IxDyn(&[24, 70, 3, 2]));
    turned.view_mut().reversed_axes().assign(&plain);
    let run = |d_output| gradients(&attention, [q.clone(), k.clone(), v.clone()], &forward, d_output, None);
    same_gradients(&run(turned.view().reversed_axes()), &run(plain.view()));
    let one = plain.slice(s![..1, .., ..1, ..]).into_dyn();
    let expanded = one.broadcast(IxDyn(&[2, 3, 70, 24])).unwrap();
    same_gradients(&run(expanded.view()), &run(expanded.to_owned().view()));
}

/// Rows that attend nothing, and keys that nobody sees: gradients of exactly 0, whatever they hold.
#[test]
fn what_is_masked_has_no_gradient_and_spoils_none() {
    for len in [6, 130] {
        let shape = [1, 2, len, 20];
        let mut clean = support::grids::<f32>([&shape; 3]);
        let d_clean = support::grid::<f32>(&shape, 4);
        let hidden = [1, len - 2];
        let mask = Array2::from_shape_fn((len, len), |(i, j)| !hidden.contains(&i) && !hidden.contains(&j));
        let attention = Attention::new().mask(mask.view());
        let run = |arrays: &[ArrayD<f32>; 3], d_output: &ArrayD<f32>| {
            let [q, k, v] = support::views(arrays);
            let forward = attention.call(q.clone(), k.clone(), v.clone()).row_stats().run().unwrap();
            gradients(&attention, [q, k, v], &forward, d_output.view(), None)
        };
        let want: Gradients<f32, IxDyn> = run(&clean, &d_clean);
        let mut d_spoilt = d_clean.clone();
        for at in hidden {
            for (array, x) in
                clean.iter_mut().chain([&mut d_spoilt]).zip([f32::NAN, f32::INFINITY, f32::NAN, f32::NAN])
            {
                array.index_axis_mut(Axis(2), at).fill(x);
            }
        }
        let got = run(&clean, &d_spoilt);
        same_gradients(&got, &want);
        for gradient in [&got.query, &got.key, &got.value] {
            let gradient = gradient.as_ref().unwrap();
            for at in hidden {
                assert!(gradient.index_axis(Axis(2), at).iter().all(|&x| x == 0.0));
            }
            assert!(gradient.iter().all(|x| x.is_finite()) && gradient.iter().any(|&x| x != 0.0));
        }
    }
}

/// A visible NaN is not hidden either: its own query, and all keys that this query sees.
#[test]
fn a_visible_nan_reaches_those_who_see_it() {
    let mut arrays = support::grids::<f32>([&[1, 1, 70, 8]; 3]);
    arrays[0][[0, 0, 3, 2]] = f32::NAN;
    let [q, k, v] = support::views(&arrays);
    let attention = Attention::new().causal(Alignment::TopLeft);
    let forward = attention.call(q.clone(), k.clone(), v.clone()).row_stats().run().unwrap();
    let d_output = support::grid::<f32>(&[1, 1, 70, 8], 4);
    let got = gradients(&attention, [q, k, v], &forward, d_output.view(), None);
    let nan_rows = |gradient: Option<ArrayD<f32>>| -> Vec<usize> {
        let gradient = gradient.unwrap();
        (0..70).filter(|&at| gradient.index_axis(Axis(2), at).iter().all(|x| x.is_nan())).collect()
    };
    assert_eq!(nan_rows(got.query), [3]);
    assert_eq!(nan_rows(got.key), [0, 1, 2, 3]);
    assert_eq!(nan_rows(got.value), [0, 1, 2, 3]);
}

/// The more threads there are, the smaller are the tasks; what they share, batches, heads, queries and keys add to in order.
#[test]
fn no_schedule_changes_a_bit() {
    let arrays = support::grids::<f32>([&[1, 4, 333, 40], &[1, 2, 700, 40], &[1, 2, 700, 24]]);
    no_schedule_changes_a_bit_of(&arrays, &[&[333, 700]]);
    no_schedule_changes_a_bit_of(&arrays, &[&[4, 333, 700], &[700], &[4, 1, 1]]);
    let arrays = support::grids::<f32>([&[2, 4, 150, 16], &[1, 2, 300, 16], &[2, 2, 300, 16]]);
    no_schedule_changes_a_bit_of(&arrays, &[&[1, 4, 150, 300], &[2, 1, 150, 1], &[1]]);
}

fn no_schedule_changes_a_bit_of(arrays: &[ArrayD<f32>; 3], biases: &[&[usize]]) {
    let [q, k, v] = support::views(arrays);
    let biases: Vec<_> =
        biases.iter().zip(3..).map(|(shape, seed)| support::grid::<f32>(shape, seed)).collect();
    let mut attention = Attention::new().causal(Alignment::BottomRight);
    for bias in &biases {
        attention = attention.bias(bias.view());
    }
    let forward = attention.call(q.clone(), k.clone(), v.clone()).row_stats().run().unwrap();
    let d_output = support::grid::<f32>(forward.output.shape(), 4);
    let scalar = attention.clone().path(Path::Scalar);
    let run = |attention: &Attention<'_>| {
        gradients(attention, [q.clone(), k.clone(), v.clone()], &forward, d_output.view(), None)
    };
    let want = run(&scalar);
    for threads in [1, 2, 3, 7] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        same_gradients(&pool.install(|| run(&attention)), &want);
    }
}

/// The example as a whole: from where every token is as likely as another to where the one before is all but certain.
#[test]
fn a_head_learns_to_copy_the_previous_token() {
    let losses = previous_token::train(200).unwrap();
    assert!(losses[0] > 2.0 && losses[199] < 0.1, "{} to {}", losses[0], losses[199]);
}

#[test]
fn what_does_not_fit_is_named() {
    let x = Array2::<f32>::ones((3, 4));
    let attention = Attention::new();
    let (output, stats) = returned(&attention, [&x, &x, &x]);
    let call = || attention.call(x.view(), x.view(), x.view());
    let (short, narrow) = (Array2::ones((2, 4)), Array2::ones((3, 3)));
    let message = |result: Result<Gradients<f32, _>, qkv::Error>| result.unwrap_err().to_string();
    let got = message(call().backward(short.view(), &stats, output.view()).query().run());
    assert_eq!(got, "output: got shape (2, 4), want (3, 4)");
    let got = message(call().backward(output.view(), &stats, narrow.view()).query().run());
    assert_eq!(got, "d_output: got shape (3, 3), want (3, 4)");
    let d_lse = Array1::ones(4);
    let got = message(call().backward(output.view(), &stats, output.view()).d_lse(d_lse.view()).run());
    assert_eq!(got, "d_lse: got shape (4,), want (3,)");
    let wrong = RowStats { max: Array1::zeros(2), ..stats.clone() };
    let got = message(call().backward(output.view(), &wrong, output.view()).run());
    assert_eq!(got, "row_stats.max: got shape (2,), want (3,)");
    let got = message(
        attention
            .call(x.view(), narrow.view(), x.view())
            .backward(output.view(), &stats, output.view())
            .run(),
    );
    assert!(got.starts_with("key: got shape (3, 3)"), "{got}");
    let forward = attention.call(x.view(), x.view(), x.view()).run().unwrap();
    let got = message(attention.backward(x.view(), x.view(), x.view(), &forward, output.view()));
    assert_eq!(got, "forward: got no row statistics, want those of each row (Call::row_stats)");
    let mut stop = |_: u64, _: u64| ControlFlow::Break(());
    let backward = call().backward(output.view(), &stats, output.view()).query().progress(&mut stop);
    assert_eq!(message(backward.run()), "cancelled");
}
