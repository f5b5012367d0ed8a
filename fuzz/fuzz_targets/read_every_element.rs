//! What the `read_*` targets do with the bytes they are given: read them, and touch every element that came of it.

use qkv_io::{Format, ReadOptions, TensorView, read_bytes};
use std::hint::black_box;

/// Reads `data` as a file of this format. Either there is an error, or each array is all there.
pub fn read_every_element(data: &[u8], format: Format) {
    let options = ReadOptions::new().void_as_bf16(true);
    let Ok(bundle) = read_bytes(data.to_vec(), format, &options) else {
        return;
    };
    for (name, tensor) in &bundle.arrays {
        macro_rules! count {
            ($($variant:ident),*) => {
                match tensor.view() {
                    $(TensorView::$variant(view) => view.iter().map(|element| { black_box(*element); }).count(),)*
                }
            };
        }
        let count = count!(Bool, I8, I16, I32, I64, U8, U16, U32, U64, F16, Bf16, F32, F64);
        assert_eq!(count, tensor.len(), "{name:?}");
        assert_eq!(bundle.names().filter(|other| other == name).count(), 1, "{name:?}");
    }
}
