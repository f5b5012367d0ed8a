//! Which query may attend which key: causal order, windows, key lengths, segments, boolean masks and closures, all
//! of which must agree.
//!
//! [`Visibility::sees`] says it pair by pair, straight from the definitions; the oracles read that. The fast paths
//! sort whole tiles instead ([`Visibility::sort`]: nothing, everything, or some pairs visible) and fill in only the
//! mixed ones. Numbers added to scores, a masking -∞ among them, are `bias.rs`'s.

use std::ops::Range;

use ndarray::{Array2, ArrayView2};
use smallvec::SmallVec;

use crate::planes::Planes;
use crate::simd::prefetch_after;
use crate::tile::{Pair, Sort, TILE, Tile, TileMap, Visible, visible_where, visible_within};

/// Where the queries stand among the keys when order matters.
///
/// Query `i` stands at `query_offset + i` and key `j` at `key_offset + j`; a causal query attends keys that stand at
/// its own position or before. The alignment says what `query_offset` is.
///
/// ```
/// use qkv::{Alignment, Attention};
///
/// let table = |alignment, len_query, len_key| -> Vec<String> {
///     let mask = Attention::new().causal(alignment).visible(len_query, len_key).unwrap();
///     mask.rows().into_iter().map(|row| row.iter().map(|&sees| if sees { '1' } else { '0' }).collect()).collect()
/// };
/// // More keys than queries: torch's `is_causal` is top-left, a cache that was filled before is bottom-right.
/// assert_eq!(table(Alignment::TopLeft, 2, 4), ["1000", "1100"]);
/// assert_eq!(table(Alignment::BottomRight, 2, 4), ["1110", "1111"]);
/// // More queries than keys: bottom-right leaves rows that attend nothing; their output is 0.
/// assert_eq!(table(Alignment::TopLeft, 4, 2), ["10", "11", "11", "11"]);
/// assert_eq!(table(Alignment::BottomRight, 4, 2), ["00", "00", "10", "11"]);
/// // Three keys were seen before: the queries stand at 3 and 4.
/// assert_eq!(table(Alignment::Offset(3), 2, 4), ["1111", "1111"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alignment {
    /// The first query stands at position 0 (torch's `is_causal`).
    TopLeft,
    /// The last query stands at the last key, which with key lengths is the last one that counts.
    BottomRight,
    /// The first query stands at this position, which may be negative.
    Offset(i64),
}

/// How far a query sees, in positions, itself not counted: `None` is no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// How many positions before its own.
    pub left: Option<u64>,
    /// How many positions after its own.
    pub right: Option<u64>,
}

/// A rectangle of query-key pairs that a closure is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The batch, counted flat over all batch axes.
    pub batch: usize,
    /// The query head.
    pub head: usize,
    /// The positions of the queries.
    pub queries: Range<i64>,
    /// The positions of the keys.
    pub keys: Range<i64>,
}

impl Region {
    /// How many pairs it holds.
    pub fn len(&self) -> usize {
        (self.queries.end - self.queries.start) as usize * self.width()
    }

    /// Whether it holds no pair.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys it holds: the distance between two queries in the buffer to fill.
    pub fn width(&self) -> usize {
        (self.keys.end - self.keys.start) as usize
    }
}

/// What a closure knows of a [`Region`] without looking at each pair, so that structure saves work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// No pair is visible.
    Empty,
    /// Every pair is visible (for a bias: none is masked).
    Full,
    /// Some may be; ask for each.
    Mixed,
}

/// A mask that is computed instead of stored. Any `Fn(&Region, &mut [bool]) + Sync` is one.
///
/// The answer for a pair must depend only on batch, head and the two positions: the same pair is asked about in
/// regions of many sizes, from several threads.
pub trait MaskFn: Sync {
    /// Sets `visible[query * region.width() + key]` for each pair, counted from the region's start; all are true on
    /// entry, and true is “may attend”.
    fn fill(&self, region: &Region, visible: &mut [bool]);

    /// What is known of the region as a whole.
    fn hint(&self, _region: &Region) -> Hint {
        Hint::Mixed
    }
}

impl<F: Fn(&Region, &mut [bool]) + Sync> MaskFn for F {
    fn fill(&self, region: &Region, visible: &mut [bool]) {
        self(region, visible);
    }
}

