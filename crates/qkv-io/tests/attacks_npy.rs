//! `.npy` files that lie. Each test is named after the lie.

mod common;

use common::{npy, npy_of, refusal};
use qkv_io::{Error, Fault, Format, ReadOptions, read_bytes};

fn refused(bytes: Vec<u8>) -> Error {
    refusal(bytes, Format::Npy)
}

#[test]
fn npy_cut_at_every_length() {
    let whole = npy_of("<f4", "(2, 3)", &[0; 24]);
    assert!(read_bytes(whole.clone(), Format::Npy, &ReadOptions::new()).is_ok());
    for length in 0..whole.len() {
        let error = refused(whole[..length].to_vec());
        assert_fault!(error, Fault::Empty | Fault::CutShort { .. } | Fault::SizeMismatch { .. });
    }
}

#[test]
fn npy_any_byte_changed_is_read_or_refused() {
    let whole = npy((2, 0), "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }\n", &[7; 12]);
    for at in 0..whole.len() {
        for value in [0, b'(', b')', b',', b'9', b'\'', b'{', 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            // Whether it is still an array is not the point: reading must end.
            let _ = read_bytes(bytes, Format::Npy, &ReadOptions::new());
        }
    }
}

#[test]
fn npy_bytes_after_the_data() {
    let error = refused(npy_of("<f4", "(2, 3)", &[0; 25]));
    assert_fault!(error, Fault::SizeMismatch { need: 24, have: 25, .. });
}

#[test]
fn npy_header_length_absurd() {
    let mut bytes = npy((2, 0), "{}", &[]);
    bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = refused(bytes.clone());
    assert!(error.to_string().contains("100000000 bytes (100 MB)"), "{error}");
    assert_fault!(error, Fault::HeaderTooLong { length: 0xffff_ffff });
    bytes[8..12].copy_from_slice(&99_999_999u32.to_le_bytes());
    assert_fault!(refused(bytes), Fault::CutShort { part: "the header", need: 99_999_999, have: 2 });
}

#[test]
fn npy_shape_of_2_to_the_40_in_a_hundred_bytes() {
    let error = refused(npy_of("<f4", "(1099511627776,)", &[0; 16]));
    assert_fault!(error, Fault::SizeMismatch { need: 0x400_0000_0000, have: 16, .. });
}

#[test]
fn npy_shape_overflows() {
    for shape in ["(4294967296, 4294967296)", "(18446744073709551615,)", "(9223372036854775807, 0)"] {
        assert_fault!(refused(npy_of("<f8", shape, &[])), Fault::ShapeTooLarge { .. });
    }
}

#[test]
fn npy_shape_not_whole_numbers() {
    for shape in
        ["(-1,)", "(2.0,)", "(1e2,)", "(18446744073709551616,)", "(True,)", "('2',)", "(2 3)", "2", "None"]
    {
        assert_fault!(refused(npy_of("<f4", shape, &[0; 8])), Fault::BadHeader { .. });
    }
}

#[test]
fn npy_too_many_axes() {
    let shape = |axes: usize| format!("({})", "1, ".repeat(axes));
    assert!(read_bytes(npy_of("<u1", &shape(64), &[0]), Format::Npy, &ReadOptions::new()).is_ok());
    assert_fault!(refused(npy_of("<u1", &shape(65), &[0])), Fault::TooManyAxes);
}

#[test]
fn npy_keys_doubled_missing_or_foreign() {
    for text in [
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} junk",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}}",
        "",
        "\n",
    ] {
        assert_fault!(refused(npy((1, 0), text, &[0; 4])), Fault::BadHeader { .. });
    }
}

#[test]
fn npy_version_4() {
    assert_fault!(refused(npy((4, 0), "{}", &[])), Fault::UnknownVersion { major: 4, minor: 0 });
    assert_fault!(refused(npy((1, 1), "{}", &[])), Fault::UnknownVersion { major: 1, minor: 1 });
}

#[test]
fn npy_pickled_objects() {
    for descr in ["|O", "O", "<O"] {
        assert_fault!(refused(npy_of(descr, "(1,)", &[0; 8])), Fault::Pickled);
    }
}

#[test]
fn npy_dtypes_that_are_not_read() {
    for descr in ["<c8", "<U3", "|S2", "<M8[s]", "<f16", "<i3", "|V3", ">V2", "", "<", "é", "<b2"] {
        let options = ReadOptions::new().void_as_bf16(true);
        let error = read_bytes(npy_of(descr, "(1,)", &[0; 8]), Format::Npy, &options).unwrap_err();
        assert_fault!(error, Fault::UnsupportedDtype { .. });
    }
    let structured = "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}";
    assert_fault!(refused(npy((1, 0), structured, &[0; 4])), Fault::UnsupportedDtype { .. });
}

#[test]
fn npy_void_is_bf16_only_if_said() {
    for descr in ["<V2", "|V2", "V2"] {
        let bytes = npy_of(descr, "(1,)", &[0x80, 0x3f]);
        let error = refused(bytes.clone());
        assert!(error.to_string().contains("bfloat16"), "{error}");
        assert_fault!(error, Fault::VoidNeedsMeaning { .. });
        let bundle = read_bytes(bytes, Format::Npy, &ReadOptions::new().void_as_bf16(true)).unwrap();
        let data = bundle.get("arr_0").unwrap().data::<half::bf16>().unwrap();
        assert_eq!(data.view()[0], half::bf16::ONE);
    }
}

#[test]
fn npy_bool_other_than_0_and_1() {
    let error = refused(npy_of("|b1", "(4,)", &[0, 1, 2, 0xff]));
    assert_fault!(error, Fault::BadBool { index: 2, value: 2 });
}

#[test]
fn npy_deeply_nested_header() {
    let text = format!("{{'descr': '<f4', 'shape': {}", "(".repeat(5_000_000));
    assert_fault!(refused(npy((2, 0), &text, &[])), Fault::BadHeader { .. });
}
