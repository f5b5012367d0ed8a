//! The one generator: every path × instruction set × type × layout × mask × data × threads, against both oracles.
//!
//! Cases are drawn from a fixed seed until every pair of choices has occurred together. A failing case prints the
//! one line that runs it again: `QKV_CASE=seed cargo test -p qkv --test every_path`.

mod support;

use std::collections::HashSet;
use std::ops::Range;

use ndarray::{Array, ArrayD, ArrayViewD, Axis, Dimension, IxDyn};
use qkv::{
    Alibi, Alignment, Attention, AttentionOutput, Call, Element, Hint, Path, Real, Region, Simd, Stage,
    Trace, bf16, error_limit, f16,
};
use support::differentiated::assert_differentiated;
use support::inspected::{Whole, assert_inspected, plane};
use support::{Rng, Watch, laid_out, same_bits};

/// One choice from each list, by its place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Case {
    seed: u64,
    choices: [usize; FACTORS.len()],
}

/// What is chosen, and from how many.
const FACTORS: [(&str, usize); 10] = [
    ("path", 2),
    ("simd", Simd::ALL.len()),
    ("element", 4),
    ("layout", support::LAYOUTS),
    ("shape", SHAPES.len()),
    ("order", 10),
    ("mask", 11),
    ("extra", 8),
    ("data", 4),
    ("threads", 4),
];

struct Shape {
    batch: &'static [usize],
    key_batch: &'static [usize],
    heads: usize,
    key_heads: usize,
    lens: (usize, usize),
    dims: (usize, usize),
}

const fn shape(
    batch: &'static [usize],
    key_batch: &'static [usize],
    heads: (usize, usize),
    lens: (usize, usize),
    dims: (usize, usize),
) -> Shape {
    Shape { batch, key_batch, heads: heads.0, key_heads: heads.1, lens, dims }
}

/// Around the edges of vectors, tiles and query blocks.
const SHAPES: [Shape; 16] = [
    shape(&[1], &[1], (1, 1), (1, 1), (1, 1)),
    shape(&[2], &[2], (4, 2), (5, 7), (8, 8)),
    shape(&[1], &[1], (6, 2), (1, 701), (16, 24)),
    shape(&[1], &[1], (2, 1), (3, 1300), (8, 5)),
    shape(&[2], &[1], (2, 2), (65, 129), (7, 3)),
    shape(&[1], &[3], (3, 1), (17, 63), (3, 17)),
    shape(&[2, 2], &[1, 2], (2, 1), (4, 66), (5, 6)),
    shape(&[1], &[1], (1, 1), (130, 64), (32, 32)),
    shape(&[1], &[1], (2, 2), (64, 513), (4, 4)),
    shape(&[1], &[1], (1, 1), (9, 1601), (4, 19)),
    shape(&[1], &[1], (2, 1), (63, 65), (59, 1)),
    shape(&[3], &[3], (1, 1), (2, 0), (4, 4)),
    shape(&[1], &[1], (2, 2), (0, 5), (4, 4)),
    shape(&[1], &[1], (2, 2), (6, 9), (0, 3)),
    shape(&[1], &[1], (2, 2), (6, 9), (3, 0)),
    shape(&[0], &[1], (2, 2), (6, 9), (3, 2)),
];

fn draw(seed: u64) -> Case {
    let mut rng = Rng::new(seed);
    let choices = FACTORS.map(|(_, count)| rng.below(count));
    Case { seed, choices }
}