/// Everything that says which query may attend which key, checked.
pub(crate) struct Visibility<'a> {
    pub(crate) causal: bool,
    pub(crate) window: Window,
    pub(crate) key_offset: i64,
    /// One for each batch, or one for all.
    pub(crate) batches: SmallVec<[Batch; 1]>,
    pub(crate) segments: Option<Segments>,
    pub(crate) dense: Vec<Dense<'a>>,
    pub(crate) closures: &'a [&'a dyn MaskFn],
}

/// What differs from batch to batch.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) query_offset: i64,
    /// Keys in slots from here on do not exist.
    pub(crate) key_length: usize,
    /// Keys at positions below this are open to every query, whatever the causal order says.
    pub(crate) prefix: i64,
}

impl<'a> Visibility<'a> {
    fn batch(&self, batch: usize) -> &Batch {
        &self.batches[batch.min(self.batches.len() - 1)]
    }

    /// Whether a query may attend a key, from the definitions.
    pub(crate) fn sees(&self, pair: Pair) -> bool {
        let Pair { batch, head, query, key } = pair;
        let of_batch = self.batch(batch);
        let (query_position, key_position) = self.positions(pair);
        let exists = key < of_batch.key_length;
        let ordered = !self.causal || key_position <= query_position || key_position < of_batch.prefix;
        let bound = if key_position <= query_position { self.window.left } else { self.window.right };
        let near = bound.is_none_or(|bound| query_position.abs_diff(key_position) <= bound);
        exists
            && ordered
            && near
            && self.segments.as_ref().is_none_or(|segments| segments.agree(batch, query, key))
            && self.dense.iter().all(|mask| Planes::at(&mask.planes.get(batch, head), query, key))
            && self.closures.iter().all(|closure| {
                let mut visible = [true];
                closure.fill(&self.region(&pair.into()), &mut visible);
                visible[0]
            })
    }

    /// Where a query and a key stand.
    pub(crate) fn positions(&self, pair: Pair) -> (i64, i64) {
        (self.batch(pair.batch).query_offset + pair.query as i64, self.key_offset + pair.key as i64)
    }

    /// The keys that order, window and length leave to a query: they follow one another. Both ends grow with the
    /// query.
    pub(crate) fn keys(&self, batch: usize, query: usize) -> Range<usize> {
        let of_batch = self.batch(batch);
        let position = of_batch.query_offset + query as i64;
        let slot = |position: i64| -> usize {
            position.saturating_sub(self.key_offset).clamp(0, of_batch.key_length as i64) as usize
        };
        let (mut start, mut end) = (0, of_batch.key_length);
        if self.causal {
            end = slot(position.saturating_add(1).max(of_batch.prefix));
        }
        if let Some(right) = self.window.right {
            end = end.min(slot(position.saturating_add_unsigned(right).saturating_add(1)));
        }
        if let Some(left) = self.window.left {
            start = slot(position.saturating_sub_unsigned(left));
        }
        start..end
    }

    /// The keys that order, window and length leave to any query of some rows.
    pub(crate) fn keys_of_rows(&self, batch: usize, rows: &Range<usize>) -> Range<usize> {
        let first = self.keys(batch, rows.start);
        let last = self.keys(batch, rows.end - 1);
        first.start..last.end.max(first.start)
    }

    pub(crate) fn sort(&self, tile: &Tile) -> Sort {
        let first = self.keys(tile.batch, tile.rows.start);
        let last = self.keys(tile.batch, tile.rows.end - 1);
        let mut sort = if first.start >= tile.keys.end || last.end <= tile.keys.start {
            Sort::Empty
        } else if last.start <= tile.keys.start && tile.keys.end <= first.end {
            Sort::Full
        } else {
            Sort::Mixed
        };
        if let Some(segments) = &self.segments {
            sort = sort.and(|| segments.sort(tile));
        }
        for mask in &self.dense {
            sort = sort.and(|| mask.tiles.sort(mask.planes.index(tile.batch, tile.head), tile));
        }
        for closure in self.closures {
            sort = sort.and(|| closure.hint(&self.region(tile)).into());
        }
        sort
    }

