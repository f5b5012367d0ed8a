"""Arrays for tests, without a random generator, and what they are compared with."""

import numpy as np


def grid(shape, seed=0):
    """Numbers on a grid of 1/64 in [-2, 2), exact in every type, from a hash of their place."""
    with np.errstate(over="ignore"):
        h = (np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint32)) * np.uint32(2654435761)
        h = h + np.uint32(seed) * np.uint32(40503)
        h ^= h >> np.uint32(15)
        h *= np.uint32(2246822519)
        h ^= h >> np.uint32(13)
        h *= np.uint32(3266489917)
        h ^= h >> np.uint32(16)
    return (((h & np.uint32(255)).astype(np.float32) - 128) / 64).reshape(shape)


def textbook(query, key, value, mask=None, bias=None, scale=None):
    """The five steps in float64: the output and the weights. Rows that may attend nothing are 0."""
    query, key, value = (np.asarray(array, np.float64) for array in (query, key, value))
    scale = 1 / np.sqrt(max(query.shape[-1], 1)) if scale is None else scale
    scores = query @ np.swapaxes(key, -1, -2) * scale
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(-1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return weights @ value, weights


def same_bits(one, other):
    """Asserts that two arrays are equal bit for bit; NaN equals NaN."""
    one, other = np.asarray(one), np.asarray(other)
    assert one.dtype == other.dtype and one.shape == other.shape
    np.testing.assert_array_equal(one, other)
