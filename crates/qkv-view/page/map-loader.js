// Gets a map ready: asks for it until it is built, and tells how far it is.

const ASK_AGAIN_MS = 300;

class MapLoader {
  /** `known(map)` once there is something to show, `progress(share | null)`, `ready(map)` when all is built, `failed(error)`. */
  constructor({ source, known, progress, ready, failed }) {
    Object.assign(this, { source, known, progress, ready, failed });
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
      const built = map.done >= map.total;
      while (map.done < map.total) {
        this.progress(map.done / map.total);
        await rest(ASK_AGAIN_MS, signal);
        map = await this.source.map(place, of, pool, signal);
        if (signal.aborted) return;
      }
      this.progress(null);
      if (!built) this.ready(map);
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
