// Numbers as people read and type them. 4 decimals are the command's, digit for digit.

const f32 = Math.fround;

/** As printed by the command: the nearest decimal, of two equally near the even one. (`toFixed` takes the larger.) */
function fixed(x, digits) {
  if (Number.isNaN(x)) return 'nan';
  if (!Number.isFinite(x)) return x > 0 ? 'inf' : '-inf';
  const size = Math.abs(x);
  let text = size.toFixed(digits);
  // Halfway between two decimals are odd multiples of 1/2^(digits + 1) and no other binary fractions.
  if ((size * 2 ** (digits + 1)) % 2 === 1) {
    const below = Math.floor(size * 10 ** digits);
    text = ((below + (below % 2)) / 10 ** digits).toFixed(digits);
  }
  return x < 0 ? `-${text}` : text;
}

/** With an exponent where 4 decimals would be long or say nothing. */
function printed(x) {
  const size = Math.abs(x);
  if (size !== 0 && Number.isFinite(x) && (size < 5e-5 || size >= 1e5)) {
    return x.toExponential(3).replace('e+', 'e');
  }
  return fixed(x, 4);
}

/** So many digits, however small: 0.00021, 5.3e-5. */
function significant(x, digits) {
  const size = Math.abs(x);
  return x === 0 || size >= 1e-4 ? String(Number(x.toPrecision(digits))).replace('e+', 'e') : x.toExponential(digits - 1);
}

/** `printed` or `fixed` text with the signs of print: −1.0462, −∞, NaN. */
const typeset = (text) => text.replaceAll('-', '−').replace('inf', '∞').replace('nan', 'NaN');

/** A number in a sentence. */
const number = (x) => typeset(printed(x));

/** A number in a cell. */
const cellNumber = (x, digits) =>
  typeset(Math.abs(x) >= 1e4 && Number.isFinite(x) ? x.toExponential(1).replace('e+', 'e') : fixed(x, digits));

/** The shortest text that is read as the same f32. */
function shortest(x) {
  for (let digits = 1; digits < 9; digits += 1) {
    const text = Number(x.toPrecision(digits));
    if (f32(text) === x) return String(text);
  }
  return String(Number(x.toPrecision(9)));
}

/** What someone typed as an f32, a comma for a point and any minus allowed; `null` if it is no finite number. */
function parseNumber(text) {
  const plain = text.trim().replace(/[−–]/g, '-').replace(',', '.');
  if (plain.length > 40 || !/^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(plain)) return null;
  const x = f32(Number(plain));
  return Number.isFinite(x) ? x + 0 : null;
}

export { f32, fixed, printed, significant, typeset, number, cellNumber, shortest, parseNumber };
