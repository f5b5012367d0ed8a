//! A picture, looked at: its texts with their places, its images, its pixels.

// Each test file uses some of it.
#![allow(dead_code)]

use qkv_view::picture::png;
use resvg::usvg::roxmltree::{Document, Node};
use resvg::usvg::{self, Group};

/// What an SVG has.
pub struct Looked {
    pub texts: Vec<Text>,
    pub images: Vec<Rect>,
    /// Rectangles whose edges are not smoothed, with their colours.
    pub crisp: Vec<(Rect, String)>,
    pub title: String,
    pub description: String,
    pub size: (f64, f64),
}

pub struct Text {
    pub content: String,
    pub x: f64,
    /// The middle of its letters.
    pub y: f64,
    pub turned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rect {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

/// Reads an SVG as a reader of XML does; every element must be one that pictures have.
pub fn look(svg: &str) -> Looked {
    let document = Document::parse(svg).expect("well-formed");
    let root = document.root_element();
    let of =
        |name: &str| root.children().find(|node| node.has_tag_name(("http://www.w3.org/2000/svg", name)));
    let inner = |name: &str| of(name).and_then(|node| node.text()).unwrap_or_default().to_string();
    let mut looked = Looked {
        texts: Vec::new(),
        images: Vec::new(),
        crisp: Vec::new(),
        title: inner("title"),
        description: inner("desc"),
        size: (number(&root, "width"), number(&root, "height")),
    };
    assert_eq!(root.attribute("role"), Some("img"));
    assert_eq!(root.attribute("viewBox"), Some(format!("0 0 {} {}", looked.size.0, looked.size.1).as_str()));
    for node in document.descendants().filter(Node::is_element) {
        let (x, y) = origin(&node);
        match node.tag_name().name() {
            "svg" | "g" | "path" | "title" | "desc" => {}
            "text" => looked.texts.push(text(&node, (x, y))),
            "image" => looked.images.push(rect(&node, (x, y))),
            "rect" => {
                if node.parent_element().and_then(|group| group.attribute("shape-rendering")).is_some() {
                    let fill = node.attribute("fill").unwrap_or_default().to_string();
                    looked.crisp.push((rect(&node, (x, y)), fill));
                }
            }
            other => panic!("an element {other}"),
        }
    }
    looked
}

impl Looked {
    pub fn contents(&self) -> Vec<&str> {
        self.texts.iter().map(|text| text.content.as_str()).collect()
    }

    pub fn text(&self, content: &str) -> &Text {
        let found = self.texts.iter().find(|text| text.content == content);
        found.unwrap_or_else(|| panic!("no {content:?} among {:?}", self.contents()))
    }
}

fn text(node: &Node<'_, '_>, (x, y): (f64, f64)) -> Text {
    let transform = node.attribute("transform").unwrap_or_default();
    let drop = number(node, "font-size") * 0.36;
    Text {
        content: node.text().unwrap_or_default().to_string(),
        x: x + number(node, "x"),
        y: y + number(node, "y") - drop,
        turned: transform.contains("rotate"),
    }
}

fn rect(node: &Node<'_, '_>, (x, y): (f64, f64)) -> Rect {
    let [left, top, width, height] = ["x", "y", "width", "height"].map(|name| number(node, name));
    Rect { x: x + left, y: y + top, width, height }
}

fn number(node: &Node<'_, '_>, name: &str) -> f64 {
    node.attribute(name).map_or(0.0, |text| text.parse().expect("a number"))
}

/// The sum of all translations.
fn origin(node: &Node<'_, '_>) -> (f64, f64) {
    let translated = node.ancestors().filter_map(|node| {
        let transform = node.attribute("transform")?.strip_prefix("translate(")?;
        let (x, y) = transform.split_once(')')?.0.split_once(' ')?;
        Some((x.parse::<f64>().ok()?, y.parse::<f64>().ok()?))
    });
    translated.fold((0.0, 0.0), |(x, y), (dx, dy)| (x + dx, y + dy))
}

/// The boxes of all texts as they are drawn: content, left, top, right, bottom, and whether it is turned.
pub fn boxes(svg: &str) -> Vec<(String, [f32; 4], bool)> {
    let mut options = usvg::Options::default();
    let font = concat!(env!("CARGO_MANIFEST_DIR"), "/fonts/DejaVuSans-subset.ttf");
    options.fontdb_mut().load_font_file(font).expect("the font");
    let tree = usvg::Tree::from_str(svg, &options).expect("SVG");
    let mut found = Vec::new();
    gather(tree.root(), &mut found);
    found
}

fn gather(group: &Group, found: &mut Vec<(String, [f32; 4], bool)>) {
    for node in group.children() {
        match node {
            usvg::Node::Group(group) => gather(group, found),
            usvg::Node::Text(text) => {
                let content = text.chunks().iter().map(|chunk| chunk.text()).collect();
                let area = text.abs_bounding_box();
                let turned = text.abs_transform().kx != 0.0;
                found.push((content, [area.left(), area.top(), area.right(), area.bottom()], turned));
            }
            _ => {}
        }
    }
}

/// Pixels of a picture.
pub struct Pixels {
    pub width: usize,
    pub height: usize,
    bytes: Vec<u8>,
}

impl Pixels {
    pub fn of(svg: &str, scale: f32) -> Self {
        let file = png(svg, scale).expect("a picture");
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().expect("PNG");
        let mut bytes = vec![0; reader.output_buffer_size().expect("a size")];
        let info = reader.next_frame(&mut bytes).expect("PNG");
        assert_eq!((info.color_type, info.bit_depth), (png::ColorType::Rgb, png::BitDepth::Eight));
        Self { width: info.width as usize, height: info.height as usize, bytes }
    }

    pub fn at(&self, x: usize, y: usize) -> [u8; 3] {
        let start = (y * self.width + x) * 3;
        [0, 1, 2].map(|part| self.bytes[start + part])
    }
}
