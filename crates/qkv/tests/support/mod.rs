//! What the tests of the engine share: numbers without a library, layouts, and equality of bits.
#![allow(dead_code)] // each test file takes its part
#![allow(clippy::print_stderr)] // the line that runs a failing case again

pub mod differentiated;
pub mod inspected;

use std::sync::Mutex;

use ndarray::{ArrayD, ArrayViewD, ArrayViewMutD, Axis, IxDyn, Slice};
use qkv::{Attention, AttentionOutput, Element, Hint, MaskFn, Path, Real, Region, Simd};

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    /// In [-2, 2).
    pub fn number(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 51) as f64 - 2.0
    }
}

/// Numbers on a grid of 1/64 in [-2, 2), exact in all four types, by their flat index; `stream` 0, 1, 2 are queries,
/// keys, values.
pub fn grid<T: Element>(shape: &[usize], stream: u32) -> ArrayD<T> {
    let mut index = 0u32;
    ArrayD::from_shape_simple_fn(IxDyn(shape), || {
        index += 1;
        let mut h = index.wrapping_mul(2_654_435_761).wrapping_add(stream * 40503);
        h = (h ^ (h >> 15)).wrapping_mul(2_246_822_519);
        h = (h ^ (h >> 13)).wrapping_mul(3_266_489_917);
        h ^= h >> 16;
        T::round(Real::from_f64((f64::from(h & 255) - 128.0) / 64.0))
    })
}

/// An array kept in another order than its axes say.
pub struct LaidOut<T> {
    storage: ArrayD<T>,
    layout: usize,
    shape: Vec<usize>,
}

pub const LAYOUTS: usize = 6;

/// The same logical array, stored as: 0 itself; 1 heads after rows; 2 last axes swapped; 3 rows backwards; 4 every
/// second number of a wider buffer; 5 the first of its rows for all of them, at stride 0.
pub fn laid_out<T: Element>(array: &ArrayD<T>, layout: usize) -> LaidOut<T> {
    let rank = array.ndim();
    let storage = match layout {
        1 => swapped(array.view(), rank - 3, rank - 2).as_standard_layout().into_owned(),
        2 => swapped(array.view(), rank - 2, rank - 1).as_standard_layout().into_owned(),
        3 => {
            let mut view = array.view();
            view.invert_axis(Axis(rank - 2));
            view.as_standard_layout().into_owned()
        }
        4 => {
            let mut wide = array.shape().to_vec();
            wide[rank - 1] *= 2;
            let mut storage = ArrayD::from_elem(wide, T::round(Real::from_f64(f64::NAN)));
            storage.slice_axis_mut(Axis(rank - 1), Slice::new(0, None, 2)).assign(array);
            storage
        }
        5 => array.slice_axis(Axis(rank - 2), Slice::from(..array.shape()[rank - 2].min(1))).to_owned(),
        _ => array.clone(),
    };
    LaidOut { storage, layout, shape: array.shape().to_vec() }
}

fn swapped<T>(mut view: ArrayViewD<'_, T>, a: usize, b: usize) -> ArrayViewD<'_, T> {
    view.swap_axes(a, b);
    view
}

impl<T: Element> LaidOut<T> {
    pub fn view(&self) -> ArrayViewD<'_, T> {
        let rank = self.storage.ndim();
        let mut view = self.storage.view();
        match self.layout {
            1 => view.swap_axes(rank - 3, rank - 2),
            2 => view.swap_axes(rank - 2, rank - 1),
            3 => view.invert_axis(Axis(rank - 2)),
            4 => view.slice_axis_inplace(Axis(rank - 1), Slice::new(0, None, 2)),
            5 => return self.storage.broadcast(self.shape.clone()).expect("an axis of 1 broadcasts"),
            _ => {}
        }
        view
    }

    /// `None` where numbers are shared, which no output may be.
    pub fn view_mut(&mut self) -> Option<ArrayViewMutD<'_, T>> {
        let rank = self.storage.ndim();
        let mut view = self.storage.view_mut();
        match self.layout {
            1 => view.swap_axes(rank - 3, rank - 2),
            2 => view.swap_axes(rank - 2, rank - 1),
            3 => view.invert_axis(Axis(rank - 2)),
            4 => view.slice_axis_inplace(Axis(rank - 1), Slice::new(0, None, 2)),
            5 => return None,
            _ => {}
        }
        Some(view)
    }
}

