//! How an explanation looks as text, at most 80 columns wide but where a shape alone is wider.

use ndarray::ArrayD;
use textwrap::{Options, WordSplitter};
use unicode_width::UnicodeWidthStr;

use crate::explain::{Axes, Step, StepName, capitalized};
use crate::matrix::{Matrix, Shading, fitted};
use crate::scene::{Embedding, Scene};
use crate::show::{self, WIDTH};

/// Queries and keys up to which a mask is drawn.
const DRAWN: usize = 32;

/// A heading that goes through to the right edge.
pub fn heading(title: &str) -> String {
    let rule = "─".repeat(WIDTH.saturating_sub(4 + title.width()));
    format!("── {title} {rule}")
}

/// Words in lines of at most 80 columns.
pub fn wrapped(words: &str) -> String {
    textwrap::fill(words, lines())
}

/// Words that begin behind a label and go on below themselves.
pub fn hanging(label: &str, words: &str) -> String {
    let margin = " ".repeat(label.width() + 2);
    let label = format!("{label}  ");
    textwrap::fill(words, lines().initial_indent(&label).subsequent_indent(&margin))
}

/// A line that goes on, if it must, in lines indented by so many columns.
pub fn below(line: &str, indent: usize) -> String {
    if line.width() <= WIDTH {
        return line.to_string();
    }
    let margin = " ".repeat(indent);
    textwrap::fill(line, lines().subsequent_indent(&margin))
}

/// Words with a capital and a full stop.
pub fn sentence(words: &str) -> String {
    format!("{}.", capitalized(words))
}

/// Lines break between words and nowhere else.
fn lines<'o>() -> Options<'o> {
    Options::new(WIDTH).break_words(false).word_splitter(WordSplitter::NoHyphenation)
}

/// The whole explanation, from the embeddings to the output.
pub fn page(scene: &Scene<'_>, steps: &[Step], shaded: bool) -> String {
    let page = Page { scene, shaded, largest_score: largest(&scene.trace.scores) };
    let mut text = String::new();
    if shaded {
        text += &wrapped(
            "Cells are shaded by value: blue above 0, red below, the stronger the larger. Steps 1 to 3 share one measure, \
             so that the scale can be seen; a weight of 1 is as strong as can be.",
        );
        text += "\n\n";
    }
    if let Some(embedding) = &scene.embedding {
        text += &page.embeddings(embedding);
    }
    // The average is of the values, so they come first.
    let is_made = |step: &&Step| matches!(step.name, StepName::Query | StepName::Key | StepName::Value);
    let (made, others): (Vec<_>, Vec<_>) = steps.iter().partition(is_made);
    for step in made.into_iter().chain(others) {
        text += &page.section(step);
    }
    text
}

/// The largest finite magnitude.
fn largest<'x>(numbers: impl IntoIterator<Item = &'x f64>) -> f64 {
    numbers.into_iter().filter(|x| x.is_finite()).fold(0.0, |largest: f64, x| largest.max(x.abs()))
}

struct Page<'p, 'a> {
    scene: &'p Scene<'a>,
    shaded: bool,
    largest_score: f64,
}

impl Page<'_, '_> {
    fn shading(&self, full: f64) -> Shading {
        if self.shaded { Shading::Full(full) } else { Shading::None }
    }

    fn embeddings(&self, embedding: &Embedding) -> String {
        let names = self.scene.query_labels();
        let shading = self.shading(largest(&embedding.x));
        let lines = Matrix::new(embedding.x.view()).row_names(&names).shading(shading).lines();
        let title = sides("X, one row of numbers for each token", &show::shape(&embedding.x_shape));
        let note = wrapped(
            "An embedding is a token in numbers. Three matrices, which a model learns, turn each row into a query, a key \
             and a value.",
        );
        format!("{}\n{title}\n\n{}\n\n{note}\n\n", heading("Embeddings"), lines.join("\n"))
    }

