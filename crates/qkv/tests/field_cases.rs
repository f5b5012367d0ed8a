//! Public bug reports of other engines, held against this one: known answers, sizes, number types, partials and
//! threads. Masks are in `field_masks.rs`, memory layouts in `field_layouts.rs`.
//!
//! The inputs are `support::grid`, exact in every type, so that a known answer holds for all four.

mod support;

use ndarray::{Array2, Array3, ArrayD, ArrayViewD, ArrayViewMutD, Axis, Dimension, IxDyn, Slice, s};
use qkv::{Alignment, Attention, AttentionOutput, Element, Path, bf16, error_limit, f16, merge};
use support::{
    Shapes, Views, bits, close, element, grid, grids, largest, number, of_every_type, on_every_path, part,
    same_bits, same_results, textbook, tolerance, views,
};

/// What a call must give: the sum of all outputs, one output, and the log-sum-exp of its row.
struct Print {
    sum: f64,
    at: [usize; 4],
    output: f64,
    lse: f64,
}

const BASE: Shapes = [&[1, 2, 6, 8], &[1, 2, 10, 8], &[1, 2, 10, 8]];
const SQUARE: Shapes = [&[1, 1, 64, 8]; 3];

/// Holds a call to its known answer in every type, and to what is true of any call.
#[track_caller]
fn known(attention: &Attention<'_>, shapes: Shapes, print: &Print) {
    of_every_type!(known_in(attention, shapes, print));
}

#[track_caller]
fn known_in<T: Element>(attention: &Attention<'_>, shapes: Shapes, print: &Print) {
    let arrays = grids::<T>(shapes);
    let got = on_every_path(attention, views(&arrays));
    let [b, h, i, _] = print.at;
    // The printed digits end at half of 1e-9.
    let limit = tolerance::<T>() * largest(arrays[2].view()) + 1e-9;
    let output = number(got.output[&print.at[..]]);
    assert!((output - print.output).abs() <= limit, "{}: output {output}", T::NAME);
    // Scores are below 16 here and go through about 16 roundings of the accumulator type, as in `f32` for halves.
    let lse = number(got.lse.as_ref().unwrap()[[b, h, i]]);
    let of_lse = if T::NAME == "f64" { 2e-9 } else { 8e-6 };
    assert!((lse - print.lse).abs() <= of_lse, "{}: lse {lse}", T::NAME);
    sums_to(&got.output, largest(arrays[2].view()), print.sum);
    weights_make_output(&got, arrays[2].view());
    ones_stay_one(attention, views(&arrays));
}

/// The sum of outputs, each off by no more than half an ulp of its own and what the accumulator was off.
#[track_caller]
fn sums_to<T: Element>(output: &ArrayD<T>, largest: f64, want: f64) {
    let accumulator = if T::NAME == "f64" { 1e-13 } else { 2e-6 };
    let off = |y: f64| y.abs() * T::EPSILON / 2.0 + accumulator * largest;
    let limit: f64 = output.iter().map(|&y| off(number(y))).sum::<f64>() + 1e-9;
    let sum: f64 = output.iter().map(|&y| number(y)).sum();
    assert!((sum - want).abs() <= limit, "{}: sum {sum}, want {want} within {limit:e}", T::NAME);
}

/// The weights that come back, times the values, are the output.
#[track_caller]
fn weights_make_output<T: Element>(got: &AttentionOutput<T, IxDyn>, value: ArrayViewD<'_, T>) {
    let weights = got.weights.as_ref().unwrap();
    let group = weights.shape()[1] / value.shape()[1];
    // Weights and output are each rounded once, to half an epsilon; the weights add up to 1.
    let limit = T::EPSILON.max(tolerance::<T>()) * largest(value.view()) * 1.5;
    for ((at, &y), index) in got.output.indexed_iter().zip(0..) {
        let [b, h, i, c] = [at[0], at[1], at[2], at[3]];
        let products = (0..weights.shape()[3])
            .map(|j| number(weights[[b, h, i, j]]) * number(value[[b, h / group, j, c]]));
        let mixed: f64 = products.sum();
        assert!((mixed - number(y)).abs() <= limit, "output {index}: {y}, from weights {mixed}");
    }
}

