"""All heads and the map of one, before a server in NumPy: what is shown is what the model has."""

import json
import re

import numpy as np
import pytest
from mock_models import painted as colours
from support import at_head, at_rest, hover, model, pixel, point, quiet, readout


def test_all_heads_are_shown_and_sorted_by_the_table(explore):
    page = explore("text")
    page.wait_for_function("() => !document.querySelector('.overview .empty, .unknown-yet')")
    assert page.locator(".thumbnail").count() == 12
    assert page.locator(".thumbnail-row h3").all_inner_texts() == ["Layer 0", "Layer 1", "Layer 2"]
    rows = [model("text").row((*place, 0)) for place in model("text").places()]
    for column in ["distance", "after"]:
        page.click(f"th[data-column={column}] button")
        for up in [False, True]:
            expected = sorted(rows, key=lambda row: row[column] * (1 if up else -1))
            order = [f"{row['layer']} · {row['head']}" for row in expected]
            assert page.locator(".head-table tbody th").all_inner_texts() == order
            assert page.locator(".thumbnail-name").all_inner_texts() == order
            digits = 1 if column == "distance" else 3
            shown = page.locator(".head-table td.sorted").all_inner_texts()
            assert shown == [f"{row[column]:.{digits}f}" for row in expected]
            assert page.locator(".thumbnail-value").all_inner_texts() == shown
            page.click(f"th[data-column={column}] button")
    assert page.get_attribute("th[data-column=after]", "aria-sort") == "descending"
    page.wait_for_function("() => location.hash === '#explorer&sort=after'")
    assert "earlier copy" in page.inner_text(".meaning")


def test_a_thumbnail_is_its_head(explore):
    page = explore("text")
    page.wait_for_function("() => !document.querySelector('.overview .empty')")
    values = model("text").level((0, 2, 0), "weights", "max", model("text").levels() - 4, (0, 75), (0, 75))
    drawn = page.evaluate(
        "(card) => { const c = card.querySelector('canvas');"
        " return [c.width, c.height, ...c.getContext('2d').getImageData(5, 30, 1, 1).data.slice(0, 3)]; }",
        page.locator("[aria-label='Layer 0, head 2']").element_handle(),
    )
    assert drawn[:2] == [75, 75]
    assert drawn[2:] == colours(values, model("text").scale((0, 2, 0), "weights"))[30, 5].tolist()


def test_three_hundred_heads(explore):
    page = explore("many")
    page.wait_for_function("() => document.querySelectorAll('.thumbnail:not(.empty)').length > 20")
    assert page.locator(".thumbnail").count() == 300
    quiet(page)
    # Those in sight, and a little more.
    assert 20 < [path for path, _ in explore.api.asked].count("thumbnail") < 150
    page.wait_for_function("() => !document.querySelector('.unknown-yet')")
    page.click("th[data-column=entropy] button")
    rows = [model("many").row((*place, 0)) for place in model("many").places()]
    best = max(rows, key=lambda row: row["entropy"])
    assert page.locator(".head-table tbody th").first.inner_text() == f"{best['layer']} · {best['head']}"
    quiet(page)
    before = [path for path, _ in explore.api.asked].count("thumbnail")
    page.locator(".thumbnail").last.scroll_into_view_if_needed()
    page.wait_for_function("() => !document.querySelectorAll('.thumbnail')[299].classList.contains('empty')")
    assert [path for path, _ in explore.api.asked].count("thumbnail") > before
    page.locator(".thumbnail").last.click()
    page.wait_for_selector(".map-canvas")
    # Through the heads in the order of the table, and back to where one was.
    name = page.inner_text(".map-name")
    page.keyboard.press("[")
    page.wait_for_function("(name) => document.querySelector('.map-name').textContent !== name", arg=name)
    page.keyboard.press("]")
    page.wait_for_function("(name) => document.querySelector('.map-name').textContent === name", arg=name)
    page.go_back()
    page.wait_for_selector(".overview")
    assert page.locator(".head-table tbody tr").count() == 300


