//! The `.npy` format: magic, version, header length, header text, then the elements.
//!
//! ```text
//! \x93NUMPY  major minor  length (2 bytes in version 1, 4 after it)  text  elements
//! ```
//!
//! The text is [`crate::npy_header`]'s. The crate's own reader, because npyz 0.9 allocates what the header's length
//! field claims, up to 4 GiB, before it looks at the file, and multiplies the shape without a check for overflow.

use crate::error::MAX_HEADER_BYTES;
use crate::layout::Layout;
use crate::npy_header::Header;
use crate::{Bytes, Dtype, Fault, TensorView};

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// Bytes that tell how long the header is, whatever the version.
pub(crate) const PREAMBLE_BYTES: usize = 12;

/// NumPy aligns the elements so; a map of the file then has them aligned too.
pub(crate) const ALIGNMENT: usize = 64;

/// Where the header's text is, from the file's first bytes.
#[derive(Clone, Copy)]
pub(crate) struct Preamble {
    pub text_start: usize,
    pub text_end: usize,
}

impl Preamble {
    /// Reads the fields before the text. `start` is the file's first [`PREAMBLE_BYTES`], or all of a shorter one.
    pub fn parse(start: &[u8]) -> Result<Self, Fault> {
        let cut_short =
            |need| Fault::CutShort { part: "the start of a .npy file", need, have: start.len() as u64 };
        let shared = start.len().min(MAGIC.len());
        if start[..shared] != MAGIC[..shared] {
            return Err(Fault::BadHeader { reason: "a .npy file begins with \"\\x93NUMPY\"".to_string() });
        }
        let &[major, minor] =
            start.get(6..8).and_then(|version| version.try_into().ok()).ok_or(cut_short(8))?;
        let (text_start, length) = match (major, minor) {
            (1, 0) => {
                let field = start.get(8..10).ok_or(cut_short(10))?;
                (10, u64::from(u16::from_le_bytes([field[0], field[1]])))
            }
            (2 | 3, 0) => {
                let field = start.get(8..12).ok_or(cut_short(12))?;
                (12, u64::from(u32::from_le_bytes([field[0], field[1], field[2], field[3]])))
            }
            _ => return Err(Fault::UnknownVersion { major, minor }),
        };
        if length > MAX_HEADER_BYTES {
            return Err(Fault::HeaderTooLong { length });
        }
        Ok(Preamble { text_start, text_end: text_start + length as usize })
    }
}

/// Reads a whole file: its elements' bytes and how they lie.
pub(crate) fn read(file: &Bytes, void_as_bf16: bool) -> Result<(Bytes, Layout), Fault> {
    let bytes = file.as_ref();
    let preamble = Preamble::parse(&bytes[..bytes.len().min(PREAMBLE_BYTES)])?;
    let have = (bytes.len() - preamble.text_start) as u64;
    let need = (preamble.text_end - preamble.text_start) as u64;
    let text = bytes.get(preamble.text_start..preamble.text_end).ok_or(Fault::CutShort {
        part: "the header",
        need,
        have,
    })?;
    let layout = parse_text(text, void_as_bf16)?;
    Ok((file.slice(preamble.text_end..bytes.len()), layout))
}

/// Reads the header's text.
pub(crate) fn parse_text(text: &[u8], void_as_bf16: bool) -> Result<Layout, Fault> {
    let header = Header::parse(text)?;
    if header.descr.trim_start_matches(['<', '>', '=', '|']) == "O" {
        return Err(Fault::Pickled);
    }
    let (dtype, swapped) = Dtype::from_npy_descr(&header.descr, void_as_bf16)?;
    Ok(Layout::new(dtype, &header.shape)?.stored(header.fortran_order, swapped))
}

/// Everything before the elements of an array that is written in C order, little-endian.
pub(crate) fn header_of(view: &TensorView<'_>) -> Vec<u8> {
    let lengths: String = view.shape().iter().map(|length| format!("{length}, ")).collect();
    // Python's way: (), (3,), (3, 4).
    let shape = match view.shape().len() {
        1 => lengths.trim_end(),
        _ => lengths.trim_end_matches(", "),
    };
    let descr = view.dtype().npy_descr();
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    let end = (10 + text.len() + 1).next_multiple_of(ALIGNMENT);
    // 64 axes of 20 digits take less than 1500 bytes, so version 1's two-byte length always suffices.
    let length = (end - 10) as u16;
    let mut header = Vec::with_capacity(end);
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(&[1, 0]);
    header.extend_from_slice(&length.to_le_bytes());
    header.extend_from_slice(text.as_bytes());
    header.resize(end - 1, b' ');
    header.push(b'\n');
    header
}
