//! `FILE[:NAME]`: which array of which file; and arrays by name, whatever the case of its letters.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use qkv_io::{Bundle, Fault, File, Format, ReadOptions, Tensor};

/// A file, and the name of an array in it where one was given.
#[derive(Clone, Debug)]
pub struct Source {
    pub path: PathBuf,
    pub name: Option<String>,
}

impl FromStr for Source {
    type Err = Infallible;

    /// A colon may be part of the path or of the name: the first one counts that comes after an existing file, else
    /// the first after a known ending.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        let whole = Self { path: text.into(), name: None };
        if whole.path.exists() {
            return Ok(whole);
        }
        let splits = || text.match_indices(':').map(|(at, _)| (&text[..at], &text[at + 1..]));
        let split = splits()
            .find(|(path, _)| Path::new(path).is_file())
            .or_else(|| splits().find(|(path, _)| Format::of_name(Path::new(path)).is_some()));
        Ok(split.map_or(whole, |(path, name)| Self { path: path.into(), name: Some(name.into()) }))
    }
}

/// An array, and where it came from in words: `FILE:NAME`.
#[derive(Clone, Debug)]
pub struct Array {
    pub tensor: Arc<Tensor>,
    pub origin: String,
}

/// A file's arrays, which are taken by name.
pub struct Arrays {
    pub file: String,
    pub names: Vec<String>,
    pub bundle: Bundle,
    format: Option<Format>,
}

impl Arrays {
    pub fn open(path: &Path, options: &ReadOptions) -> anyhow::Result<Self> {
        Self::of(&File::open(path)?, options)
    }

    pub fn of(file: &File, options: &ReadOptions) -> anyhow::Result<Self> {
        let bundle = file.read(options).map_err(|error| match error.fault() {
            Fault::VoidNeedsMeaning { .. } => anyhow!("{error}: --as bf16"),
            _ => error.into(),
        })?;
        Ok(Self::new(file.path().display().to_string(), bundle, Format::of_name(file.path())))
    }

    pub fn new(file: String, bundle: Bundle, format: Option<Format>) -> Self {
        let names = bundle.names().map(str::to_string).collect();
        Self { file, names, bundle, format }
    }

    /// Other arrays of the same file.
    pub fn with(&self, bundle: Bundle) -> Self {
        Self::new(self.file.clone(), bundle, self.format)
    }

    /// A `.npy` file, whose one array has no name of its own.
    pub fn is_nameless(&self) -> bool {
        self.format == Some(Format::Npy)
    }

    /// Takes out the array that has one of these names, which are in small letters. A `.npy` file has no names.
    pub fn take(&mut self, names: &[&str]) -> anyhow::Result<Option<Array>> {
        if self.is_nameless() {
            return Ok(None);
        }
        let found: Vec<usize> = (0..self.bundle.arrays.len())
            .filter(|&index| names.contains(&self.bundle.arrays[index].0.to_ascii_lowercase().as_str()))
            .collect();
        match found[..] {
            [] => Ok(None),
            [index] => Ok(Some(self.take_at(index))),
            _ => {
                let found: Vec<_> = found.iter().map(|&index| self.bundle.arrays[index].0.as_str()).collect();
                bail!("{}: which array is meant? It has {}; keep one", self.file, found.join(" and "))
            }
        }
    }

    /// Takes out all weights and biases of a layer of attention.
    pub fn take_layer(&mut self) -> Vec<(String, Array)> {
        let names: Vec<String> =
            self.bundle.names().filter(|name| qkv::is_layer_array(name)).map(str::to_string).collect();
        let taken = names.into_iter().filter_map(|name| {
            let index = self.bundle.arrays.iter().position(|(own, _)| *own == name)?;
            Some((name, self.take_at(index)))
        });
        taken.collect()
    }

    fn take_at(&mut self, index: usize) -> Array {
        let (name, tensor) = self.bundle.arrays.remove(index);
        let origin = if self.is_nameless() { self.file.clone() } else { format!("{}:{name}", self.file) };
        Array { tensor: Arc::new(tensor), origin }
    }

    /// The array that a [`Source`] means: the one it names, else one of `usual` names, else the only one.
    fn take_meant(&mut self, name: Option<&str>, usual: &[&str]) -> anyhow::Result<Array> {
        if let Some(name) = name {
            if let Some(index) = self.bundle.arrays.iter().position(|(own, _)| own == name) {
                return Ok(self.take_at(index));
            }
            if let Some(array) = self.take(&[&name.to_ascii_lowercase()])? {
                return Ok(array);
            }
            bail!("{}: has no array {name:?}; it has {}", self.file, self.list());
        }
        if let Some(array) = self.take(usual)? {
            return Ok(array);
        }
        match self.bundle.arrays.len() {
            1 => Ok(self.take_at(0)),
            _ => bail!("{}: which array is meant? It has {}; say FILE:NAME", self.file, self.list()),
        }
    }

    /// Takes out the only array there is.
    pub fn take_only(&mut self) -> anyhow::Result<Array> {
        self.take_meant(None, &[])
    }

    /// The names, or as many as fit a line.
    pub fn list(&self) -> String {
        const SHOWN: usize = 8;
        match self.names.len() {
            0 => "none".to_string(),
            count if count > SHOWN => {
                format!("{} and {} more", self.names[..SHOWN].join(", "), count - SHOWN)
            }
            _ => self.names.join(", "),
        }
    }
}

/// Reads the array that a [`Source`] means, and gives the file's other arrays and metadata too.
pub fn read(source: &Source, usual: &[&str], options: &ReadOptions) -> anyhow::Result<(Array, Arrays)> {
    let mut arrays = Arrays::open(&source.path, options)?;
    let array = arrays.take_meant(source.name.as_deref(), usual)?;
    Ok((array, arrays))
}
