//! Rows to columns, for numbers that are to stand in lanes.

use super::{Ahead, PADDING, Register};
use crate::element::{Element, Real};

/// Widens [`LANES`](super::Vector::LANES) rows and writes them as columns: number `column` of row `i` goes to
/// `to[column * stride + i]`. Done for as many columns as fill whole vectors of the shortest row; returns their number.
///
/// # Panics
/// If there are fewer rows, or `to` is too short.
#[inline(always)]
pub(crate) fn transpose<T: Element, V: Register<Lane = T::Accumulator>>(
    rows: &[&[T]],
    to: &mut [T::Accumulator],
    stride: usize,
    ahead: Ahead<'_>,
) -> usize {
    let rows = &rows[..V::LANES];
    let mut shortest = usize::MAX;
    for row in rows {
        shortest = shortest.min(row.len());
    }
    let columns = shortest / V::LANES * V::LANES;
    if columns == 0 {
        return 0;
    }
    assert!((columns - 1).saturating_mul(stride).saturating_add(V::LANES) <= to.len());
    let lines = ahead.lines_for_each_of(columns / V::LANES);
    for (at, first) in (0..columns).step_by(V::LANES).enumerate() {
        ahead.ask_for(at * lines..(at + 1) * lines);
        let mut square = [V::splat(V::Lane::ZERO); PADDING];
        for (row, vector) in rows.iter().zip(&mut square) {
            // SAFETY: the shortest row has all columns.
            *vector = T::load(unsafe { row.get_unchecked(first..first + V::LANES) });
        }
        V::transpose(&mut square);
        for (column, vector) in square[..V::LANES].iter().enumerate() {
            let at = (first + column) * stride;
            // SAFETY: the assertion above is for the last of all columns.
            vector.store(unsafe { to.get_unchecked_mut(at..at + V::LANES) });
        }
    }
    columns
}
