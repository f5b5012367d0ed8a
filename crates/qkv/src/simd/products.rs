//! The one loop in which nearly all time is spent: a few sums of products of vectors, all in registers.
//!
//! Scores are such sums over the numbers of a query and a key, outputs over the keys' weights and values; with queries
//! in the lanes or keys, then columns. Each sum is a chain of fused multiply-adds in the order of its steps.

use super::{Ahead, Vector};

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

/// Does work on as many of a count side by side as will go: `most`, then `fewer`, then one. `at` is the first of them and
/// `chains` their number, a constant.
macro_rules! by_chains {
    ($count:expr, [$most:expr, $fewer:expr], ($at:ident, $chains:ident) => $work:expr) => {{
        let (count, mut $at) = ($count, 0);
        while count - $at >= $most {
            const $chains: usize = $most;
            $work;
            $at += $most;
        }
        while count - $at >= $fewer {
            const $chains: usize = $fewer;
            $work;
            $at += $fewer;
        }
        for $at in $at..count {
            const $chains: usize = 1;
            $work;
        }
    }};
}

pub(crate) use by_chains;
