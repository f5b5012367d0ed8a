// The bar over a map: which head, what is shown of it, search, zoom.

import { element, setText } from './dom.js';
import { SHOWN } from './legend.js';
import { headName } from './columns.js';
import { onlyHead } from './explorer-state.js';

const OF_NAMES = { weights: 'Weights', scores: 'Scores q · k', scaled: 'Scaled scores', influence: 'Influence', mask: 'Mask' };
const POOL_NAMES = { max: 'largest', mean: 'mean' };

class MapBar {
  /** `ask(change of the state)`, `back()`, `step(way)` to another head, `zoom(factor)`, `whole()`. */
  constructor({ input, offers, search, ask, back, step, zoom, whole }) {
    this.batches = input.batches;
    this.alone = onlyHead(input) ? input.title || 'Attention' : null;
    const button = (sign, name, press) => {
      const made = element('button', { type: 'button', class: 'button icon', 'aria-label': name, title: name }, sign);
      made.addEventListener('click', press);
      return made;
    };
    this.back = element('button', { type: 'button', class: 'button', id: 'all-heads' }, '‹ All heads');
    this.back.addEventListener('click', back);
    this.name = element('h2', { class: 'map-name' });
    this.steps = [button('‹', 'previous head  [', () => step(-1)), button('›', 'next head  ]', () => step(1))];
    this.of = choice('of', 'Show', OF_NAMES, offers.of, ask);
    this.pool = choice('pool', 'A pixel is the', POOL_NAMES, offers.pool, ask);
    const zooms = [button('−', 'zoom out  −', () => zoom(0.5)), button('+', 'zoom in  +', () => zoom(2)), button('⤢', 'the whole map  0', whole)];
    const heads = element('div', { class: 'bar-group' }, this.back, this.steps[0], this.name, this.steps[1]);
    this.element = element('div', { class: 'map-bar' }, heads, this.of.element, this.pool.element, search, element('div', { class: 'bar-group zooms' }, ...zooms));
  }

  show(state) {
    const name = this.alone ?? headName(state);
    setText(this.name, this.batches > 1 ? `${name}, batch ${state.batch}` : name);
    for (const button of [this.back, ...this.steps]) button.hidden = this.alone !== null;
    this.of.select.value = state.of;
    this.pool.select.value = state.pool;
    if (this.pool.select.firstChild.value === 'max') setText(this.pool.select.firstChild, SHOWN[state.of].large.replace('the ', ''));
    this.of.element.title = SHOWN[state.of].says;
  }
}

/** A labelled list of choices, of which a source offers some. */
function choice(name, label, names, offered, ask) {
  const options = offered.map((value) => element('option', { value }, names[value]));
  const select = element('select', { id: `map-${name}` }, ...options);
  select.disabled = offered.length < 2;
  select.addEventListener('change', () => ask({ [name]: select.value }));
  return { element: element('label', { class: 'bar-group' }, `${label} `, select), select };
}

export { MapBar };
