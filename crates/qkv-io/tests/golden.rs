//! Files that NumPy and safetensors wrote (`data/make.py`) are read as they were meant.

mod common;

use common::logical;
use half::{bf16, f16};
use ndarray::{ArrayD, IxDyn};
use qkv_io::{Bundle, Data, Element, Fault, ReadOptions, Tensor, read};
use std::path::PathBuf;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn bundle(name: &str) -> Bundle {
    read(path(name), &ReadOptions::new().void_as_bf16(true)).unwrap()
}

/// The array that `make.py` made.
fn expected(dtype: &str, shape: &[usize]) -> Tensor {
    fn array<T: Element>(shape: &[usize], value: impl Fn(usize) -> T) -> Tensor {
        let elements = (0..shape.iter().product()).map(value).collect();
        Data::from(ArrayD::from_shape_vec(IxDyn(shape), elements).unwrap()).into()
    }
    let real = |index: usize| index as f64 / 4.0 - 2.0;
    let signed = |index: usize| index as i64 * 5 - 60;
    match dtype {
        "b1" => array(shape, |index| index % 3 == 0),
        "i1" => array(shape, |index| signed(index) as i8),
        "i2" => array(shape, |index| signed(index) as i16),
        "i4" => array(shape, |index| signed(index) as i32),
        "i8" => array(shape, signed),
        "u1" => array(shape, |index| index as u8 * 5),
        "u2" => array(shape, |index| index as u16 * 5),
        "u4" => array(shape, |index| index as u32 * 5),
        "u8" => array(shape, |index| index as u64 * 5),
        "f2" => array(shape, |index| f16::from_f64(real(index))),
        "bf16" => array(shape, |index| bf16::from_f64(real(index))),
        "f4" => array(shape, |index| real(index) as f32),
        "f8" => array(shape, real),
        _ => panic!("no such dtype: {dtype}"),
    }
}

#[track_caller]
fn assert_same(found: &Tensor, dtype: &str, shape: &[usize]) {
    assert_eq!(logical(&found.view()), logical(&expected(dtype, shape).view()));
}

#[test]
fn every_dtype_in_both_byte_orders() {
    for dtype in ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "bf16"] {
        let name = format!("{dtype}_little");
        let tensor = bundle(&format!("{name}.npy")).arrays.remove(0);
        assert_eq!(tensor.0, name);
        assert_same(&tensor.1, dtype, &[2, 3, 4]);
        // In place, but for bools, whose bytes must not change once they were checked.
        assert_eq!(tensor.1.is_in_place(), dtype != "b1", "{dtype}");
    }
    for dtype in ["i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8"] {
        let tensor = &bundle(&format!("{dtype}_big.npy")).arrays[0].1;
        assert_same(tensor, dtype, &[2, 3, 4]);
        assert!(!tensor.is_in_place());
    }
}

#[test]
fn fortran_order_is_a_view_not_a_copy() {
    for (name, shape) in [
        ("f4_fortran", &[2, 3, 4][..]),
        ("f4_fortran_1d", &[5]),
        ("f4_fortran_row", &[1, 5]),
        ("f4_fortran_4d", &[2, 3, 4, 5]),
    ] {
        let tensor = &bundle(&format!("{name}.npy")).arrays[0].1;
        assert_same(tensor, "f4", shape);
        assert!(tensor.is_in_place(), "{name}");
    }
    let tensor = &bundle("f4_fortran.npy").arrays[0].1;
    assert_eq!(tensor.data::<f32>().unwrap().view().strides(), [1, 2, 6]);
    assert_same(&bundle("f4_fortran_big.npy").arrays[0].1, "f4", &[2, 3, 4]);
    assert_same(&bundle("b1_fortran.npy").arrays[0].1, "b1", &[2, 3, 4]);
}

#[test]
fn scalars_empty_arrays_and_later_versions() {
    assert_same(&bundle("f4_scalar.npy").arrays[0].1, "f4", &[]);
    assert_same(&bundle("f4_empty.npy").arrays[0].1, "f4", &[2, 0, 4]);
    assert_same(&bundle("f4_v2.npy").arrays[0].1, "f4", &[2, 3, 4]);
    assert_same(&bundle("f4_v3.npy").arrays[0].1, "f4", &[2, 3, 4]);
}

#[test]
fn archives_stored_and_deflated() {
    for name in ["stored.npz", "deflated.npz"] {
        let bundle = bundle(name);
        assert_eq!(bundle.names().collect::<Vec<_>>(), ["q", "mask", "k", "v/heads", "scale"]);
        assert_same(bundle.get("q").unwrap(), "f4", &[2, 3, 4]);
        assert_same(bundle.get("mask").unwrap(), "b1", &[2, 3, 4]);
        assert_same(bundle.get("k").unwrap(), "f8", &[2, 3, 4]);
        assert_same(bundle.get("v/heads").unwrap(), "f2", &[2, 3, 4]);
        assert_same(bundle.get("scale").unwrap(), "f4", &[]);
    }
}

#[test]
fn safetensors_from_python() {
    let bundle = bundle("python.safetensors");
    assert_eq!(bundle.metadata["made"], "by python");
    for (name, dtype) in [("q", "f4"), ("k", "bf16"), ("mask", "b1"), ("v", "f2")] {
        assert_same(bundle.get(name).unwrap(), dtype, &[2, 3, 4]);
    }
}

#[test]
fn what_is_no_array_of_ours_is_refused() {
    for name in ["complex", "text", "date", "long_double", "structured", "void"] {
        let error = read(path(&format!("refused_{name}.npy")), &ReadOptions::new()).unwrap_err();
        assert!(error.to_string().contains(&format!("refused_{name}.npy: ")), "{error}");
        assert_fault!(error, Fault::UnsupportedDtype { .. });
    }
    assert_fault!(read(path("refused_object.npy"), &ReadOptions::new()).unwrap_err(), Fault::Pickled);
    assert_fault!(
        read(path("refused_member.npz"), &ReadOptions::new()).unwrap_err(),
        Fault::NotAnArray { .. }
    );
}
