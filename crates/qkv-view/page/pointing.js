// Pointing at queries and keys: what is hovered, pinned and found, and what follows from it beside the map and over it.
//
// What is hovered is marked at once. What is pinned stays in the panel; with nothing pinned the panel keeps what was hovered
// last, so that it can be reached.

import { Attended } from './attended.js';
import { BLOCK } from './cell-numbers.js';
import { FocusPanel } from './focus-panel.js';
import { SHOWN } from './legend.js';
import { cellAt, keysInSight } from './map-frame.js';
import { Readout, tellCell } from './readout.js';
import { TokenSearch } from './search.js';
import { TokenText } from './token-text.js';

const NO_CELL = { query: null, key: null };
/** What is found is shown at so many pixels a cell, at least: enough for its neighbours' names. */
const FOUND_SCALE = 20;
const POINTER_RESTS_MS = 90;
/** Pairs of less than this part of the largest are listed, but not marked. */
const NOTABLE = 0.01;
const POINTING_HELP = 'Point at a cell; press to pin it. Drag to move, turn the wheel to zoom.';

class Pointing {
  /** `screen` has `state`, `names`, `view`, `numbers`, `place()`, `redraw()`, `canvas`. `ask(change)` changes the state. */
  constructor({ screen, source, ask }) {
    Object.assign(this, { screen, ask, hovered: null, looked: NO_CELL, found: null, byKeys: false, pointer: null });
    this.attended = new Attended({ source, told: () => this.tell() });
    this.panel = new FocusPanel({
      ask,
      pick: (cell, side) => this.pin(cell, side),
      hint: (cell) => this.point(cell, false),
      letGo: () => this.letGo(),
    });
    this.text = new TokenText({ pointed: (at) => this.pointAtToken(at), pressed: (at) => this.pinToken(at) });
    this.search = new TokenSearch({ go: (at, side) => this.goToFound(at, side), left: () => screen.canvas.focus() });
    this.readout = new Readout();
  }

  pinned() {
    const { query, key } = this.screen.state;
    return query === null && key === null ? null : { query, key };
  }

  /** At a cell, a row or a column; `looking`: the panel follows. */
  point(cell, looking, byKeys = false) {
    this.byKeys = byKeys;
    this.hovered = cell;
    if (looking && cell !== null) {
      this.looked = cell;
      this.look(false);
    }
    this.screen.redraw();
  }

  /** At a pixel of the map. */
  hover(x, y) {
    const { view } = this.screen;
    const frame = view.frame();
    if (frame === null) return;
    const cell = cellAt(frame, view.map, x, y);
    this.pointer = { x, y, cell };
    this.point(cell, true);
  }

  leave() {
    this.pointer = null;
    this.point(null, false);
  }

  /** The map has moved under a pointer that rests. */
  follow() {
    if (this.pointer === null || this.byKeys) return;
    const { view } = this.screen;
    const { x, y, cell: before } = this.pointer;
    const cell = cellAt(view.frame(), view.map, x, y);
    if (cell?.query === before?.query && cell?.key === before?.key) return;
    this.pointer.cell = cell;
    this.hovered = cell;
    if (cell === null) return;
    this.looked = cell;
    this.look(false);
  }

  press(x, y) {
    const { view } = this.screen;
    const cell = cellAt(view.frame(), view.map, x, y);
    if (cell !== null) this.ask(cell);
  }

  /** What keys point at: the middle. */
  middle() {
    const { view } = this.screen;
    const frame = view.frame(false);
    return frame && cellAt(frame, view.map, frame.width / 2, frame.height / 2);
  }

  pinPointed() {
    const cell = this.byKeys ? this.middle() : (this.hovered ?? this.middle());
    if (cell !== null) this.ask(cell);
  }

  pin(cell, side) {
    this.ask({ ...cell, side });
    this.reveal(cell);
  }

  letGo() {
    Object.assign(this, { hovered: null, looked: NO_CELL, found: null });
    this.ask({ ...NO_CELL, side: 'query' });
  }

  /** Asks for what the panel shows. */
  look(soon) {
    const { query, key } = this.pinned() ?? this.looked;
    const { side } = this.screen.state;
    const shown = query === null ? 'key' : key === null ? 'query' : side;
    const at = shown === 'query' ? query : key;
    this.attended.look(this.screen.place(), at === null ? null : { side: shown, at }, soon);
  }

