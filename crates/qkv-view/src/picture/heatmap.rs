//! One matrix in colours, with its axes and a colour bar.

use ndarray::ArrayView2;

use super::axis::{Along, Axis, LEAST_CELL, Marks};
use super::bar::{self, Bar};
use super::cells::{Cells, reduced};
use super::colour::{Colours, Scale, Seen};
use super::heading::Lines;
use super::svg::{Anchor, Elements, GREY, Rect, Text};
use super::ticks::typeset;

/// Around a picture.
pub(super) const MARGIN: f64 = 16.0;
/// Between the cells and the bar.
const BESIDE: f64 = 18.0;
/// Between the cells and what stands below.
const BELOW: f64 = 8.0;
/// A matrix with more rows or columns is averaged in blocks.
const MOST_BINS: usize = 4096;
/// Where there are no cells.
const EMPTY: (f64, f64) = (160.0, 64.0);

/// A matrix in colours: rows are queries, columns are keys.
#[derive(Clone, Debug)]
pub struct Heatmap<'a> {
    values: ArrayView2<'a, f64>,
    queries: Axis<'a>,
    keys: Axis<'a>,
    title: String,
    subtitle: String,
    quantity: String,
    caption: String,
    colours: Colours,
}

impl<'a> Heatmap<'a> {
    /// `(queries, keys)`, in the colours of [`Colours::sequential`]. More than 4096 rows or columns are averaged in
    /// blocks, and the picture says so.
    pub fn new(values: ArrayView2<'a, f64>) -> Self {
        let (rows, columns) = values.dim();
        Self {
            values,
            queries: Axis::new("query", 0..rows),
            keys: Axis::new("key", 0..columns),
            title: String::new(),
            subtitle: String::new(),
            quantity: String::new(),
            caption: String::new(),
            colours: Colours::sequential(),
        }
    }

    /// What the rows stand for.
    pub fn queries(mut self, axis: Axis<'a>) -> Self {
        self.queries = axis;
        self
    }

    /// What the columns stand for.
    pub fn keys(mut self, axis: Axis<'a>) -> Self {
        self.keys = axis;
        self
    }

    /// A label for each query.
    pub fn query_labels(mut self, labels: &'a [String]) -> Self {
        self.queries = self.queries.labels(labels);
        self
    }

    /// A label for each key.
    pub fn key_labels(mut self, labels: &'a [String]) -> Self {
        self.keys = self.keys.labels(labels);
        self
    }

    /// What it is, above.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// More about it, below the title.
    pub fn subtitle(mut self, subtitle: impl Into<String>) -> Self {
        self.subtitle = subtitle.into();
        self
    }

    /// What the numbers are, beside the colour bar.
    pub fn quantity(mut self, quantity: impl Into<String>) -> Self {
        self.quantity = quantity.into();
        self
    }

    /// What there is to see, below.
    pub fn caption(mut self, caption: impl Into<String>) -> Self {
        self.caption = caption.into();
        self
    }

    /// How numbers are coloured.
    pub fn colours(mut self, colours: Colours) -> Self {
        self.colours = colours;
        self
    }

    /// The scale by which its numbers are coloured.
    pub fn scale(&self) -> Scale {
        self.colours.scale(reduced(self.values, MOST_BINS).0.iter().copied())
    }

    /// As SVG.
    pub fn svg(&self) -> String {
        let block = self.block(&self.scale(), true, Lines::heading);
        let mut page = Elements::default();
        page.place(MARGIN, MARGIN, &block.elements);
        let size = (block.width + 2.0 * MARGIN, block.height + 2.0 * MARGIN);
        page.document(size, &self.name(), &self.described())
    }

    pub(super) fn wanted(&self) -> Colours {
        self.colours
    }

    /// The numbers that are drawn.
    pub(super) fn drawn(&self) -> Vec<f64> {
        reduced(self.values, MOST_BINS).0.iter().copied().collect()
    }

    pub(super) fn name(&self) -> String {
        if self.title.is_empty() { "attention matrix".to_string() } else { self.title.clone() }
    }

    /// What a picture shows, for those who do not see it.
    pub(super) fn described(&self) -> String {
        let (rows, columns) = self.values.dim();
        let axes = [self.queries.fitted(rows), self.keys.fitted(columns)].map(|axis| axis.described());
        let finite = self.values.iter().copied().filter(|x| x.is_finite());
        let (low, high) =
            finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        let mut text = format!("Rows: {}. Columns: {}.", axes[0], axes[1]);
        if low <= high {
            text += &format!(
                " Values from {} to {}.",
                typeset(&crate::show::number(low)),
                typeset(&crate::show::number(high))
            );
        }
        text
    }

