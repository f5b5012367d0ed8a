"""ONNX: the operator ``Attention`` of opsets 23 to 25, as a function and for ONNX's reference evaluator.

``attention`` takes the operator's inputs and attributes by name. ``Attention`` takes the place of ONNX's own
implementation::

    onnx.reference.ReferenceEvaluator(model, new_ops=[qkv.onnx.Attention]).run(None, inputs)

This module reads inputs and attributes as the operator means them, and says the same in options of
``qkv.scaled_dot_product_attention`` and ``qkv.scores``, which compute everything. Causal order, windows and
lengths stay options: they never become matrices.

Source: https://onnx.ai/onnx/operators/onnx__Attention.html, as onnx 1.23 has it. That release corrected all
three opsets: causal order counts from the end of the cache, a row that may attend nothing is 0, and the modes
of ``qk_matmul_output`` are numbered in the order of computation.
"""

from typing import NamedTuple

import numpy as np

try:
    from onnx.reference.op_run import OpRun
except ImportError as error:
    raise ImportError("qkv.onnx needs onnx: pip install qkv[onnx]") from error

import qkv

__all__ = ["Attention", "AttentionOutputs", "attention"]

_DTYPES = ("float32", "float64", "float16", "bfloat16")
# What qk_matmul_output_mode counts.
_STAGES = ("scaled", "softcapped", "masked", "weights")
# The values of softmax_precision, as TensorProto numbers its types.
_PRECISIONS = {1: "FLOAT", 10: "FLOAT16", 11: "DOUBLE", 16: "BFLOAT16"}


class AttentionOutputs(NamedTuple):
    """What the operator puts out; ``qk_matmul_output`` is None unless it was asked for."""

    Y: np.ndarray
    present_key: np.ndarray
    present_value: np.ndarray
    qk_matmul_output: np.ndarray | None


def attention(
    Q,
    K,
    V,
    attn_mask=None,
    past_key=None,
    past_value=None,
    nonpad_kv_seqlen=None,
    *,
    is_causal=0,
    kv_num_heads=None,
    left_window_size=-1,
    q_num_heads=None,
    qk_matmul_output_mode=0,
    right_window_size=-1,
    scale=None,
    softcap=0.0,
    softmax_precision=None,
    return_qk_matmul_output=False,
):
    """The operator ``Attention``, with its names and opset 25's defaults.

    Q is (batch, q_num_heads, len_query, dim), K (batch, kv_num_heads, len, dim) and V (batch, kv_num_heads,
    len, dim_value), of float32, float64, float16 or bfloat16; V's type may be another than that of Q and K.
    Or each is (batch, len, heads · dim), and q_num_heads and kv_num_heads say how many heads that is. Query
    heads share keys and values in groups of neighbours.

    There are two kinds of cache. past_key (batch, kv_num_heads, len_past, dim) and past_value (batch,
    kv_num_heads, len_past, dim_value) stand before K and V. Or K and V are a whole cache, of which the first
    nonpad_kv_seqlen (batch,) keys count. Either way there are len_key keys. is_causal and the windows (-1 is
    no bound) go by positions: key j stands at j, and query i at len_past + i or, in a whole cache, at
    nonpad_kv_seqlen - len_query + i, the last query at the last key that counts.

    attn_mask broadcasts to (batch, q_num_heads, len_query, len_key). Booleans: True is "may attend". Other
    numbers are added to the scores. Keys after a mask's last column may not be attended. A row that may
    attend nothing is 0.

    softmax_precision is a lower bound: weights are computed in float32, or in float64 where inputs are or
    DOUBLE (11) is asked for.

    Returns ``AttentionOutputs``. Y has Q's type, and as many axes; present_key and present_value are all
    len_key keys and values, of four axes (without a past, views of K and V). With return_qk_matmul_output
    there are scores too, (batch, q_num_heads, len_query, len_key) of Q's type, and qk_matmul_output_mode says
    of which stage: 0, Q Kᵀ · scale; 1, after the softcap; 2, after the mask too, -∞ where a query may not
    attend; 3, the weights. Without them and a mask, memory grows with the lengths, not with their product.

    Raises TypeError for a wrong type, ValueError for a wrong shape or value.

    Source: https://onnx.ai/onnx/operators/onnx__Attention.html
    """
    _check_attributes(is_causal, qk_matmul_output_mode, softcap, softmax_precision)
    query, key, value = _query_key_value(Q, K, V, q_num_heads, kv_num_heads)
    if nonpad_kv_seqlen is not None and (past_key is not None or past_value is not None):
        raise ValueError("nonpad_kv_seqlen: got lengths beside a past, want one of the two")
    key, value, len_past = _with_past(key, value, past_key, past_value)
    lengths = _lengths(nonpad_kv_seqlen, key)
    window = _window(left_window_size, right_window_size)

    options = {
        "attn_mask": _mask(attn_mask, key, lengths),
        "scale": scale,
        "softcap": softcap or None,
        "enable_gqa": True,
        **_visibility(bool(is_causal), window, len_past, lengths, key),
    }
    working = _working_dtype(query, value, softmax_precision)
    arrays = [array.astype(working, copy=False) for array in (query, key, value)]
    stage = _STAGES[qk_matmul_output_mode] if return_qk_matmul_output else None
    output, matrix = _output_and_matrix(arrays, options, stage)
    output = output.astype(query.dtype, copy=False)
    matrix = None if matrix is None else matrix.astype(query.dtype, copy=False)
    return AttentionOutputs(_heads_together(output) if np.ndim(Q) == 3 else output, key, value, matrix)


