//! Public bug reports of other engines about who may attend whom, held against this one: masks of every form, causal
//! order, windows, key lengths, and rubbish in what is hidden.

mod support;

use std::ops::Range;

use ndarray::{Array1, Array2, ArrayD, ArrayView1, ArrayViewD, Axis, IxDyn, Slice, s};
use qkv::{Alignment, Attention, AttentionOutput, Element, Path, Region, bf16, f16};
use support::{
    LAYOUTS, Rng, Shapes, Views, bits, close, element, grid, grids, laid_out, number, of_every_type,
    on_every_path, part, same_bits, same_results, textbook, tolerance, views, ways,
};

const BASE: Shapes = [&[1, 2, 6, 8], &[1, 2, 10, 8], &[1, 2, 10, 8]];
const SQUARE: Shapes = [&[1, 1, 64, 8]; 3];

/// The mask as numbers: 0 where it may attend, -∞ where not.
fn twin<T: Element>(mask: ArrayViewD<'_, bool>) -> ArrayD<T> {
    mask.mapv(|visible| element(if visible { 0.0 } else { f64::NEG_INFINITY }))
}

/// pytorch #103749, #147209: a boolean mask and its 0/-∞ twin that differ.
#[test]
fn a_boolean_mask_and_its_twin_of_any_float_type_give_the_same_bits() {
    fn check<T: Element>() {
        let mut rng = Rng::new(7);
        let arrays = grids::<T>([&[2, 4, 7, 8], &[2, 2, 139, 8], &[2, 2, 139, 5]]);
        let mut mask = ArrayD::from_shape_simple_fn(vec![2, 4, 7, 139], || rng.below(3) == 0);
        mask.slice_axis_mut(Axis(2), Slice::from(2..3)).fill(false);
        mask.slice_axis_mut(Axis(3), Slice::from(64..128)).fill(false);
        let want = on_every_path(&Attention::new().mask(mask.view()), views(&arrays));
        let (halves, bhalves) = (twin::<f16>(mask.view()), twin::<bf16>(mask.view()));
        let (singles, doubles) = (twin::<f32>(mask.view()), twin::<f64>(mask.view()));
        for (name, attention) in [
            ("f16", Attention::new().bias(halves.view())),
            ("bf16", Attention::new().bias(bhalves.view())),
            ("f32", Attention::new().bias(singles.view())),
            ("f64", Attention::new().bias(doubles.view())),
        ] {
            same_results(name, &on_every_path(&attention, views(&arrays)), &want);
        }
        // The row that sees nothing is exactly 0 everywhere, and -∞.
        let zero = |array: &ArrayD<T>| array.index_axis(Axis(2), 2).iter().all(|&x| bits(x) == 0);
        assert!(zero(&want.output) && zero(want.weights.as_ref().unwrap()));
        let lse = want.lse.unwrap();
        assert!(lse.index_axis(Axis(2), 2).iter().all(|&lse| number(lse) == f64::NEG_INFINITY));
        assert!(want.output.iter().all(|&y| number(y).is_finite()));
    }
    of_every_type!(check());
}

