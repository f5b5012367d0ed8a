"""What the command answers and exports, beside the same in NumPy: each key, each number, each colour."""

import base64
import json
import math
import re
import subprocess
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
from command import Picture
from mock_explorer import TILE, Api, embedded
from mock_models import OF, SPECIAL, pooled
from support import model

MODELS = ["text", "odd", "cache", "batches", "prompt"]
#: Layer, head, batch: heads that look at themselves, at the same words, at what came after a copy.
PLACES = {
    "text": [(0, 1, 0), (1, 0, 0), (2, 3, 0)],
    "odd": [(None, 0, 0), (None, 1, 0)],
    "cache": [(None, 0, 0), (None, 1, 0)],
    "prompt": [(None, 0, 0)],
    "batches": [(0, 0, 2), (1, 1, 0), (1, 1, 1)],
}
HEADS = [(name, place) for name, places in PLACES.items() for place in places]
POOLS = ["max", "mean"]
#: What f32 leaves, of a difference of numbers near 1 too.
NEAR = {"rel_tol": 1e-4, "abs_tol": 1e-6}
#: Of which a file has four digits.
SHORT = {"rel_tol": 1.1e-3, "abs_tol": 1e-6}


def at(place, **rest):
    layer, head, batch = place
    return {"layer": layer, "head": head, "batch": batch, **rest}


def mocked(name, path, **parameters):
    given = {key: str(value) for key, value in parameters.items() if value is not None}
    status, kind, body = Api(model(name)).answer(path, given)
    assert (status, kind) == (200, "application/json"), body
    return json.loads(body)


def close(a, b, near):
    return a == b or math.isclose(a, b, **near)


def assert_same(real, mock, where="", near=NEAR):
    """The same keys, lengths, texts and kinds of value; numbers as near as f32 is."""
    if isinstance(mock, dict):
        assert isinstance(real, dict) and set(real) == set(mock), (where, real, mock)
        for key in mock:
            assert_same(real[key], mock[key], f"{where}.{key}", near)
    elif isinstance(mock, list):
        assert isinstance(real, list) and len(real) == len(mock), (where, len(real), len(mock))
        for index, pair in enumerate(zip(real, mock, strict=True)):
            assert_same(*pair, f"{where}[{index}]", near)
    elif isinstance(mock, (int, float)) and not isinstance(mock, bool):
        assert isinstance(real, (int, float)) and not isinstance(real, bool), (where, real, mock)
        assert close(real, mock, near), (where, real, mock)
    else:
        assert real == mock, (where, real, mock)


def assert_ranked(real, mock, kind, by, where, near=NEAR):
    """The same pairs in the same order, but where neighbours are nearer to each other than f32 tells."""
    assert len(real) == len(mock), (where, real, mock)
    of = {one[kind]: one for one in mock}
    small = {**near, "abs_tol": 1e-9}
    for mine, other in zip(real, mock, strict=True):
        assert set(mine) == set(other), where
        assert close(mine[by], other[by], small), (where, mine, other)
        if mine[kind] in of:
            assert_same(mine, of[mine[kind]], where, near)
        if mine[kind] != other[kind]:
            assert sum(close(one[by], other[by], small) for one in mock) > 1, (where, real, mock)


@pytest.mark.parametrize("name", MODELS)
def test_what_there_is(serve, saved, name):
    site = serve(name)
    told = mocked(name, "input")
    told["title"] = saved(name).name
    assert_same(site.json("input"), told)
    for layer in model(name).layers:
        for batch in range(model(name).batches):
            asked = {"layer": layer, "batch": batch}
            assert site.json("tokens", **asked) == mocked(name, "tokens", **asked)


@pytest.mark.parametrize("name", MODELS)
def test_the_table_of_heads(serve, name):
    site = serve(name)
    for batch in range(model(name).batches):
        total, rows, until = 1, [], time.monotonic() + 30
        while len(rows) < total:
            assert time.monotonic() < until
            more = site.json("heads", batch=batch, **{"from": len(rows)})
            assert set(more) == {"total", "rows"}
            total, rows = more["total"], rows + more["rows"]
        assert_same({"total": total, "rows": rows}, mocked(name, "heads", batch=batch))
        assert site.json("heads", batch=batch, **{"from": total + 5}) == {"total": total, "rows": []}


def whole_map(site, place, of, pool):
    until = time.monotonic() + 30
    while time.monotonic() < until:
        map_ = site.json("map", **at(place, of=of, pool=pool))
        if map_["done"] == map_["total"]:
            return map_
    raise AssertionError("the map is never built")


