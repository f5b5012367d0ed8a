"""The exported explorer: one file, from disk, without a network."""

import html

import numpy as np
from conftest import explorer_data, one_file
from mock_explorer import embedded
from mock_models import SPECIAL
from mock_models import painted as colours
from support import at_head, at_rest, hover, model, pairs, pixel, quiet, readout, said


def test_one_file_explores_from_disk_without_a_network(open_page, tmp_path):
    file = tmp_path / "text.html"
    held = embedded(model("text"))
    file.write_text(one_file(explorer_data(held)), "utf-8")
    page = open_page(file=file, offline=True)
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
    quiet(page)
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
    quiet(inside)
    assert outside.evaluate("location.hash") == ""


def test_a_small_file_has_its_numbers(open_page, tmp_path):
    file = tmp_path / "odd.html"
    file.write_text(one_file(explorer_data(embedded(model("odd")))), "utf-8")
    page = open_page("explorer&head=0&at=6,6,50&q=8", file=file, offline=True)
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
    page = open_page("explorer&head=0&at=1.5,5.5,60", file=file, offline=True)
    at_rest(page)
    weights = model("cache").matrices(None, 0, 0)["weights"]
    for query, key in [(2, 1), (1, 5)]:
        hover(page, query, key)
        assert readout(page).endswith(f"weight {weights[query, key]:.4f}")