    /// Writes which keys of a tile each of its queries sees, a word for each; `scratch` serves the closures.
    pub(crate) fn fill(&self, tile: &Tile, visible: &mut [Visible], scratch: &mut Vec<bool>) {
        for (visible, query) in visible.iter_mut().zip(tile.rows.clone()) {
            *visible = visible_within(&tile.keys, self.keys(tile.batch, query));
        }
        let mut row_of_bools = [false; TILE];
        let row_of_bools = &mut row_of_bools[..tile.keys.len()];
        if let Some(segments) = &self.segments {
            for (visible, query) in visible.iter_mut().zip(tile.rows.clone()) {
                for (agrees, key) in row_of_bools.iter_mut().zip(tile.keys.clone()) {
                    *agrees = segments.agree(tile.batch, query, key);
                }
                *visible &= visible_where(row_of_bools);
            }
        }
        for mask in &self.dense {
            let plane = mask.planes.get(tile.batch, tile.head);
            let of_row = Planes::rows_of(&plane, tile);
            for (row, visible) in visible.iter_mut().enumerate() {
                *visible &= match &of_row {
                    Some(of_row) => {
                        let stored = of_row(row);
                        // The next tile's follow in memory.
                        prefetch_after(stored);
                        visible_where(stored)
                    }
                    None => {
                        for (stored, key) in row_of_bools.iter_mut().zip(tile.keys.clone()) {
                            *stored = Planes::at(&plane, tile.rows.start + row, key);
                        }
                        visible_where(row_of_bools)
                    }
                };
            }
        }
        for closure in self.closures {
            let region = self.region(tile);
            scratch.clear();
            scratch.resize(region.len(), true);
            closure.fill(&region, scratch);
            for (visible, written) in visible.iter_mut().zip(scratch.chunks_exact(region.width())) {
                *visible &= visible_where(written);
            }
        }
    }

    /// The tile as closures are asked about it: in positions.
    pub(crate) fn region(&self, tile: &Tile) -> Region {
        let query = |slot: usize| self.batch(tile.batch).query_offset + slot as i64;
        let key = |slot: usize| self.key_offset + slot as i64;
        Region {
            batch: tile.batch,
            head: tile.head,
            queries: query(tile.rows.start)..query(tile.rows.end),
            keys: key(tile.keys.start)..key(tile.keys.end),
        }
    }
}

/// A stored boolean mask: true is “may attend”.
pub(crate) struct Dense<'a> {
    pub(crate) planes: Planes<'a, bool>,
    pub(crate) tiles: TileMap,
}

/// Packed documents: a query attends the keys that carry its own id.
pub(crate) struct Segments {
    /// `(batches or 1, len_query)` and `(batches or 1, len_key)`.
    query: Array2<i64>,
    key: Array2<i64>,
    query_ranges: Array2<(i64, i64)>,
    key_ranges: Array2<(i64, i64)>,
    key_phase: usize,
}

impl Segments {
    pub(crate) fn new(query: Array2<i64>, key: Array2<i64>, key_offset: i64) -> Self {
        let key_phase = TileMap::phase(key_offset);
        let query_ranges = ranges(query.view(), 0);
        let key_ranges = ranges(key.view(), key_phase);
        Self { query, key, query_ranges, key_ranges, key_phase }
    }

    fn agree(&self, batch: usize, query: usize, key: usize) -> bool {
        self.query[[self.row(&self.query, batch), query]] == self.key[[self.row(&self.key, batch), key]]
    }

    fn row<T>(&self, ids: &Array2<T>, batch: usize) -> usize {
        if ids.nrows() == 1 { 0 } else { batch }
    }

    /// From the smallest and largest id of the block of queries and of the tile of keys.
    fn sort(&self, tile: &Tile) -> Sort {
        let row_block = tile.rows.start / TileMap::BLOCK;
        let key_block = (tile.keys.start + self.key_phase) / TileMap::BLOCK;
        let (query_low, query_high) = self.query_ranges[[self.row(&self.query, tile.batch), row_block]];
        let (key_low, key_high) = self.key_ranges[[self.row(&self.key, tile.batch), key_block]];
        if query_high < key_low || key_high < query_low {
            Sort::Empty
        } else if query_low == query_high && key_low == key_high {
            Sort::Full
        } else {
            Sort::Mixed
        }
    }
}

/// The smallest and largest id of each block; the first block is shorter by `phase`.
fn ranges(ids: ArrayView2<'_, i64>, phase: usize) -> Array2<(i64, i64)> {
    let blocks = (ids.ncols() + phase).div_ceil(TileMap::BLOCK);
    let mut ranges = Array2::from_elem((ids.nrows(), blocks), (i64::MAX, i64::MIN));
    for ((row, column), &id) in ids.indexed_iter() {
        let (low, high) = &mut ranges[[row, (column + phase) / TileMap::BLOCK]];
        *low = id.min(*low);
        *high = id.max(*high);
    }
    ranges
}