/// Cases until every pair of choices has occurred together.
fn pairwise() -> Vec<Case> {
    let mut unseen = HashSet::new();
    for (a, (_, choices_a)) in FACTORS.iter().enumerate() {
        for (b, (_, choices_b)) in FACTORS.iter().enumerate().skip(a + 1) {
            unseen.extend((0..*choices_a).flat_map(|x| (0..*choices_b).map(move |y| (a, x, b, y))));
        }
    }
    let mut cases = Vec::new();
    let mut seed = 0;
    while !unseen.is_empty() {
        let case = draw(seed);
        seed += 1;
        let pairs: Vec<_> = (0..FACTORS.len())
            .flat_map(|a| (a + 1..FACTORS.len()).map(move |b| (a, b)))
            .map(|(a, b)| (a, case.choices[a], b, case.choices[b]))
            .collect();
        // Enough new pairs to be worth a run; fewer when few are left.
        let fresh = pairs.iter().filter(|pair| unseen.contains(pair)).count();
        if fresh > unseen.len() / 100 {
            pairs.iter().for_each(|pair| {
                unseen.remove(pair);
            });
            cases.push(case);
        }
    }
    cases
}

#[test]
fn every_path_equals_the_scalar_program_and_keeps_the_error_law() {
    let cases = match std::env::var("QKV_CASE") {
        Ok(seed) => vec![draw(seed.parse().expect("a seed"))],
        Err(_) => pairwise(),
    };
    println!("{} cases", cases.len());
    for case in cases {
        let named: Vec<_> =
            FACTORS.iter().zip(case.choices).map(|((name, _), at)| format!("{name} {at}")).collect();
        let guard = support::OnPanic(format!(
            "QKV_CASE={} cargo test -p qkv --test every_path  # {named:?}",
            case.seed
        ));
        match case.choices[2] {
            0 => run_case::<f32>(&case),
            1 => run_case::<f64>(&case),
            2 => run_case::<f16>(&case),
            _ => run_case::<bf16>(&case),
        }
        guard.disarm();
    }
}

fn run_case<T: Element>(case: &Case) {
    let mut rng = Rng::new(case.seed ^ 0xdead);
    let [path, simd, _, layout, shape, order, mask, extra, data, threads] = case.choices;
    // In place of one that this machine lacks, its best.
    let simd = Some(Simd::ALL[simd]).filter(|simd| simd.is_available()).unwrap_or_else(Simd::best);
    let path = [Path::Prefill, Path::Decode][path];
    let shape = &SHAPES[shape];
    let arrays = Arrays::<T>::draw(shape, data, &mut rng);
    let options = Options::draw(shape, [order, mask, extra], &mut rng);

    let query = laid_out(&arrays.query, layout);
    let key = laid_out(&arrays.key, if rng.below(2) == 0 { layout } else { rng.below(support::LAYOUTS) });
    let value = laid_out(&arrays.value, if rng.below(2) == 0 { layout } else { rng.below(support::LAYOUTS) });
    // The oracle reads plain copies: a view must equal its copy.
    let copies = [query.view(), key.view(), value.view()].map(|view| view.as_standard_layout().into_owned());
    let [q, k, v] = copies.each_ref().map(|copy| copy.view());

    options.with(|attention| {
        let scalar = attention.clone().path(Path::Scalar);
        let fast = attention.clone().path(path).simd(simd);
        let oracle = scalar.call(q.clone(), k.clone(), v.clone()).lse().row_stats().weights().run().unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads([1, 2, 3, 8][threads]).build().unwrap();
        let run =
            || fast.call(query.view(), key.view(), value.view()).lse().row_stats().weights().run().unwrap();
        let got = pool.install(run);
        assert_same(&got, &oracle);

        // Asking for nothing else changes nothing, nor does an output of the caller's with strides and rubbish in it.
        let alone = fast.forward(query.view(), key.view(), value.view()).unwrap();
        same_bits("output alone", alone.view(), oracle.output.view());
        let mut into = laid_out(&oracle.output.mapv(|_| T::round(Real::from_f64(f64::NAN))), layout);
        if let Some(output) = into.view_mut() {
            let call = fast.call(query.view(), key.view(), value.view()).lse().weights();
            let extras = call.run_into(output).unwrap();
            same_bits("run_into", into.view(), oracle.output.view());
            same_bits("run_into, lse", extras.lse.unwrap().view(), oracle.lse.as_ref().unwrap().view());
            same_bits(
                "run_into, weights",
                extras.weights.unwrap().view(),
                oracle.weights.as_ref().unwrap().view(),
            );
        }
        let trace = fast.trace(query.view(), key.view(), value.view()).unwrap();
        for (stage, traced) in [
            (Stage::Raw, Some(&trace.scores)),
            (Stage::Scaled, Some(&trace.scaled)),
            (Stage::Softcapped, Some(&trace.softcapped)),
            (Stage::Masked, Some(&trace.masked)),
            (Stage::Weights, None),
        ] {
            let want = scalar.call(q.clone(), k.clone(), v.clone()).scores(stage).unwrap();
            let got = fast.call(query.view(), key.view(), value.view()).scores(stage).unwrap();
            same_bits(&format!("{stage:?}"), got.view(), want.view());
            if let Some(traced) = traced {
                same_bits(&format!("traced {stage:?}"), traced.view(), want.view());
            }
        }
        // What is looked at is from before dropout.
        let undropped = scalar.clone().dropout(0.0, 0).forward(q.clone(), k.clone(), v.clone()).unwrap();
        same_bits("traced output", trace.output.view(), undropped.view());
        assert_traced_result(&trace, &oracle);
        for (what, traced, own) in
            [("query", &trace.query, &query), ("key", &trace.key, &key), ("value", &trace.value, &value)]
        {
            same_bits(what, traced.view(), own.view());
        }
        let call = fast.call(query.view(), key.view(), value.view());
        assert_traced_rows(call, &trace, &mut rng);
        let weights = scalar.call(q.clone(), k.clone(), v.clone()).scores(Stage::Weights).unwrap();
        pool.install(|| {
            let call = fast.call(query.view(), key.view(), value.view());
            assert_inspected_head(call, (&trace, &weights), options.offset(), &mut rng);
        });
        assert_law(&attention, [q.clone(), k.clone(), v.clone()], &oracle);
        pool.install(|| {
            let views = [query.view(), key.view(), value.view()];
            assert_differentiated((&fast, &scalar), views, [q, k, v], &oracle, layout, &mut rng);
        });
    });
}

