//! One call with its element type: the arrays as the engine reads them, and all options together.

use anyhow::{Context, bail};
use ndarray::{Array4, ArrayD, ArrayView4, ArrayViewD, Axis, CowArray, IxDyn};
use qkv::{Attention, Call, Layer, Projections, Simd};
use qkv_io::{Data, Tensor};
use qkv_view::bounds::Order;
use qkv_view::show;

use crate::input::{Given, Input};
use crate::layout::{Layout, Trio};
use crate::options::{AttentionOptions, AxisOrder};
use crate::source::Array;

/// A type that arrays of queries, keys and values have, in the engine and in files.
pub trait Number: qkv::Element<Accumulator: qkv_io::Element> + qkv_io::Element {}

impl<T: qkv::Element<Accumulator: qkv_io::Element> + qkv_io::Element> Number for T {}

/// Runs `$body` with `$T` the element type of an [`Input`].
macro_rules! with_element {
    ($input:expr, $T:ident => $body:expr) => {
        match $input.dtype {
            qkv_io::Dtype::F16 => {
                type $T = qkv::f16;
                $body
            }
            qkv_io::Dtype::Bf16 => {
                type $T = qkv::bf16;
                $body
            }
            qkv_io::Dtype::F64 => {
                type $T = f64;
                $body
            }
            // `Input` holds floats only.
            _ => {
                type $T = f32;
                $body
            }
        }
    };
}
pub(crate) use with_element;

/// An input with its element type.
pub struct Request<'a, T: Number> {
    pub input: &'a Input,
    pub layout: Layout,
    /// What made the arrays, if they are not the file's.
    pub layer: Option<Layer<T>>,
    /// `(…, heads, length, dim)`
    pub arrays: Trio<CowArray<'a, T, IxDyn>>,
    pub extents: Extents,
    pub simd: Option<Simd>,
}

/// How many there are of each, once the arrays are read.
#[derive(Clone, Debug)]
pub struct Extents {
    pub batch_axes: Vec<usize>,
    pub batches: usize,
    pub heads: usize,
    pub key_heads: usize,
    pub len_query: usize,
    pub len_key: usize,
    pub dim: usize,
    pub dim_value: usize,
    pub rank: usize,
}

impl<'a, T: Number> Request<'a, T> {
    pub fn new(input: &'a Input, options: &AttentionOptions, simd: Option<Simd>) -> anyhow::Result<Self> {
        let (layout, layer, arrays) = match &input.given {
            Given::Arrays(arrays) => {
                let layout = Layout::new(options, arrays.query.tensor.shape())?;
                let arrays = Trio {
                    query: typed(&arrays.query.tensor)?.view(),
                    key: typed(&arrays.key.tensor)?.view(),
                    value: typed(&arrays.value.tensor)?.view(),
                };
                (layout, None, layout.read(arrays)?.map(CowArray::from))
            }
            Given::Layer { x, weights } => {
                let layer = layer::<T>(weights, options).with_context(|| input.title.clone())?;
                let projected =
                    layer.project(typed(&x.tensor)?.view()).with_context(|| input.title.clone())?;
                let Projections { query, key, value } = projected;
                (Layout::HeadsFirst, Some(layer), Trio { query, key, value }.map(CowArray::from))
            }
        };
        let plain = Attention::new();
        // Shapes that do not fit are the engine's to explain; below this they do.
        let call = plain.call(arrays.query.view(), arrays.key.view(), arrays.value.view());
        call.check().map_err(|error| explained(input, layout, error))?;
        let extents = Extents::of(&arrays);
        if let Some(padding) = &input.settings.padding {
            padding.check(extents.batches).with_context(|| input.title.clone())?;
        }
        Ok(Self { input, layout, layer, arrays, extents, simd })
    }

