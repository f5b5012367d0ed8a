// Tiles of a map for OpenSeadragon: which there are, and how one is fetched, or given up when it is out of sight.

/** Under way at once: a server computes with few threads. */
const TILES_AT_ONCE = 4;

/**
 * `map` as a source answers, `name` for this map among all, `fetchTile(place, signal)` gives a picture, `wanted(tile)` says
 * whether one is in sight, `failed(error)` hears of those that could not be had.
 */
function mapTiles({ map, name, fetchTile, wanted, failed }) {
  const running = new Map();
  const finest = map.levels - 1 - Math.log2(map.bin ?? 1);
  // OpenSeadragon takes a failed tile for one that does not exist; one that was given up may be asked for again.
  const giveUp = (job) => {
    running.get(job)?.abort();
    running.delete(job);
    job.fail('given up');
    setTimeout(() => {
      job.tile.exists = true;
    });
  };
  const tiles = new OpenSeadragon.TileSource({
    width: map.lenKey,
    height: map.lenQuery,
    tileSize: map.tile,
    tileOverlap: 0,
    minLevel: map.minLevel,
    maxLevel: map.levels - 1,
    getTileUrl: (level, x, y) => `${name}/${level}/${x}/${y}`,
    hasTransparency: () => false,
    tileExists(level, x, y) {
      const count = this.getNumTiles(level);
      return level >= map.ready && level <= finest && x >= 0 && y >= 0 && x < count.x && y < count.y;
    },
    downloadTileStart: (job) => {
      const stop = new AbortController();
      const { level, x, y } = job.tile;
      running.set(job, stop);
      if (!wanted(job.tile)) {
        queueMicrotask(() => giveUp(job));
        return;
      }
      fetchTile({ level, x, y }, stop.signal).then(
        (picture) => {
          if (running.delete(job)) job.finish(drawnPicture(picture), null, 'context2d');
        },
        (error) => {
          if (!running.has(job)) return;
          running.delete(job);
          job.fail(error.message);
          failed(error);
        },
      );
    },
    downloadTileAbort: (job) => {
      running.get(job)?.abort();
      running.delete(job);
    },
  });
  return {
    source: tiles,
    /** Gives up what is out of sight. */
    prune: () => {
      for (const job of [...running.keys()]) if (!wanted(job.tile)) giveUp(job);
    },
  };
}

/** A copy: OpenSeadragon empties those that it lets go of. */
function drawnPicture(picture) {
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [picture.width, picture.height];
  const context = canvas.getContext('2d');
  context.drawImage(picture, 0, 0);
  return context;
}

export { TILES_AT_ONCE, mapTiles };
