//! What the tests share: files made by hand, byte by byte.

#![allow(dead_code, reason = "each test binary uses some of it")]

use qkv_io::{Error, Format, ReadOptions, TensorView, read_bytes};
use std::io::{Cursor, Write};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// A `.npy` file with this header text, unpadded.
pub fn npy(version: (u8, u8), text: &str, data: &[u8]) -> Vec<u8> {
    let mut file = b"\x93NUMPY".to_vec();
    file.extend([version.0, version.1]);
    match version {
        (1, _) => file.extend((text.len() as u16).to_le_bytes()),
        _ => file.extend((text.len() as u32).to_le_bytes()),
    }
    file.extend(text.as_bytes());
    file.extend(data);
    file
}

/// A `.npy` file of version 1 in C order.
pub fn npy_of(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    npy((1, 0), &format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"), data)
}

/// A safetensors file with this header.
pub fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

/// A zip archive of these members.
pub fn zipped(method: CompressionMethod, members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content) in members {
        archive.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
        archive.write_all(content).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

/// The error of reading these bytes.
pub fn refusal(bytes: impl Into<Vec<u8>>, format: Format) -> Error {
    match read_bytes(bytes.into(), format, &ReadOptions::new()) {
        Err(error) => {
            let message = error.to_string();
            assert!(message.starts_with("<memory>: ") && message.len() < 400, "{message}");
            error
        }
        Ok(bundle) => panic!("was read as {bundle:?}"),
    }
}

/// Shape and elements in C order, as little-endian bytes: equal for arrays that are bit for bit the same.
pub fn logical(view: &TensorView<'_>) -> (String, Vec<usize>, Vec<u8>) {
    macro_rules! bytes {
        ($($variant:ident: $to_bytes:expr),*) => {
            match view {
                $(TensorView::$variant(array) => array.iter().flat_map($to_bytes).collect(),)*
            }
        };
    }
    let bytes = bytes!(
        Bool: |x| [u8::from(*x)], I8: |x| x.to_le_bytes(), I16: |x| x.to_le_bytes(), I32: |x| x.to_le_bytes(),
        I64: |x| x.to_le_bytes(), U8: |x| x.to_le_bytes(), U16: |x| x.to_le_bytes(), U32: |x| x.to_le_bytes(),
        U64: |x| x.to_le_bytes(), F16: |x| x.to_le_bytes(), Bf16: |x| x.to_le_bytes(), F32: |x| x.to_le_bytes(),
        F64: |x| x.to_le_bytes()
    );
    (view.dtype().to_string(), view.shape().to_vec(), bytes)
}

/// Fails unless the error's fault fits the pattern.
#[macro_export]
macro_rules! assert_fault {
    ($error:expr, $pattern:pat $(if $guard:expr)?) => {{
        let error = $error;
        assert!(matches!(error.fault(), $pattern $(if $guard)?), "{error} ({:?})", error.fault());
    }};
}
