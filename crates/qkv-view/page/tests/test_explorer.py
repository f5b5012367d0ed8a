"""The explorer in a real browser, before a server in NumPy: what is shown is what the model has."""

import html
import json
import re
import time

import numpy as np
import pytest
from conftest import PAGE, explorer_data, modules, one_file
from mock_explorer import Api, embedded
from mock_models import HOSTILE, SPECIAL
from mock_models import painted as colours
from support import (
    SPY,
    at_head,
    at_rest,
    hover,
    model,
    pairs,
    pixel,
    point,
    readout,
    said,
)
from test_look import CONTRAST


@pytest.fixture
def explore(open_page, server):
    """Opens the explorer of a model; `explore.api` is the server's side."""

    def opened(name, fragment="", *, api=None, data=None, **options):
        opened.api = api or Api(model(name))
        server.explorer = opened.api
        server.data = explorer_data(data or {"live": True})
        page = open_page(fragment, init=SPY, **{"reduced_motion": "reduce", **options})
        page.wait_for_selector(".thumbnail:visible, .map-canvas:visible, .notice:visible")
        return page

    return opened


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
    asked = -1
    while asked < [path for path, _ in explore.api.asked].count("thumbnail"):
        asked = [path for path, _ in explore.api.asked].count("thumbnail")
        page.wait_for_timeout(1000)
    # Those in sight, and a little more.
    assert 20 < asked < 150
    page.wait_for_function("() => !document.querySelector('.unknown-yet')")
    page.click("th[data-column=entropy] button")
    rows = [model("many").row((*place, 0)) for place in model("many").places()]
    best = max(rows, key=lambda row: row["entropy"])
    assert page.locator(".head-table tbody th").first.inner_text() == f"{best['layer']} · {best['head']}"
    page.wait_for_timeout(500)
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
        page.wait_for_timeout(40)
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
    page.wait_for_timeout(600)
    assert "in a pixel for 256 × 256 pairs: the largest gives its colour" in readout(page)
    page.evaluate(f"location.hash = '{at_head('at=70000.5,69990.5,40', head=1)}'")
    page.wait_for_timeout(1500)
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


def test_a_long_text_shows_what_is_in_sight(explore):
    # The names are there before the map.
    api = Api(model("long"))
    map_of = api.answer_map
    api.answer_map = lambda asked: time.sleep(0.6) or map_of(asked)
    page = explore("long", at_head(head=1), api=api)
    page.wait_for_selector(".map-canvas canvas", state="attached")
    page.wait_for_timeout(1500)
    assert page.locator(".text-token").all_inner_texts() == model("long").words[:500]
    # It follows the map.
    page.evaluate(f"location.hash = '{at_head('at=70000.5,69990.5,4', head=1)}'")
    at_rest(page)
    first = page.locator(".text-token").first
    assert 69800 < int(first.get_attribute("data-at")) < 69990


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


def test_pointing_at_a_query_lists_and_marks_its_keys(explore):
    page = explore("text", at_head("at=120.5,110.5,24", layer=1, head=0))
    at_rest(page)
    hover(page, 121, 110)
    page.wait_for_selector(".pair")
    answer = model("text").query((1, 0, 0), 121, 20)
    expected = [(one["key"], said(one["weight"]), said(one["influence"])) for one in answer["by_weight"]]
    assert pairs(page) == expected
    assert page.inner_text(".focus-name") == f"Query 121 {model('text').words[121]}"
    most = answer["by_weight"][0]["weight"]
    marked = {one["key"] for one in answer["by_weight"] if one["weight"] > most * 0.01}
    at = "(all) => all.map((one) => Number(one.dataset.at))"
    assert set(page.eval_on_selector_all(".text-token.marked", at)) == marked
    assert page.eval_on_selector_all(".text-token.here", at) == [121]
    page.get_by_role("button", name="by influence").click()
    page.wait_for_timeout(300)
    assert [one[0] for one in pairs(page)] == [one["key"] for one in answer["by_influence"]]
    # The list can be reached: the panel keeps what was hovered last. A line of it is pinned with its query.
    page.locator(".pair").nth(1).click()
    page.wait_for_function("() => location.hash.includes('&q=121&k=')")
    key = answer["by_influence"][1]["key"]
    assert f"&q=121&k={key}" in page.evaluate("location.hash") and "by=influence" in page.evaluate(
        "location.hash"
    )


