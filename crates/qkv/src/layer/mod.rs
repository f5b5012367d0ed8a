//! The projections around attention: `Q = X W_q + b_q`, `K = X W_k + b_k`, `V = X W_v + b_v`, cut into heads; and
//! after it the heads side by side, times `W_o` plus `b_o` ("Attention Is All You Need", 3.2.2).
//!
//! `names` says what arrays are called, `arrays` checks them, `linear` multiplies.

mod arrays;
mod linear;
mod names;

use ndarray::{ArrayD, ArrayView2, ArrayViewD, Axis, IxDyn};

use crate::attention::Attention;
use crate::element::Element;
use crate::error::Error;
use crate::forward::zeros;
use arrays::Arrays;
use linear::Linear;

/// A layer of attention: the weights that make queries, keys and values of `x`, and the one after.
///
/// The matrix products are the library's (ndarray's, which is matrixmultiply's), in the accumulator type, rounded once. Their bits may
/// differ with the instruction set and with other rows in the call: "one row, one answer" is attention's promise, for
/// the queries, keys and values that it is given.
///
/// ```
/// use ndarray::array;
/// use qkv::{Attention, Layer};
///
/// // The lesson's one head: three tokens of two numbers.
/// let x = array![[1.0f32, 0.0], [0.0, 1.0], [1.0, 1.0]].into_dyn();
/// let w_q = array![[1.0f32, 0.0], [0.0, 1.0]].into_dyn();
/// let w_k = array![[0.0f32, 1.0], [1.0, 0.0]].into_dyn();
/// let w_v = array![[1.0f32, 2.0], [3.0, 4.0]].into_dyn();
///
/// let layer = Layer::from_arrays([("w_q", w_q.view()), ("w_k", w_k.view()), ("w_v", w_v.view())], None)?;
/// let projections = layer.project(x.view())?;
/// assert_eq!(projections.value, array![[1.0, 2.0], [3.0, 4.0], [4.0, 6.0]].into_dyn());
///
/// let output = layer.forward(&Attention::new(), x.view())?;
/// assert_eq!(output.shape(), [3, 2]);
/// # Ok::<(), qkv::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Layer<T: Element> {
    query: Linear<T>,
    key: Linear<T>,
    value: Linear<T>,
    output: Option<Linear<T>>,
    heads: usize,
    key_heads: usize,
}

/// What a layer makes of `x`, for [`Attention`]: its heads are an axis, or there is none where `x` has two axes and
/// the layer one head.
#[derive(Clone, Debug, PartialEq)]
pub struct Projections<T> {
    /// `(…, heads, len, dim)`
    pub query: ArrayD<T>,
    /// `(…, key_heads, len, dim)`
    pub key: ArrayD<T>,
    /// `(…, key_heads, len, dim_value)`
    pub value: ArrayD<T>,
}

/// Whether a name is one of a layer's weights or biases, in any letter case and with any module prefix that ends in a
/// dot. [`Layer::from_arrays`] has the names.
///
/// `bias_k` and `bias_v` are such names too, though a layer refuses them.
///
/// ```
/// assert!(qkv::is_layer_array("W_q") && qkv::is_layer_array("self_attn.in_proj_weight"));
/// assert!(!qkv::is_layer_array("norm.weight") && !qkv::is_layer_array("q"));
/// ```
pub fn is_layer_array(name: &str) -> bool {
    names::meaning(name).is_some()
}

