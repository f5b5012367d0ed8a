//! Arrays by their names, checked against one another, as the parts of a layer.
//!
//! Errors use the lesson's names and show an array's shape as the caller has it; where the caller's name is another,
//! they tell it too.

use std::fmt::Display;

use ndarray::{ArrayD, ArrayViewD, Axis, Ix2, Slice};

use super::Layer;
use super::linear::Linear;
use super::names::{Meaning, Role, meaning};
use crate::element::Element;
use crate::error::Error;
use crate::forward::zeros;
use crate::simd::FloatEnvironment;

/// An array that was found for a role.
struct Found<'a, T> {
    name: &'a str,
    /// As the caller has it, or the third of it that is the role's.
    array: ArrayViewD<'a, T>,
    /// `(out, in)`, torch's order.
    transposed: bool,
    /// Which third of a packed array.
    third: Option<usize>,
}

/// The arrays of a layer, each at its role's place.
pub(super) struct Arrays<'a, T> {
    weights: [Option<Found<'a, T>>; 4],
    biases: [Option<Found<'a, T>>; 4],
    /// A name of `nn.MultiheadAttention`'s, whose state does not tell the number of heads.
    multihead: Option<&'a str>,
}

impl<'a, T: Element> Arrays<'a, T> {
    /// Names that are no layer's are passed over.
    pub(super) fn find(
        arrays: impl IntoIterator<Item = (&'a str, ArrayViewD<'a, T>)>,
    ) -> Result<Self, Error> {
        let none = || Role::ALL.map(|_| None);
        let mut found = Self { weights: none(), biases: none(), multihead: None };
        for (name, array) in arrays {
            let Some(meaning) = meaning(name) else { continue };
            match meaning {
                Meaning::Weight(role) => found.put_weight(role, Found::new(name, array, false))?,
                Meaning::Transposed(role) | Meaning::Multihead(role) => {
                    found.put_weight(role, Found::new(name, array, true))?;
                }
                Meaning::Bias(role) => found.put_bias(role, Found::new(name, array, false))?,
                Meaning::InProjWeight => {
                    let thirds = thirds("in_proj_weight", name, array, 2)?;
                    for (role, third) in Role::ALL.into_iter().zip(thirds) {
                        found.put_weight(role, third)?;
                    }
                }
                Meaning::InProjBias => {
                    let thirds = thirds("in_proj_bias", name, array, 1)?;
                    for (role, third) in Role::ALL.into_iter().zip(thirds) {
                        found.put_bias(role, third)?;
                    }
                }
                Meaning::AddedBias(argument) => {
                    let wanted = "none: torch's add_bias_kv is not supported";
                    return Err(Error::value(argument, format!("the array `{name}`"), wanted));
                }
            }
            if matches!(meaning, Meaning::Multihead(_) | Meaning::InProjWeight | Meaning::InProjBias) {
                found.multihead.get_or_insert(name);
            }
        }
        Ok(found)
    }

    fn put_weight(&mut self, role: Role, found: Found<'a, T>) -> Result<(), Error> {
        put(&mut self.weights[role as usize], role.weight(), found)
    }

    fn put_bias(&mut self, role: Role, found: Found<'a, T>) -> Result<(), Error> {
        put(&mut self.biases[role as usize], role.bias(), found)
    }

    /// Checks that all fit together, and copies them.
    pub(super) fn layer(mut self, heads: Option<usize>) -> Result<Layer<T>, Error> {
        let missing: Vec<String> = [Role::Query, Role::Key, Role::Value]
            .into_iter()
            .filter(|&role| self.weights[role as usize].is_none())
            .map(|role| format!("no {}", role.weight()))
            .collect();
        let heads = self.heads(heads)?;
        let mut take =
            |role: Role| self.weights[role as usize].take().map(|found| Weight::new(role, found)).transpose();
        let found = (take(Role::Query)?, take(Role::Key)?, take(Role::Value)?);
        let output = take(Role::Output)?;
        let (Some(query), Some(key), Some(value)) = found else {
            let wanted = "w_q, w_k and w_v, or torch's in_proj_weight, or q_proj.weight, k_proj.weight and v_proj.weight";
            return Err(Error::value("layer", missing.join(" and "), wanted));
        };
        let key_heads = key_heads([&query, &key, &value], heads)?;
        if let Some(output) = &output {
            check_output(output, heads, value.outputs / key_heads)?;
        }
        let mut linear = |weight: Weight<'a, T>| {
            let bias = self.biases[weight.role as usize].take();
            weight.linear(bias)
        };
        let layer = Layer {
            query: linear(query)?,
            key: linear(key)?,
            value: linear(value)?,
            output: output.map(&mut linear).transpose()?,
            heads,
            key_heads,
        };
        match self.biases.into_iter().flatten().next() {
            Some(bias) => {
                let got = format!("the array `{}` without w_o", bias.name);
                Err(Error::value("b_o", got, "w_o beside it"))
            }
            None => Ok(layer),
        }
    }

    fn heads(&self, heads: Option<usize>) -> Result<usize, Error> {
        match (heads, self.multihead) {
            (Some(0), _) => Err(Error::value("heads", 0, "at least 1")),
            (Some(heads), _) => Ok(heads),
            (None, None) => Ok(1),
            (None, Some(name)) => {
                let wanted = format!("the number of heads: torch's state (`{name}`) does not tell it");
                Err(Error::value("heads", "none", wanted))
            }
        }
    }
}

fn put<'a, T>(
    place: &mut Option<Found<'a, T>>,
    role: &'static str,
    found: Found<'a, T>,
) -> Result<(), Error> {
    if let Some(first) = place {
        let got = format!("two arrays, `{}` and `{}`", first.name, found.name);
        return Err(Error::value(role, got, "one"));
    }
    *place = Some(found);
    Ok(())
}

