//! Layers: every step held to a computation in f64 that shares nothing with the engine, torch's own numbers, and what
//! arrays may be called.

#[path = "support/plain_layer.rs"]
mod plain_layer;
mod support;

use std::path::Path;

use ndarray::{Array2, ArrayD, ArrayViewD, Axis, Ix2, s};
use plain_layer::{How, Plain, TRUTH, plain};
use qkv::{Alignment, Attention, Element, Layer, Projections, error_limit, is_layer_array, ulp};
use qkv_io::{ReadOptions, read};
use support::{LAYOUTS, Rng, close, element, grid, laid_out, number, of_every_type, same_bits};

fn attention(causal: bool) -> Attention<'static> {
    if causal { Attention::new().causal(Alignment::TopLeft) } else { Attention::new() }
}

/// All rows of the same kind of result, one matrix after the other, within the error law of the whole.
#[track_caller]
fn within_law<T: Element>(
    what: &str,
    got: &[ArrayD<T>],
    truth: &[Array2<f64>],
    plain: &[Array2<f64>],
) -> f64 {
    let pairs = || truth.iter().flatten().zip(plain.iter().flatten());
    let plain_error = pairs().fold(0.0, |error: f64, (truth, plain)| error.max((truth - plain).abs()));
    let largest = pairs().fold(0.0, |largest: f64, (truth, _)| largest.max(truth.abs()));
    let limit = error_limit::<T>(plain_error, largest);
    for (got, truth) in got.iter().zip(truth) {
        close(what, got.view(), truth.view().into_dyn(), limit);
    }
    limit
}

/// The heads of `(heads, len, dim)` side by side, or `(len, dim)` as it is.
fn rows<T: Element>(array: ArrayViewD<'_, T>) -> ArrayD<T> {
    let heads: Vec<_> = if array.ndim() == 2 { vec![array.view()] } else { array.outer_iter().collect() };
    ndarray::concatenate(Axis(1), &heads).unwrap()
}

/// The matrices of an array, in order, each with the last `rank` axes.
fn parts<T: Clone>(array: ArrayViewD<'_, T>, rank: usize) -> Vec<ArrayD<T>> {
    if array.ndim() == rank {
        return vec![array.to_owned()];
    }
    array.outer_iter().flat_map(|array| parts(array, rank)).collect()
}

/// Projections and result of a layer, each held to the law; the limit of the result.
#[track_caller]
fn holds<T: Element>(what: &str, layer: &Layer<T>, plain_layer: &Plain, x: ArrayViewD<'_, T>) -> f64 {
    let xs: Vec<Array2<f64>> = parts(x.view(), 2)
        .into_iter()
        .map(|x| x.mapv(number).into_dimensionality::<Ix2>().unwrap())
        .collect();
    let run = |how: How| -> (Vec<_>, Vec<_>) { xs.iter().map(|x| plain_layer.run(x.view(), how)).unzip() };
    let ((truths, truth), (plains, plain)) = (run(TRUTH), run(plain::<T>()));
    let lone = x.ndim() == 2 && layer.heads() == 1;
    let Projections { query, key, value } = layer.project(x.view()).unwrap();
    let attention = attention(plain_layer.causal);
    for (i, (name, got, heads)) in [
        ("query", &query, layer.heads()),
        ("key", &key, layer.key_heads()),
        ("value", &value, layer.key_heads()),
    ]
    .into_iter()
    .enumerate()
    {
        let of = |all: &[[Array2<f64>; 3]]| -> Vec<_> { all.iter().map(|three| three[i].clone()).collect() };
        let (truth, plain) = (of(&truths), of(&plains));
        let [batches @ .., len, _] = x.shape() else { panic!("two axes and more") };
        let lead = batches.iter().copied().chain((!lone).then_some(heads));
        let shape: Vec<_> = lead.chain([*len, plain_layer.inputs[i].0.ncols() / heads]).collect();
        assert_eq!(got.shape(), shape, "{what}: {name}");
        let got: Vec<_> =
            parts(got.view(), if lone { 2 } else { 3 }).iter().map(|part| rows(part.view())).collect();
        within_law(&format!("{what}, {name}"), &got, &truth, &plain);
    }
    let output = layer.forward(&attention, x.view()).unwrap();
    let by_hand = attention.forward(query.view(), key.view(), value.view()).unwrap();
    same_bits("by hand", layer.output(by_hand.view()).unwrap().view(), output.view());
    within_law(&format!("{what}, output"), &parts(output.view(), 2), &truth, &plain)
}

