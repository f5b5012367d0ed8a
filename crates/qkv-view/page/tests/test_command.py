"""The page as `qkv view` serves and exports it, in a browser; QKV is the path of the command."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from command import write_safetensors
from mock_models import HOSTILE, SPECIAL
from support import (
    at,
    at_head,
    at_rest,
    hover,
    model,
    pairs,
    pixel,
    quiet,
    readout,
    shown,
    text,
    walk_over_hits,
)


@pytest.fixture
def address(qkv):
    with subprocess.Popen([qkv, "view", "--no-open"], stdout=subprocess.PIPE, text=True) as served:
        line = served.stdout.readline()
        yield next(word for word in line.split() if word.startswith("http://"))
        served.kill()


def assert_shows(page, qkv, *options):
    """The page has the numbers that the command prints."""
    printed = subprocess.run([qkv, "explain", "--json", *options], check=True, stdout=subprocess.PIPE)
    for step in json.loads(printed.stdout)["steps"]:
        assert text(page, step["name"]) == shown(step["values"]), step["name"]


def test_the_engine_computes_what_changes(chromium, qkv, address):
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    asked, complaints = [], []
    page.on("request", lambda request: asked.append((request.method, request.url)))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(address + "#")
    page.wait_for_selector(".chain[aria-busy=false] td", state="attached")
    assert "token" not in page.url
    assert_shows(page, qkv)
    page.check("#causal")
    page.wait_for_function("() => document.querySelector('#matrix-masked').textContent.includes('∞')")
    assert_shows(page, qkv, "--causal")
    assert any(method == "POST" and url.endswith("/api/lesson") for method, url in asked)
    assert all(url.startswith(address.split("/?")[0]) for _, url in asked if not url.startswith("data:"))
    assert complaints == []
    # Shown once, the address opens for nobody else.
    other = chromium.new_context().new_page()
    assert other.goto(address).status == 403
    context.close()


def test_the_exported_page_needs_nothing_else(chromium, qkv, tmp_path):
    path = Path(tmp_path) / "lesson.html"
    subprocess.run([qkv, "view", "--export", path], check=True, stdout=subprocess.PIPE)
    context = chromium.new_context(offline=True)
    page = context.new_page()
    complaints = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector(".chain[aria-busy=false] td", state="attached")
    assert_shows(page, qkv)
    page.locator(at("x", 0, 0) + " input").fill("2")
    changed = "(cell) => document.querySelector(cell).textContent !== '−1.0462'"
    page.wait_for_function(changed, arg=at("q", 0, 0))
    assert complaints == []
    context.close()


@pytest.fixture
def explore(open_page, serve):
    """Opens the explorer of a model's file, as the command serves it."""

    def opened(name, fragment="", **options):
        page = open_page(fragment, site=serve(name), **{"reduced_motion": "reduce", **options})
        page.wait_for_selector(".thumbnail:visible, .map-canvas:visible, .notice:visible")
        return page

    return opened


def all_heads(page):
    page.wait_for_function(
        "() => !document.querySelector('.overview .empty, .overview .failed, .unknown-yet')"
    )
    return page.locator(".head-table tbody tr")


def assert_listed(page, answer, kind, by, relative=1e-4):
    """The list beside the map is that of an answer: its places, its numbers as far as they are written."""
    near = {"rel": relative, "abs": 6e-5}
    listed = pairs(page)
    assert [one[0] for one in listed] == [one[kind] for one in answer[f"by_{by}"]]
    for (_, *numbers), one in zip(listed, answer[f"by_{by}"], strict=True):
        assert [float(x) for x in numbers] == pytest.approx([one["weight"], one["influence"]], **near)


def number_read(page):
    return float(readout(page).split()[-1])


def test_all_heads_are_there_with_their_numbers(explore):
    page = explore("text")
    rows = all_heads(page)
    assert page.locator(".thumbnail").count() == rows.count() == 12
    sizes = "(all) => all.map((one) => [one.width, one.height])"
    assert page.eval_on_selector_all(".thumbnail canvas", sizes) == [[75, 75]] * 12
    for line, place in zip(rows.all(), model("text").places(), strict=True):
        row = model("text").row((*place, 0))
        assert line.locator("th").inner_text() == f"{place[0]} · {place[1]}"
        shown = [float(one) for one in line.locator("td").all_inner_texts()]
        names = ["entropy", "keys", "distance", "first", "self", "previous", "same", "after", "empty", "nan"]
        digits = [2, 1, 1, 3, 3, 3, 3, 3, 0, 0]
        for name, number, places in zip(names, shown, digits, strict=True):
            assert number == pytest.approx(row[name], abs=0.51 * 10**-places), (place, name)


