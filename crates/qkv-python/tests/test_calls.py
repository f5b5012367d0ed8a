"""What each function computes, against the five steps in NumPy, and what it refuses."""

import numpy as np
import pytest
import qkv
from support import grid, same_bits, textbook

SDPA = qkv.scaled_dot_product_attention


def arrays(heads=4, key_heads=4, len_query=5, len_key=7, batch=2):
    query = grid((batch, heads, len_query, 8), 0)
    return query, grid((batch, key_heads, len_key, 8), 1), grid((batch, key_heads, len_key, 6), 2)


def close(one, other, atol=2e-6):
    np.testing.assert_allclose(one, other, atol=atol, rtol=0)


def test_the_lessons_function_blocks_where_the_mask_is_0():
    x = grid((5, 8))
    lower = np.tril(np.ones((5, 5)))
    output, weights = qkv.attention(x, x, x, lower)
    expected = textbook(x, x, x, lower != 0)
    close(output, expected[0])
    close(weights, expected[1])
    assert not weights[lower == 0].any()
    close(weights.sum(-1), 1)
    for dtype in (bool, np.int64, np.uint8, np.float16, np.float32):
        same_bits(qkv.attention(x, x, x, lower.astype(dtype)).output, output)
    with pytest.raises(ValueError, match="mask: got -inf, want a mask that is 0 where"):
        qkv.attention(x, x, x, np.where(lower == 0, -np.inf, 0))
    result = qkv.attention(x, x, x)
    assert isinstance(result, qkv.AttentionResult) and result._fields == ("output", "weights")
    with pytest.raises(ValueError, match="mask: got shape"):
        qkv.attention(x, x, x, np.ones((5, 6)))


def order(len_query, len_key, first=0):
    query, key = np.arange(len_query)[:, None] + first, np.arange(len_key)
    return query, key


QUERY, KEY = order(5, 7)
SEGMENTS = np.array([[0, 0, 1, 1, 2, 2, 2], [0, 1, 1, 1, 1, 3, 3]])


@pytest.mark.parametrize(
    ("options", "mask"),
    [
        ({}, None),
        ({"is_causal": True}, KEY <= QUERY),
        ({"causal": "top-left"}, KEY <= QUERY),
        ({"causal": "top-left", "is_causal": True}, KEY <= QUERY),
        ({"causal": "bottom-right"}, KEY <= QUERY + 2),
        ({"is_causal": True, "query_offset": 1}, KEY <= QUERY + 1),
        ({"is_causal": True, "query_offset": -2}, KEY <= QUERY - 2),
        ({"is_causal": True, "query_offset": 3, "key_offset": 2}, KEY + 2 <= QUERY + 3),
        ({"is_causal": True, "prefix": 3}, (KEY <= QUERY) | (KEY < 3)),
        (
            {"is_causal": True, "prefix": [1, 4]},
            (KEY <= QUERY) | (np.array([1, 4])[:, None, None, None] > KEY),
        ),
        ({"window": (1, 2)}, (KEY >= QUERY - 1) & (KEY <= QUERY + 2)),
        ({"window": (None, 0)}, KEY <= QUERY),
        ({"window": (0, 0)}, KEY == QUERY),
        ({"key_lengths": 3}, KEY < 3),
        ({"key_lengths": [0, 7]}, np.array([0, 7])[:, None, None, None] > KEY),
        ({"key_lengths": np.array([2, 5], np.int32)}, np.array([2, 5])[:, None, None, None] > KEY),
        ({"segment_ids": (SEGMENTS[:, :5], SEGMENTS)}, (SEGMENTS[:, :5, None] == SEGMENTS[:, None])[:, None]),
        ({"attn_mask": (KEY + QUERY) % 3 != 0, "is_causal": True}, ((KEY + QUERY) % 3 != 0) & (KEY <= QUERY)),
        ({"attn_mask": np.arange(7) < 4}, KEY < 4),
    ],
)
def test_masks(options, mask):
    query, key, value = arrays()
    output, weights, lse = SDPA(query, key, value, return_weights=True, return_lse=True, **options)
    expected, expected_weights = textbook(query, key, value, mask)
    close(output, expected)
    close(weights, expected_weights)
    if mask is not None:
        assert not weights[~np.broadcast_to(mask, weights.shape)].any()
    close(weights.astype(np.float64) @ value, output)
    empty = ~expected_weights.any(-1)
    assert not output[empty].any() and np.all(np.isneginf(lse[empty]))
    close(qkv.reference(query, key, value, **options), expected, 1e-12)


