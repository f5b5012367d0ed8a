// The columns of the table of heads: what each number is called, what it means, how it is written.

import { typeset } from './numbers.js';

/** Means over the queries that attend something. `share`: from 0 to 1, part of a query's weight. */
const HEAD_COLUMNS = [
  { name: 'entropy', digits: 2, says: 'How widely queries spread their weight, in nats. 0: each looks at one key only.' },
  { name: 'keys', digits: 1, says: 'The same as a number of keys: so many keys of equal weight would be as spread out. It is e to the entropy.' },
  { name: 'distance', digits: 1, says: 'How many positions lie between a query and what it looks at, on average by weight.' },
  { name: 'first', digits: 3, share: true, says: 'Weight on the very first key. Where a head has nothing to look for, its weight often rests there.' },
  { name: 'self', digits: 3, share: true, says: 'Weight of queries on their own position.' },
  { name: 'previous', digits: 3, share: true, says: 'Weight on the position just before.' },
  { name: 'same', digits: 3, share: true, says: 'Weight on the same token elsewhere in the text.' },
  { name: 'after', digits: 3, share: true, says: 'Weight on what came after an earlier copy of the token. Heads that do this can continue what they have seen before.' },
  { name: 'empty', digits: 0, says: 'How many queries may attend nothing at all.' },
  { name: 'nan', digits: 0, says: 'How many queries have weights that are NaN: no number.' },
];

/** The order in which heads are numbered. */
const BY_PLACE = 'place';

function columnText(column, value) {
  if (value === null || value === undefined) return '–';
  if (!Number.isFinite(value)) return typeset(String(value).replace('Infinity', 'inf').replace('NaN', 'nan'));
  const large = Math.abs(value) >= 1e6 ? value.toExponential(2).replace('e+', 'e') : value.toFixed(column.digits);
  return typeset(large);
}

/** Rows in a column's order, the largest first unless `up`. Those without a number come last, in their own order. */
function sortedHeads(rows, column, up) {
  if (column === BY_PLACE) return rows;
  const known = (row) => typeof row[column] === 'number' && !Number.isNaN(row[column]);
  const way = up ? 1 : -1;
  return [...rows].sort((a, b) => (known(a) && known(b) ? way * (a[column] - b[column]) || 0 : Number(known(b)) - Number(known(a))));
}

/** What a head is called. */
const headName = ({ layer, head }) => (layer === null ? `Head ${head}` : `Layer ${layer}, head ${head}`);

export { HEAD_COLUMNS, BY_PLACE, columnText, sortedHeads, headName };
