//! The one loop in which nearly all time is spent: a few sums of products for each of a few vectors, all in registers.
//!
//! Scores are such sums over the numbers of a query and a key, outputs over the keys' weights and values; with queries
//! in the lanes or keys, then columns. Each sum is a chain of fused multiply-adds in the order of its steps.

use super::Vector;
use crate::element::Real;

/// Vectors that follow one another in memory; those of the next step begin `stride` numbers further on.
#[derive(Clone, Copy)]
pub(crate) struct Vectors<'n, A> {
    pub(crate) numbers: &'n [A],
    pub(crate) stride: usize,
}

/// For each step, one number for each chain.
#[derive(Clone, Copy)]
pub(crate) struct Numbers<'n, A> {
    pub(crate) numbers: &'n [A],
    /// How far apart those of two chains are, and of two steps.
    pub(crate) chain: usize,
    pub(crate) step: usize,
}

/// Memory that will soon be wanted. It is asked for while sums run, a cache line with each step, so that it flows
/// evenly; that changes nothing but the time.
#[derive(Clone, Copy)]
pub(crate) struct Ahead<'m>(pub(crate) &'m [u8]);

impl Ahead<'_> {
    const LINE_BYTES: usize = 64;

    pub(crate) const NOTHING: Self = Self(&[]);

    /// What comes after so many lines.
    pub(crate) fn skip(self, lines: usize) -> Self {
        Self(self.0.get(lines * Self::LINE_BYTES..).unwrap_or_default())
    }

    /// All of it for row 0; the others find it asked for.
    pub(crate) fn first(self, row: usize) -> Self {
        if row == 0 { self } else { Self::NOTHING }
    }

    #[inline(always)]
    fn ask(self, line: usize) {
        if line * Self::LINE_BYTES < self.0.len() {
            prefetch(self.0.as_ptr().wrapping_add(line * Self::LINE_BYTES));
        }
    }
}

/// Asks for as much as a slice has, from its end on.
#[inline(always)]
pub(crate) fn prefetch_after<T>(numbers: &[T]) {
    for byte in (0..size_of_val(numbers)).step_by(Ahead::LINE_BYTES) {
        prefetch(numbers.as_ptr_range().end.cast::<u8>().wrapping_add(byte));
    }
}

#[inline(always)]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a hint about an address, whatever is there; SSE, which has it, is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// For each of `steps`: adds to `sums[chain][v]` the product of vector `v` and the chain's number.
///
/// # Panics
/// If the vectors or numbers are fewer.
#[inline(always)]
pub(crate) fn accumulate<V: Vector, const CHAINS: usize, const VECTORS: usize>(
    sums: &mut [[V; VECTORS]; CHAINS],
    steps: usize,
    vectors: Vectors<'_, V::Lane>,
    numbers: Numbers<'_, V::Lane>,
    ahead: Ahead<'_>,
) {
    if steps == 0 {
        return;
    }
    let last_vectors = (steps - 1).saturating_mul(vectors.stride);
    assert!(last_vectors.saturating_add(VECTORS * V::LANES) <= vectors.numbers.len());
    let last_number = (steps - 1).saturating_mul(numbers.step);
    assert!(last_number.saturating_add((CHAINS - 1).saturating_mul(numbers.chain)) < numbers.numbers.len());
    for step in 0..steps {
        ahead.ask(step);
        let of_step = step * vectors.stride;
        // Kept while each chain's number passes: with twelve sums, two vectors and one number fill 15 registers.
        let mut loaded = [V::splat(V::Lane::ZERO); VECTORS];
        for (v, loaded) in loaded.iter_mut().enumerate() {
            let at = of_step + v * V::LANES;
            // SAFETY: asserted above for the last step, beyond which no other reaches.
            *loaded = V::load(unsafe { vectors.numbers.get_unchecked(at..at + V::LANES) });
        }
        for (chain, sums) in sums.iter_mut().enumerate() {
            // SAFETY: asserted above for the last step and chain, beyond which no other reaches.
            let number =
                unsafe { *numbers.numbers.get_unchecked(step * numbers.step + chain * numbers.chain) };
            let number = V::splat(number);
            for (sum, &loaded) in sums.iter_mut().zip(&loaded) {
                *sum = loaded.mul_add(number, *sum);
            }
        }
    }
}
