//! What a command computes on: queries, keys, values (or what a layer makes them from) and a mask out of files, by name,
//! with the settings that the options and the files' metadata come to. How each was chosen is kept in words.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::bail;
use qkv_io::Dtype;

use crate::layout::Trio;
use crate::mask::Mask;
use crate::options::{AttentionOptions, MaskAs};
use crate::recording::Recording;
use crate::settings::{self, Settings};
use crate::source::{self, Array, Arrays, Source};

const QUERY: [&str; 2] = ["q", "query"];
const KEY: [&str; 2] = ["k", "key"];
const VALUE: [&str; 2] = ["v", "value"];
/// What `check` compares with.
const EXPECTED: [&str; 7] =
    ["expected", "output", "expected_lse", "weights", "attention_weights", "scores", "scaled_scores"];

/// Where the arrays are to come from.
pub struct Sources<'a> {
    pub input: Option<&'a Source>,
    pub query: Option<&'a Source>,
    pub key: Option<&'a Source>,
    pub value: Option<&'a Source>,
}

impl<'a> Sources<'a> {
    /// One file with all of them.
    pub fn input(input: &'a Source) -> Self {
        Self { input: Some(input), query: None, key: None, value: None }
    }
}

/// What a file gives: queries, keys and values, or what they are made from.
pub enum Given {
    Arrays(Trio<Array>),
    Layer {
        x: Array,
        /// Weights and biases, by the file's names.
        weights: Vec<(String, Array)>,
    },
}

impl Given {
    /// Each array with its name.
    pub fn each(&self) -> Vec<(&str, &Array)> {
        match self {
            Self::Arrays(arrays) => arrays.each().into(),
            Self::Layer { x, weights } => {
                let weights = weights.iter().map(|(name, array)| (name.as_str(), array));
                [("x", x)].into_iter().chain(weights).collect()
            }
        }
    }
}

/// Everything of a call, read and named.
pub struct Input {
    /// What it was read from.
    pub title: String,
    pub given: Given,
    /// Of all that is given.
    pub dtype: Dtype,
    pub mask: Option<Mask>,
    pub settings: Settings,
    /// A token for each key, for each batch.
    pub tokens: Option<Arc<Vec<Vec<String>>>>,
    /// How arrays were chosen, in words.
    pub notes: Vec<String>,
    pub warnings: Vec<String>,
    /// The input's other arrays.
    pub rest: Arrays,
}

/// The layers of an input, which are read one after the other.
pub enum Layers<'a> {
    /// One that is asked for.
    One(&'a Source, Option<usize>),
    /// All that a file has.
    All(Box<Recording>),
}

impl<'a> Layers<'a> {
    /// The one that the options ask for, or all.
    pub fn new(source: &'a Source, options: &AttentionOptions) -> anyhow::Result<Self> {
        if options.layer.is_some() || source.name.is_some() {
            return Ok(Self::One(source, options.layer));
        }
        let arrays = Arrays::open(&source.path, &options.reading())?;
        Ok(Self::All(Box::new(Recording::new(arrays))))
    }

    /// Their numbers, in order; the only layer of what is no recording has none.
    pub fn numbers(&self) -> Vec<Option<usize>> {
        match self {
            Self::One(_, layer) => vec![*layer],
            Self::All(recording) => recording.numbers(),
        }
    }

    /// What is odd about the file as a whole.
    pub fn warning(&self) -> Option<String> {
        match self {
            // Reading it will say so.
            Self::One(..) => None,
            Self::All(recording) => recording.warning(),
        }
    }

    /// The layer of a number, once; its options name it.
    pub fn read(&mut self, options: &AttentionOptions) -> anyhow::Result<Input> {
        match self {
            Self::One(source, _) => Input::read(&Sources::input(source), options),
            Self::All(recording) => {
                let arrays = recording.take(options.layer);
                let title = arrays.file.clone();
                Input::of(arrays, title, options)
            }
        }
    }
}

