//! A map of one head as a picture of its own, with axes, tokens and a title that says what it is.

use std::ops::Range;

use ndarray::{Array2, Zip};
use qkv::{Map, Of, Pool, Progress};

use super::shown::Shown;
use super::source::{Failure, Head, Layer, Opening};
use crate::picture::{self, Colours, Heatmap};
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

    /// Whether there are cells to be told apart as masked.
    pub fn hides(&self, layer: &dyn Layer) -> bool {
        self.shown.of != Of::Mask && !layer.facts().masks.is_empty()
    }

    /// The same numbers as they are drawn: where it [`hides`](Self::hides) cells, -∞ in those without a pair that may attend.
    ///
    /// # Errors
    /// As [`numbers`](Self::numbers).
    pub fn hidden(
        &self,
        layer: &dyn Layer,
        mut numbers: Array2<f64>,
        head: &dyn Head,
        progress: Option<&mut Progress<'_>>,
    ) -> Result<Array2<f64>, Failure> {
        if !self.hides(layer) {
            return Ok(numbers);
        }
        let mask = Self { shown: Shown { of: Of::Mask, pool: Pool::Max }, ..self.clone() };
        let mask = mask.numbers(head, progress)?;
        Zip::from(&mut numbers).and(&mask).for_each(|number, &seen| {
            if seen == 0.0 {
                *number = f64::NEG_INFINITY;
            }
        });
        Ok(numbers)
    }

    /// The colours of what is drawn.
    pub fn colours(&self, layer: &dyn Layer) -> Colours {
        let colours = picture::colours(self.shown.of);
        if self.hides(layer) { colours.below_all("masked") } else { colours }
    }

    /// The picture of these numbers as SVG; `title` says of which input they are. Where it [`hides`](Self::hides) cells, -∞ is
    /// a masked one.
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
            .colours(self.colours(layer))
            .svg()
    }

    /// What is drawn, in words.
    pub fn words(&self, layer: &dyn Layer, numbers: &Array2<f64>) -> String {
        let what = picture::title(self.shown.of).to_lowercase();
        let cells = self.cells(numbers.dim());
        let of_layer = layer.facts().layer.map_or(String::new(), |layer| format!(" of layer {layer}"));
        format!("{}{of_layer}{}: {what}, {}{cells}", self.head, self.of_batch(layer), self.pairs())
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