def test_pointing_at_a_key_lists_who_looks_at_it(explore):
    page = explore("text", at_head("at=20.5,10.5,24", layer=1, head=0))
    at_rest(page)
    x, _ = point(page, 0, 7)
    box = page.locator(".ruler-top").bounding_box()
    page.mouse.move(x, box["y"] + 50)
    page.wait_for_selector(".pair")
    answer = model("text").key((1, 0, 0), 7, 20)
    expected = [(one["query"], said(one["weight"]), said(one["influence"])) for one in answer["by_weight"]]
    assert pairs(page) == expected
    assert f"from {answer['queries']} queries." in page.inner_text(".facts")
    assert f"Receives {answer['received']:.4f}" in page.inner_text(".facts")
    page.mouse.click(x, box["y"] + 50)
    page.wait_for_function("() => location.hash.endsWith('&k=7&side=key')")
    # Elsewhere, what is pinned stays.
    hover(page, 22, 12)
    assert page.inner_text(".focus-name") == f"Key 7 {model('text').words[7]}" and pairs(page) == expected
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.hash.includes('k=7')")
    assert page.inner_text(".focus-name") == "Point at the map"
    # Beside the map there is nothing to point at, and what was hovered last stays.
    hover(page, 23, 12)
    page.keyboard.press("0")
    at_rest(page)
    canvas = page.locator(".map-canvas").bounding_box()
    page.mouse.move(canvas["x"] + 5, canvas["y"] + 5)
    page.wait_for_timeout(400)
    assert page.inner_text(".focus-name").startswith("Query 23")


def test_both_sides_of_a_pair(explore):
    page = explore("text", at_head("q=121&k=7", layer=1, head=0))
    page.wait_for_selector(".pair")
    assert page.inner_text(".focus-name").startswith("Query 121")
    page.get_by_role("button", name="Who looks at key 7").click()
    page.wait_for_function("() => document.querySelector('.focus-name').textContent.startsWith('Key 7')")
    page.wait_for_function("() => location.hash.endsWith('&q=121&k=7&side=key')")
    assert pairs(page)[0][0] == model("text").key((1, 0, 0), 7, 20)["by_weight"][0]["query"]


def test_a_token_of_the_text_is_pinned(explore):
    page = explore("text", at_head(layer=1, head=0))
    at_rest(page)
    page.click(".text-token[data-at='61']")
    page.wait_for_function("() => location.hash.includes('&q=61')")
    page.wait_for_selector(".pair")
    assert pairs(page)[0][0] == model("text").query((1, 0, 0), 61, 20)["by_weight"][0]["key"]
    page.focus(".text-token[tabindex='0']")
    at = page.evaluate("Number(document.activeElement.dataset.at)")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_function(f"() => location.hash.includes('&q={at + 1}')")


def test_search_jumps_to_its_places(explore):
    page = explore("text", at_head(layer=1, head=0))
    at_rest(page)
    page.keyboard.press("/")
    page.keyboard.type("fox")
    places = [at for at, word in enumerate(model("text").words) if word == "fox"]
    page.wait_for_function(
        f"() => document.querySelector('.search-count').textContent === '1 of {len(places)}'"
    )
    at_rest(page)

    def middle():
        found = re.search(r"at=([\d.]+),([\d.]+),", page.evaluate("location.hash"))
        return float(found[1]), float(found[2])

    assert middle() == (places[0] + 0.5, places[0] + 0.5)
    page.keyboard.press("Enter")
    at_rest(page)
    assert page.inner_text(".search-count") == f"2 of {len(places)}"
    lit = page.locator(".ruler-top .ruler-label.found:visible")
    assert lit.inner_text().split() == ["fox", str(places[1])]
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Shift+Enter")
    at_rest(page)
    assert page.inner_text(".search-count") == f"{len(places)} of {len(places)}"
    assert page.locator(".ruler-left .ruler-label.found:visible").inner_text().split() == [
        "fox",
        str(places[-1]),
    ]
    # Whole tokens go before parts; an index can be asked for; what is not there is said.
    for text, count in [
        ("THE", sum(word.lower() == "the" for word in model("text").words)),
        ("anim", sum("anim" in word for word in model("text").words)),
        ("#599", 1),
        ("#600", 0),
        ("zebra", 0),
    ]:
        page.fill("#search", text)
        page.wait_for_timeout(300)
        assert page.inner_text(".search-count") == (f"1 of {count}" if count else "none"), text
    page.focus("#search")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.className") == "map-canvas"
    assert page.input_value("#search") == "" and page.locator(".found:visible").count() == 0


