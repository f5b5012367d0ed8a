// What a source answers, checked: numbers that are numbers (NaN and infinities come as texts), labels that are texts.

import { readNumber } from './engine.js';

const SCALE_KINDS = ['square-root', 'linear', 'diverging'];
const LONGEST_LABEL = 200;

/** A number of the table: `null` where there is none. */
const readMaybe = (value) => (value === null || value === undefined ? null : readNumber(value));

const readLabel = (text) => (typeof text === 'string' ? text.slice(0, LONGEST_LABEL) : null);

function readCount(value, name) {
  if (!Number.isSafeInteger(value) || value < 0) throw new TypeError(`the answer’s ${name} is no count`);
  return value;
}

function readArray(value, name) {
  if (!Array.isArray(value)) throw new TypeError(`the answer has no ${name}`);
  return value;
}

/** `{title, batches, layers: [{layer, heads, len_query, …}]}`. */
function readInput(answer) {
  const layers = readArray(answer?.layers, 'layers').map((one) => ({
    layer: one.layer === null ? null : readCount(one.layer, 'layer'),
    heads: readCount(one.heads, 'heads'),
    keyHeads: readCount(one.key_heads ?? one.heads, 'key_heads'),
    lenQuery: readCount(one.len_query, 'len_query'),
    lenKey: readCount(one.len_key, 'len_key'),
    dim: readCount(one.dim ?? 0, 'dim'),
    scale: readMaybe(one.scale),
    masks: (one.masks ?? []).map(String),
  }));
  return { title: readLabel(answer.title) ?? '', batches: Math.max(1, readCount(answer.batches, 'batches')), layers };
}

function readTokens(answer) {
  const labels = (list) => (Array.isArray(list) ? list.map((text) => readLabel(text) ?? '') : null);
  return { keys: labels(answer?.keys), queries: labels(answer?.queries) };
}

function readHeadRow(row, names) {
  const read = { layer: row.layer ?? null, head: readCount(row.head, 'head') };
  for (const name of names) read[name] = readMaybe(row[name]);
  return read;
}

/** `{kind, low, high, above, colours}`; `above`: there are numbers beyond the high end. */
function readColours(scale) {
  const colours = readArray(scale?.colours, 'colours').map(String);
  const proper = colours.length > 1 && colours.every((one) => /^#[0-9a-f]{6}$/i.test(one));
  if (!SCALE_KINDS.includes(scale.kind) || !proper) throw new TypeError('the answer has no scale of colours');
  return { kind: scale.kind, low: readNumber(scale.low), high: readNumber(scale.high), above: scale.above === true, colours };
}

/**
 * What a map is. Levels from `ready` on can be asked for while the others are being built: none, if that is more than there are.
 * `minLevel` is the farthest that there is.
 */
function readMap(answer) {
  const levels = Math.max(1, readCount(answer?.levels, 'levels'));
  const [done, total] = [readCount(answer.done ?? 0, 'done'), readCount(answer.total ?? 0, 'total')];
  return {
    lenQuery: readCount(answer.len_query, 'len_query'),
    lenKey: readCount(answer.len_key, 'len_key'),
    tile: readCount(answer.tile, 'tile'),
    levels,
    scale: readColours(answer.scale),
    done,
    total,
    minLevel: 0,
    ready: done >= total ? 0 : (answer.ready ?? levels),
    bin: null,
  };
}

const readCells = (answer) => readArray(answer?.values, 'values').map((row) => readArray(row, 'values').map(readNumber));

function readPairs(list, kind) {
  return readArray(list, 'list').map((one) => ({
    at: readCount(one[kind], kind),
    token: readLabel(one.token),
    weight: readNumber(one.weight),
    influence: readMaybe(one.influence),
  }));
}

function readQuery(answer) {
  return {
    at: readCount(answer?.query, 'query'),
    token: readLabel(answer.token),
    mass: readNumber(answer.mass),
    entropy: readMaybe(answer.entropy),
    effectiveKeys: readMaybe(answer.effective_keys),
    distance: readMaybe(answer.distance),
    rest: readMaybe(answer.rest),
    lists: { weight: readPairs(answer.by_weight, 'key'), influence: readPairs(answer.by_influence, 'key') },
  };
}

/** `sampled`: those listed are all that an exported page knows of. */
function readKey(answer) {
  return {
    at: readCount(answer?.key, 'key'),
    token: readLabel(answer.token),
    received: readMaybe(answer.received),
    queries: answer.queries === null ? null : readCount(answer.queries, 'queries'),
    sampled: null,
    lists: { weight: readPairs(answer.by_weight, 'query') },
  };
}

export { readInput, readTokens, readHeadRow, readColours, readMap, readCells, readQuery, readKey };