    /// Laid out without a margin, by a scale, with a bar if there is something to read from it.
    pub(super) fn block(&self, scale: &Scale, with_bar: bool, headed: fn(&str, &str, f64) -> Lines) -> Block {
        let (values, merged) = reduced(self.values, MOST_BINS);
        let seen = Seen::of(values.iter().copied(), scale);
        let layout = Layout::new(self, values.view(), merged, scale);
        let (width, height) = layout.extent;
        let bar = Bar::new(scale, seen, &self.quantity, height.max(bar::LEAST_HEIGHT));
        let with_bar = with_bar && seen.has_bar(scale);
        let beside = if with_bar { BESIDE + bar.width() } else { 0.0 };
        let body = layout.rows.depth() + width + beside.max(layout.columns.overhang());

        let heading = headed(&self.title, &self.subtitle, body);
        let place = Rect::new(layout.rows.depth(), heading.height() + layout.columns.depth(), width, height);
        let mut elements = Elements::default();
        heading.draw(0.0, 0.0, &mut elements);
        layout.draw(place, scale, &mut elements);
        let mut bottom = place.bottom();
        if with_bar {
            bar.draw(place.right() + BESIDE, place.y, &mut elements);
            bottom = bottom.max(place.y + bar::LEAST_HEIGHT);
        }
        let legend = seen.legend(scale);
        let mut legend_width = 0.0;
        if !legend.is_empty() {
            legend_width = bar::legend(place.x, bottom + BELOW, &legend, &mut elements);
            bottom += BELOW + bar::LEGEND;
        }
        let caption = Lines::caption(&self.caption_with(merged), body - place.x);
        if caption.height() > 0.0 {
            caption.draw(place.x, bottom + BELOW, &mut elements);
            bottom += caption.height();
        }
        let width = body.max(heading.width()).max(place.x + caption.width().max(legend_width));
        Block { width, height: bottom, cells: place, elements }
    }

    fn caption_with(&self, merged: [usize; 2]) -> String {
        let note = match merged {
            [1, 1] => String::new(),
            [rows, columns] => format!("Each cell is the mean of {rows} × {columns} numbers."),
        };
        format!("{} {note}", self.caption)
    }
}

/// A part of a picture, laid out.
pub(super) struct Block {
    pub(super) width: f64,
    pub(super) height: f64,
    /// Where the cells are.
    pub(super) cells: Rect,
    pub(super) elements: Elements,
}

/// Cells and what stands along them.
struct Layout<'v> {
    cells: Cells<'v>,
    rows: Marks,
    columns: Marks,
    extent: (f64, f64),
    shape: [usize; 2],
}

impl<'v> Layout<'v> {
    /// `values` may have `merged` rows and columns of the matrix in one.
    fn new(map: &Heatmap<'_>, values: ArrayView2<'v, f64>, merged: [usize; 2], scale: &Scale) -> Self {
        let (all_rows, all_columns) = map.values.dim();
        let (queries, keys) = (map.queries.fitted(all_rows), map.keys.fitted(all_columns));
        let (rows, columns) = values.dim();
        let least = |axis: &Axis<'_>, bins| if axis.is_labelled(bins) { LEAST_CELL } else { 1.0 };
        let cells = Cells::new(values, [least(&keys, columns), least(&queries, rows)], scale);
        let marks = |axis: &Axis<'_>, bins: usize, all: usize, merged: usize, along| {
            if rows * columns == 0 {
                return Marks::none(along);
            }
            let cell = if along == Along::Rows { cells.height } else { cells.width };
            let indices = axis.indices() as f64 / all.max(1) as f64 * merged as f64;
            axis.marks(bins, cell, indices, along)
        };
        let row_marks = marks(&queries, rows, all_rows, merged[0], Along::Rows);
        let column_marks = marks(&keys, columns, all_columns, merged[1], Along::Columns);
        let extent = if rows * columns == 0 { EMPTY } else { cells.extent() };
        Self { cells, rows: row_marks, columns: column_marks, extent, shape: [all_rows, all_columns] }
    }

    fn draw(&self, place: Rect, scale: &Scale, elements: &mut Elements) {
        let [rows, columns] = self.shape;
        if rows == 0 || columns == 0 {
            let text = format!("{rows} × {columns}: no cells");
            let text = Text::new(&text, 12.0).anchor(Anchor::Middle).fill(GREY);
            elements.text(place.x + place.width / 2.0, place.y + place.height / 2.0, &text);
        } else {
            self.cells.draw(place, scale, elements);
        }
        self.rows.draw(place, elements);
        self.columns.draw(place, elements);
        elements.frame(place);
    }
}
