//! Several vectors as one: each operation is done on all of them before the next, so that their latencies overlap.

use super::Vector;
use crate::element::Real;

/// A plain loop over the vectors: closures would not be compiled for the instructions of the kernel around them.
macro_rules! each {
    ($vectors:ident, $i:ident => $changed:expr) => {{
        for $i in 0..N {
            $vectors[$i] = $changed;
        }
        $vectors
    }};
}

impl<V: Vector, const N: usize> Vector for [V; N] {
    type Lane = V::Lane;
    const LANES: usize = N * V::LANES;

    #[inline(always)]
    fn splat(x: V::Lane) -> Self {
        [V::splat(x); N]
    }

    #[inline(always)]
    fn load(from: &[V::Lane]) -> Self {
        let mut vectors = Self::splat(V::Lane::ZERO);
        for (vector, from) in vectors.iter_mut().zip(from[..Self::LANES].chunks_exact(V::LANES)) {
            *vector = V::load(from);
        }
        vectors
    }

    #[inline(always)]
    fn store(self, to: &mut [V::Lane]) {
        for (vector, to) in self.into_iter().zip(to[..Self::LANES].chunks_exact_mut(V::LANES)) {
            vector.store(to);
        }
    }

    #[inline(always)]
    fn add(mut self, other: Self) -> Self {
        each!(self, i => self[i].add(other[i]))
    }

    #[inline(always)]
    fn sub(mut self, other: Self) -> Self {
        each!(self, i => self[i].sub(other[i]))
    }

    #[inline(always)]
    fn mul(mut self, other: Self) -> Self {
        each!(self, i => self[i].mul(other[i]))
    }

    #[inline(always)]
    fn div(mut self, other: Self) -> Self {
        each!(self, i => self[i].div(other[i]))
    }

    #[inline(always)]
    fn mul_add(mut self, factor: Self, addend: Self) -> Self {
        each!(self, i => self[i].mul_add(factor[i], addend[i]))
    }

    #[inline(always)]
    fn max(mut self, other: Self) -> Self {
        each!(self, i => self[i].max(other[i]))
    }

    #[inline(always)]
    fn exp2_rounded(mut self) -> Self {
        each!(self, i => self[i].exp2_rounded())
    }

    #[inline(always)]
    fn if_less(mut self, other: Self, then: Self, otherwise: Self) -> Self {
        each!(self, i => self[i].if_less(other[i], then[i], otherwise[i]))
    }

    #[inline(always)]
    fn if_equal(mut self, other: Self, then: Self, otherwise: Self) -> Self {
        each!(self, i => self[i].if_equal(other[i], then[i], otherwise[i]))
    }
}
