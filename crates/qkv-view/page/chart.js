// Small charts in SVG: curves over growing dimensions with a marker, and bars.

import { svgElement } from './dom.js';

const CHART = { width: 340, height: 150, left: 44, right: 12, top: 12, bottom: 26 };

/** Maps a range to another, by logarithm where it spans much. */
function axisScale([low, high], [start, end], logarithmic) {
  const place = logarithmic ? Math.log : (x) => x;
  const [from, to] = [place(low), place(high)];
  return (x) => start + ((place(Math.min(Math.max(x, low), high)) - from) / (to - from)) * (end - start);
}

/**
 * Curves over d. `curves`: `[{name, values}]` at `dimensions`; `y`: `{range, ticks, logarithmic, name}`. Gives the
 * picture and `show(d)`, which moves the marker.
 */
function curveChart({ dimensions, curves, y, xTicks, says }) {
  const { width, height, left, right, top, bottom } = CHART;
  const across = axisScale([dimensions[0], dimensions.at(-1)], [left, width - right], true);
  const up = axisScale(y.range, [height - bottom, top], y.logarithmic);
  const picture = svgElement('svg', { viewBox: `0 0 ${width} ${height}`, class: 'chart', role: 'img', 'aria-label': says });
  const text = (x, at, words, anchor) => svgElement('text', { x, y: at, 'text-anchor': anchor }, words);
  for (const tick of y.ticks) {
    picture.append(svgElement('line', { class: 'rule', x1: left, x2: width - right, y1: up(tick), y2: up(tick) }));
    picture.append(text(left - 6, up(tick) + 4, String(tick), 'end'));
  }
  for (const tick of xTicks) picture.append(text(across(tick), height - 8, String(tick), 'middle'));
  for (const { name, values } of curves) {
    const points = values.map((value, at) => `${across(dimensions[at]).toFixed(1)},${up(value).toFixed(1)}`);
    picture.append(svgElement('polyline', { class: `curve ${name}`, points: points.join(' ') }));
  }
  const marker = svgElement('line', { class: 'marker', y1: top, y2: height - bottom });
  const dots = curves.map(({ name }) => svgElement('circle', { class: `dot ${name}`, r: 4 }));
  picture.append(marker, ...dots);
  const show = (dimension, values) => {
    const x = across(dimension).toFixed(1);
    marker.setAttribute('x1', x);
    marker.setAttribute('x2', x);
    dots.forEach((dot, at) => {
      dot.setAttribute('cx', x);
      dot.setAttribute('cy', up(values[at]).toFixed(1));
    });
  };
  return { picture, show };
}

/** Bars of weights, from 0 to 1. Gives the picture and `show(weights)`. */
function barChart(count, name) {
  const [width, height, gap] = [320, 96, 1];
  const picture = svgElement('svg', { viewBox: `0 0 ${width} ${height}`, class: 'bars', role: 'img' });
  const each = width / count;
  const bars = Array.from({ length: count }, (_, at) => svgElement('rect', { class: name, x: at * each, width: each - gap }));
  picture.append(svgElement('line', { class: 'rule', x1: 0, x2: width, y1: height - 0.5, y2: height - 0.5 }), ...bars);
  const show = (weights, says) => {
    picture.setAttribute('aria-label', says);
    bars.forEach((bar, at) => {
      const tall = weights[at] * (height - 2);
      bar.setAttribute('y', (height - 1 - tall).toFixed(2));
      bar.setAttribute('height', tall.toFixed(2));
    });
  };
  return { picture, show };
}

export { curveChart, barChart };
