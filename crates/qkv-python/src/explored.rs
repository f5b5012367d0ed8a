//! Recordings, opened to be looked at: what the commands `heads`, `top` and `map` say of a file, as Python's values, and the page.

use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use numpy::PyArray2;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use qkv::{Of, Pool};
use qkv_cli::explore;
use qkv_view::explorer::{
    self, COLUMNS, Drawing, Entry, Explorer, Failure, Input, KeyRanks, Layer, Line, Opening, QueryRanks,
    Ranked, Shown,
};
use qkv_view::page;
use qkv_view::picture;
use qkv_view::server::{Running, Server};

use crate::error::{Stop, of_file};
use crate::pool;

/// Layer, head and batch.
type Numbers = (i64, i64, i64);
type Dict<'py> = Bound<'py, PyDict>;
type Array<'py> = Bound<'py, PyArray2<f64>>;

/// A recording whose heads can be asked.
#[pyclass(frozen, module = "qkv._qkv")]
pub struct Explored {
    path: PathBuf,
    input: Input,
}

#[pymethods]
impl Explored {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let input = py.detach(|| opened(&path))?;
        Ok(Self { path, input })
    }

    /// A dict for each head of a batch.
    fn heads<'py>(&self, py: Python<'py>, batch: i64, first_keys: i64) -> PyResult<Vec<Dict<'py>>> {
        let batch = below("batch", batch, self.input.batches())?;
        let first_keys = positive("first_keys", first_keys)?;
        let layers = self.input.layers.iter().map(|layer| &**layer);
        let lines =
            watched(py, |stop| explorer::surveyed(layers, batch, first_keys, &mut |_, _| going_on(stop)))?;
        let dict = |line: Line| {
            let dict = PyDict::new(py);
            dict.set_item("layer", line.layer)?;
            dict.set_item("head", line.head)?;
            for (name, entry) in COLUMNS.iter().zip(line.entries) {
                match entry {
                    Entry::Mean(x) => dict.set_item(name, x)?,
                    Entry::Count(count) => dict.set_item(name, count)?,
                    Entry::Nothing => dict.set_item(name, py.None())?,
                }
            }
            Ok(dict)
        };
        lines.into_iter().map(dict).collect()
    }

    /// Whom a query attends.
    fn query<'py>(&self, py: Python<'py>, place: Numbers, query: i64, count: i64) -> PyResult<Dict<'py>> {
        let (layer, head, batch) = self.place(place)?;
        let query = below("query", query, layer.facts().len_query)?;
        let count = positive("count", count)?;
        let place = Opening { batch, head, queries: Some(query..query + 1), stats: None };
        let ranks = watched(py, |_| layer.see(&place, |head| Ok(QueryRanks::new(head, query, count)?)))?;
        let tokens = layer.tokens(batch);
        let dict = PyDict::new(py);
        dict.set_item("query", query)?;
        dict.set_item("token", tokens.query(query))?;
        dict.set_item("mass", ranks.row.mass)?;
        dict.set_item("entropy", ranks.row.entropy)?;
        dict.set_item("effective_keys", ranks.effective_keys())?;
        dict.set_item("distance", ranks.row.distance)?;
        dict.set_item("rest", ranks.rest)?;
        for (name, list) in [("by_weight", &ranks.by_weight), ("by_influence", &ranks.by_influence)] {
            dict.set_item(name, listed(py, list, "key", |key| tokens.key(key))?)?;
        }
        Ok(dict)
    }

    /// Who attends a key.
    fn key<'py>(&self, py: Python<'py>, place: Numbers, key: i64, count: i64) -> PyResult<Dict<'py>> {
        let (layer, head, batch) = self.place(place)?;
        let key = below("key", key, layer.facts().len_key)?;
        let count = positive("count", count)?;
        let place = Opening { batch, head, ..Opening::default() };
        let ranks = watched(py, |stop| {
            let mut report = |_, _| going_on(stop);
            layer.see(&place, |head| Ok(KeyRanks::new(head, key, count, Some(&mut report))?))
        })?;
        let tokens = layer.tokens(batch);
        let dict = PyDict::new(py);
        dict.set_item("key", key)?;
        dict.set_item("token", tokens.key(key))?;
        dict.set_item("received", ranks.received)?;
        dict.set_item("queries", ranks.queries)?;
        dict.set_item("by_weight", listed(py, &ranks.by_weight, "query", |query| tokens.query(query))?)?;
        Ok(dict)
    }

    /// The numbers of a map, and the map as SVG.
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn map<'py>(
        &self,
        py: Python<'py>,
        place: Numbers,
        of: &str,
        pool: &str,
        size: i64,
        queries: Option<(i64, i64)>,
        keys: Option<(i64, i64)>,
    ) -> PyResult<(Array<'py>, String)> {
        let (layer, head, batch) = self.place(place)?;
        let facts = layer.facts();
        let drawing = Drawing {
            batch,
            head,
            shown: shown(of, pool)?,
            size: positive("size", size)?,
            queries: range("queries", queries, facts.len_query)?,
            keys: range("keys", keys, facts.len_key)?,
        };
        let (numbers, svg) = watched(py, |stop| {
            let mut report = |_, _| going_on(stop);
            let numbers = layer.see(&drawing.opening(), |head| drawing.numbers(head, Some(&mut report)))?;
            let svg = drawing.svg(layer, &self.input.title, &numbers);
            Ok((numbers, svg))
        })?;
        Ok((PyArray2::from_owned_array(py, numbers), svg))
    }

    /// The page with all that it shows, as one file.
    fn page(&self, py: Python<'_>) -> PyResult<String> {
        watched(py, |stop| {
            let data = explorer::exported(&self.input, &mut |_, _| going_on(stop))?;
            Ok(page::one_file(&explore::lesson()?, &data))
        })
    }

    /// Serves the page, live, on a port of 127.0.0.1.
    fn serve(&self, py: Python<'_>) -> PyResult<Serving> {
        py.detach(|| {
            // One that lives as long as the server.
            let explorer = Explorer::new(opened(&self.path)?);
            let lesson = explore::lesson().map_err(|error| PyRuntimeError::new_err(format!("{error:#}")))?;
            let server = Server::new(0, &lesson, Some(explorer)).map_err(PyOSError::new_err)?;
            Ok(Serving { url: server.url(), _running: server.start() })
        })
    }
}