fn assert_traced_result<T: Element>(trace: &Trace<T, IxDyn>, oracle: &AttentionOutput<T, IxDyn>) {
    let stats = oracle.row_stats.as_ref().unwrap();
    same_bits("traced weights", trace.weights.view(), oracle.weights.as_ref().unwrap().view());
    same_bits("traced maximum", trace.row_stats.max.view(), stats.max.view());
    same_bits("traced sum", trace.row_stats.sum.view(), stats.sum.view());
}

/// Some rows of one head are those of the whole.
fn assert_traced_rows<T: Element>(call: Call<'_, T, IxDyn>, trace: &Trace<T, IxDyn>, rng: &mut Rng) {
    let axes = trace.masked.shape();
    let [heads, len_query] = [axes[axes.len() - 3], axes[axes.len() - 2]];
    let batches: usize = axes[..axes.len() - 3].iter().product();
    if batches == 0 {
        return;
    }
    let (batch, head) = (rng.below(batches), rng.below(heads));
    let start = rng.below(len_query + 1);
    let queries = start..start + rng.below(len_query - start + 1);
    let rows = call.trace_head((batch, head), queries.clone()).unwrap();
    /// Rows of the matrix of this head, flat.
    fn part<O: Element>(whole: &ArrayD<O>, planes: usize, plane: usize, queries: &Range<usize>) -> ArrayD<O> {
        let count = whole.len() / planes;
        let own = whole.iter().skip(plane * count).take(count).copied().collect::<Vec<_>>();
        let width = if queries.is_empty() { 0 } else { *whole.shape().last().unwrap() };
        let own = own.into_iter().skip(queries.start * width).take(queries.len() * width);
        ArrayD::from_shape_vec(IxDyn(&[queries.len() * width]), own.collect()).unwrap()
    }
    fn flat<O: Element, D: Dimension>(part: &Array<O, D>) -> ArrayD<O> {
        Array::from_iter(part.iter().copied()).into_dyn()
    }
    let (planes, plane) = (batches * heads, batch * heads + head);
    for (what, own, whole) in [
        ("scores", &rows.scores, &trace.scores),
        ("scaled", &rows.scaled, &trace.scaled),
        ("softcapped", &rows.softcapped, &trace.softcapped),
        ("masked", &rows.masked, &trace.masked),
    ] {
        same_bits(what, flat(own).view(), part(whole, planes, plane, &queries).view());
    }
    for (what, own, whole) in
        [("weights", &rows.weights, &trace.weights), ("output", &rows.output, &trace.output)]
    {
        same_bits(what, flat(own).view(), part(whole, planes, plane, &queries).view());
    }
    let stats = |stats: &ArrayD<T::Accumulator>| stats.clone().insert_axis(Axis(stats.ndim()));
    for (what, own, whole) in [
        ("maxima", &rows.row_stats.max, &trace.row_stats.max),
        ("sums", &rows.row_stats.sum, &trace.row_stats.sum),
    ] {
        same_bits(what, flat(own).view(), part(&stats(whole), planes, plane, &queries).view());
    }
}

