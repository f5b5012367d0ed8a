"""Recordings that are looked at: what is said of them is what their numbers say."""

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import warnings

import numpy as np
import pytest
import qkv
from qkv._qkv import StreamWriter
from support import grid, textbook

TOKENS = ["the", " cat", "</script><b>", "\n", "the", " cat", "", "sat"]
BATCHES, HEADS, KEY_HEADS, LENGTH, DIM = 2, 4, 2, len(TOKENS), 8
LAYERS = [0, 7]


def arrays(layer):
    heads = zip("qkv", [HEADS, KEY_HEADS, KEY_HEADS], strict=True)
    return {
        name: grid((BATCHES, count, LENGTH, DIM), seed=10 * layer + at)
        for at, (name, count) in enumerate(heads)
    }


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    path = tmp_path_factory.mktemp("recordings") / "two.safetensors"
    writer = StreamWriter(path)
    for layer in LAYERS:
        for name, array in arrays(layer).items():
            writer.push(f"layers.{layer}.{name}", array)
    writer.finish({"causal": "top-left", "layers.7.causal": "false", "tokens": json.dumps([TOKENS] * 2)})
    return qkv.Recording(path)


def whole(layer, head, batch=0):
    """The weights of a head, and its influence: by deleting each key."""
    query, key, value = (
        array[batch, head if name == "q" else head // (HEADS // KEY_HEADS)]
        for name, array in arrays(layer).items()
    )
    mask = np.tril(np.ones((LENGTH, LENGTH), bool)) if layer == 0 else np.ones((LENGTH, LENGTH), bool)
    output, weights = textbook(query, key, value, mask)
    influence = np.zeros_like(weights)
    for at in range(LENGTH):
        without = textbook(query, key, value, mask & (np.arange(LENGTH) != at))[0]
        influence[:, at] = np.linalg.norm(output - without, axis=1)
    return weights, influence


@pytest.mark.parametrize("of", ["weights", "influence"])
def test_a_map_of_single_cells_is_the_matrix(recording, of):
    for layer in LAYERS:
        want = whole(layer, 3, batch=1)[of == "influence"]
        got = recording.map(layer, 3, of=of, batch=1)
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, want, atol=2e-6)
        part = recording.map(layer, 3, of=of, batch=1, queries=(2, 7), keys=(1, 4))
        np.testing.assert_allclose(part, want[2:7, 1:4], atol=2e-6)


def test_maps_are_pooled(recording):
    want = whole(7, 1)[0].reshape(4, 2, 4, 2)
    for pool, pooled in [("max", want.max((1, 3))), ("mean", want.mean((1, 3))), ("sum", want.sum((1, 3)))]:
        np.testing.assert_allclose(recording.map(7, 1, pool=pool, size=4), pooled, atol=1e-6)
    assert recording.map(0, 0, of="mask").sum() == LENGTH * (LENGTH + 1) / 2
    query, key, _ = arrays(7).values()
    np.testing.assert_array_equal(recording.map(7, 0, of="scores"), query[0, 0] @ key[0, 0].T)
    np.testing.assert_allclose(
        recording.map(7, 0, of="scaled"), query[0, 0] @ key[0, 0].T / np.sqrt(DIM), rtol=1e-6
    )


def test_heads_are_all_there_with_their_numbers(recording):
    rows = recording.heads(batch=1)
    assert [(row["layer"], row["head"]) for row in rows] == [
        (n, head) for n in LAYERS for head in range(HEADS)
    ]
    for row in rows:
        weights, _ = whole(row["layer"], row["head"], batch=1)
        at = np.arange(LENGTH)
        entropy = -np.sum(weights * np.log(np.where(weights > 0, weights, 1)), axis=1)
        same = np.array([[a == b for b in TOKENS] for a in TOKENS]) & ~np.eye(LENGTH, dtype=bool)
        want = {
            "entropy": entropy,
            "effective_keys": np.exp(entropy),
            "distance": (weights * abs(at[:, None] - at)).sum(1),
            "first": weights[:, 0],
            "self": weights[at, at],
            "previous": np.where(at > 0, weights[at, at - 1], 0),
            "same": (weights * same).sum(1),
        }
        for name, numbers in want.items():
            assert row[name] == pytest.approx(numbers.mean(), abs=1e-5), name
        assert (row["empty"], row["nan"]) == (0, 0)
    two = recording.heads(first_keys=2)[0]["first"]
    assert two == pytest.approx(whole(0, 0)[0][:, :2].sum(1).mean(), abs=1e-6)


