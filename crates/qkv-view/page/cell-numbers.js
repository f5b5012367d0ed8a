// Numbers of single cells, by blocks of 64 × 64, so that none is asked for twice.

const BLOCK = 64;
const BLOCKS_HELD = 48;

class CellNumbers {
  /** `arrived()` is called when there are new ones, `failed(error)` when they could not be had. */
  constructor({ arrived, failed }) {
    Object.assign(this, { arrived, failed });
    this.begin(null, null);
  }

  /** `fetchCells(queries, keys, signal)` for a map of these lengths. */
  begin(map, fetchCells) {
    for (const stop of this.running?.values() ?? []) stop.abort();
    Object.assign(this, { map, fetchCells, running: new Map(), blocks: new Map(), wants: new Map() });
  }

  /** `undefined` until it is known, `null` where nobody knows. */
  at(query, key) {
    const block = this.blocks.get(blockName(Math.floor(query / BLOCK), Math.floor(key / BLOCK)));
    return block === null ? null : block?.[query % BLOCK]?.[key % BLOCK];
  }

  /** What `who` looks at: `{queries: [from, to), keys: [from, to)}` or nothing. What nobody looks at any more is dropped. */
  want(who, area) {
    if (this.map === null) return;
    this.wants.set(who, area === null ? [] : blocksOf(area));
    const wanted = new Set([...this.wants.values()].flat());
    for (const [name, stop] of this.running) {
      if (!wanted.has(name)) {
        this.running.delete(name);
        stop.abort();
      }
    }
    for (const name of wanted) if (!this.blocks.has(name) && !this.running.has(name)) this.fetchBlock(name);
  }

  async fetchBlock(name) {
    const stop = new AbortController();
    this.running.set(name, stop);
    const [row, column] = name.split('/').map(Number);
    const { lenQuery, lenKey } = this.map;
    const range = (at, length) => [at * BLOCK, Math.min((at + 1) * BLOCK, length)];
    try {
      const values = await this.fetchCells(range(row, lenQuery), range(column, lenKey), stop.signal);
      if (this.running.get(name) !== stop) return;
      this.blocks.set(name, values);
      while (this.blocks.size > BLOCKS_HELD) this.blocks.delete(this.blocks.keys().next().value);
      this.arrived();
    } catch (error) {
      if (this.running.get(name) === stop && !stop.signal.aborted) this.failed(error);
    } finally {
      if (this.running.get(name) === stop) this.running.delete(name);
    }
  }
}

const blockName = (row, column) => `${row}/${column}`;

function blocksOf({ queries, keys }) {
  const names = [];
  for (let row = Math.floor(queries[0] / BLOCK); row * BLOCK < queries[1]; row += 1) {
    for (let column = Math.floor(keys[0] / BLOCK); column * BLOCK < keys[1]; column += 1) names.push(blockName(row, column));
  }
  return names;
}

export { BLOCK, CellNumbers };
