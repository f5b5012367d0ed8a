//! Calls that cannot be meant: each is refused with an error that names the argument, what was got, what is wanted
//! and the usual mend. None panics, and none is served in part.

mod support;

use ndarray::{Array1, Array2, ArrayD, ArrayViewD, IxDyn};
use proptest::prelude::*;
use proptest::test_runner::Config;
use qkv::{Alibi, Alignment, Attention, Element, Error, Path, Simd, Stage, merge};
use support::{Rng, Shapes, Views, element, grid, grids, number, views};

const BASE: Shapes = [&[1, 2, 6, 8], &[1, 2, 10, 8], &[1, 2, 10, 8]];

#[track_caller]
fn says<R>(result: Result<R, Error>, message: &str) {
    match result {
        Ok(_) => panic!("served, but should say: {message}"),
        Err(error) => assert_eq!(error.to_string(), message),
    }
}

/// Every way to ask is refused with the same words.
#[track_caller]
fn refused_in<T: Element>(attention: &Attention<'_>, shapes: Shapes, message: &str) {
    let arrays = grids::<T>(shapes);
    let call = || attention.call(arrays[0].view(), arrays[1].view(), arrays[2].view());
    says(call().run(), message);
    says(call().lse().weights().run(), message);
    says(call().scores(Stage::Raw), message);
    says(call().visible(), message);
    says(call().plan(), message);
    says(call().reference(&[(0, 0, 0)]), message);
    let mut output = grid::<T>(&[1, 2, 6, 8], 3);
    let before = output.clone();
    says(call().run_into(output.view_mut()), message);
    assert_eq!(output, before);
}

#[track_caller]
fn refused(attention: &Attention<'_>, shapes: Shapes, message: &str) {
    refused_in::<f32>(attention, shapes, message);
}

#[test]
fn shapes_that_do_not_fit_one_another_are_refused() {
    let of = |shapes: Shapes, message: &str| refused(&Attention::new(), shapes, message);
    let [q, k, v] = BASE;
    of([&[8], k, v], "query: got shape (8,), want (len, dim) or (…, heads, len, dim)");
    of([&[], &[], &[]], "query: got shape (), want (len, dim) or (…, heads, len, dim)");
    of([q, &[2, 10, 8], v], "key: got shape (2, 10, 8), want 4 axes, as the query has");
    of([q, k, &[1, 1, 2, 10, 8]], "value: got shape (1, 1, 2, 10, 8), want 4 axes, as the query has");
    of([q, &[1, 2, 10, 7], v], "key: got shape (1, 2, 10, 7), want (…, len_key, 8): the query's dim is 8");
    of([q, k, &[1, 2, 9, 8]], "value: got shape (1, 2, 9, 8), want (…, 10, dim_value): one for each key");
    of(
        [q, k, &[1, 1, 10, 8]],
        "value: got shape (1, 1, 10, 8), want (…, 2, 10, dim_value) (there are 2 key heads)",
    );
    of(
        [&[1, 3, 6, 8], k, v],
        "key: got shape (1, 2, 10, 8), want a number of key heads that divides the 3 query heads",
    );
    of(
        [&[1, 1, 6, 8], k, v],
        "key: got shape (1, 2, 10, 8), want a number of key heads that divides the 1 query heads",
    );
    of(
        [q, &[1, 0, 10, 8], &[1, 0, 10, 8]],
        "key: got shape (1, 0, 10, 8), want a number of key heads that divides the 2 query heads",
    );
    of(
        [&[2, 2, 6, 8], &[3, 2, 10, 8], &[3, 2, 10, 8]],
        "key: got shape (3, 2, 10, 8), want 2 or 1 on axis 0, to broadcast with the others",
    );
    of(
        [q, &[2, 2, 10, 8], &[3, 2, 10, 8]],
        "value: got shape (3, 2, 10, 8), want 2 or 1 on axis 0, to broadcast with the others",
    );
    of(
        [&[4, 0, 2, 6, 8], &[4, 3, 2, 10, 8], &[4, 1, 2, 10, 8]],
        "key: got shape (4, 3, 2, 10, 8), want 0 or 1 on axis 1, to broadcast with the others",
    );
}

