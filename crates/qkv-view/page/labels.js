// What tokens are called. A label is text whatever it holds: it is shown, never read as markup.

/** The most letters that a word keeps. */
const LONGEST_WORD = 24;
const letters = (text) => Array.from(text);

/** A word cut to a sensible length, between letters. */
const cutWord = (word) => letters(word).slice(0, LONGEST_WORD).join('');

/** A word made visible: empty, blank and control characters have signs of their own. */
function visibleWord(word) {
  if (word === '') return '“”';
  const picture = (letter) => {
    const code = letter.codePointAt(0);
    if (letter === '\n') return '↵';
    if (letter === '\t') return '⇥';
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    if (code === 0x7f) return '␡';
    // Letters that turn the order of those after them, or that nobody sees; joiners belong to words and pictures.
    if (/[\u0080-\u009f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/u.test(letter)) return '�';
    return letter;
  };
  const shown = letters(word).map(picture).join('');
  return shown.trim() === '' ? '␣'.repeat(letters(word).length) : shown;
}

/** A name for each token: its word, with its place where the word occurs twice. */
function tokenNames(words) {
  const shown = words.map(visibleWord);
  return shown.map((text, at) => ({
    text,
    place: shown.indexOf(text) !== shown.lastIndexOf(text) ? String(at) : '',
  }));
}

/** A name in one text, where no markup can be. */
const nameText = ({ text, place }) => (place === '' ? text : `${text} (${place})`);

export { LONGEST_WORD, cutWord, visibleWord, tokenNames, nameText };
