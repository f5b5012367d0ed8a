// The explorer's state and the URL: where one is, what is shown, what is pinned.
//
//     #explorer                                                     all heads
//     #explorer&layer=3&head=5&of=scores&at=120.5,14.5,32&q=120     one head: 32 pixels a cell around query 120, key 14
//
// A fragment is anybody's text: each part is checked by itself, and against the input.

import { HEAD_COLUMNS, BY_PLACE } from './columns.js';

const EXPLORER_LONGEST = 2000;
const SORTS = [BY_PLACE, ...HEAD_COLUMNS.map((column) => column.name)];
const COLLECTED = /^\d{1,15}$/;

/** All heads; nothing pinned. `view` is `null` for the whole map. `side`: of a pair, whose list is read. */
const allHeads = () => ({
  layer: null,
  head: null,
  batch: 0,
  of: 'weights',
  pool: 'max',
  view: null,
  query: null,
  key: null,
  side: 'query',
  by: 'weight',
  sort: BY_PLACE,
  up: false,
});

/** Without the `#`. */
function writeExplorer(state) {
  const first = allHeads();
  const parts = ['explorer'];
  const say = (name, value) => parts.push(`${name}=${value}`);
  if (state.head !== null) {
    if (state.layer !== null) say('layer', state.layer);
    say('head', state.head);
  }
  for (const name of ['batch', 'of', 'pool', 'sort']) if (state[name] !== first[name]) say(name, state[name]);
  if (state.up) say('up', 1);
  if (state.head === null) return parts.join('&');
  if (state.view !== null) say('at', writeView(state.view));
  if (state.query !== null) say('q', state.query);
  if (state.key !== null) say('k', state.key);
  for (const name of ['side', 'by']) if (state[name] !== first[name]) say(name, state[name]);
  return parts.join('&');
}

/** A state from any text at all, that fits the input and what its source offers. */
function readExplorer(fragment, input, offers) {
  const text = fragment.replace(/^#/, '');
  const given = new URLSearchParams(text.length > EXPLORER_LONGEST ? '' : text);
  const state = allHeads();
  const count = (name) => (COLLECTED.test(given.get(name) ?? '') ? Number(given.get(name)) : null);
  const below = (name, most) => (count(name) !== null && count(name) < most ? count(name) : null);
  const one = (name, choices, usual) => (choices.includes(given.get(name)) ? given.get(name) : usual);
  state.batch = below('batch', input.batches) ?? 0;
  state.of = one('of', offers.of, state.of);
  state.pool = one('pool', offers.pool, state.pool);
  state.sort = one('sort', SORTS, state.sort);
  state.up = given.get('up') === '1';
  const layer = input.layers.length === 1 ? input.layers[0] : input.layers.find((other) => other.layer === count('layer'));
  const head = layer ? (below('head', layer.heads) ?? (onlyHead(input) ? 0 : null)) : null;
  if (head === null) return state;
  Object.assign(state, { layer: layer.layer, head });
  state.query = below('q', layer.lenQuery);
  state.key = below('k', layer.lenKey);
  state.side = one('side', ['query', 'key'], state.query === null && state.key !== null ? 'key' : 'query');
  state.by = one('by', ['weight', 'influence'], 'weight');
  state.view = readView(given.get('at'), layer);
  return state;
}

/** Of one head there is nothing to choose. */
const onlyHead = ({ layers }) => layers.length === 1 && layers[0].heads === 1;

/** A view is `{query, key, scale}`: what is in its middle, and pixels a cell. */
function writeView({ query, key, scale }) {
  // A tenth of a pixel is exact enough, and the same when it is read and written again.
  const digits = Math.max(0, Math.ceil(Math.log10(scale) + 1));
  return `${Number(query.toFixed(digits))},${Number(key.toFixed(digits))},${Number(scale.toPrecision(4))}`;
}

function readView(text, { lenQuery, lenKey }) {
  const numbers = (text ?? '').split(',').map((part) => (/^\d{1,12}(\.\d{1,9})?(e-\d)?$/.test(part) ? Number(part) : NaN));
  const [query, key, scale] = numbers;
  const inside = numbers.length === 3 && query >= 0 && query <= lenQuery && key >= 0 && key <= lenKey;
  return inside && scale > 0 && scale < 1e4 ? { query, key, scale } : null;
}

export { allHeads, onlyHead, writeExplorer, readExplorer };