def test_the_url_holds_the_place(explore):
    fragment = at_head(
        "of=scaled&pool=mean&sort=first&up=1&at=120.5,110.25,24&q=121&k=110&side=key&by=influence", 1, 3
    )
    page = explore("text", fragment)
    at_rest(page)
    hash_ = page.evaluate("location.hash")
    parts = set(hash_.removeprefix("#").split("&"))
    assert parts == set(fragment.split("&"))
    shown = page.evaluate(
        "[document.querySelector('#map-of').value, document.querySelector('#map-pool').value]"
    )
    assert shown == ["scaled", "mean"] and page.inner_text(".map-name") == "Layer 1, head 3"
    asked = [one for path, one in explore.api.asked if path == "tile"]
    assert {(one["of"], one["pool"], one["layer"], one["head"]) for one in asked} == {
        ("scaled", "mean", "1", "3")
    }
    # The same again, from what was written.
    other = explore("text", hash_.removeprefix("#"))
    at_rest(other)
    assert other.evaluate("location.hash") == hash_
    # A link that is followed in an open page, and the way back from one head to all.
    other.evaluate(f"location.hash = '{at_head('q=5', 0, 2)}'")
    other.wait_for_function("() => document.querySelector('.map-name').textContent === 'Layer 0, head 2'")
    page = explore("text")
    page.click("[aria-label='Layer 2, head 1']")
    page.wait_for_function("() => location.hash === '#explorer&layer=2&head=1'")
    page.go_back()
    page.wait_for_selector(".overview")
    page.go_forward()
    page.wait_for_selector(".map-canvas")
    page.click("#all-heads")
    page.wait_for_function("() => document.activeElement.getAttribute('aria-label') === 'Layer 2, head 1'")
    # A link that is followed just when the URL would be written: the URL has it before the page hears of it.
    page.evaluate(
        "document.querySelector('.thumbnail').click();"
        "history.replaceState(null, '', '#explorer&sort=first');"
        "setTimeout(() => dispatchEvent(new HashChangeEvent('hashchange')), 400); null"
    )
    page.wait_for_timeout(900)
    assert page.is_visible(".overview") and page.evaluate("location.hash") == "#explorer&sort=first"


@pytest.mark.parametrize(
    ("fragment", "shown"),
    [
        ("explorer&layer=9&head=0", "#explorer"),
        ("explorer&layer=0&head=4", "#explorer"),
        ("explorer&layer=-1&head=0x1", "#explorer"),
        ("explorer&layer=0&head=1e0", "#explorer"),
        ("explorer&sort=__proto__&of=constructor&batch=7", "#explorer"),
        ("explorer&layer=0&head=0&of=<b>&pool=sum&q=600&k=-1&at=1,2", "#explorer&layer=0&head=0"),
        ("explorer&layer=0&head=0&at=1,2,0&q=1e9&side=x&by=y", "#explorer&layer=0&head=0"),
        ("explorer&layer=0&head=0&at=NaN,Infinity,1e999", "#explorer&layer=0&head=0"),
        ("explorer&layer=0&head=0&at=601,0,5", "#explorer&layer=0&head=0"),
        ("explorer&layer=0&head=0&x=" + "x" * 5000, "#explorer"),
        ("explorer&%E0%A4%A&head=%FF&<script>alert(1)</script>", "#explorer"),
    ],
)
def test_a_hostile_url_leads_to_a_place_that_there_is(explore, fragment, shown):
    page = explore("text", fragment)
    page.wait_for_timeout(900)
    assert page.evaluate("location.hash") == shown
    assert page.locator(".notice:visible").count() == 0 and page.locator("#explorer:visible").count() == 1


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