def test_scores_are_scaled_capped_and_biased_in_this_order():
    query, key, value = arrays()
    bias = grid((5, 7), 3)
    slopes, sinks = [0.5, 0.25, 0.125, 0.0625], np.array([0.5, -1, 2, -np.inf], np.float32)
    options = {"scale": 0.3, "softcap": 2.0, "attn_mask": bias, "alibi_slopes": slopes}
    raw = query.astype(np.float64) @ np.swapaxes(key, -1, -2)
    capped = 2 * np.tanh(raw * 0.3 / 2)
    masked = capped + bias - np.array(slopes)[:, None, None] * abs(QUERY - KEY)
    close(qkv.scores(query, key, value, stage="raw", **options), raw, 1e-5)
    close(qkv.scores(query, key, value, stage="scaled", **options), raw * 0.3, 1e-5)
    close(qkv.scores(query, key, value, stage="softcapped", **options), capped, 1e-5)
    close(qkv.scores(query, key, value, **options), masked, 1e-5)
    weights = np.exp(masked) / (np.exp(masked).sum(-1) + np.exp(sinks.astype(np.float64))[:, None])[..., None]
    result = SDPA(query, key, value, sinks=sinks, return_weights=True, return_lse=True, **options)
    close(result.weights, weights)
    close(result.output, weights @ value)
    close(result.lse, np.log(np.exp(masked).sum(-1) + np.exp(sinks.astype(np.float64))[:, None]), 1e-5)


def test_float_masks_of_any_width_are_added_at_their_own():
    query, key, value = arrays()
    wide = np.full((5, 7), 1e-9) + grid((5, 7), 3)
    expected = textbook(query.astype(np.float64), key, value, bias=wide)[0]
    half = SDPA(*(x.astype(np.float16) for x in arrays()), attn_mask=wide)
    close(half, expected, 2e-3)
    close(
        SDPA(*(x.astype(np.float64) for x in arrays()), attn_mask=wide.astype(np.float16)),
        textbook(query.astype(np.float64), key, value, bias=wide.astype(np.float16))[0],
        1e-12,
    )


def test_heads_are_shared_in_groups_if_asked_for():
    query, key, value = arrays(heads=6, key_heads=2)
    repeated = (np.repeat(array, 3, axis=1) for array in (key, value))
    same_bits(SDPA(query, key, value, enable_gqa=True), SDPA(query, *repeated))
    with pytest.raises(ValueError, match=r"key: got 2 key heads for 6 query heads, .*enable_gqa=True"):
        SDPA(query, key, value)
    query, key, value = arrays(heads=5, key_heads=2)
    with pytest.raises(ValueError, match="a number of key heads that divides the 5 query heads"):
        SDPA(query, key, value, enable_gqa=True)
    query, key, value = arrays(heads=6, key_heads=1)
    same_bits(SDPA(query, key, value), SDPA(query, *(np.repeat(array, 6, axis=1) for array in (key, value))))


def test_dropout_drops_what_its_mask_says():
    query, key, value = arrays()
    _, weights = textbook(query, key, value)
    kept = qkv.dropout_mask(3, weights.shape, 0.25)
    options = {"dropout_p": 0.25, "seed": 3}
    close(SDPA(query, key, value, **options), (weights * kept / 0.75) @ value)
    close(qkv.reference(query, key, value, **options), (weights * kept / 0.75) @ value)
    # Without a seed each call has one of its own.
    one, other = (SDPA(query, key, value, dropout_p=0.5) for _ in range(2))
    assert (one != other).any()


