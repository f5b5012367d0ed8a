//! A file's bytes, shared: mapped where the file is a regular one, read into memory where not.
//!
//! The only `unsafe` of this crate is here. What the bytes mean is the parsers' business.

use crate::{Fault, Format};
use memmap2::Mmap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Enough to tell every format by.
const FIRST_BYTES: u64 = 16;

/// A run of a file's bytes that is cheap to clone and keeps the file mapped while it lives.
#[derive(Clone, Debug)]
pub struct Bytes {
    source: Source,
    range: Range<usize>,
}

#[derive(Clone, Debug)]
enum Source {
    Map(Arc<Mmap>),
    Memory(Arc<Vec<u8>>),
    Static(&'static [u8]),
}

impl Bytes {
    /// Opens a file. A regular file is mapped; a pipe or a device is read to its end.
    pub(crate) fn open(path: &Path) -> Result<Self, Fault> {
        let failed = |action| move |source| Fault::Io { action, source };
        let mut file = File::open(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => Fault::NotFound,
            _ => Fault::Io { action: "open", source },
        })?;
        let about = file.metadata().map_err(failed("open"))?;
        if about.is_dir() {
            return Err(Fault::IsDirectory);
        }
        // Files that the system makes up, as in /proc, are regular, claim to be empty and cannot be mapped.
        let bytes = if about.is_file() && about.len() > 0 { map(&file) } else { None };
        let bytes = match bytes {
            Some(bytes) => bytes,
            None => {
                // A device may have no end: the first bytes say whether it holds arrays at all.
                let mut bytes = Vec::new();
                file.by_ref().take(FIRST_BYTES).read_to_end(&mut bytes).map_err(failed("read"))?;
                if !bytes.is_empty() && !Format::is_any(&bytes) {
                    return Err(Fault::UnknownFormat);
                }
                file.read_to_end(&mut bytes).map_err(failed("read"))?;
                bytes.into()
            }
        };
        if bytes.as_ref().is_empty() { Err(Fault::Empty) } else { Ok(bytes) }
    }

    /// The part `range`, counted from the start of these bytes.
    ///
    /// # Panics
    /// If the range does not lie within them.
    pub(crate) fn slice(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.range.len(),
            "a slice of bytes must lie within them"
        );
        let start = self.range.start;
        Bytes { source: self.source.clone(), range: start + range.start..start + range.end }
    }
}

/// Maps a file; `None` where the file system cannot.
fn map(file: &File) -> Option<Bytes> {
    // SAFETY: a map is undefined behaviour only if the file changes under it. This crate never changes a file in
    // place (it replaces whole files by renaming), every dtype that is viewed in the map is valid for any bytes,
    // and `read` documents that other programs must not change the file while it is in use.
    let map = unsafe { Mmap::map(file) }.ok()?;
    let range = 0..map.len();
    Some(Bytes { source: Source::Map(Arc::new(map)), range })
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        let whole: &[u8] = match &self.source {
            Source::Map(map) => map,
            Source::Memory(bytes) => bytes,
            Source::Static(bytes) => bytes,
        };
        &whole[self.range.clone()]
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Bytes { source: Source::Memory(Arc::new(bytes)), range }
    }
}

impl From<&'static [u8]> for Bytes {
    fn from(bytes: &'static [u8]) -> Self {
        Bytes { source: Source::Static(bytes), range: 0..bytes.len() }
    }
}

impl<const N: usize> From<&'static [u8; N]> for Bytes {
    fn from(bytes: &'static [u8; N]) -> Self {
        Bytes::from(bytes.as_slice())
    }
}
