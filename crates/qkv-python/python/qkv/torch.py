"""Torch: qkv inside graphs, and in the place of torch's own function.

In eager mode ``qkv.scaled_dot_product_attention`` takes tensors as they are. Graphs cannot look into it, so
this module has an operator, ``torch.ops.qkv.attention``, with a fake that knows its shapes. ``attention``
calls it; once this module is imported, ``torch.compile`` does so too wherever it meets
``qkv.scaled_dot_product_attention``.

``sdpa()`` and ``install()`` put qkv in the place of ``torch.nn.functional.scaled_dot_product_attention``.
Their limits: a name that was bound before with ``from torch.nn.functional import
scaled_dot_product_attention`` keeps torch's function, and so does the C++ inference path of
``nn.TransformerEncoder``, which never calls it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator

try:
    import torch
except ImportError as error:
    raise ImportError("qkv.torch needs torch: pip install qkv[torch]") from error

from torch._subclasses import FakeTensor

import qkv
from qkv._results import OutputAndLse, OutputAndWeights, OutputWeightsAndLse

__all__ = [
    "attention",
    "install",
    "is_installed",
    "reset_stats",
    "scaled_dot_product_attention",
    "sdpa",
    "stats",
    "uninstall",
]

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_TYPES = (torch.Tensor, torch.nn.Parameter)
_torch_sdpa = torch.nn.functional.scaled_dot_product_attention


# The operator. Tensors may not be keyword-only in a schema, and a pair is no argument type.


@torch.library.custom_op("qkv::attention", mutates_args=(), device_types="cpu")
def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    key_lengths: torch.Tensor | None = None,
    prefix: torch.Tensor | None = None,
    query_segment_ids: torch.Tensor | None = None,
    key_segment_ids: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    *,
    is_causal: bool = False,
    causal: str | None = None,
    query_offset: int | None = None,
    key_offset: int = 0,
    window_left: int | None = None,
    window_right: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    enable_gqa: bool = False,
    layout: str = "bhsd",
    return_weights: bool = False,
    return_lse: bool = False,
) -> list[torch.Tensor]:
    window = None if window_left is None and window_right is None else (window_left, window_right)
    segment_ids = None if query_segment_ids is None else (query_segment_ids, key_segment_ids)
    # Whoever records gradients is told on the way back: see `_no_gradients`.
    with torch.no_grad():
        result = qkv.scaled_dot_product_attention(  # type: ignore[call-overload]
            query,
            key,
            value,
            attn_mask,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
            causal=causal,
            prefix=prefix,
            query_offset=query_offset,
            key_offset=key_offset,
            softcap=softcap,
            window=window,
            key_lengths=key_lengths,
            segment_ids=segment_ids,
            alibi_slopes=alibi_slopes,
            sinks=sinks,
            layout=layout,
            return_weights=return_weights,
            return_lse=return_lse,
        )
    return list(result) if return_weights or return_lse else [result]


@_attention.register_fake
def _fake(
    query, key, value, *_tensors, enable_gqa=False, layout="bhsd", return_weights=False, return_lse=False, **_
):
    head_axis, len_axis = (-3, -2) if layout == "bhsd" else (-2, -3)
    rank = max(query.dim(), key.dim(), value.dim())
    if rank == 2:
        lead, len_query, len_key = (), query.shape[0], key.shape[0]
    else:
        each = [tensor if tensor.dim() > 2 else tensor[None] for tensor in (query, key, value)]
        batch = torch.broadcast_shapes(*(tensor.shape[:-3] for tensor in each))
        heads = [tensor.shape[head_axis] for tensor in each]
        # Without groups, one query head serves for all.
        shared = next((extent for extent in heads if extent != 1), 1)
        lead = (*batch, heads[0] if enable_gqa else shared)
        len_query, len_key = (tensor.shape[len_axis] for tensor in each[:2])
    shape = (*lead, len_query, value.shape[-1])
    if layout == "bshd":
        shape = (*lead[:-1], len_query, lead[-1], value.shape[-1])
    results = [query.new_empty(shape)]
    if return_weights:
        results.append(query.new_empty((*lead, len_query, len_key)))
    if return_lse:
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        results.append(query.new_empty((*lead, len_query), dtype=wide))
    return results


def _no_gradients(_context, *_gradients):
    raise NotImplementedError(
        "qkv does not compute gradients yet: call it under torch.no_grad(), or on detached tensors"
    )


_attention.register_autograd(_no_gradients)


def attention(
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
    *,
    window=None,
    key_lengths=None,
    prefix=None,
    segment_ids=None,
    alibi_slopes=None,
    sinks=None,
    out=None,
    seed=None,
    threads=None,
    **options,
):
    """``qkv.scaled_dot_product_attention`` as an operator of torch's: for graphs, and for ``torch.export``.

    Takes its arguments but ``out`` and ``threads``, and returns the same. Raises NotImplementedError for
    dropout, and on the way back where gradients are recorded.
    """
    if dropout_p:
        raise NotImplementedError(f"dropout_p: got {dropout_p}, want 0.0: qkv does not drop weights yet")
    if out is not None or threads is not None:
        raise TypeError(
            "out and threads: got one of them in a graph, which has no place for it; want neither"
        )
    window_left, window_right = (None, None) if window is None else window
    ids = segment_ids if isinstance(segment_ids, tuple) else (segment_ids, segment_ids)
    options.update(is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    results = torch.ops.qkv.attention(
        query,
        key,
        value,
        attn_mask,
        key_lengths=_tensor(key_lengths),
        prefix=_tensor(prefix),
        query_segment_ids=_tensor(ids[0]),
        key_segment_ids=_tensor(ids[1]),
        alibi_slopes=_tensor(alibi_slopes),
        sinks=_tensor(sinks),
        window_left=window_left,
        window_right=window_right,
        # None is as if it were left out.
        **{name: value for name, value in options.items() if value is not None},
    )
    if options.get("return_weights") and options.get("return_lse"):
        return OutputWeightsAndLse(*results)
    if options.get("return_weights"):
        return OutputAndWeights(*results)
    return OutputAndLse(*results) if options.get("return_lse") else results[0]


torch.compiler.substitute_in_graph(qkv.scaled_dot_product_attention, skip_signature_check=True)(attention)


def _tensor(numbers):
    """A number for all, or one each, as an operator takes them."""
    if numbers is None or isinstance(numbers, torch.Tensor):
        return numbers
    if isinstance(numbers, int):
        return torch.tensor([numbers])
    is_list_of_floats = isinstance(numbers, (list, tuple)) and any(isinstance(x, float) for x in numbers)
    return torch.as_tensor(numbers, dtype=torch.float64 if is_list_of_floats else None)


# In the place of torch's function.


class _Stats:
    """How often calls were served by qkv, and how often they stayed with torch, by reason."""

    def __init__(self):
        self.lock = threading.Lock()
        self.served = 0
        self.stayed = Counter()

    def count(self, reason):
        with self.lock:
            if reason is None:
                self.served += 1
            else:
                self.stayed[reason] += 1


_stats = _Stats()


def stats() -> dict:
    """How many calls of torch's function qkv has served, and how many stayed with torch, by reason.

    Returns ``{"qkv": number, "torch": {reason: number}}``, counted while qkv was in place; calls inside
    graphs are not counted.
    """
    with _stats.lock:
        return {"qkv": _stats.served, "torch": dict(_stats.stayed)}


def reset_stats() -> None:
    """Sets all of ``stats()`` to 0."""
    with _stats.lock:
        _stats.served = 0
        _stats.stayed.clear()


class _Place:
    """Who holds qkv in the place of torch's function: ``install()``, and ``sdpa()`` blocks of any thread."""

    def __init__(self):
        self.lock = threading.Lock()
        self.holders = 0
        self.is_installed = False
        self.before = None

    def hold(self, count):
        with self.lock:
            if self.holders == 0 and count > 0:
                self.before = torch.nn.functional.scaled_dot_product_attention
                torch.nn.functional.scaled_dot_product_attention = scaled_dot_product_attention
            self.holders += count
            # A function that another library has put over this one stays.
            if self.holders == 0 and count < 0 and is_installed():
                torch.nn.functional.scaled_dot_product_attention = self.before


