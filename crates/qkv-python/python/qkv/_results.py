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

    def __repr__(self):
        return f"AttentionResult({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"


class OutputAndWeights(AttentionResult, namedtuple("_", ["output", "weights"])):
    __slots__ = ()


class OutputAndLse(AttentionResult, namedtuple("_", ["output", "lse"])):
    __slots__ = ()


class OutputWeightsAndLse(AttentionResult, namedtuple("_", ["output", "weights", "lse"])):
    __slots__ = ()
