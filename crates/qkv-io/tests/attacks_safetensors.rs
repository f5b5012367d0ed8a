//! safetensors files that lie. Each test is named after the lie.

mod common;

use common::{refusal, safetensors};
use qkv_io::{Bundle, Error, Fault, Format, ReadOptions, read_bytes};

fn refused(header: &str, data: &[u8]) -> Error {
    refusal(safetensors(header, data), Format::Safetensors)
}

fn accepted(header: &str, data: &[u8]) -> Bundle {
    read_bytes(safetensors(header, data), Format::Safetensors, &ReadOptions::new()).unwrap()
}

/// One f32 array of two elements with these offsets.
fn with_offsets(offsets: &str) -> String {
    format!(r#"{{"q":{{"dtype":"F32","shape":[2],"data_offsets":{offsets}}}}}"#)
}

#[test]
fn safetensors_whole() {
    let bundle = accepted(&with_offsets("[0,8]"), &[0; 8]);
    assert_eq!(bundle.get("q").unwrap().shape(), [2]);
}

#[test]
fn safetensors_length_prefix_2_to_the_63() {
    for length in [1 << 63, u64::MAX] {
        let mut bytes = safetensors(&with_offsets("[0,8]"), &[0; 8]);
        bytes[..8].copy_from_slice(&u64::to_le_bytes(length));
        assert_fault!(refusal(bytes, Format::Safetensors), Fault::HeaderTooLong { .. });
    }
}

#[test]
fn safetensors_length_prefix_zero() {
    assert_fault!(refused("", &[0; 8]), Fault::BadHeader { .. });
}

#[test]
fn safetensors_length_prefix_one_past_the_file() {
    let mut bytes = safetensors("{}", &[]);
    bytes[0] += 1;
    assert_fault!(
        refusal(bytes, Format::Safetensors),
        Fault::CutShort { part: "the header", need: 3, have: 2 }
    );
}

#[test]
fn safetensors_cut_at_every_length() {
    let whole = safetensors(&with_offsets("[0,8]"), &[0; 8]);
    for length in 0..whole.len() {
        let error = refusal(&whole[..length], Format::Safetensors);
        assert_fault!(error, Fault::Empty | Fault::CutShort { .. } | Fault::BadOffsets { .. });
    }
}

#[test]
fn safetensors_header_above_100_mb() {
    let mut bytes = 120_000_000u64.to_le_bytes().to_vec();
    bytes.resize(8 + 120_000_000, b' ');
    bytes[8] = b'{';
    let error = refusal(bytes, Format::Safetensors);
    assert!(error.to_string().contains("limit of 100000000 bytes (100 MB)"), "{error}");
    assert_fault!(error, Fault::HeaderTooLong { length: 120_000_000 });
}

#[test]
fn safetensors_offsets_not_a_pair() {
    for offsets in [
        "[]",
        "[8]",
        "[0,4,8]",
        "[-8,0]",
        "[0,8.0]",
        "[0,1e1]",
        "\"0,8\"",
        "null",
        "[0,18446744073709551616]",
    ] {
        let error = refused(&with_offsets(offsets), &[0; 8]);
        assert!(error.to_string().contains("\"q\""), "{error}");
        assert_fault!(error, Fault::BadHeader { .. });
    }
}

#[test]
fn safetensors_offsets_reversed_or_past_the_end() {
    for offsets in ["[8,4]", "[0,9]", "[0,18446744073709551615]", "[18446744073709551615,0]", "[9,9]"] {
        let error = refused(&with_offsets(offsets), &[0; 8]);
        assert_eq!(error.array(), Some("q"));
        assert_fault!(error, Fault::BadOffsets { length: 8, .. });
    }
}

/// Two arrays of bytes with these offsets.
fn two(a: &str, b: &str) -> String {
    let array = |name, offsets| format!(r#""{name}":{{"dtype":"U8","shape":[4],"data_offsets":{offsets}}}"#);
    format!("{{{},{}}}", array("a", a), array("b", b))
}

#[test]
fn safetensors_overlapping() {
    assert_fault!(refused(&two("[0,4]", "[2,6]"), &[0; 6]), Fault::Overlap { begin: 2, end: 4 });
    assert_fault!(refused(&two("[0,4]", "[0,4]"), &[0; 4]), Fault::Overlap { .. });
}

#[test]
fn safetensors_gap() {
    assert_fault!(refused(&two("[0,4]", "[5,9]"), &[0; 9]), Fault::Gap { begin: 4, end: 5 });
    assert_fault!(refused(&two("[1,5]", "[5,9]"), &[0; 9]), Fault::Gap { begin: 0, end: 1 });
    assert_fault!(refused(&two("[0,4]", "[4,8]"), &[0; 9]), Fault::Gap { begin: 8, end: 9 });
    assert_fault!(refused("{}", &[0; 1]), Fault::Gap { begin: 0, end: 1 });
}

#[test]
fn safetensors_order_of_the_header_is_kept_whatever_the_offsets() {
    let bundle = accepted(&two("[4,8]", "[0,4]"), &[0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(bundle.names().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(bundle.get("a").unwrap().data::<u8>().unwrap().view()[0], 4);
}

#[test]
fn safetensors_a_million_elements_in_four_bytes() {
    let error = refused(r#"{"q":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}}"#, &[0; 4]);
    assert_fault!(error, Fault::SizeMismatch { need: 4_000_000, have: 4, .. });
}

#[test]
fn safetensors_shape_overflows() {
    let error = refused(r#"{"q":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#, &[]);
    assert_fault!(error, Fault::ShapeTooLarge { .. });
}

#[test]
fn safetensors_too_many_axes() {
    let shape = vec!["1"; 100_000].join(",");
    let error = refused(&format!(r#"{{"q":{{"dtype":"U8","shape":[{shape}],"data_offsets":[0,1]}}}}"#), &[0]);
    assert!(error.to_string().contains("more than 64 axes"), "{error}");
}

#[test]
fn safetensors_header_not_an_object() {
    for header in
        ["[]", "1", "null", "\"q\"", "{", "{} {}", "{\"q\":1}", "{\"q\":{}}", " {}", "\u{feff}{}", "{'q':1}"]
    {
        assert_fault!(refused(header, &[]), Fault::BadHeader { .. });
    }
    let mut not_utf8 = safetensors("{\"q\":1}", &[]);
    not_utf8[10] = 0xff;
    assert_fault!(refusal(not_utf8, Format::Safetensors), Fault::BadHeader { .. });
}

#[test]
fn safetensors_deeply_nested_header() {
    let header = format!("{{\"q\":{{\"x\":{}", "[".repeat(1_000_000));
    assert_fault!(refused(&header, &[]), Fault::BadHeader { .. });
}

#[test]
fn safetensors_duplicate_names() {
    let entry = r#""q":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
    let escaped = entry.replace("\"q\"", "\"\\u0071\"");
    for header in [
        format!("{{{entry},{entry}}}"),
        format!("{{{entry},{escaped}}}"),
        r#"{"__metadata__":{},"__metadata__":{}}"#.to_string(),
        r#"{"__metadata__":{"a":"1","a":"2"}}"#.to_string(),
    ] {
        assert_fault!(refused(&header, &[]), Fault::DuplicateName { .. });
    }
    let twice = r#"{"q":{"dtype":"U8","dtype":"I8","shape":[0],"data_offsets":[0,0]}}"#;
    assert_fault!(refused(twice, &[]), Fault::BadHeader { .. });
}

#[test]
fn safetensors_metadata_not_strings() {
    for metadata in ["1", "[]", "{\"a\":1}", "{\"a\":null}", "{\"a\":{}}"] {
        assert_fault!(refused(&format!("{{\"__metadata__\":{metadata}}}"), &[]), Fault::BadHeader { .. });
    }
}

#[test]
fn safetensors_dtypes_that_are_not_read() {
    for dtype in ["F8_E4M3", "F8_E5M2", "F4", "C64", "f32", "FOO", ""] {
        let header = format!(
            r#"{{"a":{{"dtype":"U8","shape":[1],"data_offsets":[1,2]}},
            "q":{{"dtype":"{dtype}","shape":[1],"data_offsets":[0,1]}}}}"#
        );
        let error = refused(&header, &[0; 2]);
        assert_eq!(error.array(), Some("q"));
        assert_fault!(error, Fault::UnsupportedDtype { found } if found == dtype);

        // It does not stand in the way of the others.
        let only = ReadOptions::new().only(["a"]);
        let bundle = read_bytes(safetensors(&header, &[0; 2]), Format::Safetensors, &only).unwrap();
        assert_eq!(bundle.names().collect::<Vec<_>>(), ["a"]);
    }
}

#[test]
fn safetensors_bool_other_than_0_and_1() {
    let error = refused(r#"{"m":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}"#, &[1, 0, 3]);
    assert_fault!(error, Fault::BadBool { index: 2, value: 3 });
}

#[test]
fn safetensors_empty_arrays_are_arrays() {
    for shape in ["[0]", "[2,0,4]"] {
        let header = format!(
            r#"{{"e":{{"dtype":"F32","shape":{shape},"data_offsets":[0,0]}},
            "q":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}},
            "z":{{"dtype":"F64","shape":{shape},"data_offsets":[4,4]}}}}"#
        );
        let bundle = accepted(&header, &[0; 4]);
        assert!(bundle.get("e").unwrap().is_empty() && bundle.get("z").unwrap().is_empty());
        assert_eq!(bundle.get("q").unwrap().len(), 1);
    }
    assert!(accepted("{}", &[]).arrays.is_empty());
}

#[test]
fn safetensors_array_that_is_not_there() {
    let bytes = safetensors(&two("[0,4]", "[4,8]"), &[0; 8]);
    let error = read_bytes(bytes, Format::Safetensors, &ReadOptions::new().only(["a", "q"])).unwrap_err();
    assert_eq!(error.to_string(), "<memory>: has no array \"q\"; it has \"a\", \"b\"");
}