def test_labels_are_text_whatever_they_hold(explore):
    page = explore("odd", "explorer&head=0&q=8")
    page.wait_for_selector(".pair")
    at_rest(page)
    visible = ["</script><b>", "↵", "“”", "␣", *HOSTILE[4:10], "�evil", "Ġthe"]
    for side in ["left", "top"]:
        labels = page.eval_on_selector_all(
            f".ruler-{side} .ruler-label:not([hidden])",
            "(all) => all.map((one) => [Number(one.querySelector('.index').textContent),"
            " one.querySelector('bdi').textContent])",
        )
        # One for each, duplicates too.
        assert sorted(labels) == [[at, word] for at, word in enumerate(visible)]
    assert page.locator(".text-token").all_inner_texts() == visible
    assert page.inner_text(".focus-name") == "Query 8 <s>"
    for key in range(8):
        page.locator(".pair").nth(key).hover()
    page.fill("#search", "</script>")
    page.wait_for_timeout(300)
    assert page.inner_text(".search-count") == "1 of 1"
    page.click("#all-heads")
    assert page.inner_text(".about h2") == "odd </script><b>title"
    assert page.locator("#explorer b:not(.head-number b), #explorer img, #explorer script").count() == 0


def test_a_row_that_attends_nothing_and_a_row_of_nan(explore):
    page = explore("odd", "explorer&head=0&at=6,6,50")
    at_rest(page)
    hover(page, 3, 2)
    assert readout(page).endswith("weight 0.0000")
    assert "attends nothing: every key is masked" in page.inner_text(".facts") and pairs(page) == []
    hover(page, 6, 2)
    assert readout(page).endswith("weight NaN")
    assert "weights are NaN" in page.inner_text(".facts")
    painted = [text for text, _, _ in page.evaluate("painted")]
    # What is masked has no weight, whatever the others are.
    assert painted.count("NaN") == 7
    assert pixel(page, 6, 3) == list(SPECIAL["nan"])
    page.evaluate("location.hash = '#explorer&head=0&of=scores&at=6,6,50'")
    at_rest(page)
    painted = [text for text, _, _ in page.evaluate("painted")]
    scores = model("odd").matrices(None, 0, 0)["scores"]
    assert (
        painted.count("∞") == (scores == np.inf).sum() > 1
        and painted.count("−∞") == (scores == -np.inf).sum() > 1
    )
    assert pixel(page, 8, 9) == list(SPECIAL["inf"]) and pixel(page, 7, 9) == list(SPECIAL["-inf"])
    legend = page.eval_on_selector_all(
        ".legend-special",
        "(all) => all.map((one) => [one.textContent,"
        " getComputedStyle(one.querySelector('.legend-patch')).backgroundColor])",
    )
    assert legend == [["NaN", "rgb(230, 0, 158)"], ["+∞", "rgb(0, 224, 255)"], ["−∞", "rgb(212, 212, 212)"]]
    # A head of which nothing is known but that.
    page.click("#all-heads")
    page.wait_for_function("() => !document.querySelector('.unknown-yet')")
    cells = page.locator(".head-table tbody tr").nth(1).locator("td").all_inner_texts()
    assert cells == ["–"] * 8 + ["12", "0"]


def test_queries_and_keys_of_other_lengths_and_no_tokens(explore):
    page = explore("cache", "explorer&head=1&at=1.5,5.5,30")
    at_rest(page)
    hover(page, 1, 1)
    weights = model("cache").matrices(None, 1, 0)["weights"]
    assert readout(page) == f"query 1 → key 1: weight {weights[1, 1]:.4f}"
    assert not page.is_visible(".in-text") and page.inner_text(".search-count") == ""
    assert sorted(page.locator(".ruler-left .ruler-label:visible").all_inner_texts()) == ["0", "1", "2"]
    asked = [one for _, one in explore.api.asked]
    assert not any("layer" in one for one in asked)


def test_batches(explore):
    page = explore("batches", "explorer&batch=2")
    page.wait_for_function("() => !document.querySelector('.overview .empty')")
    assert {one["batch"] for path, one in explore.api.asked if path in ("heads", "thumbnail")} == {"2"}
    page.fill("#batch", "1")
    page.keyboard.press("Tab")
    page.wait_for_function("() => location.hash === '#explorer&batch=1'")
    page.wait_for_function("() => !document.querySelector('.overview .empty')")
    assert [one["batch"] for path, one in explore.api.asked if path == "thumbnail"] == ["2"] * 4 + ["1"] * 4
    page.click("[aria-label='Layer 1, head 0']")
    assert page.inner_text(".map-name") == "Layer 1, head 0, batch 1"
    page.wait_for_timeout(300)
    assert {one["batch"] for path, one in explore.api.asked if path == "map"} == {"1"}


