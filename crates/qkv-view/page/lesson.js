// The lesson: its state, what is computed of it, and the view that follows. Pointing is local; whatever changes numbers
// goes through `compute`.

import { element, setText } from './dom.js';
import { Chain } from './chain.js';
import { Strip } from './strip.js';
import { Controls } from './controls.js';
import { tell } from './told.js';
import { tokenNames, cutWord } from './labels.js';
import { newestOnly } from './engine.js';
import { firstState, mostTokens, writeFragment, readFragment, isExplorers } from './state.js';
import { uniformRows } from './measure.js';
import { keepInUrl } from './shell.js';
import { f32 } from './numbers.js';

/** The pointer may cross a gap between matrices without losing what it pointed at. */
const LINGER_MS = 150;
const WRITE_URL_AFTER_MS = 200;
const NEW_ROWS_SEED = 7;

class Lesson {
  /** `data`: `{words?, x, w_q, w_k, w_v, scale, causal}`; `compute(lesson)` gives steps by name; `why` is the panel. */
  constructor({ data, compute, computedBy, why }) {
    this.data = data;
    this.weights = { w_q: data.w_q, w_k: data.w_k, w_v: data.w_v };
    this.first = firstState(data);
    this.state = readFragment(location.hash, this.first);
    this.hovered = null;
    this.scene = null;
    this.why = why;
    this.request = newestOnly(compute, (steps, lesson) => this.done(steps, lesson), (error) => this.failed(error));
    this.chain = new Chain({
      point: (point, held) => this.point(point, held),
      changeNumber: (row, column, x) => this.changeNumber(row, column, x),
      changeWord: (row, word) => this.changeWord(row, word),
    });
    this.strip = new Strip();
    this.controls = new Controls({ dim: data.w_q[0].length, most: mostTokens(this.first), ask: (wish) => this.grant(wish) });
    this.notice = element('p', { class: 'notice', role: 'alert', hidden: true });
    this.foot = element('p', { class: 'quiet computed' }, `Computed by ${computedBy}. Cells show 4 decimals, or 2 where there are many.`);
    this.elements = [this.controls.element, this.notice, this.chain.element, this.strip.element, this.foot];
    why.onDimension = (dimension) => this.set({ dimension });
    addEventListener('hashchange', () => this.read());
    addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && !this.resting) this.letGo();
    });
    this.refresh();
  }

  set(change) {
    Object.assign(this.state, change);
    this.keep();
    if ('x' in change || 'scale' in change || 'causal' in change) this.refresh();
    else this.show();
  }

  grant(wish) {
    if (wish.reset) this.set(readFragment('', this.first));
    else if (wish.tokens) this.set(this.withTokens(wish.tokens));
    else this.set(wish);
  }

  changeNumber(row, column, x) {
    const rows = this.state.x.map((line) => line.slice());
    rows[row][column] = x;
    this.set({ x: rows });
  }

  changeWord(row, word) {
    this.set({ words: this.state.words.map((old, at) => (at === row ? cutWord(word) : old)) });
  }

  /** Another number of tokens: those of the first lesson come back, others are drawn from a fixed seed. */
  withTokens(count) {
    const { x, words } = this.state;
    const drawn = uniformRows(count, x[0].length, NEW_ROWS_SEED).map((row) => row.map((u) => f32(Number(u.toFixed(4)))));
    const rows = Array.from({ length: count }, (_, at) => x[at] ?? this.first.x[at]?.slice() ?? drawn[at]);
    const named = rows.map((_, at) => words[at] ?? this.first.words[at] ?? String(at));
    const { point } = this.state;
    const lost = point !== null && Math.max(point.query ?? 0, point.key ?? 0) >= count;
    return { x: rows, words: named, point: lost ? null : point };
  }

  /** Shows what changes no number. */
  show() {
    this.controls.show(this.state, writeFragment(this.state, this.first) === '');
    this.why.show(this.state.dimension);
    if (this.scene !== null) this.draw();
  }

  /** Asks for the numbers of the state as it is now. */
  refresh() {
    const { words, x, scale, causal } = this.state;
    this.show();
    this.chain.element.setAttribute('aria-busy', 'true');
    this.request({ words, x, ...this.weights, scale, causal });
  }

  done(steps, lesson) {
    this.notice.hidden = true;
    this.scene = { ...lesson, steps, weights: this.weights };
    this.draw();
    this.chain.element.setAttribute('aria-busy', 'false');
  }

  /** Draws the numbers that there are, under the names that tokens have now if they are as many. */
  draw() {
    const { words } = this.state.words.length === this.scene.x.length ? this.state : this.scene;
    Object.assign(this.scene, { words, names: tokenNames(words) });
    this.chain.update(this.scene);
    this.light();
  }

  failed(error) {
    setText(this.notice, `These numbers are not up to date: ${error.message}.`);
    this.notice.hidden = false;
    this.chain.element.setAttribute('aria-busy', 'false');
  }

  /** What is hovered goes before what is held. */
  point(point, held) {
    clearTimeout(this.lingering);
    if (held) {
      this.hovered = null;
      this.state.point = point;
      this.keep();
      this.show();
    } else if (point !== null) {
      this.hovered = point;
      this.light();
    } else {
      this.lingering = setTimeout(() => {
        this.hovered = null;
        this.light();
      }, LINGER_MS);
    }
  }

  letGo() {
    this.hovered = null;
    this.set({ point: null });
  }

  light() {
    if (this.scene === null) return;
    const point = this.hovered ?? this.state.point;
    // Pointed at before fewer tokens came back.
    const known = point !== null && Math.max(point.query ?? 0, point.key ?? 0) < this.scene.names.length;
    this.chain.mark(known ? point : null, this.scene.steps.weights.values);
    this.strip.show(known ? tell(this.scene, point) : null);
  }

  /** While another view is open, keys and the URL are that view's. */
  rest(resting) {
    this.resting = resting;
    this.keep();
  }

  /** Writes the URL, some time after the last change. */
  keep() {
    clearTimeout(this.writing);
    if (this.resting) return;
    this.writing = setTimeout(() => keepInUrl(writeFragment(this.state, this.first)), WRITE_URL_AFTER_MS);
  }

  /** Reads the URL that someone put there. */
  read() {
    clearTimeout(this.writing);
    if (isExplorers(location.hash)) return;
    this.state = readFragment(location.hash, this.first);
    this.hovered = null;
    this.refresh();
  }
}

export { Lesson };
