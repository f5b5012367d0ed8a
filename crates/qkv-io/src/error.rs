//! What can go wrong with a file, in words for the person who has the file.
//!
//! [`Error`] is a [`Fault`] and the file it was found in; the parsers below know only faults, so that no message
//! can forget the file. Each message says what was found and, where it is not plain, what would help.

use crate::{Dtype, Format};
use std::io;
use std::path::Path;

/// Longest header that is read, in bytes: the limit of the safetensors format, kept for `.npy` too.
pub(crate) const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Most axes an array may have: NumPy's own limit.
pub(crate) const MAX_AXES: usize = 64;

/// A file that could not be read or written.
///
/// Displayed as `<file>: <fault>`, where the file is `<memory>` for [`crate::read_bytes`].
#[derive(Debug, thiserror::Error)]
#[error("{file}: {fault}")]
pub struct Error {
    file: String,
    // Not marked as the source: the message has it already, and a chain of causes would say it twice.
    fault: Box<Fault>,
}

impl Error {
    pub(crate) fn new(file: &Path, fault: Fault) -> Self {
        Error { file: file.display().to_string(), fault: Box::new(fault) }
    }

    pub(crate) fn in_memory(fault: Fault) -> Self {
        Error { file: "<memory>".to_string(), fault: Box::new(fault) }
    }

    /// What was wrong; the array's name, if the fault was in one array, is taken off.
    pub fn fault(&self) -> &Fault {
        match &*self.fault {
            Fault::InArray { fault, .. } => fault,
            fault => fault,
        }
    }

    /// The array that the fault was found in, if it was in one.
    pub fn array(&self) -> Option<&str> {
        match &*self.fault {
            Fault::InArray { name, .. } => Some(name),
            _ => None,
        }
    }
}

