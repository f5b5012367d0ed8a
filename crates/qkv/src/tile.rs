//! A tile: some queries of one head against some neighbouring keys, the unit in which work is skipped and done.
//!
//! Tiles of keys lie at absolute positions, so that the same key falls into the same tile whatever cache it is
//! handed in with.

use std::ops::{Index, IndexMut, Range};

use ndarray::s;
use rayon::prelude::*;
use smallvec::SmallVec;

use crate::error::Error;
use crate::mask::Hint;
use crate::planes::Planes;
use crate::simd::word_of;

/// Keys in a tile: the span over which the maximum is taken before any exponential is, and whose sums are chains; tiles
/// merge along a fixed tree. Part of the arithmetic.
pub(crate) const TILE: usize = 64;

/// Queries that are worked on together. Not part of the arithmetic.
pub(crate) const QUERY_BLOCK: usize = 64;

/// Some queries of one batch and head against keys of one tile, as slots of the arrays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) batch: usize,
    pub(crate) head: usize,
    /// Within one query block; not empty.
    pub(crate) rows: Range<usize>,
    /// Within one tile; not empty.
    pub(crate) keys: Range<usize>,
}

/// One query against one key, for the oracles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) batch: usize,
    pub(crate) head: usize,
    pub(crate) query: usize,
    pub(crate) key: usize,
}

impl From<Pair> for Tile {
    fn from(Pair { batch, head, query, key }: Pair) -> Self {
        Self { batch, head, rows: query..query + 1, keys: key..key + 1 }
    }
}

/// Which pairs of a tile are visible, as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    Empty,
    Full,
    Mixed,
}

impl Sort {
    /// Both must allow a pair. The other is asked only where it matters.
    pub(crate) fn and(self, other: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Empty => Self::Empty,
            Self::Full => other(),
            Self::Mixed => match other() {
                Self::Empty => Self::Empty,
                _ => Self::Mixed,
            },
        }
    }
}

impl From<Hint> for Sort {
    fn from(hint: Hint) -> Self {
        match hint {
            Hint::Empty => Self::Empty,
            Hint::Full => Self::Full,
            Hint::Mixed => Self::Mixed,
        }
    }
}

/// A span of keys (slots) cut where absolute positions are multiples of `unit`; yields the number of each piece
/// and its slots.
pub(crate) fn cut(
    slots: Range<usize>,
    key_offset: i64,
    unit: usize,
) -> impl Iterator<Item = (u64, Range<usize>)> {
    let unit = unit as u64;
    let offset = key_offset as u64;
    let mut start = slots.start;
    std::iter::from_fn(move || {
        if start >= slots.end {
            return None;
        }
        let number = (offset + start as u64) / unit;
        let end = slots.end.min(((number + 1).saturating_mul(unit) - offset) as usize);
        let piece = start..end;
        start = end;
        Some((number, piece))
    })
}

/// Tiles of a mask that one thread sorts sooner than another wakes up; so many are kept without an allocation.
const SMALL: usize = 16;

/// A stored mask sorted into tiles, once for a call: a byte for each tile of the mask that was handed in.
pub(crate) struct TileMap {
    sorts: SmallVec<[Sort; SMALL]>,
    row_blocks: usize,
    key_blocks: usize,
    rows: usize,
    columns: usize,
    phase: usize,
}

impl TileMap {
    /// Rows and keys of one entry.
    pub(crate) const BLOCK: usize = TILE;

    /// How far into its tile the first key stands.
    pub(crate) fn phase(key_offset: i64) -> usize {
        (key_offset as u64 % TILE as u64) as usize
    }

    /// Whether so many cells are sorted by the caller's thread alone.
    pub(crate) fn is_small(cells: usize) -> bool {
        cells <= SMALL * Self::BLOCK * Self::BLOCK
    }

