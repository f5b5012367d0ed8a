// The five steps of attention, for lessons: from embeddings to the output, small enough to keep every number.
//
// It is the engine's arithmetic (NUMERICS.md), so that a page without an engine shows the same numbers: every result is
// rounded to f32, multiply-adds are rounded once, and up to 64 keys are one tile. Of f64's `exp`, rounded, the last bit
// may differ from the engine's.
//
//     Q, K, V = X·W_q, X·W_k, X·W_v     scores = Q·Kᵀ     scaled = scores · scale     masked: -∞ where hidden
//     weights = e^masked / its sum along the row          output = weights · V

import { f32, printed } from './numbers.js';

/** Tokens and columns that a lesson may have, at most: one tile of the engine. */
const MOST_TOKENS = 64;
const LARGEST = (2 - 2 ** -23) * 2 ** 127;
/** Below it the engine's exponential is 0. */
const LOWEST_EXPONENT = -87.3;

/** The product is exact in f64, so one rounding to f32 is left (but for its ties, once in some hundred million). */
const fusedAdd = (a, b, c) => f32(a * b + c);

/** Numbers in rows of equal length, as f32. `shape`: what is wanted, `null` where any is fine. */
function checkedMatrix(name, rows, shape) {
  const columns = Array.isArray(rows) && Array.isArray(rows[0]) ? rows[0].length : 0;
  const wanted = shape.map((count) => count ?? 'any').join(', ');
  const fits = (count, want) => count > 0 && count <= MOST_TOKENS && (want === null || want === count);
  if (!fits(columns, shape[1]) || !fits(rows.length, shape[0])) {
    const got = columns > 0 ? `${rows.length}, ${columns}` : 'no rows of numbers';
    throw new RangeError(`${name}: got (${got}), want (${wanted}), at most ${MOST_TOKENS} each`);
  }
  return rows.map((row) => {
    if (!Array.isArray(row) || row.length !== columns || !row.every((x) => typeof x === 'number')) {
      throw new RangeError(`${name}: want ${columns} numbers in each row`);
    }
    return row.map(f32);
  });
}

const column = (matrix, index) => matrix.map((row) => row[index]);
const dotProduct = (a, b) => a.reduce((sum, x, at) => fusedAdd(x, b[at], sum), 0);
const matrixProduct = (a, b) => a.map((row) => b[0].map((_, index) => dotProduct(row, column(b, index))));

/** A row of scores to the parts of its softmax: powers of e after the largest is taken off, and their sum. */
function exponentials(masked) {
  const visible = masked.filter((score) => score > -Infinity);
  const largest = visible.reduce((most, score) => Math.max(most, score), -Infinity);
  const shift = largest === -Infinity ? 0 : largest;
  const power = (score) => {
    // A hidden pair's is -∞ whatever the rest of its row holds.
    const exponent = f32(score - shift);
    return exponent < LOWEST_EXPONENT ? 0 : f32(Math.exp(exponent));
  };
  const powers = masked.map(power);
  return { powers, sum: powers.reduce((sum, x) => f32(sum + x), 0) };
}

/** The row's weights: they sum to 1, or to 0 where it may attend nothing. */
function softmaxRow(masked) {
  const { powers, sum } = exponentials(masked);
  return powers.map((power, key) => (masked[key] === -Infinity ? 0 : f32(power / sum)));
}

/** The values' mean by weight; 0 where the row may attend nothing. Hidden values are skipped: 0 · NaN would be NaN. */
function weightedMean(masked, values) {
  const { powers, sum } = exponentials(masked);
  return values[0].map((_, index) => {
    const add = (total, power, key) => (masked[key] === -Infinity ? total : fusedAdd(power, values[key][index], total));
    // Adding 0 takes the sign off a -0.
    return sum === 0 ? 0 : f32(powers.reduce(add, 0) / sum) + 0;
  });
}

/** The mean of the values that a row may attend, in f64; 0 where there are none. */
function plainMean(masked, values) {
  const visible = values.filter((_, key) => masked[key] !== -Infinity);
  return values[0].map((_, index) => column(visible, index).reduce((a, b) => a + b, 0) / Math.max(visible.length, 1));
}

/** The scale as the engine rounds it, and the formula as it is written. */
function scaleOf(scale, dim) {
  if (scale === null || scale === undefined) {
    return { factor: f32(1 / Math.sqrt(dim)), formula: `scaled = scores / √${dim}` };
  }
  if (typeof scale !== 'number' || !Number.isFinite(f32(scale))) {
    throw new RangeError(`scale: got ${scale}, want a finite number, or null for 1/√d`);
  }
  return { factor: f32(scale), formula: `scaled = scores · ${printed(scale)}` };
}

/**
 * All steps of `{x: (L, D), w_q, w_k: (D, d), w_v: (D, dᵥ), scale: number | null, causal}`, in the form in which
 * `qkv explain --json` prints them: `{steps: [{name, formula, shape, values}]}`.
 */
function attentionSteps(lesson) {
  const x = checkedMatrix('x', lesson.x, [null, null]);
  const w_q = checkedMatrix('w_q', lesson.w_q, [x[0].length, null]);
  const w_k = checkedMatrix('w_k', lesson.w_k, [x[0].length, w_q[0].length]);
  const w_v = checkedMatrix('w_v', lesson.w_v, [x[0].length, null]);
  const { factor, formula } = scaleOf(lesson.scale, w_q[0].length);

  const [q, k, v] = [w_q, w_k, w_v].map((weight) => matrixProduct(x, weight));
  const scores = q.map((query) => k.map((key) => dotProduct(query, key)));
  const scaled = scores.map((row) => row.map((score) => f32(score * factor) + 0));
  const hidden = (query, key) => lesson.causal === true && key > query;
  // A visible score stops at the lowest finite number, so that -∞ means hidden and nothing else; NaN stays.
  const mask = (score, query, key) => (hidden(query, key) ? -Infinity : score < -LARGEST ? -LARGEST : score);
  const masked = scaled.map((row, query) => row.map((score, key) => mask(score, query, key)));
  const average = masked.map((row) => plainMean(row, v));
  const weights = masked.map(softmaxRow);
  const output = masked.map((row) => weightedMean(row, v));

  const step = (name, text, values) => ({ name, formula: text, shape: [values.length, values[0].length], values });
  const hides = masked.some((row) => row.includes(-Infinity)) ? ', and -∞ where hidden' : '';
  return {
    steps: [
      step('average', 'average = mean of the rows of V that a query may read', average),
      step('q', 'Q = X · W_q', q),
      step('k', 'K = X · W_k', k),
      step('v', 'V = X · W_v', v),
      step('scores', 'scores = Q · Kᵀ', scores),
      step('scaled', formula, scaled),
      step('masked', `masked = scaled${hides}`, masked),
      step('weights', 'weights = e^masked / sum of e^masked along the row', weights),
      step('output', 'output = weights · V', output),
    ],
  };
}

export { MOST_TOKENS, attentionSteps, softmaxRow, weightedMean };
