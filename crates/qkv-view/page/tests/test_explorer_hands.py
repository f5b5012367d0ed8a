"""The explorer by keys and by fingers."""

import re

import pytest
from support import at_head, at_rest, model, point, readout


def test_keys_move_zoom_pin_and_let_go(explore):
    page = explore("text", at_head("at=100.2,90.9,60", layer=1, head=1))
    at_rest(page)
    page.focus(".map-canvas")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    at_rest(page)
    # In the middle of cells, wherever one came from.
    assert "at=101.5,92.5,60" in page.evaluate("location.hash")
    weights = model("text").matrices(1, 1, 0)["weights"]
    assert readout(page).startswith("query 101 ") and "key 92 " in readout(page)
    assert readout(page).endswith(f"weight {weights[101, 92]:.4f}")
    assert page.inner_text("[aria-live]").replace("−", "-") == readout(page)
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.hash.includes('&q=101&k=92')")
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.hash.includes('q=101')")

    def scale():
        at_rest(page)
        return float(re.search(r"at=[\d.]+,[\d.]+,([\de.-]+)", page.evaluate("location.hash"))[1])

    page.keyboard.press("-")
    assert scale() == pytest.approx(30, rel=0.01)
    page.keyboard.press("+")
    assert scale() == pytest.approx(60, rel=0.01)
    page.keyboard.press("0")
    at_rest(page)
    assert "at=" not in page.evaluate("location.hash")
    # As far as the map goes, and no farther.
    for _ in range(12):
        page.keyboard.press("Shift+ArrowUp")
        page.keyboard.press("Shift+ArrowLeft")
    page.keyboard.press("+")
    at_rest(page)
    assert readout(page).startswith("query 0 ")
    # Keys of a field are its own.
    page.focus("#search")
    page.keyboard.type("[+-0")
    assert page.input_value("#search") == "[+-0" and page.inner_text(".map-name") == "Layer 1, head 1"


def test_the_overview_is_reached_by_keys(explore):
    page = explore("text")
    page.wait_for_function("() => !document.querySelector('.overview .empty')")
    assert page.locator(".thumbnail[tabindex='0']").count() == 1
    page.focus(".thumbnail[tabindex='0']")
    for key, name in [
        ("ArrowRight", "Layer 0, head 1"),
        ("ArrowDown", "Layer 1, head 1"),
        ("End", "Layer 2, head 3"),
        ("ArrowUp", "Layer 1, head 3"),
        ("ArrowLeft", "Layer 1, head 2"),
    ]:
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == name
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.map-name').textContent === 'Layer 1, head 2'")


def test_a_finger_pins(explore):
    page = explore(
        "text", at_head("at=80.5,70.5,36", head=2), viewport={"width": 390, "height": 844}, has_touch=True
    )
    at_rest(page)
    page.touchscreen.tap(*point(page, 81, 71))
    page.wait_for_function("() => location.hash.includes('&q=81&k=71')")
