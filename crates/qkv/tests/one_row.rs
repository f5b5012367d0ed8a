//! One row, one answer: the bits of a row depend on nothing but that row's own inputs.

mod support;

use ndarray::{Array2, ArrayD, ArrayViewD, Axis, IxDyn, Slice};
use qkv::{Alignment, Attention, merge};
use support::{Rng, same_bits};

/// `(1, 3, len, 20)` queries and `(1, 1, len, …)` keys and values, over several tiles.
struct Arrays {
    query: ArrayD<f32>,
    key: ArrayD<f32>,
    value: ArrayD<f32>,
}

impl Arrays {
    fn new(len_query: usize, len_key: usize) -> Self {
        let mut rng = Rng::new(7);
        let mut array = |heads, len, dim| {
            ArrayD::from_shape_simple_fn(IxDyn(&[1, heads, len, dim]), || (rng.number() * 1.5) as f32)
        };
        Self { query: array(3, len_query, 20), key: array(1, len_key, 20), value: array(1, len_key, 13) }
    }

    fn forward(&self, attention: &Attention<'_>) -> ArrayD<f32> {
        attention.forward(self.query.view(), self.key.view(), self.value.view()).unwrap()
    }
}

fn rows(array: &ArrayD<f32>, range: std::ops::Range<usize>) -> ArrayViewD<'_, f32> {
    array.slice_axis(Axis(2), Slice::from(range))
}

fn keys(array: &ArrayD<f32>, range: std::ops::Range<usize>) -> ArrayViewD<'_, f32> {
    rows(array, range)
}

/// The options on every path and instruction set of this machine.
fn ways<'a>(attention: &Attention<'a>) -> Vec<Attention<'a>> {
    support::ways().into_iter().map(|(path, simd)| attention.clone().path(path).simd(simd)).collect()
}

const LEN: usize = 1100;

#[test]
fn a_row_alone_is_the_row_of_the_whole_call() {
    let arrays = Arrays::new(LEN, LEN);
    let whole = arrays.forward(&Attention::new().causal(Alignment::TopLeft));
    for row in [0, 1, 63, 64, 127, 128, 511, 512, 1023, 1024, LEN - 1] {
        let offset = Alignment::Offset(row as i64);
        for alone in ways(&Attention::new().causal(offset)) {
            let query = rows(&arrays.query, row..row + 1);
            let got = alone.forward(query, arrays.key.view(), arrays.value.view()).unwrap();
            same_bits(&format!("row {row}"), got.view(), rows(&whole, row..row + 1));
        }
    }
}

#[test]
fn threads_do_not_matter() {
    let arrays = Arrays::new(200, LEN);
    let attention = Attention::new();
    let whole = arrays.forward(&attention);
    for threads in [1, 2, 3, 8] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        for way in ways(&attention) {
            let got = pool.install(|| arrays.forward(&way));
            same_bits(&format!("{threads} threads"), got.view(), whole.view());
        }
    }
}

#[test]
fn causal_by_flag_is_causal_by_mask() {
    let arrays = Arrays::new(300, 300);
    let by_flag = arrays.forward(&Attention::new().causal(Alignment::TopLeft));
    let mask = Array2::from_shape_fn((300, 300), |(query, key)| key <= query);
    let bias = mask.mapv(|visible| if visible { 0.0f32 } else { f32::NEG_INFINITY });
    let lower = |region: &qkv::Region, visible: &mut [bool]| {
        for (query, of_query) in region.queries.clone().zip(visible.chunks_mut(region.width())) {
            region.keys.clone().zip(of_query).for_each(|(key, visible)| *visible = key <= query);
        }
    };
    let masked = [
        Attention::new().mask(mask.view()),
        Attention::new().bias(bias.view()),
        Attention::new().mask_fn(&lower),
    ];
    for attention in &masked {
        for way in ways(attention) {
            same_bits("by mask", arrays.forward(&way).view(), by_flag.view());
        }
    }
}

