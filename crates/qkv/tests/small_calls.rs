//! Small calls: once a thread has its buffers, a call allocates its output and nothing else, and it wakes no other thread.
//!
//! Nothing in this file may start rayon's global pool.

#[path = "support/counting.rs"]
mod counting;
mod support;

use std::collections::HashSet;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use counting::{Counting, measured};
use ndarray::{Array, Array2, Dimension, Ix2, Ix3, Ix4, IxDyn};
use qkv::{Alibi, Alignment, Attention, Element, Path, Region, bf16};
use support::{grids, same_bits};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn arrays<T: Element, D: Dimension>(shapes: [&[usize]; 3]) -> [Array<T, D>; 3] {
    grids(shapes).map(|array| array.into_dimensionality().unwrap())
}

/// How many allocations this thread makes in a call like one it has made before.
fn counted<T: Element, D: Dimension>(attention: &Attention<'_>, arrays: &[Array<T, D>; 3]) -> usize {
    let forward = || {
        let [q, k, v] = arrays.each_ref().map(|array| array.view());
        attention.forward(q, k, v).unwrap()
    };
    let first = forward();
    let (second, taken) = measured(forward);
    same_bits("a second call", second.view().into_dyn(), first.view().into_dyn());
    taken.count_of_thread
}

fn allocates_only_the_output<T: Element>(what: &str, attention: &Attention<'_>) {
    let (query, key, value) = ([2, 4, 5, 8], [2, 4, 7, 8], [2, 4, 7, 6]);
    let check = |rank: usize, count| assert_eq!(count, 1, "{what}, {}, rank {rank}", T::NAME);
    check(2, counted::<T, Ix2>(attention, &arrays([&query[2..], &key[2..], &value[2..]])));
    check(3, counted::<T, Ix3>(attention, &arrays([&query[1..], &key[1..], &value[1..]])));
    check(4, counted::<T, Ix4>(attention, &arrays([&query, &key, &value])));
    check(4, counted::<T, IxDyn>(attention, &arrays([&query, &key, &value])));
    // Four heads share the keys, and both batches do.
    check(4, counted::<T, Ix4>(attention, &arrays([&query, &[1, 1, 7, 8], &[1, 1, 7, 6]])));
    // By decode: more than one tile.
    check(3, counted::<T, Ix3>(attention, &arrays([&[4, 1, 8], &[2, 100, 8], &[2, 100, 6]])));
    check(3, counted::<T, Ix3>(attention, &arrays([&[4, 1, 8], &[2, 1100, 8], &[2, 1100, 6]])));
}

#[test]
fn a_small_call_allocates_its_output_and_nothing_else() {
    let plain = Attention::new();
    let padded = plain.clone().key_lengths([3]).window(Some(2), None).softcap(5.0);
    for (what, attention) in [
        ("plain", plain.clone()),
        ("causal", plain.clone().causal(Alignment::BottomRight)),
        ("padded", padded),
    ] {
        allocates_only_the_output::<f32>(what, &attention);
        allocates_only_the_output::<f64>(what, &attention);
        allocates_only_the_output::<bf16>(what, &attention);
    }
}

#[test]
fn each_kind_of_mask_and_bias_costs_one_allocation_more() {
    let four = arrays::<f32, Ix4>([&[2, 4, 5, 8], &[2, 4, 7, 8], &[2, 4, 7, 6]]);
    let mask = Array2::from_shape_fn((5, 7), |(i, j)| (i + j) % 3 != 0);
    let bias = mask.mapv(|sees| if sees { 0.5f32 } else { f32::NEG_INFINITY });
    let even = |region: &Region, visible: &mut [bool]| {
        for (key, visible) in region.keys.clone().cycle().zip(visible) {
            *visible = key % 2 == 0;
        }
    };
    let plain = Attention::new();
    for (more, what, attention) in [
        (0, "sinks", plain.clone().sinks([1.0; 4])),
        (0, "closure", plain.clone().mask_fn(&even)),
        (0, "slopes", plain.clone().alibi(Alibi::Slopes(vec![0.5; 4]))),
        (1, "mask", plain.clone().mask(mask.view())),
        (1, "bias", plain.clone().bias(bias.view())),
        (2, "both", plain.clone().mask(mask.view()).bias(bias.view())),
    ] {
        assert_eq!(counted(&attention, &four), 1 + more, "{what}");
    }
}

#[test]
fn a_small_call_stays_on_its_thread() {
    let threads_of = |[query, key]: [&[usize]; 2]| {
        let arrays = arrays::<f32, Ix4>([query, key, key]);
        let threads = Mutex::new(HashSet::new());
        let note = |_: &Region, _: &mut [bool]| {
            threads.lock().unwrap().insert(thread::current().id());
            thread::sleep(Duration::from_millis(1));
        };
        let attention = Attention::new().mask_fn(&note);
        let [q, k, v] = arrays.each_ref().map(|array| array.view());
        let call = attention.call(q, k, v);
        let plan = call.plan().unwrap();
        assert_eq!(call.asks_for_threads(), plan.threads > 1);
        attention.forward(q, k, v).unwrap();
        (plan.path, plan.threads, threads.lock().unwrap().clone())
    };
    let small = [[&[2, 4, 5, 8], &[2, 4, 5, 8]], [&[2, 4, 1, 8], &[2, 4, 300, 8]]];
    let large = [[&[2, 4, 256, 64], &[2, 4, 256, 64]], [&[2, 4, 1, 64], &[2, 4, 4096, 64]]];
    let alone = || HashSet::from([thread::current().id()]);
    let paths = [Path::Prefill, Path::Decode];
    for (path, shapes) in paths.into_iter().zip(small) {
        assert_eq!(threads_of(shapes.map(|shape| &shape[..])), (path, 1, alone()));
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    pool.install(|| {
        for (path, (small, large)) in paths.into_iter().zip(small.into_iter().zip(large)) {
            assert_eq!(threads_of(small.map(|shape| &shape[..])), (path, 1, alone()), "in a pool");
            let (ran, planned, threads) = threads_of(large.map(|shape| &shape[..]));
            assert_eq!((ran, planned, threads.len()), (path, 2, 2), "a large call");
        }
    });
    // Masks, and the weights, which are a pass of their own.
    let mask = Array2::from_elem((5, 5), true);
    let small = arrays::<f32, Ix4>([&[2, 4, 5, 8]; 3]);
    let [q, k, v] = small.each_ref().map(|array| array.view());
    let attention = Attention::new().mask(mask.view());
    let call = attention.call(q, k, v).lse().weights();
    assert!(!call.asks_for_threads());
    call.run().unwrap();
    // Stored masks that are large beside the call are sorted by many threads.
    let mask = Array2::from_elem((400, 400), true);
    let rows = Array2::<f32>::zeros((400, 1));
    let attention = Attention::new().mask(mask.view());
    assert!(attention.call(rows.view(), rows.view(), rows.view()).asks_for_threads());
    // The global pool can be made but once, so none of these calls has made it.
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global().unwrap();
}