def _output_and_matrix(arrays, options, stage):
    """The output, and the scores of a stage or the weights, if one is asked for."""
    if stage == "weights":
        return qkv.scaled_dot_product_attention(*arrays, **options, return_weights=True)
    matrix = None if stage is None else qkv.scores(*arrays, **options, stage=stage)
    return qkv.scaled_dot_product_attention(*arrays, **options), matrix


class Attention(OpRun):
    """The operator, for ``onnx.reference.ReferenceEvaluator(model, new_ops=[qkv.onnx.Attention])``.

    Inside a model's own functions the evaluator takes no new operators.
    """

    op_domain = ""

    def _run(self, *inputs, **attributes):
        node = self.onnx_node
        # The evaluator looks up an input without a name where it keeps outputs without one.
        inputs = [array if name else None for name, array in zip(node.input, inputs, strict=True)]
        if self.run_params["opsets"][""] < 24 and len(inputs) > 3:
            inputs[3] = _mask_of_opset_23(*inputs[1:5])
        wants_matrix = len(node.output) > 3 and node.output[3] != ""
        outputs = attention(*inputs, **attributes, return_qk_matmul_output=wants_matrix)
        return tuple(outputs if wants_matrix else outputs[:3])


# Attributes.


def _check_attributes(is_causal, qk_matmul_output_mode, softcap, softmax_precision):
    if is_causal not in (0, 1):
        raise ValueError(f"is_causal: got {is_causal}, want 0 or 1")
    if qk_matmul_output_mode not in range(len(_STAGES)):
        raise ValueError(f"qk_matmul_output_mode: got {qk_matmul_output_mode}, want 0, 1, 2 or 3")
    if not softcap >= 0:
        raise ValueError(f"softcap: got {softcap}, want a number above 0, or 0 for none")
    if softmax_precision is not None and softmax_precision not in _PRECISIONS:
        wanted = ", ".join(f"{number} ({name})" for number, name in _PRECISIONS.items())
        raise ValueError(f"softmax_precision: got {softmax_precision}, want one of {wanted}")


def _window(left_window_size, right_window_size):
    """Both bounds as the engine takes them, None for -1."""
    for name, size in (("left_window_size", left_window_size), ("right_window_size", right_window_size)):
        if size < -1:
            raise ValueError(f"{name}: got {size}, want a number of positions, or -1 for no bound")
    return tuple(None if size == -1 else size for size in (left_window_size, right_window_size))


# Queries, keys and values.


def _query_key_value(Q, K, V, q_num_heads, kv_num_heads):
    """Views of the three, (batch, heads, len, dim), that fit one another."""
    query = _heads_apart("Q", Q, "q_num_heads", q_num_heads)
    key = _heads_apart("K", K, "kv_num_heads", kv_num_heads)
    value = _heads_apart("V", V, "kv_num_heads", kv_num_heads)
    for name, array in (("K", K), ("V", V)):
        if np.ndim(array) != np.ndim(Q):
            raise ValueError(f"{name}: got {np.ndim(array)} axes, want {np.ndim(Q)}, as Q has")
    batch, query_heads, _, dim = query.shape
    _, key_heads, len_key, _ = key.shape
    if key.dtype != query.dtype:
        raise TypeError(f"K: got dtype {key.dtype}, want {query.dtype}, as Q has")
    if (key.shape[0], key.shape[3]) != (batch, dim):
        raise ValueError(f"K: got shape {key.shape}, want ({batch}, heads, len, {dim}), as Q has")
    if value.shape[:3] != key.shape[:3]:
        raise ValueError(f"V: got shape {value.shape}, want ({batch}, {key_heads}, {len_key}, dim), as K has")
    if key_heads == 0 or query_heads % key_heads:
        raise ValueError(f"K: got {key_heads} heads, want a number that divides the {query_heads} heads of Q")
    return query, key, value


