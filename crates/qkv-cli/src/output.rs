//! The file of `-o`: refused early where it could not be written, then written whole or not at all.

use std::path::Path;

use anyhow::{anyhow, bail};
use qkv_io::{Fault, Format, TensorView, WriteOptions};
use qkv_view::show;

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

/// Writes the arrays. Ctrl-C is heeded, and leaves nothing behind.
pub fn write(path: &Path, arrays: &[(&str, TensorView<'_>)]) -> anyhow::Result<()> {
    let written = interrupt::while_writing(|stop| {
        qkv_io::write(path, arrays, &WriteOptions::new().cancelled(&|| stop()))
    })?;
    match written {
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