/// One head inspected is the same said of its matrix.
fn assert_inspected_head<T: Element>(
    call: Call<'_, T, IxDyn>,
    (trace, weights): (&Trace<T, IxDyn>, &ArrayD<T::Accumulator>),
    offset: i64,
    rng: &mut Rng,
) {
    let axes = trace.masked.shape();
    let [heads, len_query] = [axes[axes.len() - 3], axes[axes.len() - 2]];
    let batches: usize = axes[..axes.len() - 3].iter().product();
    if batches == 0 {
        return;
    }
    let at = (rng.below(batches), rng.below(heads));
    let number = at.0 * heads + at.1;
    let of_head = |stats: &ArrayD<T::Accumulator>| {
        stats.iter().skip(number * len_query).take(len_query).copied().collect::<Vec<_>>()
    };
    let whole = Whole {
        raw: plane(&trace.scores, number),
        scaled: plane(&trace.scaled, number),
        masked: plane(&trace.masked, number),
        weights: plane(weights, number),
        max: of_head(&trace.row_stats.max),
        sum: of_head(&trace.row_stats.sum),
        offset,
    };
    assert_inspected(call, at, &whole, rng);
}

fn assert_same<T: Element>(got: &AttentionOutput<T, IxDyn>, want: &AttentionOutput<T, IxDyn>) {
    same_bits("output", got.output.view(), want.output.view());
    same_bits("lse", got.lse.as_ref().unwrap().view(), want.lse.as_ref().unwrap().view());
    let (got_stats, want_stats) = (got.row_stats.as_ref().unwrap(), want.row_stats.as_ref().unwrap());
    same_bits("maximum", got_stats.max.view(), want_stats.max.view());
    same_bits("sum", got_stats.sum.view(), want_stats.sum.view());
    same_bits("weights", got.weights.as_ref().unwrap().view(), want.weights.as_ref().unwrap().view());
}

