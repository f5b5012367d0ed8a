// The map itself: OpenSeadragon in an element, spoken to in cells and pixels.

import { element } from './dom.js';
import { CLOSEST, binAt, keysInSight, queriesInSight, wholeView } from './map-frame.js';
import { TILES_AT_ONCE, mapTiles } from './map-tiles.js';

const SETTLED_AFTER_MS = 180;
const ANIMATION_S = 0.45;
/** A server may compute a tile for a while. */
const TILE_WITHIN_MS = 180000;
const ZOOM_BY_WHEEL = 1.35;

class MapView {
  /** `moved(frame)` is called with every frame that is drawn, `settled(frame)` when it rests, `pressed(x, y)` on a click. */
  constructor({ moved, settled, pressed }) {
    Object.assign(this, { moved, settled, pressed });
    this.element = element('div', { class: 'map-tiles' });
    this.map = null;
    this.tiles = null;
    /** Tiles of single cells that are drawn, as `{x, y}` by name. */
    this.exact = new Map();
  }

  /** Shows a map, at a view or as a whole. */
  open({ map, name, fetchTile, view, failed }) {
    this.start();
    this.map = map;
    this.last = '';
    const wanted = (tile) => this.isInSight(tile);
    this.tiles = mapTiles({ map, name, fetchTile, wanted, failed });
    this.exact = new Map();
    this.opening = view;
    this.viewer.open(this.tiles.source);
  }

  start() {
    if (this.viewer) return;
    quietLibrary();
    const still = matchMedia('(prefers-reduced-motion: reduce)').matches;
    const touch = { clickToZoom: false, dblClickToZoom: true };
    this.viewer = new OpenSeadragon.Viewer({
      element: this.element,
      drawer: 'canvas',
      tabIndex: '',
      showNavigationControl: false,
      imageLoaderLimit: TILES_AT_ONCE,
      timeout: TILE_WITHIN_MS,
      imageSmoothingEnabled: false,
      smoothTileEdgesMinZoom: Infinity,
      subPixelRoundingForTransparency: OpenSeadragon.SUBPIXEL_ROUNDING_OCCURRENCES.ALWAYS,
      minPixelRatio: 1,
      preserveViewport: true,
      visibilityRatio: 0.5,
      minZoomImageRatio: 0.9,
      maxZoomPixelRatio: CLOSEST,
      zoomPerScroll: ZOOM_BY_WHEEL,
      zoomPerClick: 3,
      animationTime: still ? 0 : ANIMATION_S,
      springStiffness: 9,
      gestureSettingsMouse: { ...touch },
      gestureSettingsPen: { ...touch },
      gestureSettingsTouch: { ...touch },
    });
    const on = (name, heard) => this.viewer.addHandler(name, heard);
    on('open', () => this.opened());
    on('update-viewport', () => this.drawn());
    on('resize', () => this.resized());
    on('tile-loaded', (event) => this.noteTile(event, true));
    on('tile-unloaded', (event) => this.noteTile(event, false));
    on('canvas-key', (event) => {
      event.preventDefaultAction = true;
    });
    on('canvas-click', (event) => {
      if (event.quick) this.pressed(event.position.x, event.position.y);
    });
  }

  /** Until its finest tile is there, a cell has the colour of a larger one. */
  noteTile({ tile: { level, x, y }, tiledImage }, isThere) {
    if (this.map === null || tiledImage.source !== this.tiles.source || level !== this.map.levels - 1) return;
    if (isThere) this.exact.set(`${x}/${y}`, { x, y });
    else this.exact.delete(`${x}/${y}`);
    const frame = this.frame();
    if (frame !== null) this.moved(frame);
  }

  /** Where cells have their own colours: `{queries: [from, to), keys: [from, to)}` of each such part in a frame. */
  exactParts(frame) {
    const { map } = this;
    const [queries, keys] = [queriesInSight(frame, map.lenQuery), keysInSight(frame, map.lenKey)];
    const within = ([from, to], at) => [Math.max(from, at * map.tile), Math.min(to, (at + 1) * map.tile)];
    const parts = Array.from(this.exact.values(), ({ x, y }) => ({ queries: within(queries, y), keys: within(keys, x) }));
    return parts.filter((part) => part.queries[0] < part.queries[1] && part.keys[0] < part.keys[1]);
  }

