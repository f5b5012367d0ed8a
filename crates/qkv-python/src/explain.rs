//! The steps of a call, told with their numbers.

use std::ops::Range;

use ndarray::IxDyn;
use numpy::PyArray;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use qkv::Trace;
use qkv_view::bounds::{self, Order};
use qkv_view::explain::{self, Step};
use qkv_view::row::Row;
use qkv_view::scene::{Scale, Scene, Shapes};
use qkv_view::{show, text};

use crate::array::{Array, Number};
use crate::call::Inputs;
use crate::options::Options;

/// Queries and keys that are shown where it is not said which: what fits 80 columns.
const SHOWN: [usize; 2] = [6, 5];
/// Pairs of query and key whose every intermediate is kept.
const MOST_PAIRS: usize = 1 << 24;

/// What is shown of a call.
pub struct Shown {
    pub batch: usize,
    pub head: usize,
    pub queries: Option<Range<usize>>,
    pub keys: Option<Range<usize>>,
    /// One query, as a weighted sum of all its keys.
    pub row: Option<usize>,
    pub tokens: Option<Vec<String>>,
    pub print: bool,
}

impl Default for Shown {
    fn default() -> Self {
        Self { batch: 0, head: 0, queries: None, keys: None, row: None, tokens: None, print: true }
    }
}

/// One head's rows that are told.
struct Place {
    head: (usize, usize),
    queries: Range<usize>,
    keys: Range<usize>,
}

impl Place {
    fn new(shown: &Shown, shapes: &Shapes) -> PyResult<Self> {
        let (batches, heads) = match shapes.lead.split_last() {
            Some((&heads, batches)) => (batches.iter().product(), heads),
            None => (1, 1),
        };
        let below = |argument: &str, index: usize, count: usize| match index < count {
            true => Ok(()),
            false => {
                let message = format!("{argument}: got {index}, want a number below {count}");
                Err(PyValueError::new_err(message))
            }
        };
        below("batch", shown.batch, batches)?;
        below("head", shown.head, heads)?;
        if let Some(row) = shown.row {
            below("row", row, shapes.len_query)?;
        }
        let within = |argument: &str, range: &Range<usize>, count: usize| {
            if range.start < range.end && range.end <= count {
                return Ok(range.clone());
            }
            let Range { start, end } = range;
            let wanted = format!("a range that is not empty, within (0, {count})");
            Err(PyValueError::new_err(format!("{argument}: got ({start}, {end}), want {wanted}")))
        };
        if let Some(tokens) = shown.tokens.as_ref().filter(|tokens| tokens.len() != shapes.len_key) {
            let (got, wanted) = (tokens.len(), show::count(shapes.len_key, "key"));
            let message = format!("tokens: got {got} of them, want one for each of {wanted}");
            return Err(PyValueError::new_err(message));
        }
        let queries = match (shown.row, &shown.queries) {
            (Some(row), _) => row..row + 1,
            (None, Some(range)) => within("queries", range, shapes.len_query)?,
            (None, None) => within("query", &(0..shapes.len_query.min(SHOWN[0])), shapes.len_query)?,
        };
        let keys = match &shown.keys {
            Some(range) => within("keys", range, shapes.len_key)?,
            // One row is told whole.
            None if shown.row.is_some() => 0..shapes.len_key,
            None => 0..shapes.len_key.min(SHOWN[1]),
        };
        if queries.len().saturating_mul(shapes.len_key) > MOST_PAIRS {
            return Err(PyValueError::new_err(format!(
                "queries: got {} queries of {} keys, want at most {MOST_PAIRS} pairs: every number of each is kept",
                queries.len(),
                shapes.len_key
            )));
        }
        Ok(Self { head: (shown.batch, shown.head), queries, keys })
    }
}