def test_the_mask_depends_on_seed_and_place_alone():
    mask = qkv.dropout_mask(5, (2, 3, 130, 257), 0.25)
    assert mask.dtype == np.bool_ and mask.shape == (2, 3, 130, 257)
    share, deviation = mask.mean(), (0.25 * 0.75 / mask.size) ** 0.5
    assert abs(share - 0.75) < 4 * deviation
    np.testing.assert_array_equal(
        qkv.dropout_mask(5, (1, 2, 40, 30), 0.25, query_offset=90, key_offset=200), mask[:1, :2, 90:, 200:230]
    )
    assert (qkv.dropout_mask(6, mask.shape, 0.25) != mask).any()
    assert qkv.dropout_mask(5, (4, 4), 0.0).all() and not qkv.dropout_mask(5, (4, 4), 1.0).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, (4,), 0.5), r"shape: got \(4,\), want"),
        ((1, (1,) * 38 + (2, 3), 0.5), "shape: got .* want .* up to 32 whole numbers"),
        ((1, (-1, 3), 0.5), r"shape: got \(-1, 3\), want"),
        ((2**64, (4, 4), 0.5), "seed: got 18446744073709551616, want one of 64 bits"),
        ((1, (2**62, 2**62, 2), 0.5), r"shape: got \(4611686018427387904, 4611686018427387904, 2\), want"),
        ((1, (4, 4), 1.5), r"dropout_p: got 1\.5, want a probability from 0 to 1"),
        ((1, (4, 4), float("nan")), "dropout_p: got NaN"),
    ],
)
def test_masks_of_dropout_that_have_no_meaning(arguments, message):
    with pytest.raises(ValueError, match=message):
        qkv.dropout_mask(*arguments)


def test_ranks_and_leading_axes_broadcast():
    query, key, value = arrays(batch=1)
    same_bits(SDPA(query[0, 0], key[0, 0], value[0, 0]), SDPA(query, key, value)[0, 0])
    same_bits(SDPA(query, key[0, 0], value[0, 0]), SDPA(query, key[:, :1], value[:, :1]))
    same_bits(SDPA(query[:, :1], key, value), SDPA(np.repeat(query[:, :1], 4, axis=1), key, value))
    many = [grid((3, 1, 4, 5, 8), 0), grid((1, 2, 4, 7, 8), 1), grid((1, 4, 7, 6), 2)]
    output = SDPA(*many)
    assert output.shape == (3, 2, 4, 5, 6)
    same_bits(output[2, 1], SDPA(many[0][2, 0], many[1][0, 1], many[2][0]))


def test_positions_may_come_before_heads():
    query, key, value = arrays()
    swapped = [np.ascontiguousarray(np.swapaxes(array, 1, 2)) for array in (query, key, value)]
    expected = SDPA(query, key, value, return_weights=True, return_lse=True, is_causal=True)
    result = SDPA(*swapped, layout="bshd", return_weights=True, return_lse=True, is_causal=True)
    assert result.output.flags.c_contiguous
    same_bits(np.swapaxes(result.output, 1, 2), expected.output)
    same_bits(result.weights, expected.weights)
    same_bits(result.lse, expected.lse)
    out = np.empty_like(result.output)
    assert SDPA(*swapped, layout="bshd", is_causal=True, out=out) is out
    same_bits(out, result.output)
    with pytest.raises(ValueError, match=r"out: got shape"):
        SDPA(*swapped, layout="bshd", out=np.empty_like(expected.output))
    with pytest.raises(ValueError, match=r"query: got shape \(5, 8\), want \(…, len, heads, dim\)"):
        SDPA(query[0, 0], key[0, 0], value[0, 0], layout="bshd")