/// pytorch #127055, executorch #10466: a running maximum that is still -∞ after a tile.
#[test]
fn a_run_of_visible_keys_may_begin_and_end_anywhere() {
    const LEN: usize = 300;
    let arrays = grids::<f32>([&[1, 1, 131, 4], &[1, 1, LEN, 4], &[1, 1, LEN, 4]]);
    let [q, k, v] = views(&arrays);
    for run in [1, 61, 64] {
        // One row for each offset; and its mirror, so that the hidden tiles come after.
        for mirror in [false, true] {
            let sees = |i: usize, j: usize| (i..i + run).contains(&if mirror { LEN - 1 - j } else { j });
            let mask = Array2::from_shape_fn((131, LEN), |(i, j)| sees(i, j));
            let got = on_every_path(&Attention::new().mask(mask.view()), views(&arrays));
            let (output, lse) = textbook(views(&arrays), 0.5, |[_, _, i, j], s| sees(i, j).then_some(s));
            close("output", got.output.view(), output.view(), 2.0 * tolerance::<f32>());
            close("lse", got.lse.as_ref().unwrap().view(), lse.view(), 8e-6);
            // Alone, so that whole tiles are hidden from all rows at once; and with the hidden keys cut away.
            for i in 0..131 {
                let start = if mirror { LEN - i - run } else { i };
                let row = part(got.output.view(), 2, i..i + 1);
                let one = part(q.clone(), 2, i..i + 1);
                let [cut_k, cut_v] = [&k, &v].map(|array| part(array.clone(), 2, start..start + run));
                for path in [Path::Prefill, Path::Decode] {
                    let alone = Attention::new().path(path).mask(mask.row(i));
                    let alone = alone.forward(one.clone(), k.clone(), v.clone()).unwrap();
                    same_bits(&format!("{path}: {i} alone"), alone.view(), row.clone());
                    let cut = Attention::new().path(path).key_offset(start as i64);
                    let cut = cut.forward(one.clone(), cut_k.clone(), cut_v.clone()).unwrap();
                    same_bits(&format!("{path}: {i} cut"), cut.view(), row.clone());
                }
            }
        }
    }
}

/// transformers #27114: two masks that are each as low as a number goes add up to -∞.
/// A softcap takes a product that overflowed to its own end, before scores stop at the lowest finite number.
#[test]
fn a_softcap_larger_than_scores_can_be_is_the_same_on_every_path() {
    let arrays = grids::<f32>(BASE).map(|array| array.mapv(|x| x * 1e19));
    for cap in [5e37, 1e38, 30.0] {
        let capped = Attention::new().softcap(cap).scale(1.0);
        let got = on_every_path(&capped, views(&arrays));
        assert!(got.output.iter().all(|y| y.is_finite()));
        on_every_path(&capped.causal(Alignment::BottomRight), views(&arrays));
    }
}

#[test]
fn finite_biases_never_add_up_to_a_mask() {
    fn check<T: Element>(lowest: T) {
        let arrays = grids::<T>(BASE);
        let rows = |of_row_0: f64| -> ArrayD<T> {
            ArrayD::from_shape_fn(vec![6, 1], |i| element(if i[0] == 0 { of_row_0 } else { 0.0 }))
        };
        let low = rows(number(lowest));
        let low = low.mapv(number);
        let got = on_every_path(&Attention::new().bias(low.view()).bias(low.view()), views(&arrays));
        assert!(got.output.iter().all(|&y| number(y).is_finite()));
        let plain = on_every_path(&Attention::new(), views(&arrays));
        same_bits("other rows", part(got.output.view(), 2, 1..6), part(plain.output.view(), 2, 1..6));
        let mean = on_every_path(&Attention::new().scale(0.0), views(&arrays));
        if lowest.widen() == element(-f64::from(f32::MAX)) {
            // The sums stop at the lowest finite number, so all keys are alike: the mean of the values.
            same_bits("row 0", part(got.output.view(), 2, 0..1), part(mean.output.view(), 2, 0..1));
        } else {
            // -131008 fits the accumulator: scores are left with steps of 1/128, and weights within 1.2 %.
            let want = part(plain.output.view(), 2, 0..1).mapv(number);
            close("row 0", part(got.output.view(), 2, 0..1), want.view(), 0.03 * 2.0);
        }
    }
    check::<f32>(-f32::MAX);
    check::<f16>(f16::MIN);
}