@pytest.mark.parametrize(("name", "place"), HEADS)
def test_numbers_of_cells(serve, name, place):
    site, shown = serve(name), model(name)
    corner = min(64, shown.len_query), min(64, shown.len_key)
    ends = [
        (0, corner[0], 0, corner[1]),
        (shown.len_query - 1, shown.len_query, shown.len_key - corner[1], shown.len_key),
    ]
    for of in OF:
        # Large products that cancel leave their roundings.
        values = shown.matrices(*place)[of]
        near = {**NEAR, "abs_tol": 1e-6 * np.abs(values[np.isfinite(values)]).max(initial=1)}
        for a, b, c, d in ends:
            asked = at(place, of=of, queries=f"{a}:{b}", keys=f"{c}:{d}")
            assert_same(site.json("cells", **asked), mocked(name, "cells", **asked), of, near)
    assert site.json("cells", **at(place, of="weights", queries="1:1", keys="0:1")) == {"values": []}


@pytest.mark.parametrize(("name", "place"), HEADS)
def test_whom_a_query_attends(serve, name, place):
    for query in range(0, model(name).len_query, max(1, model(name).len_query // 12)):
        asked = at(place, query=query)
        real, mock = serve(name).json("query", **asked), mocked(name, "query", **asked)
        for by in ["weight", "influence"]:
            lists = [one.pop(f"by_{by}") for one in (real, mock)]
            assert_ranked(*lists, "key", by, (query, by))
        assert_same(real, mock, f"query {query}")


@pytest.mark.parametrize(("name", "place"), HEADS)
def test_who_attends_a_key(serve, name, place):
    for key in range(0, model(name).len_key, max(1, model(name).len_key // 12)):
        asked = at(place, key=key, count=9)
        real, mock = serve(name).json("key", **asked), mocked(name, "key", **asked)
        assert_ranked(real.pop("by_weight"), mock.pop("by_weight"), "query", "weight", key)
        assert_same(real, mock, f"key {key}")


def test_lists_are_as_long_as_one_asks(serve):
    site = serve("text")
    for count, length in [(0, 0), (1, 1), (None, 20), (300, 300), (10**9, 600)]:
        asked = at((2, 3, 0), query=599, count=count)
        assert len(site.json("query", **asked)["by_weight"]) == length
        assert len(site.json("key", **at((2, 3, 0), key=0, count=count))["by_weight"]) == length


def assert_painted(picture, values, scale, where, either=None):
    """Each pixel has its number's level of the scale; where there is +∞ and −∞ to choose from, either."""
    assert picture.levels.shape == values.shape, (where, picture.levels.shape)
    told = [[int(one[at : at + 2], 16) for at in (1, 3, 5)] for one in scale["colours"]]
    last = len(told) - 1
    assert picture.palette[[(at * 252 + last // 2) // last for at in range(last + 1)]].tolist() == told
    assert picture.palette[253:].tolist() == [list(SPECIAL[name]) for name in ("nan", "inf", "-inf")]
    low, high = scale["low"], scale["high"]
    share = np.clip((np.nan_to_num(values, nan=low, posinf=high, neginf=low) - low) / (high - low), 0, 1)
    level = (np.sqrt(share) if scale["kind"] == "square-root" else share) * 252
    for one, is_so in [(253, np.isnan(values)), (254, values == np.inf), (255, values == -np.inf)]:
        level[is_so] = one
    off = np.abs(picture.levels - level)
    if either is not None:
        off[either & (picture.levels >= 254)] = 0
    # Half a level, and what f32 leaves of a number.
    allowed = np.where(level > 252, 0, 0.51)
    assert (off <= allowed).all(), (where, off.max(), np.argwhere(off > allowed)[:5].tolist())


def assert_same_scale(real, mock, values, where):
    """Whether numbers are above the end cannot be told of some that are the end, nearly."""
    assert isinstance(real["above"], bool)
    largest = values[np.isfinite(values)].max(initial=-np.inf)
    if close(largest, mock["high"], NEAR):
        real = {**real, "above": mock["above"]}
    assert_same(real, mock, where)


def infinite(shown, place, of, level):
    """Cells with +∞ and −∞, both as far from 0 as there is."""
    size, values = 2 ** (shown.levels() - 1 - level), shown.matrices(*place)[of]
    plus, minus = (pooled((values == x).astype(float), size, size, "max") > 0 for x in (np.inf, -np.inf))
    return plus & minus & ~(pooled(np.isnan(values).astype(float), size, size, "max") > 0)


@pytest.mark.parametrize(("name", "place"), HEADS)
@pytest.mark.parametrize("of", OF)
def test_every_pixel_of_every_level(serve, name, place, of):
    site, shown = serve(name), model(name)
    for pool in POOLS:
        map_ = whole_map(site, place, of, pool)
        mock = mocked(name, "map", **at(place, of=of, pool=pool))
        assert_same_scale(map_["scale"], mock["scale"], shown.matrices(*place)[of], (of, pool))
        # How far it is, each counts in its own way.
        rest = {"scale": None, "done": 1, "total": 1}
        assert_same({**map_, **rest}, {**mock, **rest}, f"{of} {pool}")
        ends = {name: map_["scale"][name] for name in ("low", "high")}
        for level in range(map_["levels"]):
            values = shown.whole(place, of, pool, level)
            both = infinite(shown, place, of, level) if pool == "max" else None
            for y in range(math.ceil(values.shape[0] / TILE)):
                for x in range(math.ceil(values.shape[1] / TILE)):
                    asked = at(place, of=of, pool=pool, level=level, x=x, y=y, **ends)
                    part = np.s_[y * TILE : (y + 1) * TILE, x * TILE : (x + 1) * TILE]
                    either = None if both is None else both[part]
                    assert_painted(site.picture("tile", **asked), values[part], map_["scale"], asked, either)


@pytest.mark.parametrize(("name", "place"), HEADS)
def test_thumbnails(serve, name, place):
    values = model(name).whole(place, "weights", "max", model(name).level_within(96))
    picture = serve(name).picture("thumbnail", **at(place))
    assert_painted(picture, values, whole_map(serve(name), place, "weights", "max")["scale"], place)


def test_a_tile_is_painted_by_the_ends_that_are_asked_for(serve):
    site, place = serve("text"), (1, 1, 0)
    scale = {**whole_map(site, place, "weights", "max")["scale"], "low": 0.0, "high": 0.01}
    asked = at(place, of="weights", pool="max", level=8, x=0, y=0, low=0, high=0.01)
    values = model("text").whole(place, "weights", "max", 8)
    assert (values > 0.01).any()
    assert_painted(site.picture("tile", **asked), values, scale, asked)


WEIGHTS = {"layer": 1, "head": 1, "of": "weights", "pool": "max"}
TILE_0 = {**WEIGHTS, "level": 0, "x": 0, "y": 0, "low": 0, "high": 1}
CELLS = {"layer": 1, "head": 1, "of": "weights", "queries": "0:2", "keys": "0:2"}


@pytest.mark.parametrize(
    ("path", "parameters", "named"),
    [
        ("tokens", {"layer": 3}, "layer"),
        ("tokens", {}, "layer"),
        ("tokens", {"layer": 0, "batch": 1}, "batch"),
        ("heads", {"batch": 1}, "batch"),
        ("heads", {"from": "x"}, "from"),
        ("heads", {"from": -1}, "from"),
        *[
            (path, {**good, **bad}, named)
            for path, good in [
                ("thumbnail", {"layer": 1, "head": 1}),
                ("map", WEIGHTS),
                ("tile", TILE_0),
                ("cells", CELLS),
                ("query", {"layer": 1, "head": 1, "query": 0}),
                ("key", {"layer": 1, "head": 1, "key": 0}),
            ]
            for bad, named in [
                ({"layer": 3}, "layer"),
                ({"layer": "one"}, "layer"),
                ({"head": 4}, "head"),
                ({"head": -1}, "head"),
                ({"head": None}, "head"),
                ({"head": "1e0"}, "head"),
                ({"head": "1;rm"}, "head"),
                ({"batch": 1}, "batch"),
                ({"batch": 2**64}, "batch"),
                ({"colour": "red"}, "colour"),
            ]
        ],
        ("map", {**WEIGHTS, "of": "values"}, "of"),
        ("map", {**WEIGHTS, "of": None}, "of"),
        ("map", {**WEIGHTS, "pool": "sum"}, "pool"),
        ("map", {**WEIGHTS, "pool": None}, "pool"),
        ("tile", {**TILE_0, "of": "__proto__"}, "of"),
        ("tile", {**TILE_0, "x": 1}, "tile"),
        ("tile", {**TILE_0, "y": 1}, "tile"),
        ("tile", {**TILE_0, "level": 10, "x": 3}, "tile"),
        ("tile", {**TILE_0, "level": 10, "y": 2**63}, "tile"),
        ("tile", {**TILE_0, "level": 11}, "tile"),
        ("tile", {**TILE_0, "level": 2**63}, "tile"),
        ("tile", {**TILE_0, "level": None}, "level"),
        ("tile", {**TILE_0, "x": -1}, "x"),
        ("tile", {**TILE_0, "y": 0.5}, "y"),
        ("tile", {**TILE_0, "low": None}, "low"),
        ("tile", {**TILE_0, "high": "much"}, "high"),
        ("cells", {**CELLS, "of": "Weights"}, "of"),
        ("cells", {**CELLS, "queries": "0:65"}, "queries"),
        ("cells", {**CELLS, "keys": "0:65"}, "keys"),
        ("cells", {**CELLS, "queries": "599:601"}, "queries"),
        ("cells", {**CELLS, "keys": f"{2**64 - 1}:{2**64 - 1}"}, "keys"),
        ("cells", {**CELLS, "queries": "2:1"}, "queries"),
        ("cells", {**CELLS, "queries": "2"}, "queries"),
        ("cells", {**CELLS, "keys": "-2:2"}, "keys"),
        ("cells", {**CELLS, "keys": ":"}, "keys"),
        ("cells", {**CELLS, "keys": None}, "keys"),
        ("query", {"layer": 1, "head": 1, "query": 600}, "query"),
        ("query", {"layer": 1, "head": 1}, "query"),
        ("query", {"layer": 1, "head": 1, "query": 0, "count": -1}, "count"),
        ("key", {"layer": 1, "head": 1, "key": 600}, "key"),
        ("key", {"layer": 1, "head": 1, "key": "NaN"}, "key"),
        ("key", {"layer": 1, "head": 1, "key": 0, "count": "all"}, "count"),
    ],
)
def test_what_cannot_be_answered_is_named(serve, path, parameters, named):
    given = {name: str(value) for name, value in parameters.items() if value is not None}
    for asked in [serve("text").ask(path, given), Api(model("text")).answer(path, given)]:
        status, kind, body = asked
        assert 400 <= status < 500 and kind == "application/json", asked
        told = json.loads(body)
        assert set(told) == {"error"} and re.search(rf"\b{named}\b", told["error"]), asked


def test_a_layer_where_there_are_none(serve):
    for asked in [serve("odd").ask("thumbnail", {"layer": 0, "head": 0}), serve("odd").ask("nothing", {})]:
        assert 400 <= asked[0] < 500 and set(json.loads(asked[2])) == {"error"}


def test_nobody_else_is_answered(serve):
    url = serve("text").url + "api/input"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(url)


@pytest.fixture(scope="session")
def exported(qkv, saved):
    """The page of a model's file, and the data in it."""
    pages = {}

    def page(name):
        if name not in pages:
            file = saved(name).with_suffix(".html")
            subprocess.run([qkv, "view", saved(name), "--export", file], check=True, stdout=subprocess.PIPE)
            data = re.search(r'<script[^>]* id="data">(.*?)</script>', file.read_text("utf-8"), re.S)
            pages[name] = json.loads(data[1])["explorer"]
        return pages[name]

    return page


@pytest.mark.parametrize("name", MODELS)
def test_what_an_exported_page_holds(exported, saved, name):
    real, mock = exported(name), embedded(model(name))
    mock["input"]["title"] = saved(name).name
    assert_same({**real, "heads": []}, {**mock, "heads": []})
    for mine, other in zip(real["heads"], mock["heads"], strict=True):
        where = [mine[name] for name in ("layer", "head", "batch")]
        for by in ["by_weight", "by_influence"]:
            lists = zip(mine.pop(by), other.pop(by), strict=True)
            for query, pair in enumerate(lists):
                triples = [
                    [
                        dict(zip(("key", "weight", "influence"), one[at : at + 3], strict=True))
                        for at in range(0, len(one), 3)
                    ]
                    for one in pair
                ]
                assert_ranked(*triples, "key", by[3:], (where, query), SHORT)
        picture = Picture(base64.b64decode(mine["map"].pop("png").removeprefix("data:image/png;base64,")))
        del other["map"]["png"]
        level = model(name).levels() - 1 - int(math.log2(mine["map"]["bin"]))
        values = model(name).whole((mine["layer"], mine["head"], mine["batch"]), "weights", "max", level)
        assert_painted(picture, values, mine["map"]["scale"], where)
        assert_same_scale(mine["map"].pop("scale"), other["map"].pop("scale"), values, where)
        assert_same(mine, other, str(where), SHORT)
