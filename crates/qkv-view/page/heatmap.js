// A matrix as a table of cells, each with its number and a colour for its size.
//
// It is a grid to a keyboard: one stop for Tab, arrows move within, Home and End along a row. Pointing at a cell and
// focusing one are told to the page (`onPoint`), which says what is to be lit (`mark`).

import { element, setText, sentence } from './dom.js';
import { cellNumber, number } from './numbers.js';
import { nameText } from './labels.js';

const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

class Heatmap {
  /**
   * `name`: what it is, for readers of the screen. `palette`: `diverging` by sign and size, `sequential` for weights.
   * `axes`: what rows and columns are called. `editor`: makes the inside of cells that can be changed.
   * `onPoint({row, column} | null, held)`: held by focus, or only hovered.
   */
  constructor({ id, name, palette, axes, onPoint, editor = null }) {
    Object.assign(this, { id, name, palette, axes, onPoint, editor });
    this.cells = [];
    this.rowHeads = [];
    this.at = [0, 0];
    this.head = element('thead');
    this.body = element('tbody');
    this.element = element('table', { class: `heatmap ${palette}`, role: 'grid', id: `matrix-${id}`, 'aria-label': name });
    this.element.append(this.head, this.body);
    this.listen();
  }

  /** `rows` and `columns` are names; `limit` is the size that has the full colour. */
  update({ values, rows, columns, limit, digits }) {
    this.values = values;
    this.names = { rows, columns };
    if (this.cells.length !== rows.length || this.cells[0].length !== columns.length) this.build();
    this.columnHeads.forEach((head, at) => this.setHead(head, columns[at]));
    this.rowHeads.forEach((head, at) => this.setHead(head, rows[at]));
    this.cells.forEach((line, row) => line.forEach((cell, column) => this.paint(cell, row, column, limit, digits)));
  }

  build() {
    const { rows, columns } = this.names;
    const corner = element('td', { class: 'corner', 'aria-hidden': 'true' });
    this.columnHeads = columns.map(() => element('th', { scope: 'col' }));
    this.head.replaceChildren(element('tr', null, corner, ...this.columnHeads));
    this.rowHeads = rows.map(() => element('th', { scope: 'row' }));
    const place = (row, column) => element('td', { role: 'gridcell', 'data-row': row, 'data-column': column });
    this.cells = rows.map((_, row) => columns.map((_, column) => place(row, column)));
    this.lines = this.cells.map((line, row) => element('tr', null, this.rowHeads[row], ...line));
    this.body.replaceChildren(...this.lines);
    if (this.editor) this.cells.flat().forEach((cell) => cell.append(this.editor(cell)));
    this.at = [Math.min(this.at[0], rows.length - 1), Math.min(this.at[1], columns.length - 1)];
    this.rove(this.at);
  }

  setHead(head, name) {
    // A head with a field for its word keeps it.
    if (head.querySelector('input')) return;
    head.replaceChildren(...sentence([name]));
    head.title = nameText(name);
  }

  paint(cell, row, column, limit, digits) {
    const x = this.values[row][column];
    const share = limit > 0 && !Number.isNaN(x) ? Math.min(Math.abs(x) / limit, 1) : 0;
    cell.className = Number.isNaN(x) ? 'unknown' : x === -Infinity ? 'hidden' : x < 0 ? 'below' : 'above';
    cell.style.setProperty('--share', share.toFixed(4));
    const { rows, columns } = this.names;
    const label = `${this.axes[0]} ${nameText(rows[row])}, ${this.axes[1]} ${nameText(columns[column])}: ${number(x)}`;
    const inside = this.focusable(cell);
    if (inside.getAttribute('aria-label') !== label) inside.setAttribute('aria-label', label);
    if (inside === cell) setText(cell, cellNumber(x, digits));
    else inside.show(x, digits);
  }

  /** What is lit: `rows` and `columns` are sets, `cell` a place, `shade` a share for each row, by weight. */
  mark({ rows, columns, cell, shade }) {
    const lit = rows.size > 0 || columns.size > 0 || cell !== null;
    this.element.classList.toggle('lit', lit);
    this.element.classList.toggle('shaded', shade !== null);
    const most = shade === null ? 0 : Math.max(...shade.filter((x) => !Number.isNaN(x)), 0);
    this.lines.forEach((line, row) => {
      line.classList.toggle('on', rows.has(row));
      const weight = shade === null ? 0 : shade[row] || 0;
      line.style.setProperty('--weight', weight.toFixed(4));
      line.style.setProperty('--strength', most > 0 ? (weight / most).toFixed(4) : '0');
    });
    this.columnHeads.forEach((head, column) => head.classList.toggle('on', columns.has(column)));
    this.cells.forEach((line, row) =>
      line.forEach((one, column) => {
        one.classList.toggle('on', rows.has(row) || columns.has(column));
        one.classList.toggle('in-column', columns.has(column));
        one.classList.toggle('spot', cell !== null && cell[0] === row && cell[1] === column);
      }),
    );
  }

  /** What takes the focus for a cell: itself, or the field in it. */
  focusable(cell) {
    return cell.querySelector('input') ?? cell;
  }

  /** Tab reaches one cell: the last that was used. */
  rove([row, column]) {
    this.at = [row, column];
    this.cells.flat().forEach((cell) => {
      this.focusable(cell).tabIndex = cell === this.cells[row][column] ? 0 : -1;
    });
  }

  listen() {
    const place = (node) => {
      const cell = node.closest?.('th, td');
      const line = cell ? Array.from(cell.parentElement.children) : [];
      const row = this.lines.indexOf(cell?.parentElement);
      const column = line.indexOf(cell) - 1;
      return row < 0 && column < 0 ? null : { row: row < 0 ? null : row, column: column < 0 ? null : column };
    };
    this.element.addEventListener('pointerover', (event) => {
      if (event.pointerType !== 'touch') this.onPoint(place(event.target), false);
    });
    this.element.addEventListener('pointerleave', () => this.onPoint(null, false));
    this.element.addEventListener('click', (event) => {
      const where = place(event.target);
      if (where !== null) this.onPoint(where, true);
    });
    this.element.addEventListener('focusin', (event) => {
      const where = place(event.target);
      if (where === null || where.row === null || where.column === null) return;
      this.rove([where.row, where.column]);
      this.onPoint(where, true);
    });
    this.element.addEventListener('keydown', (event) => this.move(event));
  }

  move(event) {
    const [row, column] = this.at;
    const [last, end] = [this.cells.length - 1, this.cells[0].length - 1];
    const jump = { Home: [event.ctrlKey ? 0 : row, 0], End: [event.ctrlKey ? last : row, end] }[event.key];
    const step = MOVES[event.key];
    if (event.defaultPrevented || event.altKey || event.metaKey || !(step || jump)) return;
    // Of a head's field the arrows are its own, and of a cell's until its text has none left.
    const field = event.target.closest('input');
    if (field && (field.closest('th') || !field.lets(event.key))) return;
    const [to, across] = jump ?? [row + step[0], column + step[1]];
    event.preventDefault();
    if (to < 0 || across < 0 || to > last || across > end) return;
    this.focusable(this.cells[to][across]).focus();
  }
}

export { Heatmap };
