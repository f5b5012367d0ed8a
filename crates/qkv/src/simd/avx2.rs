//! Vectors as AVX2 registers, with FMA and F16C.
//!
//! A kernel gets these types from [`Simd::run`](super::Simd::run) alone, after it found that the machine has the three:
//! that makes the calls of intrinsics below sound.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::Vector;

/// Eight f32.
#[derive(Clone, Copy)]
pub struct F32x8(__m256);

/// Four f64.
#[derive(Clone, Copy)]
pub struct F64x4(__m256d);

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
            const REGISTERS: usize = 16;

            #[inline(always)]
            fn splat(x: $real) -> Self {
                // SAFETY: the machine has AVX2 (see the top).
                Self(unsafe { $splat(x) })
            }

            #[inline(always)]
            fn load(from: &[$real]) -> Self {
                let from = &from[..$lanes];
                // SAFETY: the machine has AVX2, and as many numbers are read as the slice has; any alignment will do.
                Self(unsafe { $load(from.as_ptr()) })
            }

            #[inline(always)]
            fn store(self, to: &mut [$real]) {
                let to = &mut to[..$lanes];
                // SAFETY: the machine has AVX2, and as many numbers are written as the slice has; any alignment will do.
                unsafe { $store(to.as_mut_ptr(), self.0) }
            }

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                // SAFETY: the machine has AVX2.
                Self(unsafe { $add(self.0, other.0) })
            }

            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                // SAFETY: the machine has AVX2.
                Self(unsafe { $sub(self.0, other.0) })
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                // SAFETY: the machine has AVX2.
                Self(unsafe { $mul(self.0, other.0) })
            }

            #[inline(always)]
            fn div(self, other: Self) -> Self {
                // SAFETY: the machine has AVX2.
                Self(unsafe { $div(self.0, other.0) })
            }

            #[inline(always)]
            fn mul_add(self, factor: Self, addend: Self) -> Self {
                // SAFETY: the machine has FMA.
                Self(unsafe { $mul_add(self.0, factor.0, addend.0) })
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                // The instruction gives its second operand where either is NaN.
                // SAFETY: the machine has AVX2.
                Self(unsafe { $max(self.0, other.0) })
            }

            #[inline(always)]
            fn exp2_rounded(self) -> Self {
                // The lowest bits hold k and the exponent's bias: they become the exponent.
                const FRACTION_BITS: i32 = $real::MANTISSA_DIGITS as i32 - 1;
                // SAFETY: the machine has AVX2.
                Self(unsafe { $from_bits($shift::<FRACTION_BITS>($to_bits(self.0))) })
            }

            #[inline(always)]
            fn if_less(self, other: Self, then: Self, otherwise: Self) -> Self {
                // SAFETY: the machine has AVX2.
                Self(unsafe { $blend(otherwise.0, then.0, $compare::<_CMP_LT_OQ>(self.0, other.0)) })
            }

            #[inline(always)]
            fn if_equal(self, other: Self, then: Self, otherwise: Self) -> Self {
                // SAFETY: the machine has AVX2.
                Self(unsafe { $blend(otherwise.0, then.0, $compare::<_CMP_EQ_OQ>(self.0, other.0)) })
            }

            $($more)*
        }
    };
}

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
    _mm256_cmp_ps,
    _mm256_blendv_ps,
    _mm256_castps_si256,
    _mm256_slli_epi32,
    _mm256_castsi256_ps,
    {
        #[inline(always)]
        fn or_masked(self, visible: &[u8]) -> Self {
            let visible = &visible[..8];
            // SAFETY: the machine has AVX2, and 8 bytes are read of a slice that has them.
            Self(unsafe {
                let bytes = _mm_loadl_epi64(visible.as_ptr().cast());
                let visible = _mm256_cmpgt_epi32(_mm256_cvtepu8_epi32(bytes), _mm256_setzero_si256());
                _mm256_blendv_ps(_mm256_set1_ps(f32::NEG_INFINITY), self.0, _mm256_castsi256_ps(visible))
            })
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
        fn transpose(row: impl Fn(usize) -> Self, mut column: impl FnMut(usize, Self)) {
            // Loops and not closures, which would not be compiled for these instructions.
            let mut rows = [Self::splat(0.0).0; 8];
            for (i, lanes) in rows.iter_mut().enumerate() {
                *lanes = row(i).0;
            }
            // Of each four rows: columns 0 and 4, 1 and 5, 2 and 6, 3 and 7, one in each half.
            let mut quads = [[rows[0]; 4]; 2];
            for (quad, rows) in quads.iter_mut().zip(rows.chunks_exact(4)) {
                // SAFETY: the machine has AVX2.
                unsafe {
                    let (low_01, high_01) =
                        (_mm256_unpacklo_ps(rows[0], rows[1]), _mm256_unpackhi_ps(rows[0], rows[1]));
                    let (low_23, high_23) =
                        (_mm256_unpacklo_ps(rows[2], rows[3]), _mm256_unpackhi_ps(rows[2], rows[3]));
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
                column(i, Self(front));
                column(i + 4, Self(back));
            }
        }
    }
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
    _mm256_cmp_pd,
    _mm256_blendv_pd,
    _mm256_castpd_si256,
    _mm256_slli_epi64,
    _mm256_castsi256_pd,
    {}
);