def test_partials_merge_to_the_whole():
    query, key, value = grid((2, 3, 8), 0), grid((2, 200, 8), 1), grid((2, 200, 6), 2)
    whole = SDPA(query, key, value, is_causal=True, query_offset=150, return_lse=True)
    parts = [
        qkv.partial(query, key[:, at], value[:, at], is_causal=True, query_offset=150, key_offset=at.start)
        for at in (slice(128, 200), slice(0, 128))
    ]
    merged = qkv.merge(*parts, return_lse=True)
    same_bits(merged.output, whole.output)
    same_bits(merged.lse, whole.lse)
    assert [part.key_offset for part in parts] == [128, 0] and [part.len_key for part in parts] == [72, 128]
    assert repr(parts[0]) == "Partial(72 keys from position 128 on)"
    assert parts[0].lse.shape == (2, 3)
    sunk = qkv.merge(*parts, sinks=[0.5, 1.5])
    same_bits(sunk, SDPA(query, key, value, is_causal=True, query_offset=150, sinks=[0.5, 1.5]))
    empty = qkv.partial(query, key[:, :0], value[:, :0])
    assert np.all(np.isneginf(empty.lse))
    assert not qkv.merge(empty).any()


def test_what_cannot_be_merged_is_refused():
    query, key, value = grid((2, 3, 8), 0), grid((2, 20, 8), 1), grid((2, 20, 6), 2)
    part = qkv.partial(query, key, value)
    with pytest.raises(ValueError, match="partials: got none, want at least one"):
        qkv.merge()
    with pytest.raises(TypeError, match=r"partials: got list, want what qkv\.partial returns"):
        qkv.merge([part])
    with pytest.raises(ValueError, match="keys that do not overlap"):
        qkv.merge(part, part)
    double = qkv.partial(*(x.astype(np.float64) for x in (query, key, value)), key_offset=20)
    with pytest.raises(TypeError, match="partials: got partials of several dtypes"):
        qkv.merge(part, double)
    with pytest.raises(ValueError, match="sinks: got shape"):
        qkv.merge(part, sinks=[1.0])
    with pytest.raises(ValueError, match='causal: got "bottom-right", want a position'):
        qkv.partial(query, key, value, causal="bottom-right")
    with pytest.raises(ValueError, match="sinks: got sinks of a partial"):
        qkv.partial(query, key, value, sinks=[1.0, 2.0])
    with pytest.raises(TypeError, match=r"partial\(\) got an unexpected keyword argument 'return_lse'"):
        qkv.partial(query, key, value, return_lse=True)


def test_a_plan_says_what_would_be_done():
    query, key, value = arrays(len_query=100, len_key=300)
    plan = qkv.plan(query, key, value, is_causal=True)
    told = plan.to_dict()
    assert told["path"] == "prefill" and told["simd"] == qkv.simd()
    assert told["tiles"]["empty"] > 0 and set(told["tiles"]) == {"empty", "full", "mixed"}
    assert told["flops"] == 2 * (64 * 64 + 36 * 64 + 36 * 36) * (8 + 6) * 8
    assert str(plan).startswith("path     prefill") and repr(plan).startswith("Plan(path='prefill'")
    assert qkv.plan(query, key, value, threads=1).to_dict()["threads"] == 1


