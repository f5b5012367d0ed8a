//! How many chains run side by side, and on which instructions.
//!
//! Kernels are written once over [`Vector`]; [`Simd::run`] compiles a [`Kernel`] for the instruction set that was
//! chosen once, at run time. The choice never changes a result: each operation of `Vector` is exactly rounded in
//! each lane, so a lane goes through the very numbers that `scalar.rs` goes through. This folder holds the only
//! `unsafe` of the engine.

mod bits;
mod environment;
pub(crate) mod math;
mod portable;
mod prefetch;
mod products;
mod several;
mod transpose;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;

use half::{bf16, f16};

pub(crate) use bits::word_of;
pub(crate) use environment::FloatEnvironment;
pub use portable::Lanes;
pub(crate) use prefetch::{Ahead, prefetch_after};
pub(crate) use products::{Numbers, Vectors, accumulate, by_chains};
pub(crate) use transpose::transpose;

use crate::element::Real;
use math::Coefficients;

/// A multiple of the lanes of every register: how far arrays are padded whose numbers go into lanes.
pub(crate) const PADDING: usize = 16;

/// [`LANES`](Vector::LANES) numbers; each operation is done in each lane by itself.
///
/// f32 and f64 are vectors of one lane, which is how `scalar.rs` shares [`math`] with the kernels, and an array of vectors
/// is one with the lanes of all of them.
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
    /// The greater; `other` where either is NaN.
    fn max(self, other: Self) -> Self;
    /// 2 to the power k, where `self` is [`ROUNDER`](math::Coefficients::ROUNDER) + k with a whole k in the range of normal
    /// exponents; rubbish elsewhere.
    fn exp2_rounded(self) -> Self;
    /// `then` where `self < other`, else `otherwise` (so too where either is NaN).
    fn if_less(self, other: Self, then: Self, otherwise: Self) -> Self;
    /// `then` where `self == other`, else `otherwise` (so too where either is NaN).
    fn if_equal(self, other: Self, then: Self, otherwise: Self) -> Self;
}

/// A vector that is one register of the machine. What an instruction set has no better way for is done lane by lane.
pub trait Register: Vector {
    /// How many the machine has: what sums can be kept at once.
    const REGISTERS: usize;

    /// `self` where the highest bit of `shown` is set, else -∞.
    #[inline(always)]
    fn or_hidden(self, shown: Self) -> Self {
        let (mut lanes, mut bits) = ([Self::Lane::ZERO; PADDING], [Self::Lane::ZERO; PADDING]);
        self.store(&mut lanes);
        shown.store(&mut bits);
        for (lane, bits) in lanes[..Self::LANES].iter_mut().zip(bits) {
            *lane = if bits.high_bits() >> 63 == 1 { *lane } else { Self::Lane::NEG_INFINITY };
        }
        Self::load(&lanes)
    }

    /// In each lane the bits of its own of `LANES` words, without the `skipped` highest; as many as it has room for.
    #[inline(always)]
    fn bits_of_each(words: &[u64], skipped: u32) -> Self {
        one_by_one(|lane| Self::Lane::from_high_bits(words[lane] << skipped))
    }

    /// In lane i the bits of a word without the i highest.
    #[inline(always)]
    fn bits_of(word: u64) -> Self {
        one_by_one(|lane| Self::Lane::from_high_bits(word << lane))
    }

    /// The bits of each lane without the highest.
    #[inline(always)]
    fn next_bit(self) -> Self {
        let mut lanes = [Self::Lane::ZERO; PADDING];
        self.store(&mut lanes);
        one_by_one(|lane| Self::Lane::from_high_bits(lanes[lane].high_bits() << 1))
    }

    /// [`load`](Vector::load) of numbers that are widened on the way, exactly.
    #[inline(always)]
    fn load_f32(from: &[f32]) -> Self {
        one_by_one(|lane| Self::Lane::from_f32(from[lane]))
    }

    /// As [`load_f32`](Self::load_f32).
    #[inline(always)]
    fn load_f16(from: &[f16]) -> Self {
        one_by_one(|lane| Self::Lane::from_f64(from[lane].to_f64()))
    }

    /// As [`load_f32`](Self::load_f32).
    #[inline(always)]
    fn load_bf16(from: &[bf16]) -> Self {
        one_by_one(|lane| Self::Lane::from_f64(from[lane].to_f64()))
    }

