// Gets a map ready: asks for it until it is built, and tells how far it is, and when its colours are others.

const ASK_AGAIN_MS = 300;

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

export { MapLoader, rest };
