//! Memory: no option makes a call keep scores for every pair, copy an array, or allocate for each row or tile.
//!
//! The allocator of this file counts, so all is measured in one test at a time.

#[path = "support/counting.rs"]
mod counting;
mod support;

use std::sync::{Mutex, PoisonError};

use counting::{Counting, Taken, measured};
use ndarray::{Array1, Array2, ArrayD};
use qkv::{Alignment, Attention, Element, Map, Of, Path, Survey, bf16};
use support::{Views, grid, grids, views};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One at a time.
static MEASURING: Mutex<()> = Mutex::new(());

fn into<T: Element>(attention: &Attention<'_>, [q, k, v]: Views<'_, T>, output: &mut ArrayD<T>) -> Taken {
    // Scratch is for each thread, so their number is fixed; the first broadcast starts them all.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    pool.broadcast(|_| ());
    let run = || attention.forward_into(q, k, v, output.view_mut()).unwrap();
    let ((), taken) = pool.install(|| measured(run));
    assert!(taken.peak_bytes > 0, "nothing counts");
    taken
}

/// nanochat #825, tabfm #80, transformers #46960, tt-metal #12309: a path that keeps scores for every pair.
#[test]
fn no_option_needs_memory_for_every_pair_or_a_copy_of_the_keys() {
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    // Scores of one head would take 4 MB, a copy of the keys 8 MB, a mask expanded to all heads 8 MB.
    const LIMIT: usize = 1 << 20;
    let check = |what: &str, taken: Taken| assert!(taken.peak_bytes < LIMIT, "{what}: {taken:?}");
    let (query, key) = ([1, 8, 256, 64], [1, 8, 4096, 64]);
    let (few, narrow) = ([1, 2, 4096, 64], [1, 8, 4096, 32]);
    let row = Array1::from_shape_fn(4096, |j| j % 3 != 0);
    let dense = Array2::from_shape_fn((256, 4096), |(i, j)| (i + j) % 3 != 0);
    let bias = Array2::from_shape_fn((256, 4096), |(i, j)| (i + j) as f32 * 1e-3);
    let plain = Attention::new();
    let single = grids::<f32>([&query, &key, &key]);
    let mut output = grid::<f32>(&query, 0);
    for (what, attention) in [
        ("plain", plain.clone()),
        ("causal", plain.clone().causal(Alignment::BottomRight)),
        ("window", plain.clone().causal(Alignment::BottomRight).window(Some(255), None)),
        ("mask of a row", plain.clone().mask(row.view())),
        ("dense mask", plain.clone().mask(dense.view())),
        ("dense bias", plain.clone().bias(bias.view())),
        ("softcap, sinks", plain.clone().softcap(5.0).sinks([1.0; 8])),
        ("decode", plain.clone().path(Path::Decode)),
    ] {
        check(what, into(&attention, views(&single), &mut output));
    }
    let grouped = [single[0].view(), grid_view(&single[1], &few), grid_view(&single[2], &few)];
    check("grouped heads", into(&plain, grouped, &mut output));
    let narrow_value = support::part(single[2].view(), 3, 0..32);
    let mut narrow_output = grid::<f32>(&[1, 8, 256, 32], 0);
    assert_eq!(narrow_value.shape(), narrow);
    let arrays = [single[0].view(), single[1].view(), narrow_value];
    check("narrow values", into(&plain, arrays, &mut narrow_output));
    let halves = grids::<bf16>([&query, &key, &key]);
    check("bf16", into(&plain, views(&halves), &mut grid::<bf16>(&query, 0)));
    let wide = grids::<f32>([&[1, 1, 64, 320], &[1, 1, 4096, 320], &[1, 1, 4096, 320]]);
    check("dim 320", into(&plain, views(&wide), &mut grid::<f32>(&[1, 1, 64, 320], 0)));
}

/// The first heads of an array.
fn grid_view<'v>(array: &'v ArrayD<f32>, shape: &[usize]) -> ndarray::ArrayViewD<'v, f32> {
    support::part(array.view(), 1, 0..shape[1])
}