impl<T: Element> Layer<T> {
    /// A layer from arrays by their names, in any letter case and with any module prefix that ends in a dot. Other
    /// names are passed over. Weights are copied, in the accumulator type.
    ///
    /// | names | shapes | |
    /// |---|---|---|
    /// | `w_q` `w_k` `w_v`, `w_o` | `(in, out)` | the lessons' `X W` |
    /// | `q_proj.weight` and so on, `out_proj.weight` | `(out, in)` | torch's `X Wᵀ`; also `q`, `wq`, `w_q`, `q_lin`, `query`, `query_proj`, `to_q`, and for the last `o`, `wo`, `w_o`, `o_proj`, `out_lin`, `out`, `output`, `to_out`, `to_out.0`, `attention.output.dense` |
    /// | `in_proj_weight` | `(3 · out, in)` | `nn.MultiheadAttention`: query, key, value |
    /// | `q_proj_weight` and so on | `(out, in)` | the same, with `kdim` or `vdim` |
    /// | `b_q` `b_k` `b_v` `b_o`, `q_proj.bias` and so on | `(out,)` | |
    /// | `in_proj_bias` | `(3 · out,)` | query, key, value |
    ///
    /// `w_q` gives `heads · dim` numbers, `w_k` `key_heads · dim`, `w_v` `key_heads · dim_value`; `w_o`, which may be
    /// missing as any bias may, takes `heads · dim_value`. `heads` is 1 where it is not given.
    ///
    /// # Errors
    /// If a weight of query, key or value is missing, two arrays have one role, shapes do not fit one another and
    /// `heads`, there is torch's `bias_k` or `bias_v`, or `heads` is not given with the arrays of an
    /// `nn.MultiheadAttention`, which do not tell it.
    pub fn from_arrays<'a>(
        arrays: impl IntoIterator<Item = (&'a str, ArrayViewD<'a, T>)>,
        heads: Option<usize>,
    ) -> Result<Self, Error> {
        Arrays::find(arrays)?.layer(heads)
    }

    /// How many heads queries have.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// How many heads keys and values have; it divides [`heads`](Self::heads).
    pub fn key_heads(&self) -> usize {
        self.key_heads
    }

    /// Whether there is a `w_o`.
    pub fn has_output(&self) -> bool {
        self.output.is_some()
    }

    /// Queries `(…, heads, len, dim)`, keys `(…, key_heads, len, dim)` and values `(…, key_heads, len, dim_value)` of
    /// `x`, `(…, len, dim_model)`: `X W + b`, cut into heads. `(len, dim_model)` with one head gives `(len, dim)`.
    ///
    /// In memory the heads of a row lie side by side.
    ///
    /// # Errors
    /// If `x` has fewer than two axes or another `dim_model` than the weights, or if there is no memory for a result.
    pub fn project(&self, x: ArrayViewD<'_, T>) -> Result<Projections<T>, Error> {
        let dim_model = self.query.inputs();
        if x.ndim() < 2 || x.shape().last() != Some(&dim_model) {
            let wanted = format!("(…, len, {dim_model}): w_q takes {dim_model} numbers");
            return Err(Error::shape("x", x.shape(), wanted));
        }
        let has_axis = x.ndim() > 2 || self.heads > 1;
        let heads_at = Axis(x.ndim() - 2);
        let x = x.insert_axis(heads_at);
        let project = |what, linear: &Linear<T>, heads| {
            let product = linear.apply(what, x.view())?;
            Ok(if has_axis { apart(product, heads) } else { product })
        };
        Ok(Projections {
            query: project("query", &self.query, self.heads)?,
            key: project("key", &self.key, self.key_heads)?,
            value: project("value", &self.value, self.key_heads)?,
        })
    }

    /// The heads of `attended`, `(…, heads, len, dim_value)`, side by side, `(…, len, heads · dim_value)`; and where
    /// there is a `w_o`, that times `w_o` plus `b_o`, `(…, len, out)`. One head may come as `(len, dim_value)`.
    ///
    /// # Errors
    /// If `attended` has other heads or another `dim_value` than the layer, or if there is no memory for the result.
    pub fn output(&self, attended: ArrayViewD<'_, T>) -> Result<ArrayD<T>, Error> {
        let dim_value = self.value.outputs() / self.key_heads;
        let fits = match *attended.shape() {
            [_, columns] => self.heads == 1 && columns == dim_value,
            [.., heads, _, columns] => heads == self.heads && columns == dim_value,
            _ => false,
        };
        if !fits {
            let or = if self.heads == 1 { format!("(len, {dim_value}) or ") } else { String::new() };
            let wanted = format!("{or}(…, {}, len, {dim_value})", self.heads);
            return Err(Error::shape("attended", attended.shape(), wanted));
        }
        let attended = if attended.ndim() == 2 { attended.insert_axis(Axis(0)) } else { attended };
        match &self.output {
            Some(output) => output.apply("output", attended),
            None => side_by_side(attended),
        }
    }

    /// How many numbers a row of [`output`](Self::output) has.
    pub fn dim_output(&self) -> usize {
        let side_by_side = (self.value.outputs() / self.key_heads).saturating_mul(self.heads);
        self.output.as_ref().map_or(side_by_side, Linear::outputs)
    }

    /// What queries, keys and values are made by: `(dim_model, heads · dim)`, `(dim_model, key_heads · dim)`,
    /// `(dim_model, key_heads · dim_value)`.
    pub fn weights(&self) -> [ArrayView2<'_, T::Accumulator>; 3] {
        [&self.query, &self.key, &self.value].map(|linear| linear.weight.view())
    }

    /// What is added to queries, keys and values, if anything is: a number for each column of the weights.
    pub fn biases(&self) -> [Option<&[T::Accumulator]>; 3] {
        [&self.query, &self.key, &self.value].map(|linear| linear.bias.as_deref())
    }

    /// The whole layer: [`project`](Self::project), attend, [`output`](Self::output). `x` is `(…, len, dim_model)`, the
    /// result `(…, len, out)`.
    ///
    /// # Errors
    /// As `project`, and if the options of `attention` do not fit.
    pub fn forward(&self, attention: &Attention<'_>, x: ArrayViewD<'_, T>) -> Result<ArrayD<T>, Error> {
        let Projections { query, key, value } = self.project(x)?;
        let attended = attention.forward(query.view(), key.view(), value.view())?;
        self.output(attended.view())
    }
}

/// `(…, len, heads · dim)` as `(…, heads, len, dim)`; nothing moves.
fn apart<T>(product: ArrayD<T>, heads: usize) -> ArrayD<T> {
    let [ref lead @ .., len, width] = *product.shape() else { unreachable!("two axes and more") };
    let shape: Vec<usize> = lead.iter().copied().chain([len, heads, width / heads]).collect();
    let at = lead.len();
    let mut apart = product.into_shape_with_order(IxDyn(&shape)).expect("as many numbers");
    apart.swap_axes(at, at + 1);
    apart
}

/// `(…, heads, len, dim)` as `(…, len, heads · dim)`, copied.
fn side_by_side<T: Element>(mut attended: ArrayViewD<'_, T>) -> Result<ArrayD<T>, Error> {
    let at = attended.ndim() - 3;
    attended.swap_axes(at, at + 1);
    let [ref lead @ .., len, heads, dim] = *attended.shape() else { unreachable!("three axes and more") };
    let width = heads.checked_mul(dim).ok_or_else(|| Error::no_memory("output", attended.shape()))?;
    let shape: Vec<usize> = lead.iter().copied().chain([len, width]).collect();
    let mut copy = zeros::<T>("output", attended.shape())?;
    copy.assign(&attended);
    copy.into_shape_with_order(IxDyn(&shape)).map_err(|_| Error::no_memory("output", &shape))
}