    /// Of `LANES` rows of `LANES` numbers, which stand first in `square`, the columns.
    #[inline(always)]
    fn transpose(square: &mut [Self; PADDING]) {
        let mut columns = [[Self::Lane::ZERO; PADDING]; PADDING];
        for (i, row) in square[..Self::LANES].iter().enumerate() {
            let mut lanes = [Self::Lane::ZERO; PADDING];
            row.store(&mut lanes);
            for (column, &x) in columns.iter_mut().zip(&lanes[..Self::LANES]) {
                column[i] = x;
            }
        }
        for (vector, column) in square[..Self::LANES].iter_mut().zip(&columns) {
            *vector = Self::load(column);
        }
    }
}

/// A vector whose lanes are made by themselves.
#[inline(always)]
fn one_by_one<V: Register>(lane: impl Fn(usize) -> V::Lane) -> V {
    let mut lanes = [V::Lane::ZERO; PADDING];
    for (i, x) in lanes[..V::LANES].iter_mut().enumerate() {
        *x = lane(i);
    }
    V::load(&lanes)
}

/// A type of which there are registers.
///
/// Public, like all that it names, only because [`Real`] is. No other crate can name a [`Register`] or a [`Kernel`], so none
/// can run instructions that the machine lacks.
pub trait Lane: Vector<Lane = Self> + Coefficients {
    /// [`Simd::run`].
    fn run<K: Kernel<Self>>(simd: Simd, kernel: K) -> K::Output
    where
        Self: Real;
}

macro_rules! lane {
    ($real:ident, $portable:ty, $avx2:ident, $avx512:ident) => {
        impl Lane for $real {
            fn run<K: Kernel<Self>>(simd: Simd, kernel: K) -> K::Output {
                assert!(simd.is_available(), "this machine has no {simd}");
                match simd {
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: `is_available` found AVX2, FMA and F16C.
                    Simd::Avx2 => unsafe { run_avx2::<x86::avx2::$avx2, K>(kernel) },
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: `is_available` found all of them.
                    Simd::Avx512 => unsafe { run_avx512::<x86::avx512::$avx512, K>(kernel) },
                    _ => kernel.run::<$portable>(),
                }
            }
        }
    };
}

lane!(f32, Lanes<f32, 4>, F32x8, F32x16);
lane!(f64, Lanes<f64, 2>, F64x4, F64x8);

/// Work that can be compiled for any instruction set. All that `run` calls in its loops must be
/// `#[inline(always)]`, or it stays at the baseline.
pub trait Kernel<A: Real> {
    type Output;
    fn run<V: Register<Lane = A>>(self) -> Self::Output;
}

/// The instruction set that kernels run on. It decides the speed and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Simd {
    /// Whatever the target's baseline is; without a hardware fused multiply-add it is slow (and right).
    Portable,
    /// AVX2, FMA and F16C on x86-64.
    Avx2,
    /// AVX-512 F, VL, BW and DQ on x86-64.
    Avx512,
}

impl Simd {
    /// Every instruction set, best first.
    pub const ALL: [Self; 3] = [Self::Avx512, Self::Avx2, Self::Portable];

    /// The best that this machine has.
    pub fn best() -> Self {
        Self::ALL.into_iter().find(|simd| simd.is_available()).unwrap_or(Self::Portable)
    }

    /// Whether this machine has it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// The name it is asked for by: `avx512`, `avx2` or `portable`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Runs a kernel compiled for this instruction set.
    ///
    /// # Panics
    /// If the machine lacks it; [`Problem`](crate::problem::Problem) checks that before.
    pub(crate) fn run<A: Real, K: Kernel<A>>(self, kernel: K) -> K::Output {
        A::run(self, kernel)
    }
}

/// # Safety
/// The machine has AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_avx2<V: Register, K: Kernel<V::Lane>>(kernel: K) -> K::Output {
    kernel.run::<V>()
}

