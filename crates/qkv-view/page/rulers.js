// Rulers at the map's edges: tokens where there is room for each, else numbers at round steps. They follow the zoom.

import { element, setText } from './dom.js';
import { visibleWord } from './labels.js';
import { keyAt, queryAt, xOf, yOf, keysInSight, queriesInSight } from './map-frame.js';

/** Pixels that a label needs: a token beside a row, one on its end above a column, one lying above a wide column. */
const ROW_LABEL = 11;
const COLUMN_LABEL = 12;
const LYING_LABEL = 58;
/** Half the height of a label, and about half the width of a letter. */
const EDGE = 8;
const HALF_LETTER = 3.6;
const NUMBER_EVERY = { left: 40, top: 76 };

class Ruler {
  /** `side`: `left` for queries, `top` for keys. `pointed(index | null)`, `pressed(index)`. */
  constructor({ side, name, pointed, pressed }) {
    this.side = side;
    this.labels = [];
    this.lit = new Map();
    this.inside = element('div', { class: 'ruler-labels' });
    this.element = element('div', { class: `ruler ruler-${side}`, role: 'img', 'aria-label': name }, this.inside);
    const at = (event) => this.indexAt(event);
    this.element.addEventListener('pointermove', (event) => pointed(at(event)));
    this.element.addEventListener('pointerleave', () => pointed(null));
    this.element.addEventListener('click', (event) => {
      if (at(event) !== null) pressed(at(event));
    });
  }

  indexAt(event) {
    if (!this.frame) return null;
    const box = this.element.getBoundingClientRect();
    const at = this.side === 'left' ? queryAt(this.frame, event.clientY - box.top) : keyAt(this.frame, event.clientX - box.left);
    return at >= 0 && at < this.length ? Math.floor(at) : null;
  }

  /** `words` are tokens or `null`; `lit` says as what indices are lit, which are always named; `ringed` are looked at. */
  draw(frame, { words, length, lit, ringed }) {
    Object.assign(this, { frame, words, length, lit });
    const left = this.side === 'left';
    const [from, to] = left ? queriesInSight(frame, length) : keysInSight(frame, length);
    const each = frame.scale >= (left ? ROW_LABEL : COLUMN_LABEL);
    const step = each ? 1 : roundStep(NUMBER_EVERY[this.side] / frame.scale);
    // Above columns words stand on their ends, until columns are wide enough.
    const standing = !left && each && frame.scale < (words ? LYING_LABEL : 30);
    this.standing = standing;
    this.element.classList.toggle('standing', standing);
    let count = 0;
    const placeOf = (index) => (left ? yOf(frame, index + 0.5) : xOf(frame, index + 0.5));
    const taken = [...lit.keys()].map(placeOf);
    const room = left ? ROW_LABEL + 4 : standing ? COLUMN_LABEL : each ? 0 : LYING_LABEL;
    const put = (index, shownAs) => {
      const place = placeOf(index);
      if (place < 0 || place > (left ? frame.height : frame.width)) return;
      if (!lit.has(index) && taken.some((other) => Math.abs(other - place) < room - 1)) return;
      this.put(this.label(count), { index, place, token: each && words !== null, shownAs, width: each ? frame.scale : LYING_LABEL });
      count += 1;
    };
    for (let index = Math.ceil(from / step) * step; index < to; index += step) if (!lit.has(index)) put(index, ringed.has(index) ? 'ringed' : '');
    for (const [index, shownAs] of lit) if (index >= from && index < to) put(index, shownAs);
    for (const spare of this.labels.slice(count)) spare.hidden = true;
  }

  label(at) {
    if (!this.labels[at]) {
      const [word, number] = [element('bdi', { class: 'token' }), element('span', { class: 'index' })];
      this.labels[at] = element('span', null, word, number);
      this.inside.append(this.labels[at]);
    }
    return this.labels[at];
  }

  put(label, { index, place, token, shownAs, width }) {
    const [word, number] = label.children;
    const named = token || (this.lit.has(index) && this.words !== null);
    label.hidden = false;
    label.className = `ruler-label ${shownAs} ${named ? 'named' : 'numbered'}`;
    setText(word, named ? visibleWord(this.words[index] ?? '') : '');
    setText(number, String(index));
    // The first and last are not cut off.
    const [left, size] = this.side === 'left' ? [true, this.frame.height] : [false, this.frame.width];
    // Words that lie side by side go out of sight with their columns.
    const letters = Math.max(String(index).length, named ? word.textContent.length : 0);
    const half = left || (named && !this.lit.has(index)) ? EDGE : Math.min(Math.max(letters * HALF_LETTER + 4, EDGE), 60);
    const inside = Math.min(Math.max(place, half), size - half);
    label.style.setProperty('--place', `${(this.standing ? place : inside).toFixed(1)}px`);
    label.style.setProperty('--size', `${Math.min(Math.max(width * 0.9, 9.5), 12).toFixed(1)}px`);
    label.style.setProperty('--room', `${Math.max(width - 4, 12).toFixed(0)}px`);
  }
}

/** The least of 1, 2, 5, 10, 20, 50, … that is no smaller. */
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((times) => times * power).find((step) => step >= least);
}

export { Ruler };
