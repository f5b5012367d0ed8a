//! The kernels, call by call, for finding out what a change of theirs does. What the machine allows is `qkv bench`'s.
//!
//! `cargo bench -p qkv --bench kernels -- decode` measures one group; `-- --test` runs each call once. An element of
//! the throughput is a multiplication or addition of a tile that is not skipped.

use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput};
use ndarray::{Array2, Array4};
use qkv::{Alibi, Alignment, Attention, Element, Generator, Real, bf16, f16};

/// Of `(batch, heads, len, dim)`: a query, and a key and value of one shape.
struct Arrays<T> {
    query: Array4<T>,
    key: Array4<T>,
    value: Array4<T>,
}

impl<T: Element> Arrays<T> {
    fn new(query: [usize; 4], key: [usize; 4]) -> Self {
        let mut generator = Generator::new(0);
        let mut draw = |shape: [usize; 4]| {
            let drawn = generator.randn(&shape).expect("memory for a benchmark");
            let drawn = drawn.mapv(|x| T::round(T::Accumulator::from_f64(x.into())));
            drawn.into_dimensionality().expect("four axes")
        };
        Self { query: draw(query), key: draw(key), value: draw(key) }
    }

    fn measure(&self, group: &mut BenchmarkGroup<'_, WallTime>, name: &str, attention: &Attention<'_>) {
        let call = || attention.call(self.query.view(), self.key.view(), self.value.view());
        let plan = call().plan().expect("options that fit");
        group.throughput(Throughput::Elements(plan.flops));
        group.bench_function(name, |bencher| bencher.iter(|| call().run()));
    }
}

fn prefill(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("prefill");
    for dim in [64, 128] {
        let shape = [1, 8, 1024, dim];
        let arrays = Arrays::<f32>::new(shape, shape);
        let causal = Attention::new().causal(Alignment::TopLeft);
        arrays.measure(&mut group, &format!("full-{dim}"), &Attention::new());
        arrays.measure(&mut group, &format!("causal-{dim}"), &causal);
    }
    group.finish();
}

/// An element of the throughput is one of forward's: a backward pass has five products to its two.
fn backward(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("backward");
    let shape = [1, 8, 1024, 64];
    let arrays = Arrays::<f32>::new(shape, shape);
    let d_output = Arrays::<f32>::new(shape, shape).query;
    let bias = Array2::from_shape_fn((1024, 1024), |(i, j)| (i + j) as f32 * 1e-3);
    let plain = Attention::new();
    for (name, attention) in [
        ("full-64", plain.clone()),
        ("causal-64", plain.clone().causal(Alignment::TopLeft)),
        ("bias-64", plain.bias(bias.view())),
    ] {
        let call = || attention.call(arrays.query.view(), arrays.key.view(), arrays.value.view());
        let forward = call().row_stats().run().expect("a call that fits");
        let row_stats = forward.row_stats.as_ref().expect("asked for");
        group.throughput(Throughput::Elements(call().plan().expect("options that fit").flops));
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let backward = call().backward(forward.output.view(), row_stats, d_output.view());
                backward.query().key().value().biases().run()
            });
        });
    }
    group.finish();
}

fn decode(criterion: &mut Criterion) {
    fn of<T: Element>(group: &mut BenchmarkGroup<'_, WallTime>) {
        let arrays = Arrays::<T>::new([1, 32, 1, 128], [1, 8, 4096, 128]);
        arrays.measure(group, T::NAME, &Attention::new());
    }
    let mut group = criterion.benchmark_group("decode");
    of::<f32>(&mut group);
    of::<f16>(&mut group);
    of::<bf16>(&mut group);
    group.finish();
}

/// What a call costs beside its work.
fn small(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("small");
    let shape = [2, 4, 5, 8];
    Arrays::<f32>::new(shape, shape).measure(&mut group, "decode", &Attention::new());
    let shape = [1, 1, 16, 16];
    Arrays::<f32>::new(shape, shape).measure(&mut group, "prefill", &Attention::new());
    group.finish();
}

fn masks(criterion: &mut Criterion) {
    const LEN: usize = 1024;
    let mut group = criterion.benchmark_group("masks");
    let arrays = Arrays::<f32>::new([1, 8, LEN, 64], [1, 8, LEN, 64]);
    let mask = Array2::from_shape_fn((LEN, LEN), |(query, key)| (query + key) % 16 != 0);
    let bias = Array2::from_shape_fn((LEN, LEN), |(query, key)| ((query * 3 + key) % 32) as f32 / 16.0);
    let document: Vec<i64> = (0..LEN as i64).map(|position| position / 300).collect();
    let segments = ndarray::ArrayView1::from(&document);
    let ways = [
        ("none", Attention::new()),
        ("window", Attention::new().window(Some(127), Some(0))),
        ("key-lengths", Attention::new().key_lengths([LEN * 3 / 5])),
        ("segments", Attention::new().segments(segments, segments)),
        ("mask", Attention::new().mask(mask.view())),
        ("bias", Attention::new().bias(bias.view())),
        ("alibi", Attention::new().alibi(Alibi::Paper)),
        ("softcap", Attention::new().softcap(30.0)),
    ];
    for (name, attention) in &ways {
        arrays.measure(&mut group, name, attention);
    }
    group.finish();
}

fn main() {
    let criterion = Criterion::default().sample_size(20).warm_up_time(Duration::from_millis(500));
    let mut criterion = criterion.measurement_time(Duration::from_secs(2)).configure_from_args();
    prefill(&mut criterion);
    backward(&mut criterion);
    decode(&mut criterion);
    small(&mut criterion);
    masks(&mut criterion);
    criterion.final_summary();
}
