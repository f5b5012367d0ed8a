//! SVG text: elements with numbers written short, texts escaped, and the document around them.

use std::fmt::Write;

use super::font;

/// Black enough to be read, and not harsh.
pub(super) const INK: &str = "#222222";
/// Of what is said besides.
pub(super) const GREY: &str = "#595959";
/// Of frames and ticks.
pub(super) const FRAME: &str = "#767676";

/// A place and an extent, in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Rect {
    pub(super) fn new(x: f64, y: f64, width: f64, height: f64) -> Self {
        Self { x, y, width, height }
    }

    pub(super) fn right(&self) -> f64 {
        self.x + self.width
    }

    pub(super) fn bottom(&self) -> f64 {
        self.y + self.height
    }
}

/// Which point of a text stands at its place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// One line of text; its place is at half its height.
#[derive(Clone, Copy)]
pub(super) struct Text<'a> {
    content: &'a str,
    size: f64,
    anchor: Anchor,
    fill: &'a str,
    degrees: f64,
}

impl<'a> Text<'a> {
    pub(super) fn new(content: &'a str, size: f64) -> Self {
        Self { content, size, anchor: Anchor::Start, fill: INK, degrees: 0.0 }
    }

    pub(super) fn anchor(mut self, anchor: Anchor) -> Self {
        self.anchor = anchor;
        self
    }

    pub(super) fn fill(mut self, fill: &'a str) -> Self {
        self.fill = fill;
        self
    }

    /// Turned about its place, clockwise.
    pub(super) fn turned(mut self, degrees: f64) -> Self {
        self.degrees = degrees;
        self
    }
}

/// Elements, one after the other.
#[derive(Clone, Default)]
pub(super) struct Elements {
    text: String,
}

impl Elements {
    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.text.write_fmt(element);
        self.text.push('\n');
    }

    pub(super) fn text(&mut self, x: f64, y: f64, text: &Text<'_>) {
        if text.content.is_empty() {
            return;
        }
        let drop = text.size * font::HALF_HEIGHT;
        let place = if text.degrees == 0.0 {
            format!("x=\"{}\" y=\"{}\"", number(x), number(y + drop))
        } else {
            let (x, y) = (number(x), number(y));
            format!(
                "transform=\"translate({x} {y}) rotate({})\" y=\"{}\"",
                number(text.degrees),
                number(drop)
            )
        };
        let anchor = match text.anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        // Renderers make one space of many, unless asked on the text itself.
        let spaces = text.content.contains("  ") || text.content.trim_matches(' ') != text.content;
        let kept = if spaces { " xml:space=\"preserve\" style=\"white-space:pre\"" } else { "" };
        let (size, fill, content) = (number(text.size), text.fill, escaped(text.content));
        self.push(format_args!(
            "<text {place} font-size=\"{size}\" fill=\"{fill}\"{anchor}{kept}>{content}</text>"
        ));
    }

    /// A rectangle without a border.
    pub(super) fn rect(&mut self, rect: Rect, fill: &str) {
        self.push(format_args!("<rect {} fill=\"{fill}\"/>", extent(rect)));
    }

    /// A border of one pixel that lies outside a rectangle.
    pub(super) fn frame(&mut self, rect: Rect) {
        let around = Rect::new(rect.x - 0.5, rect.y - 0.5, rect.width + 1.0, rect.height + 1.0);
        self.push(format_args!("<rect {} fill=\"none\" stroke=\"{FRAME}\"/>", extent(around)));
    }

    /// A line of one pixel to the right, in the row of pixels where `y` is.
    pub(super) fn line_right(&mut self, x: f64, y: f64, length: f64) {
        self.rect(Rect::new(x, y.floor(), length, 1.0), FRAME);
    }

    /// A line of one pixel down, in the column of pixels where `x` is.
    pub(super) fn line_down(&mut self, x: f64, y: f64, length: f64) {
        self.rect(Rect::new(x.floor(), y, 1.0, length), FRAME);
    }

    /// A filled polygon.
    pub(super) fn polygon(&mut self, corners: &[(f64, f64)], fill: &str) {
        self.push(format_args!("<path d=\"{}Z\" fill=\"{fill}\"/>", path(corners)));
    }

    /// A PNG image, stretched without smoothing.
    pub(super) fn image(&mut self, rect: Rect, uri: &str) {
        self.push(format_args!(
            "<image {} preserveAspectRatio=\"none\" style=\"image-rendering:pixelated\" href=\"{uri}\"/>",
            extent(rect)
        ));
    }

    /// Other elements, moved.
    pub(super) fn place(&mut self, x: f64, y: f64, elements: &Elements) {
        self.push(format_args!(
            "<g transform=\"translate({} {})\">\n{}</g>",
            number(x),
            number(y),
            elements.text
        ));
    }

    /// Other elements, whose edges are not smoothed: their colours are exact.
    pub(super) fn crisp(&mut self, elements: &Elements) {
        self.push(format_args!("<g shape-rendering=\"crispEdges\">\n{}</g>", elements.text));
    }

    /// Other elements, where they are.
    pub(super) fn append(&mut self, elements: &Elements) {
        self.text.push_str(&elements.text);
    }

    /// The whole picture on white; `name` and `description` are for those who do not see it.
    pub(super) fn document(&self, (width, height): (f64, f64), name: &str, description: &str) -> String {
        let (width, height) = (number(width.ceil()), number(height.ceil()));
        let described = match description {
            "" => String::new(),
            text => format!("<desc>{}</desc>\n", escaped(text)),
        };
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\" font-family=\"{}\" direction=\"ltr\">\n<title>{}</title>\n{described}\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n{}</svg>\n",
            font::FAMILIES,
            escaped(name),
            self.text,
        )
    }
}

fn extent(rect: Rect) -> String {
    let Rect { x, y, width, height } = rect;
    format!(
        "x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"",
        number(x),
        number(y),
        number(width),
        number(height)
    )
}

fn path(points: &[(f64, f64)]) -> String {
    let mut path = String::new();
    for (index, (x, y)) in points.iter().enumerate() {
        let _ = write!(path, "{}{} {}", if index == 0 { 'M' } else { 'L' }, number(*x), number(*y));
    }
    path
}

/// At most two decimals.
fn number(x: f64) -> String {
    let text = format!("{x:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_string() } else { text.to_string() }
}

/// A text within XML. What XML cannot hold, and what would turn the direction of the text around it, is replaced.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\t' | '\n' | '\r' | '\u{2028}' | '\u{2029}' => escaped.push(' '),
            letter if letter.is_control() || TURNING.contains(&letter) => escaped.push('\u{fffd}'),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// What changes the direction of writing.
const TURNING: [char; 12] = [
    '\u{200e}', '\u{200f}', '\u{061c}', '\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}', '\u{202e}',
    '\u{2066}', '\u{2067}', '\u{2068}', '\u{2069}',
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([1.0, 0.5, -0.001, 12.345, 100.0].map(number), ["1", "0.5", "0", "12.35", "100"]);
    }

    #[test]
    fn texts_can_be_anything() {
        assert_eq!(escaped("</text><b>&\"'"), "&lt;/text&gt;&lt;b&gt;&amp;\"'");
        assert_eq!(escaped("a\nb\u{0}c\u{202e}d\u{ffff}"), "a b\u{fffd}c\u{fffd}d\u{fffd}");
    }
}
