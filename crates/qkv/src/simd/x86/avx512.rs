//! AVX-512 F, VL, BW and DQ.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::super::{Register, Vector};
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
    fn or_masked(self, visible: &[u8]) -> Self {
        let visible = &visible[..16];
        // SAFETY: the machine has AVX-512, and 16 bytes are read of a slice that has them.
        Self(unsafe {
            let bytes = _mm_loadu_si128(visible.as_ptr().cast());
            let visible = _mm_test_epi8_mask(bytes, bytes);
            _mm512_mask_blend_ps(visible, _mm512_set1_ps(f32::NEG_INFINITY), self.0)
        })
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
    fn transpose(row: impl Fn(usize) -> Self, mut column: impl FnMut(usize, Self)) {
        // Loops and not closures, which would not be compiled for these instructions.
        let mut rows = [Self::splat(0.0).0; 16];
        for (i, lanes) in rows.iter_mut().enumerate() {
            *lanes = row(i).0;
        }
        // Of each four rows, in part p of four lanes of `quad[c]`: column 4p + c.
        let mut quads = [[rows[0]; 4]; 4];
        for (quad, rows) in quads.iter_mut().zip(rows.chunks_exact(4)) {
            // SAFETY: the machine has AVX-512.
            unsafe {
                let (low_01, high_01) =
                    (_mm512_unpacklo_ps(rows[0], rows[1]), _mm512_unpackhi_ps(rows[0], rows[1]));
                let (low_23, high_23) =
                    (_mm512_unpacklo_ps(rows[2], rows[3]), _mm512_unpackhi_ps(rows[2], rows[3]));
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
                column(4 * part + i, Self(lanes));
            }
        }
    }
}

impl Register for F64x8 {
    const REGISTERS: usize = 32;
}
