// “Why √d”: queries and keys of growing dimension, and what becomes of their scores, weights and gradient with the scale
// 1/√d and without it. The numbers are drawn once, of the greatest dimension; a smaller one takes their first columns.

import { element, setText } from './dom.js';
import { number, fixed } from './numbers.js';
import { normalRows, plainSoftmax, measureRows } from './measure.js';
import { curveChart, barChart } from './chart.js';
import { MOST_DIMENSION } from './state.js';

/** As many queries and keys as `qkv explain --no-scale` draws. */
const DRAWN = 64;
const SEED = 1;
/** Slider positions for each doubling of d. */
const TO_DOUBLE = 12;
const SLIDER_END = Math.log2(MOST_DIMENSION) * TO_DOUBLE;
const CURVE_AT = Array.from({ length: 19 }, (_, at) => Math.round(2 ** (at / 2)));

const SIDES = [
  { name: 'with', title: 'with the scale 1/√d', factor: (d) => 1 / Math.sqrt(d) },
  { name: 'without', title: 'without', factor: () => 1 },
];

class WhyScale {
  constructor() {
    this.onDimension = () => {};
    this.dimension = 0;
    this.prepare();
    this.element = element(
      'section',
      { class: 'why', 'aria-labelledby': 'why-title' },
      element('h2', { id: 'why-title' }, 'Why √d'),
      this.makeText(),
      element('div', { class: 'sides' }, ...SIDES.map((side) => this.makeSide(side))),
      this.makeCharts(),
    );
  }

  /** Draws queries and keys; `scoresOf(d)` is the scores of their first d numbers. */
  prepare() {
    const query = normalRows(DRAWN, MOST_DIMENSION, SEED);
    const key = normalRows(DRAWN, MOST_DIMENSION, SEED + 1);
    this.scoresOf = (dimension) =>
      query.map((q) =>
        key.map((k) => {
          let sum = 0;
          for (let at = 0; at < dimension; at += 1) sum += q[at] * k[at];
          return sum;
        }),
      );
  }

  /** Both sides of one dimension: `{variance, entropy, gradient, weights}`. */
  measured(dimension) {
    const scores = this.scoresOf(dimension);
    return SIDES.map(({ factor }) => {
      const scaled = scores.map((row) => row.map((score) => score * factor(dimension)));
      const weights = scaled.map(plainSoftmax);
      return { ...measureRows(scaled, weights), weights: weights[0] };
    });
  }

  makeText() {
    this.slider = element('input', { type: 'range', id: 'dimension', min: 0, max: SLIDER_END, step: 1 });
    this.shown = element('output', { for: 'dimension', id: 'dimension-value' });
    this.slider.addEventListener('input', () => this.onDimension(Math.round(2 ** (Number(this.slider.value) / TO_DOUBLE))));
    return element(
      'div',
      { class: 'why-text' },
      element('p', null, 'A score is a sum of d products. If the numbers of queries and keys are independent, of mean 0 and variance 1, the variance of that sum is d: the longer the vectors, the further apart the scores.'),
      element('p', null, 'Softmax turns distances into ratios, so far-apart scores leave one key with nearly everything. Then a small change of the scores changes no weight: the gradient, by which a model learns, is gone. Dividing by √d keeps the variance near 1.'),
      element('label', { for: 'dimension' }, 'Dimension ', this.shown),
      this.slider,
      element('p', { class: 'quiet' }, `${DRAWN} queries and ${DRAWN} keys of random normal numbers, always the same ones, measured here and now.`),
    );
  }

  makeSide({ name, title }) {
    const bars = barChart(DRAWN, name);
    const fact = (what, id) => {
      const value = element('dd', { id: `${id}-${name}` });
      return { value, parts: [element('dt', null, what), value] };
    };
    const facts = {
      variance: fact('variance of the scores', 'variance'),
      keys: fact('weights: as if so many keys shared', 'keys'),
      gradient: fact('softmax’s gradient, Σ p (1 − p)', 'gradient'),
    };
    const meter = element('div', { class: 'meter', 'aria-hidden': 'true' }, element('span'));
    this.sides ??= {};
    this.sides[name] = { bars, facts, meter };
    return element(
      'div',
      { class: `side ${name}` },
      element('h3', null, title),
      element('dl', null, ...facts.variance.parts, ...facts.keys.parts),
      element('div', { class: 'bars-box' }, bars.picture, element('p', { class: 'quiet' }, `one query’s weights over ${DRAWN} keys, 0 to 1`)),
      element('dl', null, ...facts.gradient.parts),
      meter,
    );
  }

  makeCharts() {
    const measured = CURVE_AT.map((dimension) => this.measured(dimension));
    const curves = (what) => SIDES.map(({ name }, side) => ({ name, values: measured.map((both) => both[side][what]) }));
    const xTicks = [1, 4, 16, 64, 256, 512];
    const shared = { dimensions: CURVE_AT, xTicks };
    this.charts = {
      variance: curveChart({
        ...shared,
        curves: curves('variance'),
        y: { range: [0.5, 1000], ticks: [1, 10, 100, 1000], logarithmic: true },
        says: 'Variance of the scores over the dimension: it stays near 1 with the scale and grows like d without.',
      }),
      gradient: curveChart({
        ...shared,
        curves: curves('gradient'),
        y: { range: [0, 1], ticks: [0, 0.5, 1], logarithmic: false },
        says: 'Gradient of softmax over the dimension: it stays near 1 with the scale and falls towards 0 without.',
      }),
    };
    const box = (title, chart) => element('figure', { class: 'chart-box' }, element('figcaption', null, title), chart.picture);
    const key = SIDES.map(({ name, title }) => element('span', { class: `key ${name}` }, title));
    return element('div', { class: 'charts' }, box('variance of the scores, over d', this.charts.variance), box('gradient, over d', this.charts.gradient), element('p', { class: 'keys' }, ...key));
  }

  show(dimension) {
    if (dimension === this.dimension) return;
    this.dimension = dimension;
    const position = String(Math.round(Math.log2(dimension) * TO_DOUBLE));
    if (Math.round(2 ** (Number(this.slider.value) / TO_DOUBLE)) !== dimension) this.slider.value = position;
    setText(this.shown, `d = ${dimension}`);
    this.slider.setAttribute('aria-valuetext', `d = ${dimension}`);
    const both = this.measured(dimension);
    SIDES.forEach(({ name }, at) => {
      const { variance, entropy, gradient, weights } = both[at];
      const { bars, facts, meter } = this.sides[name];
      setText(facts.variance.value, number(variance));
      setText(facts.keys.value, `${fixed(Math.exp(entropy), 1)} of ${DRAWN}`);
      setText(facts.gradient.value, number(gradient));
      bars.show(weights, `the largest weight is ${fixed(Math.max(...weights), 2)}`);
      meter.style.setProperty('--share', gradient.toFixed(4));
    });
    this.charts.variance.show(dimension, both.map(({ variance }) => variance));
    this.charts.gradient.show(dimension, both.map(({ gradient }) => gradient));
  }
}

export { WhyScale };
