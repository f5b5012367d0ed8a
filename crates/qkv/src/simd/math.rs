//! `exp`, `tanh` and `ln`: the only transcendental functions of attention, and their error bounds.
//!
//! They are written out here because the platform's C library differs from one machine to the next. The order
//! of the operations below is the arithmetic contract: each is an IEEE operation rounded once (`mul_add` too),
//! so a lane gets the same bits from every instruction set, and `scalar.rs`, which calls these functions with
//! one lane, gets them as well. No reciprocal estimate and no rounding instruction; no branch in [`exp`] and
//! [`tanh`], and no subnormal out of [`exp`].
//!
//! Errors are in ulps: units in the last place of the true result. Those for f32 are the maxima over all numbers
//! of the domain; those for f64 the maxima over some twenty million, and rounded up.
//!
//! Left to others: how lanes are stored and multiplied ([`Vector`]), and the bits of a NaN
//! ([`Element::leave`](crate::element::Element::leave) makes them canonical).

use super::Vector;
use crate::element::Real;

/// Where [`tanh`] changes formulas, squared: 0.55², as tanh 0.55 is just above 1/2.
const TANH_SPLIT: f64 = 0.3025;

/// What the functions need to know of a type. Polynomials begin with the highest power.
pub trait Coefficients: Copy + 'static {
    /// 1 / ln 2, rounded.
    const LOG2_E: Self;
    /// ln 2, rounded, and what the rounding left out.
    const LN_2: [Self; 2];
    /// 1.5 · 2^(fraction bits) and the exponent's bias: a sum with it has no bits left for a fraction, and its lowest bits
    /// are a biased exponent.
    const ROUNDER: Self;
    /// Where [`exp`] becomes 0, shortly before its result would be subnormal.
    const EXP_FLOOR: Self;
    /// Approximates (e^r - 1 - r) / r² where |r| ≤ ln 2 / 2.
    const EXP: &'static [Self];
    /// Approximates (tanh(x) / x - 1) / z where z = x² ≤ 0.55².
    const TANH: &'static [Self];
    /// Approximates (2 artanh(s) / s - 2) / z where z = s² and |s| ≤ (√2 - 1) / (√2 + 1).
    const LN: &'static [Self];

    /// A number of whose bits the highest are those of a word, as many as it has; whatever that makes it.
    fn from_high_bits(word: u64) -> Self;
    /// Its bits as the highest of a word.
    fn high_bits(self) -> u64;

    /// The m and the whole k with m · 2^k = self and √½ ≤ m < √2, where self is positive and finite.
    fn split(self) -> (Self, Self);
}

macro_rules! bits {
    ($real:ident, $bits:ident, $signed:ident) => {
        #[inline(always)]
        fn from_high_bits(word: u64) -> Self {
            Self::from_bits((word >> (u64::BITS - $bits::BITS)) as $bits)
        }

        #[inline(always)]
        fn high_bits(self) -> u64 {
            u64::from(self.to_bits()) << (u64::BITS - $bits::BITS)
        }

        #[inline(always)]
        fn split(self) -> (Self, Self) {
            const FRACTION_BITS: u32 = $real::MANTISSA_DIGITS - 1;
            const SUBNORMAL_SCALE: $real = ((1 as $bits) << FRACTION_BITS) as $real;
            let (normal, lifted) =
                if self < $real::MIN_POSITIVE { (self * SUBNORMAL_SCALE, FRACTION_BITS) } else { (self, 0) };
            // Counting the bits from those of √½ on puts the seam between two exponents there, far from 1.
            const SEAM: $bits = std::$real::consts::FRAC_1_SQRT_2.to_bits();
            let above_seam = normal.to_bits().wrapping_sub(SEAM) as $signed;
            let fraction = above_seam & ((1 << FRACTION_BITS) - 1);
            let exponent = (above_seam >> FRACTION_BITS) - lifted as $signed;
            ($real::from_bits(SEAM + fraction as $bits), exponent as $real)
        }
    };
}

