"""``attn_implementation="qkv"`` for Transformers: the engine computes the attention of its models.

::

    import qkv.transformers

    qkv.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="qkv")

``register`` adds two functions. ``qkv_attention_forward`` computes; ``qkv_mask`` says which query may attend
which key. Without the second, Transformers would give the first no mask at all, neither causal order nor
padding. Causal order, padding, windows, chunks and packed sequences, together or alone, are a few numbers for
each position. Any other mask function of a model becomes a dense mask, made by Transformers' ``sdpa_mask``.

Left to Transformers: models, caches and outputs. Left to ``qkv.scaled_dot_product_attention``: all
computation, and the checks of shapes, types and devices.

Limits:

- Inference only. Dropout, or a tensor that requires gradients while they are enabled, raises
  ``NotImplementedError``; so does ``torch.jit.trace``.
- ``output_attentions=True`` as an argument of a call, of ``generate`` too, gives the weights of that very
  call. In the configuration, Transformers refuses it beside any attention but its eager one: when a
  configuration is made, loaded or saved with both, and when it is set after ``attn_implementation``. Set
  before, it works as in a call.
- A query that may attend nothing, such as one of left padding, gives 0, and weights of 0, as sdpa does; eager
  attention gives the mean of all values.
- With attention sinks, the weights are what the sinks leave to the keys, as in GPT-OSS. The eager attention
  of GraniteSWA returns weights without its sinks.
- A model that computes with its mask raises ``NotImplementedError``: DeepSeek-V4, and models that do not use
  the attention interface, such as BLOOM and MPT. So do sparse indices (DeepSeek-V3.2) and sinks for each
  query (Inkling 2). A model that uses neither the interface nor these masks computes as it always did.
- Under ``torch.autocast``, models mix the types of queries and values, which raises ``TypeError``.
- ``torch.compile`` breaks its graph at each mask and each attention.
"""

import inspect
from collections.abc import Callable, Iterator

try:
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import (
        and_masks,
        bidirectional_mask_function,
        causal_mask_function,
        chunked_overlay,
        packed_sequence_mask_function,
        prepare_padding_mask,
        remap_positions_for_packed_sequence,
        sdpa_mask,
        sliding_window_bidirectional_overlay,
        sliding_window_overlay,
    )
    from transformers.utils.output_capturing import _active_collector
except ImportError as error:
    message = "qkv.transformers needs torch, and transformers from 5.24 on: pip install qkv[transformers]"
    raise ImportError(message) from error

from qkv import scaled_dot_product_attention

__all__ = ["Mask", "qkv_attention_forward", "qkv_mask", "register"]

# The segment of keys that no query may attend.
PADDING = torch.iinfo(torch.int64).min


def register() -> None:
    """Makes ``attn_implementation="qkv"`` known to Transformers, in this process."""
    AttentionInterface.register("qkv", qkv_attention_forward)
    AttentionMaskInterface.register("qkv", qkv_mask)


class Mask(torch.Tensor):
    """A boolean mask ``(batch, 1, queries, keys)`` without memory: ``options`` say the same to qkv.

    It is a tensor since models and Transformers look at a mask's shape and type. All that can be done with it
    is to take some queries that follow each other; any other operation raises NotImplementedError.
    """

    options: dict

    @staticmethod
    def __new__(cls, shape: tuple[int, ...], options: dict, device: torch.device | str) -> "Mask":
        mask = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)
        mask.options = options
        return mask

    def __repr__(self) -> str:
        return f"Mask({tuple(self.shape)}, {self.options})"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        # Gemma 4 takes the last queries, mask[:, :, -1:, :], or all of them.
        if func is torch.ops.aten.alias.default:
            return args[0]._of_queries(slice(None))
        if func is torch.ops.aten.slice.Tensor and args[1:2] == (2,) and len(args) < 5:
            return args[0]._of_queries(slice(*args[2:]))
        # Not a TypeError, whose message `scores + mask` would hide.
        raise NotImplementedError(
            f'{func}: this model computes with its mask, which attn_implementation="qkv" does not support; '
            'want attn_implementation="sdpa" or "eager"'
        )

    def _of_queries(self, rows: slice) -> "Mask":
        options = dict(self.options)
        first, stop, _ = rows.indices(self.shape[2])
        if "attn_mask" in options:
            options["attn_mask"] = options["attn_mask"][:, :, rows]
        else:
            options["query_offset"] += first
        if "segment_ids" in options:
            query_ids, key_ids = options["segment_ids"]
            options["segment_ids"] = (query_ids[:, rows], key_ids)
        return Mask((*self.shape[:2], stop - first, self.shape[3]), options, self.device)


