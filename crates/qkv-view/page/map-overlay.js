// What is drawn over the map: lines between cells, their numbers, what is pointed at, pinned, found, and looked at most.

import { element } from './dom.js';
import { cellNumber, significant, typeset } from './numbers.js';
import { colourOf, inkOn } from './map-colours.js';
import { xOf, yOf } from './map-frame.js';

const LINES_FROM = 9;
const NUMBERS_FROM = 34;
const FOUR_DECIMALS_FROM = 50;
/** Dark under light can be seen on every colour. */
const HALO = 'rgba(0, 0, 0, 0.75)';
const LIGHT = '#ffffff';

class MapOverlay {
  constructor() {
    this.element = element('canvas', { class: 'map-overlay', 'aria-hidden': 'true' });
    this.context = this.element.getContext('2d');
  }

  /** `scene`: `{map, exact, hovered, pinned, found, ringed: [{query, key}], cursor, numbers}`; `exact`: parts whose cells have their own colours. */
  draw(frame, scene) {
    this.fit(frame);
    const { context } = this;
    context.clearRect(0, 0, frame.width, frame.height);
    this.edge(frame, scene.map);
    for (const part of scene.exact) {
      if (frame.scale >= LINES_FROM) this.lines(frame, part);
      if (frame.scale >= NUMBERS_FROM) this.numbers(frame, part, scene);
    }
    if (scene.found !== null) this.bands(frame, scene.map, scene.found, { dash: [6, 4], width: 1.5 });
    for (const cell of scene.ringed) this.ring(frame, cell);
    if (scene.pinned !== null) this.bands(frame, scene.map, scene.pinned, { dash: [], width: 2 });
    if (scene.hovered !== null) this.bands(frame, scene.map, scene.hovered, { dash: [], width: 1 });
    if (scene.cursor) this.reticle(frame);
  }

  fit({ width, height }) {
    const density = devicePixelRatio || 1;
    const [across, down] = [Math.round(width * density), Math.round(height * density)];
    if (this.element.width !== across || this.element.height !== down) [this.element.width, this.element.height] = [across, down];
    this.context.setTransform(density, 0, 0, density, 0, 0);
  }

  /** Where the map ends. */
  edge(frame, { lenQuery, lenKey }) {
    const { context } = this;
    context.strokeStyle = 'rgba(128, 128, 128, 0.6)';
    context.lineWidth = 1;
    context.setLineDash([]);
    const [x, y] = [xOf(frame, 0), yOf(frame, 0)];
    context.strokeRect(x - 0.5, y - 0.5, xOf(frame, lenKey) - x + 1, yOf(frame, lenQuery) - y + 1);
  }

  lines(frame, { queries, keys }) {
    const { context } = this;
    context.strokeStyle = `rgba(128, 128, 128, ${Math.min(0.5, (frame.scale - LINES_FROM) / 40 + 0.12)})`;
    context.lineWidth = 1;
    context.setLineDash([]);
    context.beginPath();
    for (let key = keys[0]; key <= keys[1]; key += 1) {
      const x = Math.round(xOf(frame, key)) + 0.5;
      context.moveTo(x, yOf(frame, queries[0]));
      context.lineTo(x, yOf(frame, queries[1]));
    }
    for (let query = queries[0]; query <= queries[1]; query += 1) {
      const y = Math.round(yOf(frame, query)) + 0.5;
      context.moveTo(xOf(frame, keys[0]), y);
      context.lineTo(xOf(frame, keys[1]), y);
    }
    context.stroke();
  }

  numbers(frame, { queries, keys }, { map, numbers }) {
    const { context } = this;
    const digits = frame.scale >= FOUR_DECIMALS_FROM ? 4 : 2;
    this.family ??= getComputedStyle(this.element).fontFamily;
    context.font = `${frame.scale >= 70 ? 13 : 11}px ${this.family}`;
    context.textAlign = 'center';
    context.textBaseline = 'middle';
    for (let query = queries[0]; query < queries[1]; query += 1) {
      for (let key = keys[0]; key < keys[1]; key += 1) {
        const x = numbers.at(query, key);
        if (typeof x !== 'number') continue;
        const [text, middle, room] = [numberText(x, digits), xOf(frame, key + 0.5), frame.scale - 2];
        // Half a number would be another.
        const half = Math.min(context.measureText(text).width, room) / 2;
        if (middle < half || middle > frame.width - half) continue;
        context.fillStyle = inkOn(colourOf(x, map.scale));
        context.globalAlpha = x === 0 ? 0.6 : 1;
        context.fillText(text, middle, yOf(frame, query + 0.5), room);
      }
    }
    context.globalAlpha = 1;
  }

  /** A row, a column, and the cell in both. */
  bands(frame, { lenQuery, lenKey }, { query, key }, style) {
    if (query !== null) this.band(style, [xOf(frame, 0), xOf(frame, lenKey)], [yOf(frame, query), yOf(frame, query + 1)], false);
    if (key !== null) this.band(style, [yOf(frame, 0), yOf(frame, lenQuery)], [xOf(frame, key), xOf(frame, key + 1)], true);
  }

  band({ dash, width }, along, across, upright) {
    const [from, to] = across;
    const thin = to - from < 5;
    const sides = thin ? [(from + to) / 2] : [from, to];
    for (const [colour, extra] of [[HALO, 2], [LIGHT, 0]]) {
      this.context.strokeStyle = colour;
      this.context.lineWidth = width + extra;
      this.context.setLineDash(extra > 0 ? [] : dash);
      this.context.beginPath();
      for (const side of sides) {
        const ends = along.map((end) => (upright ? [side, end] : [end, side]));
        this.context.moveTo(...ends[0]);
        this.context.lineTo(...ends[1]);
      }
      this.context.stroke();
    }
  }

  /** Around a cell, however small. */
  ring(frame, { query, key }) {
    const { context } = this;
    const side = Math.max(frame.scale, 7);
    const [x, y] = [xOf(frame, key + 0.5) - side / 2, yOf(frame, query + 0.5) - side / 2];
    context.setLineDash([]);
    for (const [colour, width] of [[HALO, 3.5], [LIGHT, 1.5]]) {
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.strokeRect(x, y, side, side);
    }
  }

  /** The middle, where keys move to. */
  reticle({ width, height }) {
    const { context } = this;
    context.setLineDash([]);
    for (const [colour, thick] of [[HALO, 4], [LIGHT, 2]]) {
      context.strokeStyle = colour;
      context.lineWidth = thick;
      context.beginPath();
      for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
        context.moveTo(width / 2 + dx * 5, height / 2 + dy * 5);
        context.lineTo(width / 2 + dx * 14, height / 2 + dy * 14);
      }
      context.stroke();
    }
  }
}

/** Decimals, or the first digits of what has none there: among many keys all weights are small. An exact 0 is mostly a masked pair. */
function numberText(x, digits) {
  if (x === 0) return '0';
  return Math.abs(x) < 10 ** -digits ? typeset(significant(x, digits / 2)) : cellNumber(x, digits);
}

export { NUMBERS_FROM, MapOverlay };
