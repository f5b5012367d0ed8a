// Starts the page with the data that it was served or exported with:
//
//     { "live": true, "lesson": { "words": [...] | null, "x", "w_q", "w_k", "w_v", "scale": null, "causal": false }, "explorer": null }

import { element } from './dom.js';
import { Lesson } from './lesson.js';
import { WhyScale } from './why-scale.js';
import { computeHere, computeByEngine } from './engine.js';
import { startTheme, startTabs } from './shell.js';

function startPage() {
  const view = document.getElementById('lesson');
  startTheme(document.getElementById('theme'));
  const openTab = startTabs(document.getElementById('tabs'), () => {});
  try {
    const data = JSON.parse(document.getElementById('data').textContent);
    document.getElementById('tab-explorer').hidden = !data.explorer;
    const why = new WhyScale();
    const lesson = new Lesson({
      data: data.lesson,
      compute: data.live === true ? computeByEngine : computeHere,
      computedBy: data.live === true ? 'the engine' : 'this page itself, with the engine’s arithmetic',
      why,
    });
    view.replaceChildren(...lesson.elements.slice(0, -1), why.element, lesson.elements.at(-1));
  } catch (error) {
    view.replaceChildren(element('p', { class: 'notice', role: 'alert' }, `This page came without a lesson that can be shown: ${error.message}`));
  }
  openTab('lesson');
}

startPage();

export { startPage };
