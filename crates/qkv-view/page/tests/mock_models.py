"""Models to explore, in NumPy: small ones computed exactly, large ones by a formula; and their colours."""

import functools
import math
import struct
import zlib

import numpy as np

VIRIDIS = (
    "440154 471a6c 462f7d 404387 38558c 30688e 29788e 23888d "
    "1f978a 22a784 35b778 54c567 7ad150 a3da36 d1e11b fde725"
)
RED_BLUE = (
    "67001f 971228 bc3338 d45e4f e88c70 f5b699 fad6c3 f7ebe4 "
    "e9eef1 cde2ee a6cee3 76b3d4 4993c3 2d75b1 185390 042f60"
)
BLUES = (
    "f7fbff e9f2fa dce9f6 cfe1f2 bfd8ec aacfe5 92c3de 78b5d8 "
    "61a6d1 4b97c9 3786c0 2675b6 1763aa 0d539a 084184 08306b"
)
SPECIAL = {"nan": (0xE6, 0x00, 0x9E), "inf": (0x00, 0xE0, 0xFF), "-inf": (0xD4, 0xD4, 0xD4)}
OF = ["weights", "scores", "scaled", "influence", "mask"]
COLUMNS = ["entropy", "keys", "distance", "first", "self", "previous", "same", "after"]

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


def coloured(kind, low, high, colours, above=False):
    """A scale as it is told."""
    return {
        "kind": kind,
        "low": low,
        "high": high,
        "above": above,
        "colours": [f"#{one}" for one in colours.split()],
    }