def test_from_all_heads_down_to_one_cell(explore):
    page = explore("text")
    all_heads(page)
    page.click("[aria-label='Layer 1, head 1']")
    at_rest(page)
    assert page.inner_text(".map-name") == "Layer 1, head 1" and page.is_hidden(".map-notice")
    weights = model("text").matrices(1, 1, 0)["weights"]
    query, key = 400, int(weights[400, :400].argmax())
    page.evaluate(f"location.hash = '{at_head(f'at={query + 0.5},{key + 0.5},96', 1, 1)}'")
    at_rest(page)
    hover(page, query, key)
    words = model("text").words
    named = f"query {query} {words[query]} → key {key} {words[key]}: weight "
    assert readout(page).startswith(named) and 0.01 < weights[query, key] < 0.99
    assert number_read(page) == pytest.approx(weights[query, key], abs=6e-5)
    assert len(page.evaluate("painted")) > 30
    # All that can be shown, without a word of complaint.
    for of in ["scores", "influence", "mask"]:
        page.select_option("#map-of", of)
        at_rest(page)
        hover(page, query, key)
        exact = model("text").matrices(1, 1, 0)[of][query, key]
        assert number_read(page) == pytest.approx(exact, rel=1e-4, abs=6e-5), of
        assert page.is_hidden(".map-notice")


def test_a_query_and_a_key_are_listed_and_pinned(explore):
    page = explore("text", at_head("at=120.5,110.5,24", layer=2, head=3))
    at_rest(page)
    hover(page, 121, 110)
    page.wait_for_selector(".pair")
    answer = model("text").query((2, 3, 0), 121, 20)
    assert page.inner_text(".focus-name") == f"Query 121 {model('text').words[121]}"
    assert_listed(page, answer, "key", "weight")
    page.get_by_role("button", name="by influence").click()
    quiet(page)
    assert_listed(page, answer, "key", "influence")
    page.locator(".pair").nth(1).click()
    key = answer["by_influence"][1]["key"]
    page.wait_for_function(f"() => location.hash.includes('&q=121&k={key}')")
    page.get_by_role("button", name=f"Who looks at key {key}").click()
    page.wait_for_function("() => document.querySelector('.focus-name').textContent.startsWith('Key')")
    answer = model("text").key((2, 3, 0), key, 20)
    quiet(page)
    assert_listed(page, answer, "query", "weight")
    told = page.inner_text(".facts")
    assert float(re.search(r"Receives (\S+)", told)[1]) == pytest.approx(answer["received"], abs=6e-5)
    assert f"from {answer['queries']} quer" in told


def test_search_and_a_reload_keep_the_place(explore):
    page = explore("text", at_head("q=61", layer=1, head=0))
    page.wait_for_selector(".pair")
    at_rest(page)
    walk_over_hits(page, "fox")
    before = page.evaluate("location.hash")
    assert "&at=" in before and "&q=61" in before
    page.reload()
    page.wait_for_selector(".pair")
    at_rest(page)
    assert page.evaluate("location.hash") == before
    assert page.inner_text(".map-name") == "Layer 1, head 0"
    assert page.inner_text(".focus-name").startswith("Query 61 ")
    assert_listed(page, model("text").query((1, 0, 0), 61, 20), "key", "weight")


def test_tokens_are_text_whatever_they_hold(explore, saved):
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
        assert sorted(labels) == [[at, word] for at, word in enumerate(visible)]
    assert page.locator(".text-token").all_inner_texts() == visible
    page.click("#all-heads")
    all_heads(page)
    assert page.locator("#explorer b:not(.head-number b), #explorer img, #explorer script").count() == 0


