//! An axis: what its bins stand for, and the labels or ticks along it.

use std::f64::consts::FRAC_1_SQRT_2;
use std::ops::Range;

use super::font;
use super::svg::{Anchor, Elements, GREY, Rect, Text};
use super::ticks;
use crate::scene::token;

/// Of labels and ticks.
pub(super) const SIZE: f64 = 11.0;
/// A label beside a smaller cell would touch the next.
pub(super) const LEAST_CELL: f64 = 12.0;
/// More labels than this make a picture too large.
const MOST_LABELS: usize = 96;
/// From the cells to a label; a tick's line is within.
const GAP: f64 = 6.0;
const TICK: f64 = 4.0;
/// Of the axis' name and the space around it.
const NAME: f64 = 20.0;
/// Pixels that a name may have beside fewer cells.
const LEAST_NAME: f64 = 60.0;

/// What the rows or the columns of a matrix stand for.
#[derive(Clone, Debug)]
pub struct Axis<'a> {
    name: String,
    range: Range<usize>,
    labels: &'a [String],
}

impl<'a> Axis<'a> {
    /// `name` says what one index is, say “query”; `range` has the indices that the matrix covers, half open. If there
    /// are more indices than rows or columns, each of these stands for equally many.
    pub fn new(name: impl Into<String>, range: Range<usize>) -> Self {
        Self { name: name.into(), range, labels: &[] }
    }

    /// A label for each index from 0 on, shown where there is room and no row or column stands for many.
    pub fn labels(mut self, labels: &'a [String]) -> Self {
        self.labels = labels;
        self
    }

    /// The axis of so many bins; a range with fewer indices is made longer.
    pub(super) fn fitted(&self, bins: usize) -> Self {
        let start = self.range.start.min(usize::MAX - bins);
        let end = self.range.end.max(start + bins);
        // No bin stands for no index.
        let end = if bins == 0 { start } else { end };
        Self { range: start..end, ..self.clone() }
    }

    /// How many indices it covers.
    pub(super) fn indices(&self) -> usize {
        self.range.len()
    }

    /// Whether labels could stand beside so many bins.
    pub(super) fn is_labelled(&self, bins: usize) -> bool {
        !self.labels.is_empty() && bins <= MOST_LABELS && self.range.len() == bins
    }

    /// What stands along `bins` cells of `cell` pixels each, each of which has `indices` of the range.
    pub(super) fn marks(&self, bins: usize, cell: f64, indices: f64, along: Along) -> Marks {
        let place = |index: usize| ((index - self.range.start) as f64 + 0.5) / indices * cell;
        let labelled = self.is_labelled(bins) && cell >= LEAST_CELL;
        let (shown, labelled) = if labelled {
            (self.range.clone().collect(), true)
        } else {
            (self.round_indices(bins, cell, along), false)
        };
        let text = |index: usize| match self.labels.get(index) {
            Some(label) if labelled => token(label),
            _ => index.to_string(),
        };
        let texts: Vec<_> = shown.into_iter().map(|index| (place(index), text(index))).collect();
        let pooled = self.range.len() > bins && bins > 0;
        let name =
            if pooled { format!("{} ({} per cell)", self.name, short(indices)) } else { self.name.clone() };
        let turn = match along {
            Along::Rows => Turn::None,
            Along::Columns => Turn::of(&texts, cell, labelled),
        };
        // Where a label is not that of a whole cell, a line says which point it means.
        let ticked = pooled || cell < LEAST_CELL;
        Marks { texts, name, along, turn, length: bins as f64 * cell, ticked }
    }

    /// All indices where they are few, or round ones.
    fn round_indices(&self, bins: usize, cell: f64, along: Along) -> Vec<usize> {
        const MOST_WHOLE: usize = 20;
        let widest = font::width(&self.range.end.saturating_sub(1).to_string(), SIZE);
        let (least, room) = match along {
            Along::Rows => (LEAST_CELL, 32.0),
            Along::Columns => (widest + 5.0, widest + 24.0),
        };
        if self.range.len() == bins && bins <= MOST_WHOLE && cell >= least {
            return self.range.clone().collect();
        }
        let most = (bins as f64 * cell / room) as usize;
        ticks::indices(self.range.clone(), most.clamp(1, 10))
    }

    /// In words, for those who do not see it.
    pub(super) fn described(&self) -> String {
        match self.range.len() {
            0 => format!("no {}", self.name),
            1 => format!("{} {}", self.name, self.range.start),
            _ => format!("{} {} to {}", self.name, self.range.start, self.range.end - 1),
        }
    }
}

