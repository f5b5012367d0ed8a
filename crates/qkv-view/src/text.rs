//! How an explanation looks as text, at most 80 columns wide.

use std::ops::Range;

use ndarray::ArrayD;
use textwrap::{Options, WordSplitter};
use unicode_width::UnicodeWidthStr;

use crate::explain::{Embedding, Scene, Step};
use crate::matrix::{Matrix, fitted};
use crate::show::{self, WIDTH};

/// Queries and keys up to which a mask is drawn.
const DRAWN: usize = 24;

/// A heading that goes through to the right edge.
pub fn heading(title: &str) -> String {
    let rule = "─".repeat(WIDTH.saturating_sub(4 + title.width()));
    format!("── {title} {rule}")
}

/// Words in lines of at most 80 columns.
pub fn wrapped(words: &str) -> String {
    textwrap::fill(words, lines())
}

/// Lines break between words and nowhere else.
fn lines<'o>() -> Options<'o> {
    Options::new(WIDTH).break_words(false).word_splitter(WordSplitter::NoHyphenation)
}

/// Words that begin behind a label and go on below themselves.
pub fn hanging(label: &str, words: &str) -> String {
    let margin = " ".repeat(label.width() + 2);
    let label = format!("{label}  ");
    textwrap::fill(words, lines().initial_indent(&label).subsequent_indent(&margin))
}

/// The whole explanation, from the embeddings to the output.
pub fn page(scene: &Scene<'_>, steps: &[Step], shaded: bool) -> String {
    let mut text = String::new();
    if let Some(embedding) = &scene.embedding {
        text += &embeddings(scene, embedding, shaded);
    }
    // The average is of the values, so they come first.
    let (made, others): (Vec<_>, Vec<_>) =
        steps.iter().partition(|step| ["q", "k", "v"].contains(&step.name));
    for step in made.into_iter().chain(others) {
        text += &section(scene, step, shaded);
    }
    text
}

fn embeddings(scene: &Scene<'_>, embedding: &Embedding, shaded: bool) -> String {
    let names = scene.labels(&scene.queries, true);
    let rows = embedding.x.slice(ndarray::s![scene.queries.clone(), ..]);
    let lines = Matrix::new(rows).row_names(&names).shaded(shaded).lines();
    let mut text = format!("{}\n", heading("Embeddings"));
    text += &format!(
        "{}\n\n{}\n\n",
        sides("X, one row of numbers for each token", &show::shape(&embedding.x_shape)),
        lines.join("\n")
    );
    text += &wrapped(
        "What a token is, in numbers. Three matrices, which a model learns, turn each row into a query, a key and a value.",
    );
    text + "\n\n"
}

fn section(scene: &Scene<'_>, step: &Step, shaded: bool) -> String {
    let mut parts = vec![format!("{}\n{}", heading(step.title), sides(&step.formula, &step.shapes))];
    let weight = weight_of(scene, step, shaded);
    let name = if weight.is_some() { format!("{} =\n", step.name.to_uppercase()) } else { String::new() };
    parts.extend(weight);
    // The scores that a mask leaves as they are have been printed already.
    if step.name == "masked" {
        parts.extend(drawn_mask(scene, &step.values));
    }
    if step.name != "masked" || !scene.masks.is_empty() {
        parts.push(name + &matrix(scene, step, shaded));
    }
    parts.push(wrapped(&step.note));
    parts.join("\n\n") + "\n\n"
}

/// Two texts at the ends of a line, or on two lines where they do not fit one.
fn sides(left: &str, right: &str) -> String {
    match WIDTH.checked_sub(left.width() + right.width()) {
        Some(gap) if gap >= 2 => format!("{left}{}{right}", " ".repeat(gap)),
        _ => format!("{left}\n{}", fitted(right, WIDTH.max(right.width()))),
    }
}

/// The matrix that a projection multiplies by, where it is small.
fn weight_of(scene: &Scene<'_>, step: &Step, shaded: bool) -> Option<String> {
    let [query, key, value] = scene.embedding.as_ref()?.weights.as_ref()?;
    let weight = match step.name {
        "q" => query,
        "k" => key,
        "v" => value,
        _ => return None,
    };
    let lines = Matrix::new(weight.view()).shaded(shaded).lines();
    Some(format!("W_{} =\n{}", step.name, lines.join("\n")))
}

fn matrix(scene: &Scene<'_>, step: &Step, shaded: bool) -> String {
    let rows = if step.rows_are_queries { &scene.queries } else { &scene.keys };
    let row_names = scene.labels(rows, step.rows_are_queries);
    let column_names = if step.columns_are_keys { scene.labels(&scene.keys, false) } else { Vec::new() };
    let values = scene.matrix(&step.values);
    let matrix = Matrix::new(values).row_names(&row_names).column_names(&column_names).shaded(shaded);
    matrix.lines().join("\n")
}

/// The mask as a grid: ■ may attend, · may not.
fn drawn_mask(scene: &Scene<'_>, masked: &ArrayD<f64>) -> Option<String> {
    let masked = scene.matrix(masked);
    if masked.is_empty() || masked.nrows() > DRAWN || masked.ncols() > DRAWN {
        return None;
    }
    let corner = "query \\ key";
    let (queries, keys) = (names(scene, &scene.queries, true), names(scene, &scene.keys, false));
    let widest = |names: &[String]| names.iter().map(|name| name.width()).max().unwrap_or(0);
    let side = widest(&queries).max(corner.width()).min(WIDTH / 3);
    let room = (WIDTH - side - 2) / masked.ncols();
    let cell = widest(&keys).min(room.saturating_sub(1)).max(1);
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

/// The tokens, or the numbers where there are none.
fn names(scene: &Scene<'_>, range: &Range<usize>, of_queries: bool) -> Vec<String> {
    let labels = scene.labels(range, of_queries);
    if labels.is_empty() { range.clone().map(|index| index.to_string()).collect() } else { labels }
}
