//! No option leads to a slow path: which kernel runs for each, and what a strict call refuses.

mod support;

use ndarray::{Array1, Array2, Array4, ArrayView4, Axis, s};
use qkv::{Alibi, Alignment, Attention, Element, Error, Hint, Path, Region, Simd, bf16, f16};
use support::{Watch, grid};

fn array<T: Element>(heads: usize, len: usize, dim: usize) -> Array4<T> {
    grid(&[1, heads, len, dim], 0).into_dimensionality().unwrap()
}

const LEN: usize = 130;

/// Runs a strict call on few and on many queries, and finds the kernel that ran by what it asked.
#[track_caller]
fn runs_fast<T: Element>(
    what: &str,
    key: ArrayView4<'_, T>,
    value: ArrayView4<'_, T>,
    options: Attention<'_>,
) {
    for (len_query, path, queries) in [(1, Path::Decode, 1), (LEN, Path::Prefill, 64)] {
        let watch = Watch::new(Hint::Full);
        let query = array::<T>(4, LEN, key.shape()[3]);
        // The last rows, so that stored masks fit both.
        let query = query.slice(s![.., .., LEN - len_query.., ..]);
        let attention = options.clone().mask_fn(&watch).strict();
        let call = attention.call(query, key, value);
        call.lse().row_stats().run().unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(watch.largest().0, queries, "{what}, {path}");
        assert_eq!(attention.call(query, key, value).plan().unwrap().path, path, "{what}");
    }
}

#[test]
fn every_option_stays_on_the_fast_kernels() {
    let (key, value) = (array::<f32>(2, LEN, 16), array::<f32>(2, LEN, 16));
    let allowed = Array2::from_shape_fn((1, LEN), |(_, j)| j % 3 != 1);
    let bias = Array2::from_shape_fn(
        (1, LEN),
        |(_, j)| if j % 5 == 0 { f64::NEG_INFINITY } else { j as f64 * 0.01 },
    );
    let ids = Array1::from_shape_fn(LEN, |i| (i / 40) as i64);
    let last = Array1::from_elem(1, 3i64);
    let closure = |region: &Region, bias: &mut [f64]| bias.fill(region.head as f64);
    let plain = Attention::new;
    for (what, options) in [
        ("nothing", plain()),
        ("causal", plain().causal(Alignment::BottomRight)),
        ("prefix", plain().causal(Alignment::BottomRight).prefix([9])),
        ("window", plain().causal(Alignment::BottomRight).window(Some(70), Some(0))),
        ("mask", plain().mask(allowed.view())),
        ("bias", plain().bias(bias.view())),
        ("computed bias", plain().bias_fn(&closure)),
        ("alibi", plain().alibi(Alibi::Paper)),
        ("softcap", plain().softcap(3.0)),
        ("sinks", plain().sinks([0.0, 1.0, -1.0, 2.0])),
        ("scale", plain().scale(-0.3)),
        ("key lengths", plain().key_lengths([100])),
        ("key offset", plain().key_offset(77)),
    ] {
        runs_fast(what, key.view(), value.view(), options);
    }
    let query = array::<f32>(4, 1, 16);
    let segments =
        Attention::new().segments(last.view().insert_axis(Axis(0)), ids.view().insert_axis(Axis(0)));
    segments.strict().forward(query.view(), key.view(), value.view()).unwrap();
}

#[test]
fn every_shape_and_type_stays_on_the_fast_kernels() {
    for (dim, dim_value) in [(16, 16), (7, 16), (16, 5), (1, 1), (80, 64)] {
        let what = format!("{dim}, {dim_value}");
        runs_fast(&what, array::<f32>(2, LEN, dim).view(), array(2, LEN, dim_value).view(), Attention::new());
    }
    runs_fast("f64", array::<f64>(2, LEN, 8).view(), array(2, LEN, 8).view(), Attention::new());
    runs_fast("f16", array::<f16>(1, LEN, 8).view(), array(1, LEN, 8).view(), Attention::new());
    runs_fast("bf16", array::<bf16>(4, LEN, 8).view(), array(4, LEN, 8).view(), Attention::new());
    // (batch, len, heads, dim) and every second row.
    let packed = array::<f32>(2 * LEN, 2, 8);
    let swapped =
        packed.view().into_shape_with_order((1, 2 * LEN, 2, 8)).unwrap().permuted_axes([0, 2, 1, 3]);
    let rows = swapped.slice(s![.., .., ..;2, ..]);
    runs_fast("rows apart", rows, rows, Attention::new());
}

#[track_caller]
fn refused(attention: &Attention<'_>, [query, key, value]: [ArrayView4<'_, f32>; 3], wanted: &str) {
    attention.forward(query, key, value).expect("not strict");
    let error = attention.clone().strict().forward(query, key, value).unwrap_err();
    assert!(matches!(error, Error::Value { argument: "strict", .. }), "{error:?}");
    assert!(error.to_string().contains(wanted), "{error}");
}

#[test]
fn a_strict_call_refuses_what_would_be_slower_than_it_could_be() {
    let (many, few) = (array::<f32>(2, LEN, 8), array::<f32>(2, 1, 8));
    let many = || many.view();
    if Simd::best() != Simd::Portable {
        let forced = Attention::new().simd(Simd::Portable);
        refused(&forced, [few.view(), many(), many()], "the instruction set portable");
    }
    refused(&Attention::new().path(Path::Scalar), [many(); 3], "the path scalar, where prefill is faster");
    refused(&Attention::new().path(Path::Decode), [many(); 3], "the path decode, where prefill is faster");
    let forced = Attention::new().path(Path::Prefill);
    refused(&forced, [few.view(), many(), many()], "the path prefill, where decode is faster");
    let wide = array::<f32>(2, LEN, 16);
    let strided = wide.slice(s![.., .., .., ..;2]);
    for (at, name) in ["query", "key", "value"].into_iter().enumerate() {
        let mut arrays = [many(); 3];
        arrays[at] = strided;
        refused(&Attention::new(), arrays, &format!("a {name} that is read number by number"));
    }
    // Nothing is slow about nothing, whose strides mean nothing.
    let (no_keys, no_queries) = (Array4::<f32>::zeros((1, 2, 0, 8)), Array4::<f32>::zeros((1, 2, 0, 8)));
    Attention::new().strict().forward(many(), no_keys.view(), no_keys.view()).unwrap();
    Attention::new().strict().forward(no_queries.view(), many(), many()).unwrap();
    // What is already fastest may be asked for.
    let asked = Attention::new().path(Path::Prefill).simd(Simd::best()).strict();
    asked.forward(many(), many(), many()).unwrap();
}
