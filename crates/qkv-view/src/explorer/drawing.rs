//! A map of one head as a picture of its own, with axes, tokens and a title that says what it is.

use std::ops::Range;

use ndarray::Array2;
use qkv::{Map, Progress};

use super::shown::Shown;
use super::source::{Failure, Head, Layer, Opening};
use crate::picture::{self, Heatmap};
use crate::show;

/// What is to be drawn.
#[derive(Clone, Debug)]
pub struct Drawing {
    /// Counted flat.
    pub batch: usize,
    /// A query head.
    pub head: usize,
    /// Which numbers, pooled how.
    pub shown: Shown,
    /// Cells on each side, at most.
    pub size: usize,
    /// Which rows.
    pub queries: Range<usize>,
    /// Which columns.
    pub keys: Range<usize>,
}

impl Drawing {
    /// What has to be opened for it.
    pub fn opening(&self) -> Opening {
        let queries = Some(self.queries.clone());
        Opening { batch: self.batch, head: self.head, queries, stats: None }
    }

    /// The cells of the picture.
    ///
    /// # Errors
    /// As the engine's, and if progress cancelled.
    pub fn numbers(
        &self,
        head: &dyn Head,
        progress: Option<&mut Progress<'_>>,
    ) -> Result<Array2<f64>, Failure> {
        let map = Map::new(self.shown.of)
            .pool(self.shown.pooling())
            .size(self.size, self.size)
            .keys(self.keys.clone());
        Ok(head.map(&map, progress)?)
    }

    /// The picture of these numbers as SVG; `title` says of which input they are.
    pub fn svg(&self, layer: &dyn Layer, title: &str, numbers: &Array2<f64>) -> String {
        let (facts, of) = (layer.facts(), self.shown.of);
        let of_layer = facts.layer.map_or(String::new(), |layer| format!("layer {layer}, "));
        let masks: String = facts.masks.iter().map(|mask| format!("; {mask}")).collect();
        let cells = self.cells(numbers.dim());
        let [query_axis, key_axis] = layer.tokens(self.batch).axes(self.queries.clone(), self.keys.clone());
        Heatmap::new(numbers.view())
            .title(format!("{}, {of_layer}head {}{}", picture::title(of), self.head, self.of_batch(layer)))
            .subtitle(format!("{title}: {}{masks}{cells}", self.pairs()))
            .queries(query_axis)
            .keys(key_axis)
            .quantity(picture::quantity(of))
            .colours(picture::colours(of))
            .svg()
    }

    /// What is drawn, in words.
    pub fn words(&self, layer: &dyn Layer, numbers: &Array2<f64>) -> String {
        let what = picture::title(self.shown.of).to_lowercase();
        let cells = self.cells(numbers.dim());
        format!("{}{}: {what}, {}{cells}", self.head, self.of_batch(layer), self.pairs())
    }

    fn of_batch(&self, layer: &dyn Layer) -> String {
        if layer.facts().batches > 1 { format!(" of batch {}", self.batch) } else { String::new() }
    }

    fn pairs(&self) -> String {
        let (queries, keys) = (self.queries.len(), self.keys.len());
        format!("{} × {}", show::count(queries, "query"), show::count(keys, "key"))
    }

    fn cells(&self, cells: (usize, usize)) -> String {
        self.shown.cells(cells, (self.queries.len(), self.keys.len()))
    }
}