// The polynomials are minimax in the relative error of the whole function (found by Remez exchange in 140-bit
// arithmetic), then rounded to the type by a search among neighbouring coefficients for the smallest maximum.
// That relative error is noted at each.

impl Coefficients for f32 {
    const LOG2_E: Self = std::f32::consts::LOG2_E;
    const LN_2: [Self; 2] = [std::f32::consts::LN_2, -1.904_654_2e-9];
    const ROUNDER: Self = 12_582_912.0 + 127.0;
    const EXP_FLOOR: Self = -87.3;
    // 2^-28.2
    const EXP: &'static [Self] = &[0.0013814607, 0.008368709, 0.04166833, 0.16666521, 0.49999994];
    // 2^-29.1
    const TANH: &'static [Self] = &[-0.006274239, 0.021071676, -0.0538523, 0.13332582, -0.33333316];
    // 2^-30.2
    const LN: &'static [Self] = &[0.2987096, 0.3997758, 0.66666776];

    bits!(f32, u32, i32);
}

impl Coefficients for f64 {
    const LOG2_E: Self = std::f64::consts::LOG2_E;
    const LN_2: [Self; 2] = [std::f64::consts::LN_2, 2.3190468138462996e-17];
    const ROUNDER: Self = 6_755_399_441_055_744.0 + 1023.0;
    const EXP_FLOOR: Self = -708.0;
    // 2^-57.5
    const EXP: &'static [Self] = &[
        2.500006916608827e-8,
        2.763023450220866e-7,
        2.755758627873794e-6,
        2.4801493134676775e-5,
        0.00019841269506763262,
        0.0013888888943598993,
        0.008333333333494198,
        0.041666666666529836,
        0.16666666666666416,
        0.5000000000000011,
    ];
    // 2^-55.4
    const TANH: &'static [Self] = &[
        5.1021477241540806e-5,
        -0.0002103023984222593,
        0.0005791370145590595,
        -0.001453216755627645,
        0.0035917196969470883,
        -0.00886319450394065,
        0.02186948597477982,
        -0.0539682538760774,
        0.1333333333316871,
        -0.33333333333332316,
    ];
    // 2^-59.5
    const LN: &'static [Self] = &[
        0.14795488850628508,
        0.15314097498513718,
        0.18183562456017985,
        0.222221986098346,
        0.2857142874202447,
        0.3999999999941639,
        0.6666666666666734,
    ];

    bits!(f64, u64, i64);
}

/// The polynomial's value, one multiply-add for each power (Horner).
#[inline(always)]
pub(crate) fn polynomial<V: Vector>(coefficients: &[V::Lane], x: V) -> V {
    // A loop and not a fold: a closure would not be compiled for the instructions of the kernel around it.
    let mut value = V::splat(coefficients[0]);
    for &coefficient in &coefficients[1..] {
        value = value.mul_add(x, V::splat(coefficient));
    }
    value
}

/// e^x for x ≤ 0, -∞ and NaN, as every exponential of the engine is of a number that is at most 0. Rubbish above.
///
/// Within 0.892 ulp for f32 and 0.9 for f64 (0.875 found). 1 at zeros and never more; +0 at -∞ and all below
/// -87.3 (f32) or -708 (f64), hence never subnormal.
#[inline(always)]
pub(crate) fn exp<V: Vector>(x: V) -> V {
    let one = V::splat(V::Lane::ONE);
    let rounder = V::splat(V::Lane::ROUNDER);
    // x / ln 2 to the nearest whole number: adding the rounder rounds off the fraction, subtracting it is exact. (No
    // product of x and LOG2_E ends on a half but 0, whose factor has too few bits, so there are no ties.)
    let rounded = x.mul_add(V::splat(V::Lane::LOG2_E), rounder);
    let whole = rounded.sub(rounder);
    // x - whole · ln 2 (Cody and Waite): the first step is exact, as neither of its terms has a bit below those
    // of a number this small; the second brings in the rest of ln 2.
    let [ln_2, ln_2_rest] = V::Lane::LN_2;
    let remainder = whole.mul_add(V::splat(-ln_2), x);
    let remainder = whole.mul_add(V::splat(-ln_2_rest), remainder);
    // 1 + r + r² · polynomial, Horner to the end. The 1 is the last addend, so no r ≤ 0 gives more than 1.
    let power = polynomial(V::Lane::EXP, remainder).mul_add(remainder, one).mul_add(remainder, one);
    // Exact, as the result is normal wherever it is used.
    let scaled = power.mul(rounded.exp2_rounded());
    // NaN is not less than anything, and stays.
    x.if_less(V::splat(V::Lane::EXP_FLOOR), V::splat(V::Lane::ZERO), scaled)
}

