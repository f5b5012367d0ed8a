// The explorer: all heads, or the map of one. It keeps the state, and the URL that says the same.

import { element } from './dom.js';
import { keepInUrl } from './shell.js';
import { isExplorers } from './state.js';
import { allHeads, writeExplorer, readExplorer } from './explorer-state.js';
import { MapScreen } from './map-screen.js';
import { Overview } from './overview.js';
import { HeadSurvey } from './survey.js';

const WRITE_PLACE_AFTER_MS = 250;

class Explorer {
  /** `root` is the view's element, `source` where data comes from. */
  constructor({ root, source }) {
    Object.assign(this, { root, source, state: allHeads(), input: null, isOpen: false });
    addEventListener('hashchange', () => this.read());
    addEventListener('keydown', (event) => {
      if (this.isOpen && this.state.head !== null && this.input !== null) this.map.key(event);
    });
  }

  /** The view is opened, for the first time or again. */
  async open() {
    this.isOpen = true;
    this.known = location.hash;
    if (this.input !== null) {
      this.show();
      this.keep();
      return;
    }
    this.root.replaceChildren(element('p', { class: 'quiet waiting-for' }, 'Opening …'));
    try {
      this.input = await this.source.input();
      if (this.input.layers.length === 0) throw new Error('there are no heads in it');
      this.start();
    } catch (error) {
      this.input = null;
      this.fail(error);
    }
  }

  close() {
    this.isOpen = false;
    clearTimeout(this.writing);
  }

  start() {
    const ask = (change) => this.set(change);
    this.survey = new HeadSurvey({ source: this.source, told: () => this.surveyed() });
    const open = (head) => this.openHead(head);
    this.overview = new Overview({ source: this.source, survey: this.survey, input: this.input, ask, open });
    this.map = new MapScreen({
      source: this.source,
      input: this.input,
      rowOf: (head) => this.survey.row(head),
      ask,
      back: () => this.openHead({ layer: null, head: null }),
      step: (way) => this.step(way),
    });
    this.root.replaceChildren(this.overview.element, this.map.element);
    this.read();
  }

  fail(error) {
    const again = element('button', { type: 'button', class: 'button' }, 'Try again');
    again.addEventListener('click', () => this.open());
    this.root.replaceChildren(element('p', { class: 'notice', role: 'alert' }, `This could not be opened: ${error.message}. `, again));
  }

  set(change) {
    if (Object.entries(change).every(([name, value]) => this.state[name] === value)) return;
    this.state = { ...this.state, ...change };
    this.show();
    this.keep();
  }

  /** To another head, with what is pinned if both have it; or back to all. The browser's way back leads here again. */
  openHead({ layer, head }) {
    this.write();
    const shape = (one) => this.input.layers.find((other) => other.layer === one) ?? {};
    const [from, to] = [shape(this.state.layer), shape(layer)];
    const same = head !== null && this.state.head !== null && from.lenQuery === to.lenQuery && from.lenKey === to.lenKey;
    const kept = same ? {} : { view: null, query: null, key: null, side: 'query' };
    const stepped = head !== null && this.state.head !== null;
    this.state = { ...this.state, ...kept, layer, head };
    if (!stepped) {
      keepInUrl(writeExplorer(this.state), true);
      this.known = location.hash;
    }
    this.show();
    this.keep();
  }

  step(way) {
    this.openHead(this.overview.neighbour(this.state, way));
  }

  /** More heads are known. */
  surveyed() {
    if (this.state.head === null) this.overview.show(this.state, true);
    else this.map.pointing.tell();
  }

  show() {
    const one = this.state.head !== null;
    this.overview.element.hidden = one;
    this.map.element.hidden = !one;
    this.root.classList.toggle('at-map', one);
    this.survey.begin(this.state.batch);
    this.overview.show(this.state, !one);
    if (one) this.map.show(this.state);
    else if (this.map.state !== null) {
      const before = this.map.state;
      this.map.leave();
      this.overview.focusOn(before);
    }
  }

  /** Writes the URL, some time after the last change. */
  keep() {
    clearTimeout(this.writing);
    this.writing = setTimeout(() => this.write(), WRITE_PLACE_AFTER_MS);
  }

  write() {
    clearTimeout(this.writing);
    const fragment = writeExplorer(this.state);
    // Someone went elsewhere, and that is about to be read.
    if (location.hash !== this.known) return;
    keepInUrl(fragment);
    this.known = location.hash;
  }

  /** Reads the URL that someone put there, or came back to. */
  read() {
    if (this.input === null) return;
    if (location.hash !== '' && !isExplorers(location.hash)) return;
    clearTimeout(this.writing);
    this.known = location.hash;
    this.state = readExplorer(location.hash, this.input, this.source.offers);
    if (!this.isOpen) return;
    this.show();
    this.keep();
  }
}

export { Explorer };