def _heads_apart(name, array, attribute, num_heads):
    """A view, (batch, heads, len, dim), of an array of that shape or of (batch, len, heads · dim)."""
    array = _plain(name, array)
    if array.dtype.name not in _DTYPES:
        raise TypeError(f"{name}: got dtype {array.dtype}, want one of {', '.join(_DTYPES)}")
    if array.ndim == 4:
        if num_heads not in (None, array.shape[1]):
            raise ValueError(f"{attribute}: got {num_heads}, want {array.shape[1]}, as {name} has")
        return array
    if array.ndim != 3:
        wanted = "(batch, heads, len, dim) or (batch, len, heads · dim)"
        raise ValueError(f"{name}: got shape {array.shape}, want {wanted}")
    if num_heads is None:
        raise ValueError(f"{attribute}: got none, want how many heads the last axis of {name} holds")
    batch, length, hidden = array.shape
    if num_heads < 1 or hidden % num_heads:
        raise ValueError(f"{attribute}: got {num_heads}, want a divisor of {hidden}, the last axis of {name}")
    return array.reshape(batch, length, num_heads, hidden // num_heads).swapaxes(1, 2)


def _plain(name, array):
    """An array of NumPy's without a mask of its own, which would get lost."""
    if np.ma.isMaskedArray(array):
        raise TypeError(f"{name}: got a masked array, want a plain one (array.filled())")
    return np.asarray(array)


def _heads_together(array):
    """(batch, heads, len, dim) as (batch, len, heads · dim)."""
    batch, heads, length, dim = array.shape
    return array.swapaxes(1, 2).reshape(batch, length, heads * dim)


def _with_past(key, value, past_key, past_value):
    """All keys and values, and how many of them are past: those of the cache, then the new ones."""
    if past_key is None and past_value is None:
        return key, value, 0
    for name, past, other in (("past_key", past_key, "past_value"), ("past_value", past_value, "past_key")):
        if past is None:
            raise ValueError(f"{name}: got none beside {other}, want both or neither")
    past_key, past_value = np.asarray(past_key), np.asarray(past_value)
    for name, past, new in (("past_key", past_key, key), ("past_value", past_value, value)):
        batch, heads, _, dim = new.shape
        if past.dtype != new.dtype:
            raise TypeError(f"{name}: got dtype {past.dtype}, want {new.dtype}, as what it precedes has")
        if past.ndim != 4 or (*past.shape[:2], past.shape[3]) != (batch, heads, dim):
            raise ValueError(f"{name}: got shape {past.shape}, want ({batch}, {heads}, len_past, {dim})")
    len_past = past_key.shape[2]
    if past_value.shape[2] != len_past:
        raise ValueError(f"past_value: got {past_value.shape[2]} values, want {len_past}, as past_key has")
    return np.concatenate((past_key, key), axis=2), np.concatenate((past_value, value), axis=2), len_past


def _working_dtype(query, value, softmax_precision):
    """The type that a call is computed in, no narrower than any that is asked for."""
    names = {query.dtype.name, value.dtype.name}
    if "float64" in names or _PRECISIONS.get(softmax_precision) == "DOUBLE":
        return np.dtype(np.float64)
    return query.dtype if len(names) == 1 else np.dtype(np.float32)


# Which query may attend which key.


def _lengths(nonpad_kv_seqlen, key):
    """How many keys of each batch count, (batch,)."""
    if nonpad_kv_seqlen is None:
        return None
    lengths = np.asarray(nonpad_kv_seqlen)
    batch, _, len_key, _ = key.shape
    if lengths.dtype.kind not in "iu":
        raise TypeError(f"nonpad_kv_seqlen: got dtype {lengths.dtype}, want int64")
    if lengths.shape != (batch,):
        raise ValueError(f"nonpad_kv_seqlen: got shape {lengths.shape}, want ({batch},), one for each batch")
    if np.any((lengths < 0) | (lengths > len_key)):
        raise ValueError(f"nonpad_kv_seqlen: got {lengths.tolist()}, want 0 to {len_key}, the number of keys")
    return lengths


def _visibility(is_causal, window, len_past, lengths, key):
    """The engine's options for causal order, windows and lengths."""
    if lengths is None:
        return {"is_causal": is_causal, "query_offset": len_past, "window": window}
    # Bottom-right puts each batch's last query at its last key that counts. A prefix of all keys takes the
    # causal order away again, and leaves the positions to the windows.
    prefix = None if is_causal else key.shape[2]
    return {"causal": "bottom-right", "prefix": prefix, "key_lengths": lengths, "window": window}


def _mask(attn_mask, key, lengths):
    """The mask as the engine takes it: of booleans or floats, and as wide as there are keys."""
    if attn_mask is None:
        return None
    mask = _plain("attn_mask", attn_mask)
    if mask.dtype.kind in "iu":
        mask = mask.astype(np.float64)
    if mask.dtype != np.bool_ and mask.dtype.name not in _DTYPES:
        raise TypeError(f"attn_mask: got dtype {mask.dtype}, want bool, or numbers to add to the scores")
    len_key = key.shape[2]
    columns = mask.shape[-1] if mask.ndim else len_key
    if lengths is not None and columns < lengths.max(initial=0):
        wanted = f"at least {lengths.max()}, the largest of nonpad_kv_seqlen"
        raise ValueError(f"attn_mask: got {columns} columns, want {wanted}")
    if columns >= len_key:
        return mask
    closed = False if mask.dtype == np.bool_ else -np.inf
    return np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, len_key - columns)], constant_values=closed)


def _mask_of_opset_23(K, V, attn_mask, past_key=None):
    """A mask of one column, repeated for all keys; later opsets take it to end after the first key."""
    if attn_mask is None or attn_mask.shape[-1:] != (1,):
        return attn_mask
    len_key = K.shape[-2] + (0 if past_key is None else past_key.shape[-2])
    return np.broadcast_to(attn_mask, (*attn_mask.shape[:-1], len_key))
