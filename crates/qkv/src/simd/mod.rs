//! How many chains run side by side, and on which instructions.
//!
//! Kernels are written once over [`Vector`]; [`Simd::run`] compiles a [`Kernel`] for the instruction set that was
//! chosen once, at run time. The choice never changes a result: each operation of `Vector` is exactly rounded in
//! each lane, so a lane goes through the very numbers that `scalar.rs` goes through. This folder holds the only
//! `unsafe` of the engine.

mod environment;
pub(crate) mod math;
mod portable;

use std::fmt;

pub(crate) use environment::FloatEnvironment;
pub use portable::{Hardware, Lanes, Software};

use crate::element::Real;

/// A multiple of the lanes of every vector: how far arrays are padded whose numbers go into lanes.
pub(crate) const PADDING: usize = 16;

/// A register of [`LANES`](Vector::LANES) numbers; each operation is done in each lane by itself.
///
/// f32 and f64 are vectors of one lane, which is how `scalar.rs` shares [`math`] with the kernels.
pub trait Vector: Copy {
    type Lane: Real;
    const LANES: usize;

    fn splat(x: Self::Lane) -> Self;
    /// The first `LANES` numbers of a slice that has at least so many.
    fn load(from: &[Self::Lane]) -> Self;
    /// Writes the first `LANES` numbers of a slice that has at least so many.
    fn store(self, to: &mut [Self::Lane]);
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self * factor + addend`, rounded once.
    fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// 2 to the power k, where `self` is [`ROUNDER`](math::Coefficients::ROUNDER) + k with a whole k in the range of normal
    /// exponents; rubbish elsewhere.
    fn exp2_rounded(self) -> Self;
    /// `then` where `self < other`, else `otherwise` (so too where either is NaN).
    fn if_less(self, other: Self, then: Self, otherwise: Self) -> Self;
    /// `then` where `self == other`, else `otherwise` (so too where either is NaN).
    fn if_equal(self, other: Self, then: Self, otherwise: Self) -> Self;
}

/// The vectors of one lane type for each instruction set, and what only the lane type knows.
///
/// Public, like all that it names, only because [`Real`] is; no other crate can reach it.
pub trait Lane: Vector<Lane = Self> + math::Coefficients {
    /// Plain arrays, with the fused multiply-add in software where the machine has none.
    type Portable: Vector<Lane = Self>;
    /// The same text compiled under AVX2 and FMA.
    type Avx2: Vector<Lane = Self>;

    /// `self * factor + addend` as the instruction, to be called where it exists.
    fn hardware_mul_add(self, factor: Self, addend: Self) -> Self;
}

macro_rules! lane {
    ($real:ident, $lanes:literal) => {
        impl Lane for $real {
            type Portable = Lanes<$real, Software, $lanes>;
            type Avx2 = Lanes<$real, Hardware, $lanes>;

            #[inline(always)]
            fn hardware_mul_add(self, factor: Self, addend: Self) -> Self {
                $real::mul_add(self, factor, addend)
            }
        }
    };
}

lane!(f32, 8);
lane!(f64, 4);

/// Work that can be compiled for any instruction set. All that `run` calls in its loops must be
/// `#[inline(always)]`, or it stays at the baseline.
pub(crate) trait Kernel<A: Real> {
    type Output;
    fn run<V: Vector<Lane = A>>(self) -> Self::Output;
}

/// The instruction set that kernels run on. It decides the speed and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Simd {
    /// Whatever the target's baseline is; without a hardware fused multiply-add it is slow (and right).
    Portable,
    /// AVX2 and FMA on x86-64.
    Avx2,
}

impl Simd {
    /// Every instruction set, best first.
    pub const ALL: [Self; 2] = [Self::Avx2, Self::Portable];

    /// The best that this machine has.
    pub fn best() -> Self {
        Self::ALL.into_iter().find(|simd| simd.is_available()).unwrap_or(Self::Portable)
    }

    /// Whether this machine has it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 => false,
        }
    }

    /// The name it is asked for by: `avx2` or `portable`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
        }
    }

    /// Runs a kernel compiled for this instruction set.
    ///
    /// # Panics
    /// If the machine lacks it; [`Problem`](crate::problem::Problem) checks that before.
    pub(crate) fn run<A: Real, K: Kernel<A>>(self, kernel: K) -> K::Output {
        assert!(self.is_available(), "this machine has no {self}");
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `is_available` found AVX2 and FMA.
            Self::Avx2 => unsafe { run_avx2(kernel) },
            _ => kernel.run::<A::Portable>(),
        }
    }
}

/// # Safety
/// The machine has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn run_avx2<A: Real, K: Kernel<A>>(kernel: K) -> K::Output {
    kernel.run::<A::Avx2>()
}

impl fmt::Display for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Simd {
    type Err = crate::Error;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|simd| simd.name() == name)
            .ok_or_else(|| crate::Error::value("simd", format!("`{name}`"), "`avx2` or `portable`"))
    }
}
