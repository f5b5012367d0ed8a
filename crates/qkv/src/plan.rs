//! What a call will do, and why: the choice of path, and an account of the work that can be printed.

use std::fmt;
use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use crate::attention::Attention;
use crate::element::Element;
use crate::error::Error;
use crate::forward::{DECODE_QUERIES, DecodeScratch, PrefillScratch};
use crate::problem::{Path, Problem, Terms};
use crate::simd::Simd;
use crate::tile::{QUERY_BLOCK, Sort, TILE, Tile, TileMap, cut};

/// With fewer queries than this decode is faster, as measured with vectors of eight.
const FEW_QUERIES: usize = 8;

/// Multiplications and additions below which the caller's thread works alone. Measured with 8 heads of dim 64 on two cores: 24 queries
/// and keys (1.2 million) are done sooner by one thread, 32 (2.1 million) by two, since a thread takes tens of µs to wake up.
const ALONE: usize = 1 << 21;

/// How many threads work on some rows, over all batches and heads: 1, without asking for a pool, or all that there are. A forced
/// path has all, so that tests of small calls see threads too.
pub(crate) fn threads(terms: &Terms<'_>, rows: usize) -> usize {
    let small = is_small(rows, terms.len_key, terms.dim.saturating_add(terms.dim_value));
    if terms.path.is_none() && small { 1 } else { rayon::current_num_threads() }
}

fn is_small(rows: usize, len_key: usize, dims: usize) -> bool {
    // Pairs of vectors without numbers are looked at all the same.
    rows.saturating_mul(len_key).saturating_mul(2).saturating_mul(dims.max(1)) < ALONE
}

/// Whether a call of these queries, keys and values asks for threads, from their shapes alone, which need not fit; so do stored masks
/// and biases that are sorted by many threads.
pub(crate) fn asks_for_threads(attention: &Attention<'_>, shapes: [&[usize]; 3]) -> bool {
    let extent =
        |shape: &[usize], from_end: usize| shape.len().checked_sub(from_end).map_or(1, |axis| shape[axis]);
    let [query, key, value] = shapes;
    let lead = (3..=query.len()).map(|axis| shapes.map(|shape| extent(shape, axis)));
    let rows =
        lead.fold(extent(query, 2), |rows, own| rows.saturating_mul(own.into_iter().max().unwrap_or(1)));
    let dims = extent(key, 1).saturating_add(extent(value, 1));
    let stored = attention.masks.iter().map(|mask| mask.len());
    let mut stored = stored.chain(attention.biases.iter().map(|bias| bias.shape().iter().product()));
    attention.path.is_some()
        || !is_small(rows, extent(key, 2), dims)
        || stored.any(|cells| !TileMap::is_small(cells))
}

/// The path that serves a call, and the reason.
pub(crate) fn choose(terms: &Terms<'_>) -> (Path, &'static str) {
    terms.path.map_or_else(|| fastest(terms), |path| (path, "asked for"))
}

fn fastest(terms: &Terms<'_>) -> (Path, &'static str) {
    let (len_query, len_key) = (terms.len_query, terms.len_key);
    if len_query >= FEW_QUERIES {
        (Path::Prefill, "many queries: queries in the lanes")
    } else if len_key < TILE && len_query * TILE > FEW_QUERIES * len_key {
        // Decode always works on a whole tile of keys: here more of that is empty than of prefill's lanes.
        (Path::Prefill, "few keys: queries in the lanes")
    } else {
        (Path::Decode, "few queries: keys in the lanes")
    }
}

/// What makes a call slower than this machine could be, as the error of a [strict](crate::Attention::strict) one.
pub(crate) fn slowness<T: Element>(problem: &Problem<'_, T>) -> Option<Error> {
    const WANTED: &str = "a call that is as fast as it can be";
    let terms = &problem.terms;
    if terms.simd != Simd::best() {
        let got = format!("the instruction set {}, where this machine has {}", terms.simd, Simd::best());
        return Some(Error::value("strict", got, WANTED).mended_by("leave `simd` out"));
    }
    let (path, (fastest, _)) = (choose(terms).0, fastest(terms));
    if path != fastest {
        let got = format!("the path {path}, where {fastest} is faster");
        return Some(Error::value("strict", got, WANTED).mended_by("leave `path` out"));
    }
    for (argument, planes) in [("query", &problem.query), ("key", &problem.key), ("value", &problem.value)] {
        if !planes.rows_are_contiguous() {
            let got = format!("a {argument} that is read number by number, since its last axis has strides");
            return Some(Error::value("strict", got, WANTED).mended_by("as_standard_layout"));
        }
    }
    None
}

/// The spans of keys that the decode path works on apart, each with the number of the first tile of its node: aligned powers
/// of two of tiles, as many as keep all threads busy.
pub(crate) fn decode_spans(terms: &Terms<'_>, threads: usize) -> SmallVec<[(u64, Range<usize>); 1]> {
    let blocks = terms.len_query.div_ceil(DECODE_QUERIES);
    let tasks = (terms.batches * terms.heads / terms.group * blocks).max(1);
    let wanted = if threads == 1 { 1 } else { (2 * threads).div_ceil(tasks) };
    let key_offset = terms.visibility.key_offset;
    if wanted == 1 || terms.len_key == 0 {
        return smallvec![(key_offset as u64 / TILE as u64, 0..terms.len_key)];
    }
    let tiles = terms.len_key.div_ceil(TILE);
    let tiles_of_span = tiles.div_ceil(wanted).max(1).next_power_of_two();
    cut(0..terms.len_key, key_offset, tiles_of_span.saturating_mul(TILE))
        .map(|(number, keys)| (number * tiles_of_span as u64, keys))
        .collect()
}

