"""What is compared: the cases, the numbers drawn for them, and what the right answer is."""

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
# ‖output − reference‖ / ‖reference‖ of a result that is as good as its type: some roundings. A larger one is shown with
# the time; above WRONG there is no time.
LARGEST_ERROR = {"f32": 1e-5, "f16": 4e-3, "bf16": 3e-2}
WRONG = 0.05
EVERYONE = ("package", "torch", "onnxruntime", "openvino", "ggml", "candle")
QUICK = EVERYONE[:-1]  # candle takes minutes for a long call in f16 or bf16


@dataclass(frozen=True)
class Case:
    name: str
    batch: int
    heads: int
    key_heads: int
    len_query: int
    len_key: int
    dim: int
    dim_value: int
    dtype: str = "f32"
    causal: bool = False
    window: int | None = None  # keys that a query of a causal call sees, its own included
    key_lengths: tuple[int, ...] | None = None  # told to the engines as the boolean mask too
    softcap: float | None = None
    lse: bool = False
    mask: str | None = None  # stored and given to every engine: "padding", "window" or "random"
    bias: bool = False
    peers: tuple[str, ...] = EVERYONE
    against_plain: bool = False  # this engine against itself without the option

    @property
    def shape(self) -> str:
        heads = f"{self.heads}/{self.key_heads}"
        dims = f"{self.dim}" if self.dim == self.dim_value else f"{self.dim}/{self.dim_value}"
        return f"{self.batch}, {heads}, {self.len_query}, {self.len_key}, {dims}"

    def plain(self) -> "Case":
        return replace(self, softcap=None, lse=False, mask=None, bias=False)

    def request(self, file: Path) -> dict:
        return {"load": asdict(self) | {"file": str(file)}}


def case(name, batch, heads, len_query, len_key, dim, dim_value=None, **options) -> Case:
    heads, key_heads = heads if isinstance(heads, tuple) else (heads, heads)
    return Case(name, batch, heads, key_heads, len_query, len_key, dim, dim_value or dim, **options)


def own(name, **option) -> Case:
    return case(name, 1, 8, 4096, 4096, 64, peers=("package",), against_plain=True, **option)


CASES = [
    case("full-4096", 1, 8, 4096, 4096, 64),
    case("causal-4096", 1, 8, 4096, 4096, 64, causal=True),
    case("full-128", 1, 8, 4096, 4096, 128),
    case("causal-1024", 1, 12, 1024, 1024, 64, causal=True),
    case("gqa-causal", 1, (8, 2), 4096, 4096, 128, causal=True),
    case("padding", 4, 12, 512, 512, 64, key_lengths=(512, 400, 300, 129), mask="padding"),
    *(case(f"decode-{d}", 1, (32, 8), 1, 8192, 128, dtype=d) for d in DTYPES),
    *(case(f"{d}-4096", 1, 8, 4096, 4096, 64, dtype=d, peers=QUICK) for d in ("bf16", "f16")),
    *(case(f"{d}-causal", 1, 8, 4096, 4096, 64, dtype=d, causal=True, peers=QUICK) for d in ("bf16", "f16")),
    case("window", 1, 8, 8192, 8192, 64, causal=True, window=512, peers=(*EVERYONE, "flex")),
    case("window-dense", 1, 8, 8192, 8192, 64, mask="window", peers=("package", "torch", "openvino", "ggml")),
    case("value-64", 1, 8, 2048, 2048, 128, 64),
    case("tiny", 2, 4, 5, 5, 8),
    case("full-2048-128", 1, 8, 2048, 2048, 128),
    own("mask-4096", mask="random"),
    own("bias-4096", bias=True),
    own("lse-4096", lse=True),
    own("softcap-4096", softcap=50.0),
]
ACCURACY = [case(f"accuracy-{d}", 1, 8, 1024, 1024, 64, dtype=d, peers=("torch",)) for d in DTYPES]
WINDOW = 512


