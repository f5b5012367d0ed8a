//! The gradients of a loss, from those with respect to the output and the log-sum-exp, in linear memory.
//!
//! With `p = exp(s - max) / sum`, as the forward pass left maximum and sum of each row, and
//! `delta = Σ d_output · output - d_lse`:
//!
//! ```text
//! d_value = Σ p · d_output
//! d_bias  = p · (d_output · value - delta)
//! d_product = d_bias · (1 - tanh²) · scale           (tanh of a softcap, if there is one)
//! d_query = Σ d_product · key,  d_key = Σ d_product · query
//! d_sink  = -Σ exp(sink - max) / sum · delta
//! ```
//!
//! With dropout the weights of `d_value`, and `d_output · value`, are times 1/(1-P) where it keeps a pair, and 0 where not.
//!
//! `deltas.rs` comes first. Then scores and weights are made again tile by tile (`block.rs`), by the kernels that made the output,
//! and what follows from them is added up (`sums.rs`); `jobs.rs` and `order.rs` say by whom and when, and `scalar.rs` is the program that all of
//! it equals, bit for bit.

mod block;
mod deltas;
mod jobs;
mod order;
mod reference;
mod scalar;
mod sums;

use ndarray::{Array, ArrayD, ArrayView, Dimension};

use crate::call::{Progress, RowStats};
use crate::element::Element;
use crate::error::{Error, show_shape};
use crate::forward::{shaped, untouched_zeros, zeros};
use crate::plan;
use crate::planes::{Extents, Planes};
use crate::problem::{Path, Problem};
use crate::simd::FloatEnvironment;

pub use jobs::Compiled;
pub(crate) use reference::gradients as reference_gradients;
pub use reference::{HeadGradients, ReferenceGradients};

/// Which gradients are asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted {
    query: bool,
    key: bool,
    value: bool,
    biases: bool,
    sinks: bool,
}

/// A call to be differentiated: see [`Call::backward`](crate::Call::backward).
///
/// Source: Dao et al., “FlashAttention” (2022), appendix B, for gradients from recomputed weights in linear memory.
///
/// ```
/// use ndarray::{Array2, array};
/// use qkv::Attention;
///
/// let (x, v) = (array![[1.0f32, 0.0], [0.0, 2.0]], array![[1.0f32], [3.0]]);
/// let attention = Attention::new();
/// let call = || attention.call(x.view(), x.view(), v.view());
/// let forward = call().row_stats().run()?;
/// // Of the sum of the output.
/// let ones = Array2::ones((2, 1));
/// let gradients =
///     call().backward(forward.output.view(), forward.row_stats.as_ref().unwrap(), ones.view()).value().run()?;
/// // Each value counts as often as it is looked at: the weights' columns, which sum to the number of queries.
/// assert!((gradients.value.unwrap().sum() - 2.0).abs() < 1e-6);
/// # Ok::<(), qkv::Error>(())
/// ```
#[must_use = "nothing is computed before `run`"]
pub struct Backward<'c, T: Element, D: Dimension> {
    pub(crate) problem: Result<Problem<'c, T>, Error>,
    pub(crate) shapes: [Extents; 3],
    pub(crate) output: ArrayView<'c, T, D>,
    pub(crate) row_stats: &'c RowStats<T, D>,
    pub(crate) d_output: ArrayView<'c, T, D>,
    pub(crate) d_lse: Option<ArrayView<'c, T::Accumulator, D::Smaller>>,
    pub(crate) wanted: Wanted,
    pub(crate) progress: Option<&'c mut Progress<'c>>,
}

/// The gradients that were asked for, each of the shape of what it is of. What broadcast, and what a group of heads shares, has
/// the sum.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Gradients<T: Element, D: Dimension> {
    /// As the queries: `(…, heads, len_query, dim)`.
    pub query: Option<Array<T, D>>,
    /// As the keys: `(…, key_heads, len_key, dim)`.
    pub key: Option<Array<T, D>>,
    /// As the values: `(…, key_heads, len_key, dim_value)`.
    pub value: Option<Array<T, D>>,
    /// Of the stored biases, in call order, each of its own shape; in the accumulator type. A masked pair has 0.
    pub biases: Option<Vec<ArrayD<T::Accumulator>>>,
    /// One for each query head, in the accumulator type; none where the call has no sinks.
    pub sinks: Option<Vec<T::Accumulator>>,
}

impl<'c, T: Element, D: Dimension> Backward<'c, T, D> {
    /// The gradient that arrives through the log-sum-exp, `(…, heads, len_query)`; without, it is 0.
    pub fn d_lse(mut self, d_lse: ArrayView<'c, T::Accumulator, D::Smaller>) -> Self {
        self.d_lse = Some(d_lse);
        self
    }

    /// Asks for the gradient of the queries.
    pub fn query(mut self) -> Self {
        self.wanted.query = true;
        self
    }

    /// Asks for the gradient of the keys.
    pub fn key(mut self) -> Self {
        self.wanted.key = true;
        self
    }

    /// Asks for the gradient of the values.
    pub fn value(mut self) -> Self {
        self.wanted.value = true;
        self
    }

    /// Asks for the gradients of the stored biases.
    pub fn biases(mut self) -> Self {
        self.wanted.biases = true;
        self
    }

    /// Asks for the gradients of the sinks.
    pub fn sinks(mut self) -> Self {
        self.wanted.sinks = true;
        self
    }

