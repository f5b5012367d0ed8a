//! What is written reads back as the same logical array, by this crate and by others, whatever the strides.

mod common;

use common::logical;
use half::{bf16, f16};
use ndarray::{ArrayD, Axis, IxDyn, Slice};
use proptest::prelude::*;
use qkv_io::{Data, Dtype, Element, ReadOptions, Tensor, TensorView, WriteOptions, read, write};
use std::fs;
use std::path::Path;

/// An array to view in some way: its shape, what is done to its axes, and its bits.
#[derive(Clone, Debug)]
struct Case {
    kind: usize,
    shape: Vec<usize>,
    seed: u64,
    fortran: bool,
    reverse: Vec<bool>,
    every_second: Vec<bool>,
    rotate: usize,
    repeat: Option<usize>,
}

const KINDS: usize = 13;

fn cases() -> impl Strategy<Value = Case> {
    let shape = prop::collection::vec(0usize..6, 0..5);
    let flags = || prop::collection::vec(any::<bool>(), 5);
    let ways = (any::<bool>(), flags(), flags(), 0usize..5, prop::option::of(0usize..4));
    (0..KINDS, shape, any::<u64>(), ways).prop_map(|(kind, shape, seed, ways)| {
        let (fortran, reverse, every_second, rotate, repeat) = ways;
        Case { kind, shape, seed, fortran, reverse, every_second, rotate, repeat }
    })
}