/// The hyperbolic tangent of any number.
///
/// Within 1.497 ulp for f32 and 1.6 for f64 (1.49 found). Odd in every bit, never beyond ±1, ±0 at ±0.
#[inline(always)]
pub(crate) fn tanh<V: Vector>(x: V) -> V {
    let [zero, one] = [V::Lane::ZERO, V::Lane::ONE];
    // Near 0: x + x · (z · polynomial).
    let square = x.mul(x);
    // The added zero turns the -0 that x = ±0 gives into +0, so that below -0 · +0 + -0 stays -0.
    let bend = polynomial(V::Lane::TANH, square).mul_add(square, V::splat(zero));
    let near = bend.mul_add(x, x);
    // Elsewhere: ±(1 - 2t / (1 + t)), where t = e^(-2|x|). The quotient is small, and so is what its error adds.
    let sign = x.if_less(V::splat(zero), V::splat(-one), V::splat(one));
    let minus_two = sign.mul(V::splat(V::Lane::from_f64(-2.0)));
    let t = exp(x.mul(minus_two));
    let far = t.div(t.add(V::splat(one))).mul_add(minus_two, sign);
    // NaN takes the far side, and is NaN there.
    square.if_less(V::splat(V::Lane::from_f64(TANH_SPLIT)), near, far)
}

/// The natural logarithm: -∞ of zeros, NaN of negative numbers, +0 of 1.
///
/// Within 0.758 ulp for f32 and 0.78 for f64 (0.76 found), of subnormal numbers too.
#[inline(always)]
pub(crate) fn ln<A: Real>(x: A) -> A {
    if x.is_nan() || x < A::ZERO {
        return A::NAN;
    }
    if x == A::ZERO {
        return A::NEG_INFINITY;
    }
    if x == A::INFINITY {
        return x;
    }
    let (m, k) = x.split();
    // With f = m - 1, which is exact, and s = f / (2 + f): ln m = 2 artanh s = s · (2 + z · polynomial),
    // and s · 2 = f - f²/2 + s · f²/2, whose large terms have no rounding error.
    let f = m - A::ONE;
    let s = f / (A::from_f64(2.0) + f);
    let z = s * s;
    let half_f = A::from_f64(0.5) * f;
    let [ln_2, ln_2_rest] = A::LN_2;
    let small = s.mul_add(half_f.mul_add(f, z * polynomial(A::LN, z)), k * ln_2_rest);
    // The products f²/2 and k · ln 2 are exact within their multiply-adds.
    k.mul_add(ln_2, f - half_f.mul_add(f, -small))
}

