"""The page as `qkv view` serves and exports it; QKV is the path of the command."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support import at, shown, text


@pytest.fixture(scope="session")
def qkv():
    path = shutil.which(os.environ.get("QKV", "qkv"))
    if path is None:
        pytest.skip("no command qkv: give its path by QKV")
    return path


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
