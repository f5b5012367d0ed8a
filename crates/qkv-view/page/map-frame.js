// Where cells are on the screen.
//
// A frame is `{left, top, scale, width, height}`: the key and query at the corner (with fractions), pixels a cell, and the
// size in pixels. A cell is `{query, key}`.

/** More pixels a cell show nothing more. */
const CLOSEST = 96;

const keyAt = (frame, x) => frame.left + x / frame.scale;
const queryAt = (frame, y) => frame.top + y / frame.scale;
const xOf = (frame, key) => (key - frame.left) * frame.scale;
const yOf = (frame, query) => (query - frame.top) * frame.scale;

/** The cell at a point, or `null` beside the map. */
function cellAt(frame, { lenQuery, lenKey }, x, y) {
  const [query, key] = [Math.floor(queryAt(frame, y)), Math.floor(keyAt(frame, x))];
  return query >= 0 && query < lenQuery && key >= 0 && key < lenKey ? { query, key } : null;
}

/** Indices that are in sight, `[from, to)`. */
const queriesInSight = (frame, lenQuery) => clippedRange(queryAt(frame, 0), queryAt(frame, frame.height), lenQuery);
const keysInSight = (frame, lenKey) => clippedRange(keyAt(frame, 0), keyAt(frame, frame.width), lenKey);

function clippedRange(from, to, length) {
  const start = Math.min(Math.max(Math.floor(from), 0), length);
  return [start, Math.min(Math.max(Math.ceil(to), start), length)];
}

/** The view (middle and scale) that shows everything; of one that would be a hair, its beginning. */
function wholeView({ lenQuery, lenKey }, width, height) {
  const fit = Math.min(width / lenKey, height / lenQuery);
  const least = Math.min(16 / Math.min(lenKey, lenQuery), CLOSEST);
  if (fit >= least || fit * Math.min(lenKey, lenQuery) >= 8) return { query: lenQuery / 2, key: lenKey / 2, scale: fit };
  const middle = (length, size) => (length * least > size ? size / least / 2 : length / 2);
  return { query: middle(lenQuery, height), key: middle(lenKey, width), scale: least };
}

/** So many queries and keys a pixel of the picture stands for, at so many pixels a cell: pictures are not made smaller. */
const binAt = (scale) => 2 ** Math.max(0, Math.ceil(-Math.log2(scale) - 1e-9));

export { CLOSEST, keyAt, queryAt, xOf, yOf, cellAt, queriesInSight, keysInSight, wholeView, binAt };
