//! One call, checked: shapes, broadcasting, head groups, options and masks. Everything below this trusts it; what is
//! done with it, and how, is for others.

use std::fmt;
use std::str::FromStr;

use ndarray::{Array2, ArrayView, ArrayViewD, Dimension};
use smallvec::SmallVec;

use crate::attention::Attention;
use crate::bias::{BiasPlanes, Biases};
use crate::dropout::Dropout;
use crate::element::{Element, Real};
use crate::error::{Error, show_shape};
use crate::mask::{Alignment, Batch, Dense, Segments, Visibility, Window};
use crate::plan;
use crate::planes::{Extents, Planes};
use crate::simd::{FloatEnvironment, Simd};
use crate::tile::{Sort, Tile, TileMap};

/// Positions stay within this, so that sums and differences of them cannot overflow.
const POSITION_LIMIT: i64 = 1 << 61;

/// How rows are computed. It decides the speed and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Path {
    /// Queries in the lanes: for many queries.
    Prefill,
    /// Keys, then value columns, in the lanes: for few queries over many keys.
    Decode,
    /// The arithmetic program itself, number by number: the oracle that the others equal, bit for bit.
    Scalar,
}

impl Path {
    /// Every path.
    pub const ALL: [Self; 3] = [Self::Prefill, Self::Decode, Self::Scalar];

    /// `prefill`, `decode` or `scalar`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Scalar => "scalar",
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Path {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|path| path.name() == name)
            .ok_or_else(|| Error::value("path", format!("`{name}`"), "`prefill`, `decode` or `scalar`"))
    }
}

/// The stages that a score goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// `q · k`
    Raw,
    /// times the scale
    Scaled,
    /// squeezed by the softcap, if there is one
    Softcapped,
    /// with biases added, and -∞ where masked
    Masked,
    /// `exp(score - max) / sum`
    Weights,
}

/// A call whose shapes and options fit.
pub struct Problem<'a, T: Element> {
    pub(crate) query: Planes<'a, T>,
    pub(crate) key: Planes<'a, T>,
    pub(crate) value: Planes<'a, T>,
    pub(crate) terms: Terms<'a>,
}

/// All of a call but its arrays.
pub struct Terms<'a> {
    /// The batch axes, broadcast.
    pub(crate) batch_axes: Extents,
    pub(crate) batches: usize,
    pub(crate) heads: usize,
    /// Query heads that share one key head.
    pub(crate) group: usize,
    pub(crate) len_query: usize,
    pub(crate) len_key: usize,
    pub(crate) dim: usize,
    pub(crate) dim_value: usize,
    /// Whether the caller's arrays have a head axis (rank 3 and up).
    pub(crate) has_heads: bool,
    pub(crate) scale: f64,
    pub(crate) softcap: Option<f64>,
    pub(crate) visibility: Visibility<'a>,
    pub(crate) biases: Biases<'a>,
    pub(crate) sinks: Option<&'a [f64]>,
    pub(crate) dropout: Option<Dropout>,
    /// As the caller forced it, if so.
    pub(crate) path: Option<Path>,
    pub(crate) simd: Simd,
}

/// The shapes of a call, which fit one another.
struct Shapes {
    batch_axes: Extents,
    heads: usize,
    key_heads: usize,
    len_query: usize,
    len_key: usize,
    dim: usize,
    dim_value: usize,
    rank: usize,
}

impl<'a, T: Element> Problem<'a, T> {
    /// The call as it is looked at: what dropout does shows in the output alone.
    pub(crate) fn before_dropout(mut self) -> Self {
        self.terms.dropout = None;
        self
    }

    /// For rows of single heads: decode is cut for whole groups of heads, so another path serves them. The bits are the
    /// same.
    pub(crate) fn for_single_heads(mut self) -> Self {
        if self.terms.path != Some(Path::Scalar) {
            self.terms.path = Some(Path::Prefill);
        }
        self
    }

    /// Refuses a row `(batch, head, query)` that does not exist.
    pub(crate) fn check_row(&self, row: (usize, usize, usize)) -> Result<(), Error> {
        let extents = (self.terms.batches, self.terms.heads, self.terms.len_query);
        if row.0 < extents.0 && row.1 < extents.1 && row.2 < extents.2 {
            return Ok(());
        }
        let wanted = format!("(batch, head, query) below {extents:?}");
        Err(Error::value("row", format!("{row:?}"), wanted))
    }

