//! The one loop in which nearly all time is spent: a few sums of products of vectors, all in registers.
//!
//! Scores are such sums over the numbers of a query and a key, outputs over the keys' weights and values; with queries
//! in the lanes or keys, then columns. Each sum is a chain of fused multiply-adds in the order of its steps.

use std::ops::Range;

use super::Vector;

/// A vector for each step; that of the next begins `stride` numbers further on.
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

/// Memory that will soon be wanted. It is asked for while other work runs, a few cache lines at a time, so that it flows
/// evenly; that changes nothing but the time.
#[derive(Clone, Copy)]
pub(crate) struct Ahead<'m>(pub(crate) &'m [u8]);

impl Ahead<'_> {
    const LINE_BYTES: usize = 64;

    pub(crate) const NOTHING: Self = Self(&[]);

    /// Some of so many equal shares.
    pub(crate) fn shares(self, some: Range<usize>, all: usize) -> Self {
        let at = |share: usize| (share * self.0.len()).checked_div(all).unwrap_or(0);
        Self(&self.0[at(some.start)..at(some.end)])
    }

    /// All of it for row 0; the others find it asked for.
    pub(crate) fn first(self, row: usize) -> Self {
        if row == 0 { self } else { Self::NOTHING }
    }

    /// How many lines are to be asked for at each of so many occasions.
    #[inline(always)]
    pub(super) fn lines_for_each_of(self, occasions: usize) -> usize {
        self.0.len().div_ceil(Self::LINE_BYTES * occasions.max(1))
    }

    #[inline(always)]
    pub(super) fn ask_for(self, lines: Range<usize>) {
        for line in lines {
            if line * Self::LINE_BYTES < self.0.len() {
                prefetch(self.0.as_ptr().wrapping_add(line * Self::LINE_BYTES));
            }
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
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint about an address, whatever is there; SSE, which has it, is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Steps between two looks at whether there are more, and at what to ask for.
const UNROLLED: usize = 4;

/// For each of `steps`: adds to each chain's sum the product of the step's vector and the chain's number.
///
/// # Panics
/// If the vectors or numbers are fewer.
#[inline(always)]
pub(crate) fn accumulate<V: Vector, const CHAINS: usize>(
    sums: &mut [V; CHAINS],
    steps: usize,
    vectors: Vectors<'_, V::Lane>,
    numbers: Numbers<'_, V::Lane>,
    ahead: Ahead<'_>,
) {
    if steps == 0 {
        return;
    }
    let last_vector = (steps - 1).saturating_mul(vectors.stride);
    assert!(last_vector.saturating_add(V::LANES) <= vectors.numbers.len());
    let last_number = (steps - 1).saturating_mul(numbers.step);
    assert!(last_number.saturating_add((CHAINS - 1).saturating_mul(numbers.chain)) < numbers.numbers.len());
    let lines = ahead.lines_for_each_of(steps / UNROLLED);
    for block in 0..steps / UNROLLED {
        ahead.ask_for(block * lines..(block + 1) * lines);
        for step in block * UNROLLED..(block + 1) * UNROLLED {
            // SAFETY: asserted above for the last step, beyond which no other reaches.
            unsafe { add_step(sums, step, vectors, numbers) };
        }
    }
    for step in steps / UNROLLED * UNROLLED..steps {
        // SAFETY: as above.
        unsafe { add_step(sums, step, vectors, numbers) };
    }
}

/// A step of [`accumulate`]. A function, since a closure would not be compiled for the instructions of the kernel around it.
///
/// # Safety
/// The vectors and numbers of the step are there.
#[inline(always)]
unsafe fn add_step<V: Vector, const CHAINS: usize>(
    sums: &mut [V; CHAINS],
    step: usize,
    vectors: Vectors<'_, V::Lane>,
    numbers: Numbers<'_, V::Lane>,
) {
    let at = step * vectors.stride;
    // Kept while each chain's number passes: with six sums of two registers, these and a number fill 15.
    // SAFETY: as the caller promises.
    let vector = V::load(unsafe { vectors.numbers.get_unchecked(at..at + V::LANES) });
    for (chain, sum) in sums.iter_mut().enumerate() {
        let at = step * numbers.step + chain * numbers.chain;
        // SAFETY: as the caller promises.
        let number = V::splat(unsafe { *numbers.numbers.get_unchecked(at) });
        *sum = vector.mul_add(number, *sum);
    }
}
