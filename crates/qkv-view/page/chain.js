// The chain of matrices, from embeddings to the output: each a heatmap with its title, formula and reason.

import { element, setText, formulaParts } from './dom.js';
import { Heatmap } from './heatmap.js';
import { numberField, wordField } from './fields.js';
import { WIDE, FIGURES, formulaOf, reasonOf, limitsOf, digitsOf } from './figures.js';
import { pointOf, marksOf } from './links.js';
import { LONGEST_WORD } from './labels.js';

const INTRODUCTION = [
  'Attention lets every token take from the others what it needs: a weighted average, whose weights are made on the spot.',
  'To choose them, each token turns into a query (what it looks for), a key (what it is found by) and a value (what it passes on).',
];
const WORDS_NOTE = 'Words are names only: what counts are the numbers. These are random; a model would have learned them.';

class Chain {
  /** `point(point | null, held)`, `changeNumber(row, column, x)`, `changeWord(row, word)`. */
  constructor({ point, changeNumber, changeWord }) {
    this.changeWord = changeWord;
    this.parts = new Map();
    for (const figure of FIGURES) {
      const onPoint = (where, held) => point(where === null ? null : pointOf(figure.id, where), held);
      const edited = (cell) => numberField((x) => changeNumber(Number(cell.dataset.row), Number(cell.dataset.column), x));
      const heatmap = new Heatmap({
        id: figure.id,
        name: figure.step ? `Step ${figure.step}: ${figure.subject}` : [figure.name, figure.subject].filter(Boolean).join(', '),
        palette: figure.group === 'weights' ? 'sequential' : 'diverging',
        axes: figure.axes,
        onPoint,
        editor: figure.id === 'x' ? edited : null,
      });
      this.parts.set(figure.id, this.makeFigure(figure, heatmap));
    }
    const boxes = (ids) => ids.map((id) => this.parts.get(id).element);
    const introduction = element('div', { class: 'introduction' }, ...INTRODUCTION.map((text) => element('p', null, text)), element('p', { class: 'quiet' }, WORDS_NOTE));
    this.element = element(
      'div',
      { class: 'chain' },
      element('section', { class: 'made', 'aria-label': 'From embeddings to queries, keys and values' }, introduction, ...boxes(FIGURES.slice(0, 8).map(({ id }) => id))),
      element('section', { class: 'steps', 'aria-label': 'From scores to the output' }, ...boxes(FIGURES.slice(8).map(({ id }) => id))),
    );
  }

  makeFigure(figure, heatmap) {
    const number = figure.step ? [element('span', { class: 'step-number', 'aria-label': `Step ${figure.step}` }, figure.step)] : [];
    const name = figure.name ? [element('b', null, ...formulaParts(figure.name)), ' '] : [];
    const heading = element(figure.learned ? 'div' : 'h2', { class: 'figure-title' }, ...number, ...name, figure.subject ?? '');
    const formula = element('span', { class: 'formula' });
    const reason = element('p', { class: 'reason' });
    const box = element('div', { class: 'figure', 'data-figure': figure.id }, element('div', { class: 'figure-head' }, heading, formula), heatmap.element, reason);
    return { figure, heatmap, formula, reason, element: box };
  }

  /** `scene`: `{steps, names, words, x, weights, scale, causal}` */
  update(scene) {
    const { steps, names } = scene;
    const matrices = { x: scene.x, ...scene.weights };
    for (const { id } of FIGURES) matrices[id] ??= steps[id].values;
    this.element.classList.toggle('many', names.length >= WIDE);
    const limits = limitsOf(matrices);
    const numbered = (count) => Array.from({ length: count }, (_, at) => ({ text: String(at), place: '' }));
    for (const { figure, heatmap, formula, reason } of this.parts.values()) {
      const values = matrices[figure.id];
      heatmap.update({
        values,
        rows: figure.learned ? numbered(values.length) : names,
        columns: figure.axes[1] === 'key' ? names : numbered(values[0].length),
        limit: limits[figure.group],
        digits: digitsOf(figure, names.length),
      });
      formula.replaceChildren(...formulaParts(formulaOf(figure, steps)));
      setText(reason, reasonOf(figure.id, scene));
    }
    this.showWords(scene.words);
  }

  /** The words are edited where they name the rows of X. */
  showWords(words) {
    this.parts.get('x').heatmap.rowHeads.forEach((head, row) => {
      let field = head.querySelector('input');
      if (!field) {
        field = wordField(LONGEST_WORD, (word) => this.changeWord(row, word));
        head.replaceChildren(field);
      }
      field.setAttribute('aria-label', `word of token ${row}`);
      field.show(words[row]);
    });
  }

  /** Lights up what belongs to a point. */
  mark(point, weights) {
    this.element.classList.toggle('pointing', point !== null);
    for (const { figure, heatmap } of this.parts.values()) heatmap.mark(marksOf(figure.id, point, weights));
  }
}

export { Chain };