def test_zoom_from_the_whole_to_one_cell_and_its_number(explore):
    page = explore("text", at_head(layer=1, head=1))
    at_rest(page)
    assert page.evaluate("location.hash") == "#" + at_head(layer=1, head=1)
    box = page.locator(".map-canvas").bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2 + 40
    page.mouse.move(*middle)
    for _ in range(20):
        page.mouse.wheel(0, -120)
        # Faster turns are taken for one.
        page.wait_for_timeout(60)
    at_rest(page)
    assert "96" in page.evaluate("location.hash").split(",")[-1]
    weights = model("text").matrices(1, 1, 0)["weights"]
    named = re.match(r"query (\d+) \S+ → key (\d+) \S+: weight (\S+)$", readout(page))
    query, key = int(named[1]), int(named[2])
    assert float(named[3]) == pytest.approx(weights[query, key], abs=5e-5)
    # Every number on the map is that of the cell under it.
    painted = page.evaluate("painted")
    assert len(painted) > 30
    left, top = point(page, 0, 0)
    for text, x, y in painted:
        row = round((box["y"] + y - top) / 96)
        column = round((box["x"] + x - left) / 96)
        assert text == ("0" if weights[row, column] == 0 else f"{weights[row, column]:.4f}"), (row, column)
    # And every label on a ruler that of its row.
    labels = page.locator(".ruler-left .ruler-label:visible").all_inner_texts()
    words = model("text").words
    assert [one.split() for one in labels if one.split()] and all(
        words[int(one.split()[-1])] == one.split()[0] for one in labels
    )
    # Colours too.
    scale = model("text").scale((1, 1, 0), "weights")
    assert pixel(page, query, key) == colours(weights[query : query + 1, key : key + 1], scale)[0, 0].tolist()


def test_a_hundred_thousand_down_to_single_cells(explore):
    page = explore("long", at_head(head=1))
    at_rest(page)
    ticks = page.locator(".ruler-top .ruler-label:visible").all_inner_texts()
    assert "20000" in ticks and "80000" in ticks
    tiles = [one for path, one in explore.api.asked if path == "tile"]
    assert 0 < len(tiles) < 20
    box = page.locator(".map-canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2 + 20)
    quiet(page)
    assert "in a pixel for 256 × 256 pairs: the largest gives its colour" in readout(page)
    page.evaluate(f"location.hash = '{at_head('at=70000.5,69990.5,40', head=1)}'")
    at_rest(page)
    hover(page, 70001, 69991)
    exact = model("long").cells((0, 1, 0), "weights", (70001, 70002), (69991, 69992))[0, 0]
    words = model("long").words
    expected = f"query 70001 {words[70001]} → key 69991 {words[69991]}: weight {exact:.4f}"
    assert readout(page) == expected
    assert sum(1 for path, _ in explore.api.asked if path == "tile") < 60


def test_a_scale_that_ends_below_the_largest_number_says_so(explore):
    page = explore("text", at_head("of=influence", head=1))
    at_rest(page)
    high = model("text").scale((0, 1, 0), "influence")["high"]
    ticks = page.locator(".legend-tick")
    assert ticks.last.inner_text() == f"≥ {high:.2g}" and not ticks.nth(3).inner_text().startswith("≥")
    heights = page.eval_on_selector_all(".legend-tick", "(all) => all.map((one) => one.offsetHeight)")
    assert len(set(heights)) == 1


def test_a_pixel_of_many_pairs_tells_the_largest(explore):
    page = explore("long", at_head("at=5000.5,4990.5,0.25", head=1))
    at_rest(page)
    hover(page, 5000, 4990)
    query, key = (int(re.search(rf"{what} (\d+)", readout(page))[1]) // 4 * 4 for what in ("query", "key"))
    cells = model("long").cells((0, 1, 0), "weights", (query, query + 4), (key, key + 4))
    row, column = np.unravel_index(cells.argmax(), cells.shape)
    expected = f"in a pixel for 4 × 4 pairs; the largest is {cells.max():.4f}, query {query + row} "
    assert expected in readout(page) and readout(page).split("key ")[-1].startswith(f"{key + column} ")
    page.select_option("#map-pool", "mean")
    at_rest(page)
    assert f"in a pixel for 4 × 4 pairs of mean {cells.mean():.4f}" in readout(page)


def test_dense_screens_show_more(explore):
    page = explore("long", at_head("at=50000,50000,0.01", head=1), device_scale_factor=2)
    at_rest(page)
    page.hover(".map-canvas")
    quiet(page)
    # 0.01 pixels a cell are 0.02 of the screen's own: 64 pairs for a pixel, 10 levels over single cells.
    assert "in a pixel for 64 × 64 pairs" in readout(page)
    tiles = [json.dumps(one) for path, one in explore.api.asked if path == "tile"]
    assert max(int(json.loads(one)["level"]) for one in tiles) == model("long").levels() - 1 - 6
    assert len(tiles) == len(set(tiles))