/// Rubbish in some keys and values changes nothing in the rows that are blind to them.
fn rubbish_stays_out<T: Element>(
    what: &str,
    attention: &Attention<'_>,
    [q, k, v]: Views<'_, T>,
    spoiled: Range<usize>,
    blind: Range<usize>,
) {
    let clean = on_every_path(attention, [q.clone(), k.clone(), v.clone()]);
    let spoil = |array: &ArrayViewD<'_, T>, x: f64| {
        let mut array = array.to_owned();
        array.slice_axis_mut(Axis(2), Slice::from(spoiled.clone())).fill(element(x));
        array
    };
    for rubbish in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e30] {
        let (bad_k, bad_v) = (spoil(&k, rubbish), spoil(&v, rubbish));
        let pairs = [(k.clone(), bad_v.view()), (bad_k.view(), v.clone()), (bad_k.view(), bad_v.view())];
        for (k, v) in pairs {
            let got = on_every_path(attention, [q.clone(), k, v]);
            let rows = |result: &AttentionOutput<T, IxDyn>| {
                let of = |array: ArrayViewD<'_, T>| part(array, 2, blind.clone()).to_owned();
                (of(result.output.view()), of(result.weights.as_ref().unwrap().view()))
            };
            let (got_rows, want_rows) = (rows(&got), rows(&clean));
            let what = format!("{what}, {rubbish}, {}", T::NAME);
            same_bits(&what, got_rows.0.view(), want_rows.0.view());
            same_bits(&what, got_rows.1.view(), want_rows.1.view());
            let lse = |result: &AttentionOutput<T, IxDyn>| {
                part(result.lse.as_ref().unwrap().view(), 2, blind.clone()).to_owned()
            };
            same_bits(&what, lse(&got).view(), lse(&clean).view());
        }
    }
}

/// pytorch #101967: 0 · NaN and NaN + -∞.
#[test]
fn nothing_in_a_hidden_key_or_value_reaches_the_output() {
    fn check<T: Element>() {
        let counting = ArrayD::from_shape_fn(vec![1, 2, 2, 4], |i| element::<T>((4 * i[2] + i[3]) as f64));
        let (first, last) =
            (Array1::from(vec![true, false]), ArrayD::from_shape_fn(vec![130], |j| j[0] < 129));
        let first_only = Attention::new().mask(first.view());
        let got = on_every_path(&first_only, [(); 3].map(|()| counting.view()));
        for i in 0..2 {
            same_bits("v[0]", part(got.output.view(), 2, i..i + 1), part(counting.view(), 2, 0..1));
        }
        rubbish_stays_out("counting", &first_only, [(); 3].map(|()| counting.view()), 1..2, 0..2);

        let arrays = grids::<T>([&[1, 2, 3, 8], &[1, 1, 130, 8], &[1, 1, 130, 8]]);
        let minus = twin::<f32>(last.view());
        let ids = [Array1::zeros(3), Array1::from_shape_fn(130, |j| i64::from(j == 129))];
        let from_closure = |region: &Region, visible: &mut [bool]| {
            for (index, visible) in visible.iter_mut().enumerate() {
                *visible = region.keys.start + ((index % region.width()) as i64) < 129;
            }
        };
        let minus_from_closure = |region: &Region, bias: &mut [f64]| {
            for (index, bias) in bias.iter_mut().enumerate() {
                let hidden = region.keys.start + (index % region.width()) as i64 == 129;
                *bias = if hidden { f64::NEG_INFINITY } else { 0.25 };
            }
        };
        let plain = Attention::new();
        for (what, attention) in [
            ("mask", plain.clone().mask(last.view())),
            ("bias", plain.clone().bias(minus.view())),
            ("softcap and mask", plain.clone().softcap(2.0).mask(last.view())),
            ("lengths", plain.clone().key_lengths([129])),
            ("window", plain.clone().query_offset(100).window(None, Some(26))),
            ("segments", plain.clone().segments(ids[0].view(), ids[1].view())),
            ("mask closure", plain.clone().mask_fn(&from_closure)),
            ("bias closure", plain.clone().bias_fn(&minus_from_closure)),
            ("causal", plain.clone().causal(Alignment::Offset(126))),
        ] {
            rubbish_stays_out(what, &attention, views(&arrays), 129..130, 0..3);
        }
        // Two of three rows are blind; the third is NaN, and that is its own affair.
        rubbish_stays_out("causal", &plain.causal(Alignment::BottomRight), views(&arrays), 129..130, 0..2);
    }
    check::<f32>();
    check::<f16>();
}