/// # Safety
/// The machine has AVX-512 F, VL, BW and DQ, AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c")]
unsafe fn run_avx512<V: Register, K: Kernel<V::Lane>>(kernel: K) -> K::Output {
    kernel.run::<V>()
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
            .ok_or_else(|| crate::Error::value("simd", format!("`{name}`"), "`avx512`, `avx2` or `portable`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every operation on lanes beside the same on each number by itself.
    struct Operations;

    impl<A: Real> Kernel<A> for Operations {
        type Output = ();

        #[inline(always)]
        fn run<V: Register<Lane = A>>(self) {
            arithmetic::<V>();
            arithmetic::<[V; 3]>();
            bits::<V>();
            narrow::<V>();
            square::<V>();
        }
    }

    fn special<A: Real>() -> [A; 9] {
        let tiny = A::from_f64(A::MIN_POSITIVE);
        let small = A::from_f64(-0.3);
        [A::ZERO, -A::ZERO, A::ONE, small, tiny, -A::MAX, A::INFINITY, A::NEG_INFINITY, A::NAN]
    }

    #[track_caller]
    fn same<A: Real>(lane: A, alone: A) {
        assert!(
            lane.high_bits() == alone.high_bits() || lane.is_nan() && alone.is_nan(),
            "{lane:?} {alone:?}"
        );
    }

    fn lanes<V: Vector>(vector: V) -> Vec<V::Lane> {
        let mut lanes = vec![V::Lane::ZERO; V::LANES];
        vector.store(&mut lanes);
        lanes
    }

    /// All lanes go through all combinations of three special numbers.
    fn arithmetic<V: Vector>() {
        let special = special::<V::Lane>();
        let number = |at: usize| special[at % special.len()];
        for round in 0..special.len().pow(3) {
            let operands = [1, special.len(), special.len().pow(2)]
                .map(|step| (0..V::LANES).map(|lane| number((round + lane) / step)).collect::<Vec<_>>());
            let [x, y, z] = operands.each_ref().map(|numbers| V::load(numbers));
            let one = V::splat(V::Lane::ONE);
            let results = [
                x.add(y),
                x.sub(y),
                x.mul(y),
                x.div(y),
                x.mul_add(y, z),
                x.max(y),
                x.if_less(y, z, one),
                x.if_equal(y, z, one),
            ];
            let results = results.map(lanes);
            for lane in 0..V::LANES {
                let [x, y, z] = operands.each_ref().map(|numbers| numbers[lane]);
                let alone = [
                    x + y,
                    x - y,
                    x * y,
                    x / y,
                    Vector::mul_add(x, y, z),
                    if x > y { x } else { y },
                    if x < y { z } else { V::Lane::ONE },
                    if x == y { z } else { V::Lane::ONE },
                ];
                for (result, alone) in results.iter().zip(alone) {
                    same(result[lane], alone);
                }
            }
        }
        for k in [-100, -1, 0, 1, 100] {
            let power = V::splat(V::Lane::ROUNDER + V::Lane::from_f64(f64::from(k))).exp2_rounded();
            assert!(lanes(power).iter().all(|power| power.to_f64() == libm::exp2(f64::from(k))));
        }
    }

    fn bits<V: Register>() {
        let words: Vec<_> = (1..=V::LANES as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let kept = u64::MAX << (64 - 8 * size_of::<V::Lane>());
        for skipped in [0, 1, 32, 63] {
            for (bits, word) in lanes(V::bits_of_each(&words, skipped)).iter().zip(&words) {
                assert_eq!(bits.high_bits(), (word << skipped) & kept);
            }
        }
        let numbers: Vec<_> = (0..V::LANES).map(|i| V::Lane::from_u64(i as u64)).collect();
        for &word in &words {
            let mut shown = V::bits_of(word);
            for skipped in 0..8 {
                let got = lanes(V::load(&numbers).or_hidden(shown));
                for (lane, (got, &number)) in got.into_iter().zip(&numbers).enumerate() {
                    let is_shown = (word << (lane + skipped)) >> 63 == 1;
                    same(got, if is_shown { number } else { V::Lane::NEG_INFINITY });
                }
                shown = shown.next_bit();
            }
        }
    }

    fn narrow<V: Register>() {
        let numbers: Vec<_> = (0..V::LANES).map(|i| 1.37 * i as f32 - 2.5).collect();
        let halves: Vec<_> = numbers.iter().map(|&x| f16::from_f32(x)).collect();
        let brain: Vec<_> = numbers.iter().map(|&x| bf16::from_f32(x)).collect();
        for lane in 0..V::LANES {
            same(lanes(V::load_f32(&numbers))[lane], V::Lane::from_f32(numbers[lane]));
            same(lanes(V::load_f16(&halves))[lane], V::Lane::from_f64(halves[lane].to_f64()));
            same(lanes(V::load_bf16(&brain))[lane], V::Lane::from_f64(brain[lane].to_f64()));
        }
    }

    fn square<V: Register>() {
        let number = |row: usize, column: usize| V::Lane::from_u64((row * PADDING + column) as u64);
        let mut square = [V::splat(V::Lane::ZERO); PADDING];
        for (row, vector) in square[..V::LANES].iter_mut().enumerate() {
            *vector = V::load(&(0..V::LANES).map(|column| number(row, column)).collect::<Vec<_>>());
        }
        V::transpose(&mut square);
        for (column, vector) in square[..V::LANES].iter().enumerate() {
            assert_eq!(lanes(*vector), (0..V::LANES).map(|row| number(row, column)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn lanes_do_what_numbers_do() {
        for simd in Simd::ALL.into_iter().filter(|simd| simd.is_available()) {
            simd.run::<f32, _>(Operations);
            simd.run::<f64, _>(Operations);
        }
    }
}
