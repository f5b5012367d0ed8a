//! Numbers of about 31 digits, as unevaluated sums of two f64: what f64 results are measured against.
//!
//! Only what the textbook's five steps need. Sources: Dekker (1971) for sums and products, Joldes, Muller and
//! Popescu, “Tight and rigorous error bounds for basic building blocks of double-word arithmetic” (2017).

use std::ops::{Add, Div, Mul, Neg, Sub};

/// `high + low`, where `low` is at most half an ulp of `high`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct DoubleDouble {
    pub(crate) high: f64,
    pub(crate) low: f64,
}

const LN_2: DoubleDouble = DoubleDouble { high: std::f64::consts::LN_2, low: 2.3190468138462996e-17 };

/// The series of the exponential is summed on an interval this much smaller than that of `ln 2`.
const HALVINGS: i32 = 9;

impl DoubleDouble {
    pub(crate) const fn from(high: f64) -> Self {
        Self { high, low: 0.0 }
    }

    pub(crate) fn to_f64(self) -> f64 {
        self.high + self.low
    }

    /// From two numbers, the first at least as large as the second. An infinity or NaN has no low part.
    fn normalised(large: f64, small: f64) -> Self {
        if !large.is_finite() {
            return Self::from(large);
        }
        let high = large + small;
        if high.is_finite() { Self { high, low: small - (high - large) } } else { Self::from(high) }
    }

    pub(crate) fn exp(self) -> Self {
        if !self.high.is_finite() || self.high < -745.0 {
            return Self::from(libm::exp(self.high));
        }
        // e^x = 2^n · (e^(r / 2^h))^(2^h)
        let n = (self.high / LN_2.high).round();
        let r = (self - LN_2 * Self::from(n)) * Self::from(libm::exp2(-f64::from(HALVINGS)));
        let (mut term, mut sum) = (r, r);
        for k in 2..=12 {
            term = term * r / Self::from(f64::from(k));
            sum = sum + term;
        }
        // (1 + s)² - 1 = 2s + s²: without the 1 the small part keeps its digits.
        for _ in 0..HALVINGS {
            sum = sum + sum + sum * sum;
        }
        let scale = libm::exp2(n);
        let whole = sum + Self::from(1.0);
        Self { high: whole.high * scale, low: whole.low * scale }
    }

    pub(crate) fn tanh(self) -> Self {
        if self.high.abs() < 1e-3 {
            // x - x³/3 + 2x⁵/15 - 17x⁷/315 + 62x⁹/2835 - 1382x¹¹/155925
            let square = self * self;
            let series =
                [(-1382.0, 155_925.0), (62.0, 2835.0), (-17.0, 315.0), (2.0, 15.0), (-1.0, 3.0), (1.0, 1.0)];
            let sum = series.into_iter().fold(Self::from(0.0), |sum, (above, below)| {
                sum * square + Self::from(above) / Self::from(below)
            });
            return self * sum;
        }
        let t = (Self::from(-2.0) * if self.high < 0.0 { -self } else { self }).exp();
        let y = (Self::from(1.0) - t) / (Self::from(1.0) + t);
        if self.high < 0.0 { -y } else { y }
    }
}

impl Neg for DoubleDouble {
    type Output = Self;

    fn neg(self) -> Self {
        Self { high: -self.high, low: -self.low }
    }
}

impl Add for DoubleDouble {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let (high, error) = two_sum(self.high, other.high);
        let (low, low_error) = two_sum(self.low, other.low);
        let sum = Self::normalised(high, error + low);
        Self::normalised(sum.high, sum.low + low_error)
    }
}

impl Sub for DoubleDouble {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl Mul for DoubleDouble {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        let high = self.high * other.high;
        let error = libm::fma(self.high, other.high, -high);
        Self::normalised(high, error + (self.high * other.low + self.low * other.high))
    }
}

impl Div for DoubleDouble {
    type Output = Self;

    fn div(self, other: Self) -> Self {
        let first = self.high / other.high;
        if !first.is_finite() {
            return Self::from(first);
        }
        let rest = self - other * Self::from(first);
        let second = rest.high / other.high;
        let rest = rest - other * Self::from(second);
        Self::normalised(first, second) + Self::from(rest.high / other.high)
    }
}

fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let of_b = sum - a;
    (sum, (a - (sum - of_b)) + (b - of_b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: DoubleDouble, high: f64, low: f64) {
        let error = ((got.high - high) + (got.low - low)).abs();
        assert!(error <= 1e-29 * high.abs(), "{got:?} is {error:e} off {high} + {low}");
    }

    #[test]
    fn products_and_quotients_keep_thirty_digits() {
        let third = DoubleDouble::from(1.0) / DoubleDouble::from(3.0);
        close(third, 1.0 / 3.0, 1.850371707708594e-17);
        close(third * DoubleDouble::from(3.0), 1.0, 0.0);
    }

    #[test]
    fn infinities_stay_and_do_not_become_nan() {
        let (infinity, two) = (DoubleDouble::from(f64::INFINITY), DoubleDouble::from(2.0));
        assert_eq!((two - infinity).to_f64(), f64::NEG_INFINITY);
        assert_eq!((two * infinity).to_f64(), f64::INFINITY);
        assert_eq!((infinity / two).to_f64(), f64::INFINITY);
        assert!((infinity - infinity).to_f64().is_nan());
    }

    #[test]
    fn exp_and_tanh_keep_thirty_digits() {
        // From a table of 40 digits.
        close(DoubleDouble::from(-1.0).exp(), 0.36787944117144233, -1.2428753672788363e-17);
        close(DoubleDouble::from(1.0).tanh(), 0.7615941559557649, 3.7090214482164924e-17);
        assert_eq!(DoubleDouble::from(0.0).exp().to_f64(), 1.0);
        assert_eq!(DoubleDouble::from(f64::NEG_INFINITY).exp().to_f64(), 0.0);
        assert!(DoubleDouble::from(f64::NAN).exp().to_f64().is_nan());
    }
}