#[test]
fn a_cache_filled_in_chunks_gives_what_one_call_gives() {
    let arrays = Arrays::new(LEN, LEN);
    let whole = arrays.forward(&Attention::new().causal(Alignment::TopLeft));
    for step in [1, 17, 64, 500] {
        for way in ways(&Attention::new().causal(Alignment::BottomRight)) {
            // With steps of one query only the last few: the others are as many calls more.
            let first = if step == 1 { LEN - 5 } else { 0 };
            for start in (first..LEN).step_by(step) {
                let end = LEN.min(start + step);
                let query = rows(&arrays.query, start..end);
                let got = way.forward(query, keys(&arrays.key, 0..end), keys(&arrays.value, 0..end)).unwrap();
                same_bits(&format!("queries {start}..{end}"), got.view(), rows(&whole, start..end));
            }
        }
    }
}

#[test]
fn a_cache_that_dropped_its_beginning_gives_what_a_window_gives() {
    let arrays = Arrays::new(1, LEN);
    let window = Attention::new().query_offset(LEN as i64 - 1).window(Some(400), Some(0));
    let whole = arrays.forward(&window);
    for dropped in [1, 64, 300, LEN - 401] {
        for way in ways(&window.clone().key_offset(dropped as i64)) {
            let (key, value) = (keys(&arrays.key, dropped..LEN), keys(&arrays.value, dropped..LEN));
            let got = way.forward(arrays.query.view(), key, value).unwrap();
            same_bits(&format!("{dropped} dropped"), got.view(), whole.view());
        }
    }
}

#[test]
fn partials_of_aligned_subtrees_merge_to_the_bits_of_one_call() {
    let len = 3000;
    let arrays = Arrays::new(5, len);
    let sinks = [0.5, f64::NEG_INFINITY, -1.0];
    let attention = Attention::new().causal(Alignment::Offset(len as i64 - 100));
    for given in [None, Some(&sinks[..])] {
        let one_call = match given {
            Some(sinks) => attention.clone().sinks(sinks),
            None => attention.clone(),
        };
        let call = one_call.call(arrays.query.view(), arrays.key.view(), arrays.value.view());
        let whole = call.lse().run().unwrap();
        // Tiles are 64 keys; a subtree is an aligned power of two of them.
        for borders in
            [vec![0, 2048, len], vec![0, 128, 256, 512, 1024, 2048, 2560, len], vec![0, 1024, 2048, len]]
        {
            for way in ways(&attention) {
                let mut partials: Vec<_> = borders
                    .windows(2)
                    .map(|border| {
                        let (key, value) = (
                            keys(&arrays.key, border[0]..border[1]),
                            keys(&arrays.value, border[0]..border[1]),
                        );
                        let shifted = way.clone().key_offset(border[0] as i64);
                        shifted.call(arrays.query.view(), key, value).partial().unwrap()
                    })
                    .collect();
                partials.reverse();
                let merged = merge(&partials, given).unwrap();
                same_bits("merged", merged.output.view(), whole.output.view());
                same_bits("lse", merged.lse.unwrap().view(), whole.lse.as_ref().unwrap().view());
            }
        }
    }
}

#[test]
fn what_masked_keys_and_values_hold_changes_no_bit() {
    let arrays = Arrays::new(70, 600);
    let hidden = |key: usize| key % 5 == 3 || (128..200).contains(&key);
    let mask = Array2::from_shape_fn((1, 600), |(_, key)| !hidden(key));
    let attention = Attention::new().mask(mask.view());
    let clean = arrays.forward(&attention);
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, f32::MAX] {
        let spoil = |array: &ArrayD<f32>| {
            let mut array = array.clone();
            for (key, mut row) in array.axis_iter_mut(Axis(2)).enumerate() {
                if hidden(key) {
                    row.fill(poison);
                }
            }
            array
        };
        let spoiled =
            Arrays { query: arrays.query.clone(), key: spoil(&arrays.key), value: spoil(&arrays.value) };
        for way in ways(&attention) {
            same_bits(&format!("{poison}"), spoiled.forward(&way).view(), clean.view());
        }
    }
}

#[test]
fn asking_for_more_changes_no_bit() {
    let arrays = Arrays::new(70, 600);
    for way in ways(&Attention::new().causal(Alignment::BottomRight).softcap(3.0)) {
        let alone = arrays.forward(&way);
        let call = way.call(arrays.query.view(), arrays.key.view(), arrays.value.view());
        let all = call.lse().row_stats().weights().run().unwrap();
        same_bits("with all", all.output.view(), alone.view());
    }
}