/// Values of 1 mix to exactly 1 in every row that sees a key: sum and output go through the same additions.
#[track_caller]
fn ones_stay_one<T: Element>(attention: &Attention<'_>, [q, k, v]: Views<'_, T>) {
    let ones = v.mapv(|_| element::<T>(1.0));
    let visible = attention.call(q.clone(), k.clone(), ones.view()).visible().unwrap();
    let got = on_every_path(attention, [q, k, ones.view()]);
    for (at, &y) in got.output.indexed_iter() {
        let row = [at[0], at[1], at[2]];
        let sees = (0..visible.shape()[3]).any(|j| visible[[row[0], row[1], row[2], j]]);
        assert_eq!(number(y), if sees { 1.0 } else { 0.0 }, "row {row:?}");
    }
}

#[test]
fn plain_attention_gives_the_known_numbers() {
    let print = Print { sum: -7.251231328, at: [0, 1, 5, 7], output: 0.733608246, lse: 2.658086431 };
    known(&Attention::new(), BASE, &print);
}

/// pytorch #103749 and four more: NaN where a row may attend nothing.
#[test]
fn a_row_that_sees_no_key_is_zero_and_harms_no_other() {
    let mask = Array2::from_shape_fn((6, 10), |(i, j)| i < 5 && j <= i);
    let print = Print { sum: -10.655456774, at: [0, 1, 4, 7], output: -1.002527573, lse: 2.481770133 };
    known(&Attention::new().mask(mask.view()), BASE, &print);
}

/// pytorch #127055: a tile of keys that is hidden while the row as a whole is not.
#[test]
fn a_band_of_ten_keys_gives_the_known_numbers_however_it_is_said() {
    let shapes: Shapes = [&[1, 1, 640, 4]; 3];
    let print = Print { sum: -149.642164486, at: [0, 0, 639, 3], output: -0.003238705, lse: 3.228598215 };
    let band = Array2::from_shape_fn((640, 640), |(i, j)| j <= i && i <= j + 9);
    let minus = band.mapv(|visible| if visible { 0.0f32 } else { f32::NEG_INFINITY });
    known_in::<f32>(&Attention::new().mask(band.view()), shapes, &print);
    known_in::<bf16>(&Attention::new().bias(minus.view()), shapes, &print);
    known_in::<f64>(&Attention::new().window(Some(9), Some(0)), shapes, &print);
    known_in::<f16>(&Attention::new().causal(Alignment::TopLeft).window(Some(9), None), shapes, &print);
}

#[test]
fn a_run_of_keys_far_from_both_ends_gives_the_known_numbers() {
    let shapes: Shapes = [&[1, 1, 1, 4], &[1, 1, 701, 4], &[1, 1, 701, 4]];
    let print = Print { sum: -0.520682628, at: [0, 0, 0, 3], output: -0.221108837, lse: 5.035494233 };
    let run = ndarray::Array1::from_shape_fn(701, |j| (515..=575).contains(&j));
    known(&Attention::new().mask(run.view()), shapes, &print);
    known(&Attention::new().query_offset(545).window(Some(30), Some(30)), shapes, &print);
}