/// pytorch #141128: the guard for rows that see nothing caught rows of NaN.
#[test]
fn a_query_of_nan_gives_a_row_of_nan_and_no_other() {
    fn check<T: Element>() {
        let [mut q, k, v] = grids::<T>(BASE);
        let clean = on_every_path(&Attention::new(), [q.view(), k.view(), v.view()]);
        q.slice_mut(s![0, 0, 2, ..]).fill(element(f64::NAN));
        let got = on_every_path(&Attention::new(), [q.view(), k.view(), v.view()]);
        let mut want = clean.output;
        want.slice_mut(s![0, 0, 2, ..]).fill(element(f64::NAN));
        same_bits("output", got.output.view(), want.view());
        assert!(number(got.lse.unwrap()[[0, 0, 2]]).is_nan());
        // Where it may attend nothing, it is a row that attends nothing.
        let nothing = Array2::from_shape_fn((6, 1), |(i, _)| i != 2);
        let hidden = on_every_path(&Attention::new().mask(nothing.view()), [q.view(), k.view(), v.view()]);
        assert!(hidden.output.index_axis(Axis(2), 2).iter().all(|&y| bits(y) == 0));
    }
    of_every_type!(check());
}

/// pytorch #170415, #120668: masks taken for their opposite.
#[test]
fn true_in_a_mask_is_may_attend() {
    let zeros = ArrayD::<f32>::zeros(vec![1, 1, 4, 2]);
    let value = ArrayD::from_shape_fn(vec![1, 1, 4, 1], |i| i[2] as f32);
    let above = Array2::from_shape_fn((4, 4), |(i, j)| j > i);
    let got = on_every_path(&Attention::new().mask(above.view()), [zeros.view(), zeros.view(), value.view()]);
    assert_eq!(got.output.iter().copied().collect::<Vec<_>>(), [2.0, 2.5, 3.0, 0.0]);
    let visible = Attention::new().mask(above.view()).visible(4, 4).unwrap();
    assert_eq!(visible, above);
}

/// onnx #7865, onnxruntime #28379, burn #4476, llama.cpp #29034: capped keys that are hidden, or do not exist.
#[test]
fn a_softcap_gives_no_weight_to_hidden_keys_or_to_the_padding_of_a_tile() {
    let zeros = |len: usize| ArrayD::<f32>::zeros(vec![1, 1, len, 4]);
    let value = ArrayD::from_shape_vec(vec![1, 1, 2, 1], vec![1.0, 1000.0]).unwrap();
    let mask = Array1::from(vec![true, false]);
    let capped = Attention::new().softcap(1.0);
    for attention in [capped.clone().mask(mask.view()), capped.clone().key_lengths([1])] {
        let got = on_every_path(&attention, [zeros(1).view(), zeros(2).view(), value.view()]);
        assert_eq!(got.output[[0, 0, 0, 0]], 1.0);
    }
    for len_key in [1, 15, 17, 63, 65, 127, 129] {
        let ones = ArrayD::<f32>::ones(vec![1, 1, len_key, 3]);
        for len_query in [1, 9] {
            let got = on_every_path(&capped, [zeros(len_query).view(), zeros(len_key).view(), ones.view()]);
            assert!(got.output.iter().all(|&y| y == 1.0), "{len_query} queries, {len_key} keys");
        }
    }
}

/// onnxruntime #24017, pytorch #128816: offsets and bounds of masks that broadcast.
#[test]
fn a_mask_or_bias_of_every_form_that_broadcasts_equals_its_expanded_copy() {
    const FULL: [usize; 4] = [2, 4, 5, 70];
    let arrays = grids::<f32>([&[2, 4, 5, 8], &[2, 2, 70, 8], &[2, 2, 70, 8]]);
    // The trailing axes of each rank down to none, each as it is or of length 1.
    let forms = (0..=4usize).flat_map(|rank| {
        (0..1usize << rank).map(move |ones| -> Vec<usize> {
            let axes = FULL[4 - rank..].iter().enumerate();
            axes.map(|(axis, &extent)| if ones >> axis & 1 == 1 { 1 } else { extent }).collect()
        })
    });
    for shape in forms {
        let mut rng = Rng::new(shape.iter().sum::<usize>() as u64);
        let mask = ArrayD::from_shape_simple_fn(shape.clone(), || rng.below(3) != 0);
        let bias = grid::<f32>(&shape, 3);
        let whole_mask = mask.broadcast(FULL.to_vec()).unwrap().as_standard_layout().into_owned();
        let whole_bias = bias.broadcast(FULL.to_vec()).unwrap().as_standard_layout().into_owned();
        let got = on_every_path(&Attention::new().mask(mask.view()), views(&arrays));
        let want = on_every_path(&Attention::new().mask(whole_mask.view()), views(&arrays));
        same_results(&format!("mask {shape:?}"), &got, &want);
        let got = on_every_path(&Attention::new().bias(bias.view()), views(&arrays));
        let want = on_every_path(&Attention::new().bias(whole_bias.view()), views(&arrays));
        same_results(&format!("bias {shape:?}"), &got, &want);
    }
}

