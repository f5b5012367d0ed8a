// Starts the page with the data that it was served or exported with:
//
//     { "live": true, "lesson": { "words": [...] | null, "x", "w_q", "w_k", "w_v", "scale": null, "causal": false },
//       "explorer": null | { "live": true } | { "input", "tokens", "heads" } }
//
// An explorer that is live asks the server (live-source.js); another has all its data with it (embedded-source.js).

import { element, setText } from './dom.js';
import { Lesson } from './lesson.js';
import { WhyScale } from './why-scale.js';
import { computeHere, computeByEngine } from './engine.js';
import { Explorer } from './explorer.js';
import { EmbeddedSource } from './embedded-source.js';
import { LiveSource } from './live-source.js';
import { isExplorers } from './state.js';
import { startTheme, startTabs } from './shell.js';

const HEADINGS = { lesson: 'Attention, step by step', explorer: 'Attention, explored' };

function startPage() {
  startTheme(document.getElementById('theme'));
  const data = pageData();
  let [lesson, explorer] = [null, null];
  // The URL is that of the view which is open.
  const openTab = startTabs(document.getElementById('tabs'), (opened) => {
    setText(document.getElementById('heading'), HEADINGS[opened]);
    document.title = `qkv: ${HEADINGS[opened].toLowerCase()}`;
    lesson?.rest(opened !== 'lesson');
    if (opened === 'lesson') explorer?.close();
    else explorer?.open();
  });
  lesson = startLesson(data);
  explorer = startExplorer(data);
  openTab(data.explorer && (isExplorers(location.hash) || location.hash === '') ? 'explorer' : 'lesson');
}

function pageData() {
  try {
    return JSON.parse(document.getElementById('data').textContent);
  } catch {
    return {};
  }
}

/** In place of a view that its data is no good for. */
const missing = (what, error) => element('p', { class: 'notice', role: 'alert' }, `This page came without ${what} that can be shown: ${error.message}`);

function startLesson(data) {
  const view = document.getElementById('lesson');
  try {
    const why = new WhyScale();
    const lesson = new Lesson({
      data: data.lesson,
      compute: data.live === true ? computeByEngine : computeHere,
      computedBy: data.live === true ? 'the engine' : 'this page itself, with the engine’s arithmetic',
      why,
    });
    view.replaceChildren(...lesson.elements.slice(0, -1), why.element, lesson.elements.at(-1));
    return lesson;
  } catch (error) {
    view.replaceChildren(missing('a lesson', error));
    return null;
  }
}

function startExplorer(data) {
  const view = document.getElementById('explorer');
  document.getElementById('tab-explorer').hidden = !data.explorer;
  if (!data.explorer) return null;
  try {
    return new Explorer({ root: view, source: data.explorer.live === true ? new LiveSource() : new EmbeddedSource(data.explorer) });
  } catch (error) {
    view.replaceChildren(missing('anything to explore', error));
    return null;
  }
}

startPage();

export { startPage };