/// The bits of a number, as its exact value and sign: NaN is canonical, and -0 is not 0.
pub fn bits<T: Element>(x: T) -> u64 {
    x.widen().to_f64().to_bits()
}

#[track_caller]
pub fn same_bits<T: Element>(what: &str, got: ArrayViewD<'_, T>, want: ArrayViewD<'_, T>) {
    assert_eq!(got.shape(), want.shape(), "{what}");
    for ((at, &got), &want) in got.indexed_iter().zip(want.iter()) {
        assert_eq!(bits(got), bits(want), "{what} at {at:?}: got {got:?}, want {want:?}");
    }
}

/// Prints a line when the test that holds it panics.
pub struct OnPanic(pub String);

impl OnPanic {
    pub fn disarm(mut self) {
        self.0.clear();
    }
}

impl Drop for OnPanic {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            eprintln!("{}", self.0);
        }
    }
}

/// Calls a generic check for each of the four types.
#[allow(unused_macros)]
macro_rules! of_every_type {
    ($check:ident($($argument:expr),*)) => {{
        $check::<f32>($($argument),*);
        $check::<f64>($($argument),*);
        $check::<qkv::f16>($($argument),*);
        $check::<qkv::bf16>($($argument),*);
    }};
}
#[allow(unused_imports)]
pub(crate) use of_every_type;

/// Shapes of queries, keys and values.
pub type Shapes<'s> = [&'s [usize]; 3];

/// Queries, keys and values.
pub type Views<'v, T> = [ArrayViewD<'v, T>; 3];

/// Queries, keys and values on the grid.
pub fn grids<T: Element>(shapes: Shapes<'_>) -> [ArrayD<T>; 3] {
    [0, 1, 2].map(|stream| grid(shapes[stream], stream as u32))
}

pub fn views<T>(arrays: &[ArrayD<T>; 3]) -> Views<'_, T> {
    arrays.each_ref().map(|array| array.view())
}

pub fn number<T: Element>(x: T) -> f64 {
    x.widen().to_f64()
}

pub fn element<T: Element>(x: f64) -> T {
    T::round(Real::from_f64(x))
}

/// The largest magnitude in an array.
pub fn largest<T: Element>(array: ArrayViewD<'_, T>) -> f64 {
    array.iter().fold(0.0, |largest, &x| number(x).abs().max(largest))
}

/// How far an output may be from the truth where every input is exact, for values of magnitude 1.
pub fn tolerance<T: Element>() -> f64 {
    match T::NAME {
        "f64" => 1e-13,
        "f32" => 2e-6,
        // Rounded once, to half of this; the rest is for the arithmetic in f32.
        _ => T::EPSILON,
    }
}

/// Every path on every instruction set that this machine has.
pub fn ways() -> Vec<(Path, Simd)> {
    let simd = Simd::ALL.into_iter().filter(|simd| simd.is_available());
    let fast = simd.flat_map(|simd| [(Path::Prefill, simd), (Path::Decode, simd)]);
    fast.chain([(Path::Scalar, Simd::best())]).collect()
}

/// All that a call can give back, once it is shown to have the same bits on every path and instruction set, and the
/// output to have them when nothing else is asked for.
#[track_caller]
pub fn on_every_path<T: Element>(
    attention: &Attention<'_>,
    arrays: Views<'_, T>,
) -> AttentionOutput<T, IxDyn> {
    let [q, k, v] = arrays;
    let mut results = ways().into_iter().map(|(path, simd)| {
        let forced = attention.clone().path(path).simd(simd);
        let call = || forced.call(q.clone(), k.clone(), v.clone());
        let result = call().lse().row_stats().weights().run().unwrap();
        let alone = call().run().unwrap().output;
        same_bits(&format!("{path} on {simd}, alone"), alone.view(), result.output.view());
        (format!("{path} on {simd}"), result)
    });
    let (_, first) = results.next().expect("a path");
    results.for_each(|(way, other)| same_results(&way, &other, &first));
    first
}

