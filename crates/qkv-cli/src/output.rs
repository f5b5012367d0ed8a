//! The file of `-o`: refused early where it could not be written, then written whole or not at all.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use qkv_io::{Fault, Format, TensorView, WriteOptions};
use qkv_view::{picture, show};

use crate::interrupt;

/// Refuses a file that could not be written, before there is anything to write. `.npy` holds one array without a
/// name: `not_npy` says why that will not do.
pub fn check(path: &Path, not_npy: Option<&str>) -> anyhow::Result<()> {
    let shown = path.display();
    match (Format::of_name(path), not_npy) {
        (None, _) => bail!("-o {shown}: want a name that ends in .npy, .npz or .safetensors"),
        (Some(Format::Npy), Some(reason)) => bail!("-o {shown}: {reason}"),
        _ => qkv_io::check_target(path).map_err(|error| anyhow!("-o {error}")),
    }
}

/// What a picture is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureFormat {
    Svg,
    Png,
}

/// The file of a picture.
pub struct PictureFile {
    path: PathBuf,
    format: PictureFormat,
}

impl PictureFile {
    /// Refuses a file that could not be written, before there is anything to write.
    pub fn new(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let ending = path.extension().and_then(OsStr::to_str).map(str::to_ascii_lowercase);
        let format = match ending.as_deref() {
            Some("svg") => PictureFormat::Svg,
            Some("png") => PictureFormat::Png,
            _ => bail!("-o {shown}: want a name that ends in .png or .svg"),
        };
        qkv_io::check_target(path).map_err(|error| anyhow!("-o {error}"))?;
        Ok(Self { path: path.to_path_buf(), format })
    }

    /// Writes an SVG, as it is or as a PNG with so many pixels for each of its own.
    pub fn write(&self, svg: &str, scale: f32) -> anyhow::Result<()> {
        let bytes = match self.format {
            PictureFormat::Svg => svg.as_bytes().to_vec(),
            PictureFormat::Png => picture::png(svg, scale)?,
        };
        written(|stop| qkv_io::write_bytes(&self.path, &bytes, &WriteOptions::new().cancelled(stop)))
    }
}

/// Refuses a page that could not be written.
pub fn check_page(path: &Path) -> anyhow::Result<()> {
    let ending = path.extension().and_then(OsStr::to_str).map(str::to_ascii_lowercase);
    if !matches!(ending.as_deref(), Some("html" | "htm")) {
        bail!("--export {}: want a name that ends in .html", path.display());
    }
    qkv_io::check_target(path).map_err(|error| anyhow!("--export {error}"))
}

/// Writes a text.
pub fn write_text(path: &Path, text: &str) -> anyhow::Result<()> {
    written(|stop| qkv_io::write_bytes(path, text.as_bytes(), &WriteOptions::new().cancelled(stop)))
}

/// Writes the arrays. Ctrl-C is heeded, and leaves nothing behind.
pub fn write(path: &Path, arrays: &[(&str, TensorView<'_>)]) -> anyhow::Result<()> {
    written(|stop| qkv_io::write(path, arrays, &WriteOptions::new().cancelled(stop)))
}

/// Writes, and heeds Ctrl-C meanwhile.
fn written(write: impl FnOnce(&dyn Fn() -> bool) -> Result<(), qkv_io::Error>) -> anyhow::Result<()> {
    match interrupt::while_writing(write)? {
        Err(error) if matches!(error.fault(), Fault::Cancelled) => Err(interrupt::Interrupted.into()),
        written => Ok(written?),
    }
}

/// The line that says what was written.
pub fn line(path: &Path, arrays: &[(&str, TensorView<'_>)]) -> String {
    let arrays: Vec<_> =
        arrays.iter().map(|(name, array)| format!("{name} {}", show::shape(array.shape()))).collect();
    format!("wrote    {}: {}", path.display(), arrays.join(", "))
}
