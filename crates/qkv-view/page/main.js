// Starts the page with the data that it was served or exported with:
//
//     { "live": true, "lesson": { "words": [...] | null, "x", "w_q", "w_k", "w_v", "scale": null, "causal": false }, "explorer": null }

import { element } from './dom.js';
import { Lesson } from './lesson.js';
import { WhyScale } from './why-scale.js';
import { computeHere, computeByEngine } from './engine.js';
import { isExplorers } from './state.js';
import { startTheme, startTabs } from './shell.js';

function startPage() {
  const view = document.getElementById('lesson');
  startTheme(document.getElementById('theme'));
  let lesson = null;
  // The URL is that of the view which is open; the explorer writes its own.
  const openTab = startTabs(document.getElementById('tabs'), (opened) => {
    if (opened === 'lesson') lesson?.keep();
  });
  let first = 'lesson';
  try {
    const data = JSON.parse(document.getElementById('data').textContent);
    document.getElementById('tab-explorer').hidden = !data.explorer;
    if (data.explorer && isExplorers(location.hash)) first = 'explorer';
    const why = new WhyScale();
    lesson = new Lesson({
      data: data.lesson,
      compute: data.live === true ? computeByEngine : computeHere,
      computedBy: data.live === true ? 'the engine' : 'this page itself, with the engine’s arithmetic',
      why,
    });
    view.replaceChildren(...lesson.elements.slice(0, -1), why.element, lesson.elements.at(-1));
  } catch (error) {
    view.replaceChildren(element('p', { class: 'notice', role: 'alert' }, `This page came without a lesson that can be shown: ${error.message}`));
  }
  openTab(first);
}

startPage();

export { startPage };
