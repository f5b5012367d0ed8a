//! What the tests of the engine share: numbers without a library, layouts, and equality of bits.
#![allow(dead_code)] // each test file takes its part

use ndarray::{ArrayD, ArrayViewD, ArrayViewMutD, Axis, IxDyn, Slice};
use qkv::{Element, Real};

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