#[test]
fn a_scale_or_softcap_that_is_no_number_for_the_arithmetic_is_refused() {
    for (scale, shown) in [(f64::NAN, "NaN"), (f64::INFINITY, "inf"), (f64::NEG_INFINITY, "-inf")] {
        let message = |name: &str| format!("scale: got {shown}, want a finite {name}");
        refused_in::<f32>(&Attention::new().scale(scale), BASE, &message("f32"));
        refused_in::<qkv::bf16>(&Attention::new().scale(scale), BASE, &message("f32"));
        refused_in::<f64>(&Attention::new().scale(scale), BASE, &message("f64"));
    }
    let large = Attention::new().scale(1e39);
    refused(&large, BASE, &format!("scale: got {:?}, want a finite f32", 1e39));
    let [q, k, v] = grids::<f64>(BASE);
    assert!(large.forward(q.view(), k.view(), v.view()).is_ok());

    for cap in [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY, 1e-40, 1e39] {
        let wanted = "a number above 0, finite as its inverse is; no softcap: leave it out";
        refused(&Attention::new().softcap(cap), BASE, &format!("softcap: got {cap:?}, want {wanted}"));
    }
    assert!(Attention::new().softcap(1e-40).forward(q.view(), k.view(), v.view()).is_ok());
}

/// xformers #90: a mask that is too large was cut to size without a word.
#[test]
fn a_mask_or_bias_that_does_not_broadcast_is_refused_and_never_cut() {
    for shape in [&[6, 12][..], &[7, 10], &[3, 6, 10], &[2, 2, 6, 10], &[1, 1, 2, 6, 10], &[0, 10], &[9]] {
        let (mask, bias) = (ArrayD::from_elem(shape, true), ArrayD::<f32>::zeros(shape));
        let shown = support::shown(shape);
        let message = |argument: &str| {
            format!("{argument}: got shape {shown}, want (1, 2, 6, 10) or what broadcasts to it")
        };
        refused(&Attention::new().mask(mask.view()), BASE, &message("mask"));
        refused(&Attention::new().bias(bias.view()), BASE, &message("bias"));
        // The first of two fits; the second is still looked at.
        let fits = Array2::from_elem((6, 10), true);
        refused(&Attention::new().mask(fits.view()).mask(mask.view()), BASE, &message("mask"));
    }
}

/// pytorch #178271, #120810: a mask for each batch lacks the axis for heads.
#[test]
fn a_mask_for_each_batch_without_an_axis_for_heads_is_told_the_mend() {
    let shapes: Shapes = [&[3, 2, 4, 8], &[3, 2, 6, 8], &[3, 2, 6, 8]];
    let wanted = "want (3, 2, 4, 6) or what broadcasts to it";
    let mask = ArrayD::from_elem(vec![3, 4, 6], true);
    let mend = "(with an axis for heads, (3, 1, 4, 6): unsqueeze(1))";
    refused(
        &Attention::new().mask(mask.view()),
        shapes,
        &format!("mask: got shape (3, 4, 6), {wanted} {mend}"),
    );
    let bias = ArrayD::<f32>::zeros(vec![3, 6]);
    let mend = "(with an axis for heads, (3, 1, 1, 6): unsqueeze(1).unsqueeze(1))";
    refused(&Attention::new().bias(bias.view()), shapes, &format!("bias: got shape (3, 6), {wanted} {mend}"));
}

#[test]
fn key_lengths_prefixes_and_segments_must_fit() {
    let shapes: Shapes = [&[3, 2, 6, 8], &[3, 2, 10, 8], &[3, 2, 10, 8]];
    let plain = Attention::new();
    let causal = plain.clone().causal(Alignment::TopLeft);
    let each = "want (1,) or (3,): one for all batches, or one each";
    let long = "key_lengths: got 11, want at most 10, the number of keys";
    refused(&plain.clone().key_lengths([11]), shapes, long);
    refused(&plain.clone().key_lengths([0, 10, 11]), shapes, long);
    refused(&plain.clone().key_lengths([1, 2]), shapes, &format!("key_lengths: got shape (2,), {each}"));
    refused(&plain.clone().key_lengths([]), shapes, &format!("key_lengths: got shape (0,), {each}"));
    refused(&causal.clone().prefix([1, 2]), shapes, &format!("prefix: got shape (2,), {each}"));
    refused(
        &plain.clone().prefix([4]),
        shapes,
        "prefix: got a prefix without causal order, want causal order (without it every key is open already)",
    );
    let (query, key) = (Array1::<i64>::zeros(6), Array1::<i64>::zeros(9));
    refused(
        &plain.clone().segments(query.view(), key.view()),
        shapes,
        "segments of keys: got shape (9,), want (3, 10) or (10,)",
    );
    let (query, key) = (Array2::<i64>::zeros((2, 6)), Array1::<i64>::zeros(10));
    refused(
        &plain.clone().segments(query.view(), key.view()),
        shapes,
        "segments of queries: got shape (2, 6), want (3, 6) or (6,)",
    );
}

