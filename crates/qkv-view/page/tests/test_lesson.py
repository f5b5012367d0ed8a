"""The lesson as a person meets it: numbers, pointing, controls, the URL, the keyboard, hostile words, one file from disk."""

from urllib.parse import quote

import pytest
from conftest import golden, numbers, one_file

PAIRS = ["scores", "scaled", "masked", "weights"]
HOSTILE = ["</script><b>x", "<img src=x onerror=alert(1)>", "שלום", "🦊", ""]


def at(figure, row, column):
    return f'#matrix-{figure} td[data-row="{row}"][data-column="{column}"]'


def text(page, figure):
    """Numbers as cells show them; minus signs and ∞ as the command writes them."""
    plain = "(one) => (one.querySelector('input')?.value ?? one.textContent)"
    shown = f"(line) => Array.from(line.querySelectorAll('td'), {plain})"
    rows = page.evaluate(f"Array.from(document.querySelectorAll('#matrix-{figure} tbody tr'), {shown})")
    return [[cell.replace("−", "-").replace("∞", "inf") for cell in row] for row in rows]


def shown(values, digits=4):
    return [[f"{x:.{digits}f}" for x in row] for row in numbers(values)]


def rows_on(page, figure):
    heads = f"#matrix-{figure} tbody tr"
    return page.eval_on_selector_all(
        heads, "(all) => all.map((one, at) => one.classList.contains('on') ? at : -1).filter((at) => at >= 0)"
    )


def settled(page, fragment):
    page.wait_for_function("(wanted) => location.hash === wanted", arg=fragment, timeout=3000)


def strip(page):
    return page.inner_text(".strip").replace("−", "-").replace("\n", " ")


@pytest.mark.parametrize(("name", "digits"), [("first", 4), ("causal", 2)])
def test_cells_show_what_the_command_prints(open_page, name, digits):
    wanted = golden(name)
    page = open_page(lesson=wanted["lesson"])
    for step in wanted["steps"]:
        places = digits if step["name"] in PAIRS else 4
        assert text(page, step["name"]) == shown(step["values"], places), step["name"]
    for figure in ["x", "w_q", "w_k", "w_v"]:
        assert text(page, figure) == shown(wanted["lesson"][figure])


def test_a_query_lights_up_through_all_steps(open_page):
    page = open_page(lesson={**golden("first")["lesson"], "words": ["the", "cat", "sat", "on", "it"]})
    page.hover(at("q", 2, 0))
    for figure in ["x", "q", "average", *PAIRS, "output"]:
        assert rows_on(page, figure) == [2], figure
    weights = numbers(next(s["values"] for s in golden("first")["steps"] if s["name"] == "weights"))[2]
    for figure in ["k", "v"]:
        shades = page.eval_on_selector_all(
            f"#matrix-{figure} tbody tr", "(all) => all.map((one) => one.style.getPropertyValue('--weight'))"
        )
        assert shades == [f"{w:.4f}" for w in weights], figure
        page.wait_for_timeout(300)
        strengths = page.eval_on_selector_all(
            f"#matrix-{figure} tbody tr td:nth-child(2)",
            "(all) => all.map((one) => getComputedStyle(one).opacity)",
        )
        assert float(strengths[2]) == max(map(float, strengths)), figure
        assert float(strengths[1]) == min(map(float, strengths)), figure
    told = strip(page)
    assert "0.1926 · V[the] + 0.1531 · V[cat] + 0.2549 · V[sat] + 0.1985 · V[on] + 0.2010 · V[it]" in told
    assert "[-2.1674, 0.1713, -0.8926]" in told and "Query sat attends sat most, with 25 %" in told
    page.hover("h1")
    page.wait_for_function("() => document.querySelectorAll('.on').length === 0")


def test_a_score_is_told_by_its_two_vectors(open_page):
    page = open_page()
    page.hover(at("scores", 0, 1))
    assert rows_on(page, "q") == [0] and rows_on(page, "k") == [1]
    for figure in PAIRS:
        assert page.locator(f"#matrix-{figure} .spot").get_attribute("data-column") == "1"
    told = strip(page)
    assert "-1.0462 · (-1.1106) + 0.0950 · (-1.7162) + 0.1855 · (-0.8992) ≈ 0.8320" in told
    assert "0.8320 / √3 ≈ 0.4804" in told and "e^0.4804 / 6.7154 ≈ 0.2407" in told