    /// Refuses a batch or head that does not exist.
    pub(crate) fn check_head(&self, (batch, head): (usize, usize)) -> Result<(), Error> {
        let counts = [("batch", batch, self.terms.batches), ("head", head, self.terms.heads)];
        match counts.into_iter().find(|&(_, index, count)| index >= count) {
            Some((what, index, count)) => Err(Error::value(what, index, format!("a number below {count}"))),
            None => Ok(()),
        }
    }

    pub(crate) fn new<D: Dimension>(
        attention: &'a Attention<'a>,
        query: ArrayView<'a, T, D>,
        key: ArrayView<'a, T, D>,
        value: ArrayView<'a, T, D>,
    ) -> Result<Self, Error> {
        // The default scale, 1/cap and the slopes are part of the arithmetic.
        let _environment = FloatEnvironment::enter();
        let shapes = Shapes::new(query.shape(), key.shape(), value.shape())?;
        let simd = attention.simd.unwrap_or_else(Simd::best);
        if !simd.is_available() {
            return Err(Error::value("simd", simd, format!("`{}`: this machine has no more", Simd::best())));
        }
        let lead = leading_axes(&shapes, shapes.heads);
        let key_lead = leading_axes(&shapes, shapes.key_heads);
        let terms = Terms {
            batches: shapes.batches(),
            heads: shapes.heads,
            group: shapes.heads.checked_div(shapes.key_heads).unwrap_or(1).max(1),
            len_query: shapes.len_query,
            len_key: shapes.len_key,
            dim: shapes.dim,
            dim_value: shapes.dim_value,
            has_heads: shapes.rank > 2,
            scale: scale::<T::Accumulator>(attention.scale, shapes.dim)?,
            softcap: softcap::<T::Accumulator>(attention.softcap)?,
            visibility: visibility(attention, &shapes)?,
            biases: biases::<T::Accumulator>(attention, &shapes)?,
            sinks: sinks::<T::Accumulator>(attention, &shapes)?,
            dropout: dropout(attention)?,
            path: attention.path,
            simd,
            batch_axes: shapes.batch_axes,
        };
        let problem = Self {
            query: Planes::new("query", query.into_dyn(), &lead)?,
            key: Planes::new("key", key.into_dyn(), &key_lead)?,
            value: Planes::new("value", value.into_dyn(), &key_lead)?,
            terms,
        };
        if attention.strict
            && let Some(slow) = plan::slowness(&problem)
        {
            return Err(slow);
        }
        Ok(problem)
    }
}

impl Terms<'_> {
    /// The sort of a tile: what may be attended, closures' and biases' -∞ included.
    pub(crate) fn sort(&self, tile: &Tile) -> Sort {
        self.visibility.sort(tile).and(|| self.biases.sort(tile, &self.visibility))
    }

    /// A result's shape: the caller's batch axes and heads, then `last`.
    pub(crate) fn shape(&self, last: &[usize]) -> Extents {
        let heads = self.has_heads.then_some(self.heads);
        self.batch_axes.iter().copied().chain(heads).chain(last.iter().copied()).collect()
    }

    /// The extents of the leading axes of queries and outputs: all batch axes, and the heads.
    pub(crate) fn lead(&self) -> Extents {
        self.batch_axes.iter().copied().chain([self.heads]).collect()
    }

    pub(crate) fn key_head(&self, head: usize) -> usize {
        head / self.group
    }

    /// What a row's mean is multiplied by, if something of it may be dropped.
    pub(crate) fn dropout_factor<A: Real>(&self) -> Option<A> {
        self.dropout.as_ref().map(|dropout| A::from_f64(dropout.factor))
    }

    pub(crate) fn sink<A: Real>(&self, head: usize) -> Option<A> {
        self.sinks.as_ref().map(|sinks| A::from_f64(sinks[head]))
    }
}