#[test]
fn positions_are_said_once_and_stay_within_bounds() {
    const LIMIT: i64 = 2305843009213693952;
    let plain = Attention::new();
    refused(
        &plain.clone().causal(Alignment::TopLeft).query_offset(3),
        BASE,
        "query_offset: got 3 beside TopLeft, want one of the two (causal(Alignment::Offset(3)))",
    );
    for offset in [-1, i64::MIN, LIMIT + 1, i64::MAX] {
        let message = format!("key_offset: got {offset}, want 0 to {LIMIT}");
        refused(&plain.clone().key_offset(offset), BASE, &message);
    }
    for offset in [-LIMIT - 1, i64::MIN, LIMIT + 1, i64::MAX] {
        let message = format!("query_offset: got {offset}, want at most {LIMIT} either way");
        refused(&plain.clone().query_offset(offset), BASE, &message);
        refused(&plain.clone().causal(Alignment::Offset(offset)), BASE, &message);
    }
    let message = format!("query_offset: got {}, want at most {LIMIT} either way", LIMIT + 4);
    refused(&plain.clone().key_offset(LIMIT).causal(Alignment::BottomRight), BASE, &message);
    // At the very bounds there is an answer, and windows and slopes do not overflow on the way to it.
    let [q, k, v] = grids::<f32>(BASE);
    for (query, key) in [(LIMIT, LIMIT), (-LIMIT, LIMIT), (LIMIT, 0)] {
        let far = plain.clone().causal(Alignment::Offset(query)).key_offset(key);
        for attention in [far.clone().window(Some(u64::MAX), Some(u64::MAX)), far.alibi(Alibi::Paper)] {
            for path in Path::ALL {
                let got = attention.clone().path(path).forward(q.view(), k.view(), v.view()).unwrap();
                assert!(got.iter().all(|y| y.is_finite()), "{query}, {key}, {path}");
            }
        }
    }
}

#[test]
fn sinks_and_slopes_are_one_finite_number_for_each_head() {
    let plain = Attention::new();
    let count = "sinks: got shape (1,), want (2,): one for each query head";
    refused(&plain.clone().sinks([1.0]), BASE, count);
    for sink in [f64::NAN, f64::INFINITY, 1e39] {
        let message = format!("sinks: got {sink:?}, want a finite f32, or -inf for no sink");
        refused(&plain.clone().sinks([0.0, sink]), BASE, &message);
    }
    let slopes = |slopes: &[f64]| plain.clone().alibi(Alibi::Slopes(slopes.to_vec()));
    refused(&slopes(&[1.0; 3]), BASE, "alibi: got shape (3,), want (2,): one for each head");
    for slope in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1e39] {
        let message = format!("alibi: got {slope:?}, want slopes that are a finite f32");
        refused(&slopes(&[0.5, slope]), BASE, &message);
    }
}

#[test]
fn an_output_of_another_shape_is_refused_and_left_as_it_was() {
    let [q, k, v] = grids::<f32>(BASE);
    for (shape, shown) in [
        (&[1, 2, 6, 7][..], "(1, 2, 6, 7)"),
        (&[1, 2, 10, 8], "(1, 2, 10, 8)"),
        (&[1, 1, 6, 8], "(1, 1, 6, 8)"),
        (&[2, 2, 6, 8], "(2, 2, 6, 8)"),
        (&[2, 6, 8], "(2, 6, 8)"),
    ] {
        let mut output = ArrayD::from_elem(shape, 7.5f32);
        let result = Attention::new().forward_into(q.view(), k.view(), v.view(), output.view_mut());
        says(result, &format!("output: got shape {shown}, want (1, 2, 6, 8)"));
        assert!(output.iter().all(|&y| y == 7.5));
    }
}