def test_progress_is_shown_until_the_map_is_built(explore):
    page = explore("text", at_head("at=300.5,290.5,1.5"), api=Api(model("text"), built=0, surveyed=0))
    page.wait_for_selector(".map-progress:visible")
    shown = page.inner_text(".map-progress")
    assert re.match(r"Building the map: \d+ %", shown)
    page.wait_for_selector(".map-progress", state="hidden", timeout=10000)
    at_rest(page)
    # Nothing was asked for before it was ready, or twice.
    tiles = [json.dumps(one) for path, one in explore.api.asked if path == "tile"]
    assert tiles and len(tiles) == len(set(tiles))
    assert pixel(page, 300, 300) != [246, 245, 241] and page.is_hidden(".map-notice")
    page.close()
    # Heads come as they are surveyed.
    page = explore("text", "", api=Api(model("text"), surveyed=0))
    page.wait_for_selector("text=Looking at the heads: 5 of 12")
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
    page.wait_for_timeout(700)
    page.complaints[:] = [
        one for one in page.complaints if "the server responded with a status of" not in one
    ]


def test_what_is_not_wanted_any_more_is_given_up(explore):
    api = Api(model("text"), slow=1.0)
    page = explore("text", at_head("at=100.5,90.5,40"), api=api)
    gone = []
    page.on("requestfailed", lambda request: gone.append(request.url))
    while not any(one["level"] == "10" for path, one in api.asked if path == "tile"):
        page.wait_for_timeout(20)
    page.evaluate(f"location.hash = '{at_head('at=500.5,490.5,40')}'")
    page.wait_for_timeout(4000)
    assert any("level=10&x=0&y=0" in url for url in gone) and not any(
        "level=10&x=1&y=1" in url for url in gone
    )
    tiles = [(one["x"], one["y"]) for path, one in api.asked if path == "tile" and one["level"] == "10"]
    assert tiles[-1] in {("1", "1"), ("1", "2"), ("2", "1"), ("2", "2")}


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
    for step in range(8):
        page.mouse.move(x + step, y + 40 * step)
    page.wait_for_timeout(600)
    assert len(explore.api.asked) - before <= 2, explore.api.asked[before:]


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
    page.wait_for_timeout(600)
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
    page.wait_for_timeout(600)
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


def test_a_finger_pins(explore):
    page = explore(
        "text", at_head("at=80.5,70.5,36", head=2), viewport={"width": 390, "height": 844}, has_touch=True
    )
    at_rest(page)
    page.touchscreen.tap(*point(page, 81, 71))
    page.wait_for_function("() => location.hash.includes('&q=81&k=71')")


def test_everything_has_a_name(explore):
    for fragment in ["explorer", at_head("q=121&k=7&at=121,110,24", layer=1, head=0)]:
        page = explore("text", fragment)
        settled_enough = ".pair" if "q=" in fragment else ".thumbnail:not(.empty)"
        page.wait_for_selector(settled_enough)
        nameless = page.evaluate(
            "Array.from(document.querySelectorAll('input, button, select, section, [role], [tabindex]'))"
            ".filter((one) => one.closest('#explorer'))"
            ".filter((one) => !one.closest('[hidden]'))"
            ".filter((one) => !(one.getAttribute('aria-label') || one.labels?.[0]?.textContent.trim()"
            " || one.textContent.trim())).map((one) => one.outerHTML.slice(0, 120))"
        )
        assert nameless == []
        ids = page.evaluate("Array.from(document.querySelectorAll('[id]'), (one) => one.id)")
        assert len(ids) == len(set(ids))