impl Shapes {
    fn new(query: &[usize], key: &[usize], value: &[usize]) -> Result<Self, Error> {
        let rank = query.len();
        for (argument, shape) in [("query", query), ("key", key), ("value", value)] {
            if shape.len() < 2 {
                return Err(Error::shape(argument, shape, "(len, dim) or (…, heads, len, dim)"));
            }
            if shape.len() != rank {
                return Err(Error::shape(argument, shape, format!("{rank} axes, as the query has")));
            }
        }
        let with_heads = |shape: &[usize]| if rank == 2 { 1 } else { shape[rank - 3] };
        let (heads, key_heads) = (with_heads(query), with_heads(key));
        let [len_query, dim] = query[rank - 2..] else { unreachable!("two axes") };
        let [len_key, dim_value] = value[rank - 2..] else { unreachable!("two axes") };
        if key[rank - 1] != dim {
            return Err(Error::shape("key", key, format!("(…, len_key, {dim}): the query's dim is {dim}")));
        }
        if key[rank - 2] != len_key {
            let wanted = format!("(…, {}, dim_value): one for each key", key[rank - 2]);
            return Err(Error::shape("value", value, wanted));
        }
        if with_heads(value) != key_heads {
            return Err(Error::shape("value", value, format!("(…, {key_heads}, {len_key}, dim_value)"))
                .mended_by(format!("there are {key_heads} key heads")));
        }
        if heads > 0 && (key_heads == 0 || heads % key_heads != 0) {
            let wanted = format!("a number of key heads that divides the {heads} query heads");
            return Err(Error::shape("key", key, wanted));
        }
        let batch_axes = batch_axes(rank, query, key, value)?;
        let shapes = Self { batch_axes, heads, key_heads, len_query, len_key, dim, dim_value, rank };
        if shapes.batch_axes.iter().try_fold(1usize, |product, &axis| product.checked_mul(axis)).is_none() {
            return Err(Error::shape("query", query, "batch axes whose product fits a machine word"));
        }
        Ok(shapes)
    }

    fn batches(&self) -> usize {
        self.batch_axes.iter().product()
    }

    /// The shape of the scores, as the caller counts axes.
    fn scores(&self) -> Extents {
        let heads = (self.rank > 2).then_some(self.heads);
        self.batch_axes.iter().copied().chain(heads).chain([self.len_query, self.len_key]).collect()
    }
}

fn batch_axes(rank: usize, query: &[usize], key: &[usize], value: &[usize]) -> Result<Extents, Error> {
    let mut axes = Extents::from_slice(&query[..rank.saturating_sub(3)]);
    for (argument, shape) in [("key", key), ("value", value)] {
        for (axis, extent) in axes.iter_mut().enumerate() {
            match (*extent, shape[axis]) {
                (1, other) => *extent = other,
                (extent, other) if other == 1 || other == extent => {}
                (extent, _) => {
                    let wanted = format!("{extent} or 1 on axis {axis}, to broadcast with the others");
                    return Err(Error::shape(argument, shape, wanted));
                }
            }
        }
    }
    Ok(axes)
}

fn scale<A: Real>(given: Option<f64>, dim: usize) -> Result<f64, Error> {
    let scale = given.unwrap_or_else(|| if dim == 0 { 1.0 } else { 1.0 / (dim as f64).sqrt() });
    if !A::from_f64(scale).is_finite() {
        return Err(Error::number("scale", scale, format!("a finite {}", A::NAME)));
    }
    Ok(scale)
}

fn softcap<A: Real>(given: Option<f64>) -> Result<Option<f64>, Error> {
    let fits = |cap: f64| {
        let (rounded, inverse) = (A::from_f64(cap), A::from_f64(1.0 / cap));
        rounded > A::ZERO && rounded.is_finite() && inverse > A::ZERO && inverse.is_finite()
    };
    match given {
        Some(cap) if !fits(cap) => Err(Error::number(
            "softcap",
            cap,
            "a number above 0, finite as its inverse is; no softcap: leave it out",
        )),
        _ => Ok(given),
    }
}

fn dropout(attention: &Attention<'_>) -> Result<Option<Dropout>, Error> {
    let Some((probability, seed)) = attention.dropout else { return Ok(None) };
    if !(0.0..=1.0).contains(&probability) {
        return Err(Error::number("dropout", probability, "a probability from 0 to 1"));
    }
    Ok(Dropout::new(probability, seed, attention.dropout_offsets))
}

