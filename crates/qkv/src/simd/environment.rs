//! The floating-point environment: rounding to nearest, no flushing of tiny numbers to zero, no traps.
//!
//! A caller may have changed it for its thread (audio code often flushes to zero); results must not follow.

/// Puts the thread in the default environment, and back into the caller's when dropped.
#[must_use]
pub(crate) struct FloatEnvironment {
    #[cfg(target_arch = "x86_64")]
    callers: u32,
    #[cfg(target_arch = "aarch64")]
    callers: u64,
}

#[cfg(target_arch = "x86_64")]
mod register {
    use std::arch::asm;

    /// MXCSR at power-on: all exceptions masked, round to nearest, neither FTZ nor DAZ.
    pub(super) const DEFAULT: u32 = 0x1f80;

    pub(super) fn get() -> u32 {
        let mut mxcsr = 0u32;
        // SAFETY: STMXCSR writes four bytes to the address given, which is a u32 of ours.
        unsafe { asm!("stmxcsr [{}]", in(reg) &mut mxcsr, options(nostack, preserves_flags)) };
        mxcsr
    }

    pub(super) fn set(mxcsr: u32) {
        // SAFETY: LDMXCSR reads four bytes; the value is the default or one that STMXCSR gave, so no reserved bit
        // is set. The guard restores the caller's value, so code outside the engine never sees another one.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &mxcsr, options(nostack, preserves_flags)) };
    }
}

#[cfg(target_arch = "aarch64")]
mod register {
    use std::arch::asm;

    /// FPCR at reset.
    pub(super) const DEFAULT: u64 = 0;

    pub(super) fn get() -> u64 {
        let fpcr: u64;
        // SAFETY: reading FPCR has no side effect.
        unsafe { asm!("mrs {}, fpcr", out(reg) fpcr, options(nomem, nostack, preserves_flags)) };
        fpcr
    }

    pub(super) fn set(fpcr: u64) {
        // SAFETY: the value is the default or one read before; the guard restores the caller's.
        unsafe { asm!("msr fpcr, {}", in(reg) fpcr, options(nostack, preserves_flags)) };
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl FloatEnvironment {
    pub(crate) fn enter() -> Self {
        let callers = register::get();
        register::set(register::DEFAULT);
        Self { callers }
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl Drop for FloatEnvironment {
    fn drop(&mut self) {
        register::set(self.callers);
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
impl FloatEnvironment {
    pub(crate) fn enter() -> Self {
        Self {}
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::{Alibi, Attention, AttentionOutput, Element, Path, Simd};
    use ndarray::{Array4, Ix4};
    use std::hint::black_box;

    /// Runs `f` with results and operands flushed to zero, rounding toward zero.
    fn with_hostile_environment<R>(f: impl FnOnce() -> R) -> R {
        let before = register::get();
        register::set(register::DEFAULT | 0x8040 | 0x6000);
        let result = f();
        register::set(before);
        result
    }

    #[test]
    fn the_default_is_set_and_the_callers_restored() {
        let tiny = black_box(f32::MIN_POSITIVE);
        with_hostile_environment(|| {
            let hostile = register::get();
            assert_eq!(black_box(tiny) * black_box(0.5), 0.0);
            {
                let _environment = FloatEnvironment::enter();
                assert!(black_box(tiny) * black_box(0.5) > 0.0);
            }
            // Reading MXCSR also shows exception flags, which are not part of what is restored.
            assert_eq!(register::get() & !0x3f, hostile & !0x3f);
        });
    }

    fn result<T: Element>(way: &Attention<'_>, arrays: &[Array4<T>; 3]) -> AttentionOutput<T, Ix4> {
        let [query, key, value] = arrays.each_ref().map(|array| array.view());
        way.call(query, key, value).lse().run().unwrap()
    }

    #[test]
    fn the_callers_environment_changes_no_bit_of_a_result() {
        let numbers = |heads, len, dim, scale: f32| {
            Array4::from_shape_fn((1, heads, len, dim), |(_, h, i, e)| {
                ((h * 5 + i * 7 + e * 3) % 11) as f32 * scale - 0.4 * scale
            })
        };
        // Subnormal values: flushed, the output would be 0.
        let narrow = [numbers(3, 10, 20, 0.3), numbers(1, 70, 20, 0.2), numbers(1, 70, 13, 1e-39)];
        // In f64 the default scale and the slopes are not rounded again, so they show how they were computed.
        let wide = narrow.each_ref().map(|array| array.mapv(f64::from));
        for path in Path::ALL {
            let way = Attention::new().alibi(Alibi::Paper).path(path).simd(Simd::best());
            let clean = (result(&way, &narrow), result(&way, &wide));
            assert!(clean.0.output.iter().any(|&y| y != 0.0));
            let got = with_hostile_environment(|| (result(&way, &narrow), result(&way, &wide)));
            // No NaN and no -0 among them, so equal numbers are equal bits.
            assert_eq!(got, clean, "{path}");
        }
    }
}
