"""A server's side of the explorer, in NumPy: small models computed exactly, large ones by a formula.

    python mock_explorer.py text      # or another of MODELS: a page to look at; --slow S, --export FILE

`Model` knows numbers and tokens, `Api` answers what the page asks: status, kind, bytes.
"""

import argparse
import base64
import functools
import json
import math
import struct
import threading
import time
import zlib

import numpy as np

VIRIDIS = (
    "440154 48186a 472d7b 424086 3b528b 33638d 2c728e 26828e "
    "21918c 1fa088 28ae80 3fbc73 5ec962 84d44b addc30 fde725"
)
RED_BLUE = (
    "67001f 980b29 bb2a34 d05548 e48268 f3aa8a fac9b0 fae5d7 "
    "e6eff4 c5dfec 9bc9e0 69acd1 4189be 2a66a5 15467e 053061"
)
BLUES = (
    "f7fbff eaf3fb dceaf6 cfe1f2 bdd7ec a5cde3 8bc0dd 6baed6 "
    "539ecc 3c8cc3 2979b9 1764ab 0a519c 08468b 083877 08306b"
)
SPECIAL = {"nan": (0xE6, 0x00, 0x9E), "inf": (0x00, 0xE0, 0xFF), "-inf": (0xD4, 0xD4, 0xD4)}
OF = ["weights", "scores", "scaled", "influence", "mask"]
COLUMNS = ["entropy", "keys", "distance", "first", "self", "previous", "same", "after"]
TILE = 256

FABLE = (
    "The animal did n't cross the street because it was too tired . The street was long and the night was "
    "cold , so it sat down by the river and looked at the stars . A fox came by and asked the animal why "
    "it did not cross . I am too tired , said the animal , and the street is too wide . Then the fox told "
    "it a story about a street that was a river once , and a river that was a street , and about the "
    "stars that crossed both each night without being tired at all . The animal listened until the fox "
    "was done . "
)
TEXT = FABLE.split()
HOSTILE = [
    "</script><b>",
    "\n",
    "",
    " ",
    "שלום",
    "🦊",
    "<s>",
    "a<b&c",
    "<s>",
    "<img src=x onerror=alert(1)>",
    "\u202eevil",
    "Ġthe",
]


def colours(text):
    return np.array([[int(one[at : at + 2], 16) for at in (0, 2, 4)] for one in text.split()], float)


def png(rgb):
    height, width, _ = rgb.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), rgb.reshape(height, -1)], axis=1)

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows.tobytes(), 1))
        + chunk(b"IEND", b"")
    )


def painted(values, scale):
    """Cells in the scale's colours."""
    low, high = scale["low"], scale["high"]
    anchors = np.array([[int(one[at : at + 2], 16) for at in (1, 3, 5)] for one in scale["colours"]], float)
    share = np.clip((np.nan_to_num(values, posinf=high, neginf=low) - low) / (high - low), 0, 1)
    if scale["kind"] == "square-root":
        share = np.sqrt(share)
    place = share * (len(anchors) - 1)
    below = np.minimum(place.astype(int), len(anchors) - 2)
    part = (place - below)[..., None]
    rgb = np.rint(anchors[below] * (1 - part) + anchors[below + 1] * part).astype(np.uint8)
    for where, name in [(np.isnan(values), "nan"), (values == np.inf, "inf"), (values == -np.inf, "-inf")]:
        rgb[where] = SPECIAL[name]
    return rgb


def pooled(values, bin_rows, bin_columns, how):
    rows, columns = values.shape
    high, wide = math.ceil(rows / bin_rows), math.ceil(columns / bin_columns)
    padded = np.full((high * bin_rows, wide * bin_columns), np.nan)
    padded[:rows, :columns] = values
    inside = np.zeros(padded.shape, bool)
    inside[:rows, :columns] = True

    def blocks(array):
        parts = array.reshape(high, bin_rows, wide, bin_columns)
        return parts.transpose(0, 2, 1, 3).reshape(high, wide, -1)

    parts, valid = blocks(padded), blocks(inside)
    if how == "mean":
        return np.where(valid, parts, 0).sum(-1) / valid.sum(-1)
    best = np.where(valid, parts, -np.inf).max(-1)
    if how == "farthest":
        least = np.where(valid, parts, np.inf).min(-1)
        best = np.where(-least > best, least, best)
    return np.where((np.isnan(parts) & valid).any(-1), np.nan, best)


