//! Which format a file has: by its name, checked against its first bytes.

use crate::Fault;
use std::fmt;
use std::path::Path;

/// A file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// One array, as `numpy.save` writes it.
    Npy,
    /// A zip archive of `.npy` files, as `numpy.savez` and `numpy.savez_compressed` write it.
    Npz,
    /// Named arrays after a JSON header, with metadata.
    Safetensors,
}

impl Format {
    const ALL: [Format; 3] = [Format::Npy, Format::Npz, Format::Safetensors];

    /// The ending of a file name in this format, with its dot.
    pub fn extension(self) -> &'static str {
        match self {
            Format::Npy => ".npy",
            Format::Npz => ".npz",
            Format::Safetensors => ".safetensors",
        }
    }

    /// Whether a file can hold metadata beside its arrays.
    pub fn has_metadata(self) -> bool {
        self == Format::Safetensors
    }

    /// The format that a file's name ends in, in small or capital letters.
    pub fn of_name(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        Self::ALL.into_iter().find(|format| format.extension()[1..] == extension)
    }

    /// Chooses by name, and by the first bytes where the name says nothing.
    ///
    /// Bytes that fit no format are left to the named one's parser, which can say what is missing.
    pub(crate) fn detect(path: &Path, bytes: &[u8]) -> Result<Self, Fault> {
        let found = Self::ALL.into_iter().find(|format| format.fits(bytes));
        match (Self::of_name(path), found) {
            (Some(named), Some(found)) if !named.fits(bytes) => Err(Fault::FormatMismatch { named, found }),
            (Some(named), _) => Ok(named),
            (None, Some(found)) => Ok(found),
            (None, None) => Err(Fault::UnknownFormat),
        }
    }

    /// Whether bytes begin as a file of some format does.
    pub(crate) fn is_any(bytes: &[u8]) -> bool {
        Self::ALL.into_iter().any(|format| format.fits(bytes))
    }

    fn fits(self, bytes: &[u8]) -> bool {
        match self {
            Format::Npy => bytes.starts_with(b"\x93NUMPY"),
            // The second is an archive without members.
            Format::Npz => bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"PK\x05\x06"),
            Format::Safetensors => bytes.get(8) == Some(&b'{'),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.extension())
    }
}
