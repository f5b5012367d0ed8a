// What queries and keys of a map are called, and where a query's own token is among the keys.

import { visibleWord } from './labels.js';

class Names {
  constructor({ keys, queries }) {
    this.keys = keys;
    this.queries = queries;
    this.offset = offsetOf(keys, queries);
  }

  /** The words of one side, by `query` or `key`; `null` where there are none. */
  words(side) {
    return side === 'query' ? this.queries : this.keys;
  }

  /** In a sentence: `['query 12 ', {text, place}]`. */
  said(side, at) {
    const word = this.words(side)?.[at];
    return word === undefined || word === null ? [`${side} ${at}`] : [`${side} ${at} `, { text: visibleWord(word), place: '' }];
  }

  /** The query of a key's token, or `null`. */
  queryOf(key) {
    const query = this.offset === null ? -1 : key - this.offset;
    return query >= 0 && query < this.queries.length ? query : null;
  }

  keyOf(query) {
    return this.offset === null ? null : query + this.offset;
  }
}

/** Where the queries' tokens stand among the keys': at the end, as with a cache, or at the start. */
function offsetOf(keys, queries) {
  if (keys === null || queries === null) return null;
  const fits = (offset) => offset >= 0 && queries.every((word, at) => word === keys[at + offset]);
  return [keys.length - queries.length, 0].find(fits) ?? null;
}

export { Names };
