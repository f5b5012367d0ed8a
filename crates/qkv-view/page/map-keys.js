// Keys of the map. They are the map's own while it has the focus or nothing has; `/`, `[`, `]` and Escape work anywhere in
// the explorer but in fields.

const PAN_PIXELS = 48;
const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const ZOOM_KEYS = { '+': 2, '=': 2, '-': 0.5, _: 0.5 };

/** `map` is the element that is moved; `actions` are `pan(dx, dy)` in pixels, `zoom`, `whole`, `pin`, `letGo`, `search`, `head`. */
function mapKey(event, map, actions) {
  const { target, key } = event;
  const typing = target.closest?.('input, select, textarea');
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || typing) return;
  const action = anywhere(key, actions) ?? (target === map || target === document.body ? onMap(event, actions) : null);
  if (action === null) return;
  event.preventDefault();
  action();
}

function anywhere(key, actions) {
  if (key === '/') return actions.search;
  if (key === 'Escape') return actions.letGo;
  if (key === '[' || key === ']') return () => actions.head(key === ']' ? 1 : -1);
  return null;
}

function onMap({ key, shiftKey }, actions) {
  const [dx, dy] = DIRECTIONS[key] ?? [];
  if (dx !== undefined) return () => actions.pan(dx * PAN_PIXELS, dy * PAN_PIXELS, shiftKey);
  if (ZOOM_KEYS[key]) return () => actions.zoom(ZOOM_KEYS[key]);
  if (key === '0' || key === 'Home') return actions.whole;
  if (key === 'Enter') return actions.pin;
  return null;
}

export { mapKey };