/// Checks that there is one number for all batches, or one each.
fn check_per_batch<N>(argument: &'static str, given: &[N], batches: usize) -> Result<(), Error> {
    match given {
        [_] => Ok(()),
        each if each.len() == batches => Ok(()),
        _ => {
            let wanted = format!("(1,) or ({batches},): one for all batches, or one each");
            Err(Error::shape(argument, &[given.len()], wanted))
        }
    }
}

fn visibility<'a>(attention: &'a Attention<'a>, shapes: &Shapes) -> Result<Visibility<'a>, Error> {
    let key_offset = attention.key_offset;
    if !(0..=POSITION_LIMIT).contains(&key_offset) {
        return Err(Error::value("key_offset", key_offset, format!("0 to {POSITION_LIMIT}")));
    }
    let mut visibility = Visibility {
        causal: attention.causal.is_some(),
        window: attention.window.unwrap_or(Window { left: None, right: None }),
        key_offset,
        batches: batches(attention, shapes)?,
        segments: segments(attention, shapes)?,
        dense: Vec::with_capacity(attention.masks.len()),
        closures: &attention.mask_fns,
    };
    for mask in &attention.masks {
        check_broadcast("mask", mask.shape(), shapes)?;
        let planes = Planes::new("mask", mask.clone(), &leading_axes(shapes, shapes.heads))?;
        let tiles = TileMap::new("mask", &planes, key_offset, |visible| visible)?;
        visibility.dense.push(Dense { planes, tiles });
    }
    Ok(visibility)
}

/// The extents of all leading axes, with so many heads.
fn leading_axes(shapes: &Shapes, heads: usize) -> Extents {
    shapes.batch_axes.iter().copied().chain([heads]).collect()
}

fn batches(attention: &Attention<'_>, shapes: &Shapes) -> Result<SmallVec<[Batch; 1]>, Error> {
    let count = shapes.batches();
    let all_keys = [shapes.len_key];
    let lengths = attention.key_lengths.as_deref().unwrap_or(&all_keys);
    if let Some(long) = lengths.iter().find(|&&length| length > shapes.len_key) {
        return Err(Error::value(
            "key_lengths",
            long,
            format!("at most {}, the number of keys", shapes.len_key),
        ));
    }
    let prefixes = attention.prefix.as_deref().unwrap_or(&[0]);
    if attention.prefix.is_some() && attention.causal.is_none() {
        return Err(Error::value("prefix", "a prefix without causal order", "causal order")
            .mended_by("without it every key is open already"));
    }
    let alignment = match (attention.causal, attention.query_offset) {
        (Some(alignment), Some(offset)) => {
            return Err(Error::value(
                "query_offset",
                format!("{offset} beside {alignment:?}"),
                "one of the two",
            )
            .mended_by(format!("causal(Alignment::Offset({offset}))")));
        }
        (Some(alignment), None) => alignment,
        (None, offset) => Alignment::Offset(offset.unwrap_or(0)),
    };
    check_per_batch("key_lengths", lengths, count)?;
    check_per_batch("prefix", prefixes, count)?;
    if count == 0 {
        return Ok(SmallVec::new());
    }
    // One entry serves all batches where they do not differ.
    (0..lengths.len().max(prefixes.len()))
        .map(|batch| (lengths[batch.min(lengths.len() - 1)], prefixes[batch.min(prefixes.len() - 1)]))
        .map(|(key_length, prefix)| {
            let query_offset = match alignment {
                Alignment::TopLeft => 0,
                Alignment::BottomRight => {
                    attention.key_offset.saturating_add(key_length as i64) - shapes.len_query as i64
                }
                Alignment::Offset(offset) => offset,
            };
            if query_offset.unsigned_abs() > POSITION_LIMIT as u64 {
                let wanted = format!("at most {POSITION_LIMIT} either way");
                return Err(Error::value("query_offset", query_offset, wanted));
            }
            Ok(Batch { query_offset, key_length, prefix: prefix.min(i64::MAX as u64) as i64 })
        })
        .collect()
}

fn segments(attention: &Attention<'_>, shapes: &Shapes) -> Result<Option<Segments>, Error> {
    let Some((query, key)) = &attention.segments else { return Ok(None) };
    let query = segment_ids("segments of queries", query, shapes.len_query, shapes)?;
    let key = segment_ids("segments of keys", key, shapes.len_key, shapes)?;
    Ok(Some(Segments::new(query, key, attention.key_offset)))
}