#[test]
fn a_bias_that_is_one_number_for_a_row_cancels() {
    let arrays = grids::<f64>(BASE);
    let plain = on_every_path(&Attention::new(), views(&arrays)).output;
    for shape in [&[1, 2, 6, 1][..], &[6, 1], &[1, 1, 1, 1], &[2, 1, 1]] {
        let bias = grid::<f32>(shape, 3);
        let got = on_every_path(&Attention::new().bias(bias.view()), views(&arrays));
        close(&format!("{shape:?}"), got.output.view(), plain.view(), 1e-13);
    }
}

/// pytorch #178271, #120810: as many batches as heads, and the mask for each batch becomes one for each head.
#[test]
fn a_mask_of_three_axes_is_one_for_each_head_of_a_call_with_four() {
    let arrays = grids::<f32>([&[3, 3, 4, 8], &[3, 3, 6, 8], &[3, 3, 6, 8]]);
    let mask = ArrayD::from_shape_fn(vec![3, 4, 6], |i| i[2] < 2 * (i[0] + 1));
    let got = on_every_path(&Attention::new().mask(mask.view()), views(&arrays)).output;
    for head in 0..3 {
        let alone = Attention::new().key_lengths([2 * (head + 1)]);
        let of_head = views(&arrays).map(|array| part(array, 1, head..head + 1));
        same_bits(
            "a head",
            part(got.view(), 1, head..head + 1),
            on_every_path(&alone, of_head).output.view(),
        );
    }
    let for_batches = mask.view().insert_axis(Axis(1));
    let got = on_every_path(&Attention::new().mask(for_batches), views(&arrays)).output;
    let want = on_every_path(&Attention::new().key_lengths([2, 4, 6]), views(&arrays)).output;
    same_bits("with the axis for heads", got.view(), want.view());
}

/// flash-attention #1778, mlx #2967: more queries than keys, aligned to the end.
#[test]
fn rows_before_the_first_key_are_zero_whatever_the_output_held() {
    for (len_query, len_key) in [(5, 2), (300, 65), (2048, 1024)] {
        let (query, key) = ([1, 1, len_query, 4], [1, 1, len_key, 4]);
        let arrays = grids::<f32>([&query, &key, &key]);
        let [q, k, v] = views(&arrays);
        let early = len_query - len_key;
        let last = early + 66.min(len_key);
        // The rows around the first that sees a key, by the textbook; row i sees i + 1 - early keys.
        let (want, _) =
            textbook([part(q.clone(), 2, early..last), k.clone(), v.clone()], 0.5, |[_, _, i, j], s| {
                (j <= i).then_some(s)
            });
        for (path, simd) in ways() {
            let mut output = ArrayD::from_elem(query.to_vec(), f32::NAN);
            let attention = Attention::new().causal(Alignment::BottomRight).path(path).simd(simd);
            attention.forward_into(q.clone(), k.clone(), v.clone(), output.view_mut()).unwrap();
            assert!(part(output.view(), 2, 0..early).iter().all(|&y| bits(y) == 0), "{path} on {simd}");
            assert!(output.iter().all(|y| y.is_finite()), "{path} on {simd}");
            close("rows", part(output.view(), 2, early..last), want.view(), 2.0 * tolerance::<f32>());
        }
    }
}