/// A page that is served; it ends when this is collected.
#[pyclass(frozen, module = "qkv._qkv")]
pub struct Serving {
    /// Its address, which opens once.
    #[pyo3(get)]
    url: String,
    _running: Running,
}

/// An SVG of [`Explored::map`] as PNG, `scale` pixels for each of its own.
pub fn png(py: Python<'_>, svg: &str, scale: f32) -> PyResult<Vec<u8>> {
    py.detach(|| picture::png(svg, scale)).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn opened(path: &Path) -> PyResult<Input> {
    explore::recording(path).map_err(|error| match error.downcast::<qkv_io::Error>() {
        Ok(error) => of_file(error),
        Err(error) => PyValueError::new_err(format!("{error:#}")),
    })
}

impl Explored {
    fn place(&self, (layer, head, batch): Numbers) -> PyResult<(&dyn Layer, usize, usize)> {
        let own = |one: &dyn Layer| one.facts().layer.and_then(|own| i64::try_from(own).ok());
        let found = self.input.layers.iter().map(|one| &**one).find(|one| own(*one) == Some(layer));
        let found = found.ok_or_else(|| {
            PyValueError::new_err(format!("layer: got {layer}, want one that the recording has"))
        })?;
        let facts = found.facts();
        Ok((found, below("head", head, facts.heads)?, below("batch", batch, facts.batches)?))
    }
}

/// Runs work that a signal's handler may interrupt, while Python runs on.
fn watched<R: Send>(
    py: Python<'_>,
    work: impl FnOnce(&AtomicBool) -> Result<R, Failure> + Send,
) -> PyResult<R> {
    pool::watched(py, None, work)?.map_err(|failure| match failure.downcast::<qkv::Error>() {
        Ok(error) => Stop::Error(*error).raised(&|_| None),
        Err(failure) => PyRuntimeError::new_err(failure.to_string()),
    })
}

fn going_on(stop: &AtomicBool) -> ControlFlow<()> {
    if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

fn listed<'py, 't>(
    py: Python<'py>,
    list: &[Ranked],
    kind: &str,
    token: impl Fn(usize) -> Option<&'t String>,
) -> PyResult<Vec<Dict<'py>>> {
    let dict = |ranked: &Ranked| {
        let dict = PyDict::new(py);
        dict.set_item(kind, ranked.index)?;
        dict.set_item("token", token(ranked.index))?;
        dict.set_item("weight", ranked.weight)?;
        dict.set_item("influence", ranked.influence)?;
        Ok(dict)
    };
    list.iter().map(dict).collect()
}

fn shown(of: &str, pool: &str) -> PyResult<Shown> {
    let wrong = |what: &str, got: &str, wanted: &str| {
        PyValueError::new_err(format!("{what}: got {got:?}, want {wanted}"))
    };
    let of = match of {
        "mask" => Of::Mask,
        "scores" => Of::Scores,
        "scaled" => Of::Scaled,
        "weights" => Of::Weights,
        "influence" => Of::Influence,
        _ => return Err(wrong("of", of, "mask, scores, scaled, weights or influence")),
    };
    let pool = match pool {
        "max" => Pool::Max,
        "mean" => Pool::Mean,
        "sum" => Pool::Sum,
        _ => return Err(wrong("pool", pool, "max, mean or sum")),
    };
    Ok(Shown { of, pool })
}

/// An index that there is.
fn below(what: &str, index: i64, count: usize) -> PyResult<usize> {
    let found = usize::try_from(index).ok().filter(|&index| index < count);
    found.ok_or_else(|| {
        PyValueError::new_err(match count {
            0 => format!("{what}: got {index}, but there is none"),
            _ => format!("{what}: got {index}, want 0 to {}", count - 1),
        })
    })
}

fn positive(what: &str, number: i64) -> PyResult<usize> {
    let found = usize::try_from(number).ok().filter(|&number| number > 0);
    found.ok_or_else(|| PyValueError::new_err(format!("{what}: got {number}, want at least 1")))
}

fn range(what: &str, given: Option<(i64, i64)>, length: usize) -> PyResult<Range<usize>> {
    let Some((start, end)) = given else { return Ok(0..length) };
    let found = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    let found = found.filter(|&(start, end)| start < end && end <= length);
    found.map(|(start, end)| start..end).ok_or_else(|| {
        PyValueError::new_err(format!(
            "{what}: got ({start}, {end}), want (start, end) within 0 to {length}, end not included"
        ))
    })
}
