//! Which head of an input a command looks at.

use anyhow::bail;
use clap::Args;

#[derive(Args, Clone, Copy, Debug, Default)]
pub struct HeadOptions {
    /// Which query head, counted from 0
    #[arg(long, value_name = "H", default_value_t = 0)]
    pub head: usize,

    /// Which batch, counted flat over all batch axes
    #[arg(long, value_name = "B", default_value_t = 0)]
    pub batch: usize,
}

impl HeadOptions {
    /// Refuses what the input does not have.
    pub fn check(self, batches: usize, heads: usize) -> anyhow::Result<()> {
        below("--batch", self.batch, batches)?;
        below("--head", self.head, heads)
    }
}

/// Refuses an index that does not exist.
pub fn below(option: &str, index: usize, count: usize) -> anyhow::Result<()> {
    match count {
        _ if index < count => Ok(()),
        0 => bail!("{option}: got {index}, but the input has none"),
        _ => bail!("{option}: got {index}, want a number below {count}"),
    }
}
