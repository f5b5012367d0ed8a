"""What a recording's metadata says of one call of attention: texts, in the words that the command reads.

``causal`` is "top-left", "bottom-right" or "false"; ``window`` is "LEFT,RIGHT", with "-" for no bound;
``padding`` is a JSON list of [start, end], the positions of each batch's real tokens, of queries as well as
of keys.
"""

import json

import torch

from qkv._masks import PADDING


def metadata_of(options: dict, queries: int, keys: int, own_keys: bool) -> tuple[dict[str, str], int]:
    """What a mask's options say, and how many of the keys it is about.

    Keys at the end that causal order leaves out, such as the empty end of a static cache, do not count.
    ``own_keys`` is whether queries and keys are of the same tokens.

    Raises NotImplementedError, with the reason alone, for what these texts cannot say.
    """
    if "attn_mask" in options:
        raise NotImplementedError("its mask is dense, of which a recording has none")
    offset = options.get("query_offset", 0) - options.get("key_offset", 0)
    if options.get("is_causal"):
        keys = max(0, min(keys, queries + offset))
        if offset not in (0, keys - queries):
            raise NotImplementedError(
                f"its first of {queries} queries stands at position {offset} of {keys} keys, want the first "
                "query at the first key, or the last at the last"
            )
        texts = {"causal": "bottom-right" if offset else "top-left"}
    else:
        texts = {"causal": "false"}
    window = options.get("window", (None, None))
    padding = _padding(*options["segment_ids"], offset, keys) if "segment_ids" in options else None
    if texts["causal"] == "false":
        places = "padding" if padding else "window" if window != (None, None) else None
        if places and (offset or (padding and (not own_keys or queries != keys))):
            raise NotImplementedError(
                f"its {places} is of keys that are not the tokens of its queries, want causal order, or the "
                "same tokens for both"
            )
    if window != (None, None):
        texts["window"] = ",".join("-" if bound is None else str(bound) for bound in window)
    if padding:
        texts["padding"] = json.dumps(padding)
    return texts, keys


def _padding(
    query_ids: torch.Tensor, key_ids: torch.Tensor, offset: int, keys: int
) -> list[list[int]] | None:
    """The positions of each batch's real tokens, or None if there is no padding.

    ``query_ids`` is (batch, queries), ``key_ids`` (batch, keys or more); query ``i`` stands at key
    ``offset + i``.
    """
    key_ids = key_ids[:, :keys]
    real = key_ids != PADDING
    ranges = []
    for batch in range(real.shape[0]):
        places = real[batch].nonzero().flatten()
        start, end = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
        if len(places) != end - start:
            raise NotImplementedError(f"batch {batch} has padding between its tokens, want one run of tokens")
        # Queries of padding may be of any segment: they are left out.
        of_queries = query_ids[batch, max(0, start - offset) : max(0, end - offset)]
        ids = torch.cat([key_ids[batch, start:end], of_queries])
        if (ids != ids[:1]).any():
            raise NotImplementedError(
                f"batch {batch} is cut into segments, of packed sequences or chunks, want one"
            )
        ranges.append([start, end])
    return None if real.all() else ranges
