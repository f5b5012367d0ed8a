// The line under a map: the pair that is pointed at and its number, or what stands for the many pairs in a pixel.

import { element, sentence } from './dom.js';
import { number } from './numbers.js';
import { BLOCK } from './cell-numbers.js';
import { SHOWN } from './legend.js';

/** `cell` is a `{query, key}`, one of them `null` on a ruler; `bin` pairs on a side share its pixel. */
function tellCell({ cell, bin, of, pool, map, names, numbers }) {
  const { query, key } = cell;
  if (query === null || key === null) return query === null ? names.said('key', key) : names.said('query', query);
  const pair = [...names.said('query', query), ' → ', ...names.said('key', key)];
  if (bin === 1) {
    const x = numbers.at(query, key);
    return x === null ? pair : [...pair, `: ${SHOWN[of].name} `, x === undefined ? '…' : number(x)];
  }
  const how = pool === 'mean' ? 'the mean' : SHOWN[of].large;
  const shared = `, in a pixel for ${bin} × ${bin} pairs`;
  if (bin > BLOCK || map.bin !== null) return [...pair, `${shared}: ${how} gives its colour`];
  const most = summary({ cell, bin, map, numbers, farthest: of === 'scores' || of === 'scaled' });
  if (most === null) return [...pair, `${shared}: …`];
  if (pool === 'mean') return [...pair, `${shared} of mean ${number(most.mean)}`];
  return [...pair, `${shared}; ${how} is ${number(most.x)}, `, ...names.said('query', most.query), ' → ', ...names.said('key', most.key)];
}

/** Of the pairs in a pixel. NaN is the largest, as on the map. */
function summary({ cell, bin, map, numbers, farthest }) {
  const size = (x) => (farthest ? Math.abs(x) : x);
  const start = (at) => at - (at % bin);
  let [most, sum, count] = [null, 0, 0];
  for (let query = start(cell.query); query < Math.min(start(cell.query) + bin, map.lenQuery); query += 1) {
    for (let key = start(cell.key); key < Math.min(start(cell.key) + bin, map.lenKey); key += 1) {
      const x = numbers.at(query, key);
      if (typeof x !== 'number') return null;
      [sum, count] = [sum + x, count + 1];
      const larger = most === null || Number.isNaN(x) || (!Number.isNaN(most.x) && size(x) > size(most.x));
      if (larger) most = { x, query, key };
    }
  }
  return { ...most, mean: sum / count };
}

class Readout {
  constructor() {
    this.line = element('p', { class: 'readout' });
    // Pointing with a mouse would be read aloud without end; pointing with keys is.
    this.aloud = element('p', { class: 'unseen', 'aria-live': 'polite' });
    this.element = element('div', { class: 'readouts' }, this.line, this.aloud);
  }

  /** Parts of a sentence, or `null` for what else there is to say. */
  show(parts, usual, byKeys) {
    this.line.classList.toggle('idle', parts === null);
    this.line.replaceChildren(...sentence(parts ?? [usual]));
    if (byKeys && parts !== null) this.aloud.replaceChildren(...sentence(parts));
  }
}

export { tellCell, Readout };