def test_rows_of_nothing_and_of_nan_say_so(explore):
    page = explore("odd", "explorer&head=0&at=6,6,50")
    at_rest(page)
    hover(page, 3, 2)
    assert readout(page).endswith("weight 0.0000")
    assert "attends nothing: every key is masked" in page.inner_text(".facts") and pairs(page) == []
    hover(page, 6, 2)
    assert readout(page).endswith("weight NaN") and "weights are NaN" in page.inner_text(".facts")
    assert [text for text, _, _ in page.evaluate("painted")].count("NaN") == 7
    assert pixel(page, 6, 3) == list(SPECIAL["nan"])
    page.click("#all-heads")
    cells = [line.locator("td").all_inner_texts() for line in all_heads(page).all()]
    assert cells[0][-2:] == ["1", "1"] and cells[1] == ["–"] * 8 + ["12", "0"]


def test_fewer_queries_than_keys_and_no_tokens(explore):
    page = explore("cache", "explorer&head=1&at=1.5,5.5,30")
    at_rest(page)
    hover(page, 1, 1)
    weights = model("cache").matrices(None, 1, 0)["weights"]
    assert readout(page).startswith("query 1 → key 1: weight ")
    assert number_read(page) == pytest.approx(weights[1, 1], abs=6e-5)


@pytest.fixture
def export(qkv, tmp_path):
    """The page of a file, written by the command."""

    def exported(path):
        file = tmp_path / "page.html"
        subprocess.run([qkv, "view", path, "--export", file], check=True, stdout=subprocess.PIPE)
        return file

    return exported


def test_the_exported_explorer_needs_nothing_else(open_page, export, saved, qkv):
    file = export(saved("text"))
    page = open_page(file=file, offline=True)
    assert all_heads(page).count() == page.locator(".thumbnail").count() == 12
    page.evaluate(f"location.hash = '{at_head('at=121.5,110.5,48&q=121', layer=2, head=3)}'")
    page.wait_for_selector(".pair")
    at_rest(page)
    assert "Each cell is the largest of 2 × 2 pairs" in page.inner_text(".map-pooled")
    # The file has four digits of each number.
    answer = model("text").query((2, 3, 0), 121, 8)
    assert_listed(page, answer, "key", "weight", relative=6e-4)
    page.get_by_role("button", name="by influence").click()
    quiet(page)
    assert_listed(page, answer, "key", "influence", relative=6e-4)
    assert page.inner_text(".focus-name") == f"Query 121 {model('text').words[121]}"
    page.click("#tab-lesson")
    assert_shows(page, qkv)
    page.check("#causal")
    page.wait_for_function("() => document.querySelector('#matrix-masked').textContent.includes('∞')")
    assert_shows(page, qkv, "--causal")


def test_a_small_exported_page_has_every_number(open_page, export, saved):
    page = open_page("explorer&head=0&at=6,6,50&q=8", file=export(saved("odd")), offline=True)
    page.wait_for_selector(".pair")
    at_rest(page)
    hover(page, 8, 8)
    weights = model("odd").matrices(None, 0, 0)["weights"]
    assert number_read(page) == pytest.approx(weights[8, 8], abs=6e-5) and page.is_hidden(".map-pooled")
    assert [text for text, _, _ in page.evaluate("painted")].count("NaN") == 7
    assert page.locator("#explorer b:not(.head-number b), #explorer img, #explorer script").count() == 0


def random_file(path, heads, queries, keys, dim):
    draw = np.random.default_rng(7)
    shapes = {"q": queries, "k": keys, "v": keys}
    arrays = {
        name: draw.standard_normal((1, heads, length, dim), dtype=np.float32)
        for name, length in shapes.items()
    }
    write_safetensors(path, arrays, {"tokens": json.dumps([f"word{at % 97}" for at in range(keys)])})
    return path


def test_twelve_heads_of_512_tokens_make_no_large_file(export, tmp_path):
    file = export(random_file(tmp_path / "twelve.safetensors", 12, 512, 512, 64))
    assert 1e6 < file.stat().st_size < 50e6


def test_a_long_head_is_exported_at_a_distance(open_page, export, tmp_path):
    file = export(random_file(tmp_path / "long.safetensors", 1, 256, 8192, 8))
    page = open_page("explorer&q=5", file=file, offline=True)
    page.wait_for_selector(".pair")
    assert "Each cell is the largest of 16 × 16 pairs" in page.inner_text(".map-pooled")
    assert page.locator(".pair").count() == 8