/// torch's packed arrays: query, key and value in equal parts of the first axis.
fn thirds<'a, T: Element>(
    argument: &'static str,
    name: &'a str,
    array: ArrayViewD<'a, T>,
    rank: usize,
) -> Result<[Found<'a, T>; 3], Error> {
    if array.ndim() != rank || !array.shape()[0].is_multiple_of(3) {
        let wanted = if rank == 2 { "(3 · out, in)" } else { "(3 · out,)" };
        let error = Error::shape(argument, array.shape(), format!("{wanted}: query, key and value"));
        return Err(if name == argument { error } else { error.mended_by(format!("`{name}`")) });
    }
    let part = array.shape()[0] / 3;
    Ok([0, 1, 2].map(|third| {
        let mut array = array.clone();
        array.slice_axis_inplace(Axis(0), Slice::from(third * part..(third + 1) * part));
        Found { third: Some(third), ..Found::new(name, array, rank == 2) }
    }))
}

impl<'a, T: Element> Found<'a, T> {
    fn new(name: &'a str, array: ArrayViewD<'a, T>, transposed: bool) -> Self {
        Self { name, array, transposed, third: None }
    }

    /// A copy in the accumulator type.
    fn widened(&self, argument: &'static str) -> Result<ArrayD<T::Accumulator>, Error> {
        let _environment = FloatEnvironment::enter();
        let mut copy = zeros::<T::Accumulator>(argument, self.array.shape())?;
        copy.zip_mut_with(&self.array, |to, &x| *to = x.widen());
        Ok(copy)
    }

    fn unfit(&self, argument: &'static str, wanted: String) -> Error {
        let error = Error::shape(argument, self.array.shape(), wanted);
        let part =
            self.third.map_or("", |third| ["first third of ", "second third of ", "last third of "][third]);
        match self.name {
            name if name.eq_ignore_ascii_case(argument) => error,
            name if self.transposed => error.mended_by(format!("{part}`{name}`, which is (out, in)")),
            name => error.mended_by(format!("{part}`{name}`")),
        }
    }
}

/// A weight, what it is for, and its two extents.
struct Weight<'a, T> {
    role: Role,
    found: Found<'a, T>,
    inputs: usize,
    outputs: usize,
}

impl<'a, T: Element> Weight<'a, T> {
    fn new(role: Role, found: Found<'a, T>) -> Result<Self, Error> {
        match (found.array.shape(), found.transposed) {
            (&[outputs, inputs], true) | (&[inputs, outputs], false) => {
                Ok(Self { role, found, inputs, outputs })
            }
            (_, true) => Err(found.unfit(role.weight(), "(out, in)".into())),
            (_, false) => Err(found.unfit(role.weight(), "(in, out)".into())),
        }
    }

    /// Says what would fit, in the order of the axes that the caller's array has.
    fn unfit(&self, inputs: impl Display, outputs: impl Display, why: impl Display) -> Error {
        let wanted = match self.found.transposed {
            true => format!("({outputs}, {inputs}): {why}"),
            false => format!("({inputs}, {outputs}): {why}"),
        };
        self.found.unfit(self.role.weight(), wanted)
    }

    fn linear(self, bias: Option<Found<'a, T>>) -> Result<Linear<T>, Error> {
        let bias = bias.map(|bias| {
            if bias.array.shape() != [self.outputs] {
                let wanted = format!("({},): {} gives as many numbers", self.outputs, self.role.weight());
                return Err(bias.unfit(self.role.bias(), wanted));
            }
            Ok(bias.widened(self.role.bias())?.into_raw_vec_and_offset().0)
        });
        let weight = self.found.widened(self.role.weight())?;
        let weight = weight.into_dimensionality::<Ix2>().expect("two axes");
        let weight = if self.found.transposed { weight.reversed_axes() } else { weight };
        Ok(Linear { weight, bias: bias.transpose()? })
    }
}

/// How many key heads there are, if the three fit.
fn key_heads<T: Element>([query, key, value]: [&Weight<'_, T>; 3], heads: usize) -> Result<usize, Error> {
    let dim_model = query.inputs;
    if query.outputs == 0 || !query.outputs.is_multiple_of(heads) {
        let wanted = if heads == 1 { "1 or more".to_string() } else { format!("a multiple of {heads}") };
        return Err(query.unfit(dim_model, wanted, count_of(heads)));
    }
    for other in [key, value] {
        if other.inputs != dim_model {
            return Err(other.unfit(dim_model, "out", format!("w_q takes {dim_model} numbers")));
        }
    }
    let dim = query.outputs / heads;
    let key_heads = key.outputs / dim;
    if key_heads == 0 || key.outputs != key_heads * dim || !heads.is_multiple_of(key_heads) {
        let wanted =
            if heads == 1 { dim.to_string() } else { format!("{dim} · a number that divides {heads}") };
        return Err(key.unfit(dim_model, wanted, format!("w_q gives {} of {dim}", count_of(heads))));
    }
    if !value.outputs.is_multiple_of(key_heads) {
        let wanted = format!("a multiple of {key_heads}");
        return Err(value.unfit(dim_model, wanted, format!("w_k gives {}", count_of(key_heads))));
    }
    Ok(key_heads)
}

fn check_output<T: Element>(output: &Weight<'_, T>, heads: usize, dim_value: usize) -> Result<(), Error> {
    let width = heads.saturating_mul(dim_value);
    if output.inputs == width {
        return Ok(());
    }
    let why = format!("{} of {dim_value} values side by side", count_of(heads));
    Err(output.unfit(width, "out", why))
}

fn count_of(heads: usize) -> String {
    if heads == 1 { "1 head".into() } else { format!("{heads} heads") }
}