/// pytorch #103082, mlx #2835, onnxruntime #29020: two readings of “causal” where lengths differ.
#[test]
fn causal_order_gives_the_known_numbers_for_both_alignments() {
    let more_keys: Shapes = [&[1, 1, 2, 4], &[1, 1, 5, 4], &[1, 1, 5, 4]];
    let more_queries: Shapes = [&[1, 1, 5, 4], &[1, 1, 2, 4], &[1, 1, 2, 4]];
    let top_left = Attention::new().causal(Alignment::TopLeft);
    let bottom_right = Attention::new().causal(Alignment::BottomRight);
    let print = |sum, at, output, lse| Print { sum, at, output, lse };
    known(&top_left, more_keys, &print(-0.565172899, [0, 0, 1, 3], 0.349368080, 0.374807262));
    known(&bottom_right, more_keys, &print(1.197652371, [0, 0, 1, 3], 0.559356172, 1.782489526));
    known(&top_left, more_queries, &print(-2.266457193, [0, 0, 4, 3], 0.225980026, 1.200761915));
    known(&bottom_right, more_queries, &print(-0.772146408, [0, 0, 4, 3], 0.225980026, 1.200761915));
    known(&top_left, SQUARE, &print(-11.976152295, [0, 0, 63, 7], -0.000134301, 5.188850075));
    known(&bottom_right, SQUARE, &print(-11.976152295, [0, 0, 63, 7], -0.000134301, 5.188850075));
}

/// transformers #39408: a window of n keys counted as n + 1.
#[test]
fn a_window_of_eight_keys_counts_the_query_itself() {
    let print = Print { sum: 2.161332030, at: [0, 0, 63, 7], output: -0.083383944, lse: 2.920065472 };
    known(&Attention::new().window(Some(7), Some(0)), SQUARE, &print);
    known(&Attention::new().causal(Alignment::TopLeft).window(Some(7), None), SQUARE, &print);
}

/// pytorch #176767 and two more: values that are wider or narrower than keys.
#[test]
fn grouped_heads_and_values_of_another_width_give_the_known_numbers() {
    let plain = Attention::new();
    let grouped: Shapes = [&[2, 4, 5, 8], &[2, 2, 7, 8], &[2, 2, 7, 8]];
    let wider: Shapes = [&[1, 2, 7, 16], &[1, 2, 5, 16], &[1, 2, 5, 32]];
    let one_key_head: Shapes = [&[2, 4, 1, 32], &[2, 1, 36, 32], &[2, 1, 36, 24]];
    let print = |sum, at, output, lse| Print { sum, at, output, lse };
    known(&plain, grouped, &print(-15.828280250, [1, 1, 4, 7], 0.408449274, 2.527893216));
    known(&plain, wider, &print(-58.119467774, [0, 1, 6, 31], -0.354075666, 2.551401469));
    known(&plain, one_key_head, &print(-2.059176726, [1, 3, 0, 23], -0.003780711, 4.235010174));
}

/// pytorch #105202: NaN for a negative scale, whose square root was taken.
#[test]
fn a_scale_may_be_negative_or_zero() {
    let print = Print { sum: -4.267590823, at: [0, 1, 5, 7], output: -0.950431125, lse: 3.401243052 };
    known(&Attention::new().scale(-0.5), BASE, &print);
    let print = Print { sum: -5.625, at: [0, 1, 5, 7], output: -0.065625, lse: std::f64::consts::LN_10 };
    known(&Attention::new().scale(0.0), BASE, &print);
}

#[test]
fn a_negative_scale_is_the_positive_one_with_the_query_turned_round() {
    let [q, k, v] = grids::<f32>(BASE);
    let turned = on_every_path(&Attention::new().scale(0.5), [q.mapv(|x| -x).view(), k.view(), v.view()]);
    let got = on_every_path(&Attention::new().scale(-0.5), [q.view(), k.view(), v.view()]);
    same_results("scale -0.5", &got, &turned);
}

/// onnx #7865: the softcap after the mask gives hidden keys a weight.
#[test]
fn a_softcap_comes_before_the_mask_and_a_bias_after_it() {
    let print = Print { sum: -6.553188904, at: [0, 1, 5, 7], output: 0.792511421, lse: 1.977022169 };
    known(&Attention::new().causal(Alignment::TopLeft).softcap(1.0), BASE, &print);
    let bias = grid::<f32>(&[6, 10], 3);
    let print = Print { sum: -9.502144810, at: [0, 1, 5, 7], output: 0.376895487, lse: 3.351463506 };
    known(&Attention::new().bias(bias.view()), BASE, &print);
    // Cap first, then bias: not the other way round.
    let arrays = grids::<f64>(BASE);
    let got = on_every_path(&Attention::new().softcap(1.0).bias(bias.view()), views(&arrays));
    let scale = 1.0 / 8f64.sqrt();
    let (want, _) =
        textbook(views(&arrays), scale, |[_, _, i, j], s| Some(libm::tanh(s) + f64::from(bias[[i, j]])));
    close("cap, then bias", got.output.view(), want.view(), 1e-13);
}

