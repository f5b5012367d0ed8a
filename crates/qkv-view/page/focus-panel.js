// Beside the map: one query's strongest keys, or the queries that look at one key.

import { element, setText, sentence } from './dom.js';
import { HEAD_COLUMNS, columnText } from './columns.js';
import { number, printed, typeset } from './numbers.js';
import { visibleWord } from './labels.js';

const few = (x) => {
  if (x > 0 && x < 1e-3) return 'less than 0.001';
  return typeset(Math.abs(x) >= 1e5 ? printed(x) : String(Number(x.toPrecision(3))));
};
/** As many letters as there is room for. */
const short = (x) => (x !== 0 && Math.abs(x) < 5e-5 ? typeset(x.toExponential(0)) : number(x));
const BY = { weight: 'by weight', influence: 'by influence' };

class FocusPanel {
  /** `ask({side | by})`, `pick({query, key})` of a line that is pressed, `hint({query, key} | null)` of one pointed at, `letGo()`. */
  constructor({ ask, pick, hint, letGo }) {
    Object.assign(this, { ask, pick, hint });
    this.heading = element('h2', { class: 'focus-name' });
    this.release = element('button', { type: 'button', class: 'button release', title: 'Escape' }, 'Let go');
    this.release.addEventListener('click', letGo);
    this.sides = ['query', 'key'].map((side) => this.makeChoice('side', side, ''));
    this.orders = ['weight', 'influence'].map((by) => this.makeChoice('by', by, BY[by]));
    this.sideBar = element('div', { class: 'choices sides', role: 'group', 'aria-label': 'Whose list' }, ...this.sides);
    this.orderBar = element('div', { class: 'choices', role: 'group', 'aria-label': 'Order of the list' }, ...this.orders);
    this.facts = element('p', { class: 'facts' });
    this.list = element('ol', { class: 'pairs' });
    this.columns = element('div', { class: 'pair-columns', 'aria-hidden': 'true', hidden: true }, ...['weight', 'influence'].map((name) => element('span', { class: 'pair-number' }, name)));
    this.note = element('p', { class: 'quiet' });
    const head = element('div', { class: 'focus-head' }, this.heading, this.release);
    this.element = element('section', { class: 'focus', 'aria-label': 'Query or key' }, head, this.sideBar, this.facts, this.orderBar, this.columns, this.list, this.note);
  }

  makeChoice(name, value, text) {
    const button = element('button', { type: 'button', class: 'choice', 'aria-pressed': 'false' }, text);
    button.addEventListener('click', () => this.ask({ [name]: value }));
    return button;
  }

  /** `shown` is what `Attended` knows, `wish` what it asks for, `share` how much of all weights is known; of a pair `query` and `key`, both can be asked for. */
  show({ query, key, by, pinned, shown, wish, waiting, late, share, names, row }) {
    this.element.classList.toggle('waiting', waiting && !late);
    this.release.hidden = !pinned;
    this.sideBar.hidden = query === null || key === null;
    this.sides.forEach((button, at) => {
      const whose = ['query', 'key'][at];
      button.setAttribute('aria-pressed', String(whose === wish?.side));
      setText(button, whose === 'query' ? `What query ${query} looks at` : `Who looks at key ${key}`);
    });
    this.heading.replaceChildren(...sentence(wish ? capital(names.said(wish.side, wish.at)) : ['Point at the map']));
    if (shown === null) this.showGuide(waiting, late ? waitingWords(wish.side, share) : '', row);
    else if (shown.error) this.clear(`This could not be had: ${shown.error.message}.`);
    else this.showAnswer(shown, by, { query, key });
  }

  showGuide(waiting, words, row) {
    this.clear(words);
    if (waiting) return;
    const guide = [
      'A row is a query: a token that looks. A column is a key: a token that can be looked at.',
      'Point at a row to see what it looks at, at a token along the top to see who looks at it. Press to pin it.',
    ];
    this.facts.replaceChildren(...guide.map((text) => element('span', { class: 'guide' }, text)));
    if (row === null) return;
    const numbers = HEAD_COLUMNS.map((column) => {
      const value = element('b', null, columnText(column, row[column.name]));
      return element('li', { class: 'head-number', title: column.says }, column.name, ' ', value);
    });
    this.list.replaceChildren(...numbers);
    setText(this.note, 'This head in numbers: means over its queries.');
  }

  clear(words) {
    setText(this.facts, words);
    this.orderBar.hidden = true;
    this.columns.hidden = true;
    this.list.replaceChildren();
    setText(this.note, '');
  }