def scale_of(values, of):
    """Of many numbers, weights and influence end where all but a thousandth of those above 0 do."""
    if of == "mask":
        return coloured("linear", 0, 1, BLUES)
    finite = values[np.isfinite(values)].astype(np.float32).astype(float)
    if of in ("scores", "scaled"):
        most = np.abs(finite).max(initial=0) or 1
        return coloured("diverging", -most, most, RED_BLUE)
    high, positive = finite.max(initial=0), np.sort(finite[finite > 0])
    if positive.size >= 4000:
        high = positive[-1 - positive.size // 1000]
    return coloured("square-root", 0, high or 1, VIRIDIS, above=bool((finite > high).any()))


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
        with np.errstate(invalid="ignore"):
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
        masks = ["causal top-left: query i attends keys 0 to i"] if self.causal else []
        if self.len_query != self.len_key:
            masks[0] += f" ({self.len_query} queries, {self.len_key} keys: query 0 stands at position 0)"
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
        """Query 0 stands at the first key: of fewer queries than keys it is not said what they are called."""
        return {"keys": self.words, "queries": self.words if self.len_query == self.len_key else None}

    def token(self, kind, at):
        words = self.tokens()["keys" if kind == "key" else "queries"]
        return words[at] if words else None

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

    def mask(self, head):
        """Beside the order, if there is one: True where a query may attend a key."""
        return None

    def visible(self, head):
        mask, every = self.mask(head), np.ones((self.len_query, self.len_key), bool)
        mask = every if mask is None else mask
        return np.tril(mask) if self.causal else mask

    def matrices(self, layer, head, batch):
        # As a file holds them.
        q, k, v = (one.astype(np.float32).astype(float) for one in self.vectors(layer, head, batch))
        mask = self.visible(head)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            scores = q @ k.T
            scaled = scores / math.sqrt(self.dim)
            seen = np.where(mask, scaled, -np.inf)
            top = seen.max(1, keepdims=True)
            power = np.exp(seen - np.where(np.isneginf(top), 0, top))
            power[~mask] = 0
            total = power.sum(1, keepdims=True)
            # Of what is masked nothing is taken, whatever the others are.
            weights = np.where(mask & (total != 0), power / np.where(total == 0, 1, total), 0)
            output = weights @ v
            far = np.sqrt(np.maximum((v**2).sum(1)[None] - 2 * output @ v.T + (output**2).sum(1)[:, None], 0))
            influence = np.where(mask, weights * far / (1 - weights), 0)
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

    def base(self):
        """The level that is built; those farther in are made when they are asked for."""
        longest = max(self.len_query, self.len_key, 1)

        def within(side):
            return math.ceil(math.log2(math.ceil(longest / side)))

        return self.levels() - 1 - max(min(within(1024), 5), within(4096))

    def level_within(self, most):
        """The farthest with no more than so many cells on a side."""
        return next(
            level
            for level in range(self.levels() - 1, -1, -1)
            if max(self.len_query, self.len_key) <= most * 2 ** (self.levels() - 1 - level)
        )

    def whole(self, place, of, pool, level):
        size = 2 ** (self.levels() - 1 - level)
        rows, columns = math.ceil(self.len_query / size), math.ceil(self.len_key / size)
        return self.level(place, of, pool, level, (0, rows), (0, columns))

    def scale(self, place, of):
        return scale_of(self.matrices(*place)[of], of)

    def row(self, place):
        """A line of the table."""
        weights, words = self.matrices(*place)["weights"], self.tokens()["queries"]
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
            same = np.array([[a == b for b in words] for a in words])
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
            return [self.pair("key", at, weights[at], influence[at]) for at in order if values[at] > 0]

        by_weight = ranked(weights)
        return {
            "query": query,
            "token": self.token("query", query),
            "mass": mass,
            "entropy": entropy,
            "effective_keys": 0.0 if mass == 0 else math.exp(entropy),
            "distance": float((weights * np.abs(query - np.arange(self.len_key))).sum()),
            "rest": mass - sum(one["weight"] for one in by_weight),
            "by_weight": by_weight,
            "by_influence": ranked(influence),
        }

    def pair(self, kind, at, weight, influence):
        return {kind: int(at), "token": self.token(kind, at), "weight": weight, "influence": influence}

    def key(self, place, key, count):
        parts = self.matrices(*place)
        weights, influence = parts["weights"][:, key], parts["influence"][:, key]
        order = np.argsort(-np.nan_to_num(weights, nan=-1), kind="stable")[:count]
        listed = [at for at in order if weights[at] > 0]
        return {
            "key": key,
            "token": self.token("key", key),
            "received": weights.sum(),
            "queries": int((weights > 0).sum()),
            "rest": np.delete(weights, listed).sum(),
            "by_weight": [self.pair("query", at, weights[at], influence[at]) for at in listed],
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

    def mask(self, head):
        mask = np.full((self.len_query, self.len_key), head == 0)
        mask[3] = False
        mask[:, 9] = False
        return mask

    def input(self):
        told = super().input()
        told["layers"][0]["masks"].append(
            "boolean: true = may attend; mask (2, 12, 12) is 1 batch, 2 heads, 12 queries, 12 keys"
        )
        return told


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

    def scale(self, place, of):
        if of in ("weights", "influence"):
            return coloured("square-root", 0.0, {"weights": 0.6, "influence": 1.2}[of], VIRIDIS)
        return scale_of(np.array([{"scores": 40.0, "scaled": 5.0}.get(of, 1.0)]), of)

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
        found = {"query": query, "token": self.token("query", query), "mass": weights.sum()}
        rest = weights.sum() - sum(one["weight"] for one in by_weight)
        known = {"entropy": 3.2, "effective_keys": math.exp(3.2), "distance": 812.5, "rest": rest}
        return {**found, **known, "by_weight": by_weight, "by_influence": by_influence}

    def key(self, place, key, count):
        weights, (by_weight, _) = self.some("query", key, count, place)
        found = {"key": key, "token": self.token("key", key), "received": weights.sum()}
        rest = weights.sum() - sum(one["weight"] for one in by_weight)
        return {**found, "queries": self.len_query - key, "rest": rest, "by_weight": by_weight}


def long_text(length):
    return (TEXT * (length // len(TEXT) + 1))[:length]


MODELS = {
    "text": lambda: Model("fable.safetensors", [0, 1, 2], 4, 600, words=long_text(600)),
    "sentence": lambda: Model("sentence.npz", [None], 1, 13, words=TEXT[:13]),
    "cache": lambda: Model("decode.npz", [None], 2, 3, 80),
    "prompt": lambda: Model("prompt.npz", [None], 2, 3, 80, words=long_text(80)),
    "batches": lambda: Model("batches.npz", [0, 1], 2, 24, batches=3, words=TEXT[:24]),
    "odd": Odd,
    "many": lambda: Formula("thirty-layers.safetensors", list(range(25)), 12, 64, words=TEXT[:64]),
    "long": lambda: Formula("a-hundred-thousand.safetensors", [0, 1], 2, 100_000, words=long_text(100_000)),
    "unnamed": lambda: Formula("random.npz", [None], 1, 5000),
}