/// The error law over one call; and where the truth is not a number, neither is the result.
fn assert_law<T: Element>(
    attention: &Attention<'_>,
    [q, k, v]: [ArrayViewD<'_, T>; 3],
    got: &AttentionOutput<T, IxDyn>,
) {
    let (len_query, dim_value) = (got.output.shape()[got.output.ndim() - 2], v.shape()[v.ndim() - 1]);
    let heads = q.shape()[q.ndim() - 3];
    let batches: usize = got.output.shape()[..q.ndim() - 3].iter().product();
    let rows: Vec<_> = (0..batches)
        .flat_map(|b| (0..heads).flat_map(move |h| (0..len_query).map(move |i| (b, h, i))))
        .collect();
    let finite = v.iter().map(|v| v.widen().to_f64().abs()).filter(|v| v.is_finite());
    let largest_value = finite.fold(0.0f64, f64::max);
    let reference = attention.call(q, k, v).reference(&rows).unwrap();
    let numbers = got.output.iter().map(|y| y.widen().to_f64()).collect::<Vec<_>>();
    let (mut worst, mut plain_worst, mut largest) = (0.0f64, 0.0f64, 0.0f64);
    for (row, y) in reference.iter().zip(numbers.chunks(dim_value.max(1))) {
        for ((&y, &truth), &plain) in y.iter().zip(&row.output).zip(&row.plain_output) {
            assert_eq!(truth.is_finite(), y.is_finite(), "truth {truth}, got {y}");
            if truth.is_finite() {
                worst = worst.max((y - truth).abs());
                plain_worst = plain_worst.max((plain - truth).abs());
                largest = largest.max(truth.abs());
            }
        }
    }
    let mut limit = error_limit::<T>(plain_worst, largest);
    if rows.len() < 64 {
        // A few rows of the plain steps may be right by luck: what the rounding of scores explains passes too (NUMERICS.md).
        let largest_score =
            reference.iter().flat_map(|row| &row.scaled).fold(0.0f64, |max, s| max.max(s.abs()));
        limit = limit.max(4.0 * T::EPSILON * (1.0 + largest_score) * largest_value);
    }
    assert!(
        worst <= limit,
        "error {worst:e}, plain {plain_worst:e}, limit {limit:e}, {} of {}",
        T::NAME,
        largest
    );
    let weights = got.weights.as_ref().unwrap().iter().map(|w| w.widen().to_f64()).collect::<Vec<_>>();
    for (row, weights) in
        reference.iter().zip(weights.chunks(reference.first().map_or(1, |row| row.raw.len().max(1))))
    {
        for ((&w, &truth), &s) in weights.iter().zip(&row.weights).zip(&row.masked) {
            assert!(s != f64::NEG_INFINITY || w == 0.0, "a masked pair has weight {w}");
            assert_eq!(truth.is_finite(), w.is_finite(), "truth {truth}, got weight {w}");
        }
    }
}

struct Arrays<T> {
    query: ArrayD<T>,
    key: ArrayD<T>,
    value: ArrayD<T>,
}

impl<T: Element> Arrays<T> {
    fn draw(shape: &Shape, data: usize, rng: &mut Rng) -> Self {
        let full = |batch: &[usize], heads: usize, len: usize, dim: usize| -> Vec<usize> {
            batch.iter().copied().chain([heads, len, dim]).collect()
        };
        let (len_query, len_key) = shape.lens;
        let (dim, dim_value) = shape.dims;
        let gain = if data == 1 { 24.0 } else { 1.0 };
        let mut array = |axes: Vec<usize>, gain: f64| {
            ArrayD::from_shape_simple_fn(IxDyn(&axes), || T::round(Real::from_f64(rng.number() * gain)))
        };
        let mut query = array(full(shape.batch, shape.heads, len_query, dim), gain);
        let mut key = array(full(shape.key_batch, shape.key_heads, len_key, dim), gain);
        let mut value = array(full(shape.key_batch, shape.key_heads, len_key, dim_value), 1.0);
        if data >= 2 {
            // NaN and, among values, infinities here and there: masked ones must not be noticed.
            let mut spoil = |array: &mut ArrayD<T>, with: &[f64]| {
                let one_in = (array.len() / 3).max(1);
                array.iter_mut().for_each(|x| {
                    if rng.below(one_in) == 0 {
                        *x = T::round(Real::from_f64(with[rng.below(with.len())]));
                    }
                });
            };
            spoil(&mut value, &[f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
            spoil(&mut key, &[f64::NAN]);
            if data == 3 {
                spoil(&mut query, &[f64::NAN]);
            }
        }
        Self { query, key, value }
    }
}

/// Everything that `Attention` borrows, drawn.
struct Options {
    order: usize,
    mask: usize,
    extra: usize,
    heads: usize,
    lens: (usize, usize),
    key_offset: i64,
    bools: ArrayD<bool>,
    numbers: ArrayD<f32>,
    wide: ArrayD<f64>,
    halves: ArrayD<bf16>,
    query_ids: ArrayD<i64>,
    key_ids: ArrayD<i64>,
    lengths: Vec<usize>,
    sinks: Vec<f64>,
    small: i64,
}

impl Options {
    fn draw(shape: &Shape, [order, mask, extra]: [usize; 3], rng: &mut Rng) -> Self {
        let batch: Vec<usize> =
            shape.batch.iter().zip(shape.key_batch).map(|(&a, &b)| if a == 1 { b } else { a }).collect();
        let batches = batch.iter().product();
        let lens = shape.lens;
        let full: Vec<usize> = batch.iter().copied().chain([shape.heads, lens.0, lens.1]).collect();
        // Some trailing axes, some of them of length 1: everything that broadcasts.
        let skip = rng.below(full.len() - 1);
        let axes: Vec<usize> =
            full[skip..].iter().map(|&axis| if rng.below(4) == 0 { 1 } else { axis }).collect();
        // Blocks of visible keys with edges anywhere, so that there are empty, full and mixed tiles.
        let run = 1 + rng.below(150);
        let mut left = 0;
        let mut visible = false;
        let bools = ArrayD::from_shape_simple_fn(IxDyn(&axes), || {
            if left == 0 {
                left = 1 + rng.below(run);
                visible = !visible;
            }
            left -= 1;
            visible
        });
        let numbers = ArrayD::from_shape_simple_fn(IxDyn(&axes), || match rng.below(5) {
            0 => f32::NEG_INFINITY,
            1 => -f32::MAX,
            _ => rng.number() as f32,
        });
        let ids = |len: usize, rng: &mut Rng| {
            let per = 1 + rng.below(90);
            ArrayD::from_shape_fn(IxDyn(&[batches, len]), |i| (i[1] / per + i[0]) as i64)
        };
        let (query_ids, key_ids) = (ids(lens.0, rng), ids(lens.1, rng));
        Self {
            order,
            mask,
            extra,
            heads: shape.heads,
            lens,
            key_offset: [0, 64, 128, 3, 125, 5000][rng.below(6)],
            wide: numbers.mapv(|x| f64::from(x) * 1.7),
            halves: numbers.mapv(bf16::from_f32),
            bools,
            numbers,
            query_ids,
            key_ids,
            lengths: (0..batches).map(|_| rng.below(lens.1 + 1)).collect(),
            sinks: (0..shape.heads).map(|_| [f64::NEG_INFINITY, 2.0, -1.5][rng.below(3)]).collect(),
            small: rng.below(lens.1 + 3) as i64 - 1,
        }
    }

    /// How many positions the first query stands behind the first key.
    fn offset(&self) -> i64 {
        let (len_query, len_key) = (self.lens.0 as i64, self.lens.1 as i64);
        match self.order {
            0 | 1 | 8 => -self.key_offset,
            2 | 4 | 6 => len_key - len_query,
            3 | 7 => self.small,
            5 => 0,
            _ => len_key / 2 - len_query,
        }
    }

    /// Builds the options and hands them on; closures live only as long.
    fn with(&self, then: impl FnOnce(Attention<'_>)) {
        let parity = |region: &Region, visible: &mut [bool]| {
            for (index, visible) in visible.iter_mut().enumerate() {
                let query = region.queries.start + (index / region.width()) as i64;
                let key = region.keys.start + (index % region.width()) as i64;
                *visible = (query + key + region.head as i64).rem_euclid(3) != 0;
            }
        };
        let slope = |region: &Region, bias: &mut [f64]| {
            for (index, bias) in bias.iter_mut().enumerate() {
                let query = region.queries.start + (index / region.width()) as i64;
                let key = region.keys.start + (index % region.width()) as i64;
                *bias =
                    if (query * 7 + key) % 11 == 0 { f64::NEG_INFINITY } else { 0.01 * (query - key) as f64 };
            }
        };
        let small = self.small;
        let mut attention = Attention::new().key_offset(self.key_offset);
        attention = match self.order {
            0 => attention,
            1 => attention.causal(Alignment::TopLeft),
            2 => attention.causal(Alignment::BottomRight),
            3 => attention.causal(Alignment::Offset(self.key_offset + small)),
            4 => attention.causal(Alignment::BottomRight).prefix([(self.key_offset + 2) as u64]),
            5 => attention.query_offset(self.key_offset).window(Some(9), Some(0)),
            6 => attention.causal(Alignment::BottomRight).window(Some(70), None),
            7 => attention.query_offset(self.key_offset + small).window(None, Some(3)),
            8 => attention.key_lengths(self.lengths.clone()),
            _ => attention.causal(Alignment::BottomRight).key_lengths([self.lens.1 / 2]),
        };
        attention = match self.mask {
            0 => attention,
            1 => attention.mask(self.bools.view()),
            2 => attention.bias(self.numbers.view()),
            3 => attention.bias(self.wide.view()).bias(self.numbers.view()),
            4 => attention.bias(self.halves.view()).mask(self.bools.view()),
            5 => attention.segments(self.query_ids.view(), self.key_ids.view()),
            6 => attention.mask_fn(&parity),
            7 => attention.bias_fn(&slope),
            8 => attention.alibi(Alibi::Paper).mask(self.bools.view()),
            9 => {
                attention.mask(self.bools.view()).mask_fn(&parity).alibi(Alibi::Slopes(vec![0.3; self.heads]))
            }
            _ => attention.segments(self.query_ids.view(), self.key_ids.view()).bias_fn(&slope),
        };
        attention = match self.extra {
            0 => attention,
            1 => attention.softcap(2.5),
            2 => attention.sinks(self.sinks.clone()),
            3 => attention.scale(-0.4),
            4 => attention.scale(0.0).sinks(self.sinks.clone()),
            5 => attention.dropout(0.3, 42),
            6 => attention
                .dropout(0.85, u64::MAX)
                .dropout_offsets(3, 1 << 33)
                .softcap(3.0)
                .sinks(self.sinks.clone()),
            _ => attention.softcap(30.0).scale(0.7).sinks(self.sinks.clone()),
        };
        then(attention);
    }
}

/// A mask sees how a path asks: the scalar program pair by pair, decode for few queries of whole tiles, prefill
/// for many.
#[test]
fn the_path_that_is_asked_for_is_the_one_that_runs() {
    let array = support::grid::<f32>(&[1, 1, 130, 8], 0);
    for (path, queries, keys) in [(Path::Scalar, 1, 1), (Path::Decode, 16, 64), (Path::Prefill, 64, 64)] {
        let watch = Watch::new(Hint::Mixed);
        let attention = Attention::new().mask_fn(&watch).path(path);
        attention.forward(array.view(), array.view(), array.view()).unwrap();
        assert_eq!(watch.largest(), (queries, keys), "{path}");
        let plan = attention.call(array.view(), array.view(), array.view()).plan().unwrap();
        assert_eq!(plan.path, path);
    }
    // And by itself: few queries decode, many prefill.
    for (len_query, path) in [(1, Path::Decode), (7, Path::Decode), (8, Path::Prefill)] {
        let query = support::grid::<f32>(&[1, 1, len_query, 8], 0);
        let plan = Attention::new().call(query.view(), array.view(), array.view()).plan().unwrap();
        assert_eq!(plan.path, path, "{len_query} queries");
        // Of few keys even few queries fill more lanes.
        let plan = Attention::new().call(query.view(), query.view(), query.view()).plan().unwrap();
        assert_eq!(plan.path, Path::Prefill, "{len_query} queries and keys");
    }
}