#[test]
fn a_mask_for_each_batch_gives_the_known_numbers() {
    let shapes: Shapes = [&[2, 3, 4, 8], &[2, 3, 6, 8], &[2, 3, 6, 8]];
    let mask = ArrayD::from_shape_fn(vec![2, 1, 4, 6], |i| i[0] == 0 || i[3] < 4);
    let minus = mask.mapv(|visible| if visible { 0.0 } else { f64::NEG_INFINITY });
    let print = Print { sum: -5.621310467, at: [1, 2, 3, 7], output: 1.084840829, lse: 2.173090223 };
    known(&Attention::new().mask(mask.view()), shapes, &print);
    known(&Attention::new().bias(minus.view()), shapes, &print);
    known(&Attention::new().key_lengths([6, 4]), shapes, &print);
}

/// flash-attention #2698 and four more: dimensions that are no multiple of a vector.
#[test]
fn every_dimension_gives_the_known_sum_and_writes_no_neighbour() {
    const SUMS: [(usize, f64); 9] = [
        (1, -0.280705825),
        (3, 0.687805019),
        (7, -1.054003625),
        (59, -10.842425519),
        (72, -20.149418910),
        (80, -17.787497864),
        (96, -13.952684343),
        (104, -26.840187188),
        (257, -56.681700322),
    ];
    for (dim, sum) in SUMS {
        let (query, key) = ([1, 1, 5, dim], [1, 1, 9, dim]);
        of_every_type!(sweep([&query, &key, &key], sum));
    }
}

/// pytorch #159247 and three more: a last tile that is not whole.
#[test]
fn every_number_of_keys_gives_the_known_sum() {
    const SUMS: [(usize, f64); 10] = [
        (15, -1.385417371),
        (16, -1.259965683),
        (17, -1.233107059),
        (31, -2.429402266),
        (33, -1.875333969),
        (63, -0.042152061),
        (65, -0.143270974),
        (127, -1.203504328),
        (129, -1.305388031),
        (513, -0.637428527),
    ];
    for (len_key, sum) in SUMS {
        let key = [1, 1, len_key, 8];
        of_every_type!(sweep([&[1, 1, 3, 8], &key, &key], sum));
    }
}

fn sweep<T: Element>(shapes: Shapes, sum: f64) {
    let arrays = grids::<T>(shapes);
    let got = on_every_path(&Attention::new(), views(&arrays));
    sums_to(&got.output, largest(arrays[2].view()), sum);
    weights_make_output(&got, arrays[2].view());
    guards_stay(&got.output, views(&arrays));
}

/// The same output, into memory that has guard words before, after and between the rows.
fn guards_stay<T: Element>(want: &ArrayD<T>, [q, k, v]: Views<'_, T>) {
    const GUARD: usize = 67;
    let guard = element::<T>(-3.25);
    let (rows, dim_value) = (want.shape()[2], want.shape()[3]);
    for (path, simd) in support::ways() {
        let attention = Attention::new().path(path).simd(simd);
        let mut tight = vec![guard; want.len() + 2 * GUARD];
        let inner = &mut tight[GUARD..GUARD + want.len()];
        let output = ArrayViewMutD::from_shape(want.shape(), inner).unwrap();
        attention.forward_into(q.clone(), k.clone(), v.clone(), output).unwrap();
        let (before, rest) = tight.split_at(GUARD);
        let (inner, after) = rest.split_at(want.len());
        same_bits("tight", ArrayViewD::from_shape(want.shape(), inner).unwrap(), want.view());
        assert!(before.iter().chain(after).all(|&x| x == guard), "{path} on {simd}: around the output");

        let mut wide = ArrayD::from_elem(vec![1, 1, rows, dim_value + 3], guard);
        let output = wide.slice_axis_mut(Axis(3), Slice::from(1..=dim_value));
        attention.forward_into(q.clone(), k.clone(), v.clone(), output).unwrap();
        same_bits("wide", part(wide.view(), 3, 1..dim_value + 1), want.view());
        for column in [0, dim_value + 1, dim_value + 2] {
            let column = wide.index_axis(Axis(3), column);
            assert!(column.iter().all(|&x| x == guard), "{path} on {simd}: between rows");
        }
    }
}

