"""Inputs of all kinds in the explorer: hostile words, infinities, other lengths, batches, nothing at all."""

import numpy as np
from mock_models import HOSTILE, SPECIAL
from support import at_rest, hover, model, pairs, pixel, quiet, readout


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
    quiet(page)
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
    at_rest(page)
    assert {one["batch"] for path, one in explore.api.asked if path == "map"} == {"1"}


def test_data_that_is_nothing_to_explore_is_said(explore, server):
    page = explore("text", data={"input": {"layers": "<b>"}})
    assert "without anything to explore that can be shown" in page.inner_text("#explorer .notice")
    page.click("#tab-lesson")
    assert page.is_visible(".chain")