/// Output, log-sum-exp, row statistics and weights, all asked for, have the same bits.
#[track_caller]
pub fn same_results<T: Element>(
    what: &str,
    got: &AttentionOutput<T, IxDyn>,
    want: &AttentionOutput<T, IxDyn>,
) {
    let stats = [got, want].map(|result| result.row_stats.as_ref().expect("asked for"));
    same_bits(&format!("{what}: output"), got.output.view(), want.output.view());
    same_bits(&format!("{what}: maximum"), stats[0].max.view(), stats[1].max.view());
    same_bits(&format!("{what}: sum"), stats[0].sum.view(), stats[1].sum.view());
    let [got_lse, want_lse] = [got, want].map(|result| result.lse.as_ref().expect("asked for").view());
    same_bits(&format!("{what}: lse"), got_lse, want_lse);
    let [got, want] = [got, want].map(|result| result.weights.as_ref().expect("asked for").view());
    same_bits(&format!("{what}: weights"), got, want);
}

/// Part of an array along one axis.
pub fn part<T>(array: ArrayViewD<'_, T>, axis: usize, range: std::ops::Range<usize>) -> ArrayViewD<'_, T> {
    let mut array = array;
    array.slice_axis_inplace(Axis(axis), Slice::from(range));
    array
}

/// The textbook in f64, for rank 4, sharing nothing with the engine: `see` takes `[batch, head, query, key]` and the
/// scaled product to the score, or to `None` where the key is hidden. Outputs, and log-sum-exps.
pub fn textbook<T: Element>(
    [q, k, v]: Views<'_, T>,
    scale: f64,
    see: impl Fn([usize; 4], f64) -> Option<f64>,
) -> (ArrayD<f64>, ArrayD<f64>) {
    let [batches, heads, len_query, dim] = *q.shape() else { panic!("rank 4") };
    let (group, dim_value) = (heads / k.shape()[1], v.shape()[3]);
    let mut output = ArrayD::zeros(vec![batches, heads, len_query, dim_value]);
    let mut lse = ArrayD::zeros(vec![batches, heads, len_query]);
    for [b, h, i] in ndarray::indices((batches, heads, len_query)).into_iter().map(|(b, h, i)| [b, h, i]) {
        let product = |j: usize| -> f64 {
            (0..dim).map(|e| number(q[[b, h, i, e]]) * number(k[[b, h / group, j, e]])).sum()
        };
        let seen: Vec<(usize, f64)> =
            (0..k.shape()[2]).filter_map(|j| Some((j, see([b, h, i, j], product(j) * scale)?))).collect();
        let max = seen.iter().fold(f64::NEG_INFINITY, |max, &(_, s)| max.max(s));
        let sum: f64 = seen.iter().map(|&(_, s)| libm::exp(s - max)).sum();
        for (j, s) in seen {
            for c in 0..dim_value {
                output[[b, h, i, c]] += libm::exp(s - max) / sum * number(v[[b, h / group, j, c]]);
            }
        }
        lse[[b, h, i]] = max + libm::log(sum);
    }
    (output, lse)
}

/// Every number within `limit` of the truth; infinities the same.
#[track_caller]
pub fn close<T: Element>(what: &str, got: ArrayViewD<'_, T>, want: ArrayViewD<'_, f64>, limit: f64) {
    assert_eq!(got.shape(), want.shape(), "{what}");
    for ((at, &got), &want) in got.indexed_iter().zip(want.iter()) {
        let near = (number(got) - want).abs() <= limit;
        assert!(number(got) == want || near, "{what} at {at:?}: got {got}, want {want} within {limit:e}");
    }
}

/// A shape as errors write it.
pub fn shown(shape: &[usize]) -> String {
    match shape {
        [only] => format!("({only},)"),
        _ => format!("({})", shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// A mask that hides nothing and remembers the most queries and keys that it was asked about at once, as a whole or pair by
/// pair: so a test sees which kernel ran.
pub struct Watch {
    hint: Hint,
    largest: Mutex<(usize, usize)>,
}

impl Watch {
    /// One that says this of each region.
    pub fn new(hint: Hint) -> Self {
        Self { hint, largest: Mutex::new((0, 0)) }
    }

    pub fn largest(&self) -> (usize, usize) {
        *self.largest.lock().unwrap()
    }

    fn see(&self, region: &Region) {
        let mut largest = self.largest.lock().unwrap();
        let queries = (region.queries.end - region.queries.start) as usize;
        *largest = (queries.max(largest.0), region.width().max(largest.1));
    }
}

impl MaskFn for Watch {
    fn fill(&self, region: &Region, _: &mut [bool]) {
        self.see(region);
    }

    fn hint(&self, region: &Region) -> Hint {
        self.see(region);
        self.hint
    }
}
