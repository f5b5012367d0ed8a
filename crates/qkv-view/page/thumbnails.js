// All heads as small pictures. One is fetched when it scrolls into sight, some at a time.

import { element, setText } from './dom.js';
import { headName } from './columns.js';

const FETCHED_AT_ONCE = 3;
/** Longer pictures than this to one side fill their frame, or there would be nothing to see. */
const THIN = 6;

class Thumbnails {
  /** `fetchPicture(head, signal)`, `open(head)`, `hint(head | null)`. */
  constructor({ fetchPicture, open, hint }) {
    Object.assign(this, { fetchPicture, open, hint });
    this.element = element('div', { class: 'thumbnails', role: 'group', 'aria-label': 'Heads' });
    this.cards = new Map();
    this.waiting = new Set();
    this.running = new Map();
    this.sight = new IntersectionObserver((entries) => this.seen(entries), { rootMargin: '150px' });
    this.element.addEventListener('keydown', (event) => this.move(event));
  }

  /** All heads in an order; `grouped`: by layer. `value(head)` is written under each. */
  show(heads, { grouped, value }) {
    // Before the cards are moved, which lets go of it.
    const focused = this.element.contains(document.activeElement) ? document.activeElement : null;
    const rows = new Map();
    for (const head of heads) {
      const key = grouped ? head.layer : null;
      rows.set(key, [...(rows.get(key) ?? []), head]);
    }
    const parts = [...rows].map(([layer, list]) => {
      const label = grouped && layer !== null ? [element('h3', null, `Layer ${layer}`)] : [];
      return element('div', { class: 'thumbnail-row' }, ...label, element('div', { class: 'thumbnail-cards' }, ...list.map((head) => this.card(head, { grouped, value }))));
    });
    this.element.replaceChildren(...parts);
    this.rove(focused ?? this.element.querySelector('.thumbnail[tabindex="0"]') ?? this.element.querySelector('.thumbnail'));
    focused?.focus();
  }

  card(head, { grouped, value }) {
    const name = headName(head);
    if (!this.cards.has(name)) this.cards.set(name, this.makeCard(head, name));
    const { button, label, number } = this.cards.get(name);
    setText(label, grouped || head.layer === null ? `head ${head.head}` : `${head.layer} · ${head.head}`);
    setText(number, value(head));
    return button;
  }

  makeCard(head, name) {
    const picture = element('canvas', { width: 1, height: 1, 'aria-hidden': 'true' });
    const [label, number] = [element('span', { class: 'thumbnail-name' }), element('span', { class: 'thumbnail-value' })];
    const foot = element('span', { class: 'thumbnail-foot' }, label, number);
    const button = element('button', { type: 'button', class: 'thumbnail empty', 'aria-label': name, tabindex: -1 }, element('span', { class: 'thumbnail-picture' }, picture), foot);
    button.addEventListener('click', () => this.open(head));
    for (const came of ['pointerenter', 'focus']) button.addEventListener(came, () => this.hint(head));
    for (const left of ['pointerleave', 'blur']) button.addEventListener(left, () => this.hint(null));
    const card = { head, button, picture, label, number };
    button.card = card;
    this.sight.observe(button);
    return card;
  }

  seen(entries) {
    for (const { target, isIntersecting } of entries) {
      const { card } = target;
      if (isIntersecting && target.classList.contains('empty')) this.waiting.add(card);
      if (!isIntersecting) {
        this.waiting.delete(card);
        this.running.get(card)?.abort();
      }
    }
    this.fetchNext();
  }

  fetchNext() {
    for (const card of this.waiting) {
      if (this.running.size >= FETCHED_AT_ONCE) return;
      this.waiting.delete(card);
      this.fetchCard(card);
    }
  }

  async fetchCard(card) {
    const stop = new AbortController();
    this.running.set(card, stop);
    try {
      const picture = await this.fetchPicture(card.head, stop.signal);
      [card.picture.width, card.picture.height] = [picture.width, picture.height];
      card.picture.getContext('2d').drawImage(picture, 0, 0);
      const thin = Math.max(picture.width / picture.height, picture.height / picture.width) > THIN;
      card.button.classList.toggle('thin', thin);
      card.button.classList.remove('empty', 'failed');
    } catch (error) {
      if (!stop.signal.aborted) {
        card.button.classList.add('failed');
        card.button.title = error.message;
      }
    }
    this.running.delete(card);
    this.fetchNext();
  }

  /** Forgets the pictures: those of another batch are others. */
  clear() {
    for (const stop of this.running.values()) stop.abort();
    this.waiting.clear();
    for (const { button } of this.cards.values()) {
      this.sight.unobserve(button);
      button.classList.add('empty');
      this.sight.observe(button);
    }
  }

  mark(head) {
    for (const { button, head: other } of this.cards.values()) button.classList.toggle('hinted', head !== null && headName(head) === headName(other));
  }

  focusOn(head) {
    const { button } = this.cards.get(headName(head)) ?? {};
    if (!button) return;
    for (const card of this.cards.values()) card.button.removeAttribute('aria-current');
    button.setAttribute('aria-current', 'true');
    this.rove(button);
    button.focus();
  }

  /** Tab reaches one of them. */
  rove(button) {
    for (const card of this.cards.values()) card.button.tabIndex = card.button === button ? 0 : -1;
  }

  move(event) {
    const from = event.target.closest('.thumbnail');
    const all = Array.from(this.element.querySelectorAll('.thumbnail'));
    const at = all.indexOf(from);
    const next = { ArrowRight: all[at + 1], ArrowLeft: all[at - 1], ArrowDown: nextRow(all, from, 1), ArrowUp: nextRow(all, from, -1), Home: all[0], End: all.at(-1) }[event.key];
    if (!next || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    this.rove(next);
    next.focus();
  }
}

/** Of the next row of pictures, the one most nearly under or over. */
function nextRow(all, from, way) {
  const box = from.getBoundingClientRect();
  const others = all.map((button) => ({ button, at: button.getBoundingClientRect() }));
  const beyond = others.filter(({ at }) => way * (at.top - box.top) > 4);
  const row = Math.min(...beyond.map(({ at }) => way * at.top));
  const near = beyond.filter(({ at }) => Math.abs(way * at.top - row) < 4);
  return near.sort((a, b) => Math.abs(a.at.left - box.left) - Math.abs(b.at.left - box.left))[0]?.button;
}

export { Thumbnails };
