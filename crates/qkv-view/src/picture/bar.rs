//! The colour bar, and the legend of what is no finite number.

use super::colour::{LEVELS, Scale, Seen, hex};
use super::font;
use super::pixels;
use super::svg::{Anchor, Elements, GREY, Rect, Text};
use super::ticks::{self, Tick};

/// Of ticks and names.
const SIZE: f64 = 11.0;
/// A shorter bar could not be read.
pub(super) const LEAST_HEIGHT: f64 = 120.0;
const WIDTH: f64 = 14.0;
/// From the bar to the ticks' labels; a tick's line is within.
const GAP: f64 = 8.0;
const TICK: f64 = 4.0;
/// Pixels between two ticks, at least.
const APART: f64 = 18.0;
/// Of the arrow at an end beyond which there are numbers.
const ARROW: f64 = 8.0;
/// Of a line of the legend.
pub(super) const LEGEND: f64 = 20.0;
const SWATCH: f64 = 11.0;

/// A colour bar, upright.
pub(super) struct Bar<'s> {
    scale: &'s Scale,
    seen: Seen,
    /// What its numbers are.
    name: &'s str,
    height: f64,
    ticks: Vec<Tick>,
}

impl<'s> Bar<'s> {
    pub(super) fn new(scale: &'s Scale, seen: Seen, name: &'s str, height: f64) -> Self {
        Self { scale, seen, name, height, ticks: ticks_of(scale, height) }
    }

    /// Of the bar with its ticks and name.
    pub(super) fn width(&self) -> f64 {
        let name = if self.name.is_empty() { 0.0 } else { SIZE + 9.0 };
        (WIDTH + GAP + font::widest(self.ticks.iter().map(|tick| tick.label.as_str()), SIZE) + name).ceil()
    }

    /// Draws it with its upper left corner at a place.
    pub(super) fn draw(&self, x: f64, y: f64, elements: &mut Elements) {
        let above = if self.seen.above { ARROW } else { 0.0 };
        let below = if self.seen.below { ARROW } else { 0.0 };
        let bar = Rect::new(x, y + above, WIDTH, self.height - above - below);
        let levels: Vec<u8> = (0..LEVELS as u8).rev().collect();
        elements.image(bar, &pixels::uri(&pixels::indexed(1, &levels, self.scale.palette())));
        elements.frame(bar);
        let middle = x + WIDTH / 2.0;
        // The arrows end on whole pixels beside the frame.
        if self.seen.above {
            let [left, right, foot] = [x - 1.0, bar.right() + 1.0, bar.y - 1.0];
            let colour = hex(self.scale.colour(self.scale.high()));
            elements.polygon(&[(left, foot), (right, foot), (middle, foot - ARROW)], &colour);
        }
        if self.seen.below {
            let [left, right, foot] = [x - 1.0, bar.right() + 1.0, bar.bottom() + 1.0];
            let colour = hex(self.scale.colour(self.scale.low()));
            elements.polygon(&[(left, foot), (right, foot), (middle, foot + ARROW)], &colour);
        }
        for tick in &self.ticks {
            let y = bar.bottom() - self.scale.share(tick.value) * bar.height;
            elements.line_right(bar.right() + 1.0, y.min(bar.bottom() - 0.5), TICK);
            elements.text(bar.right() + GAP, y, &Text::new(&tick.label, SIZE));
        }
        let name = font::cut(self.name, SIZE, self.height);
        let name = Text::new(&name, SIZE).anchor(Anchor::Middle).fill(GREY).turned(-90.0);
        elements.text(x + self.width() - SIZE / 2.0, bar.y + bar.height / 2.0, &name);
    }
}

/// Round numbers that do not touch each other where they stand.
fn ticks_of(scale: &Scale, height: f64) -> Vec<Tick> {
    let all = if scale.is_square_root() && scale.low() == 0.0 {
        ticks::decades(scale.high())
    } else {
        let most = ((height / 28.0) as usize).clamp(3, 9);
        let mut ticks = ticks::linear(scale.low(), scale.high(), most);
        ticks.reverse();
        ticks
    };
    let mut kept: Vec<Tick> = Vec::new();
    let last = all.last().cloned();
    for tick in all {
        let place = |tick: &Tick| scale.share(tick.value) * height;
        let far = |other: &Tick| (place(other) - place(&tick)).abs() >= APART;
        let end = last.as_ref().is_none_or(|last| *last == tick || far(last));
        if end && kept.last().is_none_or(far) {
            kept.push(tick);
        }
    }
    kept
}

/// A line that names the colours of what is no finite number; its width.
pub(super) fn legend(x: f64, y: f64, specials: &[(&str, String)], elements: &mut Elements) -> f64 {
    let mut left = x;
    for (name, colour) in specials {
        let swatch = Rect::new(left, y + (LEGEND - SWATCH) / 2.0 - 0.5, SWATCH, SWATCH);
        let mut square = Elements::default();
        square.rect(swatch, colour);
        elements.crisp(&square);
        elements.frame(swatch);
        let beside = left + SWATCH + 6.0;
        elements.text(beside, y + LEGEND / 2.0, &Text::new(name, SIZE));
        left = beside + font::width(name, SIZE).ceil() + 14.0;
    }
    (left - x - 14.0).max(0.0)
}
