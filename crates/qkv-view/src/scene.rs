//! What is to be explained: a trace, and what is known about its numbers.

use std::ops::Range;

use ndarray::{Array2, ArrayD, ArrayView2, ArrayView3, ArrayViewD, Axis, Ix3, IxDyn, Slice};
use qkv::Trace;

use crate::matrix::cut;
use crate::show;

/// A call to be explained: its numbers, widened, and what they belong to.
pub struct Scene<'a> {
    /// Of the whole call, where queries, keys and values have the same batch axes; or of some queries of one head.
    pub trace: &'a Trace<f64, IxDyn>,
    /// Of the whole call.
    pub shapes: Shapes,
    /// Which matrix of the trace is printed: the number of its batch times the heads in the trace, plus its head.
    pub plane: usize,
    /// The number of the trace's first query.
    pub first_query: usize,
    /// Which queries are shown, by their numbers; they must be in the trace, and one at least.
    pub queries: Range<usize>,
    /// Which keys are shown, by their numbers.
    pub keys: Range<usize>,
    /// Where queries, keys and values come from, if they were projected.
    pub embedding: Option<Embedding>,
    /// What scores are multiplied by.
    pub scale: Scale,
    /// The softcap, if there is one.
    pub softcap: Option<f64>,
    /// Whether anything is added to the scores.
    pub biased: bool,
    /// Masks and biases, a sentence each.
    pub masks: Vec<String>,
    /// A name for each key; and for each query, where there are as many.
    pub tokens: Option<Vec<String>>,
}

/// The shapes of the whole call.
#[derive(Clone, Debug)]
pub struct Shapes {
    /// Batch axes and heads.
    pub lead: Vec<usize>,
    /// Batch axes and key heads.
    pub key_lead: Vec<usize>,
    /// Queries of a head.
    pub len_query: usize,
    /// Keys of a head.
    pub len_key: usize,
    /// Numbers of a query and of a key.
    pub dim: usize,
    /// Numbers of a value.
    pub dim_value: usize,
}

/// Embeddings, and what makes queries, keys and values of them.
pub struct Embedding {
    /// `(queries, dim_model)`: the rows of the queries that are shown.
    pub x: Array2<f64>,
    /// `(…, len, dim_model)`, the whole.
    pub x_shape: Vec<usize>,
    /// `(dim_model, heads · dim)` and so on, where they are small enough to be read.
    pub weights: [Option<Array2<f64>>; 3],
    /// Whether a bias is added to queries, keys and values.
    pub biased: [bool; 3],
    /// Whether more weights follow, which mix the heads.
    pub has_output: bool,
}

/// What scores are multiplied by, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// `1/√dim`
    Default,
    /// Another number.
    Given(f64),
    /// None, to see what it is for.
    LeftOut,
}

impl Shapes {
    pub(crate) fn query(&self) -> String {
        with(&self.lead, [self.len_query, self.dim])
    }

    pub(crate) fn key(&self) -> String {
        with(&self.key_lead, [self.len_key, self.dim])
    }

    pub(crate) fn key_transposed(&self) -> String {
        with(&self.key_lead, [self.dim, self.len_key])
    }

    pub(crate) fn value(&self) -> String {
        with(&self.key_lead, [self.len_key, self.dim_value])
    }

    pub(crate) fn scores(&self) -> String {
        with(&self.lead, [self.len_query, self.len_key])
    }

    pub(crate) fn output(&self) -> String {
        with(&self.lead, [self.len_query, self.dim_value])
    }
}

fn with(lead: &[usize], last: [usize; 2]) -> String {
    show::shape(&[lead, &last].concat())
}

