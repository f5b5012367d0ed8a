//! Recordings, opened to be looked at: what the commands `heads`, `top` and `map` say of a file, as Python's values, and the page.

use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, Ordering};

use numpy::PyArray2;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use qkv_cli::{explore, first_lesson};
use qkv_view::explorer::{
    self, COLUMNS, Choice, Drawing, Entry, Explorer, Failure, Input, KeyRanks, Layer, Line, OF, Opening,
    POOLS, QueryRanks, Ranked, Shown,
};
use qkv_view::page;
use qkv_view::picture;
use qkv_view::server::{Running, Server};

use crate::error::{Stop, of_file};
use crate::options::Given;
use crate::pool;
use crate::recording::ArrayFile;

type Any<'py> = Bound<'py, PyAny>;
/// Layer, head and batch.
type Place<'py> = (Any<'py>, Any<'py>, Any<'py>);
type Dict<'py> = Bound<'py, PyDict>;
type Array<'py> = Bound<'py, PyArray2<f64>>;

/// A recording whose heads can be asked.
#[pyclass(frozen, module = "qkv._qkv")]
pub struct Explored {
    input: Input,
    /// What is odd about it, a sentence each.
    #[pyo3(get)]
    warnings: Vec<String>,
}

#[pymethods]
impl Explored {
    #[new]
    fn new(py: Python<'_>, file: &ArrayFile) -> PyResult<Self> {
        let opened = py.detach(|| explore::recording(&file.file));
        let (input, warnings) = opened.map_err(|error| match error.downcast::<qkv_io::Error>() {
            Ok(error) => of_file(error),
            Err(error) => PyValueError::new_err(format!("{error:#}")),
        })?;
        Ok(Self { input, warnings })
    }

    /// A dict for each head of a batch.
    fn heads<'py>(
        &self,
        py: Python<'py>,
        batch: &Any<'py>,
        first_keys: &Any<'py>,
    ) -> PyResult<Vec<Dict<'py>>> {
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
    fn query<'py>(
        &self,
        py: Python<'py>,
        place: Place<'py>,
        query: &Any<'py>,
        count: &Any<'py>,
    ) -> PyResult<Dict<'py>> {
        let (layer, head, batch) = self.place(&place)?;
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
    fn key<'py>(
        &self,
        py: Python<'py>,
        place: Place<'py>,
        key: &Any<'py>,
        count: &Any<'py>,
    ) -> PyResult<Dict<'py>> {
        let (layer, head, batch) = self.place(&place)?;
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

    /// The numbers of a map, and the map as SVG if a picture is asked for.
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn map<'py>(
        &self,
        py: Python<'py>,
        place: Place<'py>,
        of: &Any<'py>,
        pool: &Any<'py>,
        size: &Any<'py>,
        queries: Option<Any<'py>>,
        keys: Option<Any<'py>>,
        picture: bool,
    ) -> PyResult<(Array<'py>, Option<String>)> {
        let (layer, head, batch) = self.place(&place)?;
        let facts = layer.facts();
        let drawing = Drawing {
            batch,
            head,
            shown: Shown { of: chosen("of", of, &OF)?, pool: chosen("pool", pool, &POOLS)? },
            size: positive("size", size)?,
            queries: range("queries", queries, facts.len_query)?,
            keys: range("keys", keys, facts.len_key)?,
        };
        let (numbers, svg) = watched(py, |stop| {
            let mut report = |_, _| going_on(stop);
            let numbers = layer.see(&drawing.opening(), |head| drawing.numbers(head, Some(&mut report)))?;
            let svg = picture.then(|| drawing.svg(layer, &self.input.title, &numbers));
            Ok((numbers, svg))
        })?;
        Ok((PyArray2::from_owned_array(py, numbers), svg))
    }

    /// The page with all that it shows, as one file.
    fn page(&self, py: Python<'_>) -> PyResult<String> {
        watched(py, |stop| {
            let data = explorer::exported(&self.input, &mut |_, _| going_on(stop))?;
            Ok(page::one_file(&first_lesson()?, &data))
        })
    }

    /// Serves the page, live, on a port of 127.0.0.1.
    fn serve(&self, py: Python<'_>) -> PyResult<Serving> {
        py.detach(|| {
            // One that lives as long as the server.
            let explorer = Explorer::new(self.input.clone());
            let lesson = first_lesson().map_err(|error| PyRuntimeError::new_err(format!("{error:#}")))?;
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

/// An SVG of [`Explored::map`], of so many cells, as PNG.
pub fn png(py: Python<'_>, svg: &str, cells: (usize, usize)) -> PyResult<Vec<u8>> {
    let png = py.detach(|| picture::png(svg, picture::png_scale(cells)));
    png.map_err(|error| PyValueError::new_err(error.to_string()))
}

impl Explored {
    fn place(&self, (layer, head, batch): &Place<'_>) -> PyResult<(&dyn Layer, usize, usize)> {
        let layer = Given::new("layer", layer);
        let number = layer.whole()?.and_then(|number| usize::try_from(number).ok());
        let is_it = |one: &&dyn Layer| number.is_some() && one.facts().layer == number;
        let found = self.input.layers.iter().map(|one| &**one).find(is_it);
        let found = found.ok_or_else(|| layer.wrong_value("one that the recording has"))?;
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

fn chosen<T: Copy>(name: &'static str, value: &Any<'_>, choices: &[Choice<T>]) -> PyResult<T> {
    let given = Given::new(name, value);
    let wanted = || explorer::listed(choices);
    let text = value.cast::<PyString>().map_err(|_| given.wrong_type(&wanted()))?;
    explorer::named(choices, &text.to_cow()?).ok_or_else(|| given.wrong_value(&wanted()))
}

/// An index that there is.
fn below(name: &'static str, value: &Any<'_>, count: usize) -> PyResult<usize> {
    let given = Given::new(name, value);
    let found = given.whole()?.and_then(|index| usize::try_from(index).ok()).filter(|&index| index < count);
    found.ok_or_else(|| match count {
        0 => given.wrong_value("nothing, since there is none"),
        _ => given.wrong_value(&format!("0 to {}", count - 1)),
    })
}

fn positive(name: &'static str, value: &Any<'_>) -> PyResult<usize> {
    let given = Given::new(name, value);
    let found = usize::try_from(given.integer()?).ok().filter(|&number| number > 0);
    found.ok_or_else(|| given.wrong_value("at least 1"))
}

fn range(name: &'static str, value: Option<Any<'_>>, length: usize) -> PyResult<Range<usize>> {
    let Some(value) = value else { return Ok(0..length) };
    let given = Given::new(name, &value);
    let (start, end) = value.extract::<(Any<'_>, Any<'_>)>().map_err(|_| given.wrong_type("(start, end)"))?;
    let [start, end] = [start, end].map(|end| Given::new(name, &end).whole());
    let found = start?.zip(end?).and_then(|(start, end)| {
        Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
            .filter(|range| range.start < range.end && range.end <= length)
    });
    found.ok_or_else(|| given.wrong_value(&format!("(start, end) within 0 to {length}, end not included")))
}