/// pytorch #187801, #118972, keras #23040: one of mask and causal order is ignored.
#[test]
fn causal_order_and_a_mask_intersect() {
    let arrays = grids::<f32>(BASE);
    let mask = Array1::from_shape_fn(10, |j| j > 0);
    let both_at_once = Array2::from_shape_fn((6, 10), |(i, j)| 0 < j && j <= i);
    let causal = Attention::new().causal(Alignment::TopLeft);
    let got = on_every_path(&causal.clone().mask(mask.view()), views(&arrays));
    let want = on_every_path(&Attention::new().mask(both_at_once.view()), views(&arrays));
    same_results("both", &got, &want);
    assert!(got.output.index_axis(Axis(2), 0).iter().all(|&y| bits(y) == 0));
    for one in [causal, Attention::new().mask(mask.view())] {
        assert_ne!(on_every_path(&one, views(&arrays)).output, got.output);
    }
}

/// keras #23038, transformers #30652, xformers #103: causal order lives in one path and is lost on another.
#[test]
fn no_other_option_loses_the_causal_order() {
    fn check<T: Element>(rank: usize, dim_value: usize, layout: usize, bias: Option<&ArrayD<f32>>) {
        let shape = |dim: usize| [vec![1; rank - 2], vec![64, dim]].concat();
        let (narrow, wide) = (shape(8), shape(dim_value));
        let clean = grids::<T>([&narrow, &narrow, &wide]);
        let mut spoiled = clean.clone();
        for array in &mut spoiled[1..] {
            array.slice_axis_mut(Axis(rank - 2), Slice::from(32..)).fill(element(f64::NAN));
        }
        let laid = |arrays: &[ArrayD<T>; 3]| arrays.each_ref().map(|array| laid_out(array, layout));
        let (clean, spoiled) = (laid(&clean), laid(&spoiled));
        for path in [Path::Prefill, Path::Decode] {
            let mut attention = Attention::new().causal(Alignment::TopLeft).path(path);
            if let Some(bias) = bias {
                attention = attention.bias(bias.view());
            }
            let [[clean, with_weights], [bad, bad_weights]] = [&clean, &spoiled].map(|arrays| {
                let call = || attention.call(arrays[0].view(), arrays[1].view(), arrays[2].view());
                let (alone, result) = (call().run().unwrap().output, call().weights().run().unwrap());
                same_bits("with weights", result.output.view(), alone.view());
                [alone, result.weights.unwrap()]
            });
            let what = format!("rank {rank}, dim_value {dim_value}, layout {layout}, {path}, {}", T::NAME);
            for (at, &weight) in with_weights.indexed_iter() {
                assert!(at[rank - 1] <= at[rank - 2] || bits(weight) == 0, "{what}: weight at {at:?}");
            }
            for (bad, clean) in [(&bad, &clean), (&bad_weights, &with_weights)] {
                let early = |array| part(array, rank - 2, 0..32);
                same_bits(&what, early(bad.view()), early(clean.view()));
                let late = part(bad.view(), rank - 2, 32..64);
                assert!(late.iter().any(|&y| number(y).is_nan()), "{what}: the rubbish was not seen");
            }
            if bias.is_none() && dim_value == 8 {
                let sum: f64 = clean.iter().map(|&y| number(y)).sum();
                assert!((sum - -11.976152295).abs() < 1e-3, "{what}: {sum}");
            }
        }
    }
    let bias = grid::<f32>(&[64, 64], 3);
    for rank in 2..=5 {
        for (dim_value, bias) in [(8, None), (8, Some(&bias)), (5, None), (5, Some(&bias))] {
            // Layout 1 swaps heads and rows, which rank 2 has not; layout 5 shares one row for all.
            for layout in (0..LAYOUTS - 1).filter(|&layout| rank > 2 || layout != 1) {
                check::<f32>(rank, dim_value, layout, bias);
                check::<f64>(rank, dim_value, layout, bias);
            }
        }
    }
}

