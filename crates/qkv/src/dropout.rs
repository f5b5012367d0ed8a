//! Dropout: which weights are left out of the output while a model learns. A pair's fate depends on the seed, its batch and
//! head, and the positions of its query and key, and on nothing else.

use std::ops::Range;

use crate::element::Real;
use crate::mask::Visibility;
use crate::simd::{Kernel, Register};
use crate::tile::{Grid, Pair, QUERY_BLOCK, TILE, Tile, Visible};

/// What one counter gives: so many keys share it.
const WORDS: u64 = 4;

/// What a call drops; none where the probability is 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Dropout {
    pub(crate) seed: u64,
    pub(crate) batch_offset: u64,
    pub(crate) head_offset: u64,
    /// Pairs whose 32 random bits are below it are kept.
    threshold: u64,
    /// What makes up for those that are not: 1/(1 - p), and 0 where all are dropped.
    pub(crate) factor: f64,
}

impl Dropout {
    /// Of a probability within 0 and 1.
    pub(crate) fn new(probability: f64, seed: u64, offsets: (u64, u64)) -> Option<Self> {
        let kept = 1.0 - probability;
        (probability > 0.0).then(|| Self {
            seed,
            batch_offset: offsets.0,
            head_offset: offsets.1,
            threshold: (kept * (1u64 << 32) as f64) as u64,
            factor: if kept == 0.0 { 0.0 } else { 1.0 / kept },
        })
    }

    /// For the oracles.
    pub(crate) fn keeps(&self, pair: Pair, visibility: &Visibility<'_>) -> bool {
        let (query, key) = visibility.positions(pair);
        let of_key = [key as u64 / WORDS];
        let words = philox(
            [low(of_key), high(of_key), low([query as u64]), high([query as u64])],
            self.stream(&pair.into()),
        );
        u64::from(words[(key as u64 % WORDS) as usize][0]) < self.threshold
    }

    /// What Philox is keyed with for a batch and head, drawn from the seed.
    fn stream(&self, tile: &Tile) -> [u32; 2] {
        let batch = [self.batch_offset.wrapping_add(tile.batch as u64)];
        let head = [self.head_offset.wrapping_add(tile.head as u64)];
        let [[a], [b], ..] = philox(
            [low(batch), high(batch), low(head), high(head)],
            [low([self.seed])[0], high([self.seed])[0]],
        );
        [a, b]
    }

    /// Which keys of a tile a query keeps, bit by bit.
    #[inline(always)]
    fn kept(&self, stream: [u32; 2], query: i64, keys: &Range<i64>) -> Visible {
        /// Counters that run side by side.
        const SIDE_BY_SIDE: usize = 8;
        let (query, first) = (query as u64, keys.start as u64);
        let mut kept = 0;
        let mut at = first / WORDS;
        while at * WORDS < keys.end as u64 {
            let mut counters = [0; SIDE_BY_SIDE];
            for (i, counter) in counters.iter_mut().enumerate() {
                *counter = at + i as u64;
            }
            let of_query = [query; SIDE_BY_SIDE];
            let words = philox([low(counters), high(counters), low(of_query), high(of_query)], stream);
            for (i, counter) in counters.into_iter().enumerate() {
                for (word, random) in words.iter().enumerate() {
                    let place = (counter * WORDS + word as u64).wrapping_sub(first);
                    let keeps = u64::from(random[i]) < self.threshold;
                    if place < TILE as u64 {
                        kept |= u64::from(keeps) << (TILE as u64 - 1 - place);
                    }
                }
            }
            at += SIDE_BY_SIDE as u64;
        }
        kept
    }
}

#[inline(always)]
fn low<const N: usize>(x: [u64; N]) -> [u32; N] {
    let mut low = [0; N];
    for (low, x) in low.iter_mut().zip(x) {
        *low = x as u32;
    }
    low
}

#[inline(always)]
fn high<const N: usize>(x: [u64; N]) -> [u32; N] {
    let mut high = [0; N];
    for (high, x) in high.iter_mut().zip(x) {
        *high = (x >> 32) as u32;
    }
    high
}

/// Philox 4×32-10, for some counters: four random words for each.
///
/// Source: Salmon, Moraes, Dror, Shaw, “Parallel random numbers: as easy as 1, 2, 3” (2011).
#[inline(always)]
fn philox<const N: usize>(mut counter: [[u32; N]; 4], mut key: [u32; 2]) -> [[u32; N]; 4] {
    const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    for _ in 0..10 {
        let [mut a, mut b, mut c, mut d] = counter;
        for i in 0..N {
            let (first, second) = (u64::from(a[i]) * MULTIPLIERS[0], u64::from(c[i]) * MULTIPLIERS[1]);
            a[i] = (second >> 32) as u32 ^ b[i] ^ key[0];
            b[i] = second as u32;
            c[i] = (first >> 32) as u32 ^ d[i] ^ key[1];
            d[i] = first as u32;
        }
        counter = [a, b, c, d];
        key = [key[0].wrapping_add(STEPS[0]), key[1].wrapping_add(STEPS[1])];
    }
    counter
}

/// Sets the weights of dropped pairs of a tile to 0, and their scores to -∞.
pub(crate) struct LeaveOut<'d, A> {
    pub(crate) dropout: &'d Dropout,
    pub(crate) visibility: &'d Visibility<'d>,
    pub(crate) tile: &'d Tile,
    pub(crate) weights: Grid<'d, A>,
    /// In the order of the weights, or none.
    pub(crate) scores: &'d mut [A],
}

impl<A: Real> Kernel<A> for LeaveOut<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Register<Lane = A>>(self) {
        let Self { dropout, visibility, tile, weights, scores } = self;
        let region = visibility.region(tile);
        let stream = dropout.stream(tile);
        let mut kept = [0; QUERY_BLOCK];
        for (kept, query) in kept.iter_mut().zip(region.queries.clone()) {
            *kept = dropout.kept(stream, query, &region.keys);
        }
        let (none, zero) = (V::splat(A::NEG_INFINITY), V::splat(A::ZERO));
        let (rows, keys, queries_in_lanes) =
            (tile.rows.len(), tile.keys.len(), weights.has_queries_in_lanes());
        let (lines, length) = if queries_in_lanes { (keys, rows) } else { (rows, keys) };
        let step = if queries_in_lanes { weights.key_step } else { weights.row_step };
        for line in 0..lines {
            for at in (0..length).step_by(V::LANES) {
                let shown = if queries_in_lanes {
                    V::bits_of_each(&kept[at..], line as u32)
                } else {
                    V::bits_of(kept[line] << at)
                };
                let cell = line * step + at;
                let p = V::load(&weights.cells[cell..]).or_hidden(shown);
                p.if_equal(none, zero, p).store(&mut weights.cells[cell..]);
                if !scores.is_empty() {
                    V::load(&scores[cell..]).or_hidden(shown).store(&mut scores[cell..]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The authors' own answers.
    #[test]
    fn philox_gives_the_published_numbers() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, wanted) in cases {
            assert_eq!(philox(counter.map(|word| [word]), key).map(|[word]| word), wanted);
            assert_eq!(philox(counter.map(|word| [word; 8]), key), wanted.map(|word| [word; 8]));
        }
    }
}
