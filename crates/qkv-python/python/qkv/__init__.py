"""Scaled dot-product attention on CPUs, softmax(Q Kᵀ · scale + mask) V: exact, linear in memory, open to
inspection.

``attention`` is the lesson's own function; ``scaled_dot_product_attention`` has torch's signature and the
engine's options by keyword. Both take NumPy arrays, torch tensors in the CPU's memory, and all else that has
DLPack or the buffer protocol, of any strides, without copies, and return the kind that came in.

``Recording`` opens a file of a model's queries, keys and values, which ``qkv.transformers.record`` makes.

``qkv.torch``, ``qkv.transformers`` and ``qkv.onnx`` are imported by name; nothing here imports their
libraries.
"""

from qkv._qkv import (
    Partial,
    Plan,
    __version__,
    attention,
    dropout_mask,
    explain,
    get_num_threads,
    merge,
    partial,
    plan,
    reference,
    scaled_dot_product_attention,
    scores,
    set_num_threads,
    simd,
)
from qkv._results import AttentionResult
from qkv.recording import Recording

__all__ = [
    "AttentionResult",
    "Partial",
    "Plan",
    "Recording",
    "__version__",
    "attention",
    "dropout_mask",
    "explain",
    "get_num_threads",
    "merge",
    "partial",
    "plan",
    "reference",
    "scaled_dot_product_attention",
    "scores",
    "set_num_threads",
    "simd",
]