/// Tells the steps of one head, and hands back their numbers.
///
/// # Errors
/// As for a call; and if what is to be shown does not exist.
pub fn explain<'py, T: Number>(inputs: &Inputs<'py>, options: &Options<'py>) -> PyResult<Bound<'py, PyDict>> {
    let py = inputs.query.object().py();
    let (attention, views) = (options.attention()?, inputs.views::<T>()?);
    views.compute(inputs, &attention, options.threads, |call| call.check())?;
    let shapes = inputs.shapes();
    let place = Place::new(&options.shown, &shapes)?;
    let (queries, row) = (place.queries.clone(), options.shown.row);
    let (trace, influence) = views.compute(inputs, &attention, options.threads, |call| {
        let (batch, head) = place.head;
        let influence = row.map(|query| call.influence((batch, head, query))).transpose()?;
        Ok((call.trace_head(place.head, queries)?.widened(), influence))
    })?;
    let scene = scene(&trace, shapes, &place, options);
    let steps = explain::steps(&scene);
    let row = influence.zip(row).map(|(influence, query)| Row::new(&scene, query, &influence));
    if options.shown.print {
        let told = match &row {
            Some(row) => row.text(&scene),
            None => text::page(&scene, &steps, false),
        };
        py.import("builtins")?.call_method1("print", (told,))?;
    }
    let dict = PyDict::new(py);
    let told = steps.iter().map(|step| told(py, step)).collect::<PyResult<Vec<_>>>()?;
    dict.set_item("steps", PyList::new(py, told)?)?;
    if let Some(row) = &row {
        dict.set_item("row", of_row(py, row)?)?;
    }
    Ok(dict)
}

fn scene<'t>(
    trace: &'t Trace<f64, IxDyn>,
    shapes: Shapes,
    place: &Place,
    options: &Options<'_>,
) -> Scene<'t> {
    let default = 1.0 / (shapes.dim.max(1) as f64).sqrt();
    Scene {
        trace,
        masks: masks(options, &shapes),
        plane: 0,
        first_query: place.queries.start,
        queries: place.queries.clone(),
        keys: place.keys.clone(),
        embedding: None,
        scale: match options.scale {
            Some(scale) if scale != default => Scale::Given(scale),
            _ => Scale::Default,
        },
        softcap: options.softcap,
        biased: options.alibi_slopes.is_some() || options.attn_mask().is_some_and(Array::is_floating),
        tokens: options.shown.tokens.clone(),
        shapes,
    }
}

/// What bounds or biases the scores, a sentence each.
fn masks(options: &Options<'_>, shapes: &Shapes) -> Vec<String> {
    let order = options.causal.map(|alignment| {
        let order = Order {
            alignment,
            key_offset: options.key_offset,
            prefix: options.prefix.as_deref(),
            key_lengths: options.key_lengths.as_deref(),
            len_query: shapes.len_query,
            len_key: shapes.len_key,
        };
        format!("causal, {}", order.words())
    });
    let mask = options.attn_mask().map(|mask| {
        let meaning =
            if mask.is_boolean() { "true is \"may attend\"" } else { "added to the scores; -inf masks" };
        format!("attn_mask {}: {meaning}", show::shape(mask.shape()))
    });
    let window = options.window.map(|(left, right)| format!("window: {}", bounds::window(left, right)));
    let lengths = options.key_lengths.as_deref().map(bounds::key_lengths);
    let segments = options.segment_ids.as_ref();
    let segments = segments.map(|(query, key)| bounds::segments(query.shape(), key.shape()));
    let alibi = options.alibi_slopes.as_ref().map(|_| format!("alibi: {}", bounds::ALIBI));
    [order, mask, window, lengths, segments, alibi]
        .into_iter()
        .flatten()
        .map(|words| text::sentence(&words))
        .collect()
}

fn told<'py>(py: Python<'py>, step: &Step) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("name", step.name.as_str())?;
    dict.set_item("formula", &step.formula)?;
    dict.set_item("shape", PyTuple::new(py, step.values.shape())?)?;
    dict.set_item("values", PyArray::from_array(py, &step.values))?;
    Ok(dict)
}

fn of_row<'py>(py: Python<'py>, row: &Row) -> PyResult<Bound<'py, PyDict>> {
    let keys = row.parts.iter().map(|part| {
        let dict = PyDict::new(py);
        dict.set_item("key", part.key)?;
        dict.set_item("token", &part.token)?;
        dict.set_item("masked", part.score)?;
        dict.set_item("weight", part.weight)?;
        dict.set_item("influence", part.influence)?;
        Ok(dict)
    });
    let dict = PyDict::new(py);
    dict.set_item("query", row.query)?;
    dict.set_item("keys", PyList::new(py, keys.collect::<PyResult<Vec<_>>>()?)?)?;
    dict.set_item("output", PyArray::from_slice(py, &row.output))?;
    Ok(dict)
}
