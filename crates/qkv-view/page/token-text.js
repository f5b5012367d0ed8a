// The tokens as a text, with marks on those that are looked at. Of a long text only the parts around the marks are shown, or
// what the map shows.

import { element, setText } from './dom.js';
import { visibleWord } from './labels.js';

const WHOLE_UP_TO = 900;
const WINDOW = 500;
const AROUND = 8;

class TokenText {
  /** `pointed(index | null)`, `pressed(index)`. */
  constructor({ pointed, pressed }) {
    this.heading = element('h2', null, 'In the text');
    this.caption = element('p', { class: 'quiet' });
    this.body = element('p', { class: 'tokens', role: 'group', 'aria-label': 'Tokens' });
    this.element = element('section', { class: 'in-text', 'aria-label': 'In the text' }, this.heading, this.caption, this.body);
    const at = (event) => event.target.closest('[data-at]');
    this.body.addEventListener('pointerover', (event) => {
      if (event.pointerType !== 'touch') pointed(at(event) ? Number(at(event).dataset.at) : null);
    });
    this.body.addEventListener('pointerleave', () => pointed(null));
    this.body.addEventListener('click', (event) => {
      if (at(event)) pressed(Number(at(event).dataset.at));
    });
    this.body.addEventListener('keydown', (event) => this.move(event, pressed));
    this.drawn = '';
  }

  /** `marks` are `{at, weight}`, `here` the token that they belong to, `sight` `[from, to)` of the map. */
  show({ words, marks, here, sight, caption }) {
    this.element.hidden = words === null;
    if (words === null) return;
    setText(this.caption, caption);
    const ranges = rangesOf(words.length, [...marks.map((mark) => mark.at), ...(here === null ? [] : [here])], sight);
    const drawn = JSON.stringify([ranges, marks.map((mark) => [mark.at, mark.weight]), here]);
    if (drawn === this.drawn && words === this.words) return;
    [this.drawn, this.words] = [drawn, words];
    const most = Math.max(...marks.map((mark) => mark.weight), 0);
    const weights = new Map(marks.map((mark) => [mark.at, mark.weight / most]));
    const parts = ranges.flatMap((range) => this.part(range, { words, weights, here }));
    const end = ranges.at(-1)?.[1] ?? 0;
    if (end < words.length) parts.push(element('span', { class: 'gap' }, ` … ${words.length - end} more`));
    this.body.replaceChildren(...parts);
    const first = this.body.querySelector('.here') ?? this.body.querySelector('[data-at]');
    if (first) first.tabIndex = 0;
    if (here !== null) this.scrollTo(this.body.querySelector('.here'));
  }

  part([from, to], { words, weights, here }) {
    // Tokens that have their spaces with them need no others.
    const between = words.some((word) => /^\s/.test(word)) ? () => element('wbr') : () => ' ';
    const parts = from > 0 ? [element('span', { class: 'gap' }, ` … ${from} `)] : [];
    for (let at = from; at < to; at += 1) {
      const token = element('bdi', { class: 'text-token', 'data-at': at, title: String(at), role: 'button', tabindex: -1 }, visibleWord(words[at]));
      if (weights.has(at)) {
        token.classList.add('marked');
        token.style.setProperty('--weight', weights.get(at).toFixed(3));
      }
      if (at === here) token.classList.add('here');
      parts.push(token, words[at].endsWith('\n') ? element('br') : between());
    }
    return parts;
  }

  /** Within the text alone: the page stays where it is. */
  scrollTo(token) {
    const [box, inside] = [this.body.getBoundingClientRect(), token?.getBoundingClientRect()];
    if (inside && (inside.top < box.top || inside.bottom > box.bottom)) this.body.scrollTop += inside.top - box.top - box.height / 2;
  }

  move(event, pressed) {
    const token = event.target.closest('[data-at]');
    if (!token) return;
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      pressed(Number(token.dataset.at));
      return;
    }
    const all = Array.from(this.body.querySelectorAll('[data-at]'));
    const way = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const next = way ? all[all.indexOf(token) + way] : null;
    if (!next) return;
    event.preventDefault();
    token.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
}

/** All of a short text; of a long one what is around some places, or in sight. */
function rangesOf(length, places, [from, to]) {
  if (length <= WHOLE_UP_TO) return [[0, length]];
  if (places.length === 0) return [[from, Math.min(to, from + WINDOW)]];
  const ranges = [];
  for (const place of [...places].sort((a, b) => a - b)) {
    const [start, end] = [Math.max(place - AROUND, 0), Math.min(place + AROUND + 1, length)];
    const last = ranges.at(-1);
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else ranges.push([start, end]);
  }
  return ranges;
}

export { TokenText };
