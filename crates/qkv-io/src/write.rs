//! Writing: a file appears under its name complete or not at all.
//!
//! The arrays go to a temporary file in the target's directory, which is brought to the disk and then renamed over the
//! target. Whatever fails on the way, the temporary file is removed and a file that was there before stays as it was;
//! one that is mapped keeps its bytes even when it is replaced.

use crate::element::Element;
use crate::layout::Layout;
use crate::tensor::for_any;
use crate::{Error, Fault, Format, TensorView, npy, npz, safetensors};
use ndarray::{ArrayViewD, s};
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Bytes between two looks at whether to stop.
const BLOCK_BYTES: usize = 1 << 20;

/// A question that is asked while writing: stop?
pub(crate) type Cancelled<'a> = Option<&'a dyn Fn() -> bool>;

/// How to write a file.
#[derive(Clone, Default)]
pub struct WriteOptions<'a> {
    pub(crate) metadata: BTreeMap<String, String>,
    cancelled: Cancelled<'a>,
}

impl<'a> WriteOptions<'a> {
    /// No metadata, and nothing that interrupts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Texts to keep beside the arrays, which only `.safetensors` can.
    pub fn metadata(mut self, metadata: BTreeMap<String, String>) -> Self {
        self.metadata = metadata;
        self
    }

    /// A question asked before each block of 1 MiB and before the file gets its name; once it answers true, writing
    /// ends in [`Fault::Cancelled`] and leaves nothing behind.
    pub fn cancelled(mut self, question: &'a dyn Fn() -> bool) -> Self {
        self.cancelled = Some(question);
        self
    }
}

