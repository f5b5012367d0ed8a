// The table of heads: a line each, columns to sort by.

import { element, setText } from './dom.js';
import { HEAD_COLUMNS, BY_PLACE, columnText, headName } from './columns.js';

class HeadTable {
  /** `sort(column)`, `open(head)`, `hint(head | null)`. */
  constructor({ sort, open, hint }) {
    Object.assign(this, { open, hint });
    this.heads = [{ name: BY_PLACE, title: 'head', says: 'By layer and head' }, ...HEAD_COLUMNS].map((column) => {
      const button = element('button', { type: 'button', class: 'sorter', title: column.says }, column.title ?? column.name);
      button.addEventListener('click', () => sort(column.name));
      return element('th', { scope: 'col', 'data-column': column.name }, button);
    });
    this.body = element('tbody');
    this.lines = new Map();
    const table = element('table', { class: 'head-table', 'aria-label': 'Heads in numbers' }, element('thead', null, element('tr', null, ...this.heads)), this.body);
    this.element = element('div', { class: 'table-box', tabindex: 0, role: 'region', 'aria-label': 'Table of heads' }, table);
  }

  /** `rows` in their order; what is not known yet has no numbers. */
  show(rows, { sort, up, extents }) {
    for (const head of this.heads) {
      const sorted = head.dataset.column === sort;
      if (sorted && sort !== BY_PLACE) head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
      else head.removeAttribute('aria-sort');
    }
    const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
    this.body.replaceChildren(...rows.map((row) => this.line(row, sort, extents)));
    focused?.focus();
  }

  line(row, sort, extents) {
    const name = headName(row);
    if (!this.lines.has(name)) this.lines.set(name, this.makeLine(row));
    const { line, cells } = this.lines.get(name);
    HEAD_COLUMNS.forEach((column, at) => {
      const value = row[column.name];
      setText(cells[at], row.known ? columnText(column, value) : '');
      cells[at].classList.toggle('sorted', column.name === sort);
      const [low, high] = column.share ? [0, 1] : (extents[column.name] ?? [0, 0]);
      const share = Number.isFinite(value) && high > low ? (value - low) / (high - low) : 0;
      cells[at].style.setProperty('--share', String(Math.min(Math.max(share, 0), 1)));
    });
    line.classList.toggle('unknown-yet', !row.known);
    return line;
  }

  makeLine(head) {
    const button = element('button', { type: 'button', class: 'line-name', 'aria-label': `Open ${headName(head)}` }, head.layer === null ? String(head.head) : `${head.layer} · ${head.head}`);
    button.addEventListener('click', () => this.open(head));
    const cells = HEAD_COLUMNS.map(() => element('td'));
    const line = element('tr', null, element('th', { scope: 'row' }, button), ...cells);
    line.addEventListener('pointerenter', () => this.hint(head));
    line.addEventListener('pointerleave', () => this.hint(null));
    line.addEventListener('click', (event) => {
      if (event.target !== button) this.open(head);
    });
    return { line, cells };
  }

  mark(head) {
    for (const [name, { line }] of this.lines) line.classList.toggle('hinted', head !== null && headName(head) === name);
  }
}

export { HeadTable };
