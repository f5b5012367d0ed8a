"""Attention and its gradients as torch's operators: what graphs hold and autograd differentiates."""

import numpy as np
import torch

import qkv
from qkv import _qkv
from qkv._results import OutputAndLse, OutputAndWeights, OutputWeightsAndLse

# Tensors may not be keyword-only in a schema, and a pair is no argument type. First those with gradients.
_DIFFERENTIABLE = ("query", "key", "value", "attn_mask", "sinks")
_NAMES = (
    *_DIFFERENTIABLE,
    *("key_lengths", "prefix", "alibi_slopes", "seed", "query_segment_ids", "key_segment_ids"),
)
_TENSORS = ", ".join(
    f"Tensor {name}" if name in ("query", "key", "value") else f"Tensor? {name}=None" for name in _NAMES
)
_OPTIONS = (
    "float dropout_p=0.0, bool is_causal=False, float? scale=None, bool enable_gqa=False, "
    "str? causal=None, int? query_offset=None, int key_offset=0, float? softcap=None, "
    'int? window_left=None, int? window_right=None, str layout="bhsd", int? threads=None'
)
_WANTED = "bool return_weights=False, bool return_lse=False, bool return_row_stats=False"


def _refuse_forward_derivatives():
    """The operator has none, and torch would take it for a constant."""
    if torch.autograd.forward_ad._current_level >= 0:
        raise NotImplementedError(
            "forward derivatives of qkv.attention are not computed; want those of a loss"
        )


def _forward(*tensors, return_weights=False, return_lse=False, return_row_stats=False, **options):
    _refuse_forward_derivatives()
    wanted = {"return_weights": return_weights, "return_lse": return_lse}
    # Torch records gradients by itself: see `_gradients`.
    with torch.no_grad():
        output, weights, lse, row_stats = _qkv.forward(*tensors[:3], **wanted, **_named(tensors, options))
    results = [output, weights, lse, *(row_stats if return_row_stats else ())]
    return [result for result in results if result is not None]


def _named(tensors, options):
    """The options of an operator, as the package's functions take them beside query, key and value."""
    named = dict(zip(_NAMES[3:], tensors[3:], strict=False)) | options
    ids = (named.pop("query_segment_ids", None), named.pop("key_segment_ids", None))
    window = (named.pop("window_left", None), named.pop("window_right", None))
    named["segment_ids"] = None if all(own is None for own in ids) else ids
    named["window"] = None if window == (None, None) else window
    if named.get("seed") is not None:
        named["seed"] = named["seed"].item()
    return named


_attention = torch.library.custom_op(
    "qkv::attention",
    _forward,
    mutates_args=(),
    device_types="cpu",
    schema=f"({_TENSORS}, *, {_OPTIONS}, {_WANTED}) -> Tensor[]",
)


@_attention.register_fake
def _fake_attention(
    query,
    key,
    value,
    *_tensors,
    enable_gqa=False,
    layout="bhsd",
    return_weights=False,
    return_lse=False,
    return_row_stats=False,
    **_,
):
    _refuse_forward_derivatives()
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
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    results = [query.new_empty(shape)]
    if return_weights:
        results.append(query.new_empty((*lead, len_query, len_key)))
    of_rows = return_lse + 2 * return_row_stats
    return results + [query.new_empty((*lead, len_query), dtype=wide) for _ in range(of_rows)]


def _backward(returned, d_output, d_lse, wanted, *tensors, **options):
    """The gradients that are wanted, in the order of `_DIFFERENTIABLE`."""
    if d_output is None:
        d_output = torch.zeros((), dtype=returned[0].dtype).expand_as(returned[0])
    with torch.no_grad():
        gradients = _qkv.backward(
            tensors[:3], tuple(returned), (d_output, d_lse), wanted, **_named(tensors, options)
        )
    # Those of the mask and of sinks are as wide as sums are.
    return [
        gradient.to(tensor.dtype)
        for gradient, tensor in zip(gradients, tensors, strict=False)
        if gradient is not None
    ]


_attention_backward = torch.library.custom_op(
    "qkv::attention_backward",
    _backward,
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor[] returned, Tensor? d_output, Tensor? d_lse, bool[] wanted, "
    f"{_TENSORS}, *, {_OPTIONS}) -> Tensor[]",
)


