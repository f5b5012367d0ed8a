//! Half-open ranges on the command line.

use std::ops::Range;
use std::str::FromStr;

use anyhow::bail;

/// A half-open range; an end that is left out is the array's.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    start: Option<usize>,
    end: Option<usize>,
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || format!("want A:B, two numbers, such as 3:9; got {text:?}");
        let end = |text: &str| match text.trim() {
            "" => Ok(None),
            number => number.parse().map(Some).map_err(|_| wanted()),
        };
        let (start, stop) = text.split_once(':').ok_or_else(wanted)?;
        Ok(Self { start: end(start)?, end: end(stop)? })
    }
}

impl Span {
    pub fn within(self, length: usize, option: &str) -> anyhow::Result<Range<usize>> {
        let (start, end) = (self.start.unwrap_or(0), self.end.unwrap_or(length));
        if start >= end || end > length {
            bail!("{option}: got {start}:{end}, want a range that is not empty, within 0:{length}");
        }
        Ok(start..end)
    }
}