/// pytorch #159247, #153799, tt-metal #32502: errors from some row or key on only.
#[test]
fn every_pair_of_lengths_around_a_tile_agrees_with_the_textbook_and_row_by_row() {
    const LENS: [usize; 6] = [1, 2, 63, 64, 65, 129];
    for (len_query, len_key) in LENS.into_iter().flat_map(|l| LENS.map(|s| (l, s))) {
        let (query, key) = ([1, 1, len_query, 5], [1, 1, len_key, 5]);
        let arrays = grids::<f32>([&query, &key, &[1, 1, len_key, 3]]);
        let mask = Array2::from_shape_fn((len_query, len_key), |(i, j)| (7 * i + 3 * j) % 5 != 0);
        let bias = grid::<f32>(&[len_query, len_key], 3);
        let plain = Attention::new();
        let both = plain.clone().mask(mask.view()).bias(bias.view());
        let scale = 1.0 / 5f64.sqrt();
        for (attention, masked) in [(&plain, false), (&both, true)] {
            let got = on_every_path(attention, views(&arrays));
            let see = |[_, _, i, j]: [usize; 4], s: f64| match masked {
                true => mask[[i, j]].then(|| s + f64::from(bias[[i, j]])),
                false => Some(s),
            };
            let (output, lse) = textbook(views(&arrays), scale, see);
            close("output", got.output.view(), output.view(), 2.0 * tolerance::<f32>());
            close("lse", got.lse.as_ref().unwrap().view(), lse.view(), 8e-6);
            for i in [0, len_query / 2, len_query - 1] {
                let row = part(arrays[0].view(), 2, i..i + 1);
                let (mask, bias) = (mask.slice(s![i, ..]), bias.slice(s![i, ..]));
                let alone = if masked { plain.clone().mask(mask).bias(bias) } else { plain.clone() };
                let alone = alone.forward(row, arrays[1].view(), arrays[2].view()).unwrap();
                same_bits("one row alone", alone.view(), part(got.output.view(), 2, i..i + 1));
            }
        }
    }
}

/// pytorch #116176: scores that no half float holds.
#[test]
fn scores_beyond_the_range_of_a_half_float_do_no_harm() {
    let value = grid::<f16>(&[1, 1, 5, 8], 2);
    let query = ArrayD::from_elem(vec![1, 1, 3, 64], f16::from_f32(900.0));
    // The first key is ahead by 3600 after the scale.
    let key = ArrayD::from_shape_fn(vec![1, 1, 5, 64], |i| element(if i[2] == 0 { 900.0 } else { 899.5 }));
    let got = on_every_path(&Attention::new(), [query.view(), key.view(), value.view()]);
    for i in 0..3 {
        same_bits("the first value", part(got.output.view(), 2, i..i + 1), part(value.view(), 2, 0..1));
    }
    let (query, key) = (query.mapv(|x| -x), key.mapv(|_| element::<f16>(-900.0)));
    let got = on_every_path(&Attention::new(), [query.view(), key.view(), value.view()]);
    let mean = Attention::new().scale(0.0).forward(query.view(), key.view(), value.view()).unwrap();
    same_bits("the mean", got.output.view(), mean.view());
}