#[test]
fn a_partial_is_told_where_it_stands_and_has_no_sink() {
    let [q, k, v] = grids::<f32>(BASE);
    let partial = |attention: Attention<'_>| attention.call(q.view(), k.view(), v.view()).partial().map(drop);
    says(
        partial(Attention::new().causal(Alignment::BottomRight)),
        "causal: got bottom-right, want a position (a partial does not know where all keys end: use \
         Alignment::Offset)",
    );
    says(
        partial(Attention::new().sinks([1.0, 2.0])),
        "sinks: got sinks in a partial, want none (give them to merge)",
    );
    says(partial(Attention::new().scale(f64::NAN)), "scale: got NaN, want a finite f32");
}

#[test]
fn partials_that_do_not_belong_together_are_not_merged() {
    let [q, k, v] = grids::<f32>(BASE);
    let over = |q: ArrayViewD<'_, f32>, offset: i64| {
        Attention::new().key_offset(offset).call(q, k.view(), v.view()).partial().unwrap()
    };
    says(merge::<f32, IxDyn>(&[], None), "partials: got none, want at least one");
    says(
        merge(&[over(q.view(), 9), over(q.view(), 0)], None),
        "partials: got keys up to position 10 and keys from position 9 on, want keys that do not overlap",
    );
    says(
        merge(&[over(q.view(), 0), over(q.view(), 0)], None),
        "partials: got keys up to position 10 and keys from position 0 on, want keys that do not overlap",
    );
    assert!(merge(&[over(q.view(), 10), over(q.view(), 0)], None).is_ok());
    let fewer = support::part(q.view(), 2, 0..5);
    let error = merge(&[over(q.view(), 0), over(fewer, 10)], None).unwrap_err();
    assert!(matches!(error, Error::Shape { argument: "partials", .. }), "{error}");
    // Two heads in one batch are not one head in each of two.
    let turned = q.view().permuted_axes(vec![1, 0, 2, 3]);
    let [k, v] = [&k, &v].map(|array| array.view().permuted_axes(vec![1, 0, 2, 3]));
    let other = Attention::new().key_offset(10).call(turned, k, v).partial().unwrap();
    let error = merge(&[over(q.view(), 0), other], None).unwrap_err();
    assert!(matches!(error, Error::Shape { argument: "partials", .. }), "{error}");
    let message = "sinks: got shape (3,), want (2,): one for each query head";
    says(merge(&[over(q.view(), 0)], Some(&[0.0; 3])), message);
    let message = "sinks: got NaN, want a finite f32, or -inf for no sink";
    says(merge(&[over(q.view(), 0)], Some(&[0.0, f64::NAN])), message);
}

#[test]
fn an_instruction_set_that_the_machine_lacks_is_refused() {
    for simd in Simd::ALL.into_iter().filter(|simd| !simd.is_available()) {
        let message = format!("simd: got {simd}, want `{}`: this machine has no more", Simd::best());
        refused(&Attention::new().simd(simd), BASE, &message);
    }
    says("fast".parse::<Path>(), "path: got `fast`, want `prefill`, `decode` or `scalar`");
}

#[test]
fn a_row_that_does_not_exist_has_no_reference() {
    let [q, k, v] = grids::<f32>(BASE);
    let attention = Attention::new();
    for (row, shown) in [((1, 0, 0), "(1, 0, 0)"), ((0, 2, 0), "(0, 2, 0)"), ((0, 0, 6), "(0, 0, 6)")] {
        let reference = attention.call(q.view(), k.view(), v.view()).reference(&[(0, 1, 5), row]);
        says(reference, &format!("row: got {shown}, want (batch, head, query) below (1, 2, 6)"));
        let influence = attention.call(q.view(), k.view(), v.view()).influence(row);
        says(influence, &format!("row: got {shown}, want (batch, head, query) below (1, 2, 6)"));
    }
}

#[test]
fn a_head_or_queries_that_do_not_exist_have_no_trace() {
    let [q, k, v] = grids::<f32>(BASE);
    let attention = Attention::new();
    let trace = |head, queries| attention.call(q.view(), k.view(), v.view()).trace_head(head, queries);
    says(trace((1, 0), 0..6), "batch: got 1, want a number below 1");
    says(trace((0, 2), 0..6), "head: got 2, want a number below 2");
    says(trace((0, 0), 3..7), "queries: got 3..7, want a range within 0..6");
    #[expect(clippy::reversed_empty_ranges, reason = "what is refused")]
    let reversed = 5..3;
    says(trace((0, 0), reversed), "queries: got 5..3, want a range within 0..6");
    assert_eq!(trace((0, 1), 6..6).unwrap().scores.len(), 0);
}

