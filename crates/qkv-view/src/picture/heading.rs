//! What stands above and below a picture: its title, what it is, a caption.

use super::font;
use super::svg::{Elements, GREY, INK, Text};

const TITLE: f64 = 16.0;
/// Of one part of a picture that has a title itself.
const PART: f64 = 13.0;
const SMALL: f64 = 12.0;
/// A line is so much higher than its letters.
const LEADING: f64 = 1.4;
/// Below a heading.
const SPACE: f64 = 10.0;
/// A heading may be wider than a narrow picture.
const LEAST_ROOM: f64 = 280.0;

/// Lines of text, laid out.
#[derive(Clone, Default)]
pub(super) struct Lines {
    lines: Vec<(String, f64, &'static str)>,
}

impl Lines {
    /// A title and a subtitle in about `room` pixels.
    pub(super) fn heading(title: &str, subtitle: &str, room: f64) -> Self {
        Self::headed(title, TITLE, subtitle, room)
    }

    /// The same for a part of a picture.
    pub(super) fn part(title: &str, subtitle: &str, room: f64) -> Self {
        Self::headed(title, PART, subtitle, room)
    }

    fn headed(title: &str, size: f64, subtitle: &str, room: f64) -> Self {
        let mut lines = Self::default();
        lines.add(title, size, INK, room);
        lines.add(subtitle, SMALL, GREY, room);
        lines
    }

    /// What is said below a picture.
    pub(super) fn caption(caption: &str, room: f64) -> Self {
        let mut lines = Self::default();
        lines.add(caption, SMALL, INK, room);
        lines
    }

    fn add(&mut self, text: &str, size: f64, fill: &'static str, room: f64) {
        let lines = font::wrapped(text, size, room.max(LEAST_ROOM));
        self.lines.extend(lines.into_iter().map(|line| (line, size, fill)));
    }

    pub(super) fn width(&self) -> f64 {
        self.lines.iter().map(|(line, size, _)| font::width(line, *size)).fold(0.0, f64::max).ceil()
    }

    /// With the space that sets them off; 0 without lines.
    pub(super) fn height(&self) -> f64 {
        let lines: f64 = self.lines.iter().map(|(_, size, _)| (size * LEADING).round()).sum();
        if lines > 0.0 { lines + SPACE } else { 0.0 }
    }

    /// Draws them from `y` down.
    pub(super) fn draw(&self, x: f64, y: f64, elements: &mut Elements) {
        let mut top = y;
        for (line, size, fill) in &self.lines {
            let height = (size * LEADING).round();
            elements.text(x, top + height / 2.0, &Text::new(line, *size).fill(fill));
            top += height;
        }
    }
}
