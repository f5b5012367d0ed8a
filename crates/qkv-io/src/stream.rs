//! Writing arrays as they come, one after the other, when not all of them are in memory at once.
//!
//! Elements go to a file without a name beside the target, which the system takes back whatever happens. Only when all are
//! there is it known what the header says: then header and elements are copied to a temporary file, which replaces the target as
//! in [`write()`](crate::write()). Until then the disk holds the elements twice.

use crate::safetensors::{Arrangement, Entry, arranged};
use crate::write::{Output, Target, check_array, whole_or_not_at_all, write_elements};
use crate::{Error, Fault, Format, TensorView, WriteOptions};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A `.safetensors` file that arrays are appended to. It appears under its name, whole, with [`finish`](Self::finish); one that is
/// dropped before leaves nothing behind.
///
/// ```
/// use qkv_io::{ReadOptions, StreamWriter, WriteOptions, read};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("layers.safetensors");
/// let mut file = StreamWriter::create(&path)?;
/// for layer in 0..3 {
///     let q = ndarray::Array2::from_elem((5, 8), layer as f32);
///     file.push(format!("layers.{layer}.q"), &q.view().into())?;
/// }
/// file.finish(&WriteOptions::new())?;
///
/// assert_eq!(read(&path, &ReadOptions::new())?.names().count(), 3);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct StreamWriter {
    path: PathBuf,
    /// The elements of all arrays, in the order in which they came.
    elements: File,
    entries: Vec<Entry>,
    /// Bytes of elements that are there.
    end: u64,
}

impl StreamWriter {
    /// Makes ready to write to `path`, whose name must end in `.safetensors`. Nothing appears in its directory yet.
    ///
    /// # Errors
    /// If the name ends otherwise, or as [`write()`](crate::write()) for what depends on the target alone.
    pub fn create(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let elements = elements_beside(path).map_err(|fault| Error::new(path, fault))?;
        Ok(StreamWriter { path: path.to_path_buf(), elements, entries: Vec::new(), end: 0 })
    }

    /// Appends an array of any strides: its elements as the view reads, in C order.
    ///
    /// Names are looked at when the file is finished. After an error the array is not in the file, and others may follow.
    ///
    /// # Errors
    /// If its shape has no place in a file, or the system refuses.
    pub fn push(&mut self, name: impl Into<String>, view: &TensorView<'_>) -> Result<(), Error> {
        let entry = Entry {
            name: name.into(),
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            nbytes: view.nbytes(),
        };
        self.append(&entry, view).map_err(|fault| Error::new(&self.path, fault))?;
        self.end += entry.nbytes;
        self.entries.push(entry);
        Ok(())
    }

    /// Gives each array another name, made from the one it has: for those that are not known until all arrays are there.
    pub fn rename(&mut self, name: impl Fn(&str) -> String) {
        for entry in &mut self.entries {
            entry.name = name(&entry.name);
        }
    }

    /// Writes the file: arrays in the order in which they came, and the metadata of `options`, which may also interrupt.
    ///
    /// # Errors
    /// As [`write()`](crate::write()). What was there before is then untouched.
    pub fn finish(self, options: &WriteOptions<'_>) -> Result<(), Error> {
        let written = whole_or_not_at_all(&self.path, options, |output| self.copy(output, options));
        written.map_err(|fault| Error::new(&self.path, fault))
    }

    fn append(&mut self, entry: &Entry, view: &TensorView<'_>) -> Result<(), Fault> {
        check_array(&entry.name, view)?;
        // Over what an array left that could not be written whole.
        self.elements.seek(SeekFrom::Start(self.end)).map_err(Output::failed)?;
        write_elements(&mut self.elements, view, None)
    }

    fn copy(&self, output: &mut Output<'_>, options: &WriteOptions<'_>) -> Result<(), Fault> {
        let Arrangement { head, order } = arranged(&self.entries, &options.metadata)?;
        output.file.write_all(&head).map_err(Output::failed)?;
        let begins: Vec<u64> = self
            .entries
            .iter()
            .scan(0, |end, entry| Some(std::mem::replace(end, *end + entry.nbytes)))
            .collect();
        for index in order {
            let mut elements = &self.elements;
            elements.seek(SeekFrom::Start(begins[index])).map_err(Output::failed)?;
            output.copy(elements, self.entries[index].nbytes)?;
        }
        Ok(())
    }
}

/// A file for elements where the target is to appear, on a disk that has room for both.
fn elements_beside(path: &Path) -> Result<File, Fault> {
    match Format::of_name(path) {
        Some(Format::Safetensors) => {}
        Some(named) => return Err(Fault::FormatMismatch { named, found: Format::Safetensors }),
        None => return Err(Fault::UnknownFormat),
    }
    let directory = Target::of(path)?.directory;
    let failed = |source| Fault::Io { action: "create a file in its directory", source };
    tempfile::tempfile_in(directory).map_err(failed)
}
