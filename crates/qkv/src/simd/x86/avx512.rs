//! AVX-512 F, VL, BW and DQ.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::super::{PADDING, Register, Vector};
use super::vector;

/// Sixteen f32.
#[derive(Clone, Copy)]
pub struct F32x16(__m512);

/// Eight f64.
#[derive(Clone, Copy)]
pub struct F64x8(__m512d);

vector!(
    F32x16,
    f32,
    16,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_add_ps,
    _mm512_sub_ps,
    _mm512_mul_ps,
    _mm512_div_ps,
    _mm512_fmadd_ps,
    _mm512_max_ps,
    select_ps,
    _mm512_castps_si512,
    _mm512_slli_epi32,
    _mm512_castsi512_ps,
);

vector!(
    F64x8,
    f64,
    8,
    _mm512_set1_pd,
    _mm512_loadu_pd,
    _mm512_storeu_pd,
    _mm512_add_pd,
    _mm512_sub_pd,
    _mm512_mul_pd,
    _mm512_div_pd,
    _mm512_fmadd_pd,
    _mm512_max_pd,
    select_pd,
    _mm512_castpd_si512,
    _mm512_slli_epi64,
    _mm512_castsi512_pd,
);

/// # Safety
/// The machine has AVX-512.
#[inline(always)]
unsafe fn select_ps<const COMPARISON: i32>(a: __m512, b: __m512, then: __m512, otherwise: __m512) -> __m512 {
    // SAFETY: as the caller promises.
    unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<COMPARISON>(a, b), otherwise, then) }
}

/// # Safety
/// The machine has AVX-512.
#[inline(always)]
unsafe fn select_pd<const COMPARISON: i32>(
    a: __m512d,
    b: __m512d,
    then: __m512d,
    otherwise: __m512d,
) -> __m512d {
    // SAFETY: as the caller promises.
    unsafe { _mm512_mask_blend_pd(_mm512_cmp_pd_mask::<COMPARISON>(a, b), otherwise, then) }
}

impl Register for F32x16 {
    const REGISTERS: usize = 32;

    #[inline(always)]
    fn or_hidden(self, shown: Self) -> Self {
        // SAFETY: the machine has AVX-512.
        Self(unsafe {
            let shown = _mm512_movepi32_mask(_mm512_castps_si512(shown.0));
            _mm512_mask_blend_ps(shown, _mm512_set1_ps(f32::NEG_INFINITY), self.0)
        })
    }

