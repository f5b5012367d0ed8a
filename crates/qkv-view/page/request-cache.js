// Answers that are kept for a while, and questions under way that several may wait for.
//
// A question is dropped when the last who waits for it lets go, so that a server works on what is still looked at.

class RequestCache {
  constructor(most) {
    this.most = most;
    this.kept = new Map();
    this.running = new Map();
  }

  /** The answer to `key`: kept, under way, or made by `make(signal)`. */
  get(key, make, signal) {
    if (signal?.aborted) return Promise.reject(signal.reason);
    if (this.kept.has(key)) {
      const value = this.kept.get(key);
      this.keep(key, value);
      return Promise.resolve(value);
    }
    const run = this.running.get(key) ?? this.start(key, make);
    return this.join(key, run, signal);
  }

  start(key, make) {
    const run = { waiting: 0, stop: new AbortController() };
    this.running.set(key, run);
    run.answer = make(run.stop.signal).then(
      (value) => {
        this.forget(key, run);
        this.keep(key, value);
        return value;
      },
      (error) => {
        this.forget(key, run);
        throw error;
      },
    );
    return run;
  }

  join(key, run, signal) {
    run.waiting += 1;
    return new Promise((resolve, reject) => {
      const leave = () => {
        run.waiting -= 1;
        if (run.waiting === 0) {
          this.forget(key, run);
          run.stop.abort();
        }
        reject(signal.reason);
      };
      const settle = (how) => (value) => {
        signal?.removeEventListener('abort', leave);
        how(value);
      };
      signal?.addEventListener('abort', leave, { once: true });
      run.answer.then(settle(resolve), settle(reject));
    });
  }

  forget(key, run) {
    if (this.running.get(key) === run) this.running.delete(key);
  }

  /** The newest are last; of too many the oldest go. */
  keep(key, value) {
    this.kept.delete(key);
    this.kept.set(key, value);
    while (this.kept.size > this.most) this.kept.delete(this.kept.keys().next().value);
  }
}

export { RequestCache };
