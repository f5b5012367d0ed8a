// All heads of an input: pictures and table, in one order.

import { element, setText } from './dom.js';
import { HEAD_COLUMNS, BY_PLACE, columnText, sortedHeads, headName } from './columns.js';
import { HeadTable } from './head-table.js';
import { Thumbnails } from './thumbnails.js';

const WHAT_A_HEAD_IS = 'Each picture is one head: one of several attentions that a layer runs side by side. A row for each query, a column for each key; brighter is more weight. Heads have habits; sort by a column to find them.';
const MEANS = 'Numbers are means over the queries that attend something.';

class Overview {
  /** `input` as a source answers; `ask(change)`, `open(head)`. */
  constructor({ source, survey, input, ask, open }) {
    Object.assign(this, { survey, input, ask, state: null });
    this.all = input.layers.flatMap(({ layer, heads }) => Array.from({ length: heads }, (_, head) => ({ layer, head })));
    const hint = (head) => {
      this.pictures.mark(head);
      this.table.mark(head);
    };
    this.pictures = new Thumbnails({ fetchPicture: ({ layer, head }, signal) => source.thumbnail({ layer, head, batch: this.state.batch }, signal), open, hint });
    this.table = new HeadTable({ sort: (column) => this.sort(column), open, hint });
    this.layOut();
  }

  layOut() {
    const { title, layers, batches } = this.input;
    const names = { [BY_PLACE]: 'layer and head', ...Object.fromEntries(HEAD_COLUMNS.map(({ name }) => [name, name])) };
    if (layers.length === 1) names[BY_PLACE] = 'number';
    this.order = element('select', { id: 'sort' }, ...Object.entries(names).map(([value, name]) => element('option', { value }, name)));
    this.order.addEventListener('change', () => this.ask({ sort: this.order.value, up: false }));
    this.turn = element('button', { type: 'button', class: 'button', id: 'sort-way' });
    this.turn.addEventListener('click', () => this.ask({ up: !this.state.up }));
    this.batch = element('input', { type: 'number', id: 'batch', min: 0, max: batches - 1, inputmode: 'numeric' });
    this.batch.addEventListener('change', () => {
      const batch = Number(this.batch.value);
      if (Number.isInteger(batch) && batch >= 0 && batch < batches) this.ask({ batch });
      else this.batch.value = String(this.state.batch);
    });
    const batch = element('label', { class: 'bar-group', hidden: batches < 2 }, 'Batch ', this.batch, ` of ${batches}, from 0`);
    this.told = element('p', { class: 'quiet', role: 'status' });
    const bar = element('div', { class: 'overview-bar' }, element('label', { class: 'bar-group' }, 'Sort by ', this.order, this.turn), batch, this.told);
    this.meaning = element('p', { class: 'quiet meaning' });
    const meanings = HEAD_COLUMNS.flatMap(({ name, says }) => [element('dt', null, name), element('dd', null, says)]);
    const glossary = element('details', { class: 'glossary' }, element('summary', null, 'What the columns mean'), element('dl', null, ...meanings, element('dt', null, '–'), element('dd', null, 'Not known: no tokens, or no query that attends anything.')), element('p', { class: 'quiet' }, MEANS));
    const about = element('div', { class: 'about' }, element('h2', null, title || 'Attention'), element('p', { class: 'quiet' }, factsOf(this.input)), element('p', { class: 'lead' }, WHAT_A_HEAD_IS));
    const numbers = element('section', { class: 'numbers', 'aria-label': 'Heads in numbers' }, this.meaning, this.table.element, glossary);
    this.element = element('div', { class: 'overview', hidden: true }, about, bar, element('div', { class: 'overview-body' }, this.pictures.element, numbers));
  }

  /** A column that is pressed again turns the order over. */
  sort(column) {
    const { sort, up } = this.state;
    this.ask(column === sort && column !== BY_PLACE ? { up: !up } : { sort: column, up: false });
  }

  /** `isShown`: else it is only kept ready. */
  show(state, isShown) {
    if (this.state !== null && this.state.batch !== state.batch) this.pictures.clear();
    this.state = state;
    if (!isShown) return;
    const rows = this.rows();
    const column = HEAD_COLUMNS.find((one) => one.name === state.sort) ?? null;
    const byName = new Map(rows.map((row) => [headName(row), row]));
    const value = (head) => {
      const row = byName.get(headName(head));
      return column !== null && row.known ? columnText(column, row[column.name]) : '';
    };
    this.pictures.show(rows, { grouped: column === null, value });
    this.table.show(rows, { sort: state.sort, up: state.up, extents: extentsOf(rows) });
    this.order.value = state.sort;
    setText(this.turn, state.up ? '↑ smallest first' : '↓ largest first');
    this.turn.hidden = column === null;
    this.batch.value = String(state.batch);
    setText(this.meaning, column === null ? MEANS : `${column.name}: ${column.says}`);
    this.tell();
  }

  /** All heads in the state's order, with their numbers as far as they are known. */
  rows() {
    const rows = this.all.map((head) => {
      const row = this.survey.row(head);
      return { ...head, ...row, known: row !== null };
    });
    return sortedHeads(rows, this.state.sort, this.state.up);
  }

  tell() {
    const { rows, total, error } = this.survey;
    const missing = (total ?? this.all.length) - rows.length;
    const failed = error === null ? '' : `The table waits: ${error.message}.`;
    setText(this.told, failed || (missing > 0 ? `Looking at the heads: ${rows.length} of ${total ?? this.all.length}` : ''));
  }

  /** Where one was before a map was opened. */
  focusOn(head) {
    this.pictures.focusOn(head);
  }

  /** The head before or after one, in this order, all around. */
  neighbour(head, way) {
    const rows = this.rows();
    const at = rows.findIndex((row) => headName(row) === headName(head));
    return rows[(at + way + rows.length) % rows.length];
  }
}

/** From the smallest to the largest of each column. */
function extentsOf(rows) {
  return Object.fromEntries(
    HEAD_COLUMNS.map(({ name }) => {
      const numbers = rows.map((row) => row[name]).filter((x) => Number.isFinite(x));
      return [name, numbers.length > 0 ? [Math.min(...numbers, 0), Math.max(...numbers)] : null];
    }),
  );
}

function factsOf({ layers, batches }) {
  const range = (name) => {
    const lengths = [...new Set(layers.map((layer) => layer[name]))];
    return lengths.length > 1 ? `${Math.min(...lengths)} to ${Math.max(...lengths)}` : String(lengths[0] ?? 0);
  };
  const count = (number, what) => `${number} ${what}${number === 1 ? '' : 's'}`;
  const heads = layers.reduce((sum, layer) => sum + layer.heads, 0);
  const masks = [...new Set(layers.flatMap((layer) => layer.masks))];
  const parts = layers.length > 1 ? [count(layers.length, 'layer')] : [];
  parts.push(count(heads, 'head'), `${range('lenQuery')} queries × ${range('lenKey')} keys of ${range('dim')} numbers`);
  if (batches > 1) parts.push(count(batches, 'batch').replace('batchs', 'batches'));
  return `${parts.join(', ')}. ${masks.length > 0 ? `Mask: ${masks.join('; ')}.` : 'No mask: every query may attend every key.'}`;
}

export { Overview };
