//! Public bug reports of other engines about how arrays lie in memory and how many axes they have, held against this
//! one: a view must equal its copy, bit for bit.

mod support;

use memmap2::MmapMut;
use ndarray::{Array, ArrayD, ArrayView, ArrayView2, ArrayViewD, Axis, Ix2, IxDyn, ShapeBuilder, Slice, s};
use qkv::{Alignment, Attention, Element};
use support::{
    LAYOUTS, Shapes, Views, close, grid, grids, laid_out, of_every_type, on_every_path, part, same_bits,
    same_results, textbook, tolerance, views, ways,
};

const BASE: Shapes = [&[1, 2, 6, 8], &[1, 2, 10, 8], &[1, 2, 10, 8]];

fn permuted<'v, T>(array: ArrayViewD<'v, T>, axes: &[usize]) -> ArrayViewD<'v, T> {
    array.permuted_axes(axes.to_vec())
}

fn copied<T: Element>(arrays: &Views<'_, T>) -> [ArrayD<T>; 3] {
    arrays.each_ref().map(|array| array.as_standard_layout().into_owned())
}

/// Views give the bits that their copies give.
#[track_caller]
fn equal_to_copies<T: Element>(attention: &Attention<'_>, arrays: Views<'_, T>) -> ArrayD<T> {
    let copies = copied(&arrays);
    let want = on_every_path(attention, views(&copies));
    same_results("views", &on_every_path(attention, arrays), &want);
    want.output
}

/// pytorch #187506: a stride of the last axis other than 1.
#[test]
fn queries_keys_and_values_may_lie_in_any_order() {
    fn check<T: Element>() {
        let arrays = grids::<T>(BASE);
        for which in 0..3 {
            for layout in 1..LAYOUTS {
                let laid = laid_out(&arrays[which], layout);
                let mut strided = views(&arrays);
                strided[which] = laid.view();
                let got = equal_to_copies(&Attention::new(), strided);
                if layout < LAYOUTS - 1 {
                    // The last layout shares one row, and so is another array.
                    let plain =
                        Attention::new().forward(arrays[0].view(), arrays[1].view(), arrays[2].view());
                    same_bits("the plain call", got.view(), plain.unwrap().view());
                }
            }
        }
    }
    of_every_type!(check());
}