@_attention_backward.register_fake
def _fake_backward(_returned, _d_output, _d_lse, wanted, *tensors, **_options):
    return [
        tensor.new_empty(tensor.shape)
        for tensor, is_wanted in zip(tensors, wanted, strict=False)
        if is_wanted
    ]


def _keep(ctx, inputs, keyword_only_inputs, output):
    """Keeps what gradients are computed from: the tensors, the output, and maximum and sum of each row."""
    options = dict(keyword_only_inputs)
    ctx.has_weights, ctx.has_lse, has_row_stats = (
        options.pop(f"return_{name}", False) for name in ("weights", "lse", "row_stats")
    )
    ctx.options = options
    # None says of a result that nothing depends on it.
    ctx.set_materialize_grads(False)
    row_stats = output[-2:] if has_row_stats else ()
    ctx.mark_non_differentiable(*row_stats)
    ctx.save_for_backward(*inputs, *([output[0], *row_stats] if has_row_stats else ()))
    ctx.count = len(inputs)


def _gradients(ctx, arrived):
    saved = ctx.saved_tensors
    tensors, returned = saved[: ctx.count], saved[ctx.count :]
    if not returned:
        raise NotImplementedError(
            "return_row_stats: got False where gradients are recorded, want True (see qkv.torch.attention)"
        )
    if any(map(_is_batched, arrived)):
        raise NotImplementedError(
            "batched gradients (torch.vmap of the way back) are not computed; want vectorize=False, or "
            "is_grads_batched=False"
        )
    if ctx.has_weights and arrived[1] is not None:
        raise NotImplementedError(
            "weights: got a loss that depends on those returned, whose gradient is not computed; want one of "
            "the output and the lse (weights.detach())"
        )
    # Arguments that were left out at the end need none.
    needed = dict(zip(_NAMES, ctx.needs_input_grad, strict=False))
    for name in _NAMES[len(_DIFFERENTIABLE) :]:
        if needed.get(name):
            raise _no_gradient(name)
    wanted = [needed.get(name, False) for name in _DIFFERENTIABLE]
    d_lse = arrived[1 + ctx.has_weights] if ctx.has_lse else None
    backward = torch.ops.qkv.attention_backward if _is_seen() or torch.is_grad_enabled() else _backward
    computed = iter(backward(list(returned), arrived[0], d_lse, wanted, *tensors, **ctx.options))
    gradients = [next(computed) if is_wanted else None for is_wanted in wanted]
    return (*gradients, *[None] * (ctx.count - len(wanted)))


def _is_batched(gradient):
    functorch = torch._C._functorch
    return gradient is not None and (
        functorch.is_batchedtensor(gradient) or functorch.is_legacy_batchedtensor(gradient)
    )


def _no_gradient(name):
    return NotImplementedError(
        f"{name}: got a tensor that requires gradients, which are not computed; want {name}.detach()"
    )


_attention.register_autograd(_gradients, setup_context=_keep)


def _no_gradients_of_gradients(_ctx, *_arrived):
    raise NotImplementedError(
        "gradients of gradients are not computed; want create_graph=False, or torch's function outside sdpa()"
    )


_attention_backward.register_autograd(_no_gradients_of_gradients)


class _Recorded(torch.autograd.Function):
    """The operator, in eager mode: torch's way to it takes longer than many a call."""

    @staticmethod
    def forward(ctx, *tensors_and_options):
        *tensors, options = tensors_and_options
        results = _forward(*tensors, **options)
        _keep(ctx, tensors, options, results)
        return tuple(results)

    @staticmethod
    def backward(ctx, *arrived):
        return (*_gradients(ctx, arrived), None)


def _is_seen():
    """Whether a graph is made of calls, or torch looks into them in eager mode."""
    return torch.compiler.is_compiling() or is_watched()


