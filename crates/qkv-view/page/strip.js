// The strip that stays in sight: what is pointed at, in words and numbers, and a query's weights as shares of a bar.

import { element, sentence } from './dom.js';
import { fixed } from './numbers.js';
import { nameText } from './labels.js';

const HINT = ['Point at a token or a row to follow one query through all steps; at one score to see the two vectors that make it.'];
const HINT_MORE = ['With the keyboard: Tab goes from matrix to matrix, arrows move within one, Escape lets go.'];

class Strip {
  constructor() {
    this.title = element('p', { class: 'strip-title', role: 'status' });
    this.bar = element('div', { class: 'shares', role: 'img' });
    this.lines = element('div', { class: 'strip-lines' });
    this.element = element('section', { class: 'strip', 'aria-label': 'What is pointed at' }, this.title, this.bar, this.lines);
    this.show(null);
  }

  /** `{title, lines, shares}`, or `null` where nothing is pointed at. */
  show(told) {
    this.element.classList.toggle('idle', told === null);
    this.title.replaceChildren(...sentence(told?.title ?? HINT));
    const lines = told?.lines ?? [HINT_MORE];
    this.lines.replaceChildren(...lines.map((parts) => element('p', null, ...sentence(parts))));
    this.bar.hidden = !told?.shares;
    if (told?.shares) this.showShares(told.shares);
  }

  showShares({ row, names, spot = null }) {
    const parts = row.map((share, key) => ({ share, key })).filter(({ share }) => share > 0);
    this.bar.setAttribute('aria-label', parts.map(({ share, key }) => `${nameText(names[key])} ${fixed(share, 2)}`).join(', '));
    this.bar.replaceChildren(
      ...parts.map(({ share, key }) => {
        const part = element('span', { class: key === spot ? 'share spot' : 'share' }, ...sentence([names[key], ` ${fixed(share, 2)}`]));
        part.style.setProperty('--share', share.toFixed(4));
        return part;
      }),
    );
  }
}

export { Strip };