def test_an_explanation_prints_and_returns_its_numbers(capsys):
    query, key, value = arrays()
    told = qkv.explain(
        query, key, value, head=1, batch=1, is_causal=True, window=(2, None), tokens=list("abcdefg")
    )
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "Step 4: softmax" in text
        and "Causal, top-left: query i attends keys 0 to i (5 queries, 7 keys" in text
    )
    assert "Window: positions from 2 before its own" in text and "0 a 1 b 2 c" in text
    steps = {step["name"]: step for step in told["steps"]}
    assert list(steps) == ["average", "q", "k", "v", "scores", "scaled", "masked", "weights", "output"]
    weights = SDPA(query, key, value, is_causal=True, window=(2, None), return_weights=True).weights[1, 1]
    close(steps["weights"]["values"], weights[:5, :5], 1e-7)
    assert steps["weights"]["shape"] == (5, 5) and "softmax" not in steps["scores"]["formula"]
    row = qkv.explain(query, key, value, row=3, print=False)["row"]
    assert capsys.readouterr().out == ""
    assert sum(part["weight"] for part in row["keys"]) == pytest.approx(1) and row["query"] == 3
    close(row["output"], SDPA(query, key, value)[0, 0, 3], 1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head": 4}, "head: got 4, want a number below 4"),
        ({"batch": 2}, "batch: got 2, want a number below 2"),
        ({"row": 5}, "row: got 5, want a number below 5"),
        ({"queries": (3, 3)}, r"queries: got \(3, 3\), want a range that is not empty, within \(0, 5\)"),
        ({"keys": (0, 8)}, r"keys: got \(0, 8\), want a range"),
        ({"head": -1}, "head: got -1, want a number from 0 on"),
    ],
)
def test_what_does_not_exist_is_not_explained(options, message):
    with pytest.raises(ValueError, match=message):
        qkv.explain(*arrays(), print=False, **options)


