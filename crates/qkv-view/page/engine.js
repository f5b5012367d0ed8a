// Who computes: the engine behind a live page, or the page's own script in an exported one.
//
// `compute(lesson) -> Promise<steps>`; steps are by name: `{ q: { formula, shape, values }, … }`.

import { attentionSteps } from './attention.js';

const STEP_NAMES = ['average', 'q', 'k', 'v', 'scores', 'scaled', 'masked', 'weights', 'output'];
const ANSWER_WITHIN_MS = 10000;

/** JSON has no infinities and no NaN; they come as texts. */
function readNumber(value) {
  if (typeof value === 'number') return value;
  if (['Infinity', '-Infinity', 'NaN'].includes(value)) return Number(value);
  throw new TypeError('the answer holds something that is no number');
}

/** `{steps: [{name, formula, shape, values}]}`, checked, by name. */
function readSteps(answer) {
  const steps = {};
  for (const name of STEP_NAMES) {
    const step = answer?.steps?.find?.((candidate) => candidate?.name === name);
    if (!Array.isArray(step?.values) || !step.values.every(Array.isArray)) throw new TypeError(`the answer has no step ${name}`);
    steps[name] = {
      formula: String(step.formula ?? ''),
      shape: [step.values.length, step.values[0]?.length ?? 0],
      values: step.values.map((row) => row.map(readNumber)),
    };
  }
  return steps;
}

/** By the page's own script. */
async function computeHere(lesson) {
  return readSteps(attentionSteps(lesson));
}

/** By the engine. */
async function computeByEngine(lesson) {
  const answer = await fetch('/api/lesson', {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(lesson),
    signal: AbortSignal.timeout(ANSWER_WITHIN_MS),
  }).catch(() => {
    throw new Error('the engine does not answer');
  });
  if (!answer.ok) throw new Error(`the engine answered ${answer.status}`);
  return readSteps(await answer.json());
}

/**
 * Runs `compute` for the newest lesson only: while one is under way, those that come are passed over but for the last.
 * `done(steps, lesson)` and `failed(error, lesson)` are called in order.
 */
function newestOnly(compute, done, failed) {
  let running = false;
  let next = null;
  return async (lesson) => {
    next = lesson;
    if (running) return;
    running = true;
    while (next !== null) {
      const current = next;
      next = null;
      const result = await compute(current).then((steps) => ({ steps }), (error) => ({ error }));
      if (result.error) failed(result.error, current);
      else done(result.steps, current);
    }
    running = false;
  };
}

export { readNumber, computeHere, computeByEngine, newestOnly };
