//! The options of a call, settled: what the command line says, and where it is silent the input's metadata.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context, anyhow, bail};
use ndarray::{ArrayD, Axis};
use qkv::{Alibi, Alignment, Attention, Hint, MaskFn, Region, Window};
use qkv_io::{Tensor, TensorView};
use qkv_view::show;

use crate::mask::as_f64;
use crate::options::{AttentionOptions, Causal, MaskAs, parse_window};
use crate::source::{self, Arrays};

/// Everything a call is told but the arrays and the mask.
pub struct Settings {
    pub scale: Option<f64>,
    /// Who gave the scale.
    pub scale_from: &'static str,
    pub softcap: Option<f64>,
    pub causal: Option<Alignment>,
    pub prefix: Option<Vec<u64>>,
    pub query_offset: Option<i64>,
    pub key_offset: i64,
    pub window: Option<Window>,
    pub key_lengths: Option<Vec<usize>>,
    pub segments: Option<Segments>,
    /// What the input's metadata says of tokens that only fill a batch up.
    pub padding: Option<Padding>,
    pub alibi: bool,
    pub sinks: Option<Vec<f64>>,
    /// What the input's metadata says about its own mask.
    pub mask_as: Option<MaskAs>,
    /// What was taken from the metadata, and what of it the options replaced, in words.
    pub notes: Vec<String>,
}

/// Ids of packed documents, `(batch, length)` or `(length,)`.
pub struct Segments {
    pub query: ArrayD<i64>,
    pub key: ArrayD<i64>,
}

/// For each batch the positions of its real tokens, from one up to but not including another. The others attend nothing and are
/// attended by none.
pub struct Padding(Vec<[i64; 2]>);

impl Padding {
    /// Whether there is one range for all batches, or one for each.
    pub fn check(&self, batches: usize) -> anyhow::Result<()> {
        match self.0.len() {
            1 => Ok(()),
            count if count == batches => Ok(()),
            count => bail!("metadata padding: got {count} ranges, want 1 or {batches}: one for each batch"),
        }
    }

    fn real(&self, batch: usize) -> Range<i64> {
        let [start, end] = self.0[batch.min(self.0.len() - 1)];
        start..end
    }
}

impl MaskFn for Padding {
    fn fill(&self, region: &Region, visible: &mut [bool]) {
        let real = self.real(region.batch);
        for (query, row) in region.queries.clone().zip(visible.chunks_mut(region.width())) {
            for (key, visible) in region.keys.clone().zip(row) {
                *visible = real.contains(&query) && real.contains(&key);
            }
        }
    }

    fn hint(&self, region: &Region) -> Hint {
        let real = self.real(region.batch);
        let within = |range: &Range<i64>| real.start <= range.start && range.end <= real.end;
        let apart = |range: &Range<i64>| range.end <= real.start || real.end <= range.start;
        if within(&region.queries) && within(&region.keys) {
            Hint::Full
        } else if apart(&region.queries) || apart(&region.keys) {
            Hint::Empty
        } else {
            Hint::Mixed
        }
    }
}

impl Settings {
    pub fn new(
        options: &AttentionOptions,
        file: &str,
        metadata: &BTreeMap<String, String>,
    ) -> anyhow::Result<Self> {
        let mut notes = Vec::new();
        let metadata = Metadata { file, texts: metadata };
        let (scale, scale_from) = match (options.scale, metadata.texts.get("scale")) {
            (Some(scale), text) => {
                notes.extend(text.map(|text| format!("scale {text} is replaced by --scale {scale}")));
                (Some(scale), "--scale")
            }
            (None, Some(text)) => {
                notes.push(format!("scale {text}"));
                (Some(metadata.parse("scale", "a number")?), "the file's metadata")
            }
            (None, None) => (None, "1/√dim, the default"),
        };
        let causal = alignment(options, &metadata, &mut notes)?;
        let mask_as = metadata.mask_as()?;
        let softcap =
            match (options.softcap, metadata.noted("softcap", options.softcap.is_some(), &mut notes)) {
                (None, true) => Some(metadata.parse("softcap", "a number")?),
                (given, _) => given,
            };
        let window = match (options.window, metadata.noted("window", options.window.is_some(), &mut notes)) {
            (None, true) => Some(metadata.window()?),
            (given, _) => given,
        };
        let padding = match metadata.noted("padding", false, &mut notes) {
            true => Some(metadata.padding()?),
            false => None,
        };
        if let Some(lowest) = options.key_offset.filter(|&offset| offset < 0) {
            bail!("--key-offset: got {lowest}, want at least 0");
        }
        Ok(Self {
            scale,
            scale_from,
            softcap,
            causal,
            prefix: options.prefix.clone(),
            query_offset: if causal.is_some() { None } else { options.query_offset },
            key_offset: options.key_offset.unwrap_or(0),
            window,
            key_lengths: options.key_lengths.clone(),
            segments: read_segments(options)?,
            padding,
            alibi: options.alibi,
            sinks: read_sinks(options)?,
            mask_as,
            notes,
        })
    }

