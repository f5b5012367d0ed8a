// The frame of the page: light and dark, which of the views is open, and its URL.

const THEME_KEY = 'qkv-theme';

/** A browser may refuse storage, as it may to pages from disk. */
function storedTheme() {
  try {
    return localStorage.getItem(THEME_KEY);
  } catch {
    return null;
  }
}

function storeTheme(theme) {
  try {
    localStorage.setItem(THEME_KEY, theme);
  } catch {
    // It is then chosen again next time.
  }
}

/** The button turns the theme over; until then it is the system's. */
function startTheme(button) {
  const root = document.documentElement;
  const system = matchMedia('(prefers-color-scheme: dark)');
  const isDark = () => (root.dataset.theme ? root.dataset.theme === 'dark' : system.matches);
  const show = () => button.setAttribute('aria-pressed', String(isDark()));
  const stored = storedTheme();
  if (stored === 'dark' || stored === 'light') root.dataset.theme = stored;
  button.addEventListener('click', () => {
    root.dataset.theme = isDark() ? 'light' : 'dark';
    storeTheme(root.dataset.theme);
    show();
  });
  system.addEventListener('change', show);
  show();
}

/** Tabs are buttons with `aria-controls`; `shown(id)` is told which view opens. */
function startTabs(list, shown) {
  const tabs = Array.from(list.querySelectorAll('[role=tab]'));
  const open = (tab) => {
    for (const other of tabs) {
      const chosen = other === tab;
      other.setAttribute('aria-selected', String(chosen));
      other.tabIndex = chosen ? 0 : -1;
      document.getElementById(other.getAttribute('aria-controls')).hidden = !chosen;
    }
    shown(tab.getAttribute('aria-controls'));
  };
  list.addEventListener('click', (event) => {
    const tab = event.target.closest('[role=tab]');
    if (tab) open(tab);
  });
  list.addEventListener('keydown', (event) => {
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const usable = tabs.filter((tab) => !tab.hidden);
    if (!way || !usable.includes(document.activeElement)) return;
    const next = usable[(usable.indexOf(document.activeElement) + way + usable.length) % usable.length];
    next.focus();
    open(next);
  });
  return (id) => open(tabs.find((tab) => tab.getAttribute('aria-controls') === id));
}

/** Puts the state into the URL, as a `step` that leads back or in place of what is there. A page inside another has no URL of its own. */
function keepInUrl(fragment, step = false) {
  if (location.protocol === 'about:' || fragment === location.hash.slice(1)) return;
  const url = fragment === '' ? location.pathname + location.search : `#${fragment}`;
  if (step) history.pushState(null, '', url);
  else history.replaceState(null, '', url);
}

export { startTheme, startTabs, keepInUrl };
