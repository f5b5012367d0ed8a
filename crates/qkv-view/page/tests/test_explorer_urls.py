"""The explorer's URLs: each holds the place, and none leads nowhere."""

import pytest
from support import at_head, at_rest, quiet


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
    quiet(page)
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
    quiet(page)
    assert page.evaluate("location.hash") == shown
    assert page.locator(".notice:visible").count() == 0 and page.locator("#explorer:visible").count() == 1


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
    quiet(page)
    assert "&q=12" in page.evaluate("location.hash")
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.hash.includes('&q=12')")
    page.keyboard.press("Escape")
    quiet(page)
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
    quiet(page)
    assert page.evaluate("location.hash") == "#at=s1,0"