fn random<T: Element>(shape: &[usize], size: f64, rng: &mut Rng) -> ArrayD<T> {
    ArrayD::from_shape_simple_fn(shape, || element(size * rng.number()))
}

/// Heads, key heads, numbers in a head, values in a head.
type Heads = (usize, usize, usize, usize);

/// Named arrays of a layer: the lessons', `(in, out)`.
fn arrays<T: Element>(
    (heads, key_heads, dim, dim_value): Heads,
    dim_model: usize,
    (bias, output): (bool, bool),
    rng: &mut Rng,
) -> Vec<(&'static str, ArrayD<T>)> {
    let columns = [heads * dim, key_heads * dim, key_heads * dim_value];
    let size = 1.0 / (dim_model as f64).sqrt();
    let mut arrays = Vec::new();
    for (i, columns) in columns.into_iter().enumerate() {
        arrays.push((["w_q", "w_k", "w_v"][i], random(&[dim_model, columns], size, rng)));
        if bias {
            arrays.push((["b_q", "b_k", "b_v"][i], random(&[columns], 0.5, rng)));
        }
    }
    if output {
        arrays.push(("w_o", random(&[heads * dim_value, dim_model + 1], size, rng)));
        if bias {
            arrays.push(("b_o", random(&[dim_model + 1], 0.5, rng)));
        }
    }
    arrays
}