/// `array` repeated along an axis of length 1 without memory, as a caller's `broadcast` or `expand` does.
fn repeated(array: &ArrayD<f32>, axis: usize, count: usize) -> ArrayViewD<'_, f32> {
    let mut shape = array.shape().to_vec();
    shape[axis] = count;
    array.broadcast(shape).unwrap()
}

#[test]
fn a_result_too_large_for_memory_is_an_error() {
    // 2^50 bytes and more: no address space holds them.
    const MANY: usize = 1 << 46;
    let [q, k, v] = grids::<f32>([&[1, 1, 1, 4]; 3]);
    let plain = Attention::new();
    let long = repeated(&q, 2, MANY);
    let output = format!("output: no memory for an array of shape (1, 1, {MANY}, 4)");
    says(plain.forward(long.clone(), k.view(), v.view()), &output);
    says(plain.call(long.clone(), k.view(), v.view()).lse().run(), &output);
    let partial = plain.call(long.clone(), k.view(), v.view()).partial();
    says(partial, &format!("partial: no memory for an array of shape (1, 1, {MANY}, 6)"));
    let square = format!("(1, 1, {MANY}, {MANY})");
    let (keys, values) = (repeated(&k, 2, MANY), repeated(&v, 2, MANY));
    let call = || plain.call(long.clone(), keys.clone(), values.clone());
    says(call().scores(Stage::Raw), &format!("scores: no memory for an array of shape {square}"));
    says(call().visible(), &format!("visible pairs: no memory for an array of shape {square}"));
    says(call().reference(&[(0, 0, 0)]), &format!("reference: no memory for an array of shape (1, {MANY})"));
    // No key counts, so that there is nothing to compute before the weights.
    let none = Attention::new().key_lengths([0]);
    let weights = none.call(q.view(), repeated(&k, 2, MANY << 2), repeated(&v, 2, MANY << 2)).weights();
    let message = format!("weights: no memory for an array of shape (1, 1, 1, {})", MANY << 2);
    says(weights.run(), &message);
}

#[test]
fn more_batches_or_heads_than_memory_holds_are_an_error() {
    const MANY: usize = 1 << 60;
    let [q, k, v] = grids::<f32>([&[1, 1, 1, 1]; 3]);
    for axis in [0, 1] {
        let result = Attention::new().forward(repeated(&q, axis, MANY), k.view(), v.view());
        assert!(matches!(result, Err(Error::Memory { .. })), "axis {axis}: {result:?}");
    }
}

/// 2^28 views would fit, and take 10 GB.
#[test]
fn matrices_without_numbers_cost_nothing_however_many() {
    const MANY: usize = 1 << 28;
    let empty = ArrayD::<f32>::zeros(vec![1, 1, 0, 4]);
    let many = repeated(&empty, 0, MANY);
    let attention = Attention::new();
    let output = attention.forward(many.clone(), many.clone(), many.clone()).unwrap();
    assert_eq!(output.shape(), [MANY, 1, 0, 4]);
    let plan = attention.call(many.clone(), many.clone(), many).plan().unwrap();
    assert_eq!(plan.flops, 0);
}

#[test]
fn lengths_without_bound_never_panic() {
    let result = Attention::new().visible(usize::MAX, 1);
    assert!(matches!(result, Err(Error::Memory { .. })), "{:?}", result.err());
    let result = Attention::new().causal(Alignment::BottomRight).visible(1 << 40, 1 << 40);
    assert!(matches!(result, Err(Error::Memory { .. })), "{:?}", result.err());
    // Keys without numbers can be as many as an index can count.
    let query = ArrayD::<f32>::zeros(vec![1, 0]);
    let key = ArrayD::<f32>::zeros(vec![isize::MAX as usize, 0]);
    // And queries that there are none of, as long.
    for dim in [1 << 40, 1 << 58] {
        let none = ArrayD::<f32>::zeros(vec![0, dim]);
        let attention = Attention::new();
        let call = || attention.call(none.view(), none.view(), none.view());
        assert!(call().lse().weights().run().unwrap().output.is_empty());
        assert_eq!(call().plan().unwrap().scratch_bytes, 0);
    }
    let ends = Attention::new().key_offset(1 << 61).causal(Alignment::BottomRight);
    let result = ends.forward(query.view(), key.view(), key.view());
    assert!(matches!(result, Err(Error::Value { argument: "query_offset", .. })), "{:?}", result.err());
    let late = Attention::new().key_offset(1 << 61).causal(Alignment::Offset(0));
    let partial = || late.call(query.view(), key.view(), key.view()).partial().unwrap();
    let error = merge(&[partial(), partial()], None).unwrap_err();
    assert!(matches!(error, Error::Value { argument: "partials", .. }), "{error}");
}