_place = _Place()


def install() -> None:
    """Puts qkv in the place of ``torch.nn.functional.scaled_dot_product_attention``, for all threads, until
    ``uninstall()``.

    Calls that qkv does not compute stay with torch: other devices, layouts and dtypes, tensors that need
    gradients, dropout, and calls under torch's transforms and tracers. ``stats()`` says how many, and why.
    """
    if not _place.is_installed:
        _place.is_installed = True
        _place.hold(1)


def uninstall() -> None:
    """Takes ``install()`` back."""
    if _place.is_installed:
        _place.is_installed = False
        _place.hold(-1)


def is_installed() -> bool:
    """Whether qkv is in the place of torch's function."""
    return torch.nn.functional.scaled_dot_product_attention is scaled_dot_product_attention


@contextlib.contextmanager
def sdpa() -> Iterator[None]:
    """``install()`` for a ``with`` block, in all threads; after the last block torch's function is back."""
    _place.hold(1)
    try:
        yield
    finally:
        _place.hold(-1)


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """What ``install()`` puts in place: torch's function, computed by qkv where it can be.

    Shapes, defaults and results are torch's; see ``torch.nn.functional.scaled_dot_product_attention``, and
    PARITY.md for what differs.
    """
    tensors = (query, key, value, attn_mask)
    reason = _reason_to_stay(tensors, dropout_p)
    in_graph = torch.compiler.is_compiling()
    if not in_graph:
        _stats.count(reason)
    if reason is not None:
        return _torch_sdpa(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value, attn_mask = (_cast(tensor, dtype) for tensor in tensors)
    compute = attention if in_graph else qkv.scaled_dot_product_attention
    return compute(query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa)


def _cast(tensor, dtype):
    """As torch's autocast does: floats alone, and no float64."""
    is_cast = tensor is not None and tensor.is_floating_point() and tensor.dtype != torch.float64
    return tensor.to(dtype) if is_cast else tensor


def _reason_to_stay(tensors, dropout_p):
    """Why a call is torch's; None if it is qkv's."""
    if dropout_p != 0.0:
        return "dropout"
    for tensor in tensors:
        if tensor is None:
            continue
        # A graph is traced with fakes.
        if type(tensor) not in _TYPES and not (torch.compiler.is_compiling() and type(tensor) is FakeTensor):
            return "tensor type"
        if not tensor.is_cpu:
            return "device"
        if tensor.requires_grad and torch.is_grad_enabled():
            return "gradients"
        if tensor.layout is not torch.strided or tensor.is_nested:
            return "layout"
    if tensors[0].dtype not in _DTYPES:
        return "dtype"
    if not torch.compiler.is_compiling() and _is_watched():
        return "transform"
    return None


def _is_watched():
    """Whether torch looks into the call: forward derivatives, vmap and its like, a tracer, a mode."""
    return (
        torch.autograd.forward_ad._current_level >= 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.jit.is_tracing()
    )
