//! Matrices side by side, with what leads from one to the next.

use super::colour::Scale;
use super::font;
use super::heading::Lines;
use super::heatmap::{Block, Heatmap, MARGIN};
use super::svg::{Anchor, Elements, GREY, Text};

/// Between panels, and at least as long as an arrow.
const GAP: f64 = 36.0;
const LEAST_ARROW: f64 = 44.0;
/// Around an arrow.
const SPACE: f64 = 12.0;
/// Of what stands on an arrow.
const SIZE: f64 = 13.0;
/// Between lines of panels.
const LEADING: f64 = 28.0;
const WIDTH: f64 = 1500.0;

/// Some heatmaps under one title, in lines.
#[derive(Clone, Debug)]
pub struct Panels<'a> {
    /// What leads to a panel, and the panel.
    panels: Vec<(Option<String>, Heatmap<'a>)>,
    leads_to_next: Option<String>,
    title: String,
    subtitle: String,
    caption: String,
    width: f64,
    shared: bool,
}

impl Default for Panels<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Panels<'a> {
    /// None yet; each will have a scale and a colour bar of its own.
    pub fn new() -> Self {
        Self {
            panels: Vec::new(),
            leads_to_next: None,
            title: String::new(),
            subtitle: String::new(),
            caption: String::new(),
            width: WIDTH,
            shared: false,
        }
    }

    /// One more heatmap, with its own title and caption.
    pub fn panel(mut self, heatmap: Heatmap<'a>) -> Self {
        self.panels.push((self.leads_to_next.take(), heatmap));
        self
    }

    /// An arrow from the last panel to the next, with a formula on it that may be empty.
    pub fn arrow(mut self, formula: impl Into<String>) -> Self {
        self.leads_to_next = Some(formula.into());
        self
    }

    /// What it is, above.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// More about it, below the title.
    pub fn subtitle(mut self, subtitle: impl Into<String>) -> Self {
        self.subtitle = subtitle.into();
        self
    }

    /// What there is to see, below all.
    pub fn caption(mut self, caption: impl Into<String>) -> Self {
        self.caption = caption.into();
        self
    }

    /// How many pixels a line of panels is wide, at most, unless one panel is wider. 1500 by default.
    pub fn width(mut self, width: usize) -> Self {
        self.width = width as f64;
        self
    }

    /// Panels that ask for the same [`Colours`](super::Colours) share one scale and, in each line, one bar beside the
    /// last of them: equal numbers have equal colours.
    pub fn shared_scale(mut self) -> Self {
        self.shared = true;
        self
    }

    /// As SVG.
    pub fn svg(&self) -> String {
        let lines = self.lines();
        let width = lines.iter().map(Line::width).fold(0.0, f64::max);
        let heading = Lines::heading(&self.title, &self.subtitle, width);
        let caption = Lines::caption(&self.caption, width);
        let mut elements = Elements::default();
        heading.draw(0.0, 0.0, &mut elements);
        let mut y = heading.height();
        for (index, line) in lines.iter().enumerate() {
            y += if index > 0 { LEADING } else { 0.0 };
            line.draw(y, &mut elements);
            y += line.height();
        }
        if caption.height() > 0.0 {
            caption.draw(0.0, y + SPACE, &mut elements);
            y += caption.height() + SPACE;
        }
        let mut page = Elements::default();
        page.place(MARGIN, MARGIN, &elements);
        let width = width.max(heading.width()).max(caption.width());
        let name = if self.title.is_empty() { "attention matrices" } else { &self.title };
        let described: Vec<String> =
            self.panels.iter().map(|(_, panel)| format!("{}. {}", panel.name(), panel.described())).collect();
        page.document((width + 2.0 * MARGIN, y + 2.0 * MARGIN), name, &described.join(" "))
    }
}