impl Input {
    pub fn read(sources: &Sources<'_>, options: &AttentionOptions) -> anyhow::Result<Self> {
        let reading = options.reading();
        let overrides = [(sources.query, QUERY), (sources.key, KEY), (sources.value, VALUE)];
        let mut warnings = Vec::new();
        let mut own = match sources.input {
            Some(Source { path, name: None }) => {
                let mut recording = Recording::new(Arrays::open(path, &reading)?);
                warnings.extend(recording.warning());
                let layer = recording.chosen(options.layer)?;
                Some(recording.take(layer))
            }
            Some(source) => {
                if options.layer.is_some() {
                    bail!("--layer: one array of a file is named; leave one out");
                }
                // One named array of a file is x.
                let (array, rest) = source::read(source, &[], &reading)?;
                let title = array.origin.clone();
                let given = Given::Arrays(Trio { query: array.clone(), key: array.clone(), value: array });
                return Self::new(given, title, rest, options);
            }
            None if options.layer.is_some() => bail!("--layer: want INPUT, a recording"),
            None => None,
        };
        let mut notes = Vec::new();
        let mut found = Vec::new();
        // Without INPUT, the mask and the metadata are those of the first file named.
        let mut first = None;
        for (source, names) in overrides {
            let inside = own.as_mut().map_or(Ok(None), |own| own.take(&names))?;
            let Some(source) = source else {
                found.push(inside);
                continue;
            };
            notes.extend(inside.map(|inside| format!("{} is replaced by -{}", inside.origin, names[0])));
            let (array, rest) = source::read(source, &names, &reading)?;
            first.get_or_insert(rest);
            found.push(Some(array));
        }
        let Some(mut own) = own.or(first) else { bail!("no input: name a file, or give -q, -k and -v") };
        let given = complete(found, &mut own, sources.input.is_some())?;
        let title = if sources.input.is_some() { own.file.clone() } else { "-q, -k and -v".to_string() };
        let mut input = Self::new(given, title, own, options)?;
        input.notes.splice(0..0, notes);
        input.warnings.splice(0..0, warnings);
        Ok(input)
    }

    /// Of arrays that did not come from a file.
    pub fn made(own: Arrays, title: String, options: &AttentionOptions) -> anyhow::Result<Self> {
        if options.layer.is_some() {
            bail!("--layer: {title} is no recording; leave it out");
        }
        Self::of(own, title, options)
    }

    fn of(mut own: Arrays, title: String, options: &AttentionOptions) -> anyhow::Result<Self> {
        let found = [QUERY, KEY, VALUE].map(|names| own.take(&names));
        let found = found.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let given = complete(found, &mut own, true)?;
        Self::new(given, title, own, options)
    }

    /// Settles what the arrays' own file and the options say together.
    fn new(
        given: Given,
        title: String,
        mut rest: Arrays,
        options: &AttentionOptions,
    ) -> anyhow::Result<Self> {
        let dtype = one_dtype(&given)?;
        let metadata = std::mem::take(&mut rest.bundle.metadata);
        let mut settings = Settings::new(options, &rest.file, &metadata)?;
        let mut notes = Vec::new();
        let mut warnings = Vec::new();
        let mask = read_mask(&mut rest, &mut settings, options, &mut notes)?;
        let tokens = match metadata.get("tokens").map(|text| tokens(text)) {
            Some(None) => {
                warnings.push(format!(
                    "{}: metadata tokens is not a JSON list of texts, or of such lists; not used",
                    rest.file
                ));
                None
            }
            tokens => tokens.flatten(),
        };
        if let Some(tokens) = &tokens {
            let lengths: Vec<_> = tokens.iter().map(|batch| batch.len().to_string()).collect();
            settings.notes.push(format!("{} tokens", lengths.join(" + ")));
        }
        notes.extend(unused(&rest));
        let tokens = tokens.map(Arc::new);
        Ok(Self { title, given, dtype, mask, settings, tokens, notes, warnings, rest })
    }
}

impl Input {
    /// The names of the tokens of one batch, flat over all batch axes.
    pub fn tokens_of(&self, batch: usize) -> Option<&[String]> {
        match &self.tokens.as_ref()?[..] {
            [all] => Some(all),
            each => each.get(batch).map(Vec::as_slice),
        }
    }

    /// Keeps another's tokens where they are the same: layers of a recording have one text.
    pub fn share_tokens(&mut self, other: &Self) {
        if self.tokens == other.tokens {
            self.tokens.clone_from(&other.tokens);
        }
    }
}

fn one_dtype(given: &Given) -> anyhow::Result<Dtype> {
    let arrays = given.each();
    let dtype = arrays[0].1.tensor.dtype();
    if arrays.iter().any(|(_, array)| array.tensor.dtype() != dtype) {
        let each: Vec<_> =
            arrays.iter().map(|(name, array)| format!("{name} is {}", array.tensor.dtype())).collect();
        let (last, first) = each.split_last().expect("one at least");
        bail!("{} and {last}; want one dtype for all {}: convert them", first.join(", "), each.len());
    }
    if !matches!(dtype, Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64) {
        bail!("{}: elements are {dtype}; want f32, f64, f16 or bf16", arrays[0].1.origin);
    }
    Ok(dtype)
}

