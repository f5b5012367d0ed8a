"""What the page looks like to eyes, hands and readers of the screen."""

import pytest
from conftest import golden
from support import quiet

CONTRAST = """(selector) => {
  const canvas = document.createElement('canvas');
  const context = canvas.getContext('2d', { willReadFrequently: true });
  const rgba = (colour) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    return Array.from(context.getImageData(0, 0, 1, 1).data);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.slice(0, 3).map((part) =>
      part <= 10 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255];
  };
  return Math.min(...Array.from(document.querySelectorAll(selector), (node) => {
    const [a, b] = [light(rgba(getComputedStyle(node).color)), light(behind(node))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }));
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_everything_can_be_read(open_page, theme):
    page = open_page("scale=2&causal=1", color_scheme=theme)
    for selector in [
        ".heatmap td[data-row]",
        ".heatmap th",
        "p",
        ".formula",
        "label",
        "button",
        "h1, h2, h3",
        "dt, dd",
    ]:
        assert page.locator(selector).count() > 0
        assert page.evaluate(CONTRAST, f":is({selector}):not(:disabled)") >= 4.5, selector
    page.click(".heatmap td[data-row='0']")
    quiet(page)
    for selector in [".share", ".strip p", ".shaded th"]:
        assert page.evaluate(CONTRAST, selector) >= 4.5, selector


def test_light_and_dark_follow_the_system_until_chosen(open_page):
    paper = "getComputedStyle(document.body).backgroundColor"
    page = open_page(color_scheme="dark")
    dark = page.evaluate(paper)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(paper)
    assert dark != light and page.get_attribute("#theme", "aria-pressed") == "false"
    page.click("#theme")
    assert page.evaluate(paper) == dark and page.get_attribute("#theme", "aria-pressed") == "true"
    page.reload()
    page.wait_for_selector(".chain[aria-busy=false]")
    assert page.evaluate(paper) == dark
    page.click("#theme")
    assert page.evaluate(paper) == light


def test_controls_and_cells_have_names(open_page):
    page = open_page()
    nameless = page.evaluate(
        "Array.from(document.querySelectorAll('input, button, [role=img], section, table'))"
        ".filter((one) => !one.closest('[hidden]'))"
        ".filter((one) => !(one.getAttribute('aria-label') || one.labels?.[0]?.textContent.trim()"
        " || document.getElementById(one.getAttribute('aria-labelledby'))?.textContent.trim()"
        " || (one.tagName === 'BUTTON' && one.textContent.trim()))).map((one) => one.outerHTML.slice(0, 120))"
    )
    assert nameless == []
    ids = page.evaluate("Array.from(document.querySelectorAll('[id]'), (one) => one.id)")
    assert len(ids) == len(set(ids))
    stops = page.locator(".heatmap").evaluate_all(
        '(all) => all.map((one) => one.querySelectorAll(\'td[tabindex="0"], td [tabindex="0"]\').length)'
    )
    assert stops == [1] * 13
    unlabelled = page.locator(".heatmap td[data-row]:not([aria-label]):not(:has(input[aria-label]))").count()
    assert unlabelled == 0
    assert page.locator("main:visible").count() == 1 and page.locator("h1").count() == 1
    assert page.get_attribute("html", "lang") == "en"


def test_the_whole_chain_is_in_sight_at_once(open_page):
    page = open_page(lesson={**golden("first")["lesson"], "words": ["the", "cat", "sat", "on", "it"]})
    page.hover("#matrix-q td[data-row='1']")
    bottoms = page.locator(".heatmap").evaluate_all(
        "(all) => all.map((one) => one.getBoundingClientRect().bottom)"
    )
    assert max(bottoms) < page.locator(".strip").bounding_box()["y"]
    assert page.evaluate("document.documentElement.scrollWidth") == 1440
    # Rows of products stand beside the rows that they are made of.
    tops = {
        page.locator(f"#matrix-{figure} tbody").bounding_box()["y"]
        for figure in ["x", "q", "k", "v", "average"]
    }
    assert len(tops) == 1


@pytest.mark.parametrize("width", [390, 820])
def test_narrow_screens_stack_and_never_scroll_sideways(open_page, width):
    page = open_page(viewport={"width": width, "height": 844}, has_touch=True)
    page.fill("#tokens", "8")
    page.wait_for_selector("#matrix-scores tbody tr:nth-child(8)")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    # Nor with the widest numbers: their matrix scrolls by itself.
    page.evaluate("location.hash = 'x=' + Array(4).fill('-3e18,1e18,2e18;3e18,-1e18,-2e18').join(';')")
    page.wait_for_function(
        "() => document.querySelector('#matrix-scores td[data-row]').textContent.includes('e')"
    )
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.tap("#matrix-weights td[data-row='3'][data-column='0']")
    assert "fits query 3" in page.inner_text(".strip")
    assert page.locator(".strip").bounding_box()["height"] < 844 / 2


def test_pointing_moves_nothing(open_page):
    page = open_page()
    box = "(one) => JSON.stringify(one.getBoundingClientRect())"
    places = f"Array.from(document.querySelectorAll('.heatmap, .strip, .why'), {box})"
    before = page.evaluate(places)
    for figure in ["scores", "q", "v"]:
        page.hover(f"#matrix-{figure} td[data-row='1'][data-column='2']")
        quiet(page)
        assert page.evaluate(places) == before, figure


def test_motion_can_be_reduced(open_page):
    duration = "getComputedStyle(document.querySelector('.heatmap td[data-row]')).transitionDuration"
    assert open_page().evaluate(duration) != "0s"
    assert open_page(reduced_motion="reduce").evaluate(duration) == "0s"


def test_the_explorer_waits_for_something_to_explore(open_page, server):
    page = open_page()
    assert not page.is_visible("#explorer") and not page.is_visible("#tab-explorer")
    server.data = {**server.data, "explorer": {}}
    page = open_page()
    page.focus("#tab-lesson")
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#tab-explorer", "aria-selected") == "true"
    assert not page.is_visible("#lesson") and page.locator("#explorer").get_attribute("hidden") is None
    page.click("#tab-lesson")
    assert page.is_visible("#lesson")
    # A link into it opens it, and the lesson leaves the link alone.
    page = open_page("explorer&head=3")
    assert page.is_visible("#tab-explorer") and not page.is_visible("#lesson")
    page.evaluate("location.hash = 'explorer&head=4&scale=0'")
    quiet(page)
    assert page.inner_text("#scale-value") != "0" and page.evaluate("location.hash").startswith("#explorer")