/// flash-attention #1133, #2624: a bound of 0 taken for no bound.
#[test]
fn a_window_bound_of_zero_is_the_query_alone_and_a_wide_one_is_no_bound() {
    let arrays = grids::<f32>(SQUARE);
    let own = on_every_path(&Attention::new().window(Some(0), Some(0)), views(&arrays));
    same_bits("the value itself", own.output.view(), arrays[2].view());
    let causal = on_every_path(&Attention::new().causal(Alignment::TopLeft), views(&arrays));
    for left in [Some(63), Some(u64::MAX), None] {
        let got = on_every_path(&Attention::new().window(left, Some(0)), views(&arrays));
        same_results(&format!("{left:?}"), &got, &causal);
    }
    let visible = Attention::new().window(Some(7), Some(0)).visible(64, 64).unwrap();
    for (i, row) in visible.rows().into_iter().enumerate() {
        let seen: Vec<usize> = (0..64).filter(|&j| row[j]).collect();
        assert_eq!(seen, (i.saturating_sub(7)..=i).collect::<Vec<_>>());
    }
}

/// jax #23349, onnx #8068, onnxruntime #20521: key lengths ignored, or old slots of a cache read.
#[test]
fn key_lengths_are_the_same_as_a_shorter_cache() {
    fn check<T: Element>(len_key: usize, lengths: [usize; 4]) {
        let key = [4, 2, len_key, 8];
        let [q, mut k, mut v] = grids::<T>([&[4, 4, 3, 8], &key, &key]);
        for array in [&mut k, &mut v] {
            for (mut batch, &length) in array.outer_iter_mut().zip(&lengths) {
                batch.slice_axis_mut(Axis(1), Slice::from(length..)).fill(element(f64::NAN));
            }
        }
        let call = [q.view(), k.view(), v.view()];
        let got = on_every_path(&Attention::new().key_lengths(lengths), call.clone());
        let ends = on_every_path(
            &Attention::new().key_lengths(lengths).causal(Alignment::BottomRight),
            call.clone(),
        );
        for (b, &length) in lengths.iter().enumerate() {
            let [q, k, v] = call.clone().map(|array| part(array, 0, b..b + 1));
            let [k, v] = [k, v].map(|array| part(array, 2, 0..length));
            let arrays = [q, k, v];
            let want = on_every_path(&Attention::new(), arrays.clone()).output;
            same_bits(&format!("length {length}"), part(got.output.view(), 0, b..b + 1), want.view());
            let want = on_every_path(&Attention::new().causal(Alignment::BottomRight), arrays).output;
            same_bits(&format!("causal, {length}"), part(ends.output.view(), 0, b..b + 1), want.view());
            assert!(length > 0 || want.iter().all(|&y| bits(y) == 0));
        }
    }
    check::<f32>(16, [0, 1, 15, 16]);
    check::<bf16>(130, [0, 64, 65, 129]);
}

/// Hidden keys are as good as deleted: the positions of the others are all that a row knows of them.
#[test]
fn keys_hidden_in_the_middle_are_as_good_as_rubbish_or_zero() {
    let arrays = grids::<f32>([&[1, 2, 9, 8], &[1, 2, 600, 8], &[1, 2, 600, 8]]);
    let hidden = 60..580;
    let mask = Array1::from_shape_fn(600, |j| !hidden.contains(&j));
    let attention = Attention::new().mask(mask.view());
    let got = on_every_path(&attention, views(&arrays));
    let keep = |array: &ArrayD<f32>| {
        let both = [part(array.view(), 2, 0..60), part(array.view(), 2, 580..600)];
        ndarray::concatenate(Axis(2), &both).unwrap()
    };
    let (k, v) = (keep(&arrays[1]), keep(&arrays[2]));
    let short = on_every_path(&Attention::new(), [arrays[0].view(), k.view(), v.view()]);
    let want = short.output.mapv(f64::from);
    close("output", got.output.view(), want.view(), 2.0 * tolerance::<f32>());
    let ones: ArrayView1<'_, bool> = mask.view();
    assert_eq!(ones.iter().filter(|&&visible| visible).count(), 80);
    rubbish_stays_out("the middle", &attention, views(&arrays), hidden, 0..9);
}
