//! What the explorer is given: layers, each of which opens its heads. Whoever reads files or holds arrays implements
//! [`Layer`]; a [`Head`] is the engine's [`Inspection`] whatever its element type.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use ndarray::{Array2, Dimension};
use qkv::{Call, Element, Error, HeadStats, HeadSurvey, Inspection, Map, Progress, Real, Survey};

use serde_json::{Value, json};

use crate::json::number;
use crate::picture::Axis;

/// What went wrong, in words.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Something to explore. Its clones share their layers.
#[derive(Clone)]
pub struct Input {
    /// What it is, for the heading.
    pub title: String,
    /// In order, one at least.
    pub layers: Vec<Arc<dyn Layer>>,
}

impl Input {
    /// How many batches all layers have.
    pub fn batches(&self) -> usize {
        self.layers.iter().map(|layer| layer.facts().batches).min().unwrap_or(0)
    }

    /// Its title, and its layers with their lengths.
    pub fn json(&self) -> Value {
        let layers: Vec<Value> = self.layers.iter().map(|layer| layer.facts().json()).collect();
        json!({ "title": self.title, "batches": self.batches(), "layers": layers })
    }
}

/// Queries, keys and values of one layer, with all that its attention is told.
pub trait Layer: Send + Sync {
    /// What there is.
    fn facts(&self) -> &Facts;

    /// What its tokens are called.
    fn tokens(&self, batch: usize) -> Tokens<'_>;

    /// Opens a head for as long as `look` takes. The place exists.
    ///
    /// # Errors
    /// If the engine has no memory, the layer is no longer what it was, and as `look` does.
    fn open(
        &self,
        place: &Opening,
        look: &mut (dyn FnMut(&dyn Head) -> Result<(), Failure> + Send),
    ) -> Result<(), Failure>;
}

impl dyn Layer + '_ {
    /// [`open`](Layer::open) with what is seen there.
    ///
    /// # Errors
    /// As `open`.
    pub fn see<R: Send>(
        &self,
        place: &Opening,
        mut look: impl FnMut(&dyn Head) -> Result<R, Failure> + Send,
    ) -> Result<R, Failure> {
        let mut seen = None;
        self.open(place, &mut |head| {
            seen = Some(look(head)?);
            Ok(())
        })?;
        seen.ok_or_else(|| "a layer did not open its head".into())
    }
}

/// What a layer has.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Its number; of an input that is no recording, none.
    pub layer: Option<usize>,
    /// Counted flat over all batch axes.
    pub batches: usize,
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub key_heads: usize,
    /// Queries of a head.
    pub len_query: usize,
    /// Keys of a head.
    pub len_key: usize,
    /// Numbers of a query and of a key.
    pub dim: usize,
    /// What scores are multiplied by.
    pub scale: f64,
    /// Masks and biases, a sentence each.
    pub masks: Vec<String>,
}

impl Facts {
    fn json(&self) -> Value {
        json!({
            "layer": self.layer,
            "heads": self.heads,
            "key_heads": self.key_heads,
            "len_query": self.len_query,
            "len_key": self.len_key,
            "dim": self.dim,
            "scale": number(self.scale),
            "masks": self.masks,
        })
    }
}

/// Which head, and which of its queries are to be opened.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    /// Counted flat.
    pub batch: usize,
    /// A query head.
    pub head: usize,
    /// All, if none are named.
    pub queries: Option<Range<usize>>,
    /// Maxima and sums of these queries, if they are known.
    pub stats: Option<Stats>,
}

impl Opening {
    /// The head of a call.
    ///
    /// # Errors
    /// As [`Call::inspect_queries`] and [`Inspection::with_stats`].
    pub fn of<'c, T: Element, D: Dimension>(&self, call: Call<'c, T, D>) -> Result<Inspection<'c, T>, Error> {
        let head = match &self.queries {
            Some(queries) => call.inspect_queries(self.batch, self.head, queries.clone())?,
            None => call.inspect(self.batch, self.head)?,
        };
        match &self.stats {
            Some(stats) => head.with_stats(stats.narrowed()?),
            None => Ok(head),
        }
    }
}

/// One head, opened: what [`Inspection`] has of the same names.
pub trait Head {
    /// The queries that are open.
    fn queries(&self) -> Range<usize>;

    /// `(len_query, len_key)`, of the whole head.
    fn lengths(&self) -> (usize, usize);

    /// Maximum and sum of each row.
    ///
    /// # Errors
    /// As [`Inspection::stats`].
    fn stats(&self) -> Result<Stats, Error>;