    fn section(&self, step: &Step) -> String {
        let mut parts = vec![format!("{}\n{}", heading(step.title), sides(&step.formula, &step.shapes))];
        let mut matrix = self.matrix(step);
        if let Some(weight) = &step.weight {
            let name = step.name.as_str();
            let shading = self.shading(largest(weight));
            let lines = Matrix::new(weight.view()).shading(shading).lines();
            parts.push(format!("W_{name} =\n{}", lines.join("\n")));
            matrix = format!("{} =\n{matrix}", name.to_uppercase());
        }
        if step.name == StepName::Masked {
            parts.extend(self.drawn_mask(&step.values));
        }
        // The scores that nothing masks have been printed already.
        if step.name != StepName::Masked || !self.scene.masks.is_empty() {
            parts.push(matrix);
        }
        parts.push(wrapped(&step.note));
        parts.join("\n\n") + "\n\n"
    }

    fn matrix(&self, step: &Step) -> String {
        let values = self.scene.matrix(&step.values);
        let (queries, keys) = (self.scene.query_labels(), self.scene.key_labels());
        let (rows, columns) = match step.axes {
            Axes::QueryVectors => (&queries, &Vec::new()),
            Axes::KeyVectors => (&keys, &Vec::new()),
            Axes::Pairs => (&queries, &keys),
        };
        let full = match (step.name, step.axes) {
            (StepName::Weights, _) => 1.0,
            (_, Axes::Pairs) => self.largest_score,
            _ => largest(&step.values),
        };
        let matrix = Matrix::new(values).row_names(rows).column_names(columns).shading(self.shading(full));
        matrix.lines().join("\n")
    }

    /// The mask as a grid: ■ may attend, · may not.
    fn drawn_mask(&self, masked: &ArrayD<f64>) -> Option<String> {
        let masked = self.scene.matrix(masked);
        if masked.is_empty() || masked.nrows() > DRAWN || masked.ncols() > DRAWN {
            return None;
        }
        let corner = "query \\ key";
        let or_numbers = |labels: Vec<String>, range: &std::ops::Range<usize>| {
            if labels.is_empty() { range.clone().map(|index| index.to_string()).collect() } else { labels }
        };
        let queries = or_numbers(self.scene.query_labels(), &self.scene.queries);
        let mut keys = or_numbers(self.scene.key_labels(), &self.scene.keys);
        let widest = |names: &[String]| names.iter().map(|name| name.width()).max().unwrap_or(0);
        let side = widest(&queries).max(corner.width()).min(WIDTH / 3);
        let room = ((WIDTH - side - 2) / masked.ncols()).saturating_sub(1).max(1);
        if widest(&keys) > room {
            // Names that would all be cut tell less than numbers.
            keys = self.scene.keys.clone().map(|index| index.to_string()).collect();
        }
        let cell = widest(&keys).min(room);
        let line = |name: &str, cells: &mut dyn Iterator<Item = &str>| {
            let cells: Vec<_> = cells.map(|text| fitted(text, cell)).collect();
            format!("{}  {}", fitted(name, side), cells.join(" "))
        };
        let mut lines = vec![line(corner, &mut keys.iter().map(String::as_str))];
        for (name, row) in queries.iter().zip(masked.rows()) {
            let marks = row.iter().map(|&s| if s == f64::NEG_INFINITY { "·" } else { "■" });
            lines.push(line(name, &mut marks.into_iter()));
        }
        Some(lines.join("\n"))
    }
}

/// Two texts at the ends of a line, or on two lines where they do not fit one.
fn sides(left: &str, right: &str) -> String {
    match WIDTH.checked_sub(left.width() + right.width()) {
        Some(gap) if gap >= 2 => format!("{left}{}{right}", " ".repeat(gap)),
        _ => format!("{left}\n{}", fitted(right, WIDTH.max(right.width()))),
    }
}