def test_the_reference_is_in_float64():
    query, key, value = (x.astype(np.float16) for x in arrays())
    result = qkv.reference(query, key, value, return_weights=True, return_lse=True)
    expected = textbook(query, key, value)
    assert result.output.dtype == result.weights.dtype == result.lse.dtype == np.float64
    close(result.output, expected[0], 1e-14)
    close(result.weights, expected[1], 1e-14)
    assert isinstance(qkv.reference(query, key, value), np.ndarray)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ([], {"foo": 1}, TypeError, r"attention\(\) got an unexpected keyword argument 'foo'"),
        ([], {"foo": None}, TypeError, r"attention\(\) got an unexpected keyword argument 'foo'"),
        ([None], {"attn_mask": None}, TypeError, r"got multiple values for argument 'attn_mask'"),
        ([None, 0.0, False, None, False, 1], {}, TypeError, r"takes 8 positional arguments but 9 were given"),
        ([0.1], {}, TypeError, "attn_mask: got float, want an array"),
        ([None, 1.5], {}, ValueError, "dropout_p: got 1.5, want a probability from 0 to 1"),
        ([None, -1.0], {}, ValueError, "dropout_p: got -1.0, want a probability from 0 to 1"),
        ([None, float("nan")], {}, ValueError, "dropout_p: got NaN, want a probability from 0 to 1"),
        ([None, 0.0, 0.125], {}, TypeError, "is_causal: got float, want True or False"),
        ([], {"scale": True}, TypeError, "scale: got bool, want a number"),
        ([], {"scale": "1"}, TypeError, "scale: got str, want a number"),
        ([], {"scale": np.inf}, ValueError, "scale: got inf, want a finite f32"),
        ([], {"scale": np.nan}, ValueError, "scale: got NaN, want a finite f32"),
        ([], {"softcap": 0}, ValueError, "softcap: got 0.0, want a number above 0"),
        ([], {"causal": True}, TypeError, 'causal: got bool, want "top-left" or "bottom-right"'),
        ([], {"causal": "left"}, ValueError, 'causal: got \'left\', want "top-left" or "bottom-right"'),
        (
            [],
            {"causal": "bottom-right", "is_causal": True},
            ValueError,
            "causal: got .* beside is_causal=True",
        ),
        ([], {"causal": "top-left", "query_offset": 1}, ValueError, "query_offset: got 1 beside causal"),
        ([], {"prefix": 3}, ValueError, "prefix: got a prefix without causal order"),
        ([], {"prefix": -1, "is_causal": True}, ValueError, "prefix: got -1, want whole numbers from 0 on"),
        ([], {"query_offset": 1.5}, TypeError, "query_offset: got float, want a whole number"),
        (
            [],
            {"query_offset": 1 << 70},
            ValueError,
            "query_offset: got 1180591620717411303424, want one of 64 bits",
        ),
        ([], {"query_offset": (1 << 63) - 1}, ValueError, "query_offset: got 9223372036854775807, want"),
        ([], {"key_offset": -1}, ValueError, "key_offset: got -1, want 0 to"),
        ([], {"window": 3}, TypeError, r"window: got int, want a pair \(left, right\)"),
        ([], {"window": (1, 2, 3)}, ValueError, r"window: got \(1, 2, 3\), want a pair"),
        ([], {"window": (1.5, 2)}, TypeError, r"window: got tuple, want a pair"),
        ([], {"key_lengths": 1 << 63}, ValueError, "key_lengths: got 9223372036854775808, want whole"),
        ([], {"key_lengths": 3.0}, TypeError, "key_lengths: got float, want whole numbers"),
        ([], {"window": (-1, 0)}, ValueError, r"window: got \(-1, 0\), want a pair"),
        ([], {"key_lengths": [1, 2, 3]}, ValueError, r"key_lengths: got shape \(3,\), want"),
        ([], {"key_lengths": 8}, ValueError, "key_lengths: got 8, want at most 7"),
        ([], {"key_lengths": -1}, ValueError, "key_lengths: got -1, want whole numbers from 0 on"),
        ([], {"key_lengths": [True, False]}, TypeError, "key_lengths: got dtype bool, want whole numbers"),
        ([], {"key_lengths": [1.0, 2.0]}, TypeError, "key_lengths: got dtype float64, want whole numbers"),
        ([], {"segment_ids": np.zeros(7)}, TypeError, "segment_ids: got dtype float64, want whole numbers"),
        ([], {"segment_ids": np.zeros(7, int)}, ValueError, r"segment_ids: got shape \(7,\), want \(2, 5\)"),
        ([], {"alibi_slopes": [1.0]}, ValueError, r"alibi_slopes: got shape \(1,\), want \(4,\)"),
        (
            [],
            {"alibi_slopes": np.ones((4, 1))},
            ValueError,
            r"alibi_slopes: got shape \(4, 1\), want \(heads,\)",
        ),
        ([], {"sinks": [0.0, 1.0, 2.0, np.nan]}, ValueError, "sinks: got NaN, want a finite f32"),
        ([], {"layout": "sbhd"}, ValueError, 'layout: got \'sbhd\', want "bhsd" or "bshd"'),
        ([], {"threads": 0}, ValueError, "threads: got 0, want 1 to 1024"),
        ([], {"threads": "two"}, TypeError, "threads: got str, want a whole number"),
        ([], {"seed": 1.5}, TypeError, "seed: got float, want a whole number"),
        ([], {"return_weights": 1}, TypeError, "return_weights: got int, want True or False"),
        ([np.ones((5, 7), int)], {}, TypeError, r"attn_mask: got dtype int64, want bool.*\(attn_mask != 0\)"),
        ([np.ones((5, 7), complex)], {}, TypeError, "attn_mask: got dtype complex128, want bool"),
        ([np.ones((5, 8), bool)], {}, ValueError, r"attn_mask: got shape \(5, 8\), want \(2, 4, 5, 7\)"),
        ([np.ones((2, 5, 7), bool)], {}, ValueError, r"attn_mask: .*\(2, 1, 5, 7\): unsqueeze\(1\)"),
    ],
)
def test_options_without_a_meaning_are_refused(arguments, options, error, message):
    with pytest.raises(error, match=message):
        SDPA(*arrays(), *arguments, **options)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(8,), (7, 8), (7, 6)], r"query: got shape \(8,\), want \(len, dim\)"),
        ([(5, 8), (7, 8), (7,)], r"value: got shape \(7,\), want \(len, dim\)"),
        ([(5, 8), (7, 9), (7, 6)], r"key: got shape \(7, 9\), want .*the query's dim is 8"),
        ([(5, 8), (7, 8), (6, 6)], r"value: got shape \(6, 6\), want .*one for each key"),
        ([(3, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)], r"key: got shape \(2, 4, 7, 8\), want 3 or 1 on axis 0"),
        ([(4, 5, 8), (4, 7, 8), (3, 7, 6)], "value: got 3 value heads for 4 query heads and 4 key heads"),
    ],
)
def test_shapes_that_do_not_fit_are_named(shapes, message):
    with pytest.raises(ValueError, match=message):
        SDPA(*(np.zeros(shape, np.float32) for shape in shapes))


