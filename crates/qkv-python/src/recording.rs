//! Recordings, as files: arrays that Python hands over one after the other in one `.safetensors` file; such a file opened, with the
//! names of its arrays, and copies of it. What they are called and what metadata says is Python's.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use qkv_io::{File, ReadOptions, TensorView, WriteOptions};

use crate::array::with_number;
use crate::error::of_file;
use crate::source;

/// A `.safetensors` file that arrays are appended to, which appears under its name when it is finished, whole or not at all. One that
/// is not finished leaves nothing behind.
#[pyclass(module = "qkv._qkv")]
pub struct StreamWriter {
    /// Until it is finished.
    file: Option<qkv_io::StreamWriter>,
}

#[pymethods]
impl StreamWriter {
    #[new]
    fn new(path: PathBuf) -> PyResult<Self> {
        Ok(Self { file: Some(qkv_io::StreamWriter::create(path).map_err(of_file)?) })
    }

    /// Appends an array of float32, float64, float16 or bfloat16, of any strides, from where it lies.
    fn push(&mut self, name: &str, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let array = source::read("array", array)?;
        if !array.is_floating() {
            return Err(array.wrong_dtype("float32, float64, float16 or bfloat16"));
        }
        let py = array.object().py();
        let file = self.file.as_mut().ok_or_else(is_finished)?;
        with_number!(array, T => {
            let view = TensorView::from(array.numbers::<T>()?);
            py.detach(|| file.push(name, &view)).map_err(of_file)
        })
    }

    /// Gives the disk back what was pushed, for a file that is not to be finished.
    fn discard(&mut self) {
        self.file = None;
    }

    /// Gives arrays their last names, where they are pushed by others, and writes the file.
    #[pyo3(signature = (metadata, names = HashMap::new()))]
    #[pyo3(text_signature = "($self, metadata, names={})")]
    fn finish(
        &mut self,
        py: Python<'_>,
        metadata: BTreeMap<String, String>,
        names: HashMap<String, String>,
    ) -> PyResult<()> {
        let mut file = self.file.take().ok_or_else(is_finished)?;
        file.rename(|name| names.get(name).map_or(name, String::as_str).to_string());
        interruptible(py, |options| file.finish(&options.metadata(metadata)))
    }
}

fn is_finished() -> PyErr {
    PyRuntimeError::new_err("the file is finished already")
}

/// A file of arrays that is open: what is done with it is done with what it held then, whatever takes its name.
#[pyclass(frozen, module = "qkv._qkv")]
pub struct ArrayFile {
    pub file: File,
}

#[pymethods]
impl ArrayFile {
    #[new]
    fn new(path: PathBuf) -> PyResult<Self> {
        Ok(Self { file: File::open(path).map_err(of_file)? })
    }

    /// The names of its arrays, in its order.
    fn names(&self) -> PyResult<Vec<String>> {
        let bundle = self.file.read(&ReadOptions::new()).map_err(of_file)?;
        Ok(bundle.names().map(str::to_string).collect())
    }

    /// Copies it: the copy appears whole or not at all.
    fn copy(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        interruptible(py, |options| self.file.copy(path, &options))
    }
}

/// Writes a file, which appears whole or not at all.
pub fn write_file(py: Python<'_>, path: PathBuf, bytes: &[u8]) -> PyResult<()> {
    interruptible(py, |options| qkv_io::write_bytes(path, bytes, &options))
}

/// Runs work that a signal's handler may interrupt by raising, as Ctrl-C does.
fn interruptible(
    py: Python<'_>,
    work: impl FnOnce(WriteOptions<'_>) -> Result<(), qkv_io::Error> + Send,
) -> PyResult<()> {
    let interrupt = Mutex::new(None);
    let is_interrupted = || {
        let raised = Python::attach(|py| py.check_signals()).err();
        let stop = raised.is_some();
        if let (Some(raised), Ok(mut interrupt)) = (raised, interrupt.lock()) {
            *interrupt = Some(raised);
        }
        stop
    };
    let result = py.detach(|| work(WriteOptions::new().cancelled(&is_interrupted)));
    match interrupt.into_inner() {
        Ok(Some(raised)) => Err(raised),
        _ => result.map_err(of_file),
    }
}