/// ik_llama.cpp #1196, mistral.rs #1417, flash-attention #1138: sums kept in the half float.
#[test]
fn long_sums_of_half_floats_neither_overflow_nor_stall() {
    fn mean<T: Element>(len_key: usize, value: impl Fn(usize) -> f64, want: f64) {
        let query = ArrayD::from_elem(vec![1, 1, 2, 4], element::<T>(0.0));
        let key = grid::<T>(&[1, 1, len_key, 4], 1);
        let value = ArrayD::from_shape_fn(vec![1, 1, len_key, 3], |i| element::<T>(value(i[2])));
        let got = on_every_path(&Attention::new(), [query.view(), key.view(), value.view()]);
        assert!(got.output.iter().all(|&y| number(y) == want), "{}: {}", T::NAME, got.output);
    }
    mean::<f16>(4096, |_| 60000.0, 60000.0);
    mean::<bf16>(8192, |_| 1.0, 1.0);
    mean::<bf16>(8192, |j| (1 - j % 2) as f64, 0.5);
}

/// attention-gym #131, pytorch #128922, flash-attention #1071: rounding that is taken for a fault.
#[test]
fn the_error_is_no_larger_than_that_of_the_plain_steps_in_the_same_type() {
    fn law<T: Element>() {
        let four_times = |array: ArrayD<T>| array.mapv(|x| element::<T>(4.0 * number(x)));
        let arrays = grids::<T>([&[1, 4, 60, 128]; 3]).map(four_times);
        let [q, k, v] = views(&arrays);
        let attention = Attention::new();
        let call = attention.call(q.clone(), k.clone(), v.clone());
        let rows: Vec<_> = (0..4).flat_map(|h| (0..60).map(move |i| (0, h, i))).collect();
        let reference = call.reference(&rows).unwrap();
        // The engine's own reference is held to the textbook first; for f64 it has more digits than that.
        let scale = 1.0 / 128f64.sqrt();
        let (textbook, _) = textbook([q, k, v.clone()], scale, |_, s| Some(s));
        let truth: Vec<f64> = reference.iter().flat_map(|row| row.output.clone()).collect();
        assert!(truth.iter().zip(&textbook).all(|(truth, also)| (truth - also).abs() < 1e-12));
        let output = call.run().unwrap().output;
        let (mut worst, mut plain_worst) = (0f64, 0f64);
        let plain = reference.iter().flat_map(|row| &row.plain_output);
        for ((&y, truth), &plain) in output.iter().zip(truth).zip(plain) {
            worst = worst.max((number(y) - truth).abs());
            plain_worst = plain_worst.max((plain - truth).abs());
        }
        let limit = match T::NAME {
            // One rounding against five.
            "f16" | "bf16" => plain_worst,
            _ => error_limit::<T>(plain_worst, largest(v)),
        };
        assert!(worst <= limit, "{}: {worst:e}, plain {plain_worst:e}", T::NAME);
    }
    of_every_type!(law());
}

/// pytorch #181645, flash-attention #404: a log-sum-exp to base 2, or without the maximum.
#[test]
fn outputs_over_parts_of_the_keys_merge_by_their_natural_log_sum_exp() {
    let [q, k, v] = grids::<f64>(BASE);
    let whole = on_every_path(&Attention::new(), [q.view(), k.view(), v.view()]);
    let over = |keys: std::ops::Range<usize>| {
        let [k, v] = [&k, &v].map(|array| part(array.view(), 2, keys.clone()));
        on_every_path(&Attention::new(), [q.view(), k, v])
    };
    let (one, other) = (over(0..4), over(4..10));
    let lse_of =
        |result: &AttentionOutput<f64, IxDyn>, at: &IxDyn| result.lse.as_ref().unwrap()[&at.slice()[..3]];
    for (at, &want) in whole.output.indexed_iter() {
        let lse = lse_of(&whole, &at);
        let parts = [&one, &other].map(|part| libm::exp(lse_of(part, &at) - lse) * part.output[&at]);
        assert!((parts[0] + parts[1] - want).abs() < 1e-13, "at {at:?}");
        let together = libm::exp(lse_of(&one, &at) - lse) + libm::exp(lse_of(&other, &at) - lse);
        assert!((together - 1.0).abs() < 1e-13, "at {at:?}");
    }
}

