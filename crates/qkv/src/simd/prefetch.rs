//! Asking for memory before it is read.

use std::ops::Range;

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