def test_a_key_and_one_number_are_told_too(open_page):
    page = open_page()
    page.hover(at("v", 1, 0))
    assert rows_on(page, "v") == rows_on(page, "k") == [1]
    assert page.locator("#matrix-weights td.in-column").count() == 5
    assert "V[1][0] = 0.9593 · (-0.7813) + 0.3904 · (-1.9245) + 0.6009 · (-0.4337) ≈ -1.7615" in strip(page)
    page.hover(at("output", 0, 0))
    assert "output[0][0] = 0.2175 · (-2.6163) + 0.2407 · (-1.7615)" in strip(page)


def test_the_scale_goes_from_the_plain_average_over_its_mark(open_page):
    page = open_page()
    page.get_by_role("button", name="scale 0").click()
    page.wait_for_function("() => document.querySelector('#scale-value').textContent === '0'")
    assert text(page, "weights") == [["0.2000"] * 5] * 5
    assert text(page, "output") == text(page, "average")
    settled(page, "#scale=0")
    page.get_by_role("button", name="scale 1/√3").click()
    settled(page, "")
    assert page.inner_text("#scale-value") == "1/√3 = 0.5774"
    page.focus("#scale")
    page.keyboard.press("End")
    settled(page, "#scale=2.3094")
    assert text(page, "scaled")[0][0] == f"{0.6560603976 * 2.3094:.4f}"
    assert page.inner_text('[data-figure="scaled"] .formula') == "scores · 2.3094"


def test_the_mask_hides_what_comes_later(open_page):
    page = open_page()
    page.check("#causal")
    page.wait_for_selector("#matrix-masked td.hidden")
    assert text(page, "masked")[1] == ["0.1891", "0.4094", "-inf", "-inf", "-inf"]
    assert text(page, "weights")[1] == ["0.4452", "0.5548", "0.0000", "0.0000", "0.0000"]
    page.hover(at("scores", 1, 3))
    assert "must not read" in strip(page) and "e^(-∞) = 0" in strip(page)


def test_numbers_are_typed_and_dragged(open_page):
    page = open_page()
    field = page.locator(at("x", 0, 0) + " input")
    field.fill("-1,5")
    page.wait_for_function(
        "() => document.querySelector('[data-figure=q] td[data-row]').textContent === '1.8801'"
    )
    field.fill("many")
    assert field.get_attribute("aria-invalid") == "true" and text(page, "q")[0][0] == "1.8801"
    field.press("Tab")
    assert field.input_value() == "−1.5000" and field.get_attribute("aria-invalid") is None
    box = page.locator(at("x", 4, 2) + " input").bounding_box()
    page.mouse.move(box["x"] + 10, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + 60, box["y"] + 5, steps=5)
    page.mouse.up()
    assert text(page, "x")[4][2] == "1.2411"
    page.focus(at("x", 4, 1) + " input")
    page.keyboard.press("PageDown")
    page.keyboard.press("Shift+PageDown")
    page.keyboard.press("Tab")
    assert text(page, "x")[4][1] == "0.4577"
    page.click("#reset")
    page.wait_for_function("() => document.querySelector('#reset').disabled")
    assert text(page, "x") == shown(golden("first")["lesson"]["x"])
    settled(page, "")


def test_tokens_come_and_go(open_page):
    page = open_page(fragment="at=q4")
    page.fill("#tokens", "2")
    page.wait_for_selector("#matrix-scores tbody tr:nth-child(2):last-child")
    assert text(page, "q") == [["-1.0462", "0.0950", "0.1855"], ["-1.2775", "0.2710", "0.2720"]]
    assert "Point at" in strip(page)
    page.fill("#tokens", "8")
    page.wait_for_selector("#matrix-scores tbody tr:nth-child(8)")
    assert text(page, "x")[:5] == shown(golden("first")["lesson"]["x"])
    page.fill("#tokens", "9")
    page.locator("#tokens").blur()
    assert page.input_value("#tokens") == "8"


