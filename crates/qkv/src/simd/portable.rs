//! Vectors as plain arrays, on any machine: the text that every other instruction set must equal.
//!
//! The compiler turns the loops into whatever registers the surrounding `#[target_feature]` allows. Only the fused
//! multiply-add has to be chosen by hand: an instruction where there is one, else software.

use std::marker::PhantomData;

use super::Vector;
use crate::element::Real;

/// Where the fused multiply-add comes from.
pub trait Fused: Copy {
    fn mul_add<A: Real>(a: A, factor: A, addend: A) -> A;
}

/// The target's baseline: an instruction if the baseline has one, else software.
#[derive(Clone, Copy)]
pub struct Software;

impl Fused for Software {
    #[inline(always)]
    fn mul_add<A: Real>(a: A, factor: A, addend: A) -> A {
        a.mul_add(factor, addend)
    }
}

/// The instruction, under a `#[target_feature]` that has it.
#[derive(Clone, Copy)]
pub struct Hardware;

impl Fused for Hardware {
    #[inline(always)]
    fn mul_add<A: Real>(a: A, factor: A, addend: A) -> A {
        a.hardware_mul_add(factor, addend)
    }
}

/// `N` lanes in a plain array.
#[derive(Clone, Copy)]
pub struct Lanes<A, F, const N: usize>([A; N], PhantomData<F>);

impl<A: Real, F: Fused, const N: usize> Lanes<A, F, N> {
    /// Changes each lane by itself. A plain loop: the compiler unrolls it, and kernels hold thousands of them.
    #[inline(always)]
    fn each(mut self, lane: impl Fn(usize, A) -> A) -> Self {
        for i in 0..N {
            self.0[i] = lane(i, self.0[i]);
        }
        self
    }
}

impl<A: Real, F: Fused, const N: usize> Vector for Lanes<A, F, N> {
    type Lane = A;
    const LANES: usize = N;

    #[inline(always)]
    fn splat(x: A) -> Self {
        Self([x; N], PhantomData)
    }

    #[inline(always)]
    fn load(from: &[A]) -> Self {
        let mut lanes = [A::ZERO; N];
        lanes.copy_from_slice(&from[..N]);
        Self(lanes, PhantomData)
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
        self.each(|i, x| F::mul_add(x, factor.0[i], addend.0[i]))
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
                if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
                    $real::mul_add(self, factor, addend)
                } else {
                    $software(self, factor, addend)
                }
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