/// A two-axis array as views that lie in memory in other ways, each with the same numbers.
fn strided<T: Copy>(array: &Array<T, Ix2>, then: impl Fn(&str, ArrayView2<'_, T>)) {
    let turned = array.t().as_standard_layout().into_owned();
    then("transposed", turned.t());
    let wide = Array::from_shape_fn((array.nrows(), 2 * array.ncols()), |(i, j)| array[[i, j / 2]]);
    then("every second", wide.slice(s![.., ..;2]));
    let backwards = array.slice(s![..;-1, ..;-1]).as_standard_layout().into_owned();
    then("backwards", backwards.slice(s![..;-1, ..;-1]));
    let row_by_row = array.slice(s![..;-1, ..]).as_standard_layout().into_owned();
    then("rows backwards", row_by_row.slice(s![..;-1, ..]));
}

#[test]
fn masks_biases_and_segments_may_lie_in_any_order() {
    let arrays = grids::<f32>([&[1, 2, 70, 8], &[1, 2, 131, 8], &[1, 2, 131, 8]]);
    let mask = Array::from_shape_fn((70, 131), |(i, j)| (3 * i + 5 * j) % 7 > 2 && !(64..128).contains(&j));
    let want = on_every_path(&Attention::new().mask(mask.view()), views(&arrays));
    strided(&mask, |how, mask| {
        same_results(how, &on_every_path(&Attention::new().mask(mask), views(&arrays)), &want);
    });
    let bias = grid::<f32>(&[70, 131], 3).into_dimensionality::<Ix2>().unwrap();
    let want = on_every_path(&Attention::new().bias(bias.view()), views(&arrays));
    strided(&bias, |how, bias| {
        same_results(how, &on_every_path(&Attention::new().bias(bias), views(&arrays)), &want);
    });
    let ids = |len: usize| Array::from_shape_fn((1, len), |(_, j)| (j / 29) as i64);
    let (query, key) = (ids(70), ids(131));
    let want = on_every_path(&Attention::new().segments(query.view(), key.view()), views(&arrays));
    strided(&key, |how, key| {
        let attention = Attention::new().segments(query.view(), key);
        same_results(how, &on_every_path(&attention, views(&arrays)), &want);
    });
}

/// SageAttention #386: queries, keys and values as parts of one buffer, each token `3 · heads · dim` numbers on.
#[test]
fn parts_of_a_fused_buffer_equal_their_copies() {
    for shape in [[1, 40, 3, 3, 8], [2, 70, 3, 2, 5]] {
        let fused = grid::<f32>(&shape, 0);
        let arrays = [0, 1, 2].map(|part| permuted(fused.index_axis(Axis(2), part), &[0, 2, 1, 3]));
        equal_to_copies(&Attention::new(), arrays.clone());
        equal_to_copies(&Attention::new().causal(Alignment::TopLeft), arrays);
    }
}

/// The large variant of SageAttention #386. Where the system gives out no 17 GB of addresses there is nothing to see.
#[test]
fn offsets_beyond_two_to_the_32_find_their_numbers() {
    const STEP: usize = (1 << 31) + 12345;
    // Zeros that take addresses and, where they are not written, no memory.
    let Ok(mut sparse) = MmapMut::map_anon((2 * STEP + 8) * size_of::<f32>()) else { return };
    let sparse: &mut [f32] = bytemuck::cast_slice_mut(&mut sparse);
    let arrays = grids::<f32>([&[1, 1, 2, 8], &[1, 1, 3, 8], &[1, 1, 3, 8]]);
    let want = on_every_path(&Attention::new(), views(&arrays));
    for which in [1, 2] {
        for (at, &x) in arrays[which].indexed_iter() {
            sparse[at[2] * STEP + at[3]] = x;
        }
        let shape = IxDyn(&[1, 1, 3, 8]).strides(IxDyn(&[0, 0, STEP, 1]));
        let far = ArrayView::from_shape(shape, &*sparse).unwrap();
        let mut strided = views(&arrays);
        strided[which] = far;
        same_results("far apart", &on_every_path(&Attention::new(), strided), &want);
    }
}

/// onnx #7118, torch-mlir #4470: packed heads taken apart by a reshape alone.
#[test]
fn packed_heads_come_and_go_as_permuted_views() {
    // As many heads as tokens, so that the wrong reading has the right shape.
    let packed = [0, 1, 2].map(|stream| grid::<f32>(&[1, 4, 8], stream));
    let unpack = |array: &ArrayD<f32>| array.clone().into_shape_with_order(vec![1, 4, 4, 2]).unwrap();
    let by_token = packed.each_ref().map(unpack);
    let arrays = by_token.each_ref().map(|array| permuted(array.view(), &[0, 2, 1, 3]));
    let want = equal_to_copies(&Attention::new(), arrays.clone());
    for (path, simd) in ways() {
        let mut output = ArrayD::from_elem(vec![1, 4, 4, 2], f32::NAN);
        let [q, k, v] = arrays.clone();
        let attention = Attention::new().path(path).simd(simd);
        let by_head = output.view_mut().permuted_axes(vec![0, 2, 1, 3]);
        attention.forward_into(q, k, v, by_head).unwrap();
        same_bits("packed", output.view(), permuted(want.view(), &[0, 2, 1, 3]));
    }
    assert_ne!(on_every_path(&Attention::new(), views(&by_token)).output, want);
}

/// mlx #3585, xformers #683, #761: tokens before heads, or heads before tokens.
#[test]
fn either_reading_of_heads_and_tokens_is_the_textbook_of_that_reading() {
    let arrays = grids::<f32>([&[2, 7, 3, 8]; 3]);
    let scale = 1.0 / 8f64.sqrt();
    let turned = views(&arrays).map(|array| permuted(array, &[0, 2, 1, 3]));
    let mut outputs = Vec::new();
    for reading in [views(&arrays), turned] {
        let output = equal_to_copies(&Attention::new(), reading.clone());
        let (want, _) = textbook(reading, scale, |_, s| Some(s));
        close("reading", output.view(), want.view(), 2.0 * tolerance::<f32>());
        outputs.push(output);
    }
    assert_ne!(outputs[0].view(), permuted(outputs[1].view(), &[0, 2, 1, 3]));
}

/// pytorch #120810: calls of five axes; and batch axes that broadcast.
#[test]
fn more_batch_axes_are_a_loop_over_them() {
    let arrays = grids::<f32>([&[3, 2, 4, 7, 16], &[3, 2, 4, 5, 16], &[3, 2, 4, 5, 32]]);
    let mask = ArrayD::from_shape_fn(vec![1, 1, 5], |i| i[2] != 3);
    let masked = Attention::new().mask(mask.view());
    let whole = on_every_path(&masked, views(&arrays)).output;
    assert_eq!(whole.shape(), [3, 2, 4, 7, 32]);
    for (a, b) in [0, 1, 2].into_iter().flat_map(|a| [0, 1].map(|b| (a, b))) {
        let one = |array: ArrayViewD<'_, f32>| {
            array.index_axis_move(Axis(0), a).index_axis_move(Axis(0), b).to_owned()
        };
        let [q, k, v] = views(&arrays).map(one);
        let want = on_every_path(&masked, [q.view(), k.view(), v.view()]).output;
        same_bits("one of the loop", one(whole.view()).view(), want.view());
    }
}

