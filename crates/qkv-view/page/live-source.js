// The data of a live page: questions to the server, by fetch.
//
//     GET api/input                                                   title, batches, layers and their lengths
//     GET api/tokens?layer&batch                                      what keys and queries are called
//     GET api/heads?batch&from                                        the table's rows, as far as they are known
//     GET api/thumbnail?layer&head&batch                              a small picture
//     GET api/map?layer&head&batch&of&pool                            lengths, levels, scale of colours, progress
//     GET api/tile?…&level&x&y&low&high                               256 × 256 cells of a level, as a picture, in the scale's colours
//     GET api/cells?layer&head&batch&of&queries=A:B&keys=C:D          numbers, at most 64 × 64
//     GET api/query?layer&head&batch&query&count, api/key?…&key&count whom a query attends, who attends a key
//
// `layer` is left out where the input has none. Errors are `{"error": words}`.

import { RequestCache } from './request-cache.js';
import { HEAD_COLUMNS } from './columns.js';
import { readInput, readTokens, readHeadRow, readMap, readCells, readQuery, readKey } from './answers.js';

/** Answers kept, and pictures (256 kB each at most). */
const ANSWERS_KEPT = 400;
const PICTURES_KEPT = 160;

class LiveSource {
  constructor() {
    this.answers = new RequestCache(ANSWERS_KEPT);
    this.pictures = new RequestCache(PICTURES_KEPT);
    /** What maps may show, and how they are pooled. */
    this.offers = { of: ['weights', 'scores', 'scaled', 'influence', 'mask'], pool: ['max', 'mean'] };
    this.live = true;
  }

  input(signal) {
    return this.json('input', {}, readInput, signal);
  }

  tokens({ layer, batch }, signal) {
    return this.json('tokens', { layer, batch }, readTokens, signal);
  }

  /** Not kept: there are more each time. */
  async heads(batch, from, signal) {
    const answer = await askServer(address('heads', { batch, from }), signal).then((got) => got.json());
    const names = HEAD_COLUMNS.map((column) => column.name);
    return { total: answer.total, rows: answer.rows.map((row) => readHeadRow(row, names)) };
  }

  thumbnail(place, signal) {
    return this.picture('thumbnail', place, signal);
  }

  /** Not kept until it is whole. */
  async map(place, of, pool, signal) {
    const url = address('map', { ...place, of, pool });
    if (this.answers.kept.has(url)) return this.answers.kept.get(url);
    const map = readMap(await askServer(url, signal).then((got) => got.json()));
    if (map.done >= map.total) this.answers.keep(url, map);
    return map;
  }

  /** In the colours of a scale: that of the map which is shown, for it changes while a map is built. */
  tile(place, of, pool, { level, x, y, scale }, signal) {
    const { low, high } = scale;
    return this.picture('tile', { ...place, of, pool, level, x, y, low, high }, signal);
  }

  /** Numbers of `[from, to)` queries and keys. */
  cells(place, of, queries, keys, signal) {
    const ranges = { queries: queries.join(':'), keys: keys.join(':') };
    return this.json('cells', { ...place, of, ...ranges }, readCells, signal);
  }

  query(place, query, count, signal) {
    return this.json('query', { ...place, query, count }, readQuery, signal);
  }

  key(place, key, count, signal) {
    return this.json('key', { ...place, key, count }, readKey, signal);
  }

  json(path, parameters, read, signal) {
    const url = address(path, parameters);
    return this.answers.get(url, async (stop) => read(await (await askServer(url, stop)).json()), signal);
  }

  picture(path, parameters, signal) {
    const url = address(path, parameters);
    return this.pictures.get(url, async (stop) => createImageBitmap(await (await askServer(url, stop)).blob()), signal);
  }
}

function address(path, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined);
  const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `api/${path}${query === '' ? '' : `?${query}`}`;
}

/** A good answer, or an error in the server's words. */
async function askServer(url, signal) {
  const answer = await fetch(url, { signal }).catch((error) => {
    throw error.name === 'AbortError' ? error : new Error('the server does not answer: is `qkv view` still running?');
  });
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => null);
  throw new Error(typeof told?.error === 'string' ? told.error : `the server answered ${answer.status}`);
}

export { LiveSource };
