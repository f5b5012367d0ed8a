//! One matrix as torch prints it, with names at its edges and cells that may be shaded by value.

use anstyle::{Ansi256Color, Color, Style as Colours};
use ndarray::ArrayView2;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::show::{EDGE, Style, WIDTH};

/// More rows than this are shown in part.
const MOST_ROWS: usize = 20;
/// Columns of a row's name, at most.
const LONGEST_NAME: usize = 16;
/// Columns that a name above is given, if it is so long.
const NAME_ABOVE: usize = 8;
const OPENING: &str = "tensor([";

/// A matrix and how it is printed.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    values: ArrayView2<'a, f64>,
    row_names: &'a [String],
    column_names: &'a [String],
    shading: Shading,
}

/// How cells are shaded: blue above 0, red below.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shading {
    /// Not.
    None,
    /// By their share of this magnitude.
    Full(f64),
}

impl<'a> Matrix<'a> {
    /// Without names, not shaded.
    pub fn new(values: ArrayView2<'a, f64>) -> Self {
        Self { values, row_names: &[], column_names: &[], shading: Shading::None }
    }

    /// A name for each row; it stands behind the row as a comment.
    pub fn row_names(mut self, names: &'a [String]) -> Self {
        self.row_names = names;
        self
    }

    /// A name for each column; they stand above as a comment.
    pub fn column_names(mut self, names: &'a [String]) -> Self {
        self.column_names = names;
        self
    }

    /// How cells are shaded.
    pub fn shading(mut self, shading: Shading) -> Self {
        self.shading = shading;
        self
    }

    /// At most 80 columns of text. Of a matrix that does not fit, beginnings and ends are shown.
    pub fn lines(&self) -> Vec<String> {
        let names = self.row_names.iter().map(|name| name.width().min(LONGEST_NAME)).max();
        let beside = names.map_or(0, |width| "  # ".len() + width);
        let rows = Shown::new(self.values.nrows(), MOST_ROWS);
        let (columns, style) = self.columns(&rows, beside);
        let mut lines: Vec<String> = Vec::new();
        if !self.column_names.is_empty() {
            lines.push(self.column_line(&columns, style.width));
        }
        let last = rows.0.len().saturating_sub(1);
        for (index, row) in rows.0.iter().enumerate() {
            let opening = if index == 0 { OPENING } else { "        " };
            let closing = if index == last { "])" } else { "," };
            lines.push(match row {
                None => format!("{opening}..."),
                Some(row) => {
                    let cells: Vec<_> =
                        columns.0.iter().map(|column| self.cell(&style, *row, *column)).collect();
                    let name =
                        self.row_names.get(*row).map(|name| format!("  # {}", cut(name, LONGEST_NAME)));
                    // The names begin in one column.
                    let gap = if name.is_some() && index != last { " " } else { "" };
                    format!("{opening}[{}]{closing}{gap}{}", cells.join(", "), name.unwrap_or_default())
                }
            });
        }
        if rows.0.is_empty() {
            lines.push(format!("{OPENING}])"));
        }
        lines
    }

    /// As many columns as fit, and how numbers are written: the fewer columns, the fewer digits may be needed, or the more.
    fn columns(&self, rows: &Shown, beside: usize) -> (Shown, Style) {
        // Two brackets, and a comma or parenthesis, close the line.
        let room = WIDTH.saturating_sub(OPENING.len() + 1 + 3 + beside);
        // Names want some room too.
        let names = self.column_names.iter().map(|name| name.width().min(NAME_ABOVE)).max();
        let mut width = names.unwrap_or(1);
        loop {
            let columns = Shown::new(self.values.ncols(), ((room + 2) / (width + 2)).max(1));
            let mut style = self.style(rows, &columns.indices().collect::<Vec<_>>());
            if style.width <= width {
                style.width = width;
                return (columns, style);
            }
            width = style.width;
        }
    }

    fn style(&self, rows: &Shown, columns: &[usize]) -> Style {
        let kept: Vec<f64> = rows
            .indices()
            .flat_map(|row| columns.iter().map(move |&column| self.values[[row, column]]))
            .collect();
        Style::of(&kept)
    }

    fn cell(&self, style: &Style, row: usize, column: Option<usize>) -> String {
        let Some(column) = column else { return " ...".to_string() };
        let x = self.values[[row, column]];
        let text = style.write(x);
        let colours = match self.shading {
            Shading::Full(full) => colours(x / full),
            Shading::None => None,
        };
        match colours {
            Some(colours) => format!("{colours}{text}{colours:#}"),
            None => text,
        }
    }

