//! The font of pictures: how wide a text is, so that labels are placed where they fit.

use std::sync::LazyLock;

use skrifa::charmap::Charmap;
use skrifa::instance::{LocationRef, Size};
use skrifa::metrics::GlyphMetrics;
use skrifa::{FontRef, MetadataProvider};
use unicode_width::UnicodeWidthChar;

/// DejaVu Sans, reduced to some scripts.
pub(super) const DATA: &[u8] = include_bytes!("../../fonts/DejaVuSans-subset.ttf");
/// Families in order of preference; Verdana is as wide as DejaVu Sans.
pub(super) const FAMILIES: &str = "DejaVu Sans, Verdana, sans-serif";
/// Letters are centred where their baseline is this share of their size lower.
pub(super) const HALF_HEIGHT: f64 = 0.36;

struct Metrics {
    letters: Charmap<'static>,
    glyphs: GlyphMetrics<'static>,
    units: f64,
}

static METRICS: LazyLock<Metrics> = LazyLock::new(|| {
    let font = FontRef::new(DATA).expect("the embedded font is a font");
    let units = f64::from(font.metrics(Size::unscaled(), LocationRef::default()).units_per_em);
    Metrics {
        letters: font.charmap(),
        glyphs: font.glyph_metrics(Size::unscaled(), LocationRef::default()),
        units,
    }
});

/// The width of a text in pixels; of letters that the font lacks, a guess on the large side.
pub(super) fn width(text: &str, size: f64) -> f64 {
    text.chars().map(advance).sum::<f64>() * size
}

/// A text in at most `room` pixels.
pub(super) fn cut(text: &str, size: f64, room: f64) -> String {
    if width(text, size) <= room {
        return text.to_string();
    }
    let mut left = room - width("…", size);
    let fits = |letter: &char| {
        left -= advance(*letter) * size;
        left >= 0.0
    };
    let kept: String = text.chars().take_while(fits).collect();
    kept + "…"
}

/// A text in lines of at most `room` pixels.
pub(super) fn wrapped(text: &str, size: f64, room: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(line, size) + width(" ", size) + width(word, size) <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(cut(word, size, room)),
        }
    }
    lines
}

/// The widest of some texts.
pub(super) fn widest<'t>(texts: impl Iterator<Item = &'t str>, size: f64) -> f64 {
    texts.map(|text| width(text, size)).fold(0.0, f64::max)
}

/// Whether the font has a letter, or needs none for it.
pub(super) fn has(letter: char) -> bool {
    letter.is_ascii() || METRICS.letters.map(letter).is_some()
}

/// In shares of the size.
fn advance(letter: char) -> f64 {
    let known = METRICS.letters.map(letter).and_then(|glyph| METRICS.glyphs.advance_width(glyph));
    match known {
        Some(units) => f64::from(units) / METRICS.units,
        None => [0.0, 0.7, 1.25][letter.width().unwrap_or(1).min(2)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_are_those_of_the_font() {
        assert_eq!(width("0", 2048.0), 1303.0);
        assert_eq!(width("00", 2048.0), 2606.0);
        assert_eq!(width("", 12.0), 0.0);
        assert!(width("猫", 10.0) >= 10.0);
    }

    #[test]
    fn texts_are_cut_and_wrapped_to_their_room() {
        assert_eq!(cut("attention", 10.0, 1000.0), "attention");
        let short = cut("attention", 10.0, 30.0);
        assert!(short.ends_with('…') && short.len() > 4 && width(&short, 10.0) <= 30.0, "{short}");
        let lines = wrapped("who attends to  whom\nand-a-word-that-is-far-too-long", 10.0, 60.0);
        assert!(lines.iter().all(|line| width(line, 10.0) <= 60.0), "{lines:?}");
        assert_eq!(lines[0], "who");
        assert_eq!(wrapped(" \n", 10.0, 60.0), Vec::<String>::new());
    }
}