/// The map of a mask's tiles, a byte for 4096 pairs, is too large here too.
#[test]
fn a_mask_or_ids_expanded_beyond_memory_are_an_error() {
    const MANY: usize = 1 << 46;
    let [q, k, v] = grids::<f32>([&[1, 1, 1, 1]; 3]);
    let (visible, id) = (ArrayD::from_elem(vec![1, 1], true), Array1::<i64>::zeros(1));
    let (mask, ids) = (visible.broadcast((MANY, 1)).unwrap(), id.broadcast(MANY).unwrap());
    for attention in [Attention::new().mask(mask), Attention::new().segments(ids, id.view())] {
        let result = attention.forward(repeated(&q, 2, MANY), k.view(), v.view());
        assert!(matches!(result, Err(Error::Memory { .. })), "{result:?}");
    }
}

/// Shapes that mostly fit, and options that mostly do.
#[derive(Clone, Debug)]
struct Asked {
    rank: usize,
    /// Batch axes, key heads, query heads for each, queries, keys, dim, dim_value.
    extents: [usize; 8],
    /// Which array, which of its axes, and its extent instead.
    changed: Option<(usize, usize, usize)>,
    ranks: Option<[usize; 3]>,
    /// Which axes of the mask are 1, how many it lacks, and whether it is drawn without regard to the rest.
    mask: (usize, usize, Option<Vec<usize>>),
    options: [usize; 6],
    seed: u64,
}

fn asked() -> impl Strategy<Value = Asked> {
    let mask =
        (0..64usize, 0..7usize, proptest::option::weighted(0.2, proptest::collection::vec(0..4usize, 0..6)));
    let changed = proptest::option::weighted(0.3, (0..3usize, 0..5usize, 0..4usize));
    let ranks = proptest::option::weighted(0.1, proptest::array::uniform3(0..6usize));
    let options = proptest::array::uniform6(0..12usize);
    (0..6usize, proptest::array::uniform8(0..4usize), changed, ranks, mask, options, any::<u64>()).prop_map(
        |(rank, extents, changed, ranks, mask, options, seed)| Asked {
            rank,
            extents,
            changed,
            ranks,
            mask,
            options,
            seed,
        },
    )
}

impl Asked {
    fn shapes(&self) -> [Vec<usize>; 3] {
        let [a, b, key_heads, group, len_query, len_key, dim, dim_value] = self.extents;
        let full = [
            [a, b, key_heads * group, len_query, dim],
            [a, b, key_heads, len_key, dim],
            [a, b, key_heads, len_key, dim_value],
        ];
        let mut shapes = full.map(|shape| shape[5 - self.rank..].to_vec());
        if let Some((array, axis, extent)) = self.changed
            && let Some(changed) = shapes[array].get_mut(axis)
        {
            *changed = extent;
        }
        match self.ranks {
            Some(ranks) => std::array::from_fn(|at| full[at][5 - ranks[at]..].to_vec()),
            None => shapes,
        }
    }

    fn mask_shape(&self) -> Vec<usize> {
        let [a, b, key_heads, group, len_query, len_key, ..] = self.extents;
        let (ones, lacking, instead) = &self.mask;
        let full = [a, b, key_heads * group, len_query, len_key];
        let full = full[5 - self.rank..].iter().enumerate();
        let shape = full.map(|(axis, &extent)| if ones >> axis & 1 == 1 { 1 } else { extent });
        instead.clone().unwrap_or_else(|| shape.skip(*lacking).collect())
    }
}