/// Which way an axis goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Along {
    Rows,
    Columns,
}

/// How labels above columns are turned so that none touches its neighbour.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Turn {
    None,
    Slanted,
    Upright,
}

impl Turn {
    fn of(texts: &[(f64, String)], cell: f64, labelled: bool) -> Self {
        let widest = font::widest(texts.iter().map(|(_, text)| text.as_str()), SIZE);
        match cell {
            cell if !labelled || widest + 6.0 <= cell => Self::None,
            // Slanted lines of text are as far apart as the cell's side over √2.
            cell if cell >= 20.0 => Self::Slanted,
            _ => Self::Upright,
        }
    }
}

/// Labels or ticks, placed along the cells.
pub(super) struct Marks {
    /// Pixels from the first cell's beginning, and what stands there.
    texts: Vec<(f64, String)>,
    name: String,
    along: Along,
    turn: Turn,
    /// Of all cells, in pixels.
    length: f64,
    ticked: bool,
}

impl Marks {
    /// For a matrix without cells.
    pub(super) fn none(along: Along) -> Self {
        let (texts, name, turn) = (Vec::new(), String::new(), Turn::None);
        Self { texts, name, along, turn, length: 0.0, ticked: false }
    }

    /// Pixels that they need beside or above the cells.
    pub(super) fn depth(&self) -> f64 {
        let name = if self.name.is_empty() { 0.0 } else { NAME };
        let texts = if self.texts.is_empty() { 0.0 } else { self.reach() };
        (texts + name).ceil()
    }

    /// From the cells to the end of the longest label.
    fn reach(&self) -> f64 {
        let widest = font::widest(self.texts.iter().map(|(_, text)| text.as_str()), SIZE);
        GAP + match (self.along, self.turn) {
            (Along::Rows, _) | (_, Turn::Upright) => widest,
            (_, Turn::Slanted) => (widest + SIZE) * FRAC_1_SQRT_2,
            (_, Turn::None) => SIZE,
        }
    }

    /// Pixels that labels above columns go beyond the last of them.
    pub(super) fn overhang(&self) -> f64 {
        let end = |(place, text): &(f64, String)| {
            let width = font::width(text, SIZE);
            place
                + match self.turn {
                    Turn::None => width / 2.0,
                    Turn::Slanted => width * FRAC_1_SQRT_2 + SIZE / 2.0,
                    Turn::Upright => SIZE / 2.0,
                }
        };
        (self.texts.iter().map(end).fold(0.0, f64::max) - self.length).max(0.0).ceil()
    }

    /// Draws them at the edge of the cells.
    pub(super) fn draw(&self, cells: Rect, elements: &mut Elements) {
        for (place, text) in &self.texts {
            match self.along {
                Along::Rows => self.beside(cells.x, cells.y + place, text, elements),
                Along::Columns => self.above(cells.x + place, cells.y, text, elements),
            }
        }
        let away = self.depth() - SIZE / 2.0;
        let name = font::cut(&self.name, SIZE, self.length.max(LEAST_NAME));
        let name = Text::new(&name, SIZE).anchor(Anchor::Middle).fill(GREY);
        match self.along {
            Along::Rows => {
                elements.text(cells.x - away, cells.y + cells.height / 2.0, &name.turned(-90.0));
            }
            Along::Columns => elements.text(cells.x + cells.width / 2.0, cells.y - away, &name),
        }
    }

    fn beside(&self, x: f64, y: f64, text: &str, elements: &mut Elements) {
        elements.text(x - GAP, y, &Text::new(text, SIZE).anchor(Anchor::End));
        if self.ticked {
            elements.line_right(x - 1.0 - TICK, y, TICK);
        }
    }

    fn above(&self, x: f64, y: f64, text: &str, elements: &mut Elements) {
        let label = Text::new(text, SIZE);
        match self.turn {
            Turn::None => {
                elements.text(x, y - GAP - SIZE / 2.0, &label.anchor(Anchor::Middle));
            }
            Turn::Slanted => elements.text(x, y - GAP, &label.turned(-45.0)),
            Turn::Upright => elements.text(x, y - GAP, &label.turned(-90.0)),
        }
        if self.ticked {
            elements.line_down(x, y - 1.0 - TICK, TICK);
        }
    }
}

/// A number with one decimal, or none.
fn short(x: f64) -> String {
    let text = format!("{x:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_string)
}
