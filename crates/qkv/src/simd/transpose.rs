//! Rows to columns, for numbers that are to stand in lanes.

use super::Register;
use crate::element::Element;

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
    for first in (0..columns).step_by(V::LANES) {
        V::transpose(
            // SAFETY: `i` is below the lanes, as many as there are rows, and each row has the columns.
            |i| T::load(unsafe { rows.get_unchecked(i).get_unchecked(first..first + V::LANES) }),
            |column, lanes: V| {
                let at = (first + column) * stride;
                // SAFETY: `column` is below the lanes, and the assertion above is for the last of all columns.
                lanes.store(unsafe { to.get_unchecked_mut(at..at + V::LANES) });
            },
        );
    }
    columns
}