def plain(x):
    """JSON has no NaN and no infinities."""
    if isinstance(x, dict):
        return {name: plain(one) for name, one in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(one) for one in x]
    if isinstance(x, np.ndarray):
        return plain(x.tolist())
    if isinstance(x, (float, np.floating)):
        x = float(x)
        return x if math.isfinite(x) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(x, "NaN")
    return int(x) if isinstance(x, np.integer) else x


class Model:
    """One with matrices: `head(layer, head, batch)` gives q, k, v, visible."""

    def __init__(self, title, layers, heads, length, keys=None, dim=64, batches=1, words=None):
        self.title, self.layers, self.heads, self.batches, self.dim = title, layers, heads, batches, dim
        self.len_query, self.len_key = length, keys or length
        self.words = words
        self.causal = True
        self.matrices = functools.lru_cache(64)(self.matrices)

    def input(self):
        masks = ["causal, top-left: query i attends keys 0 to i"] if self.causal else []
        shape = {
            "heads": self.heads,
            "key_heads": self.heads,
            "len_query": self.len_query,
            "len_key": self.len_key,
        }
        rest = {"dim": self.dim, "scale": 1 / math.sqrt(self.dim), "masks": masks}
        return {
            "title": self.title,
            "batches": self.batches,
            "layers": [{"layer": at, **shape, **rest} for at in self.layers],
        }

    def tokens(self):
        return {"keys": self.words, "queries": self.words[-self.len_query :] if self.words else None}

    def places(self):
        return [(layer, head) for layer in self.layers for head in range(self.heads)]

    def codes(self):
        """What identifies a position, and a word."""
        draw = np.random.default_rng(5)
        position = draw.standard_normal((self.len_key + 2, self.dim)) / math.sqrt(self.dim)
        known = {
            word: draw.standard_normal(self.dim) / math.sqrt(self.dim)
            for word in dict.fromkeys(self.words or [])
        }
        word = (
            np.array([known[one] for one in self.words]) if self.words else np.zeros((self.len_key, self.dim))
        )
        return position, word

    def vectors(self, layer, head, batch):
        position, word = self.codes()
        draw = np.random.default_rng([layer or 0, head, batch])
        size = self.len_key
        here, before = position[1 : size + 1], position[:size]
        noise = [draw.standard_normal((size, self.dim)) for _ in range(2)]
        kinds = [
            (here, before, 60, 0.3),  # the one before
            (here, here, 40, 0.4),  # itself
            (word, word, 50, 0.3),  # the same word
            (word, np.roll(word, 1, 0), 50, 0.3),  # what came after it
            (here, here, 0, 0.5),  # any
            (position[1:2].repeat(size, 0), here, 60, 0.4),  # the first
        ]
        asked, found, strength, wild = kinds[(3 * (layer or 0) + head) % len(kinds)]
        if strength == 60 and found is before:
            asked, found = before, here
        near = np.cumsum(draw.standard_normal((size, self.dim)), 0) / math.sqrt(size)
        q = asked * strength + wild * noise[0] + near
        k = found * math.sqrt(self.dim) / 2 + wild * noise[1] + near
        return q[-self.len_query :], k, word * 8 + draw.standard_normal((size, self.dim)) * 0.5

    def visible(self, layer, head, batch):
        return (
            np.tril(np.ones((self.len_query, self.len_key), bool))
            if self.causal
            else np.ones((self.len_query, self.len_key), bool)
        )

    def matrices(self, layer, head, batch):
        q, k, v = self.vectors(layer, head, batch)
        mask = self.visible(layer, head, batch)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            scores = q @ k.T
            scaled = scores / math.sqrt(self.dim)
            seen = np.where(mask, scaled, -np.inf)
            top = seen.max(1, keepdims=True)
            power = np.exp(seen - np.where(np.isneginf(top), 0, top))
            power[~mask] = 0
            total = power.sum(1, keepdims=True)
            weights = np.where(total == 0, 0, power / np.where(total == 0, 1, total))
            output = weights @ v
            far = np.sqrt(np.maximum((v**2).sum(1)[None] - 2 * output @ v.T + (output**2).sum(1)[:, None], 0))
            influence = weights * far / (1 - weights)
            # Near 1 the difference says nothing: there the key is deleted.
            for query, key in np.argwhere(weights > 0.5):
                others = power[query].copy()
                others[key] = 0
                without = others @ v / others.sum() if others.sum() > 0 else 0
                influence[query, key] = np.linalg.norm(output[query] - without)
        return {
            "scores": scores,
            "scaled": scaled,
            "mask": mask.astype(float),
            "weights": weights,
            "influence": influence,
        }

    def cells(self, place, of, queries, keys):
        return self.matrices(*place)[of][queries[0] : queries[1], keys[0] : keys[1]]

    def level(self, place, of, pool, level, rows, columns):
        """Of one level, some of its cells."""
        size = 2 ** (self.levels() - 1 - level)
        how = "farthest" if pool == "max" and of in ("scores", "scaled") else pool
        whole = pooled(self.matrices(*place)[of], size, size, how)
        return whole[rows[0] : rows[1], columns[0] : columns[1]]

    def levels(self):
        return math.ceil(math.log2(max(self.len_query, self.len_key, 1))) + 1

    def ends(self, place, of):
        values = self.matrices(*place)[of]
        finite = values[np.isfinite(values)]
        return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)

    def scale(self, place, of):
        if of == "mask":
            return {"kind": "linear", "low": 0, "high": 1, "colours": [f"#{one}" for one in BLUES.split()]}
        low, high = self.ends(place, of)
        if of in ("weights", "influence"):
            return {
                "kind": "square-root",
                "low": 0,
                "high": high or 1,
                "colours": [f"#{one}" for one in VIRIDIS.split()],
            }
        most = max(abs(low), abs(high)) or 1
        return {
            "kind": "diverging",
            "low": -most,
            "high": most,
            "colours": [f"#{one}" for one in RED_BLUE.split()],
        }

    def row(self, place):
        """A line of the table."""
        weights, words = self.matrices(*place)["weights"], self.words
        at = np.arange(self.len_query)
        nan = np.isnan(weights).any(1)
        empty = (weights.sum(1) == 0) & ~nan
        used = ~nan & ~empty
        line = {"layer": place[0], "head": place[1], "empty": empty.sum(), "nan": nan.sum()}
        if not used.any():
            return {**line, **dict.fromkeys(COLUMNS)}
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = np.where(weights > 0, -weights * np.log(weights), 0)
        entropy = parts.sum(1)
        distance = (weights * np.abs(at[:, None] - np.arange(self.len_key)[None])).sum(1)
        own = weights[at, np.minimum(at, self.len_key - 1)]
        before = np.where(at > 0, weights[at, np.maximum(at - 1, 0)], 0)
        found = [entropy, np.exp(entropy), distance, weights[:, 0], own, before, None, None]
        if words:
            same = np.array([[a == b for b in words] for a in words[-self.len_query :]])
            other = same & (at[:, None] != np.arange(self.len_key)[None])
            after = np.roll(same, 1, 1) & (np.arange(self.len_key)[None] <= at[:, None])
            after[:, 0] = False
            found[6:] = [(weights * other).sum(1), (weights * after).sum(1)]
        return {
            **line,
            **{
                name: None if one is None else one[used].mean()
                for name, one in zip(COLUMNS, found, strict=True)
            },
        }

    def query(self, place, query, count):
        parts = self.matrices(*place)
        weights, influence = parts["weights"][query], parts["influence"][query]
        unknown = bool(np.isnan(weights).any())
        mass = weights.sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = (
                math.nan if unknown else float(np.where(weights > 0, -weights * np.log(weights), 0).sum())
            )

        def ranked(values):
            order = np.argsort(-np.nan_to_num(values, nan=-1), kind="stable")[:count]
            return [
                self.pair("key", at, weights[at], influence[at]) for at in order if parts["mask"][query, at]
            ]

        by_weight = [] if mass == 0 else ranked(weights)
        known = self.words[-self.len_query :] if self.words else None
        return {
            "query": query,
            "token": known[query] if known else None,
            "mass": mass,
            "entropy": entropy,
            "effective_keys": math.exp(entropy) if not unknown else math.nan,
            "distance": float((weights * np.abs(query - np.arange(self.len_key))).sum()),
            "rest": mass - sum(one["weight"] for one in by_weight),
            "by_weight": by_weight,
            "by_influence": [] if mass == 0 else ranked(influence),
        }

    def pair(self, kind, at, weight, influence):
        words = (self.words if kind == "key" else self.words[-self.len_query :]) if self.words else None
        return {
            kind: int(at),
            "token": words[at] if words else None,
            "weight": weight,
            "influence": influence,
        }

    def key(self, place, key, count):
        parts = self.matrices(*place)
        weights, influence = parts["weights"][:, key], parts["influence"][:, key]
        order = np.argsort(-np.nan_to_num(weights, nan=-1), kind="stable")[:count]
        return {
            "key": key,
            "token": self.words[key] if self.words else None,
            "received": weights.sum(),
            "queries": int(parts["mask"][:, key].sum()),
            "by_weight": [
                self.pair("query", at, weights[at], influence[at]) for at in order if parts["mask"][at, key]
            ],
        }


