//! AVX2, with FMA and F16C.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::super::{PADDING, Register, Vector};
use super::vector;

/// Eight f32.
#[derive(Clone, Copy)]
pub struct F32x8(__m256);

/// Four f64.
#[derive(Clone, Copy)]
pub struct F64x4(__m256d);

vector!(
    F32x8,
    f32,
    8,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_add_ps,
    _mm256_sub_ps,
    _mm256_mul_ps,
    _mm256_div_ps,
    _mm256_fmadd_ps,
    _mm256_max_ps,
    select_ps,
    _mm256_castps_si256,
    _mm256_slli_epi32,
    _mm256_castsi256_ps,
);

vector!(
    F64x4,
    f64,
    4,
    _mm256_set1_pd,
    _mm256_loadu_pd,
    _mm256_storeu_pd,
    _mm256_add_pd,
    _mm256_sub_pd,
    _mm256_mul_pd,
    _mm256_div_pd,
    _mm256_fmadd_pd,
    _mm256_max_pd,
    select_pd,
    _mm256_castpd_si256,
    _mm256_slli_epi64,
    _mm256_castsi256_pd,
);

// Bit by bit, of which the compiler makes a blend, or less where a side is 0.

/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn select_ps<const COMPARISON: i32>(a: __m256, b: __m256, then: __m256, otherwise: __m256) -> __m256 {
    // SAFETY: as the caller promises.
    unsafe {
        let holds = _mm256_cmp_ps::<COMPARISON>(a, b);
        _mm256_or_ps(_mm256_and_ps(holds, then), _mm256_andnot_ps(holds, otherwise))
    }
}

/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn select_pd<const COMPARISON: i32>(
    a: __m256d,
    b: __m256d,
    then: __m256d,
    otherwise: __m256d,
) -> __m256d {
    // SAFETY: as the caller promises.
    unsafe {
        let holds = _mm256_cmp_pd::<COMPARISON>(a, b);
        _mm256_or_pd(_mm256_and_pd(holds, then), _mm256_andnot_pd(holds, otherwise))
    }
}

impl Register for F32x8 {
    const REGISTERS: usize = 16;

    #[inline(always)]
    fn or_hidden(self, shown: Self) -> Self {
        // SAFETY: the machine has AVX2.
        Self(unsafe { _mm256_blendv_ps(_mm256_set1_ps(f32::NEG_INFINITY), self.0, shown.0) })
    }

    #[inline(always)]
    fn bits_of_each(words: &[u64], skipped: u32) -> Self {
        let words = &words[..8];
        // SAFETY: the machine has AVX2, and 64 bytes are read of a slice that has them.
        Self(unsafe {
            let skipped = _mm_cvtsi32_si128(skipped as i32);
            let first = _mm256_sll_epi64(_mm256_loadu_si256(words.as_ptr().cast()), skipped);
            let last = _mm256_sll_epi64(_mm256_loadu_si256(words[4..].as_ptr().cast()), skipped);
            // The upper halves, those of words 0 and 1, 4 and 5, 2 and 3, 6 and 7.
            let upper = _mm256_shuffle_ps::<0xdd>(_mm256_castsi256_ps(first), _mm256_castsi256_ps(last));
            _mm256_castpd_ps(_mm256_permute4x64_pd::<0xd8>(_mm256_castps_pd(upper)))
        })
    }

    #[inline(always)]
    fn bits_of(word: u64) -> Self {
        // SAFETY: the machine has AVX2.
        Self(unsafe {
            let upper = _mm256_set1_epi32((word >> 32) as i32);
            _mm256_castsi256_ps(_mm256_sllv_epi32(upper, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)))
        })
    }

    #[inline(always)]
    fn next_bit(self) -> Self {
        // SAFETY: the machine has AVX2.
        Self(unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<1>(_mm256_castps_si256(self.0))) })
    }

    #[inline(always)]
    fn load_f32(from: &[f32]) -> Self {
        Self::load(from)
    }

    #[inline(always)]
    fn load_f16(from: &[f16]) -> Self {
        let from = &from[..8];
        // SAFETY: the machine has F16C, and 16 bytes are read of a slice that has them.
        Self(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast())) })
    }

    #[inline(always)]
    fn load_bf16(from: &[bf16]) -> Self {
        let from = &from[..8];
        // A bfloat16 is the upper half of an f32.
        // SAFETY: the machine has AVX2, and 16 bytes are read of a slice that has them.
        Self(unsafe {
            let upper = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(upper))
        })
    }

    #[inline(always)]
    fn transpose(square: &mut [Self; PADDING]) {
        // Of each four rows: columns 0 and 4, 1 and 5, 2 and 6, 3 and 7, one in each half.
        let mut quads = [[square[0].0; 4]; 2];
        for (quad, rows) in quads.iter_mut().zip(square.chunks_exact(4)) {
            // SAFETY: the machine has AVX2.
            unsafe {
                let (low_01, high_01) =
                    (_mm256_unpacklo_ps(rows[0].0, rows[1].0), _mm256_unpackhi_ps(rows[0].0, rows[1].0));
                let (low_23, high_23) =
                    (_mm256_unpacklo_ps(rows[2].0, rows[3].0), _mm256_unpackhi_ps(rows[2].0, rows[3].0));
                quad[0] = _mm256_shuffle_ps::<0x44>(low_01, low_23);
                quad[1] = _mm256_shuffle_ps::<0xee>(low_01, low_23);
                quad[2] = _mm256_shuffle_ps::<0x44>(high_01, high_23);
                quad[3] = _mm256_shuffle_ps::<0xee>(high_01, high_23);
            }
        }
        let [early, late] = &quads;
        for (i, (&early, &late)) in early.iter().zip(late).enumerate() {
            // SAFETY: the machine has AVX2.
            let (front, back) = unsafe {
                (_mm256_permute2f128_ps::<0x20>(early, late), _mm256_permute2f128_ps::<0x31>(early, late))
            };
            square[i] = Self(front);
            square[i + 4] = Self(back);
        }
    }
}

impl Register for F64x4 {
    const REGISTERS: usize = 16;

    #[inline(always)]
    fn or_hidden(self, shown: Self) -> Self {
        // SAFETY: the machine has AVX2.
        Self(unsafe { _mm256_blendv_pd(_mm256_set1_pd(f64::NEG_INFINITY), self.0, shown.0) })
    }

    #[inline(always)]
    fn bits_of_each(words: &[u64], skipped: u32) -> Self {
        let words = &words[..4];
        // SAFETY: the machine has AVX2, and 32 bytes are read of a slice that has them.
        Self(unsafe {
            let words = _mm256_loadu_si256(words.as_ptr().cast());
            _mm256_castsi256_pd(_mm256_sll_epi64(words, _mm_cvtsi32_si128(skipped as i32)))
        })
    }

    #[inline(always)]
    fn bits_of(word: u64) -> Self {
        // SAFETY: the machine has AVX2.
        Self(unsafe {
            let lanes = _mm256_setr_epi64x(0, 1, 2, 3);
            _mm256_castsi256_pd(_mm256_sllv_epi64(_mm256_set1_epi64x(word as i64), lanes))
        })
    }

    #[inline(always)]
    fn next_bit(self) -> Self {
        // SAFETY: the machine has AVX2.
        Self(unsafe { _mm256_castsi256_pd(_mm256_slli_epi64::<1>(_mm256_castpd_si256(self.0))) })
    }
}
