//! The textbook: the five steps with plain loops, row by row, in f64, and for f64 in pairs of f64. It says whether a
//! number is right. It is never optimised.
//!
//! The same text, run in the accumulator type and with each step's array rounded to the element type, is the *plain*
//! computation that a result's error is measured by.

use rayon::prelude::*;

use crate::double_double::DoubleDouble;
use crate::element::{Element, Real};
use crate::error::Error;
use crate::problem::Problem;
use crate::scalar;
use crate::simd::FloatEnvironment;
use crate::tile::Pair;

/// One row, from the textbook's five steps.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ReferenceRow {
    /// `q · k`, for each key.
    pub raw: Vec<f64>,
    /// Times the scale.
    pub scaled: Vec<f64>,
    /// With softcap and biases; -∞ where masked.
    pub masked: Vec<f64>,
    /// Sums to 1, or less with a sink; 0 where masked.
    pub weights: Vec<f64>,
    /// The weighted mean of the values; 0 for a row that attends nothing.
    pub output: Vec<f64>,
    /// The natural log-sum-exp of the masked scores and the sink.
    pub lse: f64,
    /// The output of the same steps done plainly: sums in the accumulator type, each step's array rounded to the
    /// element type.
    pub plain_output: Vec<f64>,
    /// The weights of the plain steps.
    pub plain_weights: Vec<f64>,
}

/// The error law: how far a result may be from the reference, for one call.
///
/// `2 · plain_error + 2 ulp(largest)`, where `plain_error` is the largest error of the plain steps and `largest` the
/// largest magnitude in the reference.
pub fn error_limit<T: Element>(plain_error: f64, largest: f64) -> f64 {
    2.0 * plain_error + 2.0 * ulp::<T>(largest)
}

/// The distance from the magnitude of `x` to the next number of type `T` above it.
pub fn ulp<T: Element>(x: f64) -> f64 {
    T::EPSILON * libm::exp2(libm::floor(libm::log2(x.abs().max(T::MIN_POSITIVE))))
}

/// What a row holds of each key, and what its steps do while they run.
const NUMBERS_OF_KEY: usize = 16;

/// # Errors
/// If there is no such row, or no memory for the rows.
pub(crate) fn rows<T: Element>(
    problem: &Problem<'_, T>,
    rows: &[(usize, usize, usize)],
) -> Result<Vec<ReferenceRow>, Error> {
    rows.iter().try_for_each(|&row| problem.check_row(row))?;
    // Once as a whole: where keys have no numbers a small file may hold more of them than memory does.
    let len_key = problem.terms.len_key;
    let mut room: Vec<[f64; NUMBERS_OF_KEY]> = Vec::new();
    room.try_reserve_exact(rows.len().saturating_mul(len_key))
        .map_err(|_| Error::no_memory("reference", &[rows.len(), len_key]))?;
    drop(room);
    Ok(rows.par_iter().map(|&row| both(problem, row)).collect())
}

fn both<T: Element>(problem: &Problem<'_, T>, row: (usize, usize, usize)) -> ReferenceRow {
    type Truth<T> = <<T as Element>::Accumulator as Precise>::Truth;
    type Plain<T> = <<T as Element>::Accumulator as Precise>::Plain;
    let _environment = FloatEnvironment::enter();
    let truth = five_steps::<T, Truth<T>>(problem, row, |x| x);
    let mut plain = five_steps::<T, Plain<T>>(problem, row, |x| {
        Number::from_f64(T::round(Real::from_f64(x.to_f64())).widen().to_f64())
    });
    if plain.output.iter().any(|y| !y.to_f64().is_finite()) {
        // The plain steps overflow in a half float where ours do not; then they are held to the accumulator's range.
        plain = five_steps::<T, Plain<T>>(problem, row, |x| x);
    }
    fn numbers<N: Number>(from: &[N]) -> Vec<f64> {
        from.iter().map(|x| x.to_f64()).collect()
    }
    let masked = truth.masked.iter().map(|s| s.map_or(f64::NEG_INFINITY, Number::to_f64));
    ReferenceRow {
        raw: numbers(&truth.raw),
        scaled: numbers(&truth.scaled),
        masked: masked.collect(),
        weights: numbers(&truth.weights),
        output: numbers(&truth.output),
        lse: truth.max.to_f64() + libm::log(truth.sum.to_f64()),
        plain_output: numbers(&plain.output),
        plain_weights: numbers(&plain.weights),
    }
}

/// Every intermediate of one row.
pub(crate) struct Steps<N> {
    pub(crate) raw: Vec<N>,
    pub(crate) scaled: Vec<N>,
    pub(crate) masked: Vec<Option<N>>,
    pub(crate) max: N,
    pub(crate) sum: N,
    pub(crate) weights: Vec<N>,
    pub(crate) output: Vec<N>,
}

