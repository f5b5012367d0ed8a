"""What tests wait for, and what they read off the page: of the lesson, and from `MADE` on of the explorer."""

import re
import time

from mock_models import MODELS

#: Only tests that fail wait so long, however slow the machine.
WAIT_S = 60
#: Runs before the page's own scripts: notes what the page has begun and not ended, and what is painted.
SPIES = """
{
  const LATER_MS = 1000;
  const { setTimeout, clearTimeout } = window;
  const work = { running: 0, begun: 0, frames: 0 };
  window.pageWork = work;
  const begin = () => {
    work.running += 1;
    work.begun += 1;
  };
  // After all that follows at once.
  const end = () => setTimeout(() => { work.running -= 1; });
  const timers = new Set();
  window.setTimeout = (then, ms = 0, ...given) => {
    // Time limits and new attempts are nothing to wait for.
    if (ms >= LATER_MS) return setTimeout(then, ms, ...given);
    begin();
    const timer = setTimeout(() => {
      if (timers.delete(timer)) end();
      then(...given);
    }, ms);
    timers.add(timer);
    return timer;
  };
  window.clearTimeout = (timer) => {
    if (timers.delete(timer)) end();
    clearTimeout(timer);
  };
  const awaited = (owner, name) => {
    const made = owner[name];
    owner[name] = function (...given) {
      begin();
      const answer = made.apply(this, given);
      answer.then(end, end);
      return answer;
    };
  };
  awaited(window, 'fetch');
  awaited(window, 'createImageBitmap');
  awaited(HTMLImageElement.prototype, 'decode');
  for (const name of ['json', 'blob']) awaited(Response.prototype, name);
  // Asked once a frame: whether for some frames nothing was running, begun or moving; then all is drawn.
  work.isOver = () => {
    const moving = document.getAnimations().some((one) => one.playState === 'running');
    const still = work.running === 0 && work.begun === work.seen && !moving;
    work.seen = work.begun;
    work.frames = still ? work.frames + 1 : 0;
    return work.frames > 3;
  };
  // Numbers over cells are painted: what was written, and where.
  window.painted = [];
  const write = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
    window.painted.push([text, x, y]);
    return write.call(this, text, x, y, ...rest);
  };
  const clear = CanvasRenderingContext2D.prototype.clearRect;
  CanvasRenderingContext2D.prototype.clearRect = function (...box) {
    if (this.canvas.className === 'map-overlay') window.painted = [];
    return clear.apply(this, box);
  };
}
"""


def numbers(values):
    return [[float(x) for x in row] for row in values]


def quiet(page):
    """Nothing more comes by itself: no timer below a second runs, no answer is awaited, all is drawn."""
    page.evaluate("pageWork.frames = 0")
    page.wait_for_function("() => pageWork.isOver()", polling="raf")


def eventually(page, condition):
    """Waits for what is not seen in the page."""
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, "it never came"
        page.wait_for_timeout(50)


PAIRS = ["scores", "scaled", "masked", "weights"]


def at(figure, row, column):
    return f'#matrix-{figure} td[data-row="{row}"][data-column="{column}"]'


def text(page, figure):
    """Numbers as cells show them; minus signs and ∞ as the command writes them."""
    plain = "(one) => (one.querySelector('input')?.value ?? one.textContent)"
    shown = f"(line) => Array.from(line.querySelectorAll('td'), {plain})"
    rows = page.evaluate(f"Array.from(document.querySelectorAll('#matrix-{figure} tbody tr'), {shown})")
    return [[cell.replace("−", "-").replace("∞", "inf") for cell in row] for row in rows]


def shown(values, digits=4):
    return [[f"{x:.{digits}f}" for x in row] for row in numbers(values)]


def rows_on(page, figure):
    heads = f"#matrix-{figure} tbody tr"
    return page.eval_on_selector_all(
        heads, "(all) => all.map((one, at) => one.classList.contains('on') ? at : -1).filter((at) => at >= 0)"
    )


def settled(page, fragment):
    page.wait_for_function("(wanted) => location.hash === wanted", arg=fragment)


def strip(page):
    return page.inner_text(".strip").replace("−", "-").replace("\n", " ")


MADE = {}


def model(name):
    """Once for all tests: they only read."""
    if name not in MADE:
        MADE[name] = MODELS[name]()
    return MADE[name]


def at_head(fragment="", layer=0, head=0):
    return f"explorer&layer={layer}&head={head}" + (f"&{fragment}" if fragment else "")


def at_rest(page):
    """The map is drawn, its numbers have come, and the URL is written."""
    page.wait_for_selector(".map-canvas canvas", state="attached")
    quiet(page)


def point(page, query, key):
    """Where a cell is on the screen, by the URL's view."""
    box = page.locator(".map-canvas").bounding_box()
    view = re.search(r"at=([\d.]+),([\d.]+),([\de.-]+)", page.evaluate("location.hash"))
    middle = [float(one) for one in view.groups()]
    x = box["x"] + box["width"] / 2 + (key + 0.5 - middle[1]) * middle[2]
    y = box["y"] + box["height"] / 2 + (query + 0.5 - middle[0]) * middle[2]
    return x, y


def hover(page, query, key):
    page.mouse.move(*point(page, query, key))
    quiet(page)


def walk_over_hits(page, word):
    """Searches a token of the model `text` and steps on, back and around."""
    places = [at for at, one in enumerate(model("text").words) if one == word]
    page.keyboard.press("/")
    page.keyboard.type(word)
    for key, at in [(None, 0), ("Enter", 1), ("Shift+Enter", 0), ("Shift+Enter", -1)]:
        if key:
            page.keyboard.press(key)
        at_rest(page)
        assert page.inner_text(".search-count") == f"{at % len(places) + 1} of {len(places)}"
        for side in ["left", "top"]:
            lit = page.locator(f".ruler-{side} .ruler-label.found:visible")
            assert lit.inner_text().split() == [word, str(places[at])]
        if key is None:
            assert f"at={places[0]}.5,{places[0]}.5," in page.evaluate("location.hash")


def readout(page):
    return page.inner_text(".readout").replace("−", "-")


def pairs(page):
    """`(index, weight, influence)` of the list."""
    lines = page.eval_on_selector_all(
        ".pair",
        "(all) => all.map((one) => [one.querySelector('.index').textContent, "
        "...Array.from(one.querySelectorAll('.pair-number'), (n) => n.textContent)])",
    )
    return [(int(at), *(number.replace("−", "-") for number in numbers)) for at, *numbers in lines]


def said(x):
    """As the list writes a number."""
    return f"{x:.0e}".replace("e-0", "e-") if 0 < x < 5e-5 else f"{x:.4f}"


def pixel(page, query, key):
    """The colour of a cell, near its corner where no number stands."""
    x, y = point(page, query, key)
    scale = float(re.search(r"at=[\d.]+,[\d.]+,([\de.-]+)", page.evaluate("location.hash"))[1])
    return page.evaluate(
        """([x, y]) => {
          const canvas = document.querySelector('.map-tiles canvas');
          const box = canvas.getBoundingClientRect();
          const times = canvas.width / box.width;
          const at = [(x - box.left) * times, (y - box.top) * times];
          const one = new OffscreenCanvas(1, 1).getContext('2d');
          one.drawImage(canvas, ...at.map(Math.floor), 1, 1, 0, 0, 1, 1);
          return Array.from(one.getImageData(0, 0, 1, 1).data).slice(0, 3);
        }""",
        [x - scale / 4, y - scale / 4],
    )