/// How many tiles there are of each sort, over all batches and heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TileCounts {
    /// Nothing visible: skipped.
    pub empty: u64,
    /// Everything visible.
    pub full: u64,
    /// Masked pair by pair.
    pub mixed: u64,
}

/// An account of a call, which [`Display`](fmt::Display) prints.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// How rows are computed.
    pub path: Path,
    /// Why so.
    pub reason: &'static str,
    /// On which instructions.
    pub simd: Simd,
    /// On how many threads.
    pub threads: usize,
    /// Into how many tasks the work is cut.
    pub tasks: usize,
    /// What is skipped, done whole and done pair by pair.
    pub tiles: TileCounts,
    /// Multiplications and additions of the two products over all tiles that are not skipped.
    pub flops: u64,
    /// Bytes of queries, keys, values and output: what has to move at least.
    pub bytes: u64,
    /// Bytes of buffers over all threads.
    pub scratch_bytes: u64,
}

impl Plan {
    pub(crate) fn new<T: Element>(terms: &Terms<'_>) -> Self {
        let (path, reason) = choose(terms);
        let rows = match path {
            Path::Prefill => QUERY_BLOCK,
            Path::Decode => DECODE_QUERIES,
            Path::Scalar => 1,
        };
        // Without numbers there is nothing to do, however many tiles there would be.
        let empty = terms.len_query * (terms.dim + terms.dim_value) == 0 || terms.batches * terms.heads == 0;
        let (tiles, pairs) = if empty { Default::default() } else { count_tiles(terms, rows) };
        let heads = terms.batches * terms.heads;
        let threads = threads(terms, heads * terms.len_query);
        let spans = if path == Path::Decode { decode_spans(terms, threads).len() } else { 1 };
        let blocks = terms.len_query.div_ceil(rows);
        let tasks = match path {
            Path::Decode => heads / terms.group * blocks * spans,
            _ => heads * blocks,
        };
        let numbers = heads * terms.len_query * (terms.dim + terms.dim_value)
            + heads / terms.group * terms.len_key * (terms.dim + terms.dim_value);
        let tiles_of_row = terms.len_key.div_ceil(TILE);
        let (dim, dim_value) = (terms.dim, terms.dim_value);
        let scratch = match path {
            _ if empty => 0,
            Path::Prefill => PrefillScratch::<T::Accumulator>::bytes(dim, dim_value, tiles_of_row),
            Path::Decode => DecodeScratch::<T::Accumulator>::bytes(terms),
            Path::Scalar => (64 + 2) * (dim_value + 2) * size_of::<T::Accumulator>(),
        };
        // With more than one span, their states wait to be joined.
        let waiting = if spans > 1 { spans * heads * terms.len_query * (2 + dim_value) } else { 0 };
        Self {
            path,
            reason,
            simd: terms.simd,
            threads: threads.min(tasks).max(1),
            tasks,
            tiles,
            flops: 2 * pairs * (dim + dim_value) as u64,
            bytes: (numbers * size_of::<T>()) as u64,
            scratch_bytes: (scratch * threads.min(tasks) + waiting * size_of::<T::Accumulator>()) as u64,
        }
    }
}

/// Tiles by sort, and the pairs in those that are not empty. As in the kernels, tiles beyond the keys that order,
/// window and length leave to a block are not looked at.
fn count_tiles(terms: &Terms<'_>, rows: usize) -> (TileCounts, u64) {
    let mut counts = TileCounts::default();
    let mut pairs = 0;
    let offset = terms.visibility.key_offset;
    let phase = TileMap::phase(offset);
    let all = if terms.len_key == 0 { 0 } else { (terms.len_key + phase).div_ceil(TILE) as u64 };
    for batch in 0..terms.batches {
        for first in (0..terms.len_query).step_by(rows) {
            let queries = first..terms.len_query.min(first + rows);
            let seen = terms.visibility.keys_of_rows(batch, &queries);
            for head in 0..terms.heads {
                let mut looked_at = 0;
                for (_, keys) in cut(seen.clone(), offset, TILE) {
                    looked_at += 1;
                    let area = (queries.len() * keys.len()) as u64;
                    match terms.sort(&Tile { batch, head, rows: queries.clone(), keys }) {
                        Sort::Empty => counts.empty += 1,
                        Sort::Full => (counts.full, pairs) = (counts.full + 1, pairs + area),
                        Sort::Mixed => (counts.mixed, pairs) = (counts.mixed + 1, pairs + area),
                    }
                }
                counts.empty += all - looked_at;
            }
        }
    }
    (counts, pairs)
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TileCounts { empty, full, mixed } = self.tiles;
        writeln!(
            f,
            "path     {} ({}), {} on {}, {}",
            self.path,
            self.reason,
            self.simd,
            counted(self.threads, "thread"),
            counted(self.tasks, "task")
        )?;
        writeln!(f, "tiles    {full} full, {mixed} mixed, {empty} empty and skipped")?;
        write!(
            f,
            "work     {}, {} to move, {} of scratch",
            scaled(self.flops, "FLOP"),
            scaled(self.bytes, "B"),
            scaled(self.scratch_bytes, "B")
        )
    }
}

fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A number with the thousands it has: `0`, `65.5 kB`, `4.43 GFLOP`.
fn scaled(number: u64, unit: &str) -> String {
    let prefixes = ["", "k", "M", "G", "T", "P", "E"];
    let power = number.checked_ilog10().map_or(0, |log| log as usize / 3);
    let scaled = number as f64 / 1000f64.powi(power as i32);
    let decimals = if power == 0 || scaled >= 100.0 { 0 } else { 1 };
    format!("{scaled:.decimals$} {}{unit}", prefixes[power])
}