    /// # Errors
    /// If there is no memory for the map.
    pub(crate) fn new<T: Copy + Sync>(
        what: &'static str,
        planes: &Planes<'_, T>,
        key_offset: i64,
        visible: impl Fn(T) -> bool + Sync,
    ) -> Result<Self, Error> {
        let (rows, columns) = planes.dim();
        // An extent of 1 stands for all keys, wherever tiles begin.
        let phase = if columns == 1 { 0 } else { Self::phase(key_offset) };
        let (row_blocks, key_blocks) = (rows.div_ceil(Self::BLOCK), (columns + phase).div_ceil(Self::BLOCK));
        let count = [planes.count(), row_blocks, key_blocks].into_iter().try_fold(1, usize::checked_mul);
        let no_memory = || Error::no_memory(what, &[planes.count(), rows, columns]);
        let count = count.ok_or_else(no_memory)?;
        let sort_of = |index: usize| {
            let plane = planes.distinct(index / (row_blocks * key_blocks));
            let (row, key) =
                (index / key_blocks % row_blocks * Self::BLOCK, index % key_blocks * Self::BLOCK);
            let keys = key.saturating_sub(phase)..columns.min(key + Self::BLOCK - phase);
            let tile = plane.slice(s![row..rows.min(row + Self::BLOCK), keys]);
            let (any, all) =
                tile.iter().fold((false, true), |(any, all), &x| (any | visible(x), all & visible(x)));
            match (any, all) {
                (false, _) => Sort::Empty,
                (true, true) => Sort::Full,
                (true, false) => Sort::Mixed,
            }
        };
        let mut sorts = SmallVec::new();
        let cells = planes.count().saturating_mul(rows).saturating_mul(columns);
        if Self::is_small(cells) {
            sorts.try_reserve_exact(count).map_err(|_| no_memory())?;
            sorts.extend((0..count).map(sort_of));
        } else {
            let mut sorted = Vec::new();
            sorted.try_reserve_exact(count).map_err(|_| no_memory())?;
            (0..count).into_par_iter().map(sort_of).collect_into_vec(&mut sorted);
            sorts = sorted.into();
        }
        Ok(Self { sorts, row_blocks, key_blocks, rows, columns, phase })
    }

    /// What is known of a tile, from the entry that it lies in.
    pub(crate) fn sort(&self, plane: usize, tile: &Tile) -> Sort {
        let row_block = if self.rows == 1 { 0 } else { tile.rows.start / Self::BLOCK };
        let key_block = if self.columns == 1 { 0 } else { (tile.keys.start + self.phase) / Self::BLOCK };
        self.sorts[(plane * self.row_blocks + row_block) * self.key_blocks + key_block]
    }
}

/// A tile's buffer with its queries and keys in either order: queries next to one another when they are in the
/// lanes, keys when those are.
pub(crate) struct Grid<'s, T> {
    pub(crate) cells: &'s mut [T],
    pub(crate) row_step: usize,
    pub(crate) key_step: usize,
}

impl<T> Grid<'_, T> {
    /// Whether queries are next to one another, and not keys.
    #[inline(always)]
    pub(crate) fn has_queries_in_lanes(&self) -> bool {
        self.row_step == 1
    }
}

impl<T> Index<(usize, usize)> for Grid<'_, T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, (row, key): (usize, usize)) -> &T {
        &self.cells[row * self.row_step + key * self.key_step]
    }
}

impl<T> IndexMut<(usize, usize)> for Grid<'_, T> {
    #[inline(always)]
    fn index_mut(&mut self, (row, key): (usize, usize)) -> &mut T {
        &mut self.cells[row * self.row_step + key * self.key_step]
    }
}

/// Which keys of a tile a query sees, bit by bit; the highest is for the first key, and those beyond the last mean nothing.
pub(crate) type Visible = u64;

/// Visible are the keys of a tile that lie within some range of slots.
pub(crate) fn visible_within(tile: &Range<usize>, keys: Range<usize>) -> Visible {
    let from = |slot: usize| match slot.saturating_sub(tile.start) {
        hidden if hidden < TILE => Visible::MAX >> hidden,
        _ => 0,
    };
    from(keys.start) & !from(keys.end)
}

/// Visible is what booleans say, stored ones or those that a closure wrote.
pub(crate) fn visible_where(keys: &[bool]) -> Visible {
    let mut padded = [false; TILE];
    match keys.try_into() {
        Ok(whole) => word_of(whole),
        Err(_) => {
            padded[..keys.len()].copy_from_slice(keys);
            word_of(&padded)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys_seen(visible: Visible, keys: usize) -> Vec<usize> {
        (0..keys).filter(|key| visible >> (63 - key) & 1 == 1).collect()
    }

    #[test]
    fn a_bit_is_a_key() {
        for (keys, wanted) in [
            (0..200, 0..10),
            (0..1 << 32 | 105, 0..10),
            (100..100, 0..0),
            (0..100, 0..0),
            (103..107, 3..7),
            (107..200, 7..10),
        ] {
            let visible = visible_within(&(100..110), keys.clone());
            assert_eq!(keys_seen(visible, 10), wanted.collect::<Vec<_>>(), "{keys:?}");
        }
        for count in 0..=TILE {
            let stored: Vec<_> = (0..count).map(|key| key % 3 == 1 || key % 7 == 0).collect();
            let wanted: Vec<_> = (0..count).filter(|&key| stored[key]).collect();
            assert_eq!(keys_seen(visible_where(&stored), count), wanted);
        }
    }
}
