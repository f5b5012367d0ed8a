"""Torch: qkv inside graphs, and in the place of torch's own function.

In eager mode ``qkv.scaled_dot_product_attention`` takes tensors as they are. Neither graphs nor autograd can
look into it, so this module has an operator, ``torch.ops.qkv.attention``, with a fake that knows its shapes
and a formula for its gradients. ``attention`` calls it; ``qkv.scaled_dot_product_attention`` does so where
gradients are recorded, and once this module is imported, as such a call does, ``torch.compile`` does
wherever it meets that function.

``sdpa()`` and ``install()`` put qkv in the place of ``torch.nn.functional.scaled_dot_product_attention``.
Their limits: a name that was bound before with ``from torch.nn.functional import
scaled_dot_product_attention`` keeps torch's function. The C++ inference path of ``nn.TransformerEncoder``
never calls it, nor does ``nn.MultiheadAttention`` with ``need_weights=True``.
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
from qkv._operator import attention, is_watched

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

    Models train through it, with dropout. Calls that qkv does not compute stay with torch: other devices,
    layouts and dtypes, and calls under torch's transforms and tracers. ``stats()`` says how many, and why.
    What shows only on the way back raises NotImplementedError then: gradients of gradients and batched ones.
    Threads are those of ``qkv.set_num_threads``, not torch's.
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
    reason = _reason_to_stay(tensors)
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
    return compute(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _cast(tensor, dtype):
    """As torch's autocast does: floats alone, and no float64."""
    is_cast = tensor is not None and tensor.is_floating_point() and tensor.dtype != torch.float64
    return tensor.to(dtype) if is_cast else tensor


def _reason_to_stay(tensors):
    """Why a call is torch's; None if it is qkv's."""
    for tensor in tensors:
        if tensor is None:
            continue
        # A graph is traced with fakes.
        if type(tensor) not in _TYPES and not (torch.compiler.is_compiling() and type(tensor) is FakeTensor):
            return "tensor type"
        if not tensor.is_cpu:
            return "device"
        if tensor.layout is not torch.strided or tensor.is_nested:
            return "layout"
    if tensors[0].dtype not in _DTYPES:
        return "dtype"
    if not torch.compiler.is_compiling() and is_watched():
        return "transform"
    return None
