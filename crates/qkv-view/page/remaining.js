// How long something will still take, by how fast it went of late.

const OF_LATE_MS = 30000;
/** Before so long, and so much, a guess would jump about. */
const KNOWN_AFTER_MS = 3000;
const KNOWN_FROM = 0.01;

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

export { RemainingTime };
