//! The textbook's gradients: one head with whole matrices and plain loops, at more precision than any result has. They say
//! whether a gradient is right.

use ndarray::{Array2, ArrayView1, ArrayView2};

use crate::element::{Element, Real};
use crate::error::{Error, show_shape};
use crate::problem::Problem;
use crate::reference::{Number, Precise, Steps, five_steps};
use crate::scalar;
use crate::simd::FloatEnvironment;
use crate::tile::Pair;

/// One head's gradients by the textbook, and what errors of a result are measured by.
///
/// A gradient may be far from its reference by `2 · plain_error + 2 ulp(largest)`, as an output may, but `largest` is of
/// [`sizes`](Self::sizes): where all keys are alike a gradient is 0 and what it was subtracted from is not.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ReferenceGradients {
    /// The truth.
    pub exact: HeadGradients,
    /// By the plain steps: sums in the accumulator type, each step's array rounded to the element type.
    pub plain: HeadGradients,
    /// The same sums with the magnitudes of all that is added and subtracted.
    pub sizes: HeadGradients,
}

/// The gradients of one head, alone; what broadcasts or is shared by a group has the sum of these.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HeadGradients {
    /// `(len_query, dim)`
    pub query: Array2<f64>,
    /// `(len_key, dim)`
    pub key: Array2<f64>,
    /// `(len_key, dim_value)`
    pub value: Array2<f64>,
    /// Of the masked scores, `(len_query, len_key)`; a stored bias has it, summed to its shape.
    pub scores: Array2<f64>,
    /// Of the head's sink; 0 without one.
    pub sink: f64,
}

/// # Errors
/// If there is no such head, or `d_output` or `d_lse` have other shapes than its output and log-sum-exp.
pub(crate) fn gradients<T: Element>(
    problem: &Problem<'_, T>,
    at: (usize, usize),
    d_output: ArrayView2<'_, T>,
    d_lse: Option<ArrayView1<'_, T::Accumulator>>,
) -> Result<ReferenceGradients, Error> {
    type Truth<T> = <<T as Element>::Accumulator as Precise>::Truth;
    type Plain<T> = <<T as Element>::Accumulator as Precise>::Plain;
    let _environment = FloatEnvironment::enter();
    problem.check_head(at)?;
    let (len_query, dim_value) = (problem.terms.len_query, problem.terms.dim_value);
    if d_output.dim() != (len_query, dim_value) {
        return Err(Error::shape("d_output", d_output.shape(), show_shape(&[len_query, dim_value])));
    }
    if let Some(d_lse) = d_lse.filter(|d_lse| d_lse.len() != len_query) {
        return Err(Error::shape("d_lse", d_lse.shape(), show_shape(&[len_query])));
    }
    let head = Head { problem, at, d_output, d_lse };
    let rounded = |x: Plain<T>| Number::from_f64(T::round(Real::from_f64(x.to_f64())).widen().to_f64());
    Ok(ReferenceGradients {
        exact: head.gradients::<Truth<T>>(|x| x, false),
        plain: head.gradients(rounded, false),
        sizes: head.gradients::<Truth<T>>(|x| x, true),
    })
}

struct Head<'h, 'a, T: Element> {
    problem: &'h Problem<'a, T>,
    at: (usize, usize),
    d_output: ArrayView2<'h, T>,
    d_lse: Option<ArrayView1<'h, T::Accumulator>>,
}

impl<T: Element> Head<'_, '_, T> {
    /// The gradients, or with `sizes` the sums of their terms' magnitudes.
    fn gradients<N: Number>(&self, round: impl Fn(N) -> N, sizes: bool) -> HeadGradients {
        let (problem, terms) = (self.problem, &self.problem.terms);
        let (batch, head) = self.at;
        let of = |x: N| if sizes && x < N::ZERO { N::ZERO - x } else { x };
        let number = |x: T| N::from_f64(x.widen().to_f64());
        let less = |a: N, b: N| if sizes { of(a) + of(b) } else { a - b };
        let q = problem.query.get(batch, head);
        let [k, v] = [&problem.key, &problem.value].map(|planes| planes.get(batch, terms.key_head(head)));
        let dot = |a: ArrayView1<'_, T>, b: &mut dyn Iterator<Item = N>| {
            a.iter().zip(b).fold(N::ZERO, |sum, (&a, b)| sum + of(number(a) * b))
        };
        let zeros = |(rows, columns)| Array2::from_elem((rows, columns), N::ZERO);
        let (mut d_query, mut d_key, mut d_value) = (zeros(q.dim()), zeros(k.dim()), zeros(v.dim()));
        let mut d_scores = zeros((terms.len_query, terms.len_key));
        let mut d_sink = N::ZERO;
        for query in 0..terms.len_query {
            let Steps { scaled, masked, max, sum, weights, output, .. } =
                five_steps::<T, N>(problem, (batch, head, query), &round);
            let d_output = self.d_output.row(query);
            let d_lse = self.d_lse.map_or(0.0, |d_lse| d_lse[query].to_f64());
            let delta = round(less(dot(d_output, &mut output.iter().copied()), N::from_f64(d_lse)));
            for key in (0..terms.len_key).filter(|&key| masked[key].is_some()) {
                let keeps = scalar::keeps(problem, Pair { batch, head, query, key });
                let factor = match terms.dropout {
                    Some(dropout) if keeps => N::from_f64(dropout.factor),
                    None => N::from_f64(1.0),
                    _ => N::ZERO,
                };
                let d_weight = match keeps {
                    true => round(dot(d_output, &mut v.row(key).iter().map(|&v| number(v))) * factor),
                    false => N::ZERO,
                };
                let d_score = round(weights[key] * less(d_weight, delta));
                let slope = terms.softcap.map_or(N::from_f64(1.0), |cap| {
                    let t = (scaled[key] / N::from_f64(cap)).tanh();
                    N::from_f64(1.0) - t * t
                });
                let d_product = round(of(d_score * slope * N::from_f64(terms.scale)));
                add(&mut d_query, query, k.row(key).iter().map(|&k| d_product * of(number(k))));
                add(&mut d_key, key, q.row(query).iter().map(|&q| d_product * of(number(q))));
                if keeps {
                    add(&mut d_value, key, d_output.iter().map(|&d| weights[key] * factor * of(number(d))));
                }
                d_scores[[query, key]] = d_score;
            }
            if let Some(sinks) = &terms.sinks
                && sinks[head] > f64::NEG_INFINITY
            {
                d_sink = less(d_sink, (N::from_f64(sinks[head]) - max).exp() / sum * delta);
            }
        }
        let numbers = |array: Array2<N>| array.mapv(|x| round(x).to_f64());
        HeadGradients {
            query: numbers(d_query),
            key: numbers(d_key),
            value: numbers(d_value),
            scores: numbers(d_scores),
            sink: d_sink.to_f64(),
        }
    }
}

fn add<N: Number>(to: &mut Array2<N>, row: usize, terms: impl Iterator<Item = N>) {
    for (to, term) in to.row_mut(row).iter_mut().zip(terms) {
        *to = *to + term;
    }
}
