// What each matrix of the lesson is called, and why it is there: its title, axes, colours and a sentence.

import { number } from './numbers.js';

/** Beyond so many columns of pairs cells show 2 decimals. */
const WIDE = 6;

const learned = (letter) => ({ id: `w_${letter}`, name: `W_${letter}`, axes: ['row', 'column'], learned: letter });

/** In the order of the steps. `group`: those of equal colour scale. */
const FIGURES = [
  { id: 'x', name: 'X', subject: 'embeddings', axes: ['token', 'number'], group: 'x' },
  { ...learned('q'), group: 'w' },
  { id: 'q', name: 'Q', subject: 'queries', axes: ['query', 'number'], group: 'qk' },
  { ...learned('k'), group: 'w' },
  { id: 'k', name: 'K', subject: 'keys', axes: ['key', 'number'], group: 'qk' },
  { ...learned('v'), group: 'w' },
  { id: 'v', name: 'V', subject: 'values', axes: ['value', 'number'], group: 'v' },
  { id: 'average', step: '0', subject: 'plain average', axes: ['query', 'number'], group: 'v' },
  { id: 'scores', step: '1', subject: 'scores', axes: ['query', 'key'], group: 'scores' },
  { id: 'scaled', step: '2', subject: 'scaled', axes: ['query', 'key'], group: 'scores' },
  { id: 'masked', step: '3', subject: 'masked', axes: ['query', 'key'], group: 'scores' },
  { id: 'weights', step: '4', subject: 'weights', axes: ['query', 'key'], group: 'weights' },
  { id: 'output', step: '5', subject: 'output', axes: ['query', 'number'], group: 'v' },
];

/** The formula under a title. */
function formulaOf(figure, steps) {
  if (figure.id === 'average') return 'mean of the rows of V';
  if (figure.id === 'x') return 'one row for each token';
  if (figure.learned) return '';
  return { weights: 'softmax of each row', masked: steps.masked.formula.includes('∞') ? 'scaled, −∞ where hidden' : 'scaled, nothing hidden' }[figure.id]
    ?? steps[figure.id].formula.replace(/^\w+ = /, '').replace(/(\d\.\d+)$/, (text) => number(Number(text)));
}

/** Why a step is taken; `scale` and `causal` are the state's. */
function reasonOf(id, { steps, scale, causal, names }) {
  const dim = steps.q.values[0].length;
  const reasons = {
    x: () => 'A row of numbers stands for each token. Drag a number sideways, or type; words too.',
    q: () => 'What each token looks for.',
    k: () => 'What each can be found by.',
    v: () => 'What each passes on.',
    average: () =>
      causal
        ? 'The simplest way to gather: all values up to its own count the same.'
        : 'The simplest way to gather: all values count the same, whoever asks.',
    scores: () => 'Each query meets each key. The products of their numbers add up to much where both point the same way.',
    scaled: () => scaleReason(scale, dim),
    masked: () =>
      causal
        ? 'Later tokens are hidden: −∞ here will weigh exactly 0, and the others share the whole.'
        : 'Nothing is hidden: every query may read every key.',
    weights: () => 'e to the power of each score, over the sum of its row: none below 0, and each row sums to 1.',
    output: () =>
      scale === 0
        ? 'With equal weights this is step 0 again.'
        : `The average again, but each query weighs ${names.length > 1 ? 'the values' : 'the value'} its own way.`,
  };
  return reasons[id]?.() ?? '';
}

function scaleReason(scale, dim) {
  if (scale === null) return `A sum of ${dim} products spreads about √${dim} times as wide as one. Divided by √${dim}, it spreads alike for any d.`;
  if (scale === 0) return 'Times 0 all scores are equal: no key fits better than another.';
  const usual = 1 / Math.sqrt(dim);
  if (scale > usual) return `More than 1/√${dim}: scores lie further apart, and the weights gather on the best key.`;
  return `Less than 1/√${dim}: scores lie closer together, and the weights come near the plain average.`;
}

/** What has the full colour in each group: its largest finite size; weights go up to 1. */
function limitsOf(matrices) {
  const limits = { weights: 1 };
  for (const { id, group } of FIGURES) {
    if (group === 'weights') continue;
    // What is infinite, or stopped at the largest f32, must not take the colour from all others.
    const sizes = matrices[id].flat().map(Math.abs).filter((size) => size < 3.4e38);
    limits[group] = Math.max(limits[group] ?? 0, ...sizes);
  }
  return limits;
}

const digitsOf = (figure, tokens) => (figure.axes[1] === 'key' && tokens >= WIDE ? 2 : 4);

export { WIDE, FIGURES, formulaOf, reasonOf, limitsOf, digitsOf };
