//! Random numbers as torch draws them on a CPU: the same seed gives the same numbers as `torch.manual_seed`,
//! `torch.rand` and `torch.randn`.
//!
//! The 32-bit draws are mt19937's. A uniform number is the low 24 bits of one. Normal numbers come in pairs by Box
//! and Muller, `√(-2 ln u₁) · (cos 2πu₂, sin 2πu₂)`, in one of two ways, as torch does:
//!
//! - fewer than 16 are drawn pair by pair in f64; the half of a pair that is left over waits for the next call;
//! - 16 and more are drawn in blocks of 16 in f32, the cosines in a block's first half and the sines in its second.
//!
//! The f64 way takes its functions from `libm`; where their last bits are not those of torch's C library, rounding
//! to f32 all but hides it. The f32 way has `ln`, `sin` and `cos` of its own below: torch's samples have the rounding
//! errors of the Cephes polynomials in them, so to get its bits is to make the same errors. Multiply-adds are fused
//! where torch's compiler fuses them.

use std::f32::consts::FRAC_1_SQRT_2;

use ndarray::ArrayD;
use rand_mt::Mt;

use crate::error::Error;
use crate::forward::zeros;
use crate::simd::math::polynomial;
use crate::simd::{FloatEnvironment, Vector};

/// From this many on, normal numbers are drawn in blocks.
const BLOCK: usize = 16;
const HALF: usize = BLOCK / 2;

/// Draws the numbers that torch draws on a CPU after `manual_seed`, of type float32.
///
/// They are torch's to the bit where torch runs its AVX2 code; on other processors its normal numbers of arrays with
/// 16 elements and more differ in their last bits. Here they are the same on every machine.
///
/// The order of the calls matters, as it does in torch: each goes on where the one before stopped. Arrays are filled
/// in C order. An array of fewer than 16 normal numbers may begin with the half of a pair that an earlier one left.
///
/// ```
/// use qkv::Generator;
///
/// let mut generator = Generator::new(42); // torch.manual_seed(42)
/// let x = generator.rand(&[5, 3])?; // torch.rand(5, 3)
/// let w = generator.randn(&[3, 3])?; // torch.randn(3, 3)
/// assert_eq!(format!("{:.4} {:.4}", x[[0, 0]], w[[0, 0]]), "0.8823 -1.2284");
/// # Ok::<(), qkv::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Generator {
    draws: Mt,
    /// The half of a pair of normal numbers that has not been given out.
    waiting: Option<f64>,
}

impl Generator {
    /// As `torch.manual_seed(seed)`. Only the low 32 bits of a seed count, in torch too.
    pub fn new(seed: u64) -> Self {
        Self { draws: Mt::new(seed as u32), waiting: None }
    }

    /// Uniform numbers from [0, 1), multiples of 2⁻²⁴: `torch.rand(shape)`.
    ///
    /// # Errors
    /// If there is no memory for the array. Nothing is drawn then.
    pub fn rand(&mut self, shape: &[usize]) -> Result<ArrayD<f32>, Error> {
        let mut array = zeros("rand", shape)?;
        array.iter_mut().for_each(|x| *x = self.uniform());
        Ok(array)
    }

    /// Normal numbers of mean 0 and variance 1 (Box and Muller, 1958): `torch.randn(shape)`.
    ///
    /// # Errors
    /// If there is no memory for the array. Nothing is drawn then.
    pub fn randn(&mut self, shape: &[usize]) -> Result<ArrayD<f32>, Error> {
        let mut array = zeros("randn", shape)?;
        let _environment = FloatEnvironment::enter();
        let samples = array.as_slice_mut().expect("contiguous");
        if samples.len() < BLOCK {
            samples.iter_mut().for_each(|x| *x = self.normal() as f32);
        } else {
            self.fill_normal(samples);
        }
        Ok(array)
    }

    fn uniform(&mut self) -> f32 {
        const BITS: u32 = f32::MANTISSA_DIGITS;
        let bits = self.draws.next_u32() & ((1 << BITS) - 1);
        bits as f32 / (1u32 << BITS) as f32
    }

    fn wide_uniform(&mut self) -> f64 {
        const BITS: u32 = f64::MANTISSA_DIGITS;
        let high = u64::from(self.draws.next_u32());
        let low = u64::from(self.draws.next_u32());
        let bits = ((high << 32) | low) & ((1 << BITS) - 1);
        bits as f64 / (1u64 << BITS) as f64
    }