    /// Reports progress to, and may be cancelled by, a function that is called on this thread. There may be several passes,
    /// each of which counts from 0.
    pub fn progress(mut self, progress: &'c mut Progress<'c>) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Computes.
    ///
    /// Beside the results it takes memory for a number for each row, and for half floats the results once more in f32. A
    /// row that attends nothing has gradient 0, and masked keys and values have none from the rows that do not see them,
    /// whatever they hold.
    ///
    /// # Errors
    /// If shapes or options do not fit, if there is no memory for a result, or if progress cancelled.
    pub fn run(mut self) -> Result<Gradients<T, D>, Error> {
        let problem = std::mem::replace(&mut self.problem, Err(Error::Cancelled))?;
        let _environment = FloatEnvironment::enter();
        let returned = Returned::new(&problem, &self)?;
        let terms = &problem.terms;
        let mut results = Results::new(&problem, &self.shapes, self.wanted)?;
        let mut deltas = zeros::<T::Accumulator>("row deltas", &terms.shape(&[terms.len_query]))?;
        let deltas = deltas.as_slice_mut().expect("contiguous");
        if plan::choose(terms).0 == Path::Scalar {
            scalar::deltas(&problem, &returned, deltas);
            scalar::gradients(&problem, &returned, deltas, &mut results);
        } else {
            T::gradients(&problem, &returned, deltas, &mut results, &mut self.progress)?;
        }
        let has_sinks = self.wanted.sinks && terms.sinks.is_some();
        let sinks = has_sinks.then(|| scalar::sinks(&problem, &returned, deltas));
        let narrow = |wide: Option<ArrayD<_>>| wide.map(|wide| shaped(T::narrow(wide)));
        Ok(Gradients {
            query: narrow(results.query),
            key: narrow(results.key),
            value: narrow(results.value),
            biases: self.wanted.biases.then(|| results.biases.into_iter().map(Element::narrow).collect()),
            sinks: sinks.map(|sinks| sinks.into_iter().map(Element::leave).collect()),
        })
    }
}

/// What the forward pass returned, and what came back for it.
pub struct Returned<'a, T: Element> {
    output: Planes<'a, T>,
    d_output: Planes<'a, T>,
    /// Maximum and sum of each row, flat.
    stats: [&'a [T::Accumulator]; 2],
    d_lse: Option<Vec<T::Accumulator>>,
}

impl<'a, T: Element> Returned<'a, T> {
    fn new<D: Dimension>(problem: &Problem<'_, T>, call: &Backward<'a, T, D>) -> Result<Self, Error> {
        let terms = &problem.terms;
        let check = |argument, got: &[usize], wanted: &[usize]| {
            if got == wanted { Ok(()) } else { Err(Error::shape(argument, got, show_shape(wanted))) }
        };
        let of_output = terms.shape(&[terms.len_query, terms.dim_value]);
        check("output", call.output.shape(), &of_output)?;
        check("d_output", call.d_output.shape(), &of_output)?;
        let of_rows = terms.shape(&[terms.len_query]);
        let stats = [("row_stats.max", &call.row_stats.max), ("row_stats.sum", &call.row_stats.sum)];
        for (argument, array) in stats {
            check(argument, array.shape(), &of_rows)?;
        }
        let flat = |(argument, array): (&'static str, &'a Array<T::Accumulator, D::Smaller>)| {
            let wanted = "contiguous numbers, as the forward pass returns them";
            array.as_slice().ok_or_else(|| Error::value(argument, "other strides", wanted))
        };
        let d_lse = call.d_lse.as_ref().map(|d_lse| {
            check("d_lse", d_lse.shape(), &of_rows)?;
            Ok(d_lse.iter().copied().collect())
        });
        let lead = terms.lead();
        Ok(Self {
            output: Planes::new("output", call.output.clone().into_dyn(), &lead)?,
            d_output: Planes::new("d_output", call.d_output.clone().into_dyn(), &lead)?,
            stats: [flat(stats[0])?, flat(stats[1])?],
            d_lse: d_lse.transpose()?,
        })
    }
}

/// The gradients while they are summed up: in the accumulator type, contiguous, of the shape of what they are of.
///
/// Numbers are as they may leave: a sum that starts at +0 never is -0, and every NaN that is added becomes the canonical one.
pub struct Results<A> {
    query: Option<ArrayD<A>>,
    key: Option<ArrayD<A>>,
    value: Option<ArrayD<A>>,
    /// None if they are not wanted.
    biases: Vec<ArrayD<A>>,
}

impl<A: crate::element::Real> Results<A> {
    fn new<T: Element<Accumulator = A>>(
        problem: &Problem<'_, T>,
        [query, key, value]: &[Extents; 3],
        wanted: Wanted,
    ) -> Result<Self, Error> {
        let of = |what, shape: &[usize], wanted: bool| wanted.then(|| zeros::<A>(what, shape)).transpose();
        let biases = problem.terms.biases.arrays.iter().filter(|_| wanted.biases);
        Ok(Self {
            query: of("gradient of the query", query, wanted.query)?,
            key: of("gradient of the key", key, wanted.key)?,
            value: of("gradient of the value", value, wanted.value)?,
            biases: biases
                .map(|bias| untouched_zeros("gradient of a bias", bias.shape()))
                .collect::<Result<_, _>>()?,
        })
    }
}
