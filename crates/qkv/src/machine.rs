//! What the machine can do at most: f32 multiply-adds and bytes read in a second, measured on the instruction set and
//! the threads that the kernels run on.
//!
//! A call of some flops and bytes takes at least the longer of `flops / peak` and `bytes / bandwidth` (the
//! “roofline” of Williams, Waterman and Patterson, 2009). Both limits are the best of several short rounds, since other
//! work on the machine can only slow a round down; where there is other work, a call is better put beside the rounds just
//! before and after it.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::simd::{Kernel, Register, Simd};

/// Rounds that a limit is the best of.
const ROUNDS: usize = 10;
/// Long enough that waking the threads does not count.
const ROUND: Duration = Duration::from_millis(20);

/// Sums that grow side by side. Two units of four cycles each want 8; with the factor and the addend, 12 still fit into
/// AVX2's 16 registers.
const FMA_CHAINS: usize = 12;
const READ_CHAINS: usize = 8;

/// What a buffer holds, unless its threads want more.
const BUFFER_BYTES: usize = 256 << 20;
/// Machines with more threads have larger caches.
const BUFFER_BYTES_PER_THREAD: usize = 8 << 20;
const BUFFER_BYTES_MOST: usize = 1 << 30;

/// Multiply-adds and nothing else, on all threads of the rayon pool that it is called in.
pub struct FmaLoop {
    simd: Simd,
    /// As many as take [`ROUND`].
    steps: u64,
}

impl FmaLoop {
    /// # Errors
    /// If this machine has no such instruction set.
    pub fn new(simd: Simd) -> Result<Self, Error> {
        check(simd)?;
        let mut fma_loop = Self { simd, steps: 1 << 10 };
        while fma_loop.time().1 < ROUND {
            fma_loop.steps *= 2;
        }
        Ok(fma_loop)
    }

    /// One short round: f32 operations in a second, where a multiply-add is two.
    pub fn round(&self) -> f64 {
        per_second(self.time())
    }

    /// The most f32 operations in a second: the best of several rounds. Takes about half a second.
    pub fn peak(&self) -> f64 {
        (0..ROUNDS).map(|_| self.round()).fold(0.0, f64::max)
    }

    fn time(&self) -> (u64, Duration) {
        let since = Instant::now();
        let flops = rayon::broadcast(|_| self.simd.run(MultiplyAdd { steps: self.steps })).iter().sum();
        (flops, since.elapsed())
    }
}

/// Memory far larger than the caches, a part for each thread of the rayon pool that it was made in.
pub struct ReadBuffer {
    parts: Vec<Vec<f32>>,
    simd: Simd,
}

impl ReadBuffer {
    /// Of 256 MiB, on many threads of up to 1 GiB; each part is written by the thread that will read it.
    ///
    /// # Errors
    /// If this machine has no such instruction set, or not so much memory.
    pub fn new(simd: Simd) -> Result<Self, Error> {
        check(simd)?;
        let threads = rayon::current_num_threads();
        let bytes = (BUFFER_BYTES_PER_THREAD * threads).clamp(BUFFER_BYTES, BUFFER_BYTES_MOST);
        let len = bytes / threads / size_of::<f32>();
        let part = |_: rayon::BroadcastContext<'_>| {
            let mut part = Vec::new();
            part.try_reserve_exact(len).map_err(|_| Error::no_memory("buffer", &[threads, len]))?;
            // Not 0: pages of zeros that were never written are all the same page.
            part.resize(len, 1.0);
            Ok(part)
        };
        let parts = rayon::broadcast(part).into_iter().collect::<Result<_, Error>>()?;
        Ok(Self { parts, simd })
    }

    /// Reads it all once, which also puts everything else out of the caches: bytes in a second. To be called in the pool
    /// that it was made in.
    pub fn sweep(&self) -> f64 {
        let since = Instant::now();
        let bytes = rayon::broadcast(|thread| {
            let part = self.parts.get(thread.index()).map_or(&[][..], Vec::as_slice);
            self.simd.run(Read { part });
            size_of_val(part) as u64
        });
        per_second((bytes.iter().sum(), since.elapsed()))
    }

    /// The most bytes that the threads read in a second: the best of several sweeps.
    pub fn bandwidth(&self) -> f64 {
        (0..ROUNDS).map(|_| self.sweep()).fold(0.0, f64::max)
    }
}

fn check(simd: Simd) -> Result<(), Error> {
    if simd.is_available() {
        return Ok(());
    }
    Err(Error::value("simd", simd, format!("`{}`: this machine has no more", Simd::best())))
}

fn per_second((count, time): (u64, Duration)) -> f64 {
    count as f64 / time.as_secs_f64().max(1e-9)
}

/// Multiply-adds in independent chains; gives the number of operations.
struct MultiplyAdd {
    steps: u64,
}

impl Kernel<f32> for MultiplyAdd {
    type Output = u64;

    #[inline(always)]
    fn run<V: Register<Lane = f32>>(self) -> u64 {
        // Sums stay near 1, and the compiler knows neither them nor that they are alike.
        let factor = V::splat(black_box(0.5));
        let addend = V::splat(black_box(0.5));
        let mut sums: [V; FMA_CHAINS] = std::array::from_fn(|_| V::splat(black_box(1.0)));
        for _ in 0..self.steps {
            for sum in &mut sums {
                *sum = sum.mul_add(factor, addend);
            }
        }
        black_box(sums);
        self.steps * (2 * FMA_CHAINS * V::LANES) as u64
    }
}

/// Adds up all numbers, in chains so that reading and not adding is what takes the time.
struct Read<'a> {
    part: &'a [f32],
}

impl Kernel<f32> for Read<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Register<Lane = f32>>(self) {
        let mut sums = [V::splat(0.0); READ_CHAINS];
        for block in self.part.chunks_exact(READ_CHAINS * V::LANES) {
            for (index, sum) in sums.iter_mut().enumerate() {
                *sum = sum.add(V::load(&block[index * V::LANES..]));
            }
        }
        black_box(sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_and_byte_is_counted() {
        for simd in Simd::ALL.into_iter().filter(|simd| simd.is_available()) {
            let lanes = simd.run(Lanes) as u64;
            assert_eq!(simd.run(MultiplyAdd { steps: 3 }), 3 * 12 * lanes * 2, "{simd}");
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let buffer = pool.install(|| ReadBuffer::new(Simd::best())).unwrap();
        let bytes: usize = buffer.parts.iter().map(|part| size_of_val(&part[..])).sum();
        assert_eq!(buffer.parts.len(), 3);
        assert!((BUFFER_BYTES - 16..=BUFFER_BYTES).contains(&bytes), "{bytes}");
        assert!(pool.install(|| buffer.sweep()) > 0.0);
    }

    struct Lanes;

    impl Kernel<f32> for Lanes {
        type Output = usize;

        #[inline(always)]
        fn run<V: Register<Lane = f32>>(self) -> usize {
            V::LANES
        }
    }

    #[test]
    fn a_missing_instruction_set_is_refused() {
        for simd in Simd::ALL.into_iter().filter(|simd| !simd.is_available()) {
            assert!(matches!(FmaLoop::new(simd).err(), Some(Error::Value { argument: "simd", .. })));
            assert!(ReadBuffer::new(simd).is_err());
        }
    }
}