  /** Shows what is known in the panel and in the text. */
  tell() {
    const { state, names, view } = this.screen;
    if (state === null) return;
    const { current, waiting, late, wish } = this.attended;
    const pair = this.pinned() ?? this.looked;
    this.panel.show({ ...pair, by: state.by, pinned: this.pinned() !== null, shown: current, wish, waiting, late, share: this.screen.shareOfWeights(), names, row: this.screen.rowOf(state) });
    const inKeys = names.offset !== null || current?.side !== 'key';
    const order = current?.side === 'query' && current.answer?.lists.influence ? state.by : 'weight';
    const pairs = notable(current, order);
    const own = (at) => (names.offset === null ? at : names.keyOf(at));
    const frame = view.frame(false);
    this.text.show({
      words: inKeys ? names.keys : names.queries,
      marks: pairs.map((one) => ({ at: current.side === 'key' && inKeys ? own(one.at) : one.at, weight: one[order] })),
      here: current === null ? null : current.side === 'key' ? (inKeys ? current.at : names.queryOf(current.at)) : names.keyOf(current.at),
      sight: frame && view.map ? keysInSight(frame, view.map.lenKey) : [0, 0],
      caption: textCaption(current, order),
    });
    this.screen.redraw();
  }

  /** A token of the text: as a query, or as a key where those are listed. */
  tokenCell(at) {
    const { names } = this.screen;
    const side = this.attended.current?.side ?? 'query';
    if (side === 'key') return names.offset === null ? { query: at, key: null } : { query: null, key: at };
    const query = names.queryOf(at);
    return query === null ? { query: null, key: at } : { query, key: null };
  }

  pointAtToken(at) {
    this.point(at === null ? null : this.tokenCell(at), false);
  }

  pinToken(at) {
    const cell = this.tokenCell(at);
    this.pin(cell, cell.query === null ? 'key' : 'query');
  }

  goToFound(at, side) {
    const { view, names } = this.screen;
    const nowhere = at === null || view.frame() === null;
    this.found = nowhere ? null : side === 'query' ? { query: at, key: null } : { query: names.queryOf(at), key: at };
    if (this.found !== null) {
      // Until the pointer moves again it points at nothing, though the map goes by under it.
      Object.assign(this, { pointer: null, hovered: null, byKeys: false, looked: this.found });
      this.look(true);
      this.reveal(this.found, FOUND_SCALE);
    }
    this.screen.redraw();
  }

  /** Moves the map so that a cell, a row or a column is in sight, at a scale or more. */
  reveal({ query, key }, least = 0) {
    const { view } = this.screen;
    const frame = view.frame(false);
    if (frame === null) return;
    const [across, down] = [frame.width / frame.scale, frame.height / frame.scale];
    const inside = (at, from, size) => at === null || (at >= from && at + 1 <= from + size);
    if (frame.scale >= least && inside(query, frame.top, down) && inside(key, frame.left, across)) return;
    const middle = { query: frame.top + down / 2, key: frame.left + across / 2 };
    view.goTo({
      query: query === null ? middle.query : query + 0.5,
      key: key === null ? middle.key : key + 0.5,
      scale: Math.max(frame.scale, least),
    });
  }

  /** For the overlay and the rulers. */
  scene() {
    const { current } = this.attended;
    const { by } = this.screen.state;
    const order = current?.answer?.lists[by] ? by : 'weight';
    const ringed = notable(current, order).map((pair) => (current.side === 'query' ? { query: current.at, key: pair.at } : { query: pair.at, key: current.at }));
    return { hovered: this.hovered, pinned: this.pinned(), found: this.found, ringed, cursor: this.byKeys };
  }

  /** Asks for the number under the pointer once it rests. */
  wantNumber(cell) {
    const { numbers } = this.screen;
    if (cell?.query === this.wanted?.query && cell?.key === this.wanted?.key) return;
    this.wanted = cell;
    clearTimeout(this.wanting);
    const area = cell && { queries: [cell.query, cell.query + 1], keys: [cell.key, cell.key + 1] };
    this.wanting = setTimeout(() => numbers.want('pointer', area), POINTER_RESTS_MS);
  }

  /** The line under the map. */
  read(frame) {
    const { state, names, view, numbers } = this.screen;
    const cell = this.hovered ?? (this.byKeys ? this.middle() : null) ?? this.found ?? this.pinned();
    const bin = view.binOf(frame);
    const one = cell !== null && cell.query !== null && cell.key !== null;
    this.wantNumber(one && bin <= BLOCK ? cell : null);
    const parts = cell === null ? null : tellCell({ cell, bin, of: state.of, pool: state.pool, map: view.map, names, numbers });
    this.readout.show(parts, `${SHOWN[state.of].says} ${POINTING_HELP}`, this.byKeys);
  }
}

/** Of a list, what is worth a mark. */
function notable(current, order) {
  const pairs = current?.answer?.lists[order] ?? [];
  const most = Math.max(...pairs.map((pair) => pair[order]).filter((x) => Number.isFinite(x)), 0);
  return pairs.filter((pair) => pair[order] > most * NOTABLE);
}

function textCaption(current, order) {
  if (current === null || current.error) return 'Press a token to see what it looks at.';
  if (current.side === 'key') return 'Marked: the queries that look at it most. Darker is more weight.';
  return `Marked: its strongest keys. Darker is more ${order}.`;
}

export { NO_CELL, Pointing };
