//! Arguments as Python gives them, and what they ask of the engine.

use std::ops::Range;

use ndarray::{ArrayD, Dimension};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString, PyTuple};
use qkv::{Alibi, Alignment, Attention, Call, Element, Stage};

use crate::array::Array;
use crate::call::MOST_AXES;
use crate::explain::Shown;
use crate::source::{self, refuse_gradients, type_name};
use crate::{pool, simd};

/// Those of torch's function, which may be given by position.
const POSITIONAL: [&str; 5] = ["attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"];
/// Those that go by name.
const NAMED: [&str; 13] = [
    "causal",
    "prefix",
    "query_offset",
    "key_offset",
    "softcap",
    "window",
    "key_lengths",
    "segment_ids",
    "alibi_slopes",
    "sinks",
    "layout",
    "seed",
    "threads",
];

/// The stages that a score goes through, by name.
const STAGES: [(&str, Stage); 5] = [
    ("raw", Stage::Raw),
    ("scaled", Stage::Scaled),
    ("softcapped", Stage::Softcapped),
    ("masked", Stage::Masked),
    ("weights", Stage::Weights),
];

/// All options of a call.
#[derive(Default)]
pub struct Options<'py> {
    attn_mask: Option<Array<'py>>,
    is_causal: bool,
    pub causal: Option<Alignment>,
    query_offset: Option<i64>,
    pub key_offset: i64,
    pub prefix: Option<Vec<u64>>,
    pub window: Option<(Option<u64>, Option<u64>)>,
    pub key_lengths: Option<Vec<usize>>,
    /// Of queries and of keys.
    pub segment_ids: Option<(ArrayD<i64>, ArrayD<i64>)>,
    pub scale: Option<f64>,
    pub softcap: Option<f64>,
    pub alibi_slopes: Option<Vec<f64>>,
    sinks: Option<Vec<f64>>,
    dropout_p: f64,
    seed: Option<u64>,
    /// Of the lesson's mask, whose dtype does not matter: where it is not 0.
    lesson_mask: Option<ArrayD<bool>>,
    /// Whether query heads may share keys and values.
    pub enable_gqa: bool,
    /// Whether the axis of positions comes before that of heads.
    pub positions_first: bool,
    pub wanted: Wanted,
    pub out: Option<Array<'py>>,
    pub threads: Option<usize>,
    /// Which scores are wanted; those that the softmax takes, unless it is said.
    pub stage: Option<Stage>,
    pub shown: Shown,
}

/// What is wanted back beside the output.
#[derive(Clone, Copy, Default)]
pub struct Wanted {
    pub weights: bool,
    pub lse: bool,
    /// What gradients are computed from.
    pub row_stats: bool,
}

impl Wanted {
    pub fn of<'c, T: Element, D: Dimension>(self, call: Call<'c, T, D>) -> Call<'c, T, D> {
        let call = if self.weights { call.weights() } else { call };
        let call = if self.row_stats { call.row_stats() } else { call };
        if self.lse { call.lse() } else { call }
    }
}

/// The functions that take options.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Function {
    Attention,
    Forward,
    Backward,
    Check,
    Partial,
    Plan,
    Reference,
    Scores,
    Explain,
}

impl Function {
    fn name(self) -> &'static str {
        match self {
            Self::Attention | Self::Check => "scaled_dot_product_attention",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Partial => "partial",
            Self::Plan => "plan",
            Self::Reference => "reference",
            Self::Scores => "scores",
            Self::Explain => "explain",
        }
    }

    /// The option of this name, if the function takes it.
    fn option(self, name: &str) -> Option<&'static str> {
        let own: &[&str] = match self {
            Self::Attention => &["return_weights", "return_lse", "out"],
            Self::Forward | Self::Check | Self::Reference => &["return_weights", "return_lse"],
            Self::Scores => &["stage"],
            Self::Explain => &["batch", "head", "queries", "keys", "row", "tokens", "print"],
            Self::Backward | Self::Partial | Self::Plan => &[],
        };
        POSITIONAL.iter().chain(&NAMED).chain(own).find(|option| **option == name).copied()
    }
}