    /// The engine's options, for the queries from `first` on.
    pub fn attention(&self, first: usize) -> Attention<'a> {
        let rows = (first, self.extents.len_query);
        let mut attention = self.input.settings.attention(rows.0, rows.1);
        if let Some(mask) = &self.input.mask {
            attention = mask.add_to(attention, rows);
        }
        match self.simd {
            Some(simd) => attention.simd(simd),
            None => attention,
        }
    }

    /// A call on all rows.
    pub fn call<'c>(&'c self, attention: &'c Attention<'c>) -> Call<'c, T, IxDyn> {
        attention.call(self.arrays.query.view(), self.arrays.key.view(), self.arrays.value.view())
    }

    /// The queries from `first` on.
    pub fn queries(&self, first: usize) -> ArrayViewD<'_, T> {
        let mut queries = self.arrays.query.view();
        queries.slice_axis_inplace(Axis(self.extents.rank - 2), (first..).into());
        queries
    }

    /// An output of attention as it leaves: through the layer, if there is one, else in the file's order of axes.
    pub fn leave<'o>(&self, output: ArrayViewD<'o, T>) -> anyhow::Result<CowArray<'o, T, IxDyn>> {
        match &self.layer {
            Some(layer) => Ok(layer.output(output)?.into()),
            None => Ok(self.layout.restore(output)),
        }
    }

    /// An error of the engine, with what it is about in the user's words.
    pub fn explained(&self, error: qkv::Error) -> anyhow::Error {
        explained(self.input, self.layout, error)
    }

    /// The axes of the scores with their lengths, batch axes first.
    pub fn score_axes(&self) -> Vec<(&'static str, usize)> {
        let Extents { batch_axes, heads, len_query, len_key, rank, .. } = &self.extents;
        let batches = batch_axes.iter().map(|&length| ("batch", length));
        let heads = (*rank > 2).then_some(("head", *heads));
        batches.chain(heads).chain([("query", *len_query), ("key", *len_key)]).collect()
    }

    /// Causal order, if it was asked for.
    pub fn order(&self) -> Option<Order<'_>> {
        let settings = &self.input.settings;
        Some(Order {
            alignment: settings.causal?,
            key_offset: settings.key_offset,
            prefix: settings.prefix.as_deref(),
            key_lengths: settings.key_lengths.as_deref(),
            len_query: self.extents.len_query,
            len_key: self.extents.len_key,
        })
    }

    pub fn scale(&self) -> f64 {
        let default = || if self.extents.dim == 0 { 1.0 } else { 1.0 / (self.extents.dim as f64).sqrt() };
        self.input.settings.scale.unwrap_or_else(default)
    }
}

impl Extents {
    fn of<T>(arrays: &Trio<CowArray<'_, T, IxDyn>>) -> Self {
        let [query, key, value] = arrays.each().map(|(_, array)| array.shape());
        let rank = query.len();
        let axis = |shape: &[usize], from_end: usize| shape[rank - from_end];
        let longest = |axis: usize| {
            let own = [query[axis], key[axis], value[axis]];
            // Lengths of 1 broadcast, to 0 too.
            own.into_iter().find(|&length| length != 1).unwrap_or(1)
        };
        let batch_axes: Vec<usize> = (0..rank.saturating_sub(3)).map(longest).collect();
        Self {
            batches: batch_axes.iter().product(),
            batch_axes,
            heads: if rank > 2 { axis(query, 3) } else { 1 },
            key_heads: if rank > 2 { axis(key, 3) } else { 1 },
            len_query: axis(query, 2),
            len_key: axis(key, 2),
            dim: axis(query, 1),
            dim_value: axis(value, 1),
            rank,
        }
    }

    /// Batch axes and heads, if there is an axis for them.
    pub fn lead(&self) -> Vec<usize> {
        let heads = (self.rank > 2).then_some(self.heads);
        self.batch_axes.iter().copied().chain(heads).collect()
    }