fn segment_ids(
    argument: &'static str,
    ids: &ArrayViewD<'_, i64>,
    len: usize,
    shapes: &Shapes,
) -> Result<Array2<i64>, Error> {
    let batches = shapes.batches();
    let rows = match *ids.shape() {
        [own] if own == len => 1,
        [rows, own] if own == len && (rows == 1 || rows == batches) => rows,
        _ => return Err(Error::shape(argument, ids.shape(), format!("({batches}, {len}) or ({len},)"))),
    };
    let mut own = Vec::new();
    own.try_reserve_exact(ids.len()).map_err(|_| Error::no_memory(argument, ids.shape()))?;
    own.extend(ids.iter().copied());
    Ok(Array2::from_shape_vec((rows, len), own).expect("the same number of ids"))
}

/// Whether a mask or bias broadcasts, right-aligned, to the scores. Nothing is ever cut to size.
fn check_broadcast(argument: &'static str, shape: &[usize], shapes: &Shapes) -> Result<(), Error> {
    let scores = shapes.scores();
    let fits = |got: &[usize]| {
        got.len() <= scores.len()
            && got.iter().rev().zip(scores.iter().rev()).all(|(&own, &full)| own == full || own == 1)
    };
    if fits(shape) {
        return Ok(());
    }
    let error = Error::shape(argument, shape, format!("{} or what broadcasts to it", show_shape(&scores)));
    // A mask for each batch but without the head axis is the usual mistake.
    let mut with_head_axis = shape.to_vec();
    if shape.len() == 3 {
        with_head_axis.insert(1, 1);
    } else if shape.len() == 2 {
        with_head_axis.splice(1..1, [1, 1]);
    }
    if shape.len() < with_head_axis.len() && fits(&with_head_axis) {
        let call = if shape.len() == 3 { "unsqueeze(1)" } else { "unsqueeze(1).unsqueeze(1)" };
        return Err(
            error.mended_by(format!("with an axis for heads, {}: {call}", show_shape(&with_head_axis)))
        );
    }
    Err(error)
}

fn biases<'a, A: Real>(attention: &'a Attention<'a>, shapes: &Shapes) -> Result<Biases<'a>, Error> {
    for bias in &attention.biases {
        check_broadcast("bias", bias.shape(), shapes)?;
    }
    let slopes = attention.alibi.as_ref().map(|alibi| alibi.slopes(shapes.heads));
    if let Some(slopes) = &slopes {
        if slopes.len() != shapes.heads {
            return Err(Error::shape(
                "alibi",
                &[slopes.len()],
                format!("({},): one for each head", shapes.heads),
            ));
        }
        if let Some(slope) = slopes.iter().find(|&&slope| !A::from_f64(slope).is_finite()) {
            return Err(Error::number("alibi", *slope, format!("slopes that are a finite {}", A::NAME)));
        }
    }
    let lead = leading_axes(shapes, shapes.heads);
    let arrays = attention.biases.iter().map(|bias| BiasPlanes::new(bias, &lead, attention.key_offset));
    let arrays = arrays.collect::<Result<_, _>>()?;
    Ok(Biases { arrays, slopes, closures: &attention.bias_fns })
}

fn sinks<'a, A: Real>(attention: &'a Attention<'a>, shapes: &Shapes) -> Result<Option<&'a [f64]>, Error> {
    let Some(sinks) = &attention.sinks else { return Ok(None) };
    check_sinks::<A>(sinks, shapes.heads)?;
    Ok(Some(sinks))
}

pub(crate) fn check_sinks<A: Real>(sinks: &[f64], heads: usize) -> Result<(), Error> {
    if sinks.len() != heads {
        return Err(Error::shape("sinks", &[sinks.len()], format!("({heads},): one for each query head")));
    }
    let fits = |sink: f64| sink == f64::NEG_INFINITY || A::from_f64(sink).is_finite();
    match sinks.iter().find(|&&sink| !fits(sink)) {
        Some(sink) => {
            Err(Error::number("sinks", *sink, format!("a finite {}, or -inf for no sink", A::NAME)))
        }
        None => Ok(()),
    }
}
