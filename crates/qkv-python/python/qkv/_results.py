"""Named tuples of what a call was asked for."""

from __future__ import annotations

from collections import namedtuple
from typing import Generic, TypeVar

Array = TypeVar("Array")


class AttentionResult(tuple, Generic[Array]):
    """What a call was asked for, in the order output, weights, lse.

    ``output`` is (…, heads, len_query, dim_value); ``weights`` (…, heads, len_query, len_key), if they were
    asked for; ``lse`` (…, heads, len_query), if it was: the natural log-sum-exp of each row's masked scores,
    sink included.
    """

    __slots__ = ()

    output: Array
    weights: Array
    lse: Array


class OutputAndWeights(namedtuple("AttentionResult", ["output", "weights"]), AttentionResult):
    __slots__ = ()


class OutputAndLse(namedtuple("AttentionResult", ["output", "lse"]), AttentionResult):
    __slots__ = ()


class OutputWeightsAndLse(namedtuple("AttentionResult", ["output", "weights", "lse"]), AttentionResult):
    __slots__ = ()
