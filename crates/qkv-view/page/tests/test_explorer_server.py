"""The explorer and its server: what is asked for, when, and what follows from bad answers."""

import json
import threading

from mock_explorer import Api
from support import at_head, at_rest, eventually, hover, model, pixel, point, quiet


def test_progress_is_shown_until_the_map_is_built(explore):
    seen, api = threading.Event(), Api(model("text"), built=0, surveyed=0)
    api.hold = lambda path, _: path == "map" and api.built == 60 and seen.wait()
    page = explore("text", at_head("at=300.5,290.5,1.5"), api=api)
    page.wait_for_function(
        "() => document.querySelector('.map-progress').innerText === 'Building the map: 40 %'"
    )
    seen.set()
    page.wait_for_selector(".map-progress", state="hidden")
    at_rest(page)
    # Nothing was asked for before it was ready, or twice.
    tiles = [json.dumps(one) for path, one in explore.api.asked if path == "tile"]
    assert tiles and len(tiles) == len(set(tiles))
    assert pixel(page, 300, 300) != [246, 245, 241] and page.is_hidden(".map-notice")
    page.close()
    # Heads come as they are surveyed.
    seen, api = threading.Event(), Api(model("text"), surveyed=0)
    api.hold = lambda path, asked: path == "heads" and asked["from"] == "5" and seen.wait()
    page = explore("text", "", api=api)
    page.wait_for_selector("text=Looking at the heads: 5 of 12")
    seen.set()
    page.wait_for_function("() => !document.querySelector('.unknown-yet')")
    starts = [int(one["from"]) for path, one in explore.api.asked if path == "heads"]
    assert starts == [0, 0, 5, 10]


def test_a_server_that_refuses_is_told_calmly(explore):
    api = Api(model("text"))
    api.fail["input"] = (500, "the file is <b>gone</b>")
    page = explore("text", api=api)
    assert "could not be opened: the file is <b>gone</b>." in page.inner_text("#explorer .notice")
    api.fail = {"heads": (503, "busy"), "thumbnail": (500, "no picture")}
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector("text=The table waits: busy.")
    page.wait_for_selector(".thumbnail.failed")
    api.fail = {"map": (500, "out of memory"), "query": (400, "query: too far")}
    page.click("[aria-label='Layer 0, head 0']")
    page.wait_for_selector("text=Something is missing here: out of memory.")
    api.fail.pop("map")
    page.click(".map-notice .button")
    page.wait_for_selector(".map-notice", state="hidden")
    at_rest(page)
    page.click(".text-token[data-at='5']")
    page.wait_for_selector("text=This could not be had: query: too far.")
    api.fail = {"tile": (500, "no tile")}
    page.select_option("#map-of", "mask")
    page.wait_for_selector("text=Something is missing here: no tile.")
    api.fail = {"cells": (500, "no numbers")}
    page.select_option("#map-of", "scores")
    page.wait_for_selector(".map-notice", state="hidden")
    page.hover(".map-canvas")
    page.wait_for_selector("text=Something is missing here: no numbers.")
    # What was asked for before is answered, and told by the browser.
    api.fail = {}
    quiet(page)
    page.complaints[:] = [
        one for one in page.complaints if "the server responded with a status of" not in one
    ]


def test_what_is_not_wanted_any_more_is_given_up(explore):
    api, release = Api(model("text")), threading.Event()
    api.hold = lambda path, asked: path == "tile" and asked["level"] == "10" and release.wait()
    page = explore("text", at_head("at=100.5,90.5,40"), api=api)
    gone = []
    page.on("requestfailed", lambda request: gone.append(request.url))

    def finest():
        return [(one["x"], one["y"]) for path, one in api.asked if path == "tile" and one["level"] == "10"]

    eventually(page, finest)
    page.evaluate(f"location.hash = '{at_head('at=500.5,490.5,40')}'")
    eventually(page, lambda: any("level=10&x=0&y=0" in url for url in gone))
    release.set()
    at_rest(page)
    assert not any("level=10&x=1&y=1" in url for url in gone)
    assert finest()[-1] in {("1", "1"), ("1", "2"), ("2", "1"), ("2", "2")}


def test_nothing_is_asked_twice(explore):
    page = explore("text", at_head("at=100.5,90.5,40", layer=1, head=0))
    at_rest(page)
    for query in [100, 101, 100, 101]:
        hover(page, query, 92)
    page.keyboard.press("]")
    at_rest(page)
    page.keyboard.press("[")
    at_rest(page)
    asked = [json.dumps([path, one]) for path, one in explore.api.asked if path != "heads"]
    assert len(asked) == len(set(asked))
    # And only where the pointer rests.
    before = len(explore.api.asked)
    x, y = point(page, 95, 85)
    # In the page, where steps are faster than any rest, however slow the machine.
    page.evaluate(
        """async ([x, y]) => {
          for (let step = 0; step < 8; step += 1) {
            const at = { clientX: x + step, clientY: y + 40 * step };
            document.querySelector('.map-canvas').dispatchEvent(new PointerEvent('pointermove', at));
            await new Promise((next) => setTimeout(next));
          }
        }""",
        [x, y],
    )
    quiet(page)
    assert [path for path, _ in explore.api.asked[before:]] == ["query"]
    assert explore.api.asked[-1][1]["query"] == "102"