pub(crate) fn five_steps<T: Element, N: Number>(
    problem: &Problem<'_, T>,
    (batch, head, query): (usize, usize, usize),
    round: impl Fn(N) -> N,
) -> Steps<N> {
    let number = |x: T| N::from_f64(x.widen().to_f64());
    let key_head = problem.terms.key_head(head);
    let q = problem.query.row(batch, head, query);
    let keys = problem.key.get(batch, key_head);
    let values = problem.value.get(batch, key_head);

    // 1. every key against the query
    let dot =
        |key: usize| q.iter().zip(keys.row(key)).fold(N::ZERO, |sum, (&q, &k)| sum + number(q) * number(k));
    let raw: Vec<N> = (0..problem.terms.len_key).map(|key| round(dot(key))).collect();
    // 2. the scale, and the softcap
    let scaled: Vec<N> = raw.iter().map(|&s| round(s * N::from_f64(problem.terms.scale))).collect();
    let squeezed = scaled.iter().map(|&s| match problem.terms.softcap {
        Some(cap) => round(N::from_f64(cap) * (s / N::from_f64(cap)).tanh()),
        None => s,
    });
    // 3. biases and masks
    let masked: Vec<Option<N>> = squeezed
        .enumerate()
        .map(|(key, s)| masked(problem, Pair { batch, head, query, key }, s).map(&round))
        .collect();
    // 4. softmax
    let visible = || masked.iter().flatten().copied();
    let mut max = visible().fold(N::from_f64(f64::NEG_INFINITY), |max, s| if s > max { s } else { max });
    let sink = problem.terms.sinks.as_ref().map(|sinks| N::from_f64(sinks[head]));
    if let Some(sink) = sink {
        max = if sink > max { sink } else { max };
    }
    let reference = if max.to_f64() == f64::NEG_INFINITY { N::ZERO } else { max };
    let share = |s: N| (s - reference).exp();
    let sum = visible().chain(sink).fold(N::ZERO, |sum, s| sum + share(s));
    let weights: Vec<N> = masked.iter().map(|&s| s.map_or(N::ZERO, |s| round(share(s) / sum))).collect();
    // 5. the mean of the values, by weight; 0 in the place of those that are dropped
    let factor = problem.terms.dropout.map_or(1.0, |dropout| dropout.factor);
    let keeps = |key| scalar::keeps(problem, Pair { batch, head, query, key });
    let kept: Vec<bool> = (0..problem.terms.len_key).map(keeps).collect();
    let output = (0..problem.terms.dim_value).map(|column| {
        let visible = (0..problem.terms.len_key).filter(|&key| masked[key].is_some());
        let value = |key: usize| if kept[key] { number(values[[key, column]]) } else { N::ZERO };
        let sum = visible.fold(N::ZERO, |sum, key| sum + weights[key] * value(key));
        round(sum * N::from_f64(factor))
    });
    let output = output.collect();
    Steps { raw, scaled, masked, max, sum, weights, output }
}

fn masked<T: Element, N: Number>(problem: &Problem<'_, T>, pair: Pair, mut s: N) -> Option<N> {
    let (biases, visibility) = (&problem.terms.biases, &problem.terms.visibility);
    let hides = |bias: f64| bias == f64::NEG_INFINITY;
    if !visibility.sees(pair)
        || biases.arrays_at(pair).any(hides)
        || biases.closures_at(pair, visibility).any(hides)
    {
        return None;
    }
    let alibi = biases.slopes.iter().map(|slopes| {
        let (query, key) = visibility.positions(pair);
        -(slopes[pair.head] * query.abs_diff(key) as f64)
    });
    for bias in biases.arrays_at(pair).chain(alibi).chain(biases.closures_at(pair, visibility)) {
        s = s + N::from_f64(bias);
    }
    // Finite biases never add up to a mask.
    let lowest = N::from_f64(-T::Accumulator::MAX.to_f64());
    Some(if s < lowest { lowest } else { s })
}

/// What the five steps are done in.
pub trait Number:
    Copy
    + PartialOrd
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
{
    const ZERO: Self;
    fn from_f64(x: f64) -> Self;
    fn to_f64(self) -> f64;
    fn exp(self) -> Self;
    fn tanh(self) -> Self;
}

impl Number for f32 {
    const ZERO: Self = 0.0;

    fn from_f64(x: f64) -> Self {
        x as Self
    }

    fn to_f64(self) -> f64 {
        self.into()
    }

    fn exp(self) -> Self {
        libm::expf(self)
    }

    fn tanh(self) -> Self {
        libm::tanhf(self)
    }
}

impl Number for f64 {
    const ZERO: Self = 0.0;

    fn from_f64(x: f64) -> Self {
        x
    }

    fn to_f64(self) -> f64 {
        self
    }

    fn exp(self) -> Self {
        libm::exp(self)
    }

    fn tanh(self) -> Self {
        libm::tanh(self)
    }
}

impl Number for DoubleDouble {
    const ZERO: Self = Self::from(0.0);

    fn from_f64(x: f64) -> Self {
        Self::from(x)
    }

    fn to_f64(self) -> f64 {
        self.to_f64()
    }

    fn exp(self) -> Self {
        self.exp()
    }

    fn tanh(self) -> Self {
        self.tanh()
    }
}

/// More precision than an accumulator has. Public only because [`Real`] is; no other crate can reach it.
pub trait Precise {
    /// What the truth is computed in.
    type Truth: Number;
    /// What the plain steps are computed in: this type itself.
    type Plain: Number;
}

impl Precise for f32 {
    type Truth = f64;
    type Plain = Self;
}

impl Precise for f64 {
    type Truth = DoubleDouble;
    type Plain = Self;
}