/// Writes arrays, in the order given, to a file whose name ends in `.npy` (exactly one array, whose name is not
/// kept), `.npz` (stored, not deflated) or `.safetensors`.
///
/// Elements are written as the views read, whatever their strides, in C order and little-endian; bf16 in `.npy` and
/// `.npz` becomes `<V2`, NumPy's way. A contiguous view is written from where it is; any other passes through a buffer
/// of 1 MiB.
///
/// The file appears complete or not at all, with the mode of the file it replaces or else the usual one. Where `path`
/// is a symbolic link, the file that it leads to is replaced.
///
/// # Errors
/// If the name tells no format, the arrays do not suit it, the directory is missing, the target is not a regular file or is read-only,
/// the system refuses, or [`WriteOptions::cancelled`] says so. The file that was there before is then untouched.
pub fn write(
    path: impl AsRef<Path>,
    arrays: &[(&str, TensorView<'_>)],
    options: &WriteOptions<'_>,
) -> Result<(), Error> {
    let path = path.as_ref();
    write_file(path, arrays, options).map_err(|fault| Error::new(path, fault))
}

/// Whether a file could be written there: asked before long work, so that it is not done in vain. Leaves nothing behind.
///
/// # Errors
/// As [`write()`], for what depends on the target alone.
pub fn check_target(path: impl AsRef<Path>) -> Result<(), Error> {
    let path = path.as_ref();
    let target = Target::of(path).and_then(|target| target.temporary());
    target.map(drop).map_err(|fault| Error::new(path, fault))
}

fn write_file(
    path: &Path,
    arrays: &[(&str, TensorView<'_>)],
    options: &WriteOptions<'_>,
) -> Result<(), Fault> {
    let format = Format::of_name(path).ok_or(Fault::UnknownFormat)?;
    check_arrays(arrays, format, options)?;
    whole_or_not_at_all(path, options, |output| match (format, arrays) {
        (Format::Npy, [(_, view)]) => {
            output.file.write_all(&npy::header_of(view)).map_err(Output::failed)?;
            write_elements(&mut output.file, view, options.cancelled)
        }
        (Format::Npy, _) => Err(Fault::NotOneArray { count: arrays.len() }),
        (Format::Npz, _) => npz::write(output, arrays),
        (Format::Safetensors, _) => safetensors::write(output, arrays, &options.metadata),
    })
}

/// Writes bytes of any kind, as [`write()`] writes arrays: the file appears complete or not at all. Metadata is not looked at.
///
/// # Errors
/// As [`write()`], for what depends on the target alone.
pub fn write_bytes(path: impl AsRef<Path>, bytes: &[u8], options: &WriteOptions<'_>) -> Result<(), Error> {
    let path = path.as_ref();
    let written =
        whole_or_not_at_all(path, options, |output| write_slice(&mut output.file, bytes, options.cancelled));
    written.map_err(|fault| Error::new(path, fault))
}

pub(crate) fn whole_or_not_at_all(
    path: &Path,
    options: &WriteOptions<'_>,
    write: impl FnOnce(&mut Output<'_>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let target = Target::of(path)?;
    let temporary = target.temporary()?;
    let mut output = Output { file: BufWriter::new(temporary.as_file()), cancelled: options.cancelled };
    write(&mut output)?;
    output.file.flush().map_err(Output::failed)?;
    drop(output);
    temporary.as_file().sync_all().map_err(Output::failed)?;
    check_cancelled(options.cancelled)?;
    target.replace(temporary)
}

/// What does not depend on the target: that the arrays and the metadata suit the format.
fn check_arrays(
    arrays: &[(&str, TensorView<'_>)],
    format: Format,
    options: &WriteOptions<'_>,
) -> Result<(), Fault> {
    if format == Format::Npy && arrays.len() != 1 {
        return Err(Fault::NotOneArray { count: arrays.len() });
    }
    if !format.has_metadata() && !options.metadata.is_empty() {
        return Err(Fault::NoMetadata { format });
    }
    arrays.iter().try_for_each(|(name, view)| check_array(name, view))
}

/// That an array of this shape can be in a file.
pub(crate) fn check_array(name: &str, view: &TensorView<'_>) -> Result<(), Fault> {
    let shape: Vec<u64> = view.shape().iter().map(|&length| length as u64).collect();
    Layout::new(view.dtype(), &shape).map(drop).map_err(|fault| fault.in_array(name))
}

/// Checks that names differ, and asks `reason` why the format cannot hold one.
pub(crate) fn check_names<'n>(
    names: impl IntoIterator<Item = &'n str>,
    format: Format,
    reason: impl Fn(&str) -> Option<&'static str>,
) -> Result<(), Fault> {
    let mut seen = HashSet::new();
    for name in names {
        if let Some(reason) = reason(name) {
            return Err(Fault::BadName { name: name.to_string(), format, reason });
        }
        if !seen.insert(name) {
            return Err(Fault::DuplicateName { name: name.to_string() });
        }
    }
    Ok(())
}

/// The temporary file while it is written, and the question whether to go on.
pub(crate) struct Output<'a> {
    pub file: BufWriter<&'a File>,
    pub cancelled: Cancelled<'a>,
}

impl Output<'_> {
    /// The fault of a write that failed.
    pub fn failed(source: io::Error) -> Fault {
        Fault::Io { action: "write", source }
    }

    /// Writes the next `bytes` of a file.
    pub fn copy(&mut self, source: &File, bytes: u64) -> Result<(), Fault> {
        let mut left = bytes;
        while left > 0 {
            check_cancelled(self.cancelled)?;
            let block = left.min(BLOCK_BYTES as u64);
            let copied = io::copy(&mut source.take(block), &mut self.file).map_err(Self::failed)?;
            if copied < block {
                return Err(Self::failed(io::ErrorKind::UnexpectedEof.into()));
            }
            left -= block;
        }
        Ok(())
    }
}

/// Where the file is to appear.
pub(crate) struct Target {
    path: PathBuf,
    pub directory: PathBuf,
    /// The permissions of the file that is there.
    permissions: Option<fs::Permissions>,
}

impl Target {
    pub fn of(path: &Path) -> Result<Self, Fault> {
        // Through links, so that what they lead to is replaced and not the link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let permissions = match fs::metadata(&path) {
            Ok(about) if about.is_dir() => return Err(Fault::IsDirectory),
            Ok(about) if !about.is_file() => return Err(Fault::NotRegular),
            Ok(about) if about.permissions().readonly() => return Err(Fault::ReadOnly),
            Ok(about) => Some(about.permissions()),
            Err(_) => None,
        };
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        if !directory.is_dir() {
            return Err(Fault::NoDirectory { directory: directory.display().to_string() });
        }
        Ok(Target { path, directory, permissions })
    }

    /// A new file beside the target; removed when dropped, until it is renamed.
    fn temporary(&self) -> Result<NamedTempFile, Fault> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".qkv-").suffix(".tmp");
        // Otherwise it would be the owner's alone, as temporary files are; the umask takes its part off.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let failed = |source| Fault::Io { action: "create a file in its directory", source };
        let temporary = builder.tempfile_in(&self.directory).map_err(failed)?;
        if let Some(permissions) = &self.permissions {
            temporary.as_file().set_permissions(permissions.clone()).map_err(failed)?;
        }
        Ok(temporary)
    }

    fn replace(&self, temporary: NamedTempFile) -> Result<(), Fault> {
        let failed = |source| Fault::Io { action: "rename the finished file to its name", source };
        temporary.persist(&self.path).map_err(|error| failed(error.error))?;
        // The rename itself reaches the disk with the directory. Not every system can do this, and the file is whole
        // either way, so a refusal is no error.
        if let Ok(directory) = File::open(&self.directory) {
            let _ = directory.sync_all();
        }
        Ok(())
    }
}

fn check_cancelled(cancelled: Cancelled<'_>) -> Result<(), Fault> {
    match cancelled {
        Some(question) if question() => Err(Fault::Cancelled),
        _ => Ok(()),
    }
}

/// Writes the elements as the view reads, in C order and little-endian.
pub(crate) fn write_elements(
    out: &mut impl Write,
    view: &TensorView<'_>,
    cancelled: Cancelled<'_>,
) -> Result<(), Fault> {
    for_any!(TensorView, view, view => write_typed(out, view, cancelled))
}

fn write_typed<T: Element>(
    out: &mut impl Write,
    view: &ArrayViewD<'_, T>,
    cancelled: Cancelled<'_>,
) -> Result<(), Fault> {
    if let Some(elements) = view.as_slice() {
        return write_slice(out, elements, cancelled);
    }
    let room = BLOCK_BYTES / size_of::<T>();
    let mut block = Vec::with_capacity(room.min(view.len()));
    for row in view.rows() {
        // Mostly heads or positions are strided and rows are not: those are copied as a whole.
        let whole = row.as_slice();
        for start in (0..row.len()).step_by(room) {
            let part = start..row.len().min(start + room);
            if block.len() + part.len() > room {
                write_slice(out, &block, cancelled)?;
                block.clear();
            }
            match whole {
                Some(row) => block.extend_from_slice(&row[part]),
                None => block.extend(row.slice(s![part])),
            }
        }
    }
    write_slice(out, &block, cancelled)
}

fn write_slice<T: Element>(
    out: &mut impl Write,
    elements: &[T],
    cancelled: Cancelled<'_>,
) -> Result<(), Fault> {
    for block in T::bytes(elements).chunks(BLOCK_BYTES) {
        check_cancelled(cancelled)?;
        if cfg!(target_endian = "big") {
            let mut block = block.to_vec();
            block.chunks_exact_mut(size_of::<T>()).for_each(<[u8]>::reverse);
            out.write_all(&block).map_err(Output::failed)?;
        } else {
            out.write_all(block).map_err(Output::failed)?;
        }
    }
    Ok(())
}
