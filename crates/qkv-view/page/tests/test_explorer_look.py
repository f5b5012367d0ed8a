"""What the explorer looks like to eyes and to readers of the screen."""

import pytest
from support import at_head, at_rest, model, quiet
from test_look import CONTRAST


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_explorer_can_be_read(explore, theme):
    page = explore("text", "explorer&sort=distance", color_scheme=theme)
    page.wait_for_function("() => !document.querySelector('.unknown-yet')")
    page.hover(".head-table tbody tr")
    for selector in [
        "td",
        "th",
        ".lead",
        ".quiet",
        ".sorter",
        ".thumbnail-foot span",
        "select",
        "summary",
        "label",
    ]:
        assert page.evaluate(CONTRAST, f".overview :is({selector})") >= 4.5, selector
    page = explore("text", at_head("at=121.5,110.5,24&q=121&k=110", layer=1, head=1), color_scheme=theme)
    page.wait_for_selector(".pair")
    at_rest(page)
    page.keyboard.press("/")
    page.keyboard.type("fox")
    quiet(page)
    for selector in [
        ".ruler-label:not([hidden]) *",
        ".text-token",
        ".pair span",
        ".pair bdi",
        ".choice",
        ".facts",
        ".quiet",
        ".legend span",
        ".readout",
        ".button",
        "select",
        "h2",
    ]:
        assert page.locator(f".map-screen {selector}").count() > 0
        assert page.evaluate(CONTRAST, f".map-screen {selector}") >= 4.5, selector


def test_numbers_can_be_read_on_every_colour(explore):
    page = explore("text", at_head())
    worst = page.evaluate(
        """async (kinds) => {
          const { colourOf, inkOn, numberAt } = await import('./map-colours.js');
          const light = (rgb) => rgb.map((b) => (b <= 10 ? b / 3294.6 : ((b / 255 + 0.055) / 1.055) ** 2.4))
            .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
          const ratios = kinds.flatMap((scale) =>
            [...Array(104).keys()].map((at) => {
              const x = [NaN, Infinity, -Infinity][at - 101] ?? numberAt(at / 100, scale);
              const ground = light(colourOf(x, scale));
              const ink = inkOn(colourOf(x, scale)) === '#000000' ? 0 : 1;
              return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
            }));
          return Math.min(...ratios);
        }""",
        [model("text").scale((0, 0, 0), of) for of in ("weights", "scores", "mask")],
    )
    assert worst >= 4.5


@pytest.mark.parametrize("width", [390, 820, 2200])
def test_screens_of_all_sizes(explore, width):
    page = explore("many", viewport={"width": width, "height": 844}, has_touch=width < 1000)
    quiet(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.close()
    page = explore(
        "text", at_head("q=80", head=2), viewport={"width": width, "height": 844}, has_touch=width < 1000
    )
    page.wait_for_selector(".pair")
    at_rest(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    box = page.locator(".map-canvas").bounding_box()
    assert box["width"] > 250 and box["height"] > 250
    # Nothing spills out of its box.
    spilt = page.evaluate(
        "Array.from(document.querySelectorAll('.map-bar > *, .pair, .focus, .in-text, .legend'))"
        ".filter((one) => getComputedStyle(one).display !== 'inline')"
        ".filter((one) => one.scrollWidth > one.clientWidth + 1)"
        ".map((one) => one.className)"
    )
    assert spilt == []


def test_everything_has_a_name(explore):
    for fragment in ["explorer", at_head("q=121&k=7&at=121,110,24", layer=1, head=0)]:
        page = explore("text", fragment)
        settled_enough = ".pair" if "q=" in fragment else ".thumbnail:not(.empty)"
        page.wait_for_selector(settled_enough)
        nameless = page.evaluate(
            "Array.from(document.querySelectorAll('input, button, select, section, [role], [tabindex]'))"
            ".filter((one) => one.closest('#explorer') && one.getAttribute('role') !== 'status')"
            ".filter((one) => !one.closest('[hidden]'))"
            ".filter((one) => !(one.getAttribute('aria-label') || one.labels?.[0]?.textContent.trim()"
            " || one.textContent.trim())).map((one) => one.outerHTML.slice(0, 120))"
        )
        assert nameless == []
        ids = page.evaluate("Array.from(document.querySelectorAll('[id]'), (one) => one.id)")
        assert len(ids) == len(set(ids))