/// The partials of a causal call over spans of its keys, by one path.
fn partials<T: Element>(
    path: Path,
    [q, k, v]: Views<'_, T>,
    spans: &[std::ops::Range<usize>],
) -> Vec<qkv::Partial<T, IxDyn>> {
    let over = |keys: &std::ops::Range<usize>| {
        let [k, v] = [&k, &v].map(|array| part(array.view(), 2, keys.clone()));
        let causal = Attention::new().causal(Alignment::Offset(700)).path(path);
        causal.key_offset(keys.start as i64).call(q.clone(), k, v).partial().unwrap()
    };
    spans.iter().map(over).collect()
}

#[test]
fn partials_merge_to_the_bits_of_one_call_in_any_order_and_an_empty_one_changes_nothing() {
    let arrays = grids::<f32>([&[2, 4, 9, 8], &[2, 2, 1100, 8], &[2, 2, 1100, 5]]);
    let causal = Attention::new().causal(Alignment::Offset(700));
    let whole = on_every_path(&causal, views(&arrays));
    for path in Path::ALL {
        let mut parts = partials(path, views(&arrays), &[0..512, 512..1024, 1024..1100]);
        let check = |what: &str, parts: &[qkv::Partial<f32, IxDyn>]| {
            let merged = merge(parts, None).unwrap_or_else(|error| panic!("{what}: {error}"));
            same_bits(what, merged.output.view(), whole.output.view());
            same_bits(what, merged.lse.unwrap().view(), whole.lse.as_ref().unwrap().view());
        };
        // The last holds no key that any query may attend.
        assert!(parts[2].lse().iter().all(|&lse| lse == f32::NEG_INFINITY));
        check("in order", &parts);
        check("without the one that sees nothing", &parts[..2]);
        parts.rotate_left(1);
        check("out of order", &parts);
        let of_no_key = partials(path, views(&arrays), &[512..512, 1100..1100]);
        for empty in of_no_key {
            for place in 0..=parts.len() {
                let mut more = parts.clone();
                more.insert(place, empty.clone());
                check(&format!("{path}: no key from {} on, at place {place}", empty.key_offset()), &more);
            }
        }
    }
}

#[test]
fn partials_cut_anywhere_merge_within_rounding() {
    let arrays = grids::<f32>([&[1, 2, 6, 8], &[1, 2, 710, 8], &[1, 2, 710, 8]]);
    let whole = on_every_path(&Attention::new().causal(Alignment::Offset(700)), views(&arrays));
    let want = whole.output.mapv(f64::from);
    for path in Path::ALL {
        let merged = merge(&partials(path, views(&arrays), &[0..4, 4..333, 333..710]), None).unwrap();
        close("output", merged.output.view(), want.view(), 2.0 * tolerance::<f32>());
    }
}

/// llama.cpp #280 and #16016, vllm #42666: answers that change with threads, batch or chunks.
#[test]
fn threads_batch_and_chunks_of_queries_never_change_a_bit() {
    let arrays = grids::<f32>([&[2, 3, 257, 72]; 3]);
    let [q, k, v] = views(&arrays);
    for path in [Path::Prefill, Path::Decode] {
        let causal = Attention::new().path(path).causal(Alignment::TopLeft);
        let whole = causal.forward(q.clone(), k.clone(), v.clone()).unwrap();
        for threads in 1..=9 {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let got = pool.install(|| causal.forward(q.clone(), k.clone(), v.clone()).unwrap());
            same_bits(&format!("{path} on {threads} threads"), got.view(), whole.view());
        }
        for axis in [0, 1] {
            for at in 0..q.shape()[axis] {
                let [q, k, v] = views(&arrays).map(|array| part(array, axis, at..at + 1));
                let alone = causal.forward(q, k, v).unwrap();
                same_bits("a batch or head alone", alone.view(), part(whole.view(), axis, at..at + 1));
            }
        }
        for (start, end) in [(0, 1), (1, 63), (63, 64), (64, 200), (200, 257)] {
            // As a cache grows: the keys so far, the queries at its end.
            let q = part(q.clone(), 2, start..end);
            let [k, v] = [&k, &v].map(|array| part(array.clone(), 2, 0..end));
            let chunk = Attention::new().path(path).causal(Alignment::BottomRight);
            let got = chunk.forward(q, k, v).unwrap();
            same_bits("a chunk of queries", got.view(), part(whole.view(), 2, start..end));
        }
    }
}