  showAnswer({ side, at, answer }, by, pair) {
    const place = { ...pair, [side]: at };
    const order = side === 'query' && answer.lists.influence ? by : 'weight';
    const pairs = answer.lists[order];
    setText(this.facts, side === 'query' ? factsOfQuery(answer) : factsOfKey(answer));
    this.orderBar.hidden = side !== 'query' || !answer.lists.influence || pairs.length === 0;
    this.orders.forEach((button, at) => button.setAttribute('aria-pressed', String(Object.keys(BY)[at] === order)));
    this.columns.hidden = pairs.length === 0;
    this.columns.lastChild.hidden = pairs.every((pair) => pair.influence === null);
    const most = Math.max(...pairs.map((pair) => pair[order]).filter((x) => Number.isFinite(x)), 0);
    const widest = Math.max(...pairs.map((pair) => String(pair.at).length), 1);
    this.list.style.setProperty('--digits', String(widest));
    this.list.replaceChildren(...pairs.map((pair) => this.line(pair, side, order, most, place)));
    setText(this.note, pairs.length === 0 ? '' : noteOf(side, order));
  }

  line(pair, side, order, most, place) {
    const cell = side === 'query' ? { query: place.query, key: pair.at } : { query: pair.at, key: place.key };
    const word = pair.token === null ? '' : visibleWord(pair.token);
    const bar = element('i', { class: 'pair-bar', 'aria-hidden': 'true' });
    bar.style.setProperty('--share', String(most > 0 && pair[order] > 0 ? pair[order] / most : 0));
    const numbers = ['weight', 'influence'].map((name) => {
      const text = pair[name] === null ? '' : short(pair[name]);
      return element('span', { class: `pair-number ${name === order ? 'ranked' : ''}`, title: name }, text);
    });
    const index = element('span', { class: 'index' }, String(pair.at));
    const parts = [element('bdi', { class: 'token' }, word), index, bar, ...numbers];
    const button = element('button', { type: 'button', class: 'pair' }, ...parts);
    const same = side === 'query' ? pair.at === place.key : pair.at === place.query;
    const moved = pair.influence === null ? '' : `, influence ${number(pair.influence)}`;
    button.setAttribute('aria-label', `${side === 'query' ? 'key' : 'query'} ${pair.at} ${word}, weight ${number(pair.weight)}${moved}`);
    if (same) button.setAttribute('aria-current', 'true');
    button.addEventListener('click', () => this.pick(cell, side));
    button.addEventListener('pointerenter', () => this.hint(cell));
    button.addEventListener('focus', () => this.hint(cell));
    for (const left of ['pointerleave', 'blur']) button.addEventListener(left, () => this.hint(null));
    return element('li', null, button);
  }
}

/** Who looks at a key is known when all queries are; what a query looks at is asked for at once. */
function waitingWords(side, share) {
  if (side === 'query') return 'Asking for its keys …';
  return `This needs the weights of all queries${share === null ? ', which are being computed …' : `: ${Math.round(share * 100)} %`}`;
}

const capital = ([first, ...rest]) => [first[0].toUpperCase() + first.slice(1), ...rest];

function factsOfQuery({ mass, entropy, effectiveKeys, distance, rest, lists }) {
  if (Number.isNaN(mass)) return 'Its weights are NaN, no numbers: a score that it sees is NaN or +∞. So is its output.';
  if (mass === 0) return 'It attends nothing: every key is masked. Its weights and its output are 0.';
  const parts = [];
  if (effectiveKeys !== null) parts.push(`Spread as over ${few(effectiveKeys)} ${few(effectiveKeys) === '1' ? 'key' : 'keys'} of equal weight (entropy ${few(entropy)} nats).`);
  if (distance !== null) parts.push(`On average ${few(distance)} positions away.`);
  if (Math.abs(mass - 1) > 1e-3) parts.push(`Its weights sum to ${number(mass)}.`);
  if (rest !== null && rest > 5e-5) parts.push(`The other keys share ${number(rest)}; these ${lists.weight.length} have the rest.`);
  return parts.join(' ');
}

function factsOfKey({ received, queries, sampled, lists }) {
  const parts = [];
  if (received !== null) parts.push(`Receives ${number(received)} in all`);
  if (queries !== null) parts.push(`${parts.length ? 'from' : 'Seen by'} ${queries} ${queries === 1 ? 'query' : 'queries'}`);
  const told = parts.length === 0 ? '' : `${parts.join(' ')}.`;
  if (sampled !== null) return `${told} This file knows the ${sampled} strongest keys of each query: here are those queries that have it among them.`;
  return lists.weight.length === 0 ? `${told} No query looks at it.` : told;
}

function noteOf(side, order) {
  if (side === 'key') return 'Weights that these queries give to it.';
  return order === 'weight'
    ? 'Weight, and influence: how far the output would move without the key.'
    : 'Ranked by influence: a key of little weight can matter if its value is unlike the others.';
}

export { FocusPanel };