  opened() {
    const { clientWidth, clientHeight } = this.element;
    const whole = wholeView(this.map, clientWidth, clientHeight);
    this.viewer.viewport.maxZoomPixelRatio = Math.max(CLOSEST, whole.scale);
    this.goTo(this.opening ?? whole, true);
  }

  /** Before its size is known there is none. */
  frame(current = true) {
    const viewport = this.viewer?.viewport;
    const { clientWidth: width, clientHeight: height } = this.element;
    if (!viewport || this.map === null || width === 0 || this.viewer.world.getItemCount() === 0) return null;
    const bounds = viewport.getBoundsNoRotate(current);
    const { lenKey } = this.map;
    return { left: bounds.x * lenKey, top: bounds.y * lenKey, scale: width / (bounds.width * lenKey), width, height };
  }

  /** What is in the middle; `null` where that is the whole map. */
  view() {
    const frame = this.frame(false);
    if (frame === null) return null;
    const { left, top, scale, width, height } = frame;
    const view = { query: top + height / scale / 2, key: left + width / scale / 2, scale };
    const whole = wholeView(this.map, width, height);
    const near = (a, b) => Math.abs(a - b) * scale < 1;
    return near(view.query, whole.query) && near(view.key, whole.key) && Math.abs(scale / whole.scale - 1) < 0.002 ? null : view;
  }

  goTo(view, immediately = false) {
    const { viewport } = this.viewer;
    const { lenKey } = this.map;
    const { query, key, scale } = view ?? wholeView(this.map, this.element.clientWidth, this.element.clientHeight);
    viewport.zoomTo((lenKey * scale) / this.element.clientWidth, null, immediately);
    viewport.panTo(new OpenSeadragon.Point(key / lenKey, query / lenKey), immediately);
    viewport.applyConstraints(immediately);
    this.viewer.forceRedraw();
  }

  zoomBy(factor) {
    this.viewer.viewport.zoomBy(factor);
    this.viewer.viewport.applyConstraints();
  }

  drawn() {
    const frame = this.frame();
    if (frame === null) return;
    // While tiles arrive it draws what has not moved.
    const drawn = JSON.stringify(frame);
    if (drawn === this.last) return;
    this.last = drawn;
    this.smoothen(frame.scale * (this.map.bin ?? 1) < 1);
    this.moved(frame);
    clearTimeout(this.resting);
    this.resting = setTimeout(() => {
      this.tiles?.prune();
      this.settled(this.frame(false) ?? frame);
    }, SETTLED_AFTER_MS);
  }

  /** Cells are crisp, but where a picture has to be made smaller. */
  smoothen(smooth) {
    if (this.smooth === smooth) return;
    this.smooth = smooth;
    this.viewer.drawer.setImageSmoothingEnabled(smooth);
  }

  resized() {
    if (this.map !== null && this.view() === null) this.goTo(null, true);
  }

  /** So many queries and keys a pixel of what is shown stands for. Dense screens show more pixels. */
  binOf({ scale }) {
    return Math.max(binAt(scale * OpenSeadragon.pixelDensityRatio), this.map.bin ?? 1);
  }

  /** Whether what a frame shows is made without the whole map. */
  isMadeNow(frame) {
    return this.map.levels - 1 - Math.log2(this.binOf(frame)) >= this.map.ready;
  }

  /** Of a tile: whether it is at a level that is used at this zoom, and in the frame. */
  isInSight({ level, x, y }) {
    const frame = this.frame(false);
    if (frame === null) return true;
    const { map } = this;
    const size = 2 ** (map.levels - 1 - level);
    if (size < this.binOf(frame)) return false;
    const side = map.tile * size;
    const [right, bottom] = [frame.left + frame.width / frame.scale, frame.top + frame.height / frame.scale];
    return x * side < right && (x + 1) * side > frame.left && y * side < bottom && (y + 1) * side > frame.top;
  }

  close() {
    this.map = null;
    clearTimeout(this.resting);
    this.viewer?.close();
  }
}

/** The library speaks of failed tiles, and would put a style sheet into the page; it does neither. */
function quietLibrary() {
  const nothing = () => {};
  OpenSeadragon.console = { log: nothing, debug: nothing, info: nothing, warn: nothing, error: nothing, assert: nothing };
  if (document.querySelector('style[data-openseadragon-mobile-css]')) return;
  // It looks for its sheet by this name. An element of no known kind is no sheet, which a policy would have to allow.
  const none = document.createElementNS('urn:none', 'style');
  none.setAttribute('data-openseadragon-mobile-css', '');
  document.head.append(none);
}

export { MapView };
