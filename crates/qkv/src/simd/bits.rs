//! Booleans as the bits of a word, the first as the highest.

#[cfg(target_arch = "x86_64")]
pub(crate) fn word_of(booleans: &[bool; 64]) -> u64 {
    use std::arch::x86_64::{_mm_cmpgt_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_setzero_si128};
    let mut word = 0;
    for (at, sixteen) in booleans.chunks_exact(16).enumerate() {
        // SAFETY: SSE2 is part of x86-64, and 16 bytes are read of a slice that has them.
        let first_is_lowest = unsafe {
            let bytes = _mm_loadu_si128(sixteen.as_ptr().cast());
            _mm_movemask_epi8(_mm_cmpgt_epi8(bytes, _mm_setzero_si128()))
        };
        word |= u64::from(first_is_lowest as u16) << (16 * at);
    }
    word.reverse_bits()
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn word_of(booleans: &[bool; 64]) -> u64 {
    booleans.iter().fold(0, |word, &boolean| word << 1 | u64::from(boolean))
}
