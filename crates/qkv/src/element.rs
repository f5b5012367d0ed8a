//! The numbers that arrays hold ([`Element`]: f32, f64, f16, bf16) and the numbers that all arithmetic is done
//! in ([`Real`]: f32, and f64 for f64).
//!
//! An element widens exactly when it is loaded, and a result is rounded once, to nearest even, when it leaves.

use std::fmt::{Debug, Display};
use std::ops::{Add, Div, Mul, Neg, Sub};

use half::{bf16, f16};
use ndarray::{ArrayD, LinalgScalar};

use crate::simd::Register;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

/// A type that queries, keys and values may have: f32, f64, f16 or bf16. No other type can implement it.
pub trait Element:
    Copy
    + Debug
    + Display
    + PartialEq
    + Send
    + Sync
    + crate::forward::Compiled
    + crate::backward::Compiled
    + bytemuck::NoUninit
    + bytemuck::Zeroable
    + sealed::Sealed
    + 'static
{
    /// What the arithmetic is done in: f64 for f64, f32 for all others.
    type Accumulator: Real;

    /// The name people know the type by, such as `bf16`.
    const NAME: &'static str;

    /// The distance from 1 to the next number above it, in this type.
    const EPSILON: f64;

    /// The smallest normal positive number of this type.
    const MIN_POSITIVE: f64;

    /// The same number in the accumulator type, exactly.
    fn widen(self) -> Self::Accumulator;

    /// The nearest number of this type, ties to even.
    fn round(x: Self::Accumulator) -> Self;

    /// The first numbers of a slice that has enough for a vector, widened in registers.
    fn load<V: Register<Lane = Self::Accumulator>>(from: &[Self]) -> V;

    /// The slice itself, where there is nothing to widen.
    fn as_wide(slice: &[Self]) -> Option<&[Self::Accumulator]>;

    /// An array on its way out, whose numbers are those of the accumulator type that [`leave`](Self::leave) gives.
    fn narrow(wide: ArrayD<Self::Accumulator>) -> ArrayD<Self>;

    /// A finished result on its way out: rounded once, never -0, and every NaN the canonical one.
    fn leave(x: Self::Accumulator) -> Self {
        if x.is_nan() {
            return Self::round(Self::Accumulator::NAN);
        }
        // A tiny negative number may round to -0, so this comes after the rounding.
        let rounded = Self::round(x);
        if rounded.widen() == Self::Accumulator::ZERO {
            Self::round(Self::Accumulator::ZERO)
        } else {
            rounded
        }
    }
}

/// The type that arithmetic is done in: f32 or f64.
pub trait Real:
    Element<Accumulator = Self>
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + LinalgScalar
    + crate::simd::Lane
    + crate::reference::Precise
{
    /// 0
    const ZERO: Self;
    /// 1
    const ONE: Self;
    /// The largest finite number.
    const MAX: Self;
    /// +∞
    const INFINITY: Self;
    /// -∞
    const NEG_INFINITY: Self;
    /// The quiet NaN whose bits every NaN that leaves the engine has.
    const NAN: Self;

    /// The nearest number to `x`; beyond the range the infinity of its sign.
    fn from_f64(x: f64) -> Self;

    /// `x`, exactly.
    fn from_f32(x: f32) -> Self;

    /// The nearest number to `x`.
    fn from_u64(x: u64) -> Self;

    /// `self`, exactly.
    fn to_f64(self) -> f64;

    /// Whether this is NaN.
    fn is_nan(self) -> bool;

    /// Whether this is neither infinite nor NaN.
    fn is_finite(self) -> bool;
}

macro_rules! real {
    ($real:ident) => {
        impl Element for $real {
            type Accumulator = Self;
            const NAME: &'static str = stringify!($real);
            const EPSILON: f64 = $real::EPSILON as f64;
            const MIN_POSITIVE: f64 = $real::MIN_POSITIVE as f64;

            #[inline(always)]
            fn widen(self) -> Self {
                self
            }

            #[inline(always)]
            fn round(x: Self) -> Self {
                x
            }

            #[inline(always)]
            fn load<V: Register<Lane = Self>>(from: &[Self]) -> V {
                V::load(from)
            }

            #[inline(always)]
            fn as_wide(slice: &[Self]) -> Option<&[Self]> {
                Some(slice)
            }

            fn narrow(wide: ArrayD<Self>) -> ArrayD<Self> {
                wide
            }
        }

        impl Real for $real {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const MAX: Self = $real::MAX;
            const INFINITY: Self = $real::INFINITY;
            const NEG_INFINITY: Self = $real::NEG_INFINITY;
            const NAN: Self = $real::NAN;

            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as Self
            }

            #[inline(always)]
            fn from_f32(x: f32) -> Self {
                x.into()
            }

            #[inline(always)]
            fn from_u64(x: u64) -> Self {
                x as Self
            }

            #[inline(always)]
            fn to_f64(self) -> f64 {
                self.into()
            }

            #[inline(always)]
            fn is_nan(self) -> bool {
                $real::is_nan(self)
            }

            #[inline(always)]
            fn is_finite(self) -> bool {
                $real::is_finite(self)
            }
        }
    };
}

real!(f32);
real!(f64);

macro_rules! half_float {
    ($half:ident, $load:ident) => {
        impl Element for $half {
            type Accumulator = f32;
            const NAME: &'static str = stringify!($half);
            const EPSILON: f64 = $half::EPSILON.to_f64_const();
            const MIN_POSITIVE: f64 = $half::MIN_POSITIVE.to_f64_const();

            #[inline(always)]
            fn widen(self) -> f32 {
                self.to_f32()
            }

            #[inline(always)]
            fn round(x: f32) -> Self {
                Self::from_f32(x)
            }

            #[inline(always)]
            fn load<V: Register<Lane = f32>>(from: &[Self]) -> V {
                V::$load(from)
            }

            fn as_wide(_: &[Self]) -> Option<&[f32]> {
                None
            }

            fn narrow(wide: ArrayD<f32>) -> ArrayD<Self> {
                wide.mapv(Self::leave)
            }
        }
    };
}

half_float!(f16, load_f16);
half_float!(bf16, load_bf16);