impl<'py> Options<'py> {
    /// # Errors
    /// If an option is unknown, given twice, of the wrong type or without a meaning.
    pub fn new(
        function: Function,
        positional: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Self> {
        let wrong = |what: String| PyTypeError::new_err(format!("{}() {what}", function.name()));
        let mut options = Self::default();
        let count = positional.len();
        if count > POSITIONAL.len() {
            let most = 3 + POSITIONAL.len();
            return Err(wrong(format!("takes {most} positional arguments but {} were given", 3 + count)));
        }
        for (name, value) in POSITIONAL.into_iter().zip(positional) {
            options.set(Given { name, value })?;
        }
        for (name, value) in named.into_iter().flatten() {
            let name = name.cast::<PyString>()?.to_cow()?;
            let Some(name) = function.option(&name) else {
                return Err(wrong(format!("got an unexpected keyword argument '{name}'")));
            };
            if POSITIONAL[..count].contains(&name) {
                return Err(wrong(format!("got multiple values for argument '{name}'")));
            }
            options.set(Given { name, value })?;
        }
        options.causal = options.alignment()?;
        options.wanted.row_stats = function == Function::Forward;
        Ok(options)
    }

    /// Those of the lesson's function: a mask of any dtype, which blocks where it is 0, and the weights wanted back.
    ///
    /// # Errors
    /// If the mask is no array of numbers.
    pub fn of_lesson(mask: Option<&Bound<'py, PyAny>>) -> PyResult<Self> {
        let mask = mask.map(|mask| source::read("mask", mask)).transpose()?;
        // Here -∞ would attend, and 0 would block: the other way round than meant.
        if mask.as_ref().map_or(Ok(false), Array::has_negative_infinity)? {
            return Err(PyValueError::new_err(
                "mask: got -inf, want a mask that is 0 where a query may not attend (one that is added to the scores is \
                 attn_mask of scaled_dot_product_attention)",
            ));
        }
        let mask = mask.map(|mask| mask.is_nonzero()).transpose()?;
        Ok(Self {
            lesson_mask: mask,
            wanted: Wanted { weights: true, ..Wanted::default() },
            ..Self::default()
        })
    }

    /// Takes one option, of a known name; None is as if it were left out.
    fn set(&mut self, given: Given<'py>) -> PyResult<()> {
        if given.value.is_none() {
            return Ok(());
        }
        match given.name {
            "attn_mask" => self.attn_mask = Some(given.mask()?),
            "dropout_p" => self.dropout_p = given.number()?,
            "is_causal" => self.is_causal = given.boolean()?,
            "scale" => self.scale = Some(given.number()?),
            "enable_gqa" => self.enable_gqa = given.boolean()?,
            "causal" => self.causal = Some(given.alignment()?),
            "prefix" => self.prefix = Some(given.counts()?),
            "query_offset" => self.query_offset = Some(given.integer()?),
            "key_offset" => self.key_offset = given.integer()?,
            "softcap" => self.softcap = Some(given.number()?),
            "window" => self.window = Some(given.window()?),
            "key_lengths" => self.key_lengths = Some(given.counts()?),
            "segment_ids" => self.segment_ids = Some(given.segment_ids()?),
            "alibi_slopes" => self.alibi_slopes = Some(given.per_head()?),
            "sinks" => self.sinks = Some(given.per_head()?),
            "layout" => self.positions_first = given.one_of([("bhsd", false), ("bshd", true)])?,
            "seed" => self.seed = Some(given.integer()? as u64),
            "threads" => self.threads = Some(given.threads()?),
            "return_weights" => self.wanted.weights = given.boolean()?,
            "return_lse" => self.wanted.lse = given.boolean()?,
            "out" => self.out = Some(source::read_to_write(given.name, &given.value)?),
            "stage" => self.stage = Some(given.one_of(STAGES)?),
            "batch" => self.shown.batch = given.index()?,
            "head" => self.shown.head = given.index()?,
            "queries" => self.shown.queries = Some(given.range()?),
            "keys" => self.shown.keys = Some(given.range()?),
            "row" => self.shown.row = Some(given.index()?),
            "tokens" => self.shown.tokens = Some(given.texts()?),
            "print" => self.shown.print = given.boolean()?,
            other => unreachable!("{other} is no option"),
        }
        Ok(())
    }

    /// Where queries stand if order matters, from all that says so.
    fn alignment(&self) -> PyResult<Option<Alignment>> {
        let refused = |message: &str| Err(PyValueError::new_err(message.to_string()));
        match (self.is_causal, self.causal, self.query_offset) {
            (true, Some(Alignment::BottomRight), _) => refused(
                "causal: got \"bottom-right\" beside is_causal=True, which is top-left; want one of the two",
            ),
            (_, Some(_), Some(offset)) => refused(&format!(
                "query_offset: got {offset} beside causal, which says where the queries stand; want one of the two \
                 (is_causal=True goes with an offset)"
            )),
            (_, Some(alignment), None) => Ok(Some(alignment)),
            (true, None, Some(offset)) => Ok(Some(Alignment::Offset(offset))),
            (true, None, None) => Ok(Some(Alignment::TopLeft)),
            (false, None, _) => Ok(None),
        }
    }

    /// The seed of dropout where none was given, for functions that mix values: drawn from torch's generator for tensors of
    /// torch's, else from the system's. Without dropout nothing is drawn; `qkv._operator` draws by the same rule.
    ///
    /// # Errors
    /// If there is nothing to draw from, or the function's dropout must be that of another call.
    pub fn fill_seed(&mut self, function: Function, query: &Bound<'py, PyAny>) -> PyResult<()> {
        if self.seed.is_some() || !(self.dropout_p > 0.0 && self.dropout_p <= 1.0) {
            return Ok(());
        }
        match function {
            Function::Attention | Function::Reference => self.seed = Some(source::drawn_seed(query)?),
            Function::Forward | Function::Backward => {
                let message =
                    "seed: got None beside dropout_p, want one, for the gradients drop what the output did";
                return Err(PyValueError::new_err(message));
            }
            Function::Check | Function::Partial | Function::Plan | Function::Scores | Function::Explain => {}
        }
        Ok(())
    }

    /// What is asked of the engine.
    ///
    /// # Errors
    /// If a mask is not what its dtype says, or `QKV_SIMD` names no instruction set of this machine.
    pub fn attention(&self) -> PyResult<Attention<'_>> {
        let mut attention = Attention::new().key_offset(self.key_offset);
        match (self.causal, self.query_offset) {
            (Some(alignment), _) => attention = attention.causal(alignment),
            (None, Some(offset)) => attention = attention.query_offset(offset),
            (None, None) => {}
        }
        if let Some(scale) = self.scale {
            attention = attention.scale(scale);
        }
        if let Some(cap) = self.softcap {
            attention = attention.softcap(cap);
        }
        if let Some(prefix) = &self.prefix {
            attention = attention.prefix(prefix.clone());
        }
        if let Some((left, right)) = self.window {
            attention = attention.window(left, right);
        }
        if let Some(lengths) = &self.key_lengths {
            attention = attention.key_lengths(lengths.clone());
        }
        if let Some((query, key)) = &self.segment_ids {
            attention = attention.segments(query.view(), key.view());
        }
        if let Some(slopes) = &self.alibi_slopes {
            attention = attention.alibi(Alibi::Slopes(slopes.clone()));
        }
        if let Some(sinks) = &self.sinks {
            attention = attention.sinks(sinks.clone());
        }
        if self.dropout_p != 0.0 {
            attention = attention.dropout(self.dropout_p, self.seed.unwrap_or_default());
        }
        if let Some(mask) = &self.lesson_mask {
            attention = attention.mask(mask.view());
        }
        if let Some(simd) = simd::forced()? {
            attention = attention.simd(simd);
        }
        let Some(mask) = &self.attn_mask else { return Ok(attention) };
        macro_rules! bias {
            ($($number:ty),*) => {
                $(if mask.dtype().is::<$number>() {
                    return Ok(attention.bias(mask.numbers::<$number>()?));
                })*
            };
        }
        bias!(f32, f64, qkv::f16, qkv::bf16);
        Ok(attention.mask(mask.booleans()?))
    }

