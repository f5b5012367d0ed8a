//! The attention options that every command has, as they are given on the command line. What they come to together
//! with a file's metadata is `settings.rs`'s.

use std::path::PathBuf;

use clap::{Arg, Args, ValueEnum};
use qkv::Window;
use qkv_io::ReadOptions;

use crate::source::Source;

/// One group for every command.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Attention")]
pub struct AttentionOptions {
    /// Queries attend only keys at their own position and before. Bare: top-left, as torch's is_causal (with
    /// --query-offset: at that position); bottom-right: the last query stands at the last key; none: not, whatever
    /// the file says
    #[arg(long, value_name = "ALIGNMENT", num_args = 0..=1, require_equals = true, default_missing_value = "bare")]
    pub causal: Option<Causal>,

    /// Causal, but the first N keys (positions below N, with --key-offset) are open to all: one number, or one for each
    /// batch
    #[arg(long, value_name = "N[,N…]", value_delimiter = ',')]
    pub prefix: Option<Vec<u64>>,

    /// The position of the first query
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub query_offset: Option<i64>,

    /// The position of the first key, at least 0
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub key_offset: Option<i64>,

    /// A mask. Boolean: true = may attend; numbers: added to the scores
    #[arg(long, value_name = "FILE[:NAME]")]
    pub mask: Option<Source>,

    /// What the numbers of a mask mean: allow blocks where 0, additive adds them to the scores
    #[arg(long, value_name = "MEANING")]
    pub mask_as: Option<MaskAs>,

    /// What scores are multiplied by; 1/√dim by default
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub scale: Option<f64>,

    /// Squeezes scores into (-C, C): C · tanh(score / C)
    #[arg(long, value_name = "C", allow_negative_numbers = true)]
    pub softcap: Option<f64>,

    /// Takes each head's slope times the distance off the scores
    #[arg(long)]
    pub alibi: bool,

    /// One score for each query head, (H,), that takes part in the softmax without a value
    #[arg(long, value_name = "FILE[:NAME]")]
    pub sinks: Option<Source>,

    /// How many positions before and after its own a query sees; - is no bound
    #[arg(long, value_name = "LEFT,RIGHT", allow_hyphen_values = true, value_parser = parse_window)]
    pub window: Option<Window>,

    /// How many of the keys count: one number, or one for each batch
    #[arg(long, value_name = "N[,N…]", value_delimiter = ',')]
    pub key_lengths: Option<Vec<usize>>,

    /// Packed documents, each of which sees only itself: ids (B, S) or (S,), or arrays `query` and `key`
    #[arg(long, value_name = "FILE")]
    pub segments: Option<PathBuf>,

    /// The axes of arrays of rank 4: (batch, heads, length, dim) or (batch, length, heads, dim)
    #[arg(long, value_name = "AXES", default_value = "bhsd")]
    pub layout: AxisOrder,

    /// Arrays, or a layer's projections, are packed, (batch, length, heads · dim), with this many query heads
    #[arg(long, value_name = "N")]
    pub heads: Option<usize>,

    /// Which layer of a recording: a file of arrays layers.N.q, layers.N.k and layers.N.v
    #[arg(long, value_name = "N")]
    pub layer: Option<usize>,

    /// What the 2-byte voids of a .npy file are
    #[arg(long = "as", value_name = "TYPE")]
    pub void_as: Option<VoidAs>,

    /// Threads; by default one for each core
    #[arg(long, value_name = "N", value_parser = parse_at_least_one)]
    pub threads: Option<usize>,

    /// The seed of what is drawn: a lesson's numbers [default: 42, of the second lesson 0], else the audit's rows
    /// [default: 0]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

impl AttentionOptions {
    /// How files are to be read.
    pub fn reading(&self) -> ReadOptions {
        ReadOptions::new().void_as_bf16(self.void_as.is_some())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Causal {
    #[value(hide = true)]
    Bare,
    TopLeft,
    BottomRight,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MaskAs {
    Allow,
    Additive,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AxisOrder {
    #[default]
    Bhsd,
    Bshd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VoidAs {
    Bf16,
}

pub fn parse_window(text: &str) -> Result<Window, String> {
    let wanted = || format!("want LEFT,RIGHT: two numbers of positions, such as 127,0 or -,0; got {text:?}");
    let bound = |text: &str| match text.trim() {
        "-" => Ok(None),
        number => number.parse().map(Some).map_err(|_| wanted()),
    };
    let (left, right) = text.split_once(',').ok_or_else(wanted)?;
    Ok(Window { left: bound(left)?, right: bound(right)? })
}

/// An option that is taken and means nothing: not in the help.
pub fn hidden(option: Arg) -> Arg {
    option.hide(true)
}

/// A number of threads or rounds.
pub fn parse_at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("want at least 1".to_string()),
        Ok(count) => Ok(count),
        Err(error) => Err(error.to_string()),
    }
}
