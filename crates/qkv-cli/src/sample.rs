//! The built-in sample: one layer's attention over one sentence, from a real model.

use qkv_io::{Format, ReadOptions, read_bytes};

use crate::input::{Input, text};
use crate::options::AttentionOptions;
use crate::source::Arrays;

static FILE: &[u8] = include_bytes!("../data/sample.safetensors");

/// What stands for the file's name.
pub const NAME: &str = "sample";

/// The head in which “it” attends “animal”.
pub const HEAD: usize = 1;

pub fn read(options: &AttentionOptions) -> anyhow::Result<Input> {
    let bundle = read_bytes(FILE, Format::Safetensors, &ReadOptions::new())?;
    let metadata = &bundle.metadata;
    let title =
        format!("the built-in sample: {}, layer {}", text(metadata, "model"), text(metadata, "layer"));
    Input::made(Arrays::new(NAME.to_string(), bundle, Some(Format::Safetensors)), title, options)
}
