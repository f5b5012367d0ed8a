//! The cells of a matrix: how large they are, and how they are drawn.
//!
//! Small matrices have a rectangle for each cell, with its number where that fits. Of larger ones the cells are an image
//! with one pixel for each, which is shown without smoothing.

use ndarray::{Array2, ArrayView2, CowArray, Ix2, s};

use super::colour::{Scale, hex, ink_on};
use super::font;
use super::pixels;
use super::svg::{Anchor, Elements, Rect, Text};
use super::ticks::typeset;

/// Matrices with more rows or columns are drawn as an image, and without numbers.
const MOST_RECTS: usize = 16;
/// Of numbers in cells.
const SIZE: f64 = 11.0;
/// A longer number does not fit into a cell.
const WIDEST_NUMBER: f64 = 52.0;
/// The larger side of a matrix, about; no cell is less than a pixel.
const SIDE: f64 = 720.0;
/// The smaller side of a matrix, at least.
const LEAST_SIDE: f64 = 48.0;
const LARGEST_CELL: f64 = 40.0;
const LARGEST_NUMBER_CELL: f64 = 56.0;

/// Where cells are and what they look like, decided.
pub(super) struct Cells<'v> {
    values: ArrayView2<'v, f64>,
    /// Of one cell, in whole pixels.
    pub(super) width: f64,
    pub(super) height: f64,
    /// The number in each cell, in the order of rows; none if they do not fit.
    numbers: Vec<String>,
}

impl<'v> Cells<'v> {
    /// Cells are at least `least` wide and high, of which a label asks for more.
    pub(super) fn new(
        values: ArrayView2<'v, f64>,
        [least_width, least_height]: [f64; 2],
        scale: &Scale,
    ) -> Self {
        let (rows, columns) = values.dim();
        let longer = rows.max(columns).max(1) as f64;
        let numbers = if longer as usize <= MOST_RECTS { numbers(&values, scale) } else { Vec::new() };
        let widest = font::widest(numbers.iter().map(String::as_str), SIZE);
        if widest > 0.0 && widest <= WIDEST_NUMBER {
            let side = (SIDE / longer * 0.9).min(LARGEST_NUMBER_CELL).max(widest + 12.0).round();
            return Self { values, width: side, height: side, numbers };
        }
        let side = (SIDE / longer).round().clamp(1.0, LARGEST_CELL);
        let grown = |count: usize, least: f64| side.max(least).max((LEAST_SIDE / count.max(1) as f64).ceil());
        let (width, height) = (grown(columns, least_width), grown(rows, least_height));
        Self { values, width, height, numbers: Vec::new() }
    }

    /// Width and height of all of them.
    pub(super) fn extent(&self) -> (f64, f64) {
        let (rows, columns) = self.values.dim();
        (columns as f64 * self.width, rows as f64 * self.height)
    }

    /// Draws them; there must be some.
    pub(super) fn draw(&self, place: Rect, scale: &Scale, elements: &mut Elements) {
        let (rows, columns) = self.values.dim();
        if rows.max(columns) > MOST_RECTS {
            return image(&self.values, place, scale, elements);
        }
        let mut rects = Elements::default();
        let mut texts = Elements::default();
        for (index, ((row, column), &x)) in self.values.indexed_iter().enumerate() {
            let (left, top) = (place.x + column as f64 * self.width, place.y + row as f64 * self.height);
            let colour = scale.colour(x);
            // A pixel between cells.
            let right = if column + 1 < columns { 1.0 } else { 0.0 };
            let below = if row + 1 < rows { 1.0 } else { 0.0 };
            rects.rect(Rect::new(left, top, self.width - right, self.height - below), &hex(colour));
            if let Some(number) = self.numbers.get(index) {
                let number = Text::new(number, SIZE).anchor(Anchor::Middle).fill(ink_on(colour));
                texts.text(left + (self.width - 1.0) / 2.0, top + (self.height - 1.0) / 2.0, &number);
            }
        }
        elements.crisp(&rects);
        elements.append(&texts);
    }
}

/// A matrix as an image, a pixel for each cell, stretched over `place`.
pub(super) fn image(values: &ArrayView2<'_, f64>, place: Rect, scale: &Scale, elements: &mut Elements) {
    elements.image(place, &pixels::uri(&cells_png(values, scale)));
}

/// A matrix as a PNG with one pixel for each number and nothing else; one of no numbers has the pixel of a 0.
pub fn cells_png(values: &ArrayView2<'_, f64>, scale: &Scale) -> Vec<u8> {
    if values.is_empty() {
        return pixels::indexed(1, &[scale.level(0.0)], scale.palette());
    }
    let indices: Vec<u8> = values.iter().map(|&x| scale.level(x)).collect();
    pixels::indexed(values.ncols(), &indices, scale.palette())
}

/// Each number with two decimals; or all with an exponent, where that would be long or say nothing.
fn numbers(values: &ArrayView2<'_, f64>, scale: &Scale) -> Vec<String> {
    let finite = values.iter().filter(|x| x.is_finite());
    let largest = finite.fold(0.0, |most: f64, x| most.max(x.abs()));
    let exponents = largest >= 1e4 || (largest > 0.0 && largest < 0.05);
    let written = |x: f64| match x {
        x if !scale.is_written(x) => String::new(),
        x if x.is_nan() => "NaN".to_string(),
        f64::INFINITY => "∞".to_string(),
        f64::NEG_INFINITY => "−∞".to_string(),
        0.0 => "0".to_string(),
        x if exponents => typeset(&format!("{x:.1e}")),
        x => match format!("{x:.2}").as_str() {
            "-0.00" => "0.00".to_string(),
            text => typeset(text),
        },
    };
    values.iter().map(|&x| written(x)).collect()
}

/// A matrix with at most `most` rows and columns: of a larger one, each cell is the mean of a block, and what is not
/// finite in a block makes its mean so. With it rows and columns of a block.
pub(super) fn reduced(values: ArrayView2<'_, f64>, most: usize) -> (CowArray<'_, f64, Ix2>, [usize; 2]) {
    let (rows, columns) = values.dim();
    let block = [rows, columns].map(|count| count.div_ceil(most).max(1));
    if block == [1, 1] {
        return (values.into(), block);
    }
    let [high, wide] = block;
    let mean = |(row, column)| {
        let (top, left) = (row * high, column * wide);
        let block = values.slice(s![top..rows.min(top + high), left..columns.min(left + wide)]);
        // Divided first: the sum can be more than the largest number.
        let count = block.len() as f64;
        block.iter().map(|x| x / count).sum()
    };
    (Array2::from_shape_fn((rows.div_ceil(high), columns.div_ceil(wide)), mean).into(), block)
}