    fn column_line(&self, columns: &Shown, width: usize) -> String {
        let names = columns.0.iter().map(|column| match column {
            Some(column) => fitted(self.column_names.get(*column).map_or("", String::as_str), width),
            None => " ...".to_string(),
        });
        format!("#{}{}", " ".repeat(OPENING.len()), names.collect::<Vec<_>>().join("  "))
    }
}

/// Which rows or columns are shown; `None` stands for those that are not.
struct Shown(Vec<Option<usize>>);

impl Shown {
    fn new(count: usize, most: usize) -> Self {
        if count <= most {
            return Self((0..count).map(Some).collect());
        }
        let edge = (most.saturating_sub(1) / 2).clamp(1, EDGE);
        let ends = (0..edge).map(Some).chain([None]).chain((count - edge..count).map(Some));
        Self(ends.collect())
    }

    fn indices(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied().flatten()
    }
}

/// A text in exactly `width` columns, on the right; cut where it is longer.
pub(crate) fn fitted(text: &str, width: usize) -> String {
    let text = cut(text, width);
    format!("{}{text}", " ".repeat(width.saturating_sub(text.width())))
}

/// A text in at most `width` columns.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_string();
    }
    let mut kept = String::new();
    for letter in text.chars() {
        if kept.width() + letter.width().unwrap_or(0) >= width {
            break;
        }
        kept.push(letter);
    }
    kept + if width > 0 { "…" } else { "" }
}

/// The colours of a cell, given its share of the full strength; none for what is no number or nearly 0. They grow in
/// strength and hardly in lightness, so that they read alike on dark and light terminals.
fn colours(share: f64) -> Option<Colours> {
    const BLUE: [u8; 5] = [103, 104, 69, 33, 27];
    const RED: [u8; 5] = [138, 174, 210, 167, 203];
    const NEARLY_0: f64 = 0.02;
    if !share.is_finite() || share.abs() < NEARLY_0 {
        return None;
    }
    let depth = (share.abs() * BLUE.len() as f64).ceil() as usize - 1;
    let ramp = if share > 0.0 { BLUE } else { RED };
    let back = ramp[depth.min(ramp.len() - 1)];
    let front = if back == BLUE[4] { 231 } else { 16 };
    let colour = |index| Some(Color::Ansi256(Ansi256Color(index)));
    Some(Colours::new().bg_color(colour(back)).fg_color(colour(front)))
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, array};

    use super::*;

    #[test]
    fn names_stand_at_the_edges_as_comments() {
        let names = ["the", "cat", "understanding"].map(str::to_string);
        let values = array![[0.5, 0.25, 0.25], [-1.0, 2.0, f64::NEG_INFINITY], [0.0, 1.0, 3.0]];
        let matrix = Matrix::new(values.view()).row_names(&names).column_names(&names);
        assert_eq!(
            matrix.lines(),
            [
                "#             the       cat  underst…",
                "tensor([[  0.5000,   0.2500,   0.2500],   # the",
                "        [ -1.0000,   2.0000,     -inf],   # cat",
                "        [  0.0000,   1.0000,   3.0000]])  # understanding",
            ]
        );
    }

    #[test]
    fn what_does_not_fit_80_columns_is_left_out_in_the_middle() {
        let values = Array2::from_shape_fn((30, 64), |(i, j)| i as f64 - j as f64 / 8.0);
        let names: Vec<String> = (0..30).map(|i| format!("{i} token")).collect();
        let lines = Matrix::new(values.view()).row_names(&names).lines();
        assert_eq!(lines.len(), 7);
        assert_eq!(lines[3], "        ...");
        assert!(lines[0].contains(",  ..., ") && lines.iter().all(|line| line.width() <= 80), "{lines:#?}");
        let wide = Array2::from_elem((2, 8), -1.5);
        let lines = Matrix::new(wide.view()).lines();
        assert!(lines.iter().all(|line| line.width() <= 80), "{lines:#?}");
    }

    #[test]
    fn empty_matrices_have_their_brackets() {
        assert_eq!(Matrix::new(Array2::zeros((0, 3)).view()).lines(), ["tensor([])"]);
        assert_eq!(Matrix::new(Array2::zeros((2, 0)).view()).lines(), ["tensor([[],", "        []])"]);
    }

    #[test]
    fn numbers_are_shaded_blue_and_red_and_nothing_else_is() {
        let values = array![[1.0, -0.5, f64::NAN, f64::INFINITY, 0.0]];
        let line = Matrix::new(values.view()).shading(Shading::Full(1.0)).lines().remove(0);
        assert!(line.contains("48;5;27m 1.0000") && line.contains("48;5;210m-0.5000"), "{line:?}");
        assert_eq!(line.matches("48;5;").count(), 2, "{line:?}");
    }
}
