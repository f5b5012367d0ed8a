"""The lesson as a person meets it: numbers, pointing, controls, words, the keyboard."""

import pytest
from conftest import golden
from support import PAIRS, at, numbers, quiet, rows_on, settled, shown, strip, text


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
        quiet(page)
        strengths = page.eval_on_selector_all(
            f"#matrix-{figure} tbody tr td:nth-child(2)",
            "(all) => all.map((one) => getComputedStyle(one).opacity)",
        )
        assert min(strengths) == strengths[1] < strengths[0] < strengths[2] == "1", figure
    told = strip(page)
    assert "0.1926 · V[the] + 0.1531 · V[cat] + 0.2549 · V[sat] + 0.1985 · V[on] + 0.2010 · V[it]" in told
    assert "[-2.1674, 0.1713, -0.8926]" in told and "Query sat attends key sat most, with 25 %" in told
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
    # The slider stops at a mark that it comes near.
    page.locator("#scale").fill("240")
    settled(page, "#scale=0.6928")
    page.locator("#scale").fill("204")
    settled(page, "")
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
    page.wait_for_function("() => location.hash.startsWith('#x=') && !location.hash.includes('at=')")
    page.locator(at("x", 1, 0) + " input").fill("0.5")
    page.fill("#tokens", "8")
    page.wait_for_selector("#matrix-scores tbody tr:nth-child(8)")
    wanted = shown(golden("first")["lesson"]["x"])
    wanted[1][0] = "0.5000"
    assert text(page, "x")[:5] == wanted
    page.fill("#tokens", "9")
    page.locator("#tokens").blur()
    assert page.input_value("#tokens") == "8"


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
    place = "Object.values(document.activeElement.closest('td').dataset).join()"
    assert page.evaluate(place) == "1,1"
    page.keyboard.press("Home")
    assert page.evaluate(place) == "1,0"


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
