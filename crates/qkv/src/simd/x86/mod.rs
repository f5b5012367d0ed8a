//! Vectors as registers of x86-64.
//!
//! A kernel gets these types from [`Simd::run`](super::Simd::run) alone, after it found that the machine has their
//! instructions: that makes the calls of intrinsics here sound.

pub(super) mod avx2;
pub(super) mod avx512;

/// The operations of [`Vector`](super::Vector), each one intrinsic (or the function of another file, for what is not).
macro_rules! vector {
    (
        $vector:ident, $real:ident, $lanes:literal,
        $splat:ident, $load:ident, $store:ident, $add:ident, $sub:ident, $mul:ident, $div:ident, $mul_add:ident,
        $max:ident, $select:ident, $to_bits:ident, $shift:ident, $from_bits:ident $(,)?
    ) => {
        impl Vector for $vector {
            type Lane = $real;
            const LANES: usize = $lanes;

            #[inline(always)]
            fn splat(x: $real) -> Self {
                // SAFETY: the machine has the instructions (see the top).
                Self(unsafe { $splat(x) })
            }

            #[inline(always)]
            fn load(from: &[$real]) -> Self {
                let from = &from[..$lanes];
                // SAFETY: the machine has them, and as many numbers are read as the slice has; any alignment will do.
                Self(unsafe { $load(from.as_ptr()) })
            }

            #[inline(always)]
            fn store(self, to: &mut [$real]) {
                let to = &mut to[..$lanes];
                // SAFETY: the machine has them, and as many numbers are written as the slice has; any alignment will do.
                unsafe { $store(to.as_mut_ptr(), self.0) }
            }

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                // SAFETY: the machine has them.
                Self(unsafe { $add(self.0, other.0) })
            }

            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                // SAFETY: the machine has them.
                Self(unsafe { $sub(self.0, other.0) })
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                // SAFETY: the machine has them.
                Self(unsafe { $mul(self.0, other.0) })
            }

            #[inline(always)]
            fn div(self, other: Self) -> Self {
                // SAFETY: the machine has them.
                Self(unsafe { $div(self.0, other.0) })
            }

            #[inline(always)]
            fn mul_add(self, factor: Self, addend: Self) -> Self {
                // SAFETY: the machine has them.
                Self(unsafe { $mul_add(self.0, factor.0, addend.0) })
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                // The instruction gives its second operand where either is NaN.
                // SAFETY: the machine has them.
                Self(unsafe { $max(self.0, other.0) })
            }

            #[inline(always)]
            fn exp2_rounded(self) -> Self {
                // The lowest bits hold k and the exponent's bias: they become the exponent.
                // SAFETY: the machine has them.
                Self(unsafe { $from_bits($shift::<{ ($real::MANTISSA_DIGITS - 1) as _ }>($to_bits(self.0))) })
            }

            #[inline(always)]
            fn if_less(self, other: Self, then: Self, otherwise: Self) -> Self {
                // SAFETY: the machine has them.
                Self(unsafe { $select::<_CMP_LT_OQ>(self.0, other.0, then.0, otherwise.0) })
            }

            #[inline(always)]
            fn if_equal(self, other: Self, then: Self, otherwise: Self) -> Self {
                // SAFETY: the machine has them.
                Self(unsafe { $select::<_CMP_EQ_OQ>(self.0, other.0, then.0, otherwise.0) })
            }
        }
    };
}

use vector;