impl Panels<'_> {
    /// The scale of a panel.
    fn scale(&self, index: usize) -> Scale {
        let panel = &self.panels[index].1;
        if !self.shared {
            return panel.scale();
        }
        let group = (0..self.panels.len()).filter(|other| self.share(index, *other));
        panel.wanted().scale(group.flat_map(|other| self.panels[other].1.drawn()))
    }

    /// Whether two panels are coloured by one scale.
    fn share(&self, one: usize, other: usize) -> bool {
        self.shared && self.panels[one].1.wanted() == self.panels[other].1.wanted()
    }

    /// As many panels in each line as fit, laid out.
    fn lines(&self) -> Vec<Line<'_>> {
        let scales: Vec<Scale> = (0..self.panels.len()).map(|index| self.scale(index)).collect();
        let mut lines: Vec<Line<'_>> = Vec::new();
        for (index, (arrow, heatmap)) in self.panels.iter().enumerate() {
            let panel = Panel {
                index,
                arrow: arrow.as_deref(),
                block: heatmap.block(&scales[index], true, Lines::part),
            };
            match lines.last_mut() {
                Some(line) if line.width() + panel.lead(true) + panel.block.width <= self.width => {
                    line.panels.push(panel);
                }
                _ => lines.push(Line { panels: vec![panel] }),
            }
        }
        // One bar is enough for those of a line that share a scale.
        for line in &mut lines {
            let indices: Vec<usize> = line.panels.iter().map(|panel| panel.index).collect();
            for panel in &mut line.panels {
                if indices.iter().any(|later| *later > panel.index && self.share(panel.index, *later)) {
                    panel.block = self.panels[panel.index].1.block(&scales[panel.index], false, Lines::part);
                }
            }
        }
        lines
    }
}

struct Panel<'p> {
    index: usize,
    /// What leads to it.
    arrow: Option<&'p str>,
    block: Block,
}

impl Panel<'_> {
    /// Pixels before it, where its arrow is.
    fn lead(&self, follows: bool) -> f64 {
        match self.arrow {
            Some(formula) => arrow_length(formula) + if follows { 2.0 * SPACE } else { SPACE },
            None if follows => GAP,
            None => 0.0,
        }
    }
}

/// Panels side by side, their cells beginning at one height.
struct Line<'p> {
    panels: Vec<Panel<'p>>,
}

impl Line<'_> {
    /// Where panels begin, and where the last one ends.
    fn places(&self) -> (Vec<f64>, f64) {
        let mut x = 0.0;
        let mut places = Vec::new();
        for (index, panel) in self.panels.iter().enumerate() {
            x += panel.lead(index > 0);
            places.push(x);
            x += panel.block.width;
        }
        (places, x)
    }

    fn width(&self) -> f64 {
        self.places().1
    }

    /// Above the cells of the panel that needs most.
    fn above(&self) -> f64 {
        self.panels.iter().map(|panel| panel.block.cells.y).fold(0.0, f64::max)
    }

    fn height(&self) -> f64 {
        let below = |panel: &Panel<'_>| panel.block.height - panel.block.cells.y;
        self.above() + self.panels.iter().map(below).fold(0.0, f64::max)
    }

    fn draw(&self, y: f64, elements: &mut Elements) {
        let above = self.above();
        for (panel, x) in self.panels.iter().zip(self.places().0) {
            let block = &panel.block;
            elements.place(x, y + above - block.cells.y, &block.elements);
            if let Some(formula) = panel.arrow {
                let length = arrow_length(formula);
                let middle = y + above + (block.cells.height / 2.0).round();
                draw_arrow(formula, (x - SPACE - length, middle), length, elements);
            }
        }
    }
}

fn arrow_length(formula: &str) -> f64 {
    (font::width(formula, SIZE) + 12.0).max(LEAST_ARROW).ceil()
}

/// An arrow to the right from a place, with its formula above.
fn draw_arrow(formula: &str, (x, y): (f64, f64), length: f64, elements: &mut Elements) {
    const HEAD: f64 = 8.0;
    let tip = x + length;
    let base = tip - HEAD;
    let corners = [(x, 1.0), (base, 1.0), (base, 4.5), (tip, 0.0), (base, -4.5), (base, -1.0), (x, -1.0)];
    elements.polygon(&corners.map(|(x, down)| (x, y + down)), GREY);
    let text = Text::new(formula, SIZE).anchor(Anchor::Middle);
    elements.text(x + length / 2.0, y - 14.0, &text);
}