/// Whatever comes in, there is an answer or an error; and an answer has the shape that it should have.
fn answers<T: Element>(asked: &Asked) {
    let mut rng = Rng::new(asked.seed);
    let arrays = asked.shapes().map(|shape| {
        const NUMBERS: [f64; 6] = [0.0, 1.0, -1.5, f64::NAN, f64::INFINITY, 3e38];
        ArrayD::from_shape_simple_fn(shape, || match rng.below(40) {
            few if few < NUMBERS.len() => element::<T>(NUMBERS[few]),
            _ => element(rng.number()),
        })
    });
    let mask = ArrayD::from_shape_simple_fn(asked.mask_shape(), || rng.below(2) == 0);
    let bias = mask.mapv(|visible| if visible { 0.5f32 } else { f32::NEG_INFINITY });
    let small = rng.below(4);
    let [order, masks, lengths, extra, path, _] = asked.options;
    let mut attention = Attention::new();
    attention = match order {
        0 => attention.causal(Alignment::TopLeft),
        1 => attention.causal(Alignment::BottomRight),
        2 => attention.causal(Alignment::Offset(small as i64 - 2)).window(Some(1), None),
        3 => attention.causal(Alignment::TopLeft).prefix([small as u64]).key_offset(2),
        4 => attention.query_offset(-1).window(Some(1), Some(0)),
        5 => attention.prefix([1]),
        6 => attention.key_offset(63),
        _ => attention,
    };
    attention = match masks {
        0..4 => attention.mask(mask.view()),
        4..7 => attention.bias(bias.view()),
        7 => attention.mask(mask.view()).bias(bias.view()).bias(bias.view()),
        _ => attention,
    };
    attention = match lengths {
        0 => attention.key_lengths([small]),
        1 => attention.key_lengths(vec![1; small]),
        2 => attention.key_lengths([0]),
        _ => attention,
    };
    attention = match extra {
        0 => attention.sinks(vec![0.5; small]),
        1 => attention.alibi(Alibi::Paper),
        2 => attention.alibi(Alibi::Slopes(vec![0.5; small])),
        3 => attention.softcap(2.0).scale(0.0),
        4 => attention.softcap(small as f64 - 1.0),
        _ => attention,
    };
    attention = match path {
        0..3 => attention.path(Path::Prefill),
        3..6 => attention.path(Path::Decode),
        6..8 => attention.path(Path::Scalar),
        _ => attention,
    };
    check_answers(&attention, views(&arrays));
}

fn check_answers<T: Element>(attention: &Attention<'_>, [q, k, v]: Views<'_, T>) {
    let call = || attention.call(q.clone(), k.clone(), v.clone());
    // The others must not panic either.
    let whole = call().lse().row_stats().weights().run();
    assert_eq!(call().plan().is_ok(), whole.is_ok());
    assert_eq!(call().reference(&[]).is_ok(), whole.is_ok());
    let visible = call().visible();
    assert_eq!(visible.is_ok(), whole.is_ok());
    assert_eq!(call().scores(Stage::Masked).is_ok(), whole.is_ok());
    let partial = call().partial();
    let Ok(whole) = whole else { return };
    if let Ok(partial) = partial {
        let merged = merge(&[partial], None).unwrap();
        support::same_bits("merged", merged.output.view(), whole.output.view());
    }
    let rank = q.ndim();
    let last = |len: usize| [q.shape()[rank - 2], len];
    // Batch axes broadcast; heads are the query's.
    let lead: Vec<usize> = (0..rank - 2)
        .map(|axis| match [&q, &k, &v].map(|array| array.shape()[axis]) {
            [heads, ..] if axis == rank - 3 => heads,
            extents => extents.into_iter().find(|&extent| extent != 1).unwrap_or(1),
        })
        .collect();
    let shape = |last: &[usize]| [&lead, last].concat();
    let (lens, dim_value) = (last(k.shape()[rank - 2]), v.shape()[rank - 1]);
    assert_eq!(whole.output.shape(), shape(&last(dim_value)));
    assert_eq!(whole.lse.unwrap().shape(), shape(&lens[..1]));
    assert_eq!(whole.row_stats.unwrap().sum.shape(), shape(&lens[..1]));
    let (weights, visible) = (whole.weights.unwrap(), visible.unwrap());
    assert_eq!(weights.shape(), shape(&lens));
    assert_eq!(visible.shape(), shape(&lens));
    for (&weight, &visible) in weights.iter().zip(&visible) {
        assert!(visible || number(weight) == 0.0);
    }
}

proptest! {
    #![proptest_config(Config { cases: 3000, failure_persistence: None, ..Config::default() })]

    #[test]
    fn no_call_panics_and_every_answer_has_its_shape(asked in asked()) {
        match asked.options[5] {
            0..9 => answers::<f32>(&asked),
            9 => answers::<f64>(&asked),
            10 => answers::<qkv::f16>(&asked),
            _ => answers::<qkv::bf16>(&asked),
        }
    }
}
