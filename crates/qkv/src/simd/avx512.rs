//! Vectors as AVX-512 registers (F, VL, BW and DQ).
//!
//! A kernel gets these types from [`Simd::run`](super::Simd::run) alone, after it found that the machine has them all:
//! that makes the calls of intrinsics below sound.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::Vector;

/// Sixteen f32.
#[derive(Clone, Copy)]
pub struct F32x16(__m512);

/// Eight f64.
#[derive(Clone, Copy)]
pub struct F64x8(__m512d);

macro_rules! vector {
    (
        $vector:ident, $real:ident, $lanes:literal,
        $splat:ident, $load:ident, $store:ident, $add:ident, $sub:ident, $mul:ident, $div:ident, $mul_add:ident,
        $max:ident, $compare:ident, $blend:ident, $to_bits:ident, $shift:ident, $from_bits:ident,
        { $($more:item)* }
    ) => {
        impl Vector for $vector {
            type Lane = $real;
            const LANES: usize = $lanes;
            const REGISTERS: usize = 32;

            #[inline(always)]
            fn splat(x: $real) -> Self {
                // SAFETY: the machine has AVX-512 (see the top).
                Self(unsafe { $splat(x) })
            }

            #[inline(always)]
            fn load(from: &[$real]) -> Self {
                let from = &from[..$lanes];
                // SAFETY: the machine has AVX-512, and as many numbers are read as the slice has; any alignment will do.
                Self(unsafe { $load(from.as_ptr()) })
            }

            #[inline(always)]
            fn store(self, to: &mut [$real]) {
                let to = &mut to[..$lanes];
                // SAFETY: the machine has AVX-512, and as many numbers are written as the slice has; any alignment will do.
                unsafe { $store(to.as_mut_ptr(), self.0) }
            }

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                // SAFETY: the machine has AVX-512.
                Self(unsafe { $add(self.0, other.0) })
            }

            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                // SAFETY: the machine has AVX-512.
                Self(unsafe { $sub(self.0, other.0) })
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                // SAFETY: the machine has AVX-512.
                Self(unsafe { $mul(self.0, other.0) })
            }

            #[inline(always)]
            fn div(self, other: Self) -> Self {
                // SAFETY: the machine has AVX-512.
                Self(unsafe { $div(self.0, other.0) })
            }

            #[inline(always)]
            fn mul_add(self, factor: Self, addend: Self) -> Self {
                // SAFETY: the machine has AVX-512.
                Self(unsafe { $mul_add(self.0, factor.0, addend.0) })
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                // The instruction gives its second operand where either is NaN.
                // SAFETY: the machine has AVX-512.
                Self(unsafe { $max(self.0, other.0) })
            }

            #[inline(always)]
            fn exp2_rounded(self) -> Self {
                // The lowest bits hold k and the exponent's bias: they become the exponent.
                const FRACTION_BITS: u32 = $real::MANTISSA_DIGITS - 1;
                // SAFETY: the machine has AVX-512.
                Self(unsafe { $from_bits($shift::<FRACTION_BITS>($to_bits(self.0))) })
            }

            #[inline(always)]
            fn if_less(self, other: Self, then: Self, otherwise: Self) -> Self {
                // SAFETY: the machine has AVX-512.
                Self(unsafe { $blend($compare::<_CMP_LT_OQ>(self.0, other.0), otherwise.0, then.0) })
            }

            #[inline(always)]
            fn if_equal(self, other: Self, then: Self, otherwise: Self) -> Self {
                // SAFETY: the machine has AVX-512.
                Self(unsafe { $blend($compare::<_CMP_EQ_OQ>(self.0, other.0), otherwise.0, then.0) })
            }

            $($more)*
        }
    };
}

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
    _mm512_cmp_ps_mask,
    _mm512_mask_blend_ps,
    _mm512_castps_si512,
    _mm512_slli_epi32,
    _mm512_castsi512_ps,
    {
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
    _mm512_cmp_pd_mask,
    _mm512_mask_blend_pd,
    _mm512_castpd_si512,
    _mm512_slli_epi64,
    _mm512_castsi512_pd,
    {}
);
