//! Reading: from a path or from bytes, by format, to named arrays.

use crate::{Bytes, Error, Fault, Format, Tensor, WriteOptions, npy, npz, safetensors, write_bytes};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// How to read a file.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    void_as_bf16: bool,
    only: Option<Vec<String>>,
}

impl ReadOptions {
    /// Reads every array, and none of unclear type.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether 2-byte voids in `.npy` and `.npz` files are bfloat16. NumPy has no bfloat16 of its own and saves one as
    /// `<V2`; without this such a file is refused.
    pub fn void_as_bf16(mut self, yes: bool) -> Self {
        self.void_as_bf16 = yes;
        self
    }

    /// Reads only the arrays of these names from `.npz` and `.safetensors` files. The others are not inflated, and
    /// may have dtypes that are not supported. A `.npy` file has one array, which is read whatever its name.
    pub fn only<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.only = Some(names.into_iter().map(Into::into).collect());
        self
    }

    pub(crate) fn void_means_bf16(&self) -> bool {
        self.void_as_bf16
    }
}

/// The arrays of a file, by name and in the file's order, and its metadata.
#[derive(Clone, Debug, Default)]
pub struct Bundle {
    /// Each array with its name; no two have the same.
    pub arrays: Vec<(String, Tensor)>,
    /// The texts that a safetensors file has under `__metadata__`; empty for other formats.
    pub metadata: BTreeMap<String, String>,
}

impl Bundle {
    /// The array of this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.arrays.iter().find(|(own, _)| own == name).map(|(_, tensor)| tensor)
    }

    /// The names of the arrays.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.arrays.iter().map(|(name, _)| name.as_str())
    }
}

/// Reads a file of arrays. The format is told by the name's ending, and must agree with the first bytes; if the name
/// tells nothing, the first bytes decide. The one array of a `.npy` file is named after the file, without `.npy`.
///
/// A regular file is mapped and stays so while any of its arrays lives. No other program may shorten or change it in
/// that time: the numbers would change, and touching a part that is gone ends the process. Replacing the file by
/// renaming another over it, as [`crate::write`] does, is safe.
///
/// # Errors
/// If the file cannot be opened, is not of a known format, is damaged, or has an array of a dtype that is not
/// supported (among those that `options` ask for). The [`Error`] names the file, and the array if it is one of several.
pub fn read(path: impl AsRef<Path>, options: &ReadOptions) -> Result<Bundle, Error> {
    File::open(path)?.read(options)
}

/// A file that is open: it may be read more than once, and saved under another name. Where another file has replaced it since,
/// it is still the one that was opened.
#[derive(Clone, Debug)]
pub struct File {
    path: PathBuf,
    bytes: Bytes,
}

impl File {
    /// Opens a file; [`read()`] says what must not happen to it from then on.
    ///
    /// # Errors
    /// If it cannot be opened, or is empty.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let bytes = Bytes::open(path).map_err(|fault| Error::new(path, fault))?;
        Ok(File { path: path.to_path_buf(), bytes })
    }

    /// The name that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its arrays, all from the one place in memory.
    ///
    /// # Errors
    /// As [`read()`], but for what opening says.
    pub fn read(&self, options: &ReadOptions) -> Result<Bundle, Error> {
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let format = Format::detect(&self.path, self.bytes.as_ref());
        let bundle = format.and_then(|format| parse(&self.bytes, format, &stem, options));
        bundle.map_err(|fault| Error::new(&self.path, fault))
    }

    /// Copies it, as [`write()`](crate::write()) writes arrays: the copy appears complete or not at all. Metadata of `options` is
    /// not looked at.
    ///
    /// # Errors
    /// As [`write()`](crate::write()), for what depends on the target alone.
    pub fn copy(&self, path: impl AsRef<Path>, options: &WriteOptions<'_>) -> Result<(), Error> {
        write_bytes(path, self.bytes.as_ref(), options)
    }
}

/// Reads arrays from bytes in memory: a `Vec<u8>`, or `include_bytes!`. The one array of a `.npy` file is named
/// `arr_0`, as NumPy names arrays without one.
///
/// # Errors
/// As [`read`], with `<memory>` for the file's name.
pub fn read_bytes(bytes: impl Into<Bytes>, format: Format, options: &ReadOptions) -> Result<Bundle, Error> {
    parse(&bytes.into(), format, "arr_0", options).map_err(Error::in_memory)
}

fn parse(bytes: &Bytes, format: Format, npy_name: &str, options: &ReadOptions) -> Result<Bundle, Fault> {
    if bytes.as_ref().is_empty() {
        return Err(Fault::Empty);
    }
    let (arrays, metadata) = match format {
        Format::Npy => {
            let (data, layout) = npy::read(bytes, options.void_as_bf16)?;
            (vec![(npy_name.to_string(), Tensor::new(data, &layout)?)], BTreeMap::new())
        }
        Format::Npz => (npz::read(bytes, options)?, BTreeMap::new()),
        Format::Safetensors => safetensors::read(bytes, options)?,
    };
    Ok(Bundle { arrays, metadata })
}

/// The places in `names` of the arrays that were asked for, in the file's order. Fails if one of them is not there.
pub(crate) fn selected(names: &[String], options: &ReadOptions) -> Result<Vec<usize>, Fault> {
    let Some(only) = &options.only else {
        return Ok((0..names.len()).collect());
    };
    let present: HashSet<&String> = names.iter().collect();
    if let Some(name) = only.iter().find(|name| !present.contains(name)) {
        return Err(Fault::NoSuchArray { name: name.clone(), present: names.to_vec() });
    }
    let wanted: HashSet<&String> = only.iter().collect();
    Ok((0..names.len()).filter(|&index| wanted.contains(&names[index])).collect())
}
