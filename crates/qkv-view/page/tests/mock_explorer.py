"""A server's side of the explorer, in NumPy: it answers as the command does.

    python mock_explorer.py text      # or another of MODELS: a page to look at; --slow S, --export FILE

`mock_models.py` knows numbers and tokens, `Api` answers what the page asks: status, kind, bytes.
"""

import argparse
import base64
import json
import math
import re
import threading
import time

from mock_models import MODELS, OF, painted, plain, png, scale_of

TILE = 256
MOST_CELLS = 64
LISTED = 20
PLACE, PART = (
    ["layer", "head", "batch"],
    ["level", "x", "y", "low", "high", "queries", "keys", "query", "key"],
)
MAY_SAY = [*PLACE, "from", "of", "pool", *PART, "count"]


def count(text):
    """0 or more; nothing else that Python reads."""
    if not re.fullmatch("[0-9]+", str(text)):
        raise ValueError(text)
    return int(text)


class Refused(Exception):
    def __init__(self, status, words):
        super().__init__(words)
        self.status = status


def wrong(what, got, wanted):
    return Refused(422, f"{what}: got {got}, want {wanted}")


class Question:
    """What was asked, each part read when it is needed."""

    def __init__(self, parameters, model):
        self.parameters, self.model = parameters, model
        for name in parameters:
            if name not in MAY_SAY:
                raise wrong(name, "it", f"only {', '.join(MAY_SAY)}")

    def number(self, name, read=count, usual=None):
        text = self.parameters.get(name, usual)
        if text is None:
            raise wrong(name, "nothing", "a number")
        try:
            return read(text)
        except ValueError:
            raise wrong(name, text, "a number") from None

    def below(self, name, most, usual=None):
        at = self.number(name, usual=usual)
        if at >= most:
            raise wrong(name, at, f"a number below {most}")
        return at

    def one(self, name, choices):
        text = self.parameters.get(name, "nothing")
        if text not in choices:
            raise wrong(name, text, " or ".join(choices))
        return text

    def batch(self):
        return self.below("batch", self.model.batches, usual=0)

    def layer(self):
        layers = self.model.layers
        layer = self.number("layer", usual=layers[0]) if "layer" in self.parameters else None
        if layer not in layers:
            raise wrong("layer", "nothing" if layer is None else layer, "one that the input has")
        return layer

    def place(self):
        return self.layer(), self.below("head", self.model.heads), self.batch()

    def shown(self):
        return self.one("of", OF), self.one("pool", ["max", "mean"])

    def span(self, name, length):
        start, _, end = self.parameters.get(name, "nothing").partition(":")
        try:
            start, end = count(start), count(end)
        except ValueError:
            raise wrong(name, f"{start}:{end}", "A:B, from A up to but not including B") from None
        if not start <= end <= length or end - start > MOST_CELLS:
            raise wrong(name, f"{start}:{end}", f"at most {MOST_CELLS} of the {length} there are")
        return start, end

    def count(self):
        return self.number("count", usual=LISTED)


