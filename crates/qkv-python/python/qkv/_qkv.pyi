# What each function takes and returns; its docstring says what that means.

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict, TypeVar, final, overload

from numpy import bool_, float64
from numpy.typing import NDArray
from typing_extensions import Unpack

from qkv._results import AttentionResult

__all__ = [
    "ArrayFile",
    "Explored",
    "Partial",
    "Plan",
    "Serving",
    "StreamWriter",
    "__version__",
    "attention",
    "backward",
    "check",
    "dropout_mask",
    "explain",
    "forward",
    "get_num_threads",
    "merge",
    "partial",
    "plan",
    "png",
    "reference",
    "run_command",
    "scaled_dot_product_attention",
    "scores",
    "set_num_threads",
    "simd",
    "write_file",
]
__version__: str

# A NumPy array, a tensor, or anything else with DLPack or the buffer protocol; results are of its kind.
_Array = TypeVar("_Array")
_Counts = int | Sequence[int] | Any
_Causal = Literal["top-left", "bottom-right"]
_Layout = Literal["bhsd", "bshd"]
_Window = tuple[int | None, int | None]

class _Options(TypedDict, total=False):
    causal: _Causal | None
    prefix: _Counts | None
    query_offset: int | None
    key_offset: int
    softcap: float | None
    window: _Window | None
    key_lengths: _Counts | None
    segment_ids: Any
    alibi_slopes: Any
    layout: _Layout
    seed: int | None
    threads: int | None

class _WithSinks(_Options, total=False):
    sinks: Any

class _Returning(_WithSinks, total=False):
    return_weights: bool
    return_lse: bool

class _Scores(_WithSinks, total=False):
    stage: Literal["raw", "scaled", "softcapped", "masked", "weights"]

class _Shown(_WithSinks, total=False):
    batch: int
    head: int
    queries: tuple[int, int] | None
    keys: tuple[int, int] | None
    row: int | None
    tokens: Sequence[str] | None
    print: bool

class _Backward(_WithSinks, total=False):
    attn_mask: Any
    dropout_p: float
    is_causal: bool
    scale: float | None
    enable_gqa: bool

def attention(Q: _Array, K: Any, V: Any, mask: Any = None) -> AttentionResult[_Array]: ...
@overload
def scaled_dot_product_attention(
    query: _Array,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    causal: _Causal | None = None,
    prefix: _Counts | None = None,
    query_offset: int | None = None,
    key_offset: int = 0,
    softcap: float | None = None,
    window: _Window | None = None,
    key_lengths: _Counts | None = None,
    segment_ids: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    layout: _Layout = "bhsd",
    return_weights: Literal[False] = False,
    return_lse: Literal[False] = False,
    seed: int | None = None,
    out: Any = None,
    threads: int | None = None,
) -> _Array: ...
@overload
def scaled_dot_product_attention(
    query: _Array,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    causal: _Causal | None = None,
    prefix: _Counts | None = None,
    query_offset: int | None = None,
    key_offset: int = 0,
    softcap: float | None = None,
    window: _Window | None = None,
    key_lengths: _Counts | None = None,
    segment_ids: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    layout: _Layout = "bhsd",
    return_weights: bool = False,
    return_lse: bool = False,
    seed: int | None = None,
    out: Any = None,
    threads: int | None = None,
) -> AttentionResult[_Array]: ...
def forward(
    query: _Array,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **options: Unpack[_Returning],
) -> tuple[_Array, _Array | None, _Array | None, tuple[_Array, _Array]]: ...
def backward(
    arrays: tuple[_Array, Any, Any],
    returned: tuple[Any, Any, Any],
    arrived: tuple[Any, Any | None],
    wanted: Sequence[bool],
    **options: Unpack[_Backward],
) -> list[_Array | None]: ...
def check(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **options: Unpack[_Returning],
) -> None: ...
def dropout_mask(
    seed: int, shape: Sequence[int], dropout_p: float, *, query_offset: int = 0, key_offset: int = 0
) -> NDArray[bool_]: ...
def partial(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **options: Unpack[_Options],
) -> Partial: ...
@overload
def merge(*partials: Partial, sinks: Any = None, return_lse: Literal[False] = False) -> Any: ...
@overload
def merge(*partials: Partial, sinks: Any = None, return_lse: bool = False) -> AttentionResult[Any]: ...
def plan(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **options: Unpack[_WithSinks],
) -> Plan: ...
def reference(
    query: _Array,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **options: Unpack[_Returning],
) -> _Array | AttentionResult[_Array]: ...
def scores(
    query: _Array,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **options: Unpack[_Scores],
) -> _Array: ...
def explain(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **options: Unpack[_Shown],
) -> dict[str, Any]: ...
def write_file(path: str | PathLike[str], bytes: bytes) -> None: ...
def png(svg: str, rows: int, columns: int) -> bytes: ...
def run_command(arguments: Sequence[str]) -> int: ...
def simd() -> Literal["avx512", "avx2", "portable"]: ...
def set_num_threads(n: int) -> None: ...
def get_num_threads() -> int: ...

@final
class ArrayFile:
    def __new__(cls, path: str | PathLike[str]) -> ArrayFile: ...
    def names(self) -> list[str]: ...
    def copy(self, path: str | PathLike[str]) -> None: ...

# Whoever calls gives what a user gave: what is none of these is refused by name.
@final
class Explored:
    def __new__(cls, file: ArrayFile) -> Explored: ...
    @property
    def warnings(self) -> list[str]: ...
    def heads(self, batch: int, first_keys: int) -> list[dict[str, Any]]: ...
    def query(self, place: tuple[int, int, int], query: int, count: int) -> dict[str, Any]: ...
    def key(self, place: tuple[int, int, int], key: int, count: int) -> dict[str, Any]: ...
    def map(
        self,
        place: tuple[int, int, int],
        of: str,
        pool: str,
        size: int,
        queries: tuple[int, int] | None,
        keys: tuple[int, int] | None,
        picture: bool,
    ) -> tuple[NDArray[float64], str | None]: ...
    def page(self) -> str: ...
    def serve(self) -> Serving: ...

@final
class Serving:
    @property
    def url(self) -> str: ...

@final
class Partial:
    @property
    def key_offset(self) -> int: ...
    @property
    def len_key(self) -> int: ...
    @property
    def lse(self) -> Any: ...

@final
class Plan:
    def to_dict(self) -> dict[str, Any]: ...

@final
class StreamWriter:
    def __new__(cls, path: str | PathLike[str]) -> StreamWriter: ...
    def push(self, name: str, array: Any) -> None: ...
    def discard(self) -> None: ...
    def finish(self, metadata: Mapping[str, str], names: Mapping[str, str] = {}) -> None: ...
