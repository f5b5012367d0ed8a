// The lesson's controls: scale, mask, number of tokens, reset. They show a state and ask for another.

import { element, setText } from './dom.js';
import { f32, fixed, number } from './numbers.js';

/** The slider ends at this multiple of 1/√d. */
const MOST_TIMES = 4;
const SLIDER_STEPS = 800;
/** So near to a mark (in steps) the slider stops at it. */
const CATCH = 8;

class Controls {
  /** `ask({scale | causal | tokens | reset})`; `dim` is d, `most` how many tokens there may be. */
  constructor({ dim, most, ask }) {
    this.usual = 1 / Math.sqrt(dim);
    this.dim = dim;
    this.ask = ask;
    this.element = element('div', { class: 'controls', role: 'group', 'aria-label': 'What the lesson computes with' });
    this.element.append(this.makeScale(), this.makeMask(), this.makeTokens(most), this.makeReset());
  }

  makeScale() {
    this.slider = element('input', { type: 'range', id: 'scale', min: 0, max: SLIDER_STEPS, step: 1 });
    this.shownScale = element('output', { for: 'scale', id: 'scale-value' });
    this.marks = [
      { scale: 0, text: '0', says: 'average' },
      { scale: null, text: `1/√${this.dim}`, says: 'usual' },
      // Of two numbers 1/√2 is so near that there is no room for words.
      { scale: 1, text: '1', says: this.dim === 2 ? '' : 'no scale' },
    ];
    // Of one number 1/√d is 1.
    if (this.dim === 1) this.marks.pop();
    const ticks = this.marks.map((mark) => {
      const tick = element('button', { type: 'button', class: 'tick', 'aria-label': `scale ${mark.text}: ${mark.says}` }, element('b', null, mark.text), ` ${mark.says}`);
      tick.style.setProperty('--at', String(this.position(mark.scale) / SLIDER_STEPS));
      tick.addEventListener('click', () => this.ask({ scale: mark.scale }));
      return tick;
    });
    this.slider.addEventListener('input', () => this.ask({ scale: this.scaleAt(Number(this.slider.value)) }));
    const label = element('label', { for: 'scale' }, 'Scale ', this.shownScale);
    return element('div', { class: 'control scale' }, label, element('div', { class: 'track' }, this.slider, element('div', { class: 'ticks' }, ...ticks)));
  }

  /** Where on the slider a scale is; `null` is 1/√d. */
  position(scale) {
    const times = scale === null ? 1 : scale / this.usual;
    return Math.min((times / MOST_TIMES) * SLIDER_STEPS, SLIDER_STEPS);
  }

  scaleAt(position) {
    const near = this.marks.find((mark) => Math.abs(this.position(mark.scale) - position) < CATCH);
    if (near && position > 0) return near.scale;
    return f32(Number(((position / SLIDER_STEPS) * MOST_TIMES * this.usual).toFixed(4)));
  }

  makeMask() {
    this.mask = element('input', { type: 'checkbox', id: 'causal' });
    this.mask.addEventListener('change', () => this.ask({ causal: this.mask.checked }));
    return element('div', { class: 'control' }, this.mask, element('label', { for: 'causal' }, 'Causal mask: no token reads those after it'));
  }

  makeTokens(most) {
    this.tokens = element('input', { type: 'number', id: 'tokens', min: 1, max: most, step: 1, inputmode: 'numeric' });
    this.tokens.addEventListener('input', () => {
      const count = Number(this.tokens.value);
      const fits = Number.isInteger(count) && count >= 1 && count <= most;
      this.tokens.setAttribute('aria-invalid', String(!fits));
      if (fits) this.ask({ tokens: count });
    });
    this.tokens.addEventListener('blur', () => {
      this.tokens.removeAttribute('aria-invalid');
      this.show(this.state, this.isFirst);
    });
    const range = element('span', { class: 'quiet', id: 'tokens-range' }, `1 to ${most}`);
    this.tokens.setAttribute('aria-describedby', range.id);
    return element('div', { class: 'control' }, element('label', { for: 'tokens' }, 'Tokens'), this.tokens, range);
  }

  makeReset() {
    this.reset = element('button', { type: 'button', class: 'button', id: 'reset' }, 'Reset');
    this.reset.addEventListener('click', () => this.ask({ reset: true }));
    return element('div', { class: 'control' }, this.reset);
  }

  show(state, isFirst) {
    Object.assign(this, { state, isFirst });
    const position = String(Math.round(this.position(state.scale)));
    if (this.slider.value !== position) this.slider.value = position;
    const text = state.scale === null ? `1/√${this.dim} = ${fixed(this.usual, 4)}` : state.scale === 0 ? '0' : number(state.scale);
    setText(this.shownScale, text);
    const meaning = state.scale === 0 ? ', the plain average' : '';
    this.slider.setAttribute('aria-valuetext', text + meaning);
    this.mask.checked = state.causal;
    if (document.activeElement !== this.tokens) this.tokens.value = String(state.x.length);
    this.reset.disabled = isFirst;
  }
}

export { Controls };
