// What the colours of a map mean.

import { element, setText } from './dom.js';
import { significant, typeset } from './numbers.js';
import { SPECIAL_COLOURS, numberAt } from './map-colours.js';

/** In words, and what a pixel stands for that has many pairs. */
const SHOWN = {
  weights: { name: 'weight', says: 'Weights: how much of each key’s value a query takes. Each row sums to 1.', large: 'the largest' },
  scores: { name: 'score q · k', says: 'Scores: q · k for every pair, before scale, mask and softmax.', large: 'the farthest from 0' },
  scaled: { name: 'scaled score', says: 'Scaled scores: q · k × scale for every pair, before the mask and softmax.', large: 'the farthest from 0' },
  influence: { name: 'influence', says: 'Influence: how far a query’s output would move if the key were deleted.', large: 'the largest' },
  mask: { name: 'may attend', says: 'Mask: 1 where a query may attend a key, 0 where it may not.', large: 'the largest' },
};

const KIND_WORDS = { 'square-root': 'square-root scale', diverging: '', linear: '' };
const SPECIAL_NAMES = [['nan', 'NaN'], ['above', '+∞'], ['below', '−∞']];
const TICKS = [0, 0.25, 0.5, 0.75, 1];

class Legend {
  constructor() {
    this.bar = element('span', { class: 'legend-bar' });
    this.ticks = TICKS.map((share) => {
      const tick = element('span', { class: 'legend-tick' });
      tick.style.setProperty('--share', String(share));
      return tick;
    });
    this.name = element('span', { class: 'legend-name' });
    const scale = element('span', { class: 'legend-scale' }, this.bar, ...this.ticks);
    const specials = SPECIAL_NAMES.map(([id, name]) => {
      const patch = element('i', { class: 'legend-patch' });
      patch.style.backgroundColor = SPECIAL_COLOURS[id];
      return element('span', { class: 'legend-special' }, patch, name);
    });
    this.element = element('div', { class: 'legend', role: 'group', 'aria-label': 'Colours' }, this.name, scale, ...specials);
  }

  show(of, scale) {
    const words = [SHOWN[of].name, KIND_WORDS[scale.kind]].filter((part) => part !== '');
    setText(this.name, words.join(', '));
    this.bar.style.backgroundImage = `linear-gradient(to right, ${scale.colours.join(', ')})`;
    this.ticks.forEach((tick, at) => setText(tick, `${scale.above && TICKS[at] === 1 ? '≥ ' : ''}${tickText(numberAt(TICKS[at], scale))}`));
  }
}

/** Of small numbers too the first digits: on a square-root scale ticks are not evenly apart. */
const tickText = (x) => typeset(significant(x, 2));

export { SHOWN, Legend };