fn layer_of<T: Element>(arrays: &[(&'static str, ArrayD<T>)], heads: usize) -> Layer<T> {
    Layer::from_arrays(arrays.iter().map(|(name, array)| (*name, array.view())), Some(heads)).unwrap()
}

fn plain_of<T: Element>(arrays: &[(&'static str, ArrayD<T>)], heads: usize, key_heads: usize) -> Plain {
    let get = |name: &str| arrays.iter().find(|array| array.0 == name).map(|array| array.1.mapv(number));
    let linear = |weight: &str, bias: &str| {
        let weight = get(weight)?.into_dimensionality::<Ix2>().unwrap();
        Some((weight, get(bias).map(|bias| bias.into_iter().collect())))
    };
    let inputs = [("w_q", "b_q"), ("w_k", "b_k"), ("w_v", "b_v")].map(|(w, b)| linear(w, b).unwrap());
    Plain { inputs, output: linear("w_o", "b_o"), heads, key_heads, causal: false }
}

#[test]
fn every_step_of_a_layer_is_within_the_error_law() {
    fn check<T: Element>() {
        // The last has more rows than a block, and blocks that end within a batch.
        let xs = [&[5, 12][..], &[1, 12], &[3, 5, 12], &[2, 1, 4, 12], &[2, 133, 12]];
        let heads = [(1, 1, 8, 8), (1, 1, 3, 5), (4, 4, 3, 3), (4, 2, 5, 3), (6, 1, 2, 4)];
        let mut rng = Rng::new(7);
        for x in xs {
            for shape in heads {
                for (bias, output) in [(false, false), (false, true), (true, false), (true, true)] {
                    let what = format!("{} {x:?} heads {shape:?} bias {bias} w_o {output}", T::NAME);
                    let arrays = arrays::<T>(shape, 12, (bias, output), &mut rng);
                    let layer = layer_of(&arrays, shape.0);
                    assert_eq!((layer.heads(), layer.key_heads()), (shape.0, shape.1));
                    assert_eq!(layer.has_output(), output);
                    let x = random::<T>(x, 1.0, &mut rng);
                    holds(&what, &layer, &plain_of(&arrays, shape.0, shape.1), x.view());
                }
            }
        }
    }
    of_every_type!(check());
}

/// The same as a layer of f32 whose result is rounded: neither weights nor sums are rounded on the way.
#[test]
fn half_floats_widen_first_and_are_rounded_once() {
    fn check<T: Element<Accumulator = f32>>() {
        let half = arrays::<T>((4, 2, 5, 3), 12, (true, true), &mut Rng::new(5));
        let wide: Vec<_> = half.iter().map(|(name, array)| (*name, array.mapv(T::widen))).collect();
        let (half, wide) = (layer_of(&half, 4), layer_of(&wide, 4));
        let x = random::<T>(&[2, 9, 12], 1.0, &mut Rng::new(6));
        let attended = random::<T>(&[2, 4, 9, 3], 1.0, &mut Rng::new(8));
        let same = |what: &str, got: ArrayD<T>, want: ArrayD<f32>| {
            same_bits(what, got.view(), want.mapv(T::round).view());
        };
        let got = half.project(x.view()).unwrap();
        let want = wide.project(x.mapv(T::widen).view()).unwrap();
        same("query", got.query, want.query);
        same("key", got.key, want.key);
        same("value", got.value, want.value);
        let want = wide.output(attended.mapv(T::widen).view()).unwrap();
        same("output", half.output(attended.view()).unwrap(), want);
    }
    check::<qkv::f16>();
    check::<qkv::bf16>();
}

#[test]
fn x_and_attended_may_lie_in_any_order() {
    fn check<T: Element>() {
        let x = grid::<T>(&[2, 6, 12], 0);
        let attended = grid::<T>(&[2, 4, 6, 3], 1);
        for output in [false, true] {
            let arrays = arrays::<T>((4, 2, 5, 3), 12, (true, output), &mut Rng::new(3));
            let layer = layer_of(&arrays, 4);
            for layout in 1..LAYOUTS {
                let (x, attended) = (laid_out(&x, layout), laid_out(&attended, layout));
                let copies = [x.view(), attended.view()].map(|view| view.as_standard_layout().into_owned());
                let same = |got: ArrayD<T>, want: ArrayD<T>| same_bits("a view", got.view(), want.view());
                same(layer.project(x.view()).unwrap().key, layer.project(copies[0].view()).unwrap().key);
                same(layer.output(attended.view()).unwrap(), layer.output(copies[1].view()).unwrap());
            }
        }
    }
    of_every_type!(check());
}

/// torch's file, its layer, and the same layer taken from the file by hand.
#[track_caller]
fn golden(file: &str, heads: usize, causal: bool) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../qkv-cli/tests/data").join(file);
    let bundle = read(path, &ReadOptions::new()).unwrap();
    assert_eq!(bundle.metadata.get("causal").map(String::as_str), causal.then_some("true"));
    let get = |name: &str| Some(bundle.get(name)?.data::<f32>().unwrap().view());
    let layer =
        Layer::from_arrays(bundle.names().map(|name| (name, get(name).unwrap())), Some(heads)).unwrap();
    let turned = |weight: ArrayViewD<'_, f32>| {
        weight.mapv(number).into_dimensionality::<Ix2>().unwrap().reversed_axes()
    };
    let bias = |bias: ArrayViewD<'_, f32>| bias.iter().map(|&b| number(b)).collect::<Vec<_>>();
    let all = (turned(get("in_proj_weight").unwrap()), get("in_proj_bias").map(bias));
    let dim_model = all.0.nrows();
    let inputs = [0, 1, 2].map(|third| {
        let range = third * dim_model..(third + 1) * dim_model;
        (all.0.slice(s![.., range.clone()]).to_owned(), all.1.as_ref().map(|bias| bias[range].to_vec()))
    });
    let output = Some((turned(get("out_proj.weight").unwrap()), get("out_proj.bias").map(bias)));
    let plain_layer = Plain { inputs, output, heads, key_heads: heads, causal };
    let x = get("x").unwrap();
    let limit = holds(file, &layer, &plain_layer, x.view());
    // torch's own result in f64, which the file has rounded to f32.
    let expected = get("expected").unwrap().mapv(f64::from);
    let rounding = ulp::<f32>(expected.iter().fold(0.0, |largest, y| y.abs().max(largest))) / 2.0;
    let got = layer.forward(&attention(causal), x).unwrap();
    close("torch's output", got.view(), expected.view(), limit + rounding);
}

#[test]
fn torchs_multihead_attention_with_biases() {
    golden("torch-mha.safetensors", 4, false);
}

#[test]
fn torchs_multihead_attention_without_biases_causal() {
    golden("torch-mha-causal.safetensors", 3, true);
}

#[test]
fn a_layer_may_be_called_by_the_lessons_names_or_by_torchs() {
    let lesson = arrays::<f32>((4, 4, 3, 3), 12, (true, true), &mut Rng::new(11));
    let get = |name: &str| lesson.iter().find(|array| array.0 == name).unwrap().1.view();
    let x = random::<f32>(&[2, 5, 12], 1.0, &mut Rng::new(12));
    let layer = layer_of(&lesson, 4);
    let want = layer.forward(&Attention::new(), x.view()).unwrap();
    let order = ["w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o"];
    let same = |how: &str, arrays: &[(&str, ArrayViewD<'_, f32>)]| {
        assert!(arrays.iter().all(|(name, _)| is_layer_array(name)), "{how}");
        let layer = Layer::from_arrays(arrays.iter().map(|(name, array)| (*name, array.view())), Some(4));
        let got = layer.unwrap().forward(&Attention::new(), x.view()).unwrap();
        same_bits(how, got.view(), want.view());
    };
    let upper = ["W_Q", "W_k", "W_V", "a.W_o", "B_q", "b_K", "model.b_v", "B_O"];
    same("capitals", &std::array::from_fn::<_, 8, _>(|i| (upper[i], get(order[i]))));

    let torch = |i: usize| if i < 4 { get(order[i]).reversed_axes() } else { get(order[i]) };
    for linears in [
        ["q", "k", "v", "o"],
        ["wq", "wk", "wv", "wo"],
        ["W_q", "W_k", "W_v", "W_o"],
        ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"],
        ["q_lin", "k_lin", "v_lin", "out_lin"],
        ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"],
        ["a.query_proj", "a.key_proj", "a.value_proj", "a.out_proj"],
        ["attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0"],
        ["query", "key", "value", "out"],
        ["to_q", "to_k", "to_v", "to_out"],
        ["query", "key", "value", "output"],
    ] {
        let names: [String; 8] =
            std::array::from_fn(|i| format!("{}.{}", linears[i % 4], if i < 4 { "weight" } else { "bias" }));
        same(linears[0], &std::array::from_fn::<_, 8, _>(|i| (names[i].as_str(), torch(i))));
    }
    let own = ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"];
    let names = std::array::from_fn::<_, 8, _>(|i| if i < 4 { own[i] } else { order[i] });
    same("widths of their own", &std::array::from_fn::<_, 8, _>(|i| (names[i], torch(i))));
    let packed = ndarray::concatenate(Axis(0), &[torch(0), torch(1), torch(2)]).unwrap();
    let biases = ndarray::concatenate(Axis(0), &[torch(4), torch(5), torch(6)]).unwrap();
    let state = [
        ("layers.0.self_attn.in_proj_weight", packed.view()),
        ("layers.0.self_attn.in_proj_bias", biases.view()),
        ("layers.0.self_attn.out_proj.weight", torch(3)),
        ("layers.0.self_attn.out_proj.bias", torch(7)),
    ];
    same("in_proj_weight", &state);
}

#[test]
fn names_that_are_no_layers_are_passed_over() {
    let others =
        ["norm.weight", "LayerNorm.bias", "mlp.up_proj.weight", "x", "q", "weight", "xq.weight", "w_qk"];
    let lesson = arrays::<f32>((1, 1, 4, 4), 6, (false, false), &mut Rng::new(1));
    let stray = grid::<f32>(&[2, 2], 0);
    let all = lesson.iter().map(|(name, array)| (*name, array.view()));
    let layer = Layer::from_arrays(all.chain(others.map(|name| (name, stray.view()))), None).unwrap();
    assert!(!layer.has_output());
    assert_eq!((layer.heads(), layer.key_heads()), (1, 1));
    for name in others {
        assert!(!is_layer_array(name), "{name}");
    }
    assert!(is_layer_array("bias_k") && is_layer_array("attn.bias_v"));
}

#[test]
fn empty_axes_give_empty_results() {
    let arrays = arrays::<f32>((4, 2, 5, 3), 12, (true, true), &mut Rng::new(2));
    let layer = layer_of(&arrays, 4);
    for (x, heads, output) in [
        (&[0, 12][..], &[4, 0, 5][..], &[0, 13][..]),
        (&[0, 7, 12], &[0, 4, 7, 5], &[0, 7, 13]),
        (&[3, 0, 12], &[3, 4, 0, 5], &[3, 0, 13]),
        (&[2, 0, 7, 12], &[2, 0, 4, 7, 5], &[2, 0, 7, 13]),
    ] {
        let x = ArrayD::zeros(x);
        assert_eq!(layer.project(x.view()).unwrap().query.shape(), heads);
        assert_eq!(layer.forward(&Attention::new(), x.view()).unwrap().shape(), output);
    }
    // No number in a row: what is left is the bias.
    let (none, bias) = (ArrayD::zeros(vec![0, 2]), ArrayD::from_elem(vec![2], 0.5f32));
    let arrays = [("w_q", none.view()), ("w_k", none.view()), ("w_v", none.view()), ("b_v", bias.view())];
    let layer = Layer::from_arrays(arrays, None).unwrap();
    let y = layer.forward(&Attention::new(), ArrayD::zeros(vec![2, 3, 0]).view()).unwrap();
    assert_eq!(y, ArrayD::from_elem(vec![2, 3, 2], 0.5));
}