def test_top_of_a_query_and_of_a_key(recording):
    weights, influence = whole(7, 2, batch=1)
    top = recording.top(7, 2, 5, count=3, batch=1)
    order = np.argsort(-weights[5])[:3]
    assert [one["key"] for one in top["by_weight"]] == order.tolist()
    assert [one["token"] for one in top["by_weight"]] == [TOKENS[at] for at in order]
    assert [one["weight"] for one in top["by_weight"]] == pytest.approx(weights[5, order], abs=1e-6)
    assert [one["influence"] for one in top["by_weight"]] == pytest.approx(influence[5, order], abs=1e-5)
    assert [one["key"] for one in top["by_influence"]] == np.argsort(-influence[5])[:3].tolist()
    assert top["rest"] == pytest.approx(1 - weights[5, order].sum(), abs=1e-6)
    assert (top["query"], top["token"]) == (5, " cat") and top["mass"] == pytest.approx(1)
    top = recording.top(7, 2, key=3, count=4, batch=1)
    order = np.argsort(-weights[:, 3])[:4]
    assert [one["query"] for one in top["by_weight"]] == order.tolist()
    assert top["received"] == pytest.approx(weights[:, 3].sum(), abs=1e-6)
    assert (top["queries"], top["token"]) == (LENGTH, "\n")


def test_the_command_says_the_same(recording):
    def said(*arguments):
        command = [sys.executable, "-m", "qkv", *map(str, arguments), "--json"]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert said("heads", recording.path)["heads"] == recording.heads()
    top = said("top", recording.path, "--layer", 7, "--head", 1, "--query", 4)
    assert {name: top[name] for name in top.keys() - {"head", "batch"}} == recording.top(7, 1, 4)
    failed = subprocess.run(
        [sys.executable, "-m", "qkv", "heads", "nothing.npz"], capture_output=True, text=True
    )
    assert failed.returncode == 2 and failed.stderr.startswith("qkv: error: nothing.npz")


def test_a_picture_is_drawn_and_written(recording, tmp_path):
    picture = recording.map(0, 1, picture=True)
    svg = picture._repr_svg_()
    assert svg.startswith("<svg") and "Attention weights, layer 0, head 1" in svg and "two.safetensors" in svg
    # Labels are text.
    assert "&lt;/script&gt;&lt;b&gt;" in svg and "</script>" not in svg
    assert repr(picture) == "Picture of 8 × 8 cells"
    picture.save(tmp_path / "map.svg")
    picture.save(tmp_path / "map.png")
    assert (tmp_path / "map.svg").read_text("utf-8") == svg
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"path: got '.*map\.jpg', want a name that ends in \.svg or \.png"):
        picture.save(tmp_path / "map.jpg")
    with pytest.raises(FileNotFoundError):
        picture.save(tmp_path / "nowhere" / "map.svg")


def test_the_page_is_one_file_and_fits_a_notebook(recording, tmp_path):
    page = recording.view()
    page.save(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text("utf-8")
    assert text == page.html() and '"layer":7' in text and "OpenSeadragon" in text
    assert "</script><b>" not in text
    inline = page._repr_html_()
    assert inline.startswith('<iframe sandbox="allow-scripts"') and inline.count("<") == 2
    with pytest.raises(ValueError, match=r"want a name that ends in \.html"):
        page.save(tmp_path / "page.txt")


def test_the_page_is_served_as_long_as_it_lives(recording):
    page = recording.view()
    address = page.open(browser=False)
    assert address.startswith("http://127.0.0.1:") and "?token=" in address
    cookies = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    assert b"Attention" in cookies.open(address).read()
    base = address.split("?")[0]
    layers = json.loads(cookies.open(base + "api/input").read())["layers"]
    assert [layer["layer"] for layer in layers] == LAYERS
    # The address opens once.
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(address)
    del page
    with pytest.raises(OSError):
        cookies.open(base + "api/input", timeout=5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda one: one.map(3, 0), "layer: got 3, want one that the recording has"),
        (lambda one: one.map(0, 4), "head: got 4, want 0 to 3"),
        (lambda one: one.map(0, -1), "head: got -1, want 0 to 3"),
        (lambda one: one.map(0, 0, batch=2), "batch: got 2, want 0 to 1"),
        (lambda one: one.map(0, 0, of="weight"), "of: got 'weight', want mask, scores, scaled, weights or"),
        (lambda one: one.map(0, 0, pool="min"), "pool: got 'min', want max, mean or sum"),
        (lambda one: one.map(10**30, 0), "layer: got 1000.*, want one that the recording has"),
        (lambda one: one.map(0, -(10**30)), "head: got -1000.*, want 0 to 3"),
        (lambda one: one.map(0, 0, size=10**30), "size: got 1000.*, want one of 64 bits"),
        (lambda one: one.map(0, 0, keys=(0, 10**30)), r"keys: got \(0, 1000.*\), want \(start, end\) within"),
        (lambda one: one.map(0, 0, size=0), "size: got 0, want at least 1"),
        (lambda one: one.map(0, 0, keys=(3, 3)), r"keys: got \(3, 3\), want \(start, end\) within 0 to 8"),
        (lambda one: one.map(0, 0, queries=(-2, 3)), r"queries: got \(-2, 3\), want"),
        (lambda one: one.top(0, 0, 8), "query: got 8, want 0 to 7"),
        (lambda one: one.top(0, 0, key=-1), "key: got -1, want 0 to 7"),
        (lambda one: one.top(0, 0, 1, count=0), "count: got 0, want at least 1"),
        (lambda one: one.heads(batch=-1), "batch: got -1, want 0 to 1"),
        (lambda one: one.heads(first_keys=0), "first_keys: got 0, want at least 1"),
    ],
)
def test_what_there_is_not_is_refused(recording, call, message):
    with pytest.raises(ValueError, match=message):
        call(recording)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda one: one.map("0", 0), "layer: got str, want a whole number"),
        (lambda one: one.map(0, "first"), "head: got str, want a whole number"),
        (lambda one: one.map(0, None), "head: got NoneType, want a whole number"),
        (lambda one: one.map(0, True), "head: got bool, want a whole number"),
        (lambda one: one.map(0, 0, batch=0.0), "batch: got float, want a whole number"),
        (lambda one: one.map(0, 0, of=3), "of: got int, want mask, scores, scaled, weights or influence"),
        (lambda one: one.map(0, 0, pool=None), "pool: got NoneType, want max, mean or sum"),
        (lambda one: one.map(0, 0, size=8.5), "size: got float, want a whole number"),
        (lambda one: one.map(0, 0, keys=3), r"keys: got int, want \(start, end\)"),
        (lambda one: one.map(0, 0, keys=("a", 3)), "keys: got str, want a whole number"),
        (lambda one: one.top(0, 0, "it"), "query: got str, want a whole number"),
        (lambda one: one.top(0, 0, key="it"), "key: got str, want a whole number"),
        (lambda one: one.top(0, 0, 1, count="all"), "count: got str, want a whole number"),
        (lambda one: one.heads(batch="b"), "batch: got str, want a whole number"),
        (lambda one: one.heads(first_keys=None), "first_keys: got NoneType, want a whole number"),
    ],
)
def test_what_is_of_the_wrong_kind_is_refused(recording, call, message):
    with pytest.raises(TypeError, match=message):
        call(recording)