#[test]
fn a_cache_that_dropped_keys_out_of_reach_gives_the_same_bits() {
    let arrays = grids::<f32>([&[1, 2, 3, 8], &[1, 2, 900, 8], &[1, 2, 900, 8]]);
    let [q, k, v] = views(&arrays);
    let window = Attention::new().causal(Alignment::BottomRight).window(Some(99), None);
    let whole = on_every_path(&window, views(&arrays));
    for dropped in [1, 63, 64, 512, 777, 798] {
        let [k, v] = [&k, &v].map(|array| part(array.clone(), 2, dropped..900));
        let got = on_every_path(&window.clone().key_offset(dropped as i64), [q.clone(), k, v]);
        same_bits(&format!("{dropped} dropped"), got.output.view(), whole.output.view());
        same_bits("lse", got.lse.unwrap().view(), whole.lse.as_ref().unwrap().view());
    }
}

/// pytorch #160064, #152028: asking for weights takes another path, with other numbers.
#[test]
fn asking_for_weights_changes_no_output_and_a_hidden_head_has_none() {
    // Row 5 of each head sees nothing, and head 1 sees nothing at all.
    let mask = Array3::from_shape_fn((2, 6, 10), |(h, i, j)| h == 0 && i < 5 && j <= i);
    let attention = Attention::new().mask(mask.view());
    let arrays = grids::<f32>(BASE);
    // That the output is the same without weights is part of `on_every_path`.
    let got = on_every_path(&attention, views(&arrays));
    weights_make_output(&got, arrays[2].view());
    let weights = got.weights.unwrap();
    assert_eq!(weights.shape(), [1, 2, 6, 10]);
    for ((b, h, i), &lse) in got.lse.unwrap().indexed_iter().map(|(at, lse)| ((at[0], at[1], at[2]), lse)) {
        let sum: f32 = (0..10).map(|j| weights[[b, h, i, j]]).sum();
        let hidden = h == 1 || i == 5;
        assert_eq!(lse == f32::NEG_INFINITY, hidden, "row {i} of head {h}");
        assert!(if hidden { sum == 0.0 } else { (sum - 1.0).abs() < 1e-6 }, "row {i} of head {h}: {sum}");
        assert!((0..10).all(|j| mask[[h, i, j]] || bits(weights[[b, h, i, j]]) == 0));
        assert!((0..8).all(|c| !hidden || bits(got.output[[b, h, i, c]]) == 0));
    }
}

/// Masks are sorted by blocks of 64 queries, which some rows of a head need not begin with.
#[test]
fn traced_rows_across_blocks_see_what_they_see_in_the_whole() {
    let (heads, len) = (2, 130);
    let [q, k, v] = grids::<f32>([&[1, heads, len, 8]; 3]);
    let ids = ndarray::Array1::from_shape_fn(len, |i| i64::from(i >= 70));
    let late = ArrayD::from_shape_fn(vec![len, len], |at| at[0] >= 70 || at[1] < 64);
    for attention in [Attention::new().segments(ids.view(), ids.view()), Attention::new().mask(late.view())] {
        let call = || attention.call(q.view(), k.view(), v.view());
        let whole = call().trace().unwrap();
        let rows = call().trace_head((0, 1), 10..74).unwrap();
        let own = whole.weights.slice(s![0, 1, 10..74, ..]);
        same_bits("weights", rows.weights.into_dyn().view(), own.into_dyn());
    }
}