    /// The engine's options, for the queries from `first` on of `len_query`.
    pub fn attention(&self, first: usize, len_query: usize) -> Attention<'_> {
        let mut attention = Attention::new().key_offset(self.key_offset);
        if let Some(scale) = self.scale {
            attention = attention.scale(scale);
        }
        if let Some(cap) = self.softcap {
            attention = attention.softcap(cap);
        }
        let later = |offset: i64| offset.saturating_add(first as i64);
        attention = match self.causal {
            // The last rows end where all rows end.
            Some(Alignment::BottomRight) => attention.causal(Alignment::BottomRight),
            Some(Alignment::TopLeft) if first == 0 => attention.causal(Alignment::TopLeft),
            Some(Alignment::TopLeft) => attention.causal(Alignment::Offset(later(0))),
            Some(Alignment::Offset(offset)) => attention.causal(Alignment::Offset(later(offset))),
            None => attention.query_offset(later(self.query_offset.unwrap_or(0))),
        };
        if let Some(prefix) = &self.prefix {
            attention = attention.prefix(prefix.clone());
        }
        if let Some(Window { left, right }) = self.window {
            attention = attention.window(left, right);
        }
        if let Some(lengths) = &self.key_lengths {
            attention = attention.key_lengths(lengths.clone());
        }
        if let Some(Segments { query, key }) = &self.segments {
            let mut query = query.view();
            if let Some(axis) = query.ndim().checked_sub(1)
                && query.shape()[axis] == len_query
            {
                query.slice_axis_inplace(Axis(axis), (first..).into());
            }
            attention = attention.segments(query, key.view());
        }
        if let Some(padding) = &self.padding {
            attention = attention.mask_fn(padding);
        }
        if self.alibi {
            attention = attention.alibi(Alibi::Paper);
        }
        if let Some(sinks) = &self.sinks {
            attention = attention.sinks(sinks.clone());
        }
        attention
    }
}

/// Where the queries stand, if order matters.
fn alignment(
    options: &AttentionOptions,
    metadata: &Metadata<'_>,
    notes: &mut Vec<String>,
) -> anyhow::Result<Option<Alignment>> {
    let said = match (options.causal, metadata.texts.get("causal")) {
        (Some(said), Some(text)) => {
            let option = match said {
                Causal::Bare => "--causal",
                Causal::TopLeft => "--causal=top-left",
                Causal::BottomRight => "--causal=bottom-right",
                Causal::None => "--causal=none",
            };
            notes.push(format!("causal {text} is replaced by {option}"));
            Some(said)
        }
        (None, Some(text)) => {
            let own = metadata.causal(text)?;
            if options.prefix.is_some() && own == Causal::None {
                notes.push(format!("causal {text} is replaced by --prefix"));
                None
            } else if options.query_offset.is_some() && own != Causal::None {
                notes.push(format!("causal {text}, aligned by --query-offset"));
                Some(Causal::Bare)
            } else {
                notes.push(format!("causal {text}"));
                Some(own)
            }
        }
        (said, None) => said,
    };
    match (said, options.query_offset) {
        (Some(Causal::None), _) if options.prefix.is_some() => {
            bail!(
                "--causal=none and --prefix: a prefix is a kind of causal order; without it every key is open already"
            )
        }
        (Some(Causal::TopLeft), Some(offset)) => bail!(
            "--causal=top-left and --query-offset {offset} both say where the queries stand; give one \
             (bare --causal takes the offset)"
        ),
        (Some(Causal::BottomRight), Some(offset)) => bail!(
            "--causal=bottom-right and --query-offset {offset} both say where the queries stand; give one \
             (bare --causal takes the offset)"
        ),
        (Some(Causal::Bare), Some(offset)) => Ok(Some(Alignment::Offset(offset))),
        (Some(Causal::Bare | Causal::TopLeft), None) => Ok(Some(Alignment::TopLeft)),
        (Some(Causal::BottomRight), None) => Ok(Some(Alignment::BottomRight)),
        (None, offset) if options.prefix.is_some() => {
            Ok(Some(offset.map_or(Alignment::TopLeft, Alignment::Offset)))
        }
        (Some(Causal::None) | None, _) => Ok(None),
    }
}

/// A file's texts, which are defaults.
struct Metadata<'a> {
    file: &'a str,
    texts: &'a BTreeMap<String, String>,
}