def test_whole_numbers_of_numpy_are_whole_numbers(recording):
    got = recording.map(np.int64(7), np.uint8(1), queries=(np.int32(0), 3))
    np.testing.assert_array_equal(got, recording.map(7, 1, queries=(0, 3)))


def written(path, names, texts=None, length=5):
    """A file of arrays that are all alike."""
    writer = StreamWriter(path)
    for name in names:
        writer.push(name, grid((1, 2, length, 8), seed=len(name)))
    writer.finish(texts or {})
    return path


ONE_LAYER = [f"layers.0.{name}" for name in "qkv"]


def test_what_is_odd_is_warned_of(tmp_path):
    path = written(tmp_path / "odd.safetensors", [*ONE_LAYER, "q", "k", "v"], {"tokens": '["one"]'})
    recording = qkv.Recording(path)
    with pytest.warns(UserWarning) as told:
        recording.heads()
    assert all(one.filename == __file__ for one in told)
    told = [str(one.message) for one in told]
    assert len(told) == 2
    assert told[0].endswith("has layers, and beside them arrays that are not used: q, k, v")
    assert "metadata tokens: got 1 list of 1 tokens, want" in told[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recording.top(0, 0, 1)


def test_what_was_opened_is_looked_at_and_saved(tmp_path):
    path = written(tmp_path / "one.safetensors", ONE_LAYER)
    before = path.read_bytes()
    recording = qkv.Recording(path)
    other = written(tmp_path / "other.safetensors", [f"layers.3.{name}" for name in "qkv"], length=7)
    other.replace(path)
    assert recording.layers == [0] and recording.map(0, 0).shape == (5, 5)
    page = recording.view()
    cookies = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    base = page.open(browser=False)
    cookies.open(base).read()
    layers = json.loads(cookies.open(base.split("?")[0] + "api/input").read())["layers"]
    assert [layer["layer"] for layer in layers] == [0]
    recording.save(tmp_path / "saved.safetensors")
    assert (tmp_path / "saved.safetensors").read_bytes() == before
    assert qkv.Recording(path).layers == [3]


@pytest.mark.parametrize("call", [lambda one: one.view().html(), lambda one: one.heads()])
def test_a_long_head_is_interrupted(tmp_path, call):
    recording = qkv.Recording(written(tmp_path / "long.safetensors", ONE_LAYER, length=100_000))
    recording.top(0, 0, 1)
    # A shell's background jobs are started without one.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
    try:
        timer.start()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            call(recording)
        # One head takes far longer.
        assert time.monotonic() - begin < 5
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)


def test_one_of_query_and_key_is_asked_for(recording):
    for both in [{}, {"query": 1, "key": 2}]:
        with pytest.raises(TypeError, match="query, key: want one of them"):
            recording.top(0, 0, **both)


def test_arrays_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "odd.safetensors"
    writer = StreamWriter(path)
    for name, shape in [("q", (1, 3, 5, 8)), ("k", (1, 2, 5, 8)), ("v", (1, 2, 5, 8))]:
        writer.push(f"layers.0.{name}", grid(shape))
    writer.finish({})
    with pytest.raises(ValueError, match="heads"):
        qkv.Recording(path).heads()
