// The table of heads as the server gets to know it: asked for until all are there.

import { headName } from './columns.js';
import { rest } from './map-loader.js';

const SURVEY_EVERY_MS = 500;
const AFTER_AN_ERROR_MS = 3000;

class HeadSurvey {
  /** `told()` is called when there are more rows, or an error. */
  constructor({ source, told }) {
    Object.assign(this, { source, told, batch: null, rows: [], byName: new Map() });
  }

  async begin(batch) {
    if (batch === this.batch) return;
    this.stop?.abort();
    this.stop = new AbortController();
    const { signal } = this.stop;
    Object.assign(this, { batch, rows: [], byName: new Map(), total: null, error: null });
    while (!signal.aborted && (this.total === null || this.rows.length < this.total)) {
      const wait = await this.more(batch, signal);
      if (!signal.aborted) this.told();
      if (this.rows.length !== this.total) await rest(wait, signal).catch(() => null);
    }
  }

  /** The numbers of a head, or `null` as long as they are not known. */
  row(head) {
    return this.byName.get(headName(head)) ?? null;
  }

  /** How long to wait for the next. */
  async more(batch, signal) {
    try {
      const { total, rows } = await this.source.heads(batch, this.rows.length, signal);
      if (signal.aborted) return 0;
      Object.assign(this, { total, rows: [...this.rows, ...rows], error: null });
      for (const row of rows) this.byName.set(headName(row), row);
      return SURVEY_EVERY_MS;
    } catch (error) {
      if (!signal.aborted) this.error = error;
      return AFTER_AN_ERROR_MS;
    }
  }
}

export { HeadSurvey };