def test_one_file_explores_from_disk_without_a_network(open_page, tmp_path):
    file = tmp_path / "text.html"
    held = embedded(model("text"))
    file.write_text(one_file(explorer_data(held)), "utf-8")
    page = open_page(file=file, offline=True, init=SPY)
    page.wait_for_function("() => !document.querySelector('.overview .empty, .unknown-yet')")
    assert page.locator(".thumbnail").count() == 12
    page.click("[aria-label='Layer 1, head 0']")
    at_rest(page)
    assert "Each cell is the largest of 2 × 2 pairs" in page.inner_text(".map-pooled")
    page.evaluate(f"location.hash = '{at_head('at=121.5,110.5,48&q=121', layer=1, head=0)}'")
    page.wait_for_selector(".pair")
    at_rest(page)
    answer = model("text").query((1, 0, 0), 121, 8)
    assert [one[0] for one in pairs(page)] == [one["key"] for one in answer["by_weight"]]
    assert [one[1] for one in pairs(page)[:3]] == [said(one["weight"]) for one in answer["by_weight"][:3]]
    # No numbers that the file does not have; colours are those of the picture.
    assert page.evaluate("painted") == []
    level = model("text").levels() - 2
    cell = model("text").level((1, 0, 0), "weights", "max", level, (60, 61), (55, 56))
    scale = next(one for one in held["heads"] if (one["layer"], one["head"]) == (1, 0))["map"]["scale"]
    assert pixel(page, 121, 110) == colours(cell, scale)[0, 0].tolist()
    # In another tile than the first.
    whole = model("text").matrices(1, 0, 0)["weights"][520:, :200]
    query, key = np.unravel_index(whole.argmax(), whole.shape)
    page.evaluate(f"location.hash = '{at_head(f'at={query + 520.5},{key + 0.5},48', layer=1, head=0)}'")
    at_rest(page)
    assert (
        pixel(page, query + 520, key)
        == colours(whole[query : query + 1, key : key + 1], scale)[0, 0].tolist()
    )
    page.keyboard.press("/")
    page.keyboard.type("fox")
    page.wait_for_timeout(400)
    assert page.inner_text(".search-count").startswith("1 of ")
    page.evaluate(f"location.hash = '{at_head('k=7', layer=1, head=0)}'")
    page.wait_for_selector("text=This file knows the 8 strongest keys of each query")


def test_one_file_works_inside_a_notebook(open_page, tmp_path):
    """Whose frame has no URL of its own, and whose sandbox lets nothing out."""
    page = html.escape(one_file(explorer_data(embedded(model("odd")))), quote=True)
    notebook = tmp_path / "notebook.html"
    frame = f'<iframe sandbox="allow-scripts" style="width: 100%; height: 760px" srcdoc="{page}"></iframe>'
    # What a page is waited for by, which here is outside.
    awaited = '<table class="chain" aria-busy="false"><tr><td></table>'
    notebook.write_text(f"<!doctype html><meta charset=utf-8>{frame}{awaited}", "utf-8")
    outside = open_page(file=notebook, offline=True)
    inside = outside.frames[1]
    inside.click(".thumbnail >> nth=1")
    inside.wait_for_selector(".map-canvas canvas", state="attached")
    inside.click("#all-heads")
    assert inside.locator(".thumbnail:visible").count() == 2
    inside.click("#tab-lesson")
    inside.check("#causal")
    inside.wait_for_function("() => document.querySelector('#matrix-masked').textContent.includes('∞')")
    outside.wait_for_timeout(700)
    assert outside.evaluate("location.hash") == ""


def test_a_small_file_has_its_numbers(open_page, tmp_path):
    file = tmp_path / "odd.html"
    file.write_text(one_file(explorer_data(embedded(model("odd")))), "utf-8")
    page = open_page("explorer&head=0&at=6,6,50&q=8", file=file, offline=True, init=SPY)
    page.wait_for_selector(".pair")
    at_rest(page)
    weights = model("odd").matrices(None, 0, 0)["weights"]
    hover(page, 8, 8)
    assert readout(page).endswith(f"weight {weights[8, 8]:.4f}") and page.is_hidden(".map-pooled")
    assert [text for text, _, _ in page.evaluate("painted")].count("NaN") == 7
    assert pixel(page, 6, 3) == list(SPECIAL["nan"])
    hover(page, 3, 3)
    page.keyboard.press("Escape")
    hover(page, 3, 2)
    assert "attends nothing" in page.inner_text(".facts")
    file.write_text(one_file(explorer_data(embedded(model("cache")))), "utf-8")
    page = open_page("explorer&head=0&at=1.5,5.5,60", file=file, offline=True, init=SPY)
    at_rest(page)
    weights = model("cache").matrices(None, 0, 0)["weights"]
    for query, key in [(2, 1), (1, 5)]:
        hover(page, query, key)
        assert readout(page).endswith(f"weight {weights[query, key]:.4f}")


