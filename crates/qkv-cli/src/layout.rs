//! How an array's axes are read: from a file's order of axes to the engine's `(…, heads, length, dim)` and back.
//! Arrays are viewed, not copied; only a packed output is put together anew.

use anyhow::bail;
use ndarray::{ArrayD, ArrayViewD, CowArray, IxDyn, ShapeBuilder};
use qkv_view::show;

use crate::options::{AttentionOptions, AxisOrder};

/// The order of a file's axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `(…, heads, length, dim)`, or `(length, dim)`.
    HeadsFirst,
    /// `(…, length, heads, dim)`.
    LengthFirst,
    /// `(…, length, heads · dim)`, with as many query heads and numbers in each head.
    Packed { heads: usize, dim: usize },
}

/// Queries, keys and values, or only their shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trio<T> {
    pub query: T,
    pub key: T,
    pub value: T,
}

impl<T> Trio<T> {
    /// The same of each.
    pub fn map<U>(self, each: impl Fn(T) -> U) -> Trio<U> {
        Trio { query: each(self.query), key: each(self.key), value: each(self.value) }
    }

    /// Each with its name.
    pub fn each(&self) -> [(&'static str, &T); 3] {
        [("q", &self.query), ("k", &self.key), ("v", &self.value)]
    }
}

impl Layout {
    pub fn new(options: &AttentionOptions, query: &[usize]) -> anyhow::Result<Self> {
        let shown = show::shape(query);
        match (options.heads, options.layout) {
            (Some(_), AxisOrder::Bshd) => {
                bail!("--heads and --layout bshd: packed arrays have no head axis; give one")
            }
            (Some(heads), _) => match query[..] {
                [.., width]
                    if matches!(query.len(), 2 | 3) && heads > 0 && width > 0 && width % heads == 0 =>
                {
                    Ok(Self::Packed { heads, dim: width / heads })
                }
                _ if query.len() > 3 => {
                    bail!(
                        "--heads {heads}: q has shape {shown} and so a head axis already; leave --heads out"
                    )
                }
                _ => bail!(
                    "--heads {heads}: q has shape {shown}; want (batch, length, heads · dim), a last axis that {heads} divides"
                ),
            },
            (None, AxisOrder::Bshd) if query.len() >= 4 => Ok(Self::LengthFirst),
            (None, AxisOrder::Bshd) => {
                bail!("--layout bshd: q has shape {shown}; want 4 axes, (batch, length, heads, dim)")
            }
            (None, AxisOrder::Bhsd) => Ok(Self::HeadsFirst),
        }
    }

    /// The axes' names in the file's order.
    pub fn axes(self, rank: usize) -> &'static str {
        match (self, rank) {
            (Self::HeadsFirst, 2) => "(length, dim)",
            (Self::HeadsFirst, 3) => "(heads, length, dim)",
            (Self::HeadsFirst, _) => "(batch, heads, length, dim)",
            (Self::LengthFirst, _) => "(batch, length, heads, dim)",
            (Self::Packed { .. }, 2) => "(length, heads · dim)",
            (Self::Packed { .. }, _) => "(batch, length, heads · dim)",
        }
    }

    /// The three arrays as the engine wants them.
    pub fn read<'a, T>(self, arrays: Trio<ArrayViewD<'a, T>>) -> anyhow::Result<Trio<ArrayViewD<'a, T>>> {
        let Self::Packed { heads, dim } = self else {
            return Ok(Trio {
                query: self.heads_first(arrays.query),
                key: self.heads_first(arrays.key),
                value: self.heads_first(arrays.value),
            });
        };
        let rank = arrays.query.ndim();
        for (name, array) in arrays.each() {
            if array.ndim() != rank {
                bail!("{name}: got shape {}, want {rank} axes, as q has", show::shape(array.shape()));
            }
        }
        let key_width = arrays.key.shape()[rank - 1];
        let value_width = arrays.value.shape()[rank - 1];
        if key_width == 0 || !key_width.is_multiple_of(dim) {
            let wanted =
                format!("a last axis that is a multiple of {dim}, the numbers in each of q's {heads} heads");
            bail!("k: got shape {}, want {wanted}", show::shape(arrays.key.shape()));
        }
        let key_heads = key_width / dim;
        if !value_width.is_multiple_of(key_heads) {
            let wanted = format!("a last axis that is a multiple of {key_heads}, the number of key heads");
            bail!("v: got shape {}, want {wanted}", show::shape(arrays.value.shape()));
        }
        Ok(Trio {
            query: self.heads_first(unpacked(arrays.query, heads)?),
            key: self.heads_first(unpacked(arrays.key, key_heads)?),
            value: self.heads_first(unpacked(arrays.value, key_heads)?),
        })
    }

    /// `(…, heads, length, dim)` from what has all these axes.
    fn heads_first<T>(self, mut array: ArrayViewD<'_, T>) -> ArrayViewD<'_, T> {
        let rank = array.ndim();
        if self != Self::HeadsFirst && rank >= 3 {
            array.swap_axes(rank - 3, rank - 2);
        }
        array
    }

    /// An output `(…, heads, length, dim)` in the file's order of axes.
    pub fn restore<T: Clone>(self, output: ArrayViewD<'_, T>) -> CowArray<'_, T, IxDyn> {
        let shape = self.restored(output.shape());
        let output = self.heads_first(output);
        if !matches!(self, Self::Packed { .. }) {
            return output.into();
        }
        let elements = output.iter().cloned().collect();
        ArrayD::from_shape_vec(shape, elements).expect("as many elements as before").into()
    }

    /// The shape of an output of this shape in the file's order of axes.
    pub fn restored(self, output: &[usize]) -> Vec<usize> {
        let mut shape = output.to_vec();
        let rank = shape.len();
        if self != Self::HeadsFirst && rank >= 3 {
            shape.swap(rank - 3, rank - 2);
        }
        if let (Self::Packed { .. }, Some(dim)) = (self, shape.last().copied()) {
            shape.pop();
            shape[rank - 2] *= dim;
        }
        shape
    }
}

/// Splits the last axis, (heads · dim), in two, without a copy.
fn unpacked<T>(array: ArrayViewD<'_, T>, heads: usize) -> anyhow::Result<ArrayViewD<'_, T>> {
    let mut shape = array.shape().to_vec();
    let mut strides: Vec<usize> = array.strides().iter().map(|&stride| stride.unsigned_abs()).collect();
    let (width, stride) = (shape.pop().unwrap_or(0), strides.pop().unwrap_or(1));
    let dim = width / heads;
    shape.extend([heads, dim]);
    strides.extend([dim * stride, stride]);
    // A file's array fills its bytes, in one order of axes or the other.
    let Some(elements) = array.to_slice_memory_order() else { bail!("a packed array must be contiguous") };
    Ok(ArrayViewD::from_shape(IxDyn(&shape).strides(IxDyn(&strides)), elements)?)
}