    pub fn has_sinks(&self) -> bool {
        self.sinks.is_some()
    }

    pub fn attn_mask(&self) -> Option<&Array<'py>> {
        self.attn_mask.as_ref()
    }
}

/// One option as it was given.
pub struct Given<'py> {
    pub name: &'static str,
    pub value: Bound<'py, PyAny>,
}

impl<'py> Given<'py> {
    pub fn new(name: &'static str, value: &Bound<'py, PyAny>) -> Self {
        Self { name, value: value.clone() }
    }

    pub fn wrong_type(&self, wanted: &str) -> PyErr {
        let got = type_name(&self.value);
        PyTypeError::new_err(format!("{}: got {got}, want {wanted}", self.name))
    }

    pub fn wrong_value(&self, wanted: &str) -> PyErr {
        let got = self.value.repr().map(|repr| repr.to_string()).unwrap_or_default();
        PyValueError::new_err(format!("{}: got {got}, want {wanted}", self.name))
    }

    fn boolean(&self) -> PyResult<bool> {
        self.value.extract().map_err(|_| self.wrong_type("True or False"))
    }

    pub fn number(&self) -> PyResult<f64> {
        if !self.value.is_instance_of::<PyFloat>() {
            refuse_gradients(self.name, &self.value)?;
        }
        match self.value.extract() {
            Ok(number) if !self.value.is_instance_of::<PyBool>() => Ok(number),
            Err(_) if self.value.is_instance_of::<PyInt>() => {
                let message = format!("{}: got an int that is larger than any float", self.name);
                Err(PyValueError::new_err(message))
            }
            _ => Err(self.wrong_type("a number")),
        }
    }

