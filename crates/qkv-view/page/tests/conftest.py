"""The page under test: served as the command serves it, or put into one file, and opened in a real Chromium.

pip install -r requirements.txt && pytest --chromium /usr/bin/chromium
"""

import contextlib
import functools
import http.server
import json
import os
import re
import shutil
import threading
import urllib.parse
from pathlib import Path

import pytest
from command import Served, write_model
from mock_explorer import Api
from mock_models import MODELS
from support import SPIES, WAIT_S, model

TESTS = Path(__file__).parent
PAGE = TESTS.parent
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'"


def pytest_addoption(parser):
    parser.addoption("--chromium", default=os.environ.get("CHROMIUM", "chromium"), help="the browser")


def golden(name):
    """What the command printed: `{command, lesson, steps}`, infinities and NaN as numbers."""
    return json.loads((TESTS / f"{name}.json").read_text("utf-8"))


def data_element(data):
    # A label may hold `</script>`; JSON can say it otherwise.
    return json.dumps(data).replace("<", "\\u003c")


def index_with(data):
    return (PAGE / "index.html").read_text("utf-8").replace('id="data">{}', f'id="data">{data_element(data)}')


def modules(name="main.js", seen=None):
    """The page's modules, each after those that it imports."""
    seen = {} if seen is None else seen
    if name not in seen:
        seen[name] = None
        text = (PAGE / name).read_text("utf-8")
        for other in re.findall(r"^import .* from '\./(.*)';$", text, re.M):
            modules(other, seen)
        del seen[name]
        seen[name] = text
    return seen


def one_file(data):
    """The exported page: styles and modules inside, import and export lines left out."""
    html = index_with(data)
    html = re.sub(
        r'<link rel="stylesheet" href="(.*)">',
        lambda link: f"<style>{(PAGE / link[1]).read_text('utf-8')}</style>",
        html,
    )
    lines = "\n".join(modules().values()).splitlines()
    script = "\n".join(line for line in lines if not re.match(r"(import|export) ", line))
    library = (PAGE / "vendor/openseadragon.min.js").read_text("utf-8")
    assert "</script" not in script and "</script" not in library
    html = html.replace(
        '<script src="vendor/openseadragon.min.js" defer></script>', f"<script>{library}</script>"
    )
    return html.replace(
        '<script type="module" src="main.js"></script>', f"<script>'use strict';\n{script}</script>"
    )


def explorer_data(explorer):
    return {"live": False, "lesson": golden("first")["lesson"], "explorer": explorer}


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        if self.path.split("?")[0] == "/":
            self.answer(index_with(self.server.data), "text/html; charset=utf-8")
        elif self.path.startswith("/api/") and self.server.explorer is not None:
            url = urllib.parse.urlsplit(self.path)
            status, kind, body = self.server.explorer.answer(
                url.path.removeprefix("/api/"), dict(urllib.parse.parse_qsl(url.query))
            )
            # Who gave up waiting hears nothing.
            with contextlib.suppress(ConnectionError):
                self.answer(body, kind, status)
        else:
            super().do_GET()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body))
        status, answer = self.server.engine(body)
        self.answer(json.dumps(answer), "application/json", status)

    def answer(self, text, kind, status=200):
        body = text if isinstance(text, bytes) else text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self):
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="session")
def chromium(request):
    path = shutil.which(request.config.getoption("--chromium"))
    if path is None:
        pytest.skip("no Chromium: give its path by --chromium or CHROMIUM")
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def qkv():
    path = shutil.which(os.environ.get("QKV", "qkv"))
    if path is None:
        pytest.skip("no command qkv: give its path by QKV")
    return path


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """The file of a model, written once."""
    folder = tmp_path_factory.mktemp("models")

    def path(name):
        file = folder / f"{name}.safetensors"
        if not file.exists():
            write_model(file, MODELS[name]())
        return file

    return path


@pytest.fixture(scope="session")
def serve(qkv, saved):
    """`qkv view` of a model's file, or of another file; one of each for all tests."""
    started = {}

    def served(name):
        if name not in started:
            started[name] = Served(qkv, name if isinstance(name, Path) else saved(name))
        return started[name]

    yield served
    for one in started.values():
        one.close()


@contextlib.contextmanager
def serving(port=0):
    """`data` is what the page is served with, `engine(lesson)` and `explorer` answer, `asked` is kept."""
    handler = functools.partial(Handler, directory=PAGE)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.url = f"http://127.0.0.1:{server.server_address[1]}/"
    server.data = {"live": False, "lesson": golden("first")["lesson"]}
    server.engine = lambda lesson: (500, {})
    server.explorer = None
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def server():
    with serving() as started:
        yield started


@pytest.fixture
def open_page(chromium, server):
    """Opens the page of the mock, of a file or of a `Served` site.

    At the end nothing may have been complained of, or asked of another host.
    """
    contexts, complaints = [], []

    def watch(page, allowed):
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.on(
            "request",
            lambda request: request.url.startswith(allowed) or complaints.append(f"request: {request.url}"),
        )

    def opened(fragment="", *, lesson=None, file=None, site=None, **options):
        if lesson is not None:
            server.data = {"live": server.data["live"], "lesson": lesson}
        options = {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light", **options}
        context = chromium.new_context(**options)
        contexts.append(context)
        if site is not None:
            context.add_cookies(site.cookies)
        page = context.new_page()
        page.set_default_timeout(WAIT_S * 1000)
        page.add_init_script(SPIES)
        address = file.as_uri() if file else (site or server).url
        watch(page, (address, "data:"))
        page.complaints = complaints
        page.goto(address + (f"#{fragment}" if fragment else ""))
        page.wait_for_selector(".chain[aria-busy=false] td, main .notice:not([hidden])", state="attached")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def explore(open_page, server):
    """Opens the explorer of a model before the mock; `explore.api` is the server's side."""

    def opened(name, fragment="", *, api=None, data=None, **options):
        opened.api = api or Api(model(name))
        server.explorer = opened.api
        server.data = explorer_data(data or {"live": True})
        page = open_page(fragment, **{"reduced_motion": "reduce", **options})
        page.wait_for_selector(".thumbnail:visible, .map-canvas:visible, .notice:visible")
        return page

    return opened