def test_a_result_without_room_is_a_memory_error():
    query = np.broadcast_to(np.zeros((1, 1), np.float32), (1 << 40, 1))
    with pytest.raises(MemoryError, match="no memory for an array of shape"):
        SDPA(query, np.zeros((0, 1), np.float32), np.zeros((0, 64), np.float32))


@pytest.mark.parametrize("dim_value", [3, 8, 11])
def test_one_head_without_an_axis(dim_value):
    query, key, value = grid((5, 8), 0), grid((7, 8), 1), grid((7, dim_value), 2)
    expected = textbook(query, key, value)[0]
    close(SDPA(query, key, value), expected)
    close(qkv.reference(query, key, value), expected, 1e-12)
    out = np.empty((5, dim_value), np.float32)
    assert SDPA(query, key, value, out=out) is out
    close(out, expected)
    close(qkv.merge(qkv.partial(query, key, value)), expected)
    told = qkv.explain(query, key, value, print=False)["steps"][-1]
    close(told["values"], expected, 1e-6)


def test_tokens_are_one_for_each_key():
    with pytest.raises(ValueError, match="tokens: got 1 of them, want one for each of 7 keys"):
        qkv.explain(*arrays(), tokens=["a"], print=False)


def test_more_elements_than_can_be_counted_are_refused():
    query = np.broadcast_to(np.zeros((1, 1, 1), np.float32), (1, 1 << 40, 1))
    key = np.broadcast_to(np.zeros((1, 1, 1), np.float32), (1 << 30, 7, 1))
    with pytest.raises(
        ValueError, match=r"query: got shape .*, want one that can be repeated for 1073741824 heads"
    ):
        SDPA(query, key, key)


def test_a_masked_array_is_refused():
    query, key, value = arrays()
    with pytest.raises(TypeError, match="key: got a masked array, of float32, want a plain one"):
        SDPA(query, np.ma.masked_less(key, 0), value)


def test_every_function_has_positions_first_if_asked():
    query, key, value = arrays(len_query=4)
    swapped = [np.swapaxes(array, 1, 2) for array in (query, key, value)]
    expected = SDPA(*swapped, layout="bshd")
    same_bits(qkv.merge(qkv.partial(*swapped, layout="bshd")), expected)
    reference = qkv.reference(*swapped, layout="bshd")
    close(reference, expected)
    assert reference.flags.c_contiguous


@pytest.mark.parametrize(
    "options",
    [
        {"sinks": np.broadcast_to(0.0, (1 << 46,))},
        {"key_lengths": np.broadcast_to(1, (1 << 46,))},
        {"segment_ids": np.broadcast_to(0, (1 << 36, 1 << 8))},
    ],
)
def test_options_of_repeated_memory_do_not_exhaust_it(options):
    with pytest.raises(MemoryError, match=f"{next(iter(options))}: no memory for an array of shape"):
        SDPA(*arrays(), **options)


def test_more_axes_than_results_can_have_are_refused():
    x = np.zeros([1] * 33) if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else None
    if x is not None:
        with pytest.raises(ValueError, match=r"query: got shape .*, want 32 axes at most"):
            SDPA(x, x, x)
