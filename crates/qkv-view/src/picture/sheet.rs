//! A page of small matrices.

use ndarray::ArrayView2;

use super::bar::{self, Bar};
use super::cells::{image, reduced};
use super::colour::{Colours, Scale, Seen};
use super::font;
use super::heading::Lines;
use super::heatmap::MARGIN;
use super::svg::{Anchor, Elements, GREY, Rect, Text};
use super::ticks;

/// Rows or columns of a thumbnail, at most.
const MOST_BINS: usize = 160;
/// The width of a page, about.
const WIDTH: f64 = 1100.0;
/// A thumbnail's larger side, about, where there are few and where there are many.
const SIDE: f64 = 128.0;
const SIDE_OF_MANY: f64 = 80.0;
const MANY: usize = 48;
/// A thumbnail's smaller side, at least.
const LEAST_SIDE: f64 = 24.0;
/// Between thumbnails.
const GAP: f64 = 14.0;
/// Of captions.
const SIZE: f64 = 10.0;
const LINE: f64 = 15.0;
/// Between the thumbnails and the bar.
const BESIDE: f64 = 24.0;
const TALLEST_BAR: f64 = 320.0;

/// Many matrices at once, say all heads of a model. Rows are queries, columns are keys.
#[derive(Clone, Debug)]
pub struct Sheet<'a> {
    thumbnails: Vec<(ArrayView2<'a, f64>, String)>,
    title: String,
    subtitle: String,
    quantity: String,
    columns: Option<usize>,
    colours: Colours,
    own_scales: bool,
}

impl Default for Sheet<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Sheet<'a> {
    /// An empty page, in the colours of [`Colours::sequential`], with one scale for all.
    pub fn new() -> Self {
        Self {
            thumbnails: Vec::new(),
            title: String::new(),
            subtitle: String::new(),
            quantity: String::new(),
            columns: None,
            colours: Colours::sequential(),
            own_scales: false,
        }
    }

    /// One more matrix, `(queries, keys)`, with a short caption. More than 160 rows or columns are averaged in blocks,
    /// and the page says so.
    pub fn thumbnail(mut self, values: ArrayView2<'a, f64>, caption: impl Into<String>) -> Self {
        self.thumbnails.push((values, caption.into()));
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

    /// How many thumbnails a line has, 1 at least; else as many as a page is wide.
    pub fn columns(mut self, columns: usize) -> Self {
        self.columns = Some(columns.max(1));
        self
    }

    /// How numbers are coloured.
    pub fn colours(mut self, colours: Colours) -> Self {
        self.colours = colours;
        self
    }

    /// Each thumbnail by a scale of its own, whose ends stand below it, instead of one for all.
    pub fn own_scales(mut self) -> Self {
        self.own_scales = true;
        self
    }

    /// As SVG.
    pub fn svg(&self) -> String {
        let matrices: Vec<_> =
            self.thumbnails.iter().map(|(values, _)| reduced(*values, MOST_BINS)).collect();
        let numbers = || matrices.iter().flat_map(|(values, _)| values.iter().copied());
        let shared = self.colours.scale(numbers());
        let seen = Seen::of(numbers(), &shared);
        let grid = Grid::new(self, matrices.iter().map(|(values, _)| values.dim()));
        let mut elements = Elements::default();
        for (index, ((values, _), (_, caption))) in matrices.iter().zip(&self.thumbnails).enumerate() {
            let own = self.own_scales.then(|| self.colours.scale(values.iter().copied()));
            let thumbnail = Thumbnail { values: values.view(), caption, own: own.as_ref(), shared: &shared };
            thumbnail.draw(grid.place(index, values.dim()), grid.cell, &mut elements);
        }
        let merged = matrices.iter().any(|(_, merged)| *merged != [1, 1]);
        self.page(&grid, elements, (&shared, seen), merged)
    }

    /// The grid with its heading, bar and legend.
    fn page(&self, grid: &Grid, thumbnails: Elements, (scale, seen): (&Scale, Seen), merged: bool) -> String {
        let bar_height = (grid.height() - LINE).clamp(bar::LEAST_HEIGHT, TALLEST_BAR);
        let bar = Bar::new(scale, seen, &self.quantity, bar_height);
        let with_bar = seen.has_bar(scale) && !self.own_scales;
        let width = grid.width() + if with_bar { BESIDE + bar.width() } else { 0.0 };
        let note = if merged { "Large matrices are averaged over blocks." } else { "" };
        let heading = Lines::heading(&self.title, &format!("{} {note}", self.subtitle), width);
        let top = heading.height();
        let mut elements = Elements::default();
        heading.draw(0.0, 0.0, &mut elements);
        elements.place(0.0, top, &thumbnails);
        let mut bottom = top + grid.height();
        if with_bar {
            bar.draw(grid.width() + BESIDE, top + LINE, &mut elements);
            bottom = bottom.max(top + LINE + bar_height);
        }
        let legend = seen.legend(scale);
        let mut legend_width = 0.0;
        if !legend.is_empty() {
            legend_width = bar::legend(0.0, bottom + GAP, &legend, &mut elements);
            bottom += GAP + bar::LEGEND;
        }
        let mut page = Elements::default();
        page.place(MARGIN, MARGIN, &elements);
        let size = (width.max(heading.width()).max(legend_width) + 2.0 * MARGIN, bottom + 2.0 * MARGIN);
        let name = if self.title.is_empty() { "attention matrices" } else { &self.title };
        page.document(size, name, &crate::show::count(self.thumbnails.len(), "attention matrix"))
    }
}

