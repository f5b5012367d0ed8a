"""Which query may attend which key in Transformers' models: a few numbers for each position in the place of a
dense mask.
"""

import inspect
from collections.abc import Callable, Iterator

import torch
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

# The segment of keys that no query may attend.
PADDING = torch.iinfo(torch.int64).min


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
        # Gemma 4 takes the last queries, mask[:, :, -1:, :], or all of them, and checkpoints detach it.
        if func in (torch.ops.aten.alias.default, torch.ops.aten.detach.default):
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
