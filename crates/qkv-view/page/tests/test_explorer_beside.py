"""Beside the map: lists of what is pointed at, the text, the search."""

import time

from mock_explorer import Api
from support import at_head, at_rest, hover, model, pairs, point, quiet, said, walk_over_hits


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
    quiet(page)
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
    quiet(page)
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
    quiet(page)
    assert page.inner_text(".focus-name").startswith("Query 23")


def test_both_sides_of_a_pair(explore):
    page = explore("text", at_head("q=121&k=7", layer=1, head=0))
    page.wait_for_selector(".pair")
    assert page.inner_text(".focus-name").startswith("Query 121")
    page.get_by_role("button", name="Who looks at key 7").click()
    page.wait_for_function("() => document.querySelector('.focus-name').textContent.startsWith('Key 7')")
    page.wait_for_function("() => location.hash.endsWith('&q=121&k=7&side=key')")
    quiet(page)
    assert pairs(page)[0][0] == model("text").key((1, 0, 0), 7, 20)["by_weight"][0]["query"]


def test_a_token_of_the_text_is_pinned(explore):
    page = explore("text", at_head(layer=1, head=0))
    at_rest(page)
    page.click(".text-token[data-at='61']")
    page.wait_for_function("() => location.hash.includes('&q=61')")
    quiet(page)
    assert pairs(page)[0][0] == model("text").query((1, 0, 0), 61, 20)["by_weight"][0]["key"]
    page.focus(".text-token[tabindex='0']")
    at = page.evaluate("Number(document.activeElement.dataset.at)")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_function(f"() => location.hash.includes('&q={at + 1}')")


def test_a_long_text_shows_what_is_in_sight(explore):
    # The names are there before the map.
    api = Api(model("long"))
    api.hold = lambda path, _: path == "map" and time.sleep(0.6)
    page = explore("long", at_head(head=1), api=api)
    at_rest(page)
    assert page.locator(".text-token").all_inner_texts() == model("long").words[:500]
    # It follows the map.
    page.evaluate(f"location.hash = '{at_head('at=70000.5,69990.5,4', head=1)}'")
    at_rest(page)
    first = page.locator(".text-token").first
    assert 69800 < int(first.get_attribute("data-at")) < 69990


def test_search_jumps_to_its_places(explore):
    page = explore("text", at_head(layer=1, head=0))
    at_rest(page)
    walk_over_hits(page, "fox")
    # Whole tokens go before parts; an index can be asked for; what is not there is said.
    for text, count in [
        ("THE", sum(word.lower() == "the" for word in model("text").words)),
        ("anim", sum("anim" in word for word in model("text").words)),
        ("#599", 1),
        ("#600", 0),
        ("zebra", 0),
    ]:
        page.fill("#search", text)
        quiet(page)
        assert page.inner_text(".search-count") == (f"1 of {count}" if count else "none"), text
    page.focus("#search")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.className") == "map-canvas"
    assert page.input_value("#search") == "" and page.locator(".found:visible").count() == 0
