//! Images as PNG.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use png::{BitDepth, ColorType, Encoder, Filter};

/// Of each index a colour.
pub(super) type Palette = [[u8; 3]; 256];

/// A PNG of indices into a palette, `width` of them a row, the first row at the top.
pub(super) fn indexed(width: usize, indices: &[u8], palette: &Palette) -> Vec<u8> {
    encoded(width, indices.len() / width, indices, |encoder| {
        encoder.set_color(ColorType::Indexed);
        encoder.set_palette(palette.as_flattened().to_vec());
        // What is alike is equal: differences of indices say nothing.
        encoder.set_filter(Filter::NoFilter);
    })
}

/// A PNG within a text.
pub(crate) fn uri(png: &[u8]) -> String {
    format!("data:image/png;base64,{}", STANDARD.encode(png))
}

/// A PNG of red, green and blue.
pub(super) fn rgb(width: usize, bytes: &[u8]) -> Vec<u8> {
    encoded(width, bytes.len() / (3 * width), bytes, |encoder| encoder.set_color(ColorType::Rgb))
}

fn encoded(
    width: usize,
    height: usize,
    bytes: &[u8],
    set: impl FnOnce(&mut Encoder<'_, &mut Vec<u8>>),
) -> Vec<u8> {
    let [width, height] = [width, height].map(|side| u32::try_from(side).expect("pictures are smaller"));
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, width, height);
    encoder.set_depth(BitDepth::Eight);
    set(&mut encoder);
    let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(bytes));
    written.expect("sizes fit, and memory does not fail to be written");
    file
}
