//! SVG into pixels.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use resvg::tiny_skia::{Color, Pixmap, Transform};
use resvg::usvg::fontdb::{Database, ID, Source, Stretch, Style, Weight};
use resvg::usvg::{FontResolver, ImageHrefResolver, ImageKind, Options, Tree};
use skrifa::{FontRef, MetadataProvider};
use unicode_width::UnicodeWidthChar;

use super::{font, pixels};

/// Pixels on a side, at most.
const MOST_PIXELS: f32 = 32_000.0;

/// Why an SVG became no PNG.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RenderError {
    /// The text is no SVG.
    #[error("the text is no SVG: {0}")]
    Svg(String),
    /// There would be no pixel, or too many.
    #[error(
        "a picture of {width} × {height} pixels at a scale of {scale}: each side must have from 1 to 32000"
    )]
    Size {
        /// Of the SVG.
        width: f32,
        /// Of the SVG.
        height: f32,
        /// As it was asked for.
        scale: f32,
    },
}

/// Pixels of a PNG for each of the SVG's own, for one matrix of so many rows and columns: two where they are few.
pub fn png_scale((rows, columns): (usize, usize)) -> f32 {
    const FEW: usize = 512;
    if rows.max(columns) < FEW { 2.0 } else { 1.0 }
}

/// An SVG of this module as PNG, `scale` pixels for each of its own, on white. A whole `scale` gives each cell the same
/// size. Letters come from a font within the library, those that it lacks from the machine's fonts, and those that these lack
/// are boxes. Nothing else is read: images of the SVG must be PNGs within it.
pub fn png(svg: &str, scale: f32) -> Result<Vec<u8>, RenderError> {
    let fonts = Fonts::for_text(svg);
    let svg = fonts.legible(svg);
    let tree = Tree::from_str(&svg, &fonts.options()).map_err(|error| RenderError::Svg(error.to_string()))?;
    let size = tree.size();
    let [width, height] = [size.width(), size.height()].map(|side| (side * scale).round());
    let size_error = || RenderError::Size { width: size.width(), height: size.height(), scale };
    if ![width, height].iter().all(|side| (1.0..=MOST_PIXELS).contains(side)) {
        return Err(size_error());
    }
    let mut pixmap = Pixmap::new(width as u32, height as u32).ok_or_else(size_error)?;
    pixmap.fill(Color::WHITE);
    resvg::render(&tree, Transform::from_scale(scale, scale), &mut pixmap.as_mut());
    // All is opaque on white.
    let bytes: Vec<u8> = pixmap.pixels().iter().flat_map(|p| [p.red(), p.green(), p.blue()]).collect();
    Ok(pixels::rgb(width as usize, &bytes))
}

/// Fonts for the letters of an SVG, in which letters without a font are replaced.
struct Fonts {
    database: Database,
    embedded: Option<ID>,
    /// Letters that the embedded font lacks.
    others: BTreeMap<char, ID>,
}

impl Fonts {
    /// The machine's fonts are loaded only if the embedded one does not have all letters.
    fn for_text(svg: &str) -> Self {
        let mut database = Database::new();
        let embedded = database.load_font_source(Source::Binary(Arc::new(font::DATA))).first().copied();
        let mut missing: BTreeSet<char> = svg.chars().filter(|letter| !font::has(*letter)).collect();
        let mut others = BTreeMap::new();
        if !missing.is_empty() {
            database.load_system_fonts();
            for id in by_plainness(&database) {
                let found = letters_in(&database, id, &missing);
                missing.retain(|letter| !found.contains(letter));
                others.extend(found.into_iter().map(|letter| (letter, id)));
                if missing.is_empty() {
                    break;
                }
            }
        }
        Self { database, embedded, others }
    }

    /// The text with a box for each letter that no font has: a renderer would leave it out.
    fn legible<'t>(&self, svg: &'t str) -> Cow<'t, str> {
        const BOX: char = '□';
        let shown = |letter: &char| font::has(*letter) || self.others.contains_key(letter);
        if svg.chars().all(|letter| shown(&letter)) {
            return svg.into();
        }
        let letters = svg.chars().filter_map(|letter| match letter {
            letter if shown(&letter) => Some(letter),
            // What has no width only changes its neighbours.
            letter => (letter.width() != Some(0)).then_some(BOX),
        });
        letters.collect::<String>().into()
    }

    fn options(self) -> Options<'static> {
        let Self { database, embedded, others } = self;
        Options {
            fontdb: Arc::new(database),
            font_resolver: FontResolver {
                select_font: Box::new(move |_, _| embedded),
                select_fallback: Box::new(move |letter, used, _| {
                    others.get(&letter).copied().filter(|id| !used.contains(id))
                }),
            },
            image_href_resolver: ImageHrefResolver {
                resolve_data: Box::new(|mime, data, _| (mime == "image/png").then_some(ImageKind::PNG(data))),
                // A path.
                resolve_string: Box::new(|_, _| None),
            },
            ..Options::default()
        }
    }
}

/// Fonts of the machine in an order that does not depend on folders: plain ones first.
fn by_plainness(fonts: &Database) -> Vec<ID> {
    let mut faces: Vec<_> = fonts.faces().collect();
    faces.sort_by_key(|face| {
        let plain = face.style == Style::Normal
            && face.weight == Weight::NORMAL
            && face.stretch == Stretch::Normal
            && !face.monospaced;
        (!plain, face.post_script_name.clone())
    });
    faces.into_iter().map(|face| face.id).collect()
}

fn letters_in(fonts: &Database, id: ID, wanted: &BTreeSet<char>) -> Vec<char> {
    let in_face = |data: &[u8], index| {
        let letters = FontRef::from_index(data, index).map(|font| font.charmap());
        letters.map_or_else(
            |_| Vec::new(),
            |letters| wanted.iter().copied().filter(|letter| letters.map(*letter).is_some()).collect(),
        )
    };
    fonts.with_face_data(id, in_face).unwrap_or_default()
}