/// Fills in from `x`, or says what is missing, of a file or of options.
fn complete(found: Vec<Option<Array>>, own: &mut Arrays, is_file: bool) -> anyhow::Result<Given> {
    let missing: Vec<&str> = found
        .iter()
        .zip(["q", "k", "v"])
        .filter(|(array, _)| array.is_none())
        .map(|(_, name)| name)
        .collect();
    if let Ok([Some(query), Some(key), Some(value)]) = <[_; 3]>::try_from(found) {
        return Ok(Given::Arrays(Trio { query, key, value }));
    }
    let x = if own.is_nameless() && missing.len() == 3 { Some(own.take_only()?) } else { own.take(&["x"])? };
    match x {
        Some(x) if missing.len() == 3 => match own.take_layer() {
            weights if weights.is_empty() => {
                Ok(Given::Arrays(Trio { query: x.clone(), key: x.clone(), value: x }))
            }
            weights => Ok(Given::Layer { x, weights }),
        },
        _ if !is_file => {
            bail!("no {}: give -q, -k and -v, or one file with all three", missing.join(", no "))
        }
        _ => bail!(
            "{}: has no {}; want arrays q, k and v (or query, key and value), or x (alone, or with w_q, w_k and w_v); it \
             has {}",
            own.file,
            missing.join(" and no "),
            own.list()
        ),
    }
}

/// The mask of the options, else the input's own.
fn read_mask(
    rest: &mut Arrays,
    settings: &mut Settings,
    options: &AttentionOptions,
    notes: &mut Vec<String>,
) -> anyhow::Result<Option<Mask>> {
    let own = rest.take(&["mask"])?;
    let said_by_option = options.mask_as.map(|mask_as| (mask_as, option_words(mask_as)));
    let in_metadata = settings.mask_as.map(|mask_as| (mask_as, metadata_words(mask_as)));
    if let Some(source) = &options.mask {
        notes.extend(own.map(|own| format!("{} is not used: --mask replaces it", own.origin)));
        let (array, from) = source::read(source, &["mask", "attn_mask"], &options.reading())?;
        let its_own = settings::mask_as_of(&from.file, &from.bundle.metadata)?;
        let its_own = its_own.map(|mask_as| (mask_as, metadata_words(mask_as)));
        return Mask::new(array, said_by_option.or(its_own)).map(Some);
    }
    let Some(array) = own else {
        if options.mask_as.is_some() {
            bail!("--mask-as: there is no mask; give one with --mask, or leave --mask-as out");
        }
        return Ok(None);
    };
    if let Some((_, said)) = in_metadata {
        let replaced = said_by_option.filter(|&(mask_as, _)| Some(mask_as) != settings.mask_as);
        let by = replaced.map(|(_, option)| format!(", replaced by {option}")).unwrap_or_default();
        settings.notes.push(format!("{}{by}", said.trim_start_matches("metadata ")));
    }
    // A boolean mask has one meaning, whatever a file's texts say.
    let in_metadata = in_metadata.filter(|_| array.tensor.dtype() != Dtype::Bool);
    Mask::new(array, said_by_option.or(in_metadata)).map(Some)
}

fn option_words(mask_as: MaskAs) -> &'static str {
    match mask_as {
        MaskAs::Allow => "--mask-as allow",
        MaskAs::Additive => "--mask-as additive",
    }
}

fn metadata_words(mask_as: MaskAs) -> &'static str {
    match mask_as {
        MaskAs::Allow => "metadata mask-as allow",
        MaskAs::Additive => "metadata mask-as additive",
    }
}

/// A JSON list of texts, or one such list for each batch.
fn tokens(text: &str) -> Option<Vec<Vec<String>>> {
    let one = serde_json::from_str::<Vec<String>>(text).map(|tokens| vec![tokens]);
    one.or_else(|_| serde_json::from_str(text)).ok()
}

/// What else the file holds, in words.
fn unused(rest: &Arrays) -> Vec<String> {
    let names = || rest.bundle.names().map(str::to_ascii_lowercase);
    // `check` compares with what x and a layer's weights make, if both are there.
    let projects = names().any(|name| name == "x") && names().any(|name| qkv::is_layer_array(&name));
    let is_expected = |name: &&str| {
        let name = name.to_ascii_lowercase();
        EXPECTED.contains(&name.as_str()) || projects && (name == "x" || qkv::is_layer_array(&name))
    };
    let (expected, others): (Vec<_>, Vec<_>) = rest.bundle.names().partition(is_expected);
    let mut notes = Vec::new();
    if !others.is_empty() {
        const SHOWN: usize = 6;
        let more = others.len().saturating_sub(SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        notes.push(format!("not used: {}{more}", others[..others.len().min(SHOWN)].join(", ")));
    }
    if !expected.is_empty() {
        notes.push(format!("for `qkv check`: {}", expected.join(", ")));
    }
    notes
}

/// The metadata's texts that are worth showing with the built-in sample.
pub fn text<'a>(metadata: &'a BTreeMap<String, String>, key: &str) -> &'a str {
    metadata.get(key).map_or("", String::as_str)
}
