// Colours of numbers on a map, as the server paints them: 16 of a scale, evenly spaced, and three that are in none.

const SPECIAL_COLOURS = { nan: '#e6009e', above: '#00e0ff', below: '#d4d4d4' };

/** How far from the low to the high end of a scale a finite number is, 0 to 1. */
function shareOf(x, { kind, low, high }) {
  // Divided first: the difference of the ends can be more than the largest number.
  const size = Math.max(Math.abs(low), Math.abs(high)) || 1;
  const share = Math.min(Math.max((x / size - low / size) / (high / size - low / size), 0), 1);
  return kind === 'square-root' ? Math.sqrt(share) : share;
}

/** The number at a share of a scale. */
function numberAt(share, { kind, low, high }) {
  const part = kind === 'square-root' ? share * share : share;
  return low * (1 - part) + high * part;
}

const bytesOf = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** Red, green and blue, 0 to 255. */
function colourOf(x, scale) {
  if (Number.isNaN(x)) return bytesOf(SPECIAL_COLOURS.nan);
  if (!Number.isFinite(x)) return bytesOf(x > 0 ? SPECIAL_COLOURS.above : SPECIAL_COLOURS.below);
  const place = shareOf(x, scale) * (scale.colours.length - 1);
  const at = Math.min(Math.floor(place), scale.colours.length - 2);
  const [from, to] = [bytesOf(scale.colours[at]), bytesOf(scale.colours[at + 1])];
  return from.map((byte, index) => byte + (to[index] - byte) * (place - at));
}

/** Black or white, whichever is read better on a colour (by WCAG's relative luminance). */
function inkOn(rgb) {
  const linear = rgb.map((byte) => (byte <= 10 ? byte / 255 / 12.92 : ((byte / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.179 ? '#000000' : '#ffffff';
}

export { SPECIAL_COLOURS, shareOf, numberAt, colourOf, inkOn };