@torch.compiler.disable
def qkv_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **_,
) -> Mask:
    """The mask that Transformers' ``sdpa_mask`` makes of the same arguments, without its memory.

    Query ``i`` is at position ``q_offset + i``, key ``j`` at ``kv_offset + j``. ``attention_mask``
    ``(batch, positions)`` is False for padding; no key after its end may be attended. The result is never
    None, whose meaning ``qkv_attention_forward`` would have to guess.
    """
    shape = (batch_size, 1, q_length, kv_length)
    # A static cache gives a tensor, and changes it later.
    q_offset = int(q_offset)
    queries = torch.arange(q_length, device=device) + q_offset
    keys = torch.arange(kv_length, device=device) + kv_offset
    options = _options(mask_function, queries, keys)
    if options is None:
        given = (batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask)
        dense = sdpa_mask(*given, allow_is_causal_skip=False, use_vmap=use_vmap, device=device)
        return Mask(shape, {"attn_mask": dense}, device)
    if attention_mask is not None:
        real = prepare_padding_mask(attention_mask, kv_length, kv_offset)[:, kv_offset:][:, :kv_length]
        # Causal order leaves out what is after the last query: mostly the empty end of a static cache.
        within_reach = real[:, keys <= queries[-1]] if "is_causal" in options else real
        if not within_reach.all():
            zeros = torch.zeros((batch_size, q_length + kv_length), dtype=torch.int64, device=device)
            query_ids, key_ids = options.get("segment_ids", zeros.split([q_length, kv_length], dim=1))
            options["segment_ids"] = (query_ids, torch.where(real, key_ids, PADDING))
    return Mask(shape, {**options, "query_offset": q_offset, "key_offset": kv_offset}, device)


def _options(mask_function: Callable, queries: torch.Tensor, keys: torch.Tensor) -> dict | None:
    """The options of qkv that say what a mask function does, given the positions. None if there are none."""
    options = {}
    for part in _parts(mask_function):
        known = _KNOWN.get(getattr(part, "__code__", None))
        if known is None:
            return None
        option = known(queries, keys, **inspect.getclosurevars(part).nonlocals)
        if options.keys() & option.keys():
            return None
        options |= option
    return options


def _parts(mask_function: Callable) -> Iterator[Callable]:
    """The mask functions that must all allow a key."""
    code = getattr(mask_function, "__code__", None)
    if code == and_masks().__code__:
        for part in inspect.getclosurevars(mask_function).nonlocals["mask_functions"]:
            yield from _parts(part)
    elif code == remap_positions_for_packed_sequence(None, None).__code__:
        # Positions count anew in each packed sequence, so that order and distances within one stay the same.
        yield from _parts(inspect.getclosurevars(mask_function).nonlocals["mask_function"])
    else:
        yield mask_function