def draw(c: Case) -> dict[str, np.ndarray]:
    """The arrays of a case: standard normal from seed 0, rounded to its type."""
    normal = np.random.default_rng(0)
    shapes = {
        "query": (c.batch, c.heads, c.len_query, c.dim),
        "key": (c.batch, c.key_heads, c.len_key, c.dim),
        "value": (c.batch, c.key_heads, c.len_key, c.dim_value),
    }
    arrays = {
        n: normal.standard_normal(s, dtype=np.float32).astype(DTYPES[c.dtype]) for n, s in shapes.items()
    }
    if c.mask == "padding":
        lengths = np.array(c.key_lengths).reshape(-1, 1, 1, 1)
        arrays["mask"] = np.arange(c.len_key) < lengths
    elif c.mask == "window":
        arrays["mask"] = window_mask(c.len_query, c.len_key, WINDOW)
    elif c.mask == "random":
        arrays["mask"] = normal.random((1, 1, c.len_query, c.len_key), dtype=np.float32) < 0.5
    if c.bias:
        arrays["bias"] = normal.standard_normal((1, 1, c.len_query, c.len_key), dtype=np.float32)
    return arrays


def window_mask(len_query: int, len_key: int, window: int) -> np.ndarray:
    """(1, 1, len_query, len_key): the causal sliding window as a matrix of booleans."""
    distance = np.arange(len_query)[:, None] - np.arange(len_key)
    return ((distance >= 0) & (distance < window))[None, None]


def store(arrays: dict[str, np.ndarray], file: Path) -> Path:
    save_file(arrays, file)
    return file


def reference(c: Case, arrays: dict[str, np.ndarray], rows: int = 512) -> tuple[np.ndarray, np.ndarray]:
    """Output and log-sum-exp in f64, some rows of one head at a time."""
    output = np.empty((c.batch, c.heads, c.len_query, c.dim_value))
    lse = np.empty((c.batch, c.heads, c.len_query))
    for b in range(c.batch):
        for h in range(c.heads):
            key_head = h // (c.heads // c.key_heads)
            key, value = (arrays[n][b, key_head].astype(np.float64) for n in ("key", "value"))
            for start in range(0, c.len_query, rows):
                block = slice(start, min(start + rows, c.len_query))
                # Keys that no query of the block can see are left out.
                last = block.stop if c.causal else c.len_key
                first = max(0, start - c.window + 1) if c.window else 0
                keys = slice(first, last)
                scores = arrays["query"][b, h, block].astype(np.float64) @ key[keys].T / math.sqrt(c.dim)
                scores = masked(c, arrays, scores, b, block, keys)
                largest = scores.max(-1, keepdims=True)
                weights = np.exp(scores - largest)
                total = weights.sum(-1, keepdims=True)
                output[b, h, block] = weights @ value[keys] / total
                lse[b, h, block] = (largest + np.log(total))[:, 0]
    return output, lse


def masked(c: Case, arrays, scores, b: int, block: slice, keys: slice) -> np.ndarray:
    if c.softcap:
        scores = c.softcap * np.tanh(scores / c.softcap)
    if "bias" in arrays:
        scores = scores + arrays["bias"][0, 0, block, keys]
    if c.causal:
        distance = np.arange(block.start, block.stop)[:, None] - np.arange(keys.start, keys.stop)
        scores[(distance < 0) | (distance >= (c.window or np.inf))] = -np.inf
    if "mask" in arrays:
        mask = arrays["mask"]
        mask = mask[b if mask.shape[0] > 1 else 0, 0]
        mask = mask[block, keys] if mask.shape[0] > 1 else mask[:, keys]
        scores = np.where(mask, scores, -np.inf)
    return scores


def errors(got: np.ndarray, want: np.ndarray) -> tuple[float, float]:
    """The largest error, and ‖got − want‖ / ‖want‖."""
    difference = got.astype(np.float64) - want
    return float(np.abs(difference).max()), float(np.linalg.norm(difference) / np.linalg.norm(want))