class Api:
    """`surveyed` heads and `built` of 100 parts of each map are known, and more with each question.

    `slow`: seconds for a picture. `hold(path, parameters)` may keep an answer back.
    """

    def __init__(self, model, surveyed=None, built=100, slow=0.0):
        self.model, self.surveyed, self.built, self.slow = model, surveyed, built, slow
        self.asked, self.fail = [], {}
        self.hold = lambda path, parameters: None
        self.lock = threading.Lock()

    def answer(self, path, parameters):
        self.asked.append((path, parameters))
        self.hold(path, parameters)
        try:
            if path in self.fail:
                raise Refused(*self.fail[path])
            made = getattr(self, f"answer_{path}", None)
            if made is None:
                raise Refused(404, "there is nothing here")
            body = made(Question(parameters, self.model))
        except Refused as refused:
            return refused.status, "application/json", json.dumps({"error": str(refused)}).encode()
        if isinstance(body, bytes):
            return 200, "image/png", body
        return 200, "application/json", json.dumps(plain(body)).encode()

    def answer_input(self, asked):
        return self.model.input()

    def answer_tokens(self, asked):
        asked.layer(), asked.batch()
        return self.model.tokens()

    def answer_heads(self, asked):
        places, batch = self.model.places(), asked.batch()
        with self.lock:
            known = len(places) if self.surveyed is None else min(self.surveyed, len(places))
            self.surveyed = None if self.surveyed is None else self.surveyed + 5
        rows = [self.model.row((*place, batch)) for place in places[asked.number("from", usual=0) : known]]
        return {"total": len(places), "rows": rows}

    def answer_thumbnail(self, asked):
        time.sleep(self.slow)
        place = asked.place()
        values = self.model.whole(place, "weights", "max", self.model.level_within(96))
        return png(painted(values, self.model.scale(place, "weights")))

    def answer_map(self, asked):
        place, (of, _) = asked.place(), asked.shown()
        with self.lock:
            done = self.built
            self.built = min(self.built + 20, 100)
        lengths = {"len_query": self.model.len_query, "len_key": self.model.len_key}
        return {
            **lengths,
            "tile": TILE,
            "levels": self.model.levels(),
            "scale": self.model.scale(place, of),
            "done": done,
            "total": 100,
            "ready": self.model.base() + 1,
        }

    def answer_tile(self, asked):
        time.sleep(self.slow)
        place, (of, pool) = asked.place(), asked.shown()
        level, x, y = (asked.number(name) for name in ("level", "x", "y"))
        ends = {name: asked.number(name, float) for name in ("low", "high")}
        last = self.model.levels() - 1
        size = 2 ** max(last - level, 0)
        lengths = [math.ceil(one / size) for one in (self.model.len_query, self.model.len_key)]
        ranges = [(at * TILE, min((at + 1) * TILE, n)) for at, n in zip((y, x), lengths, strict=True)]
        if level > last or any(start >= end for start, end in ranges):
            raise wrong("tile", f"{level}/{x}/{y}", f"one of levels 0 to {last}, within the matrix")
        if self.built < 100 and level <= self.model.base():
            raise wrong("tile", f"{level}/{x}/{y}", "one that is built: this one is not yet")
        values = self.model.level(place, of, pool, level, *ranges)
        return png(painted(values, {**self.model.scale(place, of), **ends}))

    def answer_cells(self, asked):
        ranges = asked.span("queries", self.model.len_query), asked.span("keys", self.model.len_key)
        return {"values": self.model.cells(asked.place(), asked.one("of", OF), *ranges)}

    def answer_query(self, asked):
        query = asked.below("query", self.model.len_query)
        return self.model.query(asked.place(), query, asked.count())

    def answer_key(self, asked):
        return self.model.key(asked.place(), asked.below("key", self.model.len_key), asked.count())


def embedded(model, most=512, top=8):
    """What the exported page holds: the JSON that embedded-source.js describes."""

    def short(x):
        return plain(float(f"{x:.4g}") if math.isfinite(x) else x)

    def listed(pairs):
        return [
            number for one in pairs for number in (one["key"], short(one["weight"]), short(one["influence"]))
        ]

    heads = []
    for place in [(*place, batch) for batch in range(model.batches) for place in model.places()]:
        level = model.level_within(most)
        cells = model.whole(place, "weights", "max", level)
        scale = scale_of(cells, "weights")
        queries = [model.query(place, at, top) for at in range(model.len_query)]
        values = model.cells(place, "weights", (0, model.len_query), (0, model.len_key))
        entry = {
            "layer": place[0],
            "head": place[1],
            "batch": place[2],
            "row": model.row(place),
            "tokens": 0,
            "map": {
                "png": "data:image/png;base64," + base64.b64encode(png(painted(cells, scale))).decode(),
                "bin": 2 ** (model.levels() - 1 - level),
                "scale": scale,
            },
            "mass": [short(one["mass"]) for one in queries],
            "entropy": [short(one["entropy"]) for one in queries],
            "distance": [short(one["distance"]) for one in queries],
            "by_weight": [listed(one["by_weight"]) for one in queries],
            "by_influence": [listed(one["by_influence"]) for one in queries],
            "received": [short(x) for x in values.sum(0)],
        }
        if values.size <= 4096:
            entry["values"] = [[short(x) for x in row] for row in values]
        heads.append(entry)
    return plain({"input": model.input(), "tokens": [model.tokens()], "heads": heads})


def main():
    from pathlib import Path

    from conftest import explorer_data, one_file, serving

    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--port", type=int, default=8300)
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--export", metavar="FILE")
    arguments = parser.parse_args()
    model = MODELS[arguments.model]()
    if arguments.export:
        Path(arguments.export).write_text(one_file(explorer_data(embedded(model))), "utf-8")
        return
    with serving(arguments.port) as server:
        server.data = explorer_data({"live": True})
        server.explorer = Api(model, slow=arguments.slow, surveyed=1, built=0)
        print(server.url)
        threading.Event().wait()


if __name__ == "__main__":
    main()