    fn normal(&mut self) -> f64 {
        if let Some(sample) = self.waiting.take() {
            return sample;
        }
        // The angle is drawn first.
        let angle = std::f64::consts::TAU * self.wide_uniform();
        let radius = (-2.0 * libm::log1p(-self.wide_uniform())).sqrt();
        self.waiting = Some(radius * libm::sin(angle));
        radius * libm::cos(angle)
    }

    /// At least a block of samples.
    fn fill_normal(&mut self, samples: &mut [f32]) {
        samples.iter_mut().for_each(|x| *x = self.uniform());
        let (blocks, rest) = samples.as_chunks_mut();
        blocks.iter_mut().for_each(box_muller);
        if rest.is_empty() {
            return;
        }
        // The last samples are drawn anew, as one block; it overlaps the one before.
        if let Some(last) = samples.last_chunk_mut() {
            *last = std::array::from_fn(|_| self.uniform());
            box_muller(last);
        }
    }
}

/// Turns uniform numbers into normal ones: those of the first half give the radii, those of the second the angles.
fn box_muller(block: &mut [f32; BLOCK]) {
    for j in 0..HALF {
        // Not 0, whose logarithm is infinite.
        let radius = (-2.0 * ln(1.0 - block[j])).sqrt();
        let [sin, cos] = sin_cos(std::f32::consts::TAU * block[j + HALF]);
        // The mean, 0, is added so that there is no -0.
        block[j] = radius * cos + 0.0;
        block[j + HALF] = radius * sin + 0.0;
    }
}

/// `a * factor + addend`, rounded once: the engine's, as f32's own asks the C library where there is no instruction.
fn mul_add(a: f32, factor: f32, addend: f32) -> f32 {
    Vector::mul_add(a, factor, addend)
}

/// The natural logarithm of a normal positive number: Cephes' logf.
fn ln(x: f32) -> f32 {
    // Approximates (ln(1 + f) - f + f²/2) / f³ where √½ - 1 ≤ f < √2 - 1.
    const LN: [f32; 9] = [
        0.070376836,
        -0.1151461,
        0.116769984,
        -0.12420141,
        0.14249323,
        -0.16668057,
        0.20000714,
        -0.24999994,
        0.3333333,
    ];
    // ln 2 in two parts, the first of few bits, so that its product with an exponent is exact.
    const LN_2: [f32; 2] = [0.6933594, -0.00021219444];
    const FRACTION_BITS: u32 = f32::MANTISSA_DIGITS - 1;

    // x = m · 2^k, at first with ½ ≤ m < 1, then with √½ ≤ m < √2; and f = m - 1.
    let bits = x.to_bits();
    let m = f32::from_bits((bits & ((1 << FRACTION_BITS) - 1)) | 0.5f32.to_bits());
    let k = ((bits >> FRACTION_BITS) as i32 - (f32::MAX_EXP - 2)) as f32;
    let (f, k) = if m < FRAC_1_SQRT_2 { (2.0 * m - 1.0, k - 1.0) } else { (m - 1.0, k) };
    let square = f * f;
    let bend = mul_add(polynomial(&LN, f) * f, square, k * LN_2[1]);
    mul_add(k, LN_2[0], f + mul_add(square, -0.5, bend))
}

/// Sine and cosine of an angle from 0 to 2π: Cephes' sinf and cosf.
fn sin_cos(x: f32) -> [f32; 2] {
    // Approximates (sin r - r) / r³ and (cos r - 1 + r²/2) / r⁴ in r² where |r| ≤ π/4.
    const SIN: [f32; 3] = [-0.00019515296, 0.008332161, -0.16666655];
    const COS: [f32; 3] = [2.4433157e-5, -0.0013887316, 0.041666646];
    // π/4 in three parts, the first two of few bits, so that their products with an octant are exact.
    const QUARTER_PI: [f32; 3] = [0.78515625, 0.00024187565, 3.774895e-8];
    const FOUR_BY_PI: f32 = 1.2732395;

    // The octants on both sides of a multiple of π/2 are taken together.
    let octant = ((x * FOUR_BY_PI) as i32 + 1) & !1;
    let r = QUARTER_PI.iter().fold(x, |r, &part| mul_add(-octant as f32, part, r));
    let square = r * r;
    let sin = mul_add(polynomial(&SIN, square) * square, r, r);
    let cos = mul_add(polynomial(&COS, square) * square, square, -0.5 * square) + 1.0;
    match octant & 6 {
        0 => [sin, cos],
        2 => [cos, -sin],
        4 => [-sin, -cos],
        _ => [-cos, sin],
    }
}