#[test]
fn batch_axes_of_one_broadcast_in_queries_keys_and_values() {
    let full = grids::<f32>([&[3, 2, 4, 8], &[3, 2, 5, 8], &[3, 2, 5, 6]]);
    for shared in 0..3 {
        let mut arrays = views(&full);
        arrays[shared] = part(arrays[shared].clone(), 0, 0..1);
        let mut expanded = arrays.clone();
        let mut shape = full[shared].shape().to_vec();
        shape[0] = 3;
        expanded[shared] = arrays[shared].broadcast(shape).unwrap();
        let want = equal_to_copies(&Attention::new(), expanded.clone());
        same_bits("shared", on_every_path(&Attention::new(), arrays).output.view(), want.view());
    }
}

/// pytorch #127523: axes of length 1; and no batch or head axis at all.
#[test]
fn two_axes_are_one_head_and_every_length_may_be_one() {
    let arrays = grids::<f32>([&[6, 8], &[10, 8], &[10, 5]]);
    let causal = Attention::new().causal(Alignment::BottomRight);
    let got = on_every_path(&causal, views(&arrays));
    let with_heads = views(&arrays).map(|array| array.insert_axis(Axis(0)));
    let want = on_every_path(&causal, with_heads.clone());
    same_bits("three axes", got.output.view(), want.output.index_axis(Axis(0), 0));
    assert_eq!(got.lse.unwrap().shape(), [6]);
    assert_eq!(got.weights.unwrap().shape(), [6, 10]);
    let with_batch = with_heads.map(|array| array.insert_axis(Axis(0)));
    let four = on_every_path(&causal, with_batch);
    same_bits("four axes", four.output.index_axis(Axis(0), 0), want.output.view());

    of_every_type!(of_ones());
    fn of_ones<T: Element>() {
        for rank in 2..=5 {
            let ones = vec![1; rank];
            let arrays = grids::<T>([&ones, &ones, &ones]);
            let got = on_every_path(&Attention::new(), views(&arrays));
            same_bits("the only value", got.output.view(), arrays[2].view());
        }
    }
}

#[test]
fn an_output_may_lie_in_any_order_and_its_gaps_are_left_alone() {
    let arrays = grids::<f32>([&[2, 2, 70, 8], &[2, 2, 30, 8], &[2, 2, 30, 5]]);
    let [q, k, v] = views(&arrays);
    let want = on_every_path(&Attention::new(), views(&arrays)).output;
    for (path, simd) in ways() {
        let attention = Attention::new().path(path).simd(simd);
        for layout in 0..LAYOUTS - 1 {
            let mut output = laid_out(&want.mapv(|_| f32::NAN), layout);
            let to = output.view_mut().unwrap();
            attention.forward_into(q.clone(), k.clone(), v.clone(), to).unwrap();
            same_bits(&format!("layout {layout}"), output.view(), want.view());
        }
        // Every third row and second column of a larger array.
        let mut large = ArrayD::from_elem(vec![2, 2, 210, 10], -7.0f32);
        let mut to = large.view_mut();
        to.slice_axis_inplace(Axis(2), Slice::new(1, None, 3));
        to.slice_axis_inplace(Axis(3), Slice::new(0, None, 2));
        attention.forward_into(q.clone(), k.clone(), v.clone(), to).unwrap();
        for (at, &x) in large.indexed_iter() {
            let inside = at[2] % 3 == 1 && at[3] % 2 == 0;
            let expected = if inside { want[[at[0], at[1], at[2] / 3, at[3] / 2]] } else { -7.0 };
            assert_eq!(x, expected, "{path} on {simd} at {at:?}");
        }
    }
}
