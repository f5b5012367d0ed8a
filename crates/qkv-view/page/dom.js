// Elements of the page. Text goes in as text, styles through the object model (a policy forbids `style` attributes).

/** `element('td', { class: 'cell', title: word }, 'text', child)`; an attribute that is `false` or `null` is left out. */
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  setAttributes(made, attributes);
  made.append(...children);
  return made;
}

/** The same for pictures. */
function svgElement(tag, attributes, ...children) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
  setAttributes(made, attributes);
  made.append(...children);
  return made;
}

function setAttributes(made, attributes) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== null && value !== undefined && value !== false) {
      made.setAttribute(name, value === true ? '' : value);
    }
  }
}

/** Sets a text if it is another: what is selected or read aloud stays otherwise. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A token's name, isolated so that a word written from right to left leaves the sentence around it in order. */
function nameElement({ text, place }) {
  const name = element('bdi', { class: 'token' }, text);
  if (place !== '') name.append(element('sub', null, place));
  return name;
}

/** A formula, with its subscripts set: `X · W_q`. */
function formulaParts(text) {
  return text.split(/(_\w)/).map((part) => (part.startsWith('_') ? element('sub', null, part.slice(1)) : part));
}

/** Sentences are lists of texts and names: `['output[', name, '] = …']`. */
const sentence = (parts) => parts.map((part) => (typeof part === 'string' ? part : nameElement(part)));

export { element, svgElement, setText, formulaParts, sentence };
