//! Vectors as plain arrays, on any machine: the text that every other instruction set must equal.
//!
//! The compiler turns the loops into whatever registers the target's baseline has. The fused multiply-add is an
//! instruction where the baseline has one, else software.

use super::{Register, Vector};
use crate::element::Real;

/// Whether the target's baseline has a fused multiply-add.
const HAS_MUL_ADD: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

/// `N` lanes in a plain array: with 128 bits what every baseline has.
#[derive(Clone, Copy)]
pub struct Lanes<A, const N: usize>([A; N]);

impl<A: Real, const N: usize> Lanes<A, N> {
    /// Not part of the loops that it is called from: they would be large, and no faster.
    #[inline(never)]
    fn software_mul_add(self, factor: Self, addend: Self) -> Self {
        self.each(|i, x| x.mul_add(factor.0[i], addend.0[i]))
    }

    /// Changes each lane by itself. A plain loop: the compiler unrolls it, and kernels hold thousands of them.
    #[inline(always)]
    fn each(mut self, lane: impl Fn(usize, A) -> A) -> Self {
        for i in 0..N {
            self.0[i] = lane(i, self.0[i]);
        }
        self
    }
}

impl<A: Real, const N: usize> Vector for Lanes<A, N> {
    type Lane = A;
    const LANES: usize = N;

    #[inline(always)]
    fn splat(x: A) -> Self {
        Self([x; N])
    }

    #[inline(always)]
    fn load(from: &[A]) -> Self {
        let mut lanes = [A::ZERO; N];
        lanes.copy_from_slice(&from[..N]);
        Self(lanes)
    }

    #[inline(always)]
    fn store(self, to: &mut [A]) {
        to[..N].copy_from_slice(&self.0);
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.each(|i, x| x + other.0[i])
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.each(|i, x| x - other.0[i])
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.each(|i, x| x * other.0[i])
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.each(|i, x| x / other.0[i])
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        if HAS_MUL_ADD {
            self.each(|i, x| x.mul_add(factor.0[i], addend.0[i]))
        } else {
            self.software_mul_add(factor, addend)
        }
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.each(|i, x| x.max(other.0[i]))
    }

    #[inline(always)]
    fn exp2_rounded(self) -> Self {
        self.each(|_, x| x.exp2_rounded())
    }

    #[inline(always)]
    fn if_less(self, other: Self, then: Self, otherwise: Self) -> Self {
        self.each(|i, x| if x < other.0[i] { then.0[i] } else { otherwise.0[i] })
    }

    #[inline(always)]
    fn if_equal(self, other: Self, then: Self, otherwise: Self) -> Self {
        self.each(|i, x| if x == other.0[i] { then.0[i] } else { otherwise.0[i] })
    }
}

impl<A: Real, const N: usize> Register for Lanes<A, N> {
    const REGISTERS: usize = 16;
}

macro_rules! one_lane {
    ($real:ident, $software:path) => {
        impl Vector for $real {
            type Lane = Self;
            const LANES: usize = 1;

            #[inline(always)]
            fn splat(x: Self) -> Self {
                x
            }

            #[inline(always)]
            fn load(from: &[Self]) -> Self {
                from[0]
            }

            #[inline(always)]
            fn store(self, to: &mut [Self]) {
                to[0] = self;
            }

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self - other
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }

            #[inline(always)]
            fn div(self, other: Self) -> Self {
                self / other
            }

            #[inline(always)]
            fn mul_add(self, factor: Self, addend: Self) -> Self {
                if HAS_MUL_ADD {
                    $real::mul_add(self, factor, addend)
                } else {
                    $software(self, factor, addend)
                }
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                if self > other { self } else { other }
            }

            #[inline(always)]
            fn exp2_rounded(self) -> Self {
                // The lowest bits hold k and the exponent's bias: they become the exponent.
                $real::from_bits(self.to_bits() << ($real::MANTISSA_DIGITS - 1))
            }

            #[inline(always)]
            fn if_less(self, other: Self, then: Self, otherwise: Self) -> Self {
                if self < other { then } else { otherwise }
            }

            #[inline(always)]
            fn if_equal(self, other: Self, then: Self, otherwise: Self) -> Self {
                if self == other { then } else { otherwise }
            }
        }
    };
}

one_lane!(f32, libm::fmaf);
one_lane!(f64, libm::fma);
