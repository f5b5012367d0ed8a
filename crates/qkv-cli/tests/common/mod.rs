//! The built command, files for it, and what it said.
#![allow(dead_code, reason = "each test file uses what it needs")]

pub mod served;

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ndarray::{Array, ArrayD, Dimension, ShapeBuilder};
use qkv_io::{Element, ReadOptions, TensorView, WriteOptions};
use serde_json::Value;

/// A file of the tests' data.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// The command, free of what the caller's environment asks for.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qkv"));
    command.env_remove("QKV_SIMD");
    command
}

/// What a run of the command came to.
pub struct Ran {
    pub status: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Self { status: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

impl Ran {
    /// The one JSON object on stdout.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {} {}", self.out, self.err))
    }

    /// Checks that the command refused, in one line that has all these words, and printed no result.
    pub fn refused(&self, words: &[&str]) {
        assert_eq!(self.status, Some(2), "{} {}", self.out, self.err);
        assert_eq!(self.out, "");
        let lines: Vec<_> = self.err.lines().filter(|line| line.starts_with("qkv: error: ")).collect();
        assert_eq!(lines.len(), 1, "{}", self.err);
        for word in words {
            assert!(lines[0].contains(word), "no {word:?} in {}", lines[0]);
        }
    }

    pub fn succeeded(&self) -> &Self {
        assert_eq!(self.status, Some(0), "{} {}", self.out, self.err);
        self
    }
}

/// Runs `qkv` with words that may be paths.
#[macro_export]
macro_rules! qkv {
    ($($word:expr),* $(,)?) => {{
        let mut command = common::command();
        $(command.arg(AsRef::<std::ffi::OsStr>::as_ref(&$word));)*
        common::Ran::from(command.output().expect("the command starts"))
    }};
}

/// Runs `qkv` with nobody to read its stdout: its status, and what it said on stderr.
pub fn unread(words: &[&OsStr]) -> (Option<i32>, String) {
    let mut child = command()
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    drop(child.stdout.take());
    let mut err = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut err).expect("text");
    (child.wait().expect("an end").code(), err)
}

/// A directory for one test's files.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, arrays: &[(&str, TensorView<'_>)]) -> PathBuf {
        self.write_with(name, arrays, &[])
    }

    pub fn write_with(
        &self,
        name: &str,
        arrays: &[(&str, TensorView<'_>)],
        texts: &[(&str, &str)],
    ) -> PathBuf {
        let path = self.path(name);
        let texts = texts.iter().map(|(key, text)| (key.to_string(), text.to_string())).collect();
        qkv_io::write(&path, arrays, &WriteOptions::new().metadata(texts)).expect("written");
        path
    }

    /// The names of the files that are there.
    pub fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).expect("a directory");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

/// Numbers in [-2, 2) that differ from place to place and by `salt`, exact in every float type.
pub fn numbers<D: Dimension, S: ShapeBuilder<Dim = D>>(shape: S, salt: u32) -> Array<f32, D> {
    let mut index = 0u32;
    Array::from_shape_simple_fn(shape, || {
        index += 1;
        let mut h = index.wrapping_mul(2_654_435_761).wrapping_add(salt.wrapping_mul(40_503));
        h = (h ^ (h >> 15)).wrapping_mul(2_246_822_519);
        h = (h ^ (h >> 13)).wrapping_mul(3_266_489_917);
        ((((h ^ (h >> 16)) & 255) as f32) - 128.0) / 64.0
    })
}

/// An array of a file that the command wrote.
pub fn read<T: Element>(path: &Path, name: &str) -> ArrayD<T> {
    let bundle = qkv_io::read(path, &ReadOptions::new().void_as_bf16(true)).expect("a file");
    let names: Vec<_> = bundle.names().map(str::to_string).collect();
    let tensor = bundle.get(name).unwrap_or_else(|| panic!("no {name} in {names:?}"));
    tensor.data::<T>().unwrap_or_else(|| panic!("{name} is {}", tensor.dtype())).view().to_owned()
}
