// Gets a map ready: asks for it until it is built, and tells how far it is, when its colours are others, and how long it
// will still take.

const ASK_AGAIN_MS = 300;
/** How long it still takes is told by how fast it went of late. */
const OF_LATE_MS = 30000;
/** Before so long, and so much, a guess would jump about. */
const KNOWN_AFTER_MS = 3000;
const KNOWN_FROM = 0.01;

class MapLoader {
  /** `known(map)` once there is something to show, `changed(map)` with another scale or when all is built, `progress(share | null)`, `failed(error)`. */
  constructor({ source, known, changed, progress, failed }) {
    Object.assign(this, { source, known, changed, progress, failed });
    this.stop = null;
  }

  async load(place, of, pool) {
    this.cancel();
    this.stop = new AbortController();
    const { signal } = this.stop;
    try {
      let map = await this.source.map(place, of, pool, signal);
      if (signal.aborted) return;
      this.known(map);
      let shown = map;
      while (map.done < map.total) {
        this.progress(map.done / map.total);
        await rest(ASK_AGAIN_MS, signal);
        map = await this.source.map(place, of, pool, signal);
        if (signal.aborted) return;
        const isBuilt = map.done >= map.total;
        if (isBuilt) this.progress(null);
        if (isBuilt || JSON.stringify(map.scale) !== JSON.stringify(shown.scale)) {
          shown = map;
          this.changed(map);
        }
      }
      this.progress(null);
    } catch (error) {
      if (!signal.aborted) this.failed(error);
    }
  }

  cancel() {
    this.stop?.abort();
    this.progress(null);
  }
}

/** Waits, or ends early when it is given up. */
function rest(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    const give = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    signal?.addEventListener('abort', give, { once: true });
  });
}

class RemainingTime {
  constructor() {
    this.begin();
  }

  begin() {
    this.seen = [];
  }

  /** With `share` done at a time: `about 40 s left`, or nothing while it is not known. */
  tell(share, now) {
    if (share < this.seen.at(-1)?.share) this.begin();
    this.seen.push({ share, now });
    while (this.seen.length > 2 && this.seen[1].now <= now - OF_LATE_MS) this.seen.shift();
    const { share: before, now: since } = this.seen[0];
    if (now - since < KNOWN_AFTER_MS || share - before < KNOWN_FROM) return '';
    return `${spelt(((1 - share) * (now - since)) / (share - before) / 1000)} left`;
  }
}

/** Seconds, no closer than they can be known. */
function spelt(seconds) {
  if (seconds < 5) return 'a few seconds';
  if (seconds < 55) return `about ${Math.round(seconds / 5) * 5} s`;
  if (seconds < 5400) return `about ${Math.round(seconds / 60)} min`;
  return `about ${Math.round(seconds / 3600)} h`;
}

export { MapLoader, RemainingTime, rest };
