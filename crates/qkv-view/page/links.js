// What belongs together: from the place that is pointed at to what lights up in each matrix.
//
// A point is `{figure, query, key, column}`: a query (its rows), a key (its rows, and its column of pairs), both (one
// score), and the column of a vector's number where one is pointed at. `figure` is where the pointer is.

/** Matrices with a number for each pair of query and key, a row for each query, a row for each key. */
const PAIRS = ['scores', 'scaled', 'masked', 'weights'];
const BY_QUERY = ['q', 'average', 'output'];
const BY_KEY = ['k', 'v'];
const LEARNED = { w_q: 'q', w_k: 'k', w_v: 'v' };

/** The point of a place in a matrix: heads have no row or no column. `null` where it means nothing. */
function pointOf(figure, { row, column }) {
  if (PAIRS.includes(figure)) return { figure, query: row, key: column, column: null };
  if (figure in LEARNED) return column === null ? null : { figure, query: null, key: null, column, row };
  if (row === null) return null;
  return BY_KEY.includes(figure)
    ? { figure, query: null, key: row, column }
    : { figure, query: row, key: null, column };
}

/** `{rows, columns, cell, shade}` of a matrix. `weights` shade keys and values by what the query gives them. */
function marksOf(figure, point, weights) {
  const marks = { rows: new Set(), columns: new Set(), cell: null, shade: null };
  if (point === null) return marks;
  const { query, key, column } = point;
  const [asks, found] = [query !== null, key !== null];
  if (PAIRS.includes(figure)) {
    if (asks) marks.rows.add(query);
    if (found && !asks) marks.columns.add(key);
    if (found && asks) marks.cell = [query, key];
  }
  if ((BY_QUERY.includes(figure) || figure === 'x') && asks) marks.rows.add(query);
  if ((BY_KEY.includes(figure) || figure === 'x') && found) marks.rows.add(key);
  // Of one score only the key counts, but its weight is one of many.
  if (asks && (figure === 'v' || (figure === 'k' && !found))) marks.shade = weights[query];
  markNumber(marks, figure, point, column);
  return marks;
}

/** One number of a vector, and the column that it is made with. */
function markNumber(marks, figure, point, column) {
  if (column === null) return;
  const place = point.query ?? point.key;
  if (figure === point.figure) {
    if (figure in LEARNED) marks.columns.add(column);
    else marks.cell = [place, column];
  }
  const made = LEARNED[figure];
  if (made === point.figure) marks.columns.add(column);
  if (LEARNED[point.figure] === figure) marks.columns.add(column);
  if (figure === 'v' && ['output', 'average'].includes(point.figure)) marks.columns.add(column);
}

export { PAIRS, LEARNED, pointOf, marksOf };