def _chunks(queries: torch.Tensor, keys: torch.Tensor, chunk_size: int, left_padding: torch.Tensor) -> dict:
    first = left_padding[:, None]
    return {"segment_ids": ((queries - first) // chunk_size, (keys - first) // chunk_size)}


# By the code of a mask function: what it does, given the positions and the variables that it closes over.
_KNOWN = {
    bidirectional_mask_function.__code__: lambda queries, keys: {},
    causal_mask_function.__code__: lambda queries, keys: {"is_causal": True},
    # A causal window counts the query itself, one to both sides does not.
    sliding_window_overlay(1).__code__: (
        lambda queries, keys, sliding_window: {"window": (sliding_window - 1, None)}
    ),
    sliding_window_bidirectional_overlay(1).__code__: (
        lambda queries, keys, sliding_window: {"window": (sliding_window, sliding_window)}
    ),
    chunked_overlay(1, None).__code__: _chunks,
    packed_sequence_mask_function(None).__code__: (
        lambda queries, keys, packed_sequence_mask: {"segment_ids": (packed_sequence_mask,) * 2}
    ),
}


@torch.compiler.disable
def qkv_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    output_attentions: bool | None = None,
    **kwargs,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention, called as Transformers calls its own ``sdpa_attention_forward``.

    From ``query (batch, heads, queries, dim)`` and ``key``, ``value (batch, key heads, keys, dim)``, whose
    heads are not repeated, come the output ``(batch, queries, heads, dim)`` and, if they are wanted, the
    weights ``(batch, heads, queries, keys)``, else None. Nothing is copied.

    ``attention_mask`` is a ``Mask``, or ``(batch, heads or 1, queries, keys)``: booleans, or floats that are
    added. It says all, windows and causal order included. For None, see ``_without_mask``. ``position_bias``
    is added as well; ``s_aux (heads,)`` are attention sinks.

    Raises NotImplementedError for what the module's limits name, and ValueError for a mask that does not fit,
    or None where it might mean more than one thing.
    """
    _refuse(dropout, [query, key, value, attention_mask, s_aux, position_bias], kwargs)
    if isinstance(attention_mask, Mask):
        options = _of_mask(attention_mask, query, key)
    elif attention_mask is None:
        options = _without_mask(module, query, key, is_causal, sliding_window)
    elif attention_mask.ndim == 4:
        options = {"attn_mask": attention_mask}
    else:
        raise ValueError(f"attention_mask: got {attention_mask.ndim} axes, want (batch, 1, queries, keys)")
    if position_bias is not None:
        options = {**options, "attn_mask": _with_bias(options.get("attn_mask"), position_bias)}
    # GPT-2 and others do not hand the argument on, but Transformers still waits for what it asks for.
    collected = _active_collector.get() or ()
    weights_wanted = bool(output_attentions) or any("attentions" in name for name in collected)
    result = scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        scale=scaling,
        enable_gqa=True,
        softcap=softcap,
        sinks=s_aux,
        layout="bshd",
        return_weights=weights_wanted,
        **options,
    )
    return tuple(result) if weights_wanted else (result, None)


def _refuse(dropout: float, tensors: list[torch.Tensor | None], kwargs: dict) -> None:
    """Raises for what would be wrong if it were ignored."""
    training = 'qkv does not support training yet; want attn_implementation="sdpa"'
    if dropout:
        raise NotImplementedError(f"dropout: got {dropout}: {training}, or model.eval()")
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors):
        raise NotImplementedError(f"got tensors that require gradients: {training}, or torch.no_grad()")
    if torch.jit.is_tracing():
        raise NotImplementedError("torch.jit.trace would take the result of this call for a constant")
    for name in ("indices", "block_indices", "sinks"):
        if kwargs.get(name) is not None:
            raise NotImplementedError(f'{name}: not supported; want attn_implementation="eager"')


def _of_mask(mask: Mask, query: torch.Tensor, key: torch.Tensor) -> dict:
    got, want = tuple(mask.shape[2:]), (query.shape[2], key.shape[2])
    if got != want:
        raise ValueError(f"attention_mask: got one for {got} queries and keys, want {want}")
    return mask.options


def _without_mask(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    is_causal: bool | None,
    sliding_window: int | None,
) -> dict:
    """No mask means what it does to ``sdpa_attention_forward``: in a causal module, query 0 is at key 0.

    Raises ValueError where that is a guess: a module that does not say whether it is causal, fewer keys than
    queries in one that is, and a window, which only a mask could place.
    """
    queries, keys = query.shape[2], key.shape[2]
    if queries > 1 and is_causal is None:
        is_causal = getattr(module, "is_causal", None)
        if is_causal is None:
            raise ValueError(f"attention_mask: got None, and {type(module).__name__} has no is_causal")
    is_causal = bool(queries > 1 and is_causal)
    if is_causal and keys < queries:
        raise ValueError(f"attention_mask: got None for {queries} causal queries of {keys} keys, want a mask")
    if sliding_window is not None and keys > sliding_window:
        raise ValueError(
            f"attention_mask: got None for {keys} keys and a window of {sliding_window}, want a mask; "
            "qkv.transformers.register() adds the function that makes one"
        )
    return {"is_causal": is_causal}


def _with_bias(mask: torch.Tensor | None, bias: torch.Tensor) -> torch.Tensor:
    if mask is None:
        return bias
    return torch.where(mask, bias, -torch.inf) if mask.dtype == torch.bool else bias + mask