impl Metadata<'_> {
    fn parse<N: std::str::FromStr>(&self, key: &str, wanted: &str) -> anyhow::Result<N> {
        let text = self.texts.get(key).map_or("", String::as_str);
        let number = text.trim().parse().ok();
        number.with_context(|| format!("{}: metadata {key}: got {text:?}, want {wanted}", self.file))
    }

    /// Whether there is such a text; if so, that it is used or replaced is noted.
    fn noted(&self, key: &str, replaced: bool, notes: &mut Vec<String>) -> bool {
        let Some(text) = self.texts.get(key) else { return false };
        let by = if replaced { format!(" is replaced by --{key}") } else { String::new() };
        notes.push(match key {
            // It may be long.
            "padding" => format!("padding{by}"),
            _ => format!("{key} {text}{by}"),
        });
        true
    }

    fn window(&self) -> anyhow::Result<Window> {
        let text = self.texts.get("window").map_or("", String::as_str);
        parse_window(text).map_err(|error| anyhow!("{}: metadata window: {error}", self.file))
    }

    fn padding(&self) -> anyhow::Result<Padding> {
        let text = self.texts.get("padding").map_or("", String::as_str);
        match serde_json::from_str::<Vec<[i64; 2]>>(text) {
            Ok(real) if !real.is_empty() => Ok(Padding(real)),
            _ => bail!(
                "{}: metadata padding: want a JSON list of [start, end], the positions of each batch's real tokens, such as \
                 [[0, 12], [3, 12]]",
                self.file
            ),
        }
    }

    fn causal(&self, text: &str) -> anyhow::Result<Causal> {
        match text.trim().to_ascii_lowercase().as_str() {
            "true" => Ok(Causal::Bare),
            "false" => Ok(Causal::None),
            "top-left" => Ok(Causal::TopLeft),
            "bottom-right" => Ok(Causal::BottomRight),
            _ => bail!(
                "{}: metadata causal: got {text:?}, want true, false, top-left or bottom-right",
                self.file
            ),
        }
    }

    fn mask_as(&self) -> anyhow::Result<Option<MaskAs>> {
        match self.texts.get("mask-as").map(|text| text.trim()) {
            None => Ok(None),
            Some("allow") => Ok(Some(MaskAs::Allow)),
            Some("additive") => Ok(Some(MaskAs::Additive)),
            Some(text) => bail!("{}: metadata mask-as: got {text:?}, want allow or additive", self.file),
        }
    }
}

/// What a file's metadata says that its mask's numbers mean.
pub fn mask_as_of(file: &str, metadata: &BTreeMap<String, String>) -> anyhow::Result<Option<MaskAs>> {
    Metadata { file, texts: metadata }.mask_as()
}

fn read_sinks(options: &AttentionOptions) -> anyhow::Result<Option<Vec<f64>>> {
    let Some(source) = &options.sinks else { return Ok(None) };
    let (array, _) = source::read(source, &["sinks", "sink"], &options.reading())?;
    match array.tensor.shape() {
        [_] => Ok(Some(as_f64(&array.tensor.view()).into_iter().collect())),
        shape => bail!("sinks {}: got shape {}, want (heads,)", array.origin, show::shape(shape)),
    }
}

fn read_segments(options: &AttentionOptions) -> anyhow::Result<Option<Segments>> {
    let Some(path) = &options.segments else { return Ok(None) };
    let mut arrays = Arrays::open(path, &options.reading())?;
    let query = arrays.take(&["query", "q"])?;
    let key = arrays.take(&["key", "k"])?;
    let (query, key) = match (query, key, arrays.bundle.arrays.len()) {
        (Some(query), Some(key), _) => (query, key),
        (None, None, 1) => {
            let only = arrays.take_only()?;
            (only.clone(), only)
        }
        _ => bail!(
            "--segments {}: has {}; want one array of ids, or two named query and key",
            arrays.file,
            arrays.list()
        ),
    };
    let ids =
        |array: &source::Array| integers(&array.tensor).with_context(|| format!("segments {}", array.origin));
    Ok(Some(Segments { query: ids(&query)?, key: ids(&key)? }))
}

fn integers(tensor: &Tensor) -> anyhow::Result<ArrayD<i64>> {
    Ok(match tensor.view() {
        TensorView::I8(array) => array.mapv(i64::from),
        TensorView::I16(array) => array.mapv(i64::from),
        TensorView::I32(array) => array.mapv(i64::from),
        TensorView::I64(array) => array.to_owned(),
        TensorView::U8(array) => array.mapv(i64::from),
        TensorView::U16(array) => array.mapv(i64::from),
        TensorView::U32(array) => array.mapv(i64::from),
        // Ids are only compared, and this keeps different ones different.
        TensorView::U64(array) => array.mapv(|id| id as i64),
        other => bail!("got {}, want ids that are integers", other.dtype()),
    })
}
