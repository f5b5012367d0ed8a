"""The attention function of Transformers' models, computed by the engine."""

import torch
from transformers.utils.output_capturing import _active_collector

from qkv import scaled_dot_product_attention
from qkv._masks import Mask


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
    weights ``(batch, heads, queries, keys)``, else None. Nothing is copied. The weights are from before
    dropout, and no gradients go through them.

    ``attention_mask`` is a ``Mask``, or ``(batch, heads or 1, queries, keys)``: booleans, or floats that are
    added. It says all, windows and causal order included. For None, see ``_without_mask``. ``position_bias``
    is added as well; ``s_aux (heads,)`` are attention sinks.

    Raises NotImplementedError for what the module's limits name, and ValueError for a mask that does not fit,
    or None where it might mean more than one thing.
    """
    refuse(kwargs)
    options = options_of(module, query, key, attention_mask, is_causal, sliding_window)
    if position_bias is not None:
        options = {**options, "attn_mask": _with_bias(options.get("attn_mask"), position_bias)}
    # GPT-2 and others do not hand the argument on, but Transformers still waits for what it asks for.
    collected = _active_collector.get() or ()
    weights_wanted = bool(output_attentions) or any("attentions" in name for name in collected)
    result = scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        dropout_p=dropout,
        scale=scaling,
        enable_gqa=True,
        softcap=softcap,
        sinks=s_aux,
        layout="bshd",
        return_weights=weights_wanted,
        **options,
    )
    return tuple(result) if weights_wanted else (result, None)


def refuse(kwargs: dict) -> None:
    """Raises for what would be wrong if it were ignored."""
    if torch.jit.is_tracing():
        raise NotImplementedError("torch.jit.trace would take the result of this call for a constant")
    for name in ("indices", "block_indices", "sinks"):
        if kwargs.get(name) is not None:
            raise NotImplementedError(f'{name}: not supported; want attn_implementation="eager"')


def options_of(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    attention_mask: torch.Tensor | None,
    is_causal: bool | None,
    sliding_window: int | None,
) -> dict:
    """The options of qkv for what ``qkv_attention_forward`` takes; it raises what is said there."""
    if isinstance(attention_mask, Mask):
        return _of_mask(attention_mask, query, key)
    if attention_mask is None:
        return _without_mask(module, query, key, is_causal, sliding_window)
    if attention_mask.ndim == 4:
        return {"attn_mask": attention_mask}
    raise ValueError(f"attention_mask: got {attention_mask.ndim} axes, want (batch, 1, queries, keys)")


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