def test_data_that_is_nothing_to_explore_is_said(explore, server):
    page = explore("text", data={"input": {"layers": "<b>"}})
    assert "without anything to explore that can be shown" in page.inner_text("#explorer .notice")
    page.click("#tab-lesson")
    assert page.is_visible(".chain")


def test_the_lesson_and_the_explorer_keep_their_own_urls(explore):
    page = explore("text", at_head("q=12"))
    at_rest(page)
    page.click("#tab-lesson")
    page.check("#causal")
    page.wait_for_function("() => location.hash === '#causal=1'")
    assert page.inner_text("h1") == "Attention, step by step"
    page.evaluate(
        "window.written = []; const write = history.replaceState.bind(history);"
        "history.replaceState = (state, title, url) => { written.push(url); write(state, title, url); };"
        "null"
    )
    # Before the lesson has written its URL.
    page.evaluate("for (const id of ['causal', 'tab-explorer']) document.getElementById(id).click()")
    page.wait_for_function("() => location.hash.includes('&q=12')")
    assert page.evaluate("written") == ["#" + at_head("q=12")]
    assert page.inner_text("h1") == "Attention, explored"
    page.wait_for_timeout(500)
    assert "&q=12" in page.evaluate("location.hash")
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.hash.includes('&q=12')")
    page.keyboard.press("Escape")
    page.wait_for_timeout(700)
    assert page.evaluate("location.hash") == "#" + at_head()
    # Keys and pointers of the explorer are not the lesson's, nor the other way round.
    page.click("#tab-lesson")
    page.click("#matrix-scores td[data-row='1'][data-column='0']")
    page.click("#tab-explorer")
    page.focus(".map-canvas")
    page.keyboard.press("Escape")
    page.click("#tab-lesson")
    page.wait_for_function("() => location.hash === '#at=s1,0'")
    page.keyboard.press("/")
    page.keyboard.press("]")
    page.wait_for_timeout(500)
    assert page.evaluate("location.hash") == "#at=s1,0"


def test_modules_can_be_put_into_one_script():
    """One scope: no name twice, no cycle, only lines that can be left out."""
    names, imports = [], {}
    for file, text in modules().items():
        assert len(text.splitlines()) < 300, file
        imports[file] = re.findall(r"^import .* from '\./(.*)';$", text, re.M)
        assert len(imports[file]) == len(re.findall(r"^import\b", text, re.M)), file
        assert not re.search(r"\bimport\(|innerHTML|insertAdjacentHTML|document\.write", text), file
        found = re.findall(r"^(?:async )?(?:function\*?|class|const|let) (\w+|[\[{].*?[\]}])", text, re.M)
        names += [name for one in found for name in re.findall(r"\w+", one)]
    assert sorted(names) == sorted(set(names))
    seen = []
    for file, needed in imports.items():
        assert set(needed) <= set(seen), file
        seen.append(file)
    assert set(PAGE.glob("*.js")) == {PAGE / file for file in imports}


def test_the_library_is_as_it_came_and_carries_its_licence():
    licence = (PAGE / "vendor/openseadragon.LICENSE.txt").read_text("utf-8").strip()
    library = (PAGE / "vendor/openseadragon.min.js").read_text("utf-8")
    assert library.startswith(f"/*!\n{licence}\n*/\n") and "sourceMappingURL" not in library


def test_dense_screens_show_more(explore):
    page = explore("long", at_head("at=50000,50000,0.01", head=1), device_scale_factor=2)
    at_rest(page)
    page.hover(".map-canvas")
    page.wait_for_timeout(500)
    # 0.01 pixels a cell are 0.02 of the screen's own: 64 pairs for a pixel, 10 levels over single cells.
    assert "in a pixel for 64 × 64 pairs" in readout(page)
    tiles = [json.dumps(one) for path, one in explore.api.asked if path == "tile"]
    assert max(int(json.loads(one)["level"]) for one in tiles) == model("long").levels() - 1 - 6
    assert len(tiles) == len(set(tiles))
