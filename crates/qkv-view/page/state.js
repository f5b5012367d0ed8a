// The lesson's state and the URL: what differs from the first lesson is kept in the fragment, so that it can be linked.
//
//     #scale=0.3&causal=1&x=1,0;0.5,2&w=the&w=cat&at=s1,0&d=256
//
// A fragment is anybody's text. Each part is checked by itself; what is not a lesson is left as it was.

import { MOST_TOKENS } from './attention.js';
import { f32, shortest, parseNumber } from './numbers.js';
import { cutWord } from './labels.js';

const MOST_WORDS = 8;
const MOST_DIMENSION = 512;
const LONGEST_FRAGMENT = 8192;
const LARGEST_SCALE = 1000;

/** The state in which a page opens, of the lesson in its data. The data's lesson is checked by whoever computes it. */
function firstState(lesson) {
  const words = lesson.words ?? lesson.x.map((_, at) => String(at));
  return {
    words: words.map((word) => cutWord(String(word))),
    x: lesson.x.map((row) => row.map(f32)),
    scale: typeof lesson.scale === 'number' ? f32(lesson.scale) : null,
    causal: lesson.causal === true,
    point: null,
    dimension: 64,
  };
}

/** How many tokens there may be: the lesson's own if it has more. */
const mostTokens = (first) => Math.min(Math.max(MOST_WORDS, first.x.length), MOST_TOKENS);

const sameData = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/** Without the `#`; empty for the first lesson. */
function writeFragment(state, first) {
  const parts = [];
  if (state.scale !== first.scale) parts.push(`scale=${state.scale === null ? 'default' : shortest(state.scale)}`);
  if (state.causal !== first.causal) parts.push(`causal=${state.causal ? 1 : 0}`);
  if (!sameData(state.x, first.x)) parts.push(`x=${state.x.map((row) => row.map(shortest).join(',')).join(';')}`);
  if (!sameData(state.words, first.words)) {
    parts.push(...state.words.map((word) => `w=${encodeURIComponent(word.toWellFormed?.() ?? word)}`));
  }
  if (state.point !== null) parts.push(`at=${writePoint(state.point)}`);
  if (state.dimension !== first.dimension) parts.push(`d=${state.dimension}`);
  return parts.join('&');
}

/** A state from any text at all. */
function readFragment(fragment, first) {
  const text = fragment.replace(/^#/, '');
  const parameters = new URLSearchParams(text.length > LONGEST_FRAGMENT ? '' : text);
  const x = readRows(parameters.get('x'), first) ?? first.x.map((row) => row.slice());
  const words = parameters.getAll('w').map(cutWord);
  // Words that were meant for another number of tokens name none of these.
  const named = words.length === x.length;
  return {
    words: named ? words : x.map((_, at) => first.words[at] ?? String(at)),
    x,
    scale: readScale(parameters.get('scale'), first.scale),
    causal: { 0: false, 1: true }[parameters.get('causal')] ?? first.causal,
    point: readPoint(parameters.get('at'), x.length),
    dimension: readWhole(parameters.get('d'), 1, MOST_DIMENSION) ?? first.dimension,
  };
}

/** Whether a fragment is the explorer's, `#explorer&…`: the lesson leaves those alone. */
const isExplorers = (fragment) => /^#?explorer(&|$)/.test(fragment);

function readRows(text, first) {
  if (text === null) return null;
  const rows = text.split(';').map((row) => row.split(',').map(parseNumber));
  const columns = first.x[0].length;
  const fits = rows.length <= mostTokens(first) && rows.every((row) => row.length === columns && !row.includes(null));
  return fits ? rows : null;
}

function readScale(text, usual) {
  if (text === 'default') return null;
  const scale = text === null ? null : parseNumber(text);
  return scale === null || scale < 0 || scale > LARGEST_SCALE ? usual : scale;
}

/** A whole number in a range, or `null`. */
function readWhole(text, least, most) {
  const value = text !== null && /^\d{1,6}$/.test(text) ? Number(text) : NaN;
  return value >= least && value <= most ? value : null;
}

/** A query `q1`, a key `k0` or a score `s1,0`. */
function writePoint({ query, key }) {
  if (key === null) return `q${query}`;
  return query === null ? `k${key}` : `s${query},${key}`;
}

function readPoint(text, tokens) {
  const found = /^(?:q(\d+)|k(\d+)|s(\d+),(\d+))$/.exec(text ?? '');
  if (!found) return null;
  const place = (digits) => (digits === undefined ? null : readWhole(digits, 0, tokens - 1));
  const query = place(found[1] ?? found[3]);
  const key = place(found[2] ?? found[4]);
  const wanted = found[3] !== undefined ? query !== null && key !== null : query !== null || key !== null;
  return wanted ? { figure: null, query, key, column: null } : null;
}

export { MOST_DIMENSION, firstState, mostTokens, writeFragment, readFragment, isExplorers };