    #[inline(always)]
    fn bits_of_each(words: &[u64], skipped: u32) -> Self {
        let words = &words[..16];
        // SAFETY: the machine has AVX-512, and 128 bytes are read of a slice that has them.
        Self(unsafe {
            let skipped = _mm_cvtsi32_si128(skipped as i32);
            let first = _mm512_sll_epi64(_mm512_loadu_si512(words.as_ptr().cast()), skipped);
            let last = _mm512_sll_epi64(_mm512_loadu_si512(words[8..].as_ptr().cast()), skipped);
            let first = _mm512_cvtepi64_epi32(_mm512_srli_epi64::<32>(first));
            let last = _mm512_cvtepi64_epi32(_mm512_srli_epi64::<32>(last));
            _mm512_castsi512_ps(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), last))
        })
    }

    #[inline(always)]
    fn bits_of(word: u64) -> Self {
        // SAFETY: the machine has AVX-512.
        Self(unsafe {
            let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            _mm512_castsi512_ps(_mm512_sllv_epi32(_mm512_set1_epi32((word >> 32) as i32), lanes))
        })
    }

    #[inline(always)]
    fn next_bit(self) -> Self {
        // SAFETY: the machine has AVX-512.
        Self(unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<1>(_mm512_castps_si512(self.0))) })
    }

    #[inline(always)]
    fn load_f32(from: &[f32]) -> Self {
        Self::load(from)
    }

    #[inline(always)]
    fn load_f16(from: &[f16]) -> Self {
        let from = &from[..16];
        // SAFETY: the machine has AVX-512, and 32 bytes are read of a slice that has them.
        Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) })
    }

    #[inline(always)]
    fn load_bf16(from: &[bf16]) -> Self {
        let from = &from[..16];
        // A bfloat16 is the upper half of an f32.
        // SAFETY: the machine has AVX-512, and 32 bytes are read of a slice that has them.
        Self(unsafe {
            let upper = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(upper))
        })
    }

    #[inline(always)]
    fn transpose(square: &mut [Self; PADDING]) {
        // Of each four rows, in part p of four lanes of `quad[c]`: column 4p + c.
        let mut quads = [[square[0].0; 4]; 4];
        for (quad, rows) in quads.iter_mut().zip(square.chunks_exact(4)) {
            // SAFETY: the machine has AVX-512.
            unsafe {
                let (low_01, high_01) =
                    (_mm512_unpacklo_ps(rows[0].0, rows[1].0), _mm512_unpackhi_ps(rows[0].0, rows[1].0));
                let (low_23, high_23) =
                    (_mm512_unpacklo_ps(rows[2].0, rows[3].0), _mm512_unpackhi_ps(rows[2].0, rows[3].0));
                quad[0] = _mm512_shuffle_ps::<0x44>(low_01, low_23);
                quad[1] = _mm512_shuffle_ps::<0xee>(low_01, low_23);
                quad[2] = _mm512_shuffle_ps::<0x44>(high_01, high_23);
                quad[3] = _mm512_shuffle_ps::<0xee>(high_01, high_23);
            }
        }
        let [first, second, third, fourth] = &quads;
        let parts = first.iter().zip(second).zip(third.iter().zip(fourth));
        for (i, ((&a, &b), (&c, &d))) in parts.enumerate() {
            // The four parts of the four quads are a matrix of 4 x 4 parts, which is transposed too.
            // SAFETY: the machine has AVX-512.
            let columns = unsafe {
                let (front_ab, back_ab) =
                    (_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
                let (front_cd, back_cd) =
                    (_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xee>(c, d));
                [
                    _mm512_shuffle_f32x4::<0x88>(front_ab, front_cd),
                    _mm512_shuffle_f32x4::<0xdd>(front_ab, front_cd),
                    _mm512_shuffle_f32x4::<0x88>(back_ab, back_cd),
                    _mm512_shuffle_f32x4::<0xdd>(back_ab, back_cd),
                ]
            };
            for (part, lanes) in columns.into_iter().enumerate() {
                square[4 * part + i] = Self(lanes);
            }
        }
    }
}

impl Register for F64x8 {
    const REGISTERS: usize = 32;

    #[inline(always)]
    fn or_hidden(self, shown: Self) -> Self {
        // SAFETY: the machine has AVX-512.
        Self(unsafe {
            let shown = _mm512_movepi64_mask(_mm512_castpd_si512(shown.0));
            _mm512_mask_blend_pd(shown, _mm512_set1_pd(f64::NEG_INFINITY), self.0)
        })
    }

    #[inline(always)]
    fn bits_of_each(words: &[u64], skipped: u32) -> Self {
        let words = &words[..8];
        // SAFETY: the machine has AVX-512, and 64 bytes are read of a slice that has them.
        Self(unsafe {
            let words = _mm512_loadu_si512(words.as_ptr().cast());
            _mm512_castsi512_pd(_mm512_sll_epi64(words, _mm_cvtsi32_si128(skipped as i32)))
        })
    }

    #[inline(always)]
    fn bits_of(word: u64) -> Self {
        // SAFETY: the machine has AVX-512.
        Self(unsafe {
            let lanes = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
            _mm512_castsi512_pd(_mm512_sllv_epi64(_mm512_set1_epi64(word as i64), lanes))
        })
    }

    #[inline(always)]
    fn next_bit(self) -> Self {
        // SAFETY: the machine has AVX-512.
        Self(unsafe { _mm512_castsi512_pd(_mm512_slli_epi64::<1>(_mm512_castpd_si512(self.0))) })
    }
}
