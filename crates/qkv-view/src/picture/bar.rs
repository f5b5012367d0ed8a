//! The colour bar, and the legend of what is no number on it.

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
    name: String,
    height: f64,
    ticks: Vec<Tick>,
}

impl<'s> Bar<'s> {
    pub(super) fn new(scale: &'s Scale, seen: Seen, name: &'s str, height: f64) -> Self {
        let name = match name {
            name if name.is_empty() || !scale.is_square_root() => name.to_string(),
            name => {
                let whole = format!("{name} (square-root scale)");
                if font::width(&whole, SIZE) <= height { whole } else { format!("{name} (√ scale)") }
            }
        };
        Self { scale, seen, name, height, ticks: ticks_of(scale, seen, height) }
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
        let name = font::cut(&self.name, SIZE, self.height);
        let name = Text::new(&name, SIZE).anchor(Anchor::Middle).fill(GREY).turned(-90.0);
        elements.text(x + self.width() - SIZE / 2.0, bar.y + bar.height / 2.0, &name);
    }
}

/// The ends, and between them round numbers that do not touch each other where they stand, the largest first.
fn ticks_of(scale: &Scale, seen: Seen, height: f64) -> Vec<Tick> {
    let all = if scale.is_square_root() && scale.low() == 0.0 {
        ticks::decades(scale.high())
    } else {
        let most = ((height / 28.0) as usize).clamp(3, 9);
        let mut ticks = ticks::linear(scale.low(), scale.high(), most);
        ticks.reverse();
        ticks
    };
    let [mut highest, mut lowest] = [scale.high(), scale.low()].map(|x| {
        let same = all.iter().find(|tick| tick.value == x);
        same.cloned().unwrap_or_else(|| ticks::end(x))
    });
    // There are numbers beyond, in the end's colour.
    if seen.above {
        highest.label.insert_str(0, "≥ ");
    }
    if seen.below {
        lowest.label.insert_str(0, "≤ ");
    }
    let far = |one: &Tick, other: &Tick| {
        ((scale.share(one.value) - scale.share(other.value)) * height).abs() >= APART
    };
    let mut kept = vec![highest];
    for tick in all {
        if far(&tick, &lowest) && kept.last().is_none_or(|last| far(&tick, last)) {
            kept.push(tick);
        }
    }
    kept.push(lowest);
    kept
}

/// A line that names the colours of what is no number on a bar; its width.
pub(super) fn legend(x: f64, y: f64, named: &[(&str, String)], elements: &mut Elements) -> f64 {
    let mut left = x;
    for (name, colour) in named {
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
