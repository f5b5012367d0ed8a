"""The explorer and its server: what is asked for, when, and what follows from bad answers."""

import copy
import json
import threading

from mock_explorer import Api
from mock_models import painted
from support import at_head, at_rest, eventually, hover, model, pixel, point, quiet


def test_progress_is_shown_until_the_map_is_built(explore):
    seen, api = threading.Event(), Api(model("text"), built=0, surveyed=0)
    api.hold = lambda path, _: path == "map" and api.built == 60 and seen.wait()
    page = explore("text", at_head("at=300.5,290.5,1.5"), api=api)
    page.wait_for_function(
        # On a slow machine the time that remains comes after it.
        "() => document.querySelector('.map-progress').innerText.startsWith('Building the map: 40 %')"
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


def test_tiles_and_legend_are_of_one_scale(explore):
    # The largest number is known better as more is built.
    largest = {20: 1.0, 40: 0.5, 60: 0.5, 80: 0.5, 100: 0.25}

    def scale(*_):
        return {**model("long").scale((0, 1, 0), "weights"), "high": largest[api.built], "above": False}

    api, whole = Api(copy.copy(model("long")), built=0), threading.Event()
    api.model.scale = scale
    api.hold = lambda path, _: path == "map" and api.built >= 60 and whole.wait()
    page = explore("long", at_head("at=100.5,90.5,40", head=1), api=api)
    page.wait_for_selector("text=Building the map: 40 %")

    def shown(high, *cells):
        page.wait_for_function(
            f"() => document.querySelector('.legend-tick:nth-of-type(6)').textContent === '{high}'"
        )
        page.wait_for_function("() => painted.length > 0")
        page.wait_for_timeout(500)
        colour = {**scale(), "high": high}
        for query, key in cells:
            exact = model("long").cells((0, 1, 0), "weights", (query, query + 1), (key, key + 1))
            assert pixel(page, query, key) == painted(exact, colour)[0, 0].tolist()

    shown(0.5, (100, 90), (101, 88))
    page.evaluate(f"location.hash = '{at_head('at=70000.5,69990.5,40', head=1)}'")
    page.wait_for_timeout(500)
    shown(0.5, (70000, 69990), (70001, 69989))
    whole.set()
    page.wait_for_selector(".map-progress", state="hidden")
    shown(0.25, (70000, 69990), (70001, 69989))


def test_single_cells_are_seen_while_the_map_is_built(explore):
    api, whole, finest = Api(model("long"), built=0), threading.Event(), threading.Event()

    def hold(path, asked):
        if path == "map" and api.built >= 20:
            whole.wait()
        if path == "tile" and int(asked["level"]) == model("long").levels() - 1:
            finest.wait()

    api.hold = hold
    page = explore("long", at_head("at=100.5,90.5,60", head=1), api=api)
    page.wait_for_selector(".map-progress.aside")
    boxes = [page.locator(one).bounding_box() for one in (".map-progress", ".map-canvas")]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"] + 1
    # Larger cells stand for them: they have no lines yet, and no numbers.
    eventually(page, lambda: any(path == "cells" for path, _ in api.asked))
    page.wait_for_timeout(500)
    assert page.evaluate("painted") == []
    finest.set()
    page.wait_for_function("() => painted.length > 30")
    # Zoomed out, nothing is there yet, and the progress in the middle.
    page.keyboard.press("0")
    page.wait_for_selector(".map-progress:not(.aside)")
    whole.set()
    page.wait_for_selector(".map-progress", state="hidden")


def test_the_time_that_is_left(explore):
    page = explore("text", at_head())
    told = page.evaluate(
        """async () => {
          const { RemainingTime } = await import('./map-loader.js');
          const time = new RemainingTime();
          const told = [[0, 0], [0.01, 1], [0.1, 5], [0.2, 10], [0.8, 40], [0.98, 49]];
          // Of another map, from its beginning.
          told.push([0.001, 50], [0.051, 100]);
          return told.map(([share, seconds]) => time.tell(share, 1000 * seconds));
        }"""
    )
    assert told == [
        "",
        "",
        "about 45 s left",
        "about 40 s left",
        "about 10 s left",
        "a few seconds left",
        "",
        "about 16 min left",
    ]


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
