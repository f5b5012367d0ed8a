"""Around the lesson: the URL, hostile words, the engine behind a live page, one file from disk."""

import json
import threading
from urllib.parse import quote

import pytest
from conftest import golden, one_file
from support import PAIRS, at, quiet, rows_on, settled, shown, strip, text

HOSTILE = ["</script><b>x", "<img src=x onerror=alert(1)>", "שלום", "🦊", ""]


def test_the_url_holds_the_state(open_page):
    page = open_page()
    page.check("#causal")
    page.get_by_role("button", name="scale 1:").click()
    page.locator(at("x", 1, 2) + " input").fill("0.25")
    page.locator("#matrix-x .word").nth(3).fill("a&b=<c>")
    page.locator("#dimension").fill("24")
    page.click(at("weights", 3, 1))
    quiet(page)
    seen = {figure: text(page, figure) for figure in [*PAIRS, "x", "output"]}
    fragment = page.evaluate("location.hash").removeprefix("#")
    assert "scale=1&causal=1&x=" in fragment and "at=s3,1" in fragment and "d=4" in fragment
    other = open_page(fragment)
    assert {figure: text(other, figure) for figure in seen} == seen
    assert strip(other) == strip(page) and "a&b=<c>" in strip(other)
    assert other.inner_text("#dimension-value") == "d = 4"
    # A link that is followed in an open page.
    other.evaluate("location.hash = 'scale=0'")
    other.wait_for_function("() => document.querySelector('#scale-value').textContent === '0'")


@pytest.mark.parametrize(
    "fragment",
    [
        "x=1,2;3",
        "x=1,2,NaN",
        "x=" + ";".join(["1,2,3"] * 9),
        "x=",
        "scale=-1&causal=2&d=0&at=q5",
        "scale=1e999&d=513&at=s0,9",
        "scale=__proto__&causal=__proto__&causal=constructor",
        "w=only&w=two",
        "%E0%A4%A&w=%FF&%%%",
        "scale=0;" + "x" * 100_000,
        "<script>alert(1)</script>",
        "at=q1e1&at=toString",
    ],
)
def test_a_hostile_url_gives_the_first_lesson(open_page, fragment):
    page = open_page(fragment)
    for step in golden("first")["steps"]:
        assert text(page, step["name"]) == shown(step["values"]), step["name"]
    assert page.inner_text("#dimension-value") == "d = 64" and "Point at" in strip(page)
    assert not page.is_visible(".notice")


@pytest.mark.parametrize("way", ["data", "url"])
def test_words_are_text_whatever_they_hold(open_page, way):
    lesson = golden("first")["lesson"]
    if way == "data":
        page = open_page(lesson={**lesson, "words": HOSTILE})
    else:
        page = open_page("&".join(f"w={quote(word, safe='')}" for word in HOSTILE))
    heads = page.eval_on_selector_all("#matrix-scores thead th", "(all) => all.map((one) => one.textContent)")
    assert heads == [*HOSTILE[:1], HOSTILE[1][:24], *HOSTILE[2:4], "“”"]
    for row in range(5):
        page.hover(at("scores", row, (row + 1) % 5))
        page.hover(at("q", row, 0))
    assert page.locator("main b:text-is('x'), main img").count() == 0
    assert "V[</script><b>x]" in strip(page)


def test_the_engine_computes_a_live_page(open_page, server):
    causal = golden("causal")
    server.data = {"live": True, "lesson": golden("first")["lesson"]}
    server.engine = lambda lesson: (200, causal if lesson["causal"] else golden("first"))
    page = open_page()
    path, asked = server.asked[0]
    lesson = golden("first")["lesson"]
    assert path == "/api/lesson" and set(asked) == {"words", "x", "w_q", "w_k", "w_v", "scale", "causal"}
    assert all(asked[name] == lesson[name] for name in ["x", "w_q", "w_k", "w_v", "scale", "causal"])
    assert "by the engine" in page.inner_text(".computed")


def test_the_engine_is_asked_for_new_numbers_only_and_the_newest_first(open_page, server):
    server.data = {"live": True, "lesson": golden("first")["lesson"]}
    server.engine = lambda lesson: (200, golden("first"))
    page = open_page()
    page.locator("#matrix-x .word").nth(0).fill("word")
    page.locator("#dimension").fill("60")
    page.hover(at("q", 0, 0))
    quiet(page)
    assert "V[word]" in strip(page) and len(server.asked) == 1
    # While one answer is awaited, all lessons but the last are passed over.
    release = threading.Event()
    server.engine = lambda lesson: (200, golden("first")) if release.wait(20) else (500, {})
    for position in range(10, 60, 5):
        page.locator("#scale").fill(str(position))
    release.set()
    page.wait_for_selector(".chain[aria-busy=false]")
    quiet(page)
    assert len(server.asked) == 3
    assert server.asked[-1][1]["scale"] == pytest.approx(55 / 800 * 4 / 3**0.5, abs=1e-4)


def test_an_engine_that_fails_is_told_and_may_recover(open_page, server):
    server.data = {"live": True, "lesson": golden("first")["lesson"]}
    server.engine = lambda lesson: (200, golden("first"))
    page = open_page()
    markup = json.loads(json.dumps(golden("first")).replace("-1.046241044998169", '"<b>"'))
    wrong = {
        "the engine answered 500": (500, {}),
        "has no step average": (200, {"steps": []}),
        "something that is no number": (200, markup),
    }
    for words, answer in wrong.items():
        server.engine = lambda lesson, answer=answer: answer
        page.locator("#causal").click()
        page.wait_for_selector(".notice:not([hidden])")
        assert "not up to date" in page.inner_text(".notice") and words in page.inner_text(".notice")
        assert text(page, "q")[0] == ["-1.0462", "0.0950", "0.1855"]
        server.engine = lambda lesson: (200, golden("first"))
        page.locator("#causal").click()
        page.wait_for_selector(".notice", state="hidden")
    page.complaints[:] = [one for one in page.complaints if "status of 500" not in one]


def test_one_file_works_from_disk_without_a_network(open_page, tmp_path):
    file = tmp_path / "lesson.html"
    lesson = {**golden("first")["lesson"], "words": HOSTILE}
    file.write_text(one_file({"live": False, "lesson": lesson}), "utf-8")
    page = open_page(file=file, offline=True)
    for step in golden("first")["steps"]:
        assert text(page, step["name"]) == shown(step["values"]), step["name"]
    page.check("#causal")
    page.hover(at("weights", 1, 0))
    assert rows_on(page, "output") == [1]
    page.click("#theme")
    settled(page, "#causal=1")


def test_data_that_is_no_lesson_is_said(open_page):
    page = open_page(lesson={"x": [[1, 2]], "w_q": [[1], [2], [3]], "w_k": [[1], [2]], "w_v": [[1], [2]]})
    assert "w_q: got (3, 1), want (2, any)" in page.inner_text(".notice")
    nothing = open_page(lesson={"x": "<b>"})
    assert "without a lesson" in nothing.inner_text(".notice")
