// One head: its map with rulers, legend and readout, and beside it what is pointed at, in lists and in the text.

import { element, setText } from './dom.js';
import { CellNumbers } from './cell-numbers.js';
import { Legend } from './legend.js';
import { keysInSight, queriesInSight } from './map-frame.js';
import { MapBar } from './map-bar.js';
import { mapKey } from './map-keys.js';
import { MapLoader, RemainingTime } from './map-loader.js';
import { MapOverlay, NUMBERS_FROM } from './map-overlay.js';
import { MapView } from './map-view.js';
import { Names } from './names.js';
import { NO_CELL, Pointing } from './pointing.js';
import { Ruler } from './rulers.js';

/** Cells are moved over one by one from this size on, and pointed at in their middle. */
const BY_CELLS_FROM = 8;

class MapScreen {
  /** `rowOf(head)` are its numbers in the table, if they are known. `ask(change)` changes the state, `back()` leads to all heads, `step(way)` to another. */
  constructor({ source, input, rowOf, ask, back, step }) {
    Object.assign(this, { source, rowOf, ask, step, state: null, shown: '', named: '', share: null });
    this.names = new Names({ keys: null, queries: null });
    this.canvas = element('div', { class: 'map-canvas', tabindex: 0, role: 'application', 'aria-label': 'Map: arrows move, plus and minus zoom, 0 shows all, Enter pins, Escape lets go, slash searches' });
    const failed = (error) => this.fail(error);
    this.view = new MapView({ moved: () => this.moved(), settled: () => this.settled(), pressed: (x, y) => this.pointing.press(x, y) });
    this.overlay = new MapOverlay();
    this.numbers = new CellNumbers({ arrived: () => this.redraw(), failed });
    this.pointing = new Pointing({ screen: this, source, ask });
    this.loader = new MapLoader({
      source,
      known: (map) => this.open(map, this.state.view),
      changed: (map) => this.open(map, this.view.frame(false) === null ? this.state.view : this.view.view()),
      progress: (share) => this.showProgress(share),
      failed,
    });
    this.legend = new Legend();
    this.remaining = new RemainingTime();
    this.bar = new MapBar({
      input,
      offers: source.offers,
      search: this.pointing.search.element,
      ask,
      back,
      step,
      zoom: (factor) => this.view.zoomBy(factor),
      whole: () => this.view.goTo(null),
    });
    this.layOut();
    this.listen();
  }

  layOut() {
    const ruler = (side, what, name) =>
      new Ruler({
        side,
        name,
        pointed: (at) => this.pointing.point(at === null ? null : { ...NO_CELL, [what]: at }, true),
        pressed: (at) => this.ask({ ...NO_CELL, [what]: at, side: what }),
      });
    this.rulers = { query: ruler('left', 'query', 'Queries, downwards'), key: ruler('top', 'key', 'Keys, to the right') };
    this.canvas.append(this.view.element, this.overlay.element);
    this.progress = element('div', { class: 'map-progress', role: 'progressbar', 'aria-label': 'Building the map', hidden: true }, element('i'), element('span'));
    this.words = element('span');
    this.again = element('button', { type: 'button', class: 'button' }, 'Try again');
    this.notice = element('div', { class: 'notice map-notice', role: 'alert', hidden: true }, this.words, ' ', this.again);
    this.pooled = element('p', { class: 'map-pooled', hidden: true });
    const corner = element('div', { class: 'ruler-corner', 'aria-hidden': 'true' }, element('span', null, 'keys →'), element('span', null, 'queries ↓'));
    const frame = element('div', { class: 'map-frame' }, corner, this.rulers.key.element, this.rulers.query.element, this.canvas, this.progress);
    const foot = element('div', { class: 'map-foot' }, this.pointing.readout.element, this.legend.element);
    const main = element('div', { class: 'map-main' }, this.notice, this.pooled, frame, foot);
    const side = element('div', { class: 'map-side' }, this.pointing.panel.element, this.pointing.text.element);
    this.element = element('div', { class: 'map-screen', hidden: true }, this.bar.element, element('div', { class: 'map-body' }, main, side));
  }

  listen() {
    this.canvas.addEventListener('pointermove', (event) => {
      const box = this.canvas.getBoundingClientRect();
      if (this.view.map !== null) this.pointing.hover(event.clientX - box.left, event.clientY - box.top);
    });
    this.canvas.addEventListener('pointerleave', () => this.pointing.leave());
    this.again.addEventListener('click', () => {
      this.shown = '';
      this.named = '';
      this.show(this.state);
    });
  }

  /** A key that was pressed while this is open. */
  key(event) {
    mapKey(event, this.canvas, {
      pan: (dx, dy, far) => this.pan(dx, dy, far),
      zoom: (factor) => this.view.zoomBy(factor),
      whole: () => this.view.goTo(null),
      pin: () => this.pointing.pinPointed(),
      letGo: () => this.pointing.letGo(),
      search: () => this.pointing.search.field.focus(),
      head: this.step,
    });
  }

  /** Shows a state of one head. */
  show(state) {
    const before = this.state;
    this.state = state;
    this.bar.show(state);
    const shown = JSON.stringify([this.place(), state.of, state.pool]);
    if (shown !== this.shown) {
      this.shown = shown;
      this.notice.hidden = true;
      this.nameTokens();
      this.loader.load(this.place(), state.of, state.pool);
    } else if (this.view.map !== null && state.view !== before?.view && state.view !== this.seen) {
      this.view.goTo(state.view);
    }
    this.pointing.look(true);
    this.pointing.tell();
  }