/// Where thumbnails stand.
struct Grid {
    count: usize,
    columns: usize,
    /// Pixels of one number, whole.
    pixel: f64,
    /// Of the largest thumbnail.
    cell: (f64, f64),
    /// Of text below each.
    below: f64,
}

impl Grid {
    fn new(sheet: &Sheet<'_>, shapes: impl Iterator<Item = (usize, usize)>) -> Self {
        let count = sheet.thumbnails.len();
        let (rows, columns) = shapes
            .fold((0, 0), |(rows, columns): (usize, usize), shape| (rows.max(shape.0), columns.max(shape.1)));
        let side = if count > MANY { SIDE_OF_MANY } else { SIDE };
        let pixel = (side / rows.max(columns).max(1) as f64).round().max(1.0);
        let extent = |count: usize| (count as f64 * pixel).max(LEAST_SIDE);
        let cell = (extent(columns), extent(rows));
        let most = ((WIDTH + GAP) / (cell.0 + GAP)).floor().max(1.0) as usize;
        let columns = sheet.columns.unwrap_or_else(|| even(count, most));
        Self { count, columns, pixel, cell, below: if sheet.own_scales { LINE } else { 0.0 } }
    }

    fn width(&self) -> f64 {
        let columns = self.columns.min(self.count).max(1) as f64;
        columns * (self.cell.0 + GAP) - GAP
    }

    fn line(&self) -> f64 {
        LINE + self.cell.1 + self.below + GAP
    }

    fn height(&self) -> f64 {
        (self.count.div_ceil(self.columns) as f64 * self.line() - GAP).max(0.0)
    }

    /// Of the cells of one thumbnail.
    fn place(&self, index: usize, (rows, columns): (usize, usize)) -> Rect {
        let x = (index % self.columns) as f64 * (self.cell.0 + GAP);
        let y = (index / self.columns) as f64 * self.line() + LINE;
        let extent = |count: usize| (count as f64 * self.pixel).max(LEAST_SIDE);
        Rect::new(x, y, extent(columns), extent(rows))
    }
}

/// As many columns as fit, or fewer if lines are then equally long.
fn even(count: usize, most: usize) -> usize {
    let most = most.min(count).max(1);
    let fits = |columns: &usize| count.is_multiple_of(*columns);
    (most.div_ceil(2)..=most).rev().find(fits).unwrap_or(most)
}

/// One small matrix.
struct Thumbnail<'t> {
    values: ArrayView2<'t, f64>,
    caption: &'t str,
    own: Option<&'t Scale>,
    shared: &'t Scale,
}

impl Thumbnail<'_> {
    fn draw(&self, place: Rect, (room, height): (f64, f64), elements: &mut Elements) {
        let caption = font::cut(self.caption, SIZE, room + GAP / 2.0);
        elements.text(place.x, place.y - LINE / 2.0, &Text::new(&caption, SIZE));
        if self.values.is_empty() {
            let (rows, columns) = self.values.dim();
            let text = font::cut(&format!("{rows} × {columns}"), SIZE, place.width);
            let text = Text::new(&text, SIZE).anchor(Anchor::Middle).fill(GREY);
            elements.text(place.x + place.width / 2.0, place.y + place.height / 2.0, &text);
        } else {
            image(&self.values, place, self.own.unwrap_or(self.shared), elements);
        }
        elements.frame(place);
        let finite = self.values.iter().any(|x| x.is_finite());
        if let Some(scale) = self.own.filter(|_| finite) {
            let ends = format!("{} … {}", ticks::end(scale.low()).label, ticks::end(scale.high()).label);
            let ends = font::cut(&ends, SIZE, room + GAP / 2.0);
            elements.text(place.x, place.y + height + LINE / 2.0, &Text::new(&ends, SIZE).fill(GREY));
        }
    }
}