/// Numbers without pattern, among them NaNs of all kinds.
fn bits(seed: u64, index: usize) -> u64 {
    let mut x = seed.wrapping_add(index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 31;
    x.wrapping_mul(0xd6e8_feb8_6659_fd93) ^ (x >> 29)
}

fn tensor(case: &Case) -> Tensor {
    fn array<T: Element>(case: &Case, value: impl Fn(u64) -> T) -> Tensor {
        use ndarray::ShapeBuilder;
        let count: usize = case.shape.iter().product();
        let elements = (0..count).map(|index| value(bits(case.seed, index))).collect();
        let shape = IxDyn(&case.shape).set_f(case.fortran);
        Data::from(ArrayD::from_shape_vec(shape, elements).unwrap()).into()
    }
    match case.kind {
        0 => array(case, |x| x & 1 == 1),
        1 => array(case, |x| x as i8),
        2 => array(case, |x| x as i16),
        3 => array(case, |x| x as i32),
        4 => array(case, |x| x as i64),
        5 => array(case, |x| x as u8),
        6 => array(case, |x| x as u16),
        7 => array(case, |x| x as u32),
        8 => array(case, |x| x),
        9 => array(case, |x| f16::from_bits(x as u16)),
        10 => array(case, |x| bf16::from_bits(x as u16)),
        11 => array(case, |x| f32::from_bits(x as u32)),
        _ => array(case, f64::from_bits),
    }
}

/// Reverses, thins, permutes and repeats axes: every kind of stride.
macro_rules! for_each_view {
    ($case:expr, $view:expr, $use:expr; $($variant:ident),*) => {
        match $view {
            $(TensorView::$variant(mut view) => {
                for axis in 0..view.ndim() {
                    let step = if $case.every_second[axis] { 2 } else { 1 };
                    let step = if $case.reverse[axis] { -step } else { step };
                    view.slice_axis_inplace(Axis(axis), Slice::new(0, None, step));
                }
                let mut axes: Vec<usize> = (0..view.ndim()).collect();
                axes.rotate_left($case.rotate % view.ndim().max(1));
                let view = view.permuted_axes(IxDyn(&axes));
                match $case.repeat {
                    Some(times) => {
                        let mut shape = vec![times];
                        shape.extend(view.shape());
                        $use(view.broadcast(IxDyn(&shape)).unwrap().into())
                    }
                    None => $use(view.into()),
                }
            })*
        }
    };
}

fn with_view(case: &Case, tensor: &Tensor, use_view: impl FnOnce(TensorView<'_>)) {
    for_each_view!(case, tensor.view(), use_view; Bool, I8, I16, I32, I64, U8, U16, U32, U64, F16, Bf16, F32, F64)
}

/// The same array as other crates' readers see it: C order, little-endian.
fn read_by_others(path: &Path, name: &str, dtype: Dtype) -> (Vec<usize>, Vec<u8>) {
    let bytes = fs::read(path).unwrap();
    match path.extension().unwrap().to_str().unwrap() {
        "safetensors" => {
            let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let tensor = file.tensor(name).unwrap();
            (tensor.shape().to_vec(), tensor.data().to_vec())
        }
        "npy" => read_by_npyz(&bytes, dtype),
        _ => {
            use std::io::Read;
            let mut archive = zip::ZipArchive::new(std::io::Cursor::new(bytes)).unwrap();
            let mut member = Vec::new();
            archive.by_name(&format!("{name}.npy")).unwrap().read_to_end(&mut member).unwrap();
            read_by_npyz(&member, dtype)
        }
    }
}

fn read_by_npyz(bytes: &[u8], dtype: Dtype) -> (Vec<usize>, Vec<u8>) {
    macro_rules! elements {
        ($($dtype:ident: $type:ty),*) => {
            match dtype {
                $(Dtype::$dtype => {
                    let file = npyz::NpyFile::new(bytes).unwrap();
                    assert_eq!(file.header().order(), npyz::Order::C);
                    let shape = file.shape().iter().map(|&length| length as usize).collect();
                    let elements = file.into_vec::<$type>().unwrap();
                    (shape, elements.iter().flat_map(|x| x.to_le_bytes()).collect())
                })*
                Dtype::Bool => {
                    let file = npyz::NpyFile::new(bytes).unwrap();
                    let shape = file.shape().iter().map(|&length| length as usize).collect();
                    (shape, file.into_vec::<bool>().unwrap().into_iter().map(u8::from).collect())
                }
                // npyz reads no voids as numbers: its bytes are compared.
                _ => {
                    let file = npyz::NpyFile::new(bytes).unwrap();
                    assert_eq!(file.dtype().descr(), "'<V2'");
                    let shape: Vec<usize> = file.shape().iter().map(|&length| length as usize).collect();
                    let count: usize = shape.iter().product();
                    (shape, bytes[bytes.len() - 2 * count..].to_vec())
                }
            }
        };
    }
    elements!(I8: i8, I16: i16, I32: i32, I64: i64, U8: u8, U16: u16, U32: u32, U64: u64, F16: f16, F32: f32, F64: f64)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_array_through_any_format(case in cases()) {
        let directory = tempfile::tempdir().unwrap();
        let tensor = tensor(&case);
        with_view(&case, &tensor, |view| {
            let wanted = logical(&view);
            for name in ["a.npy", "a.npz", "a.safetensors"] {
                let path = directory.path().join(name);
                write(&path, &[("a", view.clone())], &WriteOptions::new()).unwrap();
                let bundle = read(&path, &ReadOptions::new().void_as_bf16(true)).unwrap();
                let found = bundle.get("a").unwrap();
                assert_eq!(logical(&found.view()), wanted, "{name}");
                assert_eq!(found.nbytes(), wanted.2.len());
                let others = read_by_others(&path, "a", found.dtype());
                assert_eq!((&others.0, &others.1), (&wanted.1, &wanted.2), "{name}");
            }
        });
    }
}

/// Views of more than one block, in each way that is not contiguous.
#[test]
fn large_arrays_in_blocks() {
    let directory = tempfile::tempdir().unwrap();
    let array = ArrayD::from_shape_fn(IxDyn(&[700, 1000]), |at| (at[0] * 1000 + at[1]) as f32);
    let mut reversed = array.view();
    reversed.invert_axis(Axis(1));
    let row = array.index_axis(Axis(0), 3);
    // Rows of more than a block, in one piece each and not.
    let mut long = ArrayD::from_shape_fn(IxDyn(&[2, 600_000]), |at| (at[0] * 600_000 + at[1]) as f32);
    long.invert_axis(Axis(0));
    let tall = ArrayD::from_shape_fn(IxDyn(&[600_000, 2]), |at| (at[0] * 2 + at[1]) as f32);
    let repeated = row.broadcast(IxDyn(&[600, 1000])).unwrap();
    for view in [array.view(), array.t(), reversed, repeated, long.view(), tall.t()] {
        for name in ["a.npy", "a.npz", "a.safetensors"] {
            let path = directory.path().join(name);
            write(&path, &[("a", view.clone().into())], &WriteOptions::new()).unwrap();
            let bundle = read(&path, &ReadOptions::new()).unwrap();
            assert_eq!(bundle.get("a").unwrap().data::<f32>().unwrap().view(), view, "{name}");
            assert!(bundle.get("a").unwrap().is_in_place());
        }
    }
}
