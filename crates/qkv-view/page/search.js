// Searching tokens: whole ones if there are any such, else parts of them; `#12` is the index 12.

import { element, setText } from './dom.js';

const AFTER_TYPING_MS = 150;
/** Signs that tokenizers put before or after a word. */
const WORD_SIGNS = /^(##|[Ġ▁Ċ\s])+|(<\/w>|\s)+$/gu;

class TokenSearch {
  /** `go(index | null, side)` moves to a place; `left()` is called when the search is done with. */
  constructor({ go, left }) {
    this.go = go;
    this.field = element('input', { type: 'search', id: 'search', placeholder: 'Search tokens, or #index', autocomplete: 'off', spellcheck: 'false', 'aria-label': 'Search tokens, or # and an index' });
    this.told = element('output', { class: 'quiet search-count', for: 'search' });
    const step = (way, sign, name) => {
      const button = element('button', { type: 'button', class: 'button icon', 'aria-label': name, title: name }, sign);
      button.addEventListener('click', () => this.step(way));
      return button;
    };
    this.steps = [step(-1, '↑', 'previous place'), step(1, '↓', 'next place')];
    this.element = element('div', { class: 'search', role: 'search' }, this.field, this.told, ...this.steps);
    this.field.addEventListener('input', () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.find(), AFTER_TYPING_MS);
    });
    this.field.addEventListener('keydown', (event) => {
      if (event.key === 'Enter') this.enter(event.shiftKey ? -1 : 1);
      else if (event.key === 'Escape') this.leave(left);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    this.begin(null, { lenQuery: 0, lenKey: 0 });
  }

  /** Searches what keys are called; queries too, if those are others. */
  begin(names, map) {
    Object.assign(this, { names, map });
    this.places = [];
    this.at = -1;
    this.show();
    if (names !== null && this.field.value !== '') this.find(false);
  }

  find(move = true) {
    clearTimeout(this.typing);
    this.sought = this.field.value;
    this.places = this.names === null ? [] : placesOf(this.field.value, this.names, this.map);
    this.at = this.places.length > 0 && move ? 0 : -1;
    this.show();
    if (move) this.visit();
  }

  enter(way) {
    if (this.sought !== this.field.value) this.find();
    else this.step(way);
  }

  step(way) {
    if (this.places.length === 0) return;
    const { length } = this.places;
    this.at = this.at < 0 ? (way > 0 ? 0 : length - 1) : (this.at + way + length) % length;
    this.show();
    this.visit();
  }

  visit() {
    const place = this.places[this.at];
    this.go(place ? place.at : null, place?.side);
  }

  leave(left) {
    this.field.value = '';
    this.find();
    left();
  }

  show() {
    const { length } = this.places;
    const none = this.names?.keys === null && this.names?.queries === null ? 'no tokens' : 'none';
    setText(this.told, this.field.value.trim() === '' ? '' : length === 0 ? none : `${this.at + 1} of ${length}`);
    for (const button of this.steps) button.hidden = length === 0;
  }
}

/** `{at, side}` of each place. */
function placesOf(text, names, { lenQuery, lenKey }) {
  const index = /^#(\d{1,12})$/.exec(text.trim());
  if (index) {
    const at = Number(index[1]);
    return at < lenKey ? [{ at, side: 'key' }] : at < lenQuery ? [{ at, side: 'query' }] : [];
  }
  const sides = names.offset === null ? ['key', 'query'] : ['key'];
  const sought = text.toLowerCase().trim();
  if (sought === '') return [];
  const within = (side, fits) => (names.words(side) ?? []).flatMap((word, at) => (fits(word.toLowerCase()) ? [{ at, side }] : []));
  const all = (fits) => sides.flatMap((side) => within(side, fits));
  const whole = all((word) => word === sought || word.replace(WORD_SIGNS, '') === sought);
  return whole.length > 0 ? whole : all((word) => word.includes(sought));
}

export { TokenSearch };
