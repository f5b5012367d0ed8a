// The data of an exported page, which is all in the page: `explorer` of its data is
//
//     {
//       "input": {…},                           as api/input answers; `batches` counts those that are in the file
//       "tokens": [{"keys": […] | null, "queries": […] | null}, …],               as api/tokens answers, each once
//       "heads": [{
//         "layer": N | null, "head": N, "batch": N,
//         "row": {"entropy": x, …} | null,      the numbers of the table, as in api/heads
//         "tokens": N | null,                   which of `tokens`
//         "map": {                              one level of the pyramid of weights, pooled by their maximum
//           "png": "data:image/png;base64,…",   at most 512 × 512
//           "bin": 16,                          a power of 2: a pixel stands for so many queries and keys, at the ends for fewer
//           "scale": {…}                        as in api/map
//         },
//         "mass": […], "entropy": […], "distance": […] | null,         a number for each query
//         "by_weight": [[key, weight, influence, key, weight, influence, …], …] | null,
//                                               a list for each query, of at most 8 keys, say, the largest first
//         "by_influence": […] | null,           the same, by influence
//         "received": […] | null,               a number for each key
//         "values": [[…], …] | null             all weights, where they are few (4096, say)
//       }, …]
//     }
//
// NaN and infinities are texts, as in the live answers. Numbers may be rounded (4 significant digits are shown).

import { readNumber } from './engine.js';
import { HEAD_COLUMNS } from './columns.js';
import { RequestCache } from './request-cache.js';
import { readInput, readTokens, readHeadRow, readColours } from './answers.js';

const IMAGES_KEPT = 12;
const EMBEDDED_TILE = 256;
/** So many queries of a key are listed, as on the live page. */
const LISTED = 20;

class EmbeddedSource {
  constructor(data) {
    this.given = readInput(data?.input);
    if (!Array.isArray(data.heads) || data.heads.length === 0) throw new TypeError('the data holds no heads');
    this.named = (data.tokens ?? []).map(readTokens);
    this.entries = new Map(data.heads.map((head) => [entryName(head), head]));
    this.images = new RequestCache(IMAGES_KEPT);
    this.offers = { of: ['weights'], pool: ['max'] };
    this.live = false;
  }

  async input() {
    return this.given;
  }

  async tokens({ layer, batch }) {
    const entry = [...this.entries.values()].find((head) => (head.layer ?? null) === layer && head.batch === batch);
    return this.named[entry?.tokens] ?? { keys: null, queries: null };
  }

  async heads(batch, from) {
    const names = HEAD_COLUMNS.map((column) => column.name);
    const rows = [...this.entries.values()].filter((head) => head.batch === batch);
    return { total: rows.length, rows: rows.slice(from).map((head) => readHeadRow({ ...head.row, layer: head.layer, head: head.head }, names)) };
  }

  async thumbnail(place, signal) {
    return this.image(place, signal);
  }

  async map(place) {
    const { map } = this.entry(place);
    const { lenQuery, lenKey } = this.given.layers.find((one) => one.layer === place.layer);
    const levels = Math.ceil(Math.log2(Math.max(lenQuery, lenKey, 1))) + 1;
    if (!Number.isSafeInteger(Math.log2(map.bin))) throw new TypeError('the map’s bin is no power of 2');
    const level = Math.max(0, levels - 1 - Math.log2(map.bin));
    const built = { done: 0, total: 0, ready: level, minLevel: level, bin: map.bin };
    return { lenQuery, lenKey, tile: EMBEDDED_TILE, levels, scale: readColours(map.scale), ...built };
  }

  /** Of the one level that there is. */
  async tile(place, of, pool, { x, y }, signal) {
    const image = await this.image(place, signal);
    const canvas = document.createElement('canvas');
    canvas.width = Math.min(EMBEDDED_TILE, image.width - x * EMBEDDED_TILE);
    canvas.height = Math.min(EMBEDDED_TILE, image.height - y * EMBEDDED_TILE);
    canvas.getContext('2d').drawImage(image, -x * EMBEDDED_TILE, -y * EMBEDDED_TILE);
    return canvas;
  }

  /** `null`: they are not in the file. */
  async cells(place, of, queries, keys) {
    const { values } = this.entry(place);
    return values ? values.slice(...queries).map((row) => row.slice(...keys).map(readNumber)) : null;
  }

  async query(place, query) {
    const entry = this.listed(place);
    const names = await this.tokens(place);
    const list = (triples) => pairsOf(triples?.[query] ?? [], names.keys);
    const number = (numbers) => (numbers ? readNumber(numbers[query]) : null);
    const [mass, entropy] = [number(entry.mass), number(entry.entropy)];
    const weight = list(entry.by_weight);
    return {
      at: query,
      token: names.queries?.[query] ?? null,
      mass,
      entropy,
      effectiveKeys: entropy === null ? null : Math.exp(entropy),
      distance: number(entry.distance),
      rest: weight.reduce((rest, one) => rest - one.weight, mass),
      lists: { weight, influence: entry.by_influence ? list(entry.by_influence) : null },
    };
  }

  /** Who looks at a key is known of those queries that have it among their strongest. */
  async key(place, key) {
    const entry = this.listed(place);
    const names = await this.tokens(place);
    const found = [];
    entry.by_weight.forEach((triples, query) => {
      for (let at = 0; at < triples.length; at += 3) {
        if (triples[at] === key) found.push(...pairsOf([query, triples[at + 1], triples[at + 2]], names.queries));
      }
    });
    found.sort((a, b) => b.weight - a.weight);
    return {
      at: key,
      token: names.keys?.[key] ?? null,
      received: entry.received ? readNumber(entry.received[key]) : null,
      queries: null,
      sampled: Math.max(...entry.by_weight.map((triples) => triples.length / 3)),
      lists: { weight: found.slice(0, LISTED) },
    };
  }

  listed(place) {
    const entry = this.entry(place);
    if (!entry.by_weight) throw new Error('the file would be too large with the keys of each query; the live page (qkv view) has them');
    return entry;
  }

  entry(place) {
    const found = this.entries.get(entryName(place));
    if (!found) throw new Error('this head is not in the file');
    return found;
  }

  image(place, signal) {
    const load = async () => {
      const image = new Image();
      image.src = this.entry(place).map.png;
      await image.decode();
      return image;
    };
    return this.images.get(entryName(place), load, signal);
  }
}

const entryName = ({ layer, head, batch }) => `${layer ?? ''}/${head}/${batch ?? 0}`;

function pairsOf(triples, names) {
  const pairs = [];
  for (let at = 0; at + 2 < triples.length; at += 3) {
    const [place, weight, influence] = triples.slice(at, at + 3);
    pairs.push({ at: place, token: names?.[place] ?? null, weight: readNumber(weight), influence: readNumber(influence) });
  }
  return pairs;
}

export { EmbeddedSource };
