//! How far numbers are from what they should be, and how far they may be.

use qkv::{Element, Real, ulp};

/// The largest error so far, and the largest number there should be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gauge {
    pub error: f64,
    pub largest: f64,
}

impl Gauge {
    pub fn push(&mut self, got: f64, wanted: f64) {
        // `max` would pass over a NaN; `distance` gives none.
        self.error = self.error.max(distance(got, wanted));
        if wanted.is_finite() {
            self.largest = self.largest.max(wanted.abs());
        }
    }

    pub fn push_all(&mut self, got: impl IntoIterator<Item = f64>, wanted: impl IntoIterator<Item = f64>) {
        for (got, wanted) in got.into_iter().zip(wanted) {
            self.push(got, wanted);
        }
    }
}

/// 0 for equal numbers and equal infinities, and for whatever is not finite where NaN or ∞ is wanted; infinite where
/// only one is finite.
pub fn distance(got: f64, wanted: f64) -> f64 {
    let no_number = wanted.is_nan() || wanted == f64::INFINITY;
    match got - wanted {
        _ if got == wanted || (no_number && !got.is_finite()) => 0.0,
        difference if difference.is_finite() => difference.abs(),
        _ => f64::INFINITY,
    }
}

/// How far from a file's expected numbers a result may be, as a share of the largest: an agreement of this project
/// for results that were computed elsewhere, in another order of operations.
pub fn tolerance<T: Element>() -> f64 {
    match T::NAME {
        "f16" => 1.0 / 1024.0,
        "bf16" => 1.0 / 128.0,
        "f64" => 8.0 * f64::EPSILON,
        _ => 2e-6,
    }
}

/// How far some rows of a call may be from the reference. The error law speaks of a whole call; the plain error of a
/// sample may be small by luck, so an error is also let pass that the rounding of scores explains.
pub fn sample_limit<T: Element>(law: f64, largest_score: f64, largest_value: f64) -> f64 {
    law.max((tolerance::<T>() + 4.0 * T::Accumulator::EPSILON * largest_score) * largest_value)
}

/// How far a log-sum-exp may be from the expected one: `ulps` of the largest, and where that is small as much as its
/// scores may be rounded by.
pub fn lse_limit<T: Element>(largest: f64, ulps: f64) -> f64 {
    let floor = if T::NAME == "f64" { 64.0 * f64::EPSILON } else { 1e-5 };
    (ulps * ulp::<T::Accumulator>(largest)).max(floor)
}

/// The same number in f64.
pub fn widened<T: Element>(x: T) -> f64 {
    x.widen().to_f64()
}

/// The largest finite magnitude.
pub fn largest<T: Element>(numbers: impl IntoIterator<Item = T>) -> f64 {
    let finite = numbers.into_iter().map(widened).filter(|x| x.is_finite());
    finite.fold(0.0, |largest, x| largest.max(x.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nan_that_should_not_be_is_an_infinite_error() {
        let mut gauge = Gauge::default();
        gauge.push_all([1.0, f64::NEG_INFINITY, f64::NAN], [1.5, f64::NEG_INFINITY, f64::NAN]);
        assert_eq!((gauge.error, gauge.largest), (0.5, 1.5));
        gauge.push(f64::NAN, 1.0);
        assert_eq!(gauge.error, f64::INFINITY);
        assert_eq!(distance(1.0, f64::NEG_INFINITY), f64::INFINITY);
    }

    #[test]
    fn an_ulp_is_that_of_the_type() {
        assert_eq!(ulp::<f32>(1.0), f64::from(f32::EPSILON));
        assert_eq!(ulp::<f64>(-5.0), 4.0 * f64::EPSILON);
        assert_eq!(lse_limit::<qkv::bf16>(1.0, 4.0), 1e-5);
        assert_eq!(lse_limit::<f32>(64.0, 4.0), 4.0 * 64.0 * f64::from(f32::EPSILON));
    }
}