    pub fn integer(&self) -> PyResult<i64> {
        self.whole()?.ok_or_else(|| self.wrong_value("one of 64 bits"))
    }

    /// A whole number; none for one that has more than 64 bits.
    pub fn whole(&self) -> PyResult<Option<i64>> {
        match self.value.extract() {
            Ok(integer) if !self.value.is_instance_of::<PyBool>() => Ok(Some(integer)),
            Err(_) if self.value.is_instance_of::<PyInt>() => Ok(None),
            _ => Err(self.wrong_type("a whole number")),
        }
    }

    fn one_of<T: Copy, const N: usize>(&self, choices: [(&str, T); N]) -> PyResult<T> {
        let names = choices.map(|(name, _)| format!("\"{name}\"")).join(" or ");
        let text = self.value.cast::<PyString>().map_err(|_| self.wrong_type(&names))?.to_cow()?;
        let chosen = choices.iter().find(|(name, _)| *name == text);
        chosen.map(|&(_, choice)| choice).ok_or_else(|| self.wrong_value(&names))
    }

    fn alignment(&self) -> PyResult<Alignment> {
        if self.value.is_instance_of::<PyBool>() {
            return Err(self.wrong_type("\"top-left\" or \"bottom-right\" (is_causal is the flag)"));
        }
        self.one_of([("top-left", Alignment::TopLeft), ("bottom-right", Alignment::BottomRight)])
    }

    fn index(&self) -> PyResult<usize> {
        usize::try_from(self.integer()?).map_err(|_| self.wrong_value("a number from 0 on"))
    }

    fn threads(&self) -> PyResult<usize> {
        pool::checked(self.name, self.integer()?)
    }

    fn range(&self) -> PyResult<Range<usize>> {
        let wanted = "a pair (start, stop) of numbers from 0 on";
        let (start, stop): (i64, i64) = self.value.extract().map_err(|_| self.wrong_type(wanted))?;
        match (usize::try_from(start), usize::try_from(stop)) {
            (Ok(start), Ok(stop)) => Ok(start..stop),
            _ => Err(self.wrong_value(wanted)),
        }
    }