  place() {
    const { layer, head, batch } = this.state;
    return { layer, head, batch };
  }

  async nameTokens() {
    const place = this.place();
    const named = JSON.stringify([place.layer, place.batch]);
    if (named === this.named) return;
    this.named = named;
    const found = await this.source.tokens(place).catch((error) => {
      this.fail(error);
      return { keys: null, queries: null };
    });
    if (named !== this.named) return;
    this.names = new Names(found);
    this.pointing.search.begin(this.names, this.view.map ?? { lenQuery: 0, lenKey: 0 });
    this.pointing.tell();
  }

  /** Opens a map, or opens it anew when more of it is ready: tiles and legend are always of the same scale. */
  open(map, view) {
    const place = this.place();
    const { of, pool } = this.state;
    this.pointing.wanted = null;
    this.numbers.begin(map, (queries, keys, signal) => this.source.cells(place, of, queries, keys, signal));
    this.pointing.search.map = map;
    this.legend.show(of, map.scale);
    this.pooled.hidden = map.bin === null || map.bin === 1;
    const pairs = `${map.bin} × ${map.bin} pairs`;
    setText(this.pooled, `Each cell is the largest of ${pairs}; the live page (qkv view) goes down to single ones.`);
    const fetchTile = (at, signal) => this.source.tile(place, of, pool, { ...at, scale: map.scale }, signal);
    this.view.open({ map, name: this.shown, fetchTile, view, failed: (error) => this.fail(error) });
  }

  pan(dx, dy, far) {
    const frame = this.view.frame(false);
    if (frame === null) return;
    const { left, top, scale, width, height } = frame;
    const [across, down] = far ? [Math.sign(dx) * width * 0.8, Math.sign(dy) * height * 0.8] : [dx, dy];
    const to = (from, size, pixels, length) => {
      const middle = from + size / scale / 2;
      if (scale < BY_CELLS_FROM) return Math.min(Math.max(middle + pixels / scale, 0), length);
      const cells = Math.sign(pixels) * Math.max(Math.round(Math.abs(pixels) / scale), pixels === 0 ? 0 : 1);
      return Math.min(Math.max(Math.floor(middle) + 0.5 + cells, 0.5), length - 0.5);
    };
    const { map } = this.view;
    this.view.goTo({ query: to(top, height, down, map.lenQuery), key: to(left, width, across, map.lenKey), scale });
    this.pointing.point(this.pointing.middle(), true, true);
  }

  /** The pointer may rest, and have another cell under it. */
  moved() {
    if (this.state === null) return;
    this.pointing.follow();
    this.redraw();
  }

  /** Draws what changes with each frame. */
  redraw() {
    const frame = this.view.frame();
    if (frame === null || this.state === null) return;
    const scene = this.pointing.scene();
    this.overlay.draw(frame, { ...scene, map: this.view.map, exact: this.view.exactParts(frame), numbers: this.numbers });
    this.progress.classList.toggle('aside', this.view.isMadeNow(frame));
    for (const [what, length] of [['query', this.view.map.lenQuery], ['key', this.view.map.lenKey]]) {
      const lit = new Map();
      for (const as of ['found', 'pinned', 'hovered']) {
        const at = scene[as]?.[what] ?? null;
        if (at !== null) lit.set(at, as);
      }
      const ringed = new Set(scene.ringed.map((cell) => cell[what]));
      this.rulers[what].draw(frame, { words: this.names.words(what), length, lit, ringed });
    }
    this.pointing.read(frame);
  }

  /** When the map rests: its numbers are asked for, the URL told, and the text is that in sight. */
  settled() {
    const frame = this.view.frame(false);
    if (frame === null) return;
    const { map } = this.view;
    const near = frame.scale >= NUMBERS_FROM;
    this.numbers.want('view', near ? { queries: queriesInSight(frame, map.lenQuery), keys: keysInSight(frame, map.lenKey) } : null);
    this.seen = this.view.view();
    this.ask({ view: this.seen });
    this.pointing.tell();
  }

  /** How much of the weights is known, if this is the map of them that is being built. */
  shareOfWeights() {
    return this.state.of === 'weights' && this.state.pool === 'max' ? this.share : null;
  }

  showProgress(share) {
    this.share = share;
    this.progress.hidden = share === null;
    if (this.pointing.attended.late) this.pointing.tell();
    if (share === null) {
      this.remaining.begin();
      return;
    }
    const percent = Math.round(share * 100);
    this.progress.setAttribute('aria-valuenow', String(percent));
    this.progress.firstChild.style.setProperty('--share', String(share));
    const left = this.remaining.tell(share, performance.now());
    setText(this.progress.lastChild, `Building the map: ${percent} %${left && `, ${left}`}`);
  }

  fail(error) {
    setText(this.words, `Something is missing here: ${error.message}.`);
    this.notice.hidden = false;
  }

  /** Another screen is opened. */
  leave() {
    this.loader.cancel();
    this.view.close();
    this.shown = '';
    this.state = null;
  }
}

export { MapScreen };