impl Scene<'_> {
    /// The matrix of the plane that is printed, with all its rows and columns.
    pub(crate) fn matrix<'m>(&self, array: &'m ArrayD<f64>) -> ArrayView2<'m, f64> {
        let queries = planes(self.trace.masked.view()).len_of(Axis(0));
        let planes = planes(array.view());
        planes.index_axis_move(Axis(0), self.plane / group(queries, planes.len_of(Axis(0))))
    }

    /// Rows of queries that are shown, of every plane.
    pub(crate) fn rows_of(&self, array: &ArrayD<f64>) -> ArrayD<f64> {
        array.slice_axis(Axis(array.ndim() - 2), self.rows()).to_owned()
    }

    /// Rows of keys that are shown, of every plane.
    pub(crate) fn keys_of(&self, array: &ArrayD<f64>) -> ArrayD<f64> {
        array.slice_axis(Axis(array.ndim() - 2), Slice::from(self.keys.clone())).to_owned()
    }

    /// Pairs of queries and keys that are shown, of every plane.
    pub(crate) fn pairs_of(&self, array: &ArrayD<f64>) -> ArrayD<f64> {
        let mut pairs = array.view();
        pairs.slice_axis_inplace(Axis(array.ndim() - 2), self.rows());
        pairs.slice_axis_inplace(Axis(array.ndim() - 1), Slice::from(self.keys.clone()));
        pairs.to_owned()
    }

    /// The queries that are shown, as rows of the trace.
    fn rows(&self) -> Slice {
        Slice::from(self.queries.start - self.first_query..self.queries.end - self.first_query)
    }

    pub(crate) fn query_tokens(&self) -> Option<&Vec<String>> {
        self.tokens.as_ref().filter(|tokens| tokens.len() == self.shapes.len_query)
    }

    /// `query 5`, with its token where it has one.
    pub(crate) fn query_name(&self, query: usize) -> String {
        named("query", query, self.query_tokens())
    }

    /// `key 5`, with its token where it has one.
    pub(crate) fn key_name(&self, key: usize) -> String {
        named("key", key, self.tokens.as_ref())
    }

    /// What stands beside rows of queries; nothing where their place says it all.
    pub(crate) fn query_labels(&self) -> Vec<String> {
        labels(&self.queries, self.query_tokens())
    }

    /// What stands beside keys; nothing where their place says it all.
    pub(crate) fn key_labels(&self) -> Vec<String> {
        labels(&self.keys, self.tokens.as_ref())
    }
}

/// An array of any rank as a stack of matrices.
pub(crate) fn planes(array: ArrayViewD<'_, f64>) -> ArrayView3<'_, f64> {
    let [rows, columns] = [2, 1].map(|from_end| array.shape()[array.ndim() - from_end]);
    let count = array.shape()[..array.ndim() - 2].iter().product::<usize>();
    array
        .into_shape_with_order((count, rows, columns))
        .and_then(|array| array.into_dimensionality::<Ix3>())
        .expect("a trace's arrays are contiguous")
}

/// How many matrices of queries share one of keys.
pub(crate) fn group(queries: usize, others: usize) -> usize {
    (queries / others.max(1)).max(1)
}

fn named(what: &str, index: usize, tokens: Option<&Vec<String>>) -> String {
    match tokens.and_then(|tokens| tokens.get(index)) {
        Some(own) => format!("{what} {index} ({})", token(own)),
        None => format!("{what} {index}"),
    }
}

fn labels(range: &Range<usize>, tokens: Option<&Vec<String>>) -> Vec<String> {
    match tokens {
        Some(tokens) => range.clone().map(|index| format!("{index} {}", token(&tokens[index]))).collect(),
        None if range.start > 0 => range.clone().map(|index| index.to_string()).collect(),
        None => Vec::new(),
    }
}

/// A token as it is shown, on one line and without what a terminal would obey.
pub fn token(token: &str) -> String {
    let word = token.trim_start_matches(' ');
    let shown = |letter: char| !letter.is_control() && !INVISIBLE.contains(&letter);
    let word =
        if word.is_empty() || !word.chars().all(shown) { format!("{token:?}") } else { word.to_string() };
    cut(&word, LONGEST_TOKEN)
}

/// Columns of a token, at most.
const LONGEST_TOKEN: usize = 24;

/// Letters that turn the direction of writing, or are not seen.
const INVISIBLE: [char; 16] = [
    '\u{200b}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}', '\u{202e}',
    '\u{2066}', '\u{2067}', '\u{2068}', '\u{2069}', '\u{feff}', '\u{2028}', '\u{2029}', '\u{61c}',
];
