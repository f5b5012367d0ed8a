// Fields of the lesson that are changed in place: a number, dragged or typed, and a token's word.

import { element } from './dom.js';
import { f32, cellNumber, shortest, parseNumber } from './numbers.js';

/** What a pixel of dragging, and a key, add; a tenth with Shift. */
const BY_PIXEL = 0.01;
const BY_PAGE_KEY = 0.1;
/** So far a pointer may slip before a click becomes a drag. */
const SLIP = 3;

/**
 * A field for a number. It shows 4 decimals, or the whole number while it is edited. `change(x)` is called with each
 * new finite f32; what is no number is marked, and undone when the field is left.
 */
function numberField(change) {
  const field = element('input', { type: 'text', inputmode: 'decimal', autocomplete: 'off', spellcheck: 'false' });
  let value = 0;
  let digits = 4;
  let drag = null;
  const display = () => {
    field.value = document.activeElement === field && !drag ? shortest(value) : cellNumber(value, digits);
    field.removeAttribute('aria-invalid');
  };
  const set = (x) => {
    value = f32(x);
    change(value);
  };
  const nudge = (steps, fine) => {
    set(Math.round((value + steps * (fine ? 0.1 : 1)) * 1e4) / 1e4);
    display();
  };

  /** From the page: a number that is being typed stays as it is typed. */
  field.show = (x, places) => {
    digits = places;
    if (x === value && document.activeElement === field) return;
    value = x;
    display();
  };
  /** Whether an arrow may leave the field. */
  field.lets = (key) => {
    const [start, end, length] = [field.selectionStart, field.selectionEnd, field.value.length];
    const whole = start === 0 && end === length;
    if (key === 'ArrowLeft' || key === 'Home') return whole || end === 0;
    if (key === 'ArrowRight' || key === 'End') return whole || start === length;
    return true;
  };
  field.addEventListener('focus', () => {
    display();
    field.select();
  });
  field.addEventListener('blur', display);
  field.addEventListener('input', () => {
    const x = parseNumber(field.value);
    if (x === null) field.setAttribute('aria-invalid', 'true');
    else {
      field.removeAttribute('aria-invalid');
      set(x);
    }
  });
  field.addEventListener('keydown', (event) => {
    if (event.key === 'PageUp' || event.key === 'PageDown') {
      event.preventDefault();
      nudge(event.key === 'PageUp' ? BY_PAGE_KEY : -BY_PAGE_KEY, event.shiftKey);
    } else if (event.key === 'Enter' || event.key === 'Escape') {
      display();
      field.select();
    }
  });

  field.addEventListener('pointerdown', (event) => {
    if (event.button === 0) drag = { id: event.pointerId, from: event.clientX, value, moved: false };
  });
  field.addEventListener('pointermove', (event) => {
    if (drag === null || event.pointerId !== drag.id) return;
    const way = event.clientX - drag.from;
    if (!drag.moved && Math.abs(way) <= SLIP) return;
    if (!drag.moved) {
      drag.moved = true;
      field.setPointerCapture(drag.id);
      field.classList.add('dragged');
    }
    event.preventDefault();
    set(Math.round((drag.value + way * BY_PIXEL * (event.shiftKey ? 0.1 : 1)) * 1e4) / 1e4);
    display();
  });
  const drop = () => {
    drag = null;
    field.classList.remove('dragged');
    display();
  };
  field.addEventListener('pointerup', drop);
  field.addEventListener('pointercancel', drop);
  return field;
}

/** A field for a token's word. `change(word)` is called with each text that is typed. */
function wordField(most, change) {
  const field = element('input', { type: 'text', class: 'word', maxlength: 2 * most, autocomplete: 'off', spellcheck: 'false', dir: 'auto' });
  field.addEventListener('input', () => change(field.value));
  field.show = (word) => {
    if (document.activeElement !== field && field.value !== word) field.value = word;
  };
  field.lets = () => false;
  return field;
}

export { numberField, wordField };