    /// Batch axes and key heads.
    pub fn key_lead(&self) -> Vec<usize> {
        let heads = (self.rank > 2).then_some(self.key_heads);
        self.batch_axes.iter().copied().chain(heads).collect()
    }

    /// `lead`, and these axes.
    pub fn shape(&self, last: &[usize]) -> Vec<usize> {
        [&self.lead()[..], last].concat()
    }

    /// How many rows the output has.
    pub fn rows(&self) -> usize {
        self.batches * self.heads * self.len_query
    }
}

/// A layer of the file's weights, with as many heads as the options say.
pub fn layer<T: Number>(weights: &[(String, Array)], options: &AttentionOptions) -> anyhow::Result<Layer<T>> {
    if options.layout == AxisOrder::Bshd {
        bail!("--layout bshd: x (batch, length, dim) has no head axis; leave it out");
    }
    let weights = weights.iter().map(|(name, array)| Ok((name.as_str(), typed(&array.tensor)?.view())));
    let weights = weights.collect::<anyhow::Result<Vec<_>>>()?;
    Layer::from_arrays(weights, options.heads).map_err(|error| match &error {
        // It is an option here.
        qkv::Error::Value { argument: "heads", .. } => anyhow::anyhow!("--{error}"),
        _ => error.into(),
    })
}

/// The elements of a tensor that has them of this type.
pub fn typed<T: Number>(tensor: &Tensor) -> anyhow::Result<&Data<T>> {
    tensor.data::<T>().with_context(|| format!("want {}, got {}", <T as qkv::Element>::NAME, tensor.dtype()))
}

fn explained(input: &Input, layout: Layout, error: qkv::Error) -> anyhow::Error {
    let about = match &error {
        qkv::Error::Shape { argument, .. } | qkv::Error::Value { argument, .. } => *argument,
        _ => "",
    };
    let words = error.to_string();
    let made = |name: &str| match &input.given {
        Given::Arrays(arrays) => {
            let own = arrays.each().into_iter().find(|(own, _)| *own == name);
            own.map_or(String::new(), |(_, array)| format!("{name} {}", array.origin))
        }
        Given::Layer { x, .. } => format!("{name} (made of {})", x.origin),
    };
    let what = match (about, &input.mask) {
        ("mask" | "bias", Some(mask)) => format!("mask {}", mask.origin),
        ("query", _) => made("q"),
        ("key", _) => made("k"),
        ("value", _) => made("v"),
        ("", _) => input.title.clone(),
        ("scale", _) if !input.settings.scale_from.starts_with("--") => format!("{}: scale", input.title),
        (option, _) => format!("--{}", option.split(' ').next().unwrap_or(option).replace('_', "-")),
    };
    let words = words.strip_prefix(about).unwrap_or(&words).trim_start_matches(": ");
    let read = match layout {
        Layout::HeadsFirst => "",
        _ => "; shapes are as read, (batch, heads, length, dim)",
    };
    anyhow::anyhow!("{what}: {words}{read}")
}

/// An output or a matrix as `(batch, head, query, number)`.
pub fn four_axes<O: Clone>(array: ArrayD<O>, extents: &Extents) -> anyhow::Result<Array4<O>> {
    let last = array.shape().last().copied().unwrap_or(1);
    let queries = array.shape()[array.ndim() - 2];
    Ok(array.into_shape_with_order((extents.batches, extents.heads, queries, last))?)
}

/// The same of a view.
pub fn view_four_axes<'b, O>(array: &'b ArrayD<O>, extents: &Extents) -> anyhow::Result<ArrayView4<'b, O>> {
    let last = array.shape().last().copied().unwrap_or(1);
    let queries = array.shape()[array.ndim() - 2];
    let view = array.view().into_shape_with_order((extents.batches, extents.heads, queries, last));
    match view {
        Ok(view) => Ok(view),
        Err(_) => bail!("an output of shape {} is not as expected", show::shape(array.shape())),
    }
}