class Odd(Model):
    """An empty row, NaN and infinities, labels that try to be more than text."""

    def __init__(self):
        super().__init__("odd </script><b>title", [None], 2, len(HOSTILE), dim=4, words=list(HOSTILE))

    def vectors(self, layer, head, batch):
        q, k, v = super().vectors(layer, head, batch)
        q, k = q / 4, k.copy()
        q[6] = np.nan
        k[9, 0] = np.inf
        q[7:, 0] = [-1, 1, 0, 1, -1]
        return q, k, v

    def visible(self, layer, head, batch):
        mask = super().visible(layer, head, batch)
        mask[3] = False
        mask[:, 9] = False
        if head == 1:
            mask[:] = False
        return mask


class Formula(Model):
    """As long as one likes: every number follows from its place."""

    def numbers(self, place, of, i, j):
        i, j = np.broadcast_arrays(np.asarray(i, float)[:, None], np.asarray(j, float)[None])
        kind = (place[0] or 0) * 7 + place[1]
        mix = np.abs(np.sin(i * 12.9898 + j * 78.233 + kind) * 43758.5453) % 1
        span = 30 + 200 * (kind % 5)
        near = np.exp(-np.abs(i - j - 40 * (kind % 3)) / span) * (0.3 + 0.7 * mix)
        stripe = np.where((j * (kind + 3)) % 997 < 1, 0.5 * mix, 0)
        block = np.where(np.floor(i / 6250) == np.floor(j / 6250), 0.06 * mix, 0.002 * mix)
        weight = np.where(j == 0, 0.6, np.maximum(np.maximum(near, stripe), block) * 0.4)
        inside = j <= i
        if of == "mask":
            return inside.astype(float)
        if of in ("scores", "scaled"):
            return (np.log(weight + 1e-4) + 5) * (8 if of == "scores" else 1)
        return np.where(inside, weight * (3 * mix if of == "influence" else 1), 0)

    def matrices(self, layer, head, batch):
        return {
            of: self.numbers((layer, head, batch), of, np.arange(self.len_query), np.arange(self.len_key))
            for of in OF
        }

    def cells(self, place, of, queries, keys):
        return self.numbers(place, of, np.arange(*queries), np.arange(*keys))

    def level(self, place, of, pool, level, rows, columns):
        size = 2 ** (self.levels() - 1 - level)
        picks = [0] if size == 1 else [0, size // 3, size - 1]
        stack = [
            self.numbers(
                place,
                of,
                np.minimum(np.arange(*rows) * size + a, self.len_query - 1),
                np.minimum(np.arange(*columns) * size + b, self.len_key - 1),
            )
            for a in picks
            for b in picks
        ]
        if pool == "mean":
            return np.mean(stack, 0)
        return np.max(stack, 0)

    def ends(self, place, of):
        return {"scores": (-40.0, 40.0), "scaled": (-5.0, 5.0), "influence": (0.0, 1.2)}.get(of, (0.0, 0.6))

    def row(self, place):
        if self.len_key <= 2048:
            return super().row(place)
        kind = (place[0] or 0) * 7 + place[1]
        numbers = [
            2.5 + kind / 7,
            math.exp(2.5 + kind / 7),
            900.0 * (kind + 1),
            0.6,
            0.01 * kind,
            0.02,
            0.03,
            None,
        ]
        return {
            "layer": place[0],
            "head": place[1],
            "empty": 0,
            "nan": 0,
            **dict(zip(COLUMNS, numbers, strict=True)),
        }

    def some(self, kind, fixed, count, place):
        length = self.len_key if kind == "key" else self.len_query
        at = np.arange(length)
        asked = (np.array([fixed]), at) if kind == "key" else (at, np.array([fixed]))
        weights = self.numbers(place, "weights", *asked).ravel()
        influence = self.numbers(place, "influence", *asked).ravel()
        by = [np.argsort(-one, kind="stable")[:count] for one in (weights, influence)]
        return weights, [
            [self.pair(kind, one, weights[one], influence[one]) for one in order] for order in by
        ]

    def query(self, place, query, count):
        weights, (by_weight, by_influence) = self.some("key", query, count, place)
        found = {"query": query, "token": self.words[query] if self.words else None, "mass": weights.sum()}
        rest = weights.sum() - sum(one["weight"] for one in by_weight)
        known = {"entropy": 3.2, "effective_keys": math.exp(3.2), "distance": 812.5, "rest": rest}
        return {**found, **known, "by_weight": by_weight, "by_influence": by_influence}

    def key(self, place, key, count):
        weights, (by_weight, _) = self.some("query", key, count, place)
        found = {"key": key, "token": self.words[key] if self.words else None, "received": weights.sum()}
        return {**found, "queries": self.len_query - key, "by_weight": by_weight}


def long_text(length):
    return (TEXT * (length // len(TEXT) + 1))[:length]


MODELS = {
    "text": lambda: Model("fable.safetensors", [0, 1, 2], 4, 600, words=long_text(600)),
    "sentence": lambda: Model("sentence.npz", [None], 1, 13, words=TEXT[:13]),
    "cache": lambda: Model("decode.npz", [None], 2, 3, 80),
    "batches": lambda: Model("batches.npz", [0, 1], 2, 24, batches=3, words=TEXT[:24]),
    "odd": Odd,
    "many": lambda: Formula("thirty-layers.safetensors", list(range(25)), 12, 64, words=TEXT[:64]),
    "long": lambda: Formula("a-hundred-thousand.safetensors", [0, 1], 2, 100_000, words=long_text(100_000)),
    "unnamed": lambda: Formula("random.npz", [None], 1, 5000),
}


class Refused(Exception):
    def __init__(self, status, words):
        super().__init__(words)
        self.status = status


class Api:
    """`surveyed` heads and `built` of 100 parts of each map are known, and more with each question.

    `slow`: seconds for a picture.
    """

    def __init__(self, model, surveyed=None, built=100, slow=0.0):
        self.model, self.surveyed, self.built, self.slow = model, surveyed, built, slow
        self.asked, self.fail = [], {}
        self.lock = threading.Lock()

    def answer(self, path, parameters):
        self.asked.append((path, parameters))
        try:
            if path in self.fail:
                raise Refused(*self.fail[path])
            made = getattr(self, f"answer_{path}", None)
            if made is None:
                raise Refused(404, "there is nothing here")
            body = made(parameters)
        except Refused as refused:
            return refused.status, "application/json", json.dumps({"error": str(refused)}).encode()
        if isinstance(body, bytes):
            return 200, "image/png", body
        return 200, "application/json", json.dumps(plain(body)).encode()

    def place(self, parameters):
        layer = int(parameters["layer"]) if "layer" in parameters else None
        place = layer, int(parameters["head"]), int(parameters.get("batch", 0))
        if (layer, place[1]) not in self.model.places() or not 0 <= place[2] < self.model.batches:
            raise Refused(404, f"there is no head {place[1]} of layer {layer}")
        return place

    def whole(self, parameters, name, length):
        at = int(parameters[name])
        if not 0 <= at < length:
            raise Refused(400, f"{name}: got {at}, want 0 to {length - 1}")
        return at

    def answer_input(self, parameters):
        return self.model.input()

    def answer_tokens(self, parameters):
        return self.model.tokens()

    def answer_heads(self, parameters):
        places = self.model.places()
        with self.lock:
            known = len(places) if self.surveyed is None else min(self.surveyed, len(places))
            self.surveyed = None if self.surveyed is None else self.surveyed + 5
        batch = int(parameters.get("batch", 0))
        rows = [self.model.row((*place, batch)) for place in places[int(parameters.get("from", 0)) : known]]
        return {"total": len(places), "rows": rows}

    def answer_thumbnail(self, parameters):
        time.sleep(self.slow)
        place = self.place(parameters)
        return self.picture(place, "weights", "max", 96)[0]

    def picture(self, place, of, pool, most):
        level = self.model.levels() - 1
        while max(self.model.len_query, self.model.len_key) / 2 ** (self.model.levels() - 1 - level) > most:
            level -= 1
        size = 2 ** (self.model.levels() - 1 - level)
        rows, columns = math.ceil(self.model.len_query / size), math.ceil(self.model.len_key / size)
        values = self.model.level(place, of, pool, level, (0, rows), (0, columns))
        return png(painted(values, self.model.scale(place, of))), size

    def answer_map(self, parameters):
        place = self.place(parameters)
        with self.lock:
            done = self.built
            self.built = min(self.built + 20, 100)
        lengths = {"len_query": self.model.len_query, "len_key": self.model.len_key}
        scale = self.model.scale(place, parameters["of"])
        return {
            **lengths,
            "tile": TILE,
            "levels": self.model.levels(),
            "scale": scale,
            "done": done,
            "total": 100,
        }

    def answer_tile(self, parameters):
        time.sleep(self.slow)
        place, level = self.place(parameters), int(parameters["level"])
        if self.built < 100 and level < self.model.levels() - 1:
            raise Refused(503, "this level is not ready")
        size = 2 ** (self.model.levels() - 1 - level)
        lengths = [math.ceil(one / size) for one in (self.model.len_query, self.model.len_key)]
        ranges = []
        for name, length in zip("yx", lengths, strict=True):
            start = self.whole(parameters, name, math.ceil(length / TILE)) * TILE
            ranges.append((start, min(start + TILE, length)))
        values = self.model.level(place, parameters["of"], parameters["pool"], level, *ranges)
        return png(painted(values, self.model.scale(place, parameters["of"])))

    def answer_cells(self, parameters):
        ranges = [[int(one) for one in parameters[name].split(":")] for name in ("queries", "keys")]
        lengths = self.model.len_query, self.model.len_key
        if any(not 0 <= a < b <= n or b - a > 64 for (a, b), n in zip(ranges, lengths, strict=True)):
            raise Refused(400, f"queries, keys: got {ranges}, want at most 64 of {lengths}")
        return {"values": self.model.cells(self.place(parameters), parameters["of"], *ranges)}

    def answer_query(self, parameters):
        place = self.place(parameters)
        return self.model.query(
            place, self.whole(parameters, "query", self.model.len_query), int(parameters["count"])
        )

    def answer_key(self, parameters):
        return self.model.key(
            self.place(parameters),
            self.whole(parameters, "key", self.model.len_key),
            int(parameters["count"]),
        )


def embedded(model, most=512, top=8):
    """What the exported page holds: the JSON that embedded-source.js describes."""
    api = Api(model)

    def short(x):
        return plain(float(f"{x:.4g}") if math.isfinite(x) else x)

    def listed(pairs):
        return [
            number for one in pairs for number in (one["key"], short(one["weight"]), short(one["influence"]))
        ]

    heads = []
    for place in [(*place, batch) for batch in range(model.batches) for place in model.places()]:
        picture, size = api.picture(place, "weights", "max", most)
        queries = [model.query(place, at, top) for at in range(model.len_query)]
        values = model.cells(place, "weights", (0, model.len_query), (0, model.len_key))
        heads.append(
            {
                "layer": place[0],
                "head": place[1],
                "batch": place[2],
                "row": model.row(place),
                "tokens": 0,
                "map": {
                    "png": "data:image/png;base64," + base64.b64encode(picture).decode(),
                    "bin": size,
                    "scale": model.scale(place, "weights"),
                },
                "mass": [short(one["mass"]) for one in queries],
                "entropy": [short(one["entropy"]) for one in queries],
                "distance": [short(one["distance"]) for one in queries],
                "by_weight": [listed(one["by_weight"]) for one in queries],
                "by_influence": [listed(one["by_influence"]) for one in queries],
                "received": [short(x) for x in values.sum(0)],
                "values": [[short(x) for x in row] for row in values] if values.size <= 4096 else None,
            }
        )
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