def is_watched():
    """Whether torch looks into calls: forward derivatives, vmap and its like, a tracer, a mode."""
    return (
        torch.autograd.forward_ad._current_level >= 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.jit.is_tracing()
    )


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
    causal=None,
    prefix=None,
    query_offset=None,
    key_offset=0,
    softcap=None,
    window=None,
    key_lengths=None,
    segment_ids=None,
    alibi_slopes=None,
    sinks=None,
    layout="bhsd",
    return_weights=False,
    return_lse=False,
    seed=None,
    out=None,
    threads=None,
):
    """``qkv.scaled_dot_product_attention`` as an operator of torch's: for gradients, graphs and exports.

    Takes its arguments but ``out``, and returns the same. Gradients are those of ``query``, ``key``,
    ``value``, a float ``attn_mask`` and ``sinks``, through the output and the lse; memory is linear, but for
    a mask's own gradient. The seed of dropout is drawn from torch's generator unless it is given.

    Raises NotImplementedError for other arguments that require gradients, and on the way back for gradients
    through the weights and gradients of gradients.

    Source: Dao et al., "FlashAttention" (2022), appendix B, for gradients from recomputed weights.
    """
    if not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None:
        raise NotImplementedError(
            "query: got a tensor of a transform (torch.func, torch.vmap), want a plain one, and its gradient "
            "by torch.autograd"
        )
    if out is not None:
        raise TypeError(
            "out: got one in a graph or where gradients are recorded, which have no place for it; want None"
        )
    options = dict(
        dropout_p=dropout_p,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
        causal=causal,
        query_offset=query_offset,
        key_offset=key_offset,
        softcap=softcap,
        layout=layout,
        threads=threads,
        return_weights=return_weights,
        return_lse=return_lse,
    )
    is_seen = _is_seen()
    if not is_seen:
        # The operator's own errors name no argument.
        others = {"prefix": prefix, "window": window, "key_lengths": key_lengths, "segment_ids": segment_ids}
        others |= {"alibi_slopes": alibi_slopes, "sinks": sinks, "seed": seed}
        with torch.no_grad():
            _qkv.check(query, key, value, attn_mask, **others, **options)
    elif isinstance(dropout_p, bool) or isinstance(scale, bool):
        raise TypeError(f"{'scale' if isinstance(scale, bool) else 'dropout_p'}: got bool, want a number")
    # None is as if it were left out.
    options = {name: option for name, option in options.items() if option is not None}
    for name, option in {"alibi_slopes": alibi_slopes, **options}.items():
        if _records_gradients(option):
            raise _no_gradient(name)
    if window is not None:
        options["window_left"], options["window_right"] = window
    # The compiled part draws by the same rule, for calls that come there without this one.
    if seed is None and 0.0 < (dropout_p or 0.0) <= 1.0:
        seed = torch.randint(2**63 - 1, (1,))
    ids = segment_ids if isinstance(segment_ids, tuple) else (segment_ids, segment_ids)
    differentiable = tuple(map(_tensor, (query, key, value, attn_mask, sinks)))
    tensors = differentiable + tuple(map(_tensor, (key_lengths, prefix, alibi_slopes, seed, *ids)))
    records_gradients = any(map(_records_gradients, differentiable))
    options["return_row_stats"] = records_gradients
    if records_gradients and not is_seen:
        results = _Recorded.apply(*tensors, options)
    else:
        results = torch.ops.qkv.attention(*tensors, **options)
    if return_weights and return_lse:
        return OutputWeightsAndLse(*results[:3])
    if return_weights:
        return OutputAndWeights(*results[:2])
    return OutputAndLse(*results[:2]) if return_lse else results[0]


def _records_gradients(argument):
    return isinstance(argument, torch.Tensor) and argument.requires_grad and torch.is_grad_enabled()


def _tensor(numbers):
    """A number for all, or one each, as an operator takes them.

    Other arrays are copied, since torch does not see who writes to them before the way back.
    """
    if numbers is None or isinstance(numbers, torch.Tensor):
        return numbers
    if isinstance(numbers, int):
        return torch.tensor([numbers])
    if isinstance(numbers, np.ndarray):
        return torch.from_numpy(numbers.copy())
    is_list_of_floats = isinstance(numbers, (list, tuple)) and any(isinstance(x, float) for x in numbers)
    return torch.as_tensor(numbers, dtype=torch.float64 if is_list_of_floats else None)


# Graphs cannot look into the compiled function: where they meet it, they take the operator.
torch.compiler.substitute_in_graph(qkv.scaled_dot_product_attention, skip_signature_check=True)(attention)