/// What was wrong with a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The system refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried, as in "cannot read".
        action: &'static str,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// There is no such file.
    #[error("no such file; check the path")]
    NotFound,
    /// The path is a directory.
    #[error("is a directory; name a file in it")]
    IsDirectory,
    /// The target of a write exists and is a device, a pipe or a socket.
    #[error("is not a regular file and cannot be replaced by one; write to a new file name")]
    NotRegular,
    /// The target of a write exists and must not be written.
    #[error("is read-only; make it writable or write to a new file name")]
    ReadOnly,
    /// The target of a write is in a directory that does not exist.
    #[error("its directory {directory} does not exist; create it first")]
    NoDirectory {
        /// The missing directory.
        directory: String,
    },
    /// The file has no bytes.
    #[error("the file is empty")]
    Empty,
    /// Neither the name nor the first bytes are of a known format.
    #[error("not a file of a known format; .npy, .npz and .safetensors are known")]
    UnknownFormat,
    /// The name says one format and the bytes another.
    #[error("is named {named} but holds {found} data; rename it to end in {found}")]
    FormatMismatch {
        /// The format of the file's name.
        named: Format,
        /// The format of its bytes.
        found: Format,
    },
    /// The file ends too early.
    #[error("is cut short: {part} needs {need} bytes and {have} are there; copy or save the file again")]
    CutShort {
        /// What was being read.
        part: &'static str,
        /// Its size in bytes.
        need: u64,
        /// Bytes left in the file.
        have: u64,
    },
    /// The header is longer than any real one.
    #[error("its header claims {length} bytes, above the limit of {MAX_HEADER_BYTES} bytes (100 MB)")]
    HeaderTooLong {
        /// The length that the file gives, in bytes.
        length: u64,
    },
    /// The header cannot be understood.
    #[error("its header is malformed: {reason}")]
    BadHeader {
        /// What was found and what was looked for.
        reason: String,
    },
    /// A version of the `.npy` format that is not known.
    #[error("version {major}.{minor} of the .npy format is not known; 1.0, 2.0 and 3.0 are")]
    UnknownVersion {
        /// First number of the version.
        major: u8,
        /// Second number of the version.
        minor: u8,
    },
    /// Elements of a type that is not read.
    #[error(
        "elements of type {found:?} are not supported; convert them to bool, an integer type, f16, bf16, f32 or f64"
    )]
    UnsupportedDtype {
        /// The type in the format's own words.
        found: String,
    },
    /// Python objects, which only Python can read, by running code from the file.
    #[error("holds pickled Python objects, which are never loaded; save a plain numeric array instead")]
    Pickled,
    /// 2-byte voids, and the caller has not said that they are bf16.
    #[error(
        "elements of type {found:?} have no meaning of their own; if they are bfloat16, read them as such"
    )]
    VoidNeedsMeaning {
        /// The type in NumPy's words.
        found: String,
    },
    /// More elements than a machine can address.
    #[error("its shape {shape:?} of {dtype} needs more bytes than can be addressed")]
    ShapeTooLarge {
        /// The shape that the file gives.
        shape: Vec<u64>,
        /// The type of its elements.
        dtype: Dtype,
    },
    /// More axes than any array has.
    #[error("its shape has more than {MAX_AXES} axes")]
    TooManyAxes,
    /// The data is not as long as the shape says.
    #[error("its shape {shape:?} of {dtype} needs {need} bytes of data and {have} are there; save it again")]
    SizeMismatch {
        /// The shape that the file gives.
        shape: Vec<usize>,
        /// The type of its elements.
        dtype: Dtype,
        /// Bytes that they need.
        need: u64,
        /// Bytes that are there.
        have: u64,
    },
    /// An array's bytes are not within the file's data.
    #[error("its data_offsets [{begin}, {end}] are not a range within the file's {length} bytes of data")]
    BadOffsets {
        /// First byte, as the header has it.
        begin: u64,
        /// Byte after the last, as the header has it.
        end: u64,
        /// Bytes of data that the file has.
        length: u64,
    },
    /// Two arrays share bytes.
    #[error("its data begins at byte {begin}, within the array before it, which ends at {end}")]
    Overlap {
        /// Where this array begins.
        begin: u64,
        /// Where the one before it ends.
        end: u64,
    },
    /// Bytes that belong to no array.
    #[error(
        "bytes {begin} to {end} of its data belong to no array; the file may be damaged or hide something"
    )]
    Gap {
        /// First such byte.
        begin: u64,
        /// Byte after the last.
        end: u64,
    },
    /// Two arrays of one name.
    #[error("two arrays have the name {name:?}; names must differ")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// Two members of a zip archive have one name.
    #[error("two members of the archive have the same name; save it again under different names")]
    DuplicateMember,
    /// A bool that is neither 0 nor 1.
    #[error(
        "element {index} of a bool array has the byte {value}, and a bool is 0 or 1; was it saved as u8?"
    )]
    BadBool {
        /// Where it is, counting elements in the file's order.
        index: usize,
        /// What is there.
        value: u8,
    },
    /// The zip archive around the arrays cannot be read.
    #[error("its zip archive cannot be read: {reason}; copy or save the file again")]
    BadArchive {
        /// The archive reader's words.
        reason: String,
    },
    /// A member of the archive is not a `.npy` file.
    #[error("member {member:?} of the archive is not a .npy file; save it again with only arrays in it")]
    NotAnArray {
        /// The member's name.
        member: String,
    },
    /// A member of the archive is encrypted.
    #[error("is encrypted; save the archive without a password")]
    Encrypted,
    /// A member of the archive is compressed in a way that NumPy does not use.
    #[error("is compressed by {method}; only stored and deflated members are read")]
    UnsupportedCompression {
        /// The method.
        method: String,
    },
    /// The memory for an array was not to be had.
    #[error("no memory for {bytes} bytes; read fewer arrays at once")]
    OutOfMemory {
        /// What was asked for.
        bytes: u64,
    },
    /// The caller asked for an array that is not there.
    #[error("has no array {name:?}; it has {}", listed(.present))]
    NoSuchArray {
        /// The name asked for.
        name: String,
        /// The names that are there.
        present: Vec<String>,
    },
    /// A fault in one array of several.
    #[error("array {name:?}: {fault}")]
    InArray {
        /// The array's name.
        name: String,
        /// What is wrong with it.
        fault: Box<Fault>,
    },
    /// A `.npy` file is one array.
    #[error("a .npy file holds exactly one array, and {count} were given; use .npz or .safetensors")]
    NotOneArray {
        /// How many were to be written.
        count: usize,
    },
    /// The format has no place for metadata.
    #[error("a {format} file has no place for metadata; use .safetensors")]
    NoMetadata {
        /// The format of the file's name.
        format: Format,
    },
    /// A name that the format cannot hold.
    #[error("{name:?} cannot be an array's name in a {format} file: {reason}")]
    BadName {
        /// The name.
        name: String,
        /// The format of the file's name.
        format: Format,
        /// Why not.
        reason: &'static str,
    },
    /// The caller asked to stop, and nothing was left behind.
    #[error("writing was interrupted; nothing was left behind")]
    Cancelled,
}

impl Fault {
    /// Says which array the fault is in.
    pub(crate) fn in_array(self, name: &str) -> Self {
        Fault::InArray { name: name.to_string(), fault: Box::new(self) }
    }
}

fn listed(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("{name:?}")).collect();
    match names.len() {
        0 => "none".to_string(),
        count if count > SHOWN => format!("{} and {} more", shown.join(", "), count - SHOWN),
        _ => shown.join(", "),
    }
}