def test_the_url_holds_the_state(open_page):
    page = open_page()
    page.check("#causal")
    page.get_by_role("button", name="scale 1:").click()
    page.locator(at("x", 1, 2) + " input").fill("0.25")
    page.locator("#matrix-x .word").nth(3).fill("a&b=<c>")
    page.locator("#dimension").fill("24")
    page.click(at("weights", 3, 1))
    page.wait_for_timeout(500)
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


def test_words_that_occur_twice_are_told_apart(open_page):
    page = open_page(lesson=golden("causal")["lesson"])
    page.hover(at("q", 5, 0))
    names = page.eval_on_selector_all(".strip-lines bdi", "(all) => all.map((one) => one.textContent)")
    assert names[:6] == ["mat", "the0", "cat", "sat", "on", "the4"]
    label = page.get_attribute(at("weights", 4, 0), "aria-label")
    assert label.startswith("query the (4), key the (0): 0.")


def test_the_keyboard_reaches_everything(open_page):
    page = open_page()
    page.focus("#reset")
    # The reset button is off in the first lesson: start from the field before it.
    page.focus("#tokens")
    stops = []
    for _ in range(18):
        page.keyboard.press("Tab")
        stops.append(
            page.evaluate("document.activeElement.closest('table')?.id ?? document.activeElement.id")
        )
    figures = ["w_q", "q", "w_k", "k", "w_v", "v", "average", *PAIRS, "output"]
    # The words of X are five stops of their own.
    assert [stop for stop in stops if stop != "matrix-x"][:12] == [f"matrix-{figure}" for figure in figures]
    page.focus(at("scores", 0, 0))
    for key in ["ArrowDown", "ArrowRight", "ArrowRight"]:
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "query 1, key 2: −0.2077"
    assert rows_on(page, "output") == [1]
    settled(page, "#at=s1,2")
    for key in ["End", "ArrowRight", "Control+Home"]:
        page.keyboard.press(key)
    settled(page, "#at=s0,0")
    page.keyboard.press("Escape")
    settled(page, "")
    assert page.locator(".on").count() == 0
    # Arrows go from number to number of X, and within a number that is being typed.
    page.focus(at("x", 0, 0) + " input")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert (
        page.evaluate(
            "document.activeElement.closest('td').dataset.row + document.activeElement.closest('td').dataset.column"
        )
        == "11"
    )
    page.keyboard.press("Home")
    assert page.evaluate("document.activeElement.closest('td').dataset.column") == "0"


def test_why_the_scale_is_measured_live(open_page):
    page = open_page("d=256")
    value = lambda what, side: float(page.inner_text(f"#{what}-{side}").split(" ")[0])  # noqa: E731
    assert 0.9 < value("variance", "with") < 1.1 and 230 < value("variance", "without") < 290
    assert value("gradient", "with") > 0.9 and value("gradient", "without") < 0.2
    assert value("keys", "with") > 30 and value("keys", "without") < 2
    tall = "(all) => Math.max(...all.map((one) => Number(one.getAttribute('height'))))"
    assert page.eval_on_selector_all(".side.with rect", tall) < 20
    assert page.eval_on_selector_all(".side.without rect", tall) > 40
    page.locator("#dimension").fill("0")
    page.wait_for_function("() => document.querySelector('#dimension-value').textContent === 'd = 1'")
    for what in ["variance", "gradient", "keys"]:
        assert value(what, "with") == value(what, "without")
    settled(page, "#d=1")
    page.locator("#dimension").fill("108")
    settled(page, "#d=512")


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


def test_an_engine_that_fails_is_told_and_may_recover(open_page, server):
    server.data = {"live": True, "lesson": golden("first")["lesson"]}
    server.engine = lambda lesson: (200, golden("first"))
    page = open_page()
    for answer in [(500, {}), (200, {"steps": []}), (200, {"steps": [{"name": "q", "values": [["<b>"]]}]})]:
        server.engine = lambda lesson, answer=answer: answer
        page.locator("#causal").click()
        page.wait_for_selector(".notice:not([hidden])")
        assert "not up to date" in page.inner_text(".notice")
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
