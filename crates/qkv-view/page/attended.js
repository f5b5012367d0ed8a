// Whom a query attends, or who attends a key: asked for when someone points, after a short rest.

/** After this an old answer under a new title would mislead. */
const LATE_MS = 400;
/** So many are listed. */
const COUNT = 20;
const REST_MS = 140;

class Attended {
  /** `told()` is called when `current`, `{side, at, answer | error}` or `null`, is another, or `wish`, `waiting` or `late`. */
  constructor({ source, told }) {
    Object.assign(this, { source, told, stop: null, asked: 'null', current: null, wish: null, waiting: false, late: false });
  }

  /** `wish` is `{side: query | key, at}` or `null`; `soon`: without waiting for the pointer to rest. */
  look(place, wish, soon) {
    const asked = JSON.stringify(wish && [place, wish]);
    if (asked === this.asked) return;
    this.asked = asked;
    this.stop?.abort();
    clearTimeout(this.resting);
    clearTimeout(this.patience);
    this.wish = wish;
    if (wish === null) {
      Object.assign(this, { current: null, waiting: false, late: false });
      this.told();
      return;
    }
    // The old answer stays for a while: lists that come and go with each step could not be read.
    this.waiting = true;
    this.stop = new AbortController();
    const { signal } = this.stop;
    this.patience = setTimeout(() => {
      Object.assign(this, { current: null, late: true });
      this.told();
    }, LATE_MS);
    this.resting = setTimeout(() => this.ask(place, wish, signal), soon ? 0 : REST_MS);
    this.told();
  }

  async ask(place, { side, at }, signal) {
    const result = await this.source[side](place, at, COUNT, signal).then((answer) => ({ answer }), (error) => ({ error }));
    if (signal.aborted) return;
    // Asked again, it may go well.
    if (result.error) this.asked = 'failed';
    clearTimeout(this.patience);
    Object.assign(this, { waiting: false, late: false });
    this.current = { side, at, ...result };
    this.told();
  }
}

export { Attended };