#[cfg(test)]
mod tests {
    use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};

    use super::super::{Kernel, Register, Simd};
    use super::*;

    // The largest errors that are documented, in ulps.
    const EXP_F32: f64 = 0.892;
    const TANH_F32: f64 = 1.497;
    const LN_F32: f64 = 0.758;
    const EXP_F64: f64 = 0.9;
    const TANH_F64: f64 = 1.6;
    const LN_F64: f64 = 0.78;

    /// The arguments of a sweep: bit patterns from `first` to `last`, every `step`-th.
    fn f32_sweep(first: f32, last: f32, step: usize) -> impl Iterator<Item = f32> {
        (first.to_bits()..=last.to_bits()).step_by(step).map(f32::from_bits)
    }

    fn f64_sweep(first: f64, last: f64, count: u64) -> impl Iterator<Item = f64> {
        let [low, high] = [first.to_bits(), last.to_bits()];
        // Multiplying by 2^64 / φ scatters the arguments over their stratum, so that their low bits vary.
        let stratum = (high - low) / count;
        (0..count)
            .map(move |i| f64::from_bits(low + i * stratum + i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % stratum))
    }

    /// A number as an unevaluated sum of two, good for a hundred bits: the truth that f64 is measured by.
    #[derive(Clone, Copy)]
    struct Wide(f64, f64);

    impl Wide {
        const LN_2: Wide = Wide(std::f64::consts::LN_2, 2.3190468138462996e-17);

        fn sum_of(a: f64, b: f64) -> Self {
            let sum = a + b;
            let b_part = sum - a;
            Wide(sum, (a - (sum - b_part)) + (b - b_part))
        }

        fn plus(self, other: Self) -> Self {
            let high = Self::sum_of(self.0, other.0);
            let low = Self::sum_of(self.1, other.1);
            let middle = Self::sum_of(high.0, high.1 + low.0);
            Self::sum_of(middle.0, middle.1 + low.1)
        }

        fn times(self, other: Self) -> Self {
            let product = self.0 * other.0;
            let rest = libm::fma(self.0, other.0, -product);
            Self::sum_of(product, rest + (self.0 * other.1 + self.1 * other.0))
        }

        fn over(self, divisor: Self) -> Self {
            let first = self.0 / divisor.0;
            let second = self.plus(divisor.times(Wide(-first, 0.0)));
            let second_quotient = second.0 / divisor.0;
            let third = second.plus(divisor.times(Wide(-second_quotient, 0.0))).0 / divisor.0;
            Self::sum_of(first, second_quotient).plus(Wide(third, 0.0))
        }

        /// 1 + z/d1 · (1 + z/d2 · (1 + ...)), which is how Taylor series of exp, sinh and cosh nest.
        fn nested(self, divisors: impl DoubleEndedIterator<Item = f64>) -> Self {
            divisors.rev().fold(Wide(1.0, 0.0), |sum, divisor| {
                Wide(1.0, 0.0).plus(sum.times(self).over(Wide(divisor, 0.0)))
            })
        }

        fn exp(x: f64) -> Self {
            Self::exp_lifted(x, 0.0)
        }

        /// e^x · 2^lift.
        fn exp_lifted(x: f64, lift: f64) -> Self {
            let whole = (x / std::f64::consts::LN_2).round();
            let remainder = Wide(x, 0.0).plus(Self::LN_2.times(Wide(-whole, 0.0)));
            let scale = f64::from_bits(((whole + lift + 1023.0) as u64) << 52);
            remainder.nested((1..=26).map(f64::from)).times(Wide(scale, 0.0))
        }

        fn tanh(x: f64) -> Self {
            if x.abs() < 0.5 {
                let square = Wide(x, 0.0).times(Wide(x, 0.0));
                let sinh_by_x = square.nested((1..=13).map(|i| f64::from(2 * i * (2 * i + 1))));
                let cosh = square.nested((1..=13).map(|i| f64::from(2 * i * (2 * i - 1))));
                return sinh_by_x.times(Wide(x, 0.0)).over(cosh);
            }
            let t = Self::exp((-2.0 * x.abs()).max(-700.0));
            let quotient = Wide(1.0, 0.0).plus(Wide(-t.0, -t.1)).over(Wide(1.0, 0.0).plus(t));
            quotient.times(Wide(x.signum(), 0.0))
        }

        fn ln(x: f64) -> Self {
            let (m, k) = libm::frexp(x);
            let (m, k) = if m < 0.7 { (2.0 * m, k - 1) } else { (m, k) };
            let s = Wide(m - 1.0, 0.0).over(Self::sum_of(m, 1.0));
            let z = s.times(s);
            let series = (0..24).rev().fold(Wide(0.0, 0.0), |sum, i| {
                sum.times(z).plus(Wide(2.0, 0.0).over(Wide(f64::from(2 * i + 1), 0.0)))
            });
            series.times(s).plus(Self::LN_2.times(Wide(f64::from(k), 0.0)))
        }
    }

    /// The distance from the truth in units of the last of the `fraction_bits`.
    fn ulps(result: f64, truth: Wide, fraction_bits: i32) -> f64 {
        let difference = (result - truth.0) - truth.1;
        let unit = libm::scalbn(1.0, libm::ilogb(truth.0) - fraction_bits);
        if difference == 0.0 { 0.0 } else { difference.abs() / unit }
    }

    /// The argument with the largest error, and that error; NaN counts as the largest.
    fn worst(errors: impl Iterator<Item = (f64, f64)>) -> (f64, f64) {
        errors.fold(
            (0.0, 0.0),
            |worst, error| if error.1 <= worst.1 || worst.1.is_nan() { worst } else { error },
        )
    }

    fn worst_f32(
        arguments: impl Iterator<Item = f32>,
        function: fn(f32) -> f32,
        truth: fn(f64) -> f64,
    ) -> (f64, f64) {
        worst(arguments.map(|x| (x.into(), ulps(function(x).into(), Wide(truth(x.into()), 0.0), 23))))
    }

    fn worst_f64(
        arguments: impl Iterator<Item = f64>,
        function: fn(f64) -> f64,
        truth: fn(f64) -> Wide,
    ) -> (f64, f64) {
        worst(arguments.map(|x| (x, ulps(function(x), truth(x), 52))))
    }

    fn worst_exp_f64(first: f64, last: f64, count: u64) -> (f64, f64) {
        // Lifted, because the truth's second half would be subnormal, and wrong, at the far end.
        let lifted = |x| exp(x) * libm::scalbn(1.0, 200);
        worst_f64(f64_sweep(first, last, count), lifted, |x| Wide::exp_lifted(x, 200.0))
    }

    #[track_caller]
    fn assert_within(limit: f64, (at, error): (f64, f64)) {
        assert!(error <= limit, "an error of {error} ulp at {at:e}");
    }

    #[test]
    fn exp_of_f32_is_within_its_bound() {
        assert_within(EXP_F32, worst_f32(f32_sweep(-0.0, -87.3, 97), exp, libm::exp));
    }

    #[test]
    fn tanh_of_f32_is_within_its_bound() {
        assert_within(TANH_F32, worst_f32(f32_sweep(1e-38, f32::MAX, 197), tanh, libm::tanh));
    }

    #[test]
    fn ln_of_f32_is_within_its_bound() {
        assert_within(LN_F32, worst_f32(f32_sweep(f32::from_bits(1), f32::MAX, 197), ln, libm::log));
    }

    #[test]
    fn exp_of_f64_is_within_its_bound() {
        assert_within(EXP_F64, worst_exp_f64(-1e-3, -708.0, 100_000));
        assert_within(EXP_F64, worst_exp_f64(-1e-300, -1e-3, 50_000));
    }

    #[test]
    fn tanh_of_f64_is_within_its_bound() {
        assert_within(TANH_F64, worst_f64(f64_sweep(0.01, 20.0, 100_000), tanh, Wide::tanh));
        assert_within(TANH_F64, worst_f64(f64_sweep(1e-300, 0.01, 50_000), tanh, Wide::tanh));
        assert_within(TANH_F64, worst_f64(f64_sweep(20.0, f64::MAX, 10_000), tanh, Wide::tanh));
    }

    #[test]
    fn ln_of_f64_is_within_its_bound() {
        assert_within(LN_F64, worst_f64(f64_sweep(0.4, 2.5, 100_000), ln, Wide::ln));
        assert_within(LN_F64, worst_f64(f64_sweep(f64::from_bits(1), f64::MAX, 100_000), ln, Wide::ln));
    }

    /// What the documentation states, measured again.
    #[test]
    #[ignore = "takes minutes"]
    fn bounds_hold_everywhere() {
        let subnormal = f32::from_bits(1);
        assert_within(EXP_F32, worst_f32(f32_sweep(-0.0, -87.3, 1), exp, libm::exp));
        assert_within(TANH_F32, worst_f32(f32_sweep(subnormal, f32::MAX, 1), tanh, libm::tanh));
        assert_within(LN_F32, worst_f32(f32_sweep(subnormal, f32::MAX, 1), ln, libm::log));
        assert_within(EXP_F64, worst_exp_f64(-0.1, -708.0, 20_000_000));
        assert_within(TANH_F64, worst_f64(f64_sweep(0.1, 1.2, 20_000_000), tanh, Wide::tanh));
        assert_within(TANH_F64, worst_f64(f64_sweep(1.2, 20.0, 5_000_000), tanh, Wide::tanh));
        assert_within(LN_F64, worst_f64(f64_sweep(0.4, 3.0, 20_000_000), ln, Wide::ln));
    }

    // Arguments with what mpmath gives for them at 400 bits, as a sum of two numbers: the hardest of a sweep,
    // and those at seams and ends.
    #[rustfmt::skip]
    const EXP_TRUTHS: [(f64, f64, f64); 13] = [
        (-644.9578824242661, 7.913171954789789e-281, 1.8174666033549717e-297),
        (-28.775014514777887, 3.185444036258794e-13, 7.708854093323454e-30),
        (-21.12949607207192, 6.661567770784621e-10, 1.6365240708395662e-26),
        (-0.9968731780066907, 0.36903153495640634, -9.149336531606827e-18),
        (-0.09656308340166429, 0.9079526190533461, 4.7398833779765526e-17),
        (-0.08721457754454022, 0.916480418414847, 4.74274552566639e-17),
        (-f64::from_bits(1), 1.0, 0.0),
        (-1e-09, 0.999999999, -2.778193152587354e-17),
        (-0.1, 0.9048374180359595, 5.055984668733208e-17),
        (-0.3465735902, 0.7071067812430968, -5.4108546363636396e-17),
        (-0.3465735904, 0.7071067811016754, 8.077800473236226e-18),
        (-1.0, 0.36787944117144233, -1.2428753672788363e-17),
        (-660.0, 2.3208225941796005e-287, 1.2846860922925439e-303),
    ];
    #[rustfmt::skip]
    const TANH_TRUTHS: [(f64, f64, f64); 13] = [
        (0.5438997779295713, 0.49593427440752397, -1.0015654328204751e-17),
        (0.5271557497463322, 0.48320393113387433, 1.0492253105190857e-17),
        (0.5851905759883864, 0.5264278076562959, 5.390899383257437e-17),
        (0.5925965244031877, 0.5317604854665793, 5.116158392197484e-17),
        (1.0118803953009716, 0.7665386465774376, 1.7826052772166844e-18),
        (f64::from_bits(1), f64::from_bits(1), 0.0),
        (1e-09, 1e-09, -3.3333333333333338e-28),
        (0.1, 0.09966799462495582, 3.542433877641546e-18),
        (0.5499999999999999, 0.5005202111902352, 4.885792348715613e-18),
        (0.55, 0.5005202111902353, -2.2927568355840214e-17),
        (-0.6, -0.5370495669980353, 2.923064398544366e-17),
        (5.0, 0.9999092042625951, 2.298523750966507e-17),
        (18.5, 0.9999999999999998, 5.1383652410150004e-17),
    ];
    #[rustfmt::skip]
    const LN_TRUTHS: [(f64, f64, f64); 13] = [
        (0.6290128066229038, -0.46360366219817933, -1.4098223904888444e-17),
        (0.6294502019056657, -0.46290853600470344, -1.4131230062251663e-17),
        (2.6961569736064424, 0.9918274159865422, 2.7566132298122415e-17),
        (5.8059869141989076, 1.7588896117588557, 7.952406569623297e-17),
        (f64::from_bits(1), -744.4400719213812, -4.422444340918698e-14),
        (1.3e-310, -713.5390145636867, 6.422011261682561e-15),
        (0.7071067811865475, -0.34657359027997275, 1.0775909101525876e-17),
        (FRAC_1_SQRT_2, -0.3465735902799726, 1.2517012761299022e-18),
        (0.9999999999999999, -1.1102230246251565e-16, -6.162975822039155e-33),
        (1.0000000000000002, 2.2204460492503128e-16, 3.649214750845877e-48),
        (SQRT_2, 0.3465735902799727, 2.4442169414592898e-17),
        (11.0, 2.3978952727983707, -1.253584211423161e-16),
        (f64::MAX, 709.782712893384, 2.3636017071323592e-14),
    ];

    #[test]
    fn f64_is_right_where_it_is_hard() {
        fn check(truths: &[(f64, f64, f64)], function: fn(f64) -> f64, wide: fn(f64) -> Wide, limit: f64) {
            for &(x, high, low) in truths {
                assert_within(limit, (x, ulps(function(x), Wide(high, low), 52)));
                // The truth of the sweeps is itself true.
                let Wide(wide_high, wide_low) = wide(x);
                let gap = ((wide_high - high) + (wide_low - low)).abs();
                assert!(gap <= high.abs() * 1e-29, "{x:e}: {wide_high:e} + {wide_low:e}");
            }
        }
        check(&EXP_TRUTHS, exp, Wide::exp, EXP_F64);
        check(&TANH_TRUTHS, tanh, Wide::tanh, TANH_F64);
        check(&LN_TRUTHS, ln, Wide::ln, LN_F64);
    }

    /// Equal in every bit: -0 is not +0.
    #[track_caller]
    fn assert_same<A: Real>(left: A, right: A) {
        assert_eq!(left.to_f64().to_bits(), right.to_f64().to_bits(), "{left:?} is not {right:?}");
    }

    fn negative_zero<A: Real>() -> A {
        A::ZERO * (A::ZERO - A::ONE)
    }

    fn exp_edges<A: Real>() {
        assert_same(exp(A::ZERO), A::ONE);
        assert_same(exp(negative_zero::<A>()), A::ONE);
        assert_same(exp(A::NEG_INFINITY), A::ZERO);
        assert_same(exp(A::ZERO - A::MAX), A::ZERO);
        assert!(exp(A::NAN).is_nan() && exp(-A::NAN).is_nan());
        // On either side of the floor: normal, and zero.
        assert!(exp(A::EXP_FLOOR).to_f64() >= A::MIN_POSITIVE);
        assert_same(exp(A::EXP_FLOOR * A::from_f64(1.0 + A::EPSILON)), A::ZERO);
    }

    #[test]
    fn exp_at_its_edges() {
        exp_edges::<f32>();
        exp_edges::<f64>();
        assert_eq!((f32::EXP_FLOOR, f64::EXP_FLOOR), (-87.3, -708.0));
        assert!(f32_sweep((-87.3f32).next_down(), f32::NEG_INFINITY, 997).all(|x| exp(x).to_bits() == 0));
        assert!(f64_sweep((-708f64).next_down(), -f64::MAX, 100_000).all(|x| exp(x).to_bits() == 0));
        let normal_to_one = f32::MIN_POSITIVE..=1.0;
        assert!(f32_sweep(-0.0, -87.3, 197).all(|x| normal_to_one.contains(&exp(x))));
        assert!(f32_sweep(-87.29, -87.3, 1).all(|x| normal_to_one.contains(&exp(x))));
        assert!(f64_sweep(-f64::MIN_POSITIVE, -1e-10, 100_000).all(|x| exp(x) <= 1.0));
    }

    fn tanh_edges<A: Real>() {
        for (x, result) in [(A::ZERO, A::ZERO), (A::MAX, A::ONE), (A::INFINITY, A::ONE)] {
            assert_same(tanh(x), result);
            assert_same(tanh(-x), -result);
        }
        assert!(tanh(A::NAN).is_nan() && tanh(-A::NAN).is_nan());
    }

    #[test]
    fn tanh_at_its_edges() {
        tanh_edges::<f32>();
        tanh_edges::<f64>();
        for x in f32_sweep(0.0, f32::INFINITY, 397) {
            assert_same(tanh(-x), -tanh(x));
            assert!(tanh(x) <= 1.0);
        }
        for x in f64_sweep(0.0, f64::MAX, 200_000) {
            assert_same(tanh(-x), -tanh(x));
            assert!(tanh(x) <= 1.0);
        }
        // Subnormal numbers come back as they are.
        assert!((1..10_000).map(f32::from_bits).all(|x| tanh(x) == x));
    }

    fn ln_edges<A: Real>() {
        assert_same(ln(A::ONE), A::ZERO);
        assert_same(ln(A::ZERO), A::NEG_INFINITY);
        assert_same(ln(negative_zero::<A>()), A::NEG_INFINITY);
        assert_same(ln(A::INFINITY), A::INFINITY);
        for x in [-A::ONE, -A::MAX, A::NEG_INFINITY, A::ZERO - A::from_f64(A::MIN_POSITIVE), A::NAN, -A::NAN]
        {
            assert!(ln(x).is_nan(), "{x:?}");
        }
    }

    #[test]
    fn ln_at_its_edges() {
        ln_edges::<f32>();
        ln_edges::<f64>();
        assert_same(ln(f32::from_bits(1)), -103.278_93);
        assert!(ln(-f32::from_bits(1)).is_nan());
    }

    #[test]
    fn a_split_number_is_whole_again() {
        for x in f64_sweep(f64::from_bits(1), f64::MAX, 100_000) {
            let (m, k) = x.split();
            assert!((FRAC_1_SQRT_2..SQRT_2).contains(&m) && libm::scalbn(m, k as i32) == x, "{x:e}");
        }
    }

    /// Both functions of all the numbers, so many lanes at a time.
    struct Table<'a, A>(&'a [A]);

    impl<A: Real> Kernel<A> for Table<'_, A> {
        type Output = Vec<[A; 2]>;

        #[inline(always)]
        fn run<V: Register<Lane = A>>(self) -> Self::Output {
            let mut results = Vec::new();
            for x in self.0.chunks_exact(V::LANES) {
                let mut lanes = [vec![A::ZERO; V::LANES], vec![A::ZERO; V::LANES]];
                exp(V::load(x)).store(&mut lanes[0]);
                tanh(V::load(x)).store(&mut lanes[1]);
                results.extend((0..V::LANES).map(|i| [lanes[0][i], lanes[1][i]]));
            }
            results
        }
    }

    fn compare_lanes<A: Real>(numbers: &[A]) {
        for simd in Simd::ALL.into_iter().filter(|simd| simd.is_available()) {
            let results = simd.run(Table(numbers));
            assert_eq!(results.len(), numbers.len());
            for (&x, [lane_exp, lane_tanh]) in numbers.iter().zip(results) {
                // No more than being NaN is promised of a NaN here.
                let same = |lane: A, scalar: A| assert_same(A::leave(lane), A::leave(scalar));
                same(lane_exp, exp(x));
                same(lane_tanh, tanh(x));
            }
        }
    }

    #[test]
    fn lanes_and_scalars_have_the_same_bits() {
        let specials = [0.0, -0.0, f64::NEG_INFINITY, f64::NAN, -87.3, -708.0, -87.4, -709.0, -1e-40, -1e300];
        let numbers = specials.into_iter().chain(f64_sweep(-1e-12, -800.0, 80_006)).collect::<Vec<_>>();
        compare_lanes(&numbers);
        compare_lanes(&numbers.iter().map(|&x| x as f32).collect::<Vec<_>>());
    }
}