    /// The matrix, pooled.
    ///
    /// # Errors
    /// As [`Inspection::map`].
    fn map(&self, map: &Map, progress: Option<&mut Progress<'_>>) -> Result<Array2<f64>, Error>;

    /// What there is to say of each query and key.
    ///
    /// # Errors
    /// As [`Inspection::survey`].
    fn survey(&self, survey: &Survey<'_>, progress: Option<&mut Progress<'_>>) -> Result<HeadSurvey, Error>;

    /// How much each key matters to a query.
    ///
    /// # Errors
    /// As [`Inspection::influence`].
    fn influence(&self, query: usize) -> Result<Vec<f64>, Error>;
}

impl<T: Element> Head for Inspection<'_, T> {
    fn queries(&self) -> Range<usize> {
        self.queries()
    }

    fn lengths(&self) -> (usize, usize) {
        self.lengths()
    }

    fn stats(&self) -> Result<Stats, Error> {
        let stats = self.stats(None)?;
        let widened = |numbers: &[T::Accumulator]| numbers.iter().map(|x| x.to_f64()).collect();
        let (max, sum) = (widened(stats.max()), widened(stats.sum()));
        Ok(Stats { first_query: stats.queries().start, max, sum })
    }

    fn map(&self, map: &Map, progress: Option<&mut Progress<'_>>) -> Result<Array2<f64>, Error> {
        self.map(map, progress)
    }

    fn survey(&self, survey: &Survey<'_>, progress: Option<&mut Progress<'_>>) -> Result<HeadSurvey, Error> {
        self.survey(survey, progress)
    }

    fn influence(&self, query: usize) -> Result<Vec<f64>, Error> {
        self.influence(query)
    }
}

/// [`HeadStats`] of any element type; f64 holds them exactly.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    first_query: usize,
    max: Vec<f64>,
    sum: Vec<f64>,
}

impl Stats {
    /// Takes in those of the queries that follow.
    pub(super) fn append(&mut self, next: &Self) {
        debug_assert_eq!(self.first_query + self.max.len(), next.first_query);
        self.max.extend_from_slice(&next.max);
        self.sum.extend_from_slice(&next.sum);
    }

    /// Of some of their queries.
    pub(super) fn of(&self, queries: &Range<usize>) -> Self {
        let within = queries.start - self.first_query..queries.end - self.first_query;
        let [max, sum] = [&self.max, &self.sum].map(|numbers| numbers[within.clone()].to_vec());
        Self { first_query: queries.start, max, sum }
    }

    /// Of how many queries they are.
    pub(super) fn queries(&self) -> usize {
        self.max.len()
    }

    /// What those of so many queries take.
    pub(super) fn bytes(queries: usize) -> usize {
        2 * queries * size_of::<f64>()
    }

    fn narrowed<T: Element>(&self) -> Result<HeadStats<T>, Error> {
        let narrowed = |numbers: &[f64]| numbers.iter().map(|&x| T::Accumulator::from_f64(x)).collect();
        HeadStats::new(self.first_query, narrowed(&self.max), narrowed(&self.sum))
    }
}

/// The tokens of one batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tokens<'t> {
    /// One for each key.
    pub keys: Option<&'t [String]>,
    /// One for each query; they are the last of the keys'.
    pub queries: Option<&'t [String]>,
}

impl<'t> Tokens<'t> {
    /// Numbers of which equal ones are equal tokens, of the queries and of the keys.
    pub fn ids(&self) -> Option<(Vec<u32>, Vec<u32>)> {
        let mut numbers = HashMap::new();
        let keys = self.keys?.iter().map(|token| {
            let next = numbers.len() as u32;
            *numbers.entry(token.as_str()).or_insert(next)
        });
        let keys: Vec<u32> = keys.collect();
        let queries = self.queries?.len();
        let queries = keys[keys.len() - queries..].to_vec();
        Some((queries, keys))
    }

    /// The axes of a picture of some queries and keys.
    pub fn axes(&self, queries: Range<usize>, keys: Range<usize>) -> [Axis<'t>; 2] {
        [("query", queries, self.queries), ("key", keys, self.keys)].map(|(name, range, labels)| {
            let axis = Axis::new(name, range);
            match labels {
                Some(labels) => axis.labels(labels),
                None => axis,
            }
        })
    }

    /// Of a key, if it has one.
    pub fn key(&self, key: usize) -> Option<&'t String> {
        self.keys.and_then(|tokens| tokens.get(key))
    }

    /// Of a query, if it has one.
    pub fn query(&self, query: usize) -> Option<&'t String> {
        self.queries.and_then(|tokens| tokens.get(query))
    }
}
