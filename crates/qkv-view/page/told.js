// What is pointed at, written out: the sums and products with their numbers. Sentences are lists of texts and names.

import { number, fixed } from './numbers.js';
import { entropyOf } from './measure.js';

/** Sums of more terms than this are written in part. */
const MOST_TERMS = 8;

/** `a · b + c · d`, or in part. `term(at)` is a list of texts and names. */
function writtenSum(count, term) {
  const shown = count <= MOST_TERMS ? count : MOST_TERMS - 1;
  const parts = [];
  for (let at = 0; at < shown; at += 1) parts.push(...(at > 0 ? [' + '] : []), ...term(at));
  return shown < count ? [...parts, ` + … (${count - shown} more)`] : parts;
}

const writtenVector = (row) => `[${row.map(number).join(', ')}]`;
const bracketed = (x) => (x < 0 ? `(${number(x)})` : number(x));
const product = (a, b) => `${number(a)} · ${bracketed(b)}`;
/** The product of two vectors, number by number. */
const writtenProduct = (a, b) => writtenSum(a.length, (at) => [product(a[at], b[at])]);
const matrixColumn = (matrix, column) => matrix.map((row) => row[column]);
const percent = (share) => `${fixed(100 * share, share < 0.0995 ? 1 : 0)} %`;

/** The keys that a query may read, best first. */
function visibleKeys(masked, row) {
  return row.map((_, key) => key).filter((key) => masked[key] !== -Infinity).sort((a, b) => row[b] - row[a]);
}

/** A query: whom it attends, and its weighted sum. */
function tellQuery({ steps, names }, { query }) {
  const name = names[query];
  const row = steps.weights.values[query];
  const masked = steps.masked.values[query];
  const keys = visibleKeys(masked, row);
  const output = writtenVector(steps.output.values[query]);
  if (row.some(Number.isNaN)) {
    return { title: ['Query ', name, ': its weights are not numbers, for a score is infinite or no number.'], lines: [] };
  }
  if (keys.length === 0) return { title: ['Query ', name, ' may attend nothing: its output is 0.'], lines: [] };
  const hidden = row.length - keys.length;
  const spread = Math.exp(entropyOf(row)).toFixed(1);
  const best = keys[0];
  const whom = keys.length === 1
    ? [' may read one key only, ', names[best], ', which gets all its weight']
    : keys.every((key) => row[key] === row[best])
    ? [` gives ${keys.length} keys the same weight`]
    : [' attends key ', names[best], ` most, with ${percent(row[best])} of its weight; as if ${spread} keys had equal shares`];
  const rest = hidden > 0 ? `; ${hidden} of ${row.length} keys ${hidden === 1 ? 'is' : 'are'} hidden from it.` : '.';
  const shown = keys.slice().sort((a, b) => a - b);
  const term = (at) => [`${fixed(row[shown[at]], 4)} · V[`, names[shown[at]], ']'];
  return {
    title: ['Query ', name, ...whom, rest],
    lines: [
      ['output[', name, '] = ', ...writtenSum(shown.length, term)],
      [`≈ ${output}`, `   (the plain average: ${writtenVector(steps.average.values[query])})`],
    ],
    shares: { row, names },
  };
}

/** One score: the two vectors that make it, and what becomes of it. */
function tellScore({ steps, names, scale }, { query, key }) {
  const at = (step) => steps[step].values[query][key];
  const pair = ['[', names[query], ', ', names[key], ']'];
  const formula = scale === null ? `/ √${steps.q.values[0].length}` : `· ${number(scale)}`;
  const [score, scaled, masked, weight] = ['scores', 'scaled', 'masked', 'weights'].map(at);
  const lines = [
    ['score', ...pair, ' = q[', names[query], '] · k[', names[key], '] = ', ...writtenProduct(steps.q.values[query], steps.k.values[key]), ` ≈ ${number(score)}`],
  ];
  const scaling = `scaled: ${number(score)} ${formula} ≈ ${number(scaled)}`;
  if (masked === -Infinity) {
    lines.push([`${scaling};  masked: −∞;  weight: e^(−∞) = 0`]);
    return { title: ['Query ', names[query], ' must not read key ', names[key], ': it comes later. Its score is replaced by −∞.'], lines };
  }
  lines.push([`${scaling};  weight: ${writtenShare(masked, weight, steps.masked.values[query])}`]);
  return { title: ['How well key ', names[key], ' fits query ', names[query], ': multiply number by number, and add up.'], lines, shares: { row: steps.weights.values[query], names, spot: key } };
}

/** `e^0.4804 / 6.7154 ≈ 0.2407`, or the weight alone where the powers are too large or small to write. */
function writtenShare(masked, weight, row) {
  const sum = row.reduce((total, score) => total + Math.exp(score), 0);
  if (weight > 0 && sum > 1e-3 && sum < 1e4) {
    return `e^${bracketed(masked)} / ${number(sum)} ≈ ${number(weight)}, where ${number(sum)} is the sum of its row's powers of e`;
  }
  return number(weight);
}

/** A key: who reads it. */
function tellKey({ steps, names }, { key, figure }) {
  const column = matrixColumn(steps.weights.values, key);
  const readers = column.map((_, query) => query).filter((query) => column[query] > 0);
  const given = readers.flatMap((query, at) => [at > 0 ? ', ' : '', names[query], ` ${fixed(column[query], 4)}`]);
  const what = figure === 'v' ? 'Value ' : 'Key ';
  return {
    title: [what, names[key], ': what each query gives it of its weight, down a column of the weights.'],
    lines: readers.length === 0 ? [['no query gives it any']] : [given],
  };
}

/** One number of a vector: the row and the column that make it. */
function tellNumber({ steps, names, x, weights }, { figure, query, key, column }) {
  const token = query ?? key;
  const row = names[token];
  const value = steps[figure]?.values[token][column];
  const start = (letter) => [`${letter}[`, row, `][${column}] = `];
  if (['q', 'k', 'v'].includes(figure)) {
    const made = writtenProduct(x[token], matrixColumn(weights[`w_${figure}`], column));
    return [...start(figure.toUpperCase()), ...made, ` ≈ ${number(value)}`];
  }
  if (figure === 'output') {
    const masked = steps.masked.values[token];
    const seen = masked.map((_, at) => at).filter((at) => masked[at] !== -Infinity);
    const term = (at) => [product(steps.weights.values[token][seen[at]], steps.v.values[seen[at]][column])];
    return [...start('output'), ...writtenSum(seen.length, term), ` ≈ ${number(value)}`];
  }
  return null;
}

/** `{title, lines, shares?}` of a point. */
function tell(scene, point) {
  const { query, key, column } = point;
  if (query === null && key === null) {
    const made = point.figure.slice(2).toUpperCase();
    return { title: [`Column ${column} of W_${made.toLowerCase()} makes column ${column} of ${made}, for all tokens alike. A model learns these numbers.`], lines: [] };
  }
  const told = query === null ? tellKey(scene, point) : key === null ? tellQuery(scene, point) : tellScore(scene, point);
  const more = column === null ? null : tellNumber(scene, point);
  return { ...told, lines: more === null ? told.lines : [...told.lines, more] };
}

export { tell };