    /// Extents of an array.
    pub fn shape(&self) -> PyResult<Vec<usize>> {
        let wanted = "(…, heads, len_query, len_key), up to 32 whole numbers from 0 on";
        let extents: Vec<i64> = self.value.extract().map_err(|_| self.wrong_type(wanted))?;
        let shape = extents.into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>();
        let is_fit = |shape: &Vec<usize>| (2..=MOST_AXES).contains(&shape.len());
        shape.ok().filter(is_fit).ok_or_else(|| self.wrong_value(wanted))
    }

    fn texts(&self) -> PyResult<Vec<String>> {
        self.value.extract().map_err(|_| self.wrong_type("a list of texts"))
    }

    fn window(&self) -> PyResult<(Option<u64>, Option<u64>)> {
        let wanted = "a pair (left, right) of whole numbers from 0 on, None for no bound";
        let pair: Vec<Option<i64>> = self.value.extract().map_err(|_| self.wrong_type(wanted))?;
        let bounds: Result<Vec<_>, _> =
            pair.into_iter().map(|bound| bound.map(u64::try_from).transpose()).collect();
        match bounds.as_deref() {
            Ok(&[left, right]) => Ok((left, right)),
            _ => Err(self.wrong_value(wanted)),
        }
    }

    fn mask(&self) -> PyResult<Array<'py>> {
        let mask = source::read(self.name, &self.value)?;
        let wanted = "bool, where True is \"may attend\", or floats that are added to the scores";
        if mask.is_integer() {
            return Err(mask.wrong_dtype(&format!("{wanted} (attn_mask != 0)")));
        }
        if mask.is_boolean() || mask.is_floating() { Ok(mask) } else { Err(mask.wrong_dtype(wanted)) }
    }

    /// A number for all, or an array of one for each batch.
    fn counts<N: TryFrom<i64>>(&self) -> PyResult<Vec<N>> {
        let wanted = "whole numbers from 0 on: one for all batches, or (batch,)";
        let numbers = match self.value.extract::<i64>() {
            Ok(_) if self.value.is_instance_of::<PyBool>() => return Err(self.wrong_type(wanted)),
            Ok(number) => vec![number],
            Err(_) if self.value.is_instance_of::<PyInt>() => return Err(self.wrong_value(wanted)),
            Err(_) if self.value.is_instance_of::<PyFloat>() => return Err(self.wrong_type(wanted)),
            Err(_) => {
                let array = source::read(self.name, &self.value)?;
                if array.shape().len() != 1 {
                    return Err(array.wrong_shape("(batch,)"));
                }
                array.integers()?.into_iter().collect()
            }
        };
        numbers.into_iter().map(N::try_from).collect::<Result<_, _>>().map_err(|_| self.wrong_value(wanted))
    }

    /// An array of one number for each head.
    ///
    /// # Errors
    /// If it is anything else.
    pub fn per_head(&self) -> PyResult<Vec<f64>> {
        let array = source::read(self.name, &self.value)?;
        if array.shape().len() != 1 {
            return Err(array.wrong_shape("(heads,)"));
        }
        let numbers = array.widened()?;
        Ok(numbers.into_iter().collect())
    }

    /// One array for both, or a pair of them.
    fn segment_ids(&self) -> PyResult<(ArrayD<i64>, ArrayD<i64>)> {
        let ids = |value: &Bound<'py, PyAny>| source::read(self.name, value)?.integers();
        if let Ok(pair) = self.value.cast::<PyTuple>() {
            let (query, key): (Bound<'py, PyAny>, Bound<'py, PyAny>) = pair
                .extract()
                .map_err(|_| self.wrong_type("an array, or a pair of arrays for queries and keys"))?;
            return Ok((ids(&query)?, ids(&key)?));
        }
        let both = ids(&self.value)?;
        Ok((both.clone(), both))
    }
}