/// torch keeps every score for the gradient of a mask, and for values of another dim than keys.
#[test]
fn gradients_need_memory_for_themselves_alone() {
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    // The scores of one head would take 16 MB, the gradient of the bias takes 8 kB.
    let (query, key) = ([1, 4, 2048, 32], [1, 2, 2048, 32]);
    let arrays = grids::<f32>([&query, &key, &key]);
    let [q, k, v] = views(&arrays);
    let bias = grid::<f32>(&[2048], 3);
    let attention = Attention::new().causal(Alignment::TopLeft).bias(bias.view());
    let forward = attention.call(q.clone(), k.clone(), v.clone()).row_stats().run().unwrap();
    let d_output = grid::<f32>(&query, 4);
    let results = 4 * (4 + 2 + 2) * 2048 * 32 + 4 * 2048;
    for threads in [1, 2, 5] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.broadcast(|_| ());
        let run = || {
            let call = attention.call(q.clone(), k.clone(), v.clone());
            let row_stats = forward.row_stats.as_ref().unwrap();
            let backward = call.backward(forward.output.view(), row_stats, d_output.view());
            drop(backward.query().key().value().biases().run().unwrap());
        };
        let ((), taken) = pool.install(|| measured(run));
        // A number for each row, and some 200 kB a thread.
        assert!(
            taken.peak_bytes < results + (1 << 17) + threads * (1 << 18),
            "{threads}: {taken:?}, {results}"
        );
    }
}

/// onnxruntime #19924, pytorch #190523: keys and values copied, or repeated for each head, to decode one token.
#[test]
fn decoding_a_token_copies_no_key() {
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    // The keys are 8 MB.
    let (query, key) = ([1, 32, 1, 64], [1, 8, 4096, 64]);
    let arrays = grids::<f32>([&query, &key, &key]);
    let mut output = grid::<f32>(&query, 0);
    let taken = into(&Attention::new(), views(&arrays), &mut output);
    assert!(taken.peak_bytes < 2 << 20, "{taken:?}");
}

/// bertviz #82 and its like keep, and draw, a number for every pair.
#[test]
fn inspecting_a_head_needs_memory_for_its_queries_and_keys_alone() {
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    // The matrix would take 256 MB, one number of four bytes for each pair.
    const LENGTH: usize = 8192;
    let arrays = grids::<f32>([&[LENGTH, 16], &[LENGTH, 16], &[LENGTH, 16]]);
    let [query, key, value] = views(&arrays);
    let attention = Attention::new().causal(Alignment::TopLeft);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    pool.broadcast(|_| ());
    let tokens: Vec<u32> = (0..LENGTH as u32).map(|i| i % 1000).collect();
    let open = || attention.call(query.clone(), key.clone(), value.clone()).inspect(0, 0).unwrap();
    let head = open();
    head.stats(None).unwrap();
    let map = |of| Map::new(of).size(256, 256);
    let every = |work: &(dyn Fn() + Sync), what: &str, limit: usize| {
        let ((), taken) = pool.install(|| measured(work));
        assert!(taken.peak_bytes < limit, "{what}: {taken:?}");
    };
    every(&|| drop(open().stats(None).cloned()), "opening", 1 << 20);
    every(&|| drop(head.map(&map(Of::Weights), None)), "map of weights", 3 << 20);
    // The outputs with and without the heaviest keys.
    every(&|| drop(head.map(&map(Of::Influence), None)), "map of influence", 6 << 20);
    every(&|| drop(head.map_less(&head, &map(Of::Weights), None)), "map of a difference", 4 << 20);
    every(&|| drop(head.difference(&head, None)), "difference", 3 << 20);
    let survey = Survey::new().top(4).tokens(&tokens, &tokens);
    // For each query and key four of rank, 64 bytes, and of the keys once more for each thread and those that wait.
    every(&|| drop(head.survey(&survey, None)), "survey", 8 << 20);
}

#[test]
fn nothing_is_allocated_for_each_row_or_tile() {
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    let counted = |path: Path, len_query: usize, len_key: usize, attention: &Attention<'_>| {
        let (query, key) = ([1, 1, len_query, 8], [1, 1, len_key, 8]);
        let arrays = grids::<f32>([&query, &key, &key]);
        let mut output = grid::<f32>(&query, 0);
        into(&attention.clone().path(path), views(&arrays), &mut output).count
    };
    let plain = Attention::new();
    let causal = plain.clone().causal(Alignment::BottomRight).window(Some(255), None);
    // Blocks of queries are tasks, of at least 16 rows; keys are cut into spans by threads, not by length.
    for (path, rows_of_task) in [(Path::Prefill, 64), (Path::Decode, 16)] {
        for attention in [&plain, &causal] {
            let by_rows = [4096, 8192].map(|len| counted(path, len, 1024, attention));
            let tasks = 4096 / rows_of_task;
            assert!(by_rows[1] <= by_rows[0] + 4 * tasks + 64, "{path}: {by_rows:?}, {tasks} more tasks");
            // Twice the keys is 64 tiles more for each block, and one level of the tree.
            let by_keys = [4096, 8192].map(|len| counted(path, 256, len, attention));
            assert!(by_keys[1] <= by_keys[0] + 32, "{path}: {by_keys:?}, 64 more tiles for each block");
        }
    }
}
