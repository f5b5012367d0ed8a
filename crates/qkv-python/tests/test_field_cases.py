"""Faults that users of other attention engines reported, each as a small input and its right answer.

Each test names the public report. Inputs come from ``support.grid``, so that anyone can make them; expected
numbers were computed in float64. What torch does with such inputs is in test_torch_parity.py.
"""

import ml_dtypes
import numpy as np
import pytest
import qkv
from support import grid, same_bits, textbook

sdpa = qkv.scaled_dot_product_attention

# How far a result may be from numbers computed elsewhere, as a share of the largest value (NUMERICS.md).
SHARES = {np.float32: 2e-6, np.float64: 8 * 2**-52, np.float16: 2**-10, ml_dtypes.bfloat16: 2**-7}
HALVES = [np.float16, ml_dtypes.bfloat16]

every_dtype = pytest.mark.parametrize("dtype", SHARES)


def arrays(query, key, value=None, dtype=np.float32):
    """Query, key and value of these shapes."""
    shapes = (query, key, key if value is None else value)
    return [grid(shape, seed).astype(dtype) for seed, shape in enumerate(shapes)]


def additive(mask, dtype=np.float32):
    """The float mask that means the same."""
    return np.where(mask, 0, -np.inf).astype(dtype)


def assert_near(got, expected, value):
    error = np.abs(got.astype(np.float64) - expected).max()
    assert error <= SHARES[got.dtype.type] * np.abs(value.astype(np.float64)).max()


LOWER = np.tri(6, 10, dtype=bool)
# The last row may attend nothing.
FIVE_ROWS = LOWER & (np.arange(6) < 5)[:, None]
NEAR = np.abs(np.arange(640)[:, None] - np.arange(640) - 4.5) < 5
ONE_RUN = (np.arange(701) >= 515) & (np.arange(701) <= 575)
# The second batch has four keys.
LENGTHS = (np.arange(6) < [[[[6]]], [[[4]]]]).repeat(4, 2)

SHORT, LONG = ((1, 1, 2, 4), (1, 1, 5, 4)), ((1, 1, 5, 4), (1, 1, 2, 4))
PLAIN = ((1, 2, 6, 8), (1, 2, 10, 8))
SQUARE = ((1, 1, 64, 8), (1, 1, 64, 8))

# Shapes, options, the sum of the output, the index of one element, it, and the log-sum-exp of its row.
FINGERPRINTS = {
    "FP0": (PLAIN, {}, -7.251231328, (0, 1, 5, 7), 0.733608246, 2.658086431),
    "FP1": (PLAIN, {"attn_mask": FIVE_ROWS}, -10.655456774, (0, 1, 4, 7), -1.002527573, 2.481770133),
    "FP2": (
        ((1, 1, 640, 4), (1, 1, 640, 4)),
        {"attn_mask": NEAR},
        -149.642164486,
        (0, 0, 639, 3),
        -0.003238705,
        3.228598215,
    ),
    "FP3": (
        ((1, 1, 1, 4), (1, 1, 701, 4)),
        {"attn_mask": ONE_RUN},
        -0.520682628,
        (0, 0, 0, 3),
        -0.221108837,
        5.035494233,
    ),
    "FP4": (SHORT, {"is_causal": True}, -0.565172899, (0, 0, 1, 3), 0.349368080, 0.374807262),
    "FP5": (SHORT, {"causal": "bottom-right"}, 1.197652371, (0, 0, 1, 3), 0.559356172, 1.782489526),
    "FP6": (LONG, {"is_causal": True}, -2.266457193, (0, 0, 4, 3), 0.225980026, 1.200761915),
    "FP7": (LONG, {"causal": "bottom-right"}, -0.772146408, (0, 0, 4, 3), 0.225980026, 1.200761915),
    "FP8": (
        ((2, 4, 5, 8), (2, 2, 7, 8)),
        {"enable_gqa": True},
        -15.828280250,
        (1, 1, 4, 7),
        0.408449274,
        2.527893216,
    ),
    "FP10": (
        ((1, 2, 7, 16), (1, 2, 5, 16), (1, 2, 5, 32)),
        {},
        -58.119467774,
        (0, 1, 6, 31),
        -0.354075666,
        2.551401469,
    ),
    "FP11": (
        ((2, 4, 1, 32), (2, 1, 36, 32), (2, 1, 36, 24)),
        {"enable_gqa": True},
        -2.059176726,
        (1, 3, 0, 23),
        -0.003780711,
        4.235010174,
    ),
    "FP12": (PLAIN, {"scale": -0.5}, -4.267590823, (0, 1, 5, 7), -0.950431125, 3.401243052),
    "FP13": (PLAIN, {"scale": 0.0}, -5.625, (0, 1, 5, 7), -0.065625, np.log(10)),
    "FP14": (
        PLAIN,
        {"is_causal": True, "softcap": 1},
        -6.553188904,
        (0, 1, 5, 7),
        0.792511421,
        1.977022169,
    ),
    "FP15": (PLAIN, {"attn_mask": grid((6, 10), 3)}, -9.502144810, (0, 1, 5, 7), 0.376895487, 3.351463506),
    "FP16": (SQUARE, {"is_causal": True}, -11.976152295, (0, 0, 63, 7), -0.000134301, 5.188850075),
    "FP17": (SQUARE, {"window": (7, 0)}, 2.161332030, (0, 0, 63, 7), -0.083383944, 2.920065472),
    "FP18": (
        ((2, 3, 4, 8), (2, 3, 6, 8)),
        {"attn_mask": LENGTHS},
        -5.621310467,
        (1, 2, 3, 7),
        1.084840829,
        2.173090223,
    ),
}


@every_dtype
@pytest.mark.parametrize("name", FINGERPRINTS)
def test_fingerprints(name, dtype):
    shapes, options, total, index, element, lse = FINGERPRINTS[name]
    inputs = arrays(*shapes, dtype=dtype)
    truth = qkv.reference(*inputs, **options, return_lse=True)
    found = [truth.output.sum(), truth.output[index], truth.lse[index[:-1]]]
    np.testing.assert_allclose(found, [total, element, lse], rtol=0, atol=1e-9)
    got = sdpa(*inputs, **options, return_lse=True)
    assert_near(got.output, truth.output, inputs[2])
    np.testing.assert_allclose(got.lse, truth.lse, rtol=4e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, *HALVES])
def test_m01_a_row_that_may_attend_nothing_is_zero(dtype):
    """pytorch #103749, #103963: NaN with a padding mask."""
    inputs = arrays(*PLAIN, dtype=dtype)
    boolean = sdpa(*inputs, FIVE_ROWS, return_weights=True, return_lse=True)
    twin = sdpa(*inputs, additive(FIVE_ROWS, dtype), return_weights=True, return_lse=True)
    assert not boolean.output[:, :, 5].any() and not boolean.weights[:, :, 5].any()
    assert (boolean.lse[:, :, 5] == -np.inf).all()
    for one, other in zip(boolean, twin, strict=True):
        assert not np.isnan(one).any()
        same_bits(one, other)


@pytest.mark.parametrize(("dtype", "least"), [(np.float32, -3.4028235e38), (np.float16, -65504)])
def test_m04_sums_of_soft_masks(dtype, least):
    """transformers #27114: two masks of the least finite number add up to -inf."""
    inputs = arrays(*PLAIN, dtype=dtype)
    soft = np.zeros((6, 10), dtype)
    soft[0] = least
    with np.errstate(over="ignore"):
        hard = soft + soft
    assert not sdpa(*inputs, hard)[:, :, 0].any()
    assert_near(sdpa(*inputs, soft), textbook(*inputs, bias=soft.astype(np.float64))[0], inputs[2])
    # The second mask is the causal one: it leaves row 0 its first key, whose score is finite.
    same_bits(sdpa(*inputs, soft, is_causal=True)[:, :, 0], inputs[2][:, :, 0])


@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("where", ["key", "value", "both"])
@pytest.mark.parametrize("len_key", [2, 130])
def test_m05_what_is_masked_away_changes_no_bit(len_key, where, junk):
    """pytorch #101967: NaN in masked-out positions reaches the output."""
    shape = (1, 2, len_key, 4)
    query, key, value = arrays(shape, shape)
    first, last = np.arange(len_key) == 0, len_key - 1
    calls = {
        "first key": {"attn_mask": first},
        "first key, additive": {"attn_mask": additive(first)},
        "all but the last key": {"attn_mask": np.arange(len_key) < last},
        "causal": {"is_causal": True},
        "lengths": {"key_lengths": [last]},
        "window": {"window": (len_key, 0)},
    }
    clean = {name: sdpa(query, key, value, **options) for name, options in calls.items()}
    if where in ("key", "both"):
        key[:, :, last] = junk
    if where in ("value", "both"):
        value[:, :, last] = junk
    for name, options in calls.items():
        got = sdpa(query, key, value, **options)
        # Under a causal mask or a window to the left the last query sees the last key.
        rows = slice(0, last if name in ("causal", "window") else len_key)
        same_bits(got[:, :, rows], clean[name][:, :, rows])
    for name in ("first key", "first key, additive"):
        same_bits(clean[name], np.broadcast_to(value[:, :, :1], shape))


def test_m06_nan_queries_are_not_hidden():
    """pytorch #141128: NaN queries gave rows of zeros."""
    query, key, value = arrays(*PLAIN)
    clean = sdpa(query, key, value)
    query[0, 0, 2] = np.nan
    got = sdpa(query, key, value)
    assert np.isnan(got[0, 0, 2]).all()
    clean[0, 0, 2] = np.nan
    same_bits(got, clean)


def test_m07_true_is_may_attend():
    """pytorch #170415, #120668: True keeps here, and drops in nn.MultiheadAttention."""
    zeros = np.zeros((4, 2), np.float32)
    value = np.repeat(np.arange(4, dtype=np.float32)[:, None], 2, 1)
    future = np.triu(np.ones((4, 4), bool), 1)
    same_bits(sdpa(zeros, zeros, value, future)[:, 0], np.array([2, 2.5, 3, 0], np.float32))
    with pytest.raises(TypeError, match='True is "may attend"'):
        sdpa(zeros, zeros, value, future.astype(np.uint8))


@pytest.mark.parametrize("len_query", [1, 6, 70])
@every_dtype
def test_m09_a_boolean_mask_and_its_additive_twin(dtype, len_query):
    """pytorch #107084, #147209; transformers #92554: the two forms differed, by path."""
    inputs = arrays((2, 3, len_query, 8), (2, 3, 130, 8), dtype=dtype)
    mask = grid((2, 1, len_query, 130), 3) > -1
    same_bits(sdpa(*inputs, mask), sdpa(*inputs, additive(mask, dtype)))
    weights = sdpa(*inputs, mask, return_weights=True)
    same_bits(weights.output, sdpa(*inputs, mask))
    assert not weights.weights[~np.broadcast_to(mask, weights.weights.shape)].any()


@pytest.mark.parametrize(
    "shape",
    [(1, 1, 4, 6), (2, 1, 4, 6), (1, 3, 4, 6), (2, 3, 1, 6), (2, 1, 1, 6), (4, 6), (1, 6), (6,)],
    ids=str,
)
def test_m14_a_mask_is_as_if_written_out(shape):
    """onnxruntime #24017: a bias of one head was read at a wrong place."""
    inputs = arrays((2, 3, 4, 8), (2, 3, 6, 8))
    bias = grid(shape, 3)
    for mask, meaning in ((bias, {"bias": bias}), (bias > -1, {"mask": bias > -1})):
        output = sdpa(*inputs, mask)
        same_bits(output, sdpa(*inputs, np.broadcast_to(mask, (2, 3, 4, 6)).copy()))
        assert_near(output, textbook(*inputs, **meaning)[0], inputs[2])


@pytest.mark.parametrize("shape", [(1, 2, 6, 1), (6, 1), (1, 1, 1, 1), (1,)], ids=str)
def test_m15_a_mask_of_one_column(shape):
    """pytorch #128816: read past its end. A constant for each row does not change a softmax."""
    inputs = arrays(*PLAIN)
    assert_near(sdpa(*inputs, grid(shape, 3)), textbook(*inputs)[0], inputs[2])


@pytest.mark.parametrize("shape", [(6, 12), (7, 10), (3, 6, 10), (2, 2, 6, 10)], ids=str)
def test_m17_a_mask_too_large_is_refused(shape):
    """xformers #90: it was cut to size."""
    for mask in (grid(shape, 3), grid(shape, 3) > 0):
        with pytest.raises(ValueError, match="attn_mask") as raised:
            sdpa(*arrays(*PLAIN), mask)
        assert f"got shape {shape}, want (1, 2, 6, 10)" in str(raised.value)


def test_m18_a_mask_of_three_axes_is_one_for_each_head():
    """pytorch #178271, #120810: (N, L, S) where batch and heads are both N."""
    query, key, value = arrays((3, 3, 4, 8), (3, 3, 6, 8))
    mask = np.broadcast_to((np.arange(6) < np.array([2, 4, 6])[:, None])[:, None], (3, 4, 6))
    output = sdpa(query, key, value, mask)
    for head in range(3):
        same_bits(output[:, head], sdpa(query[:, head], key[:, head], value[:, head], mask[head]))
    with pytest.raises(ValueError, match=r"attn_mask: got shape \(3, 4, 6\).*unsqueeze\(1\)"):
        sdpa(query[:, :2], key[:, :2], value[:, :2], mask)


@pytest.mark.parametrize(("len_query", "len_key"), [(7, 7), (2, 5), (5, 2), (70, 130), (130, 70)])
def test_a01_both_alignments(len_query, len_key):
    """pytorch #103082, #108108: is_causal counts from the first query and key, bottom-right from the last."""
    inputs = arrays((1, 2, len_query, 4), (1, 2, len_key, 4))
    top_left = np.tri(len_query, len_key, dtype=bool)
    bottom_right = np.tri(len_query, len_key, len_key - len_query, dtype=bool)
    same_bits(sdpa(*inputs, is_causal=True), sdpa(*inputs, top_left))
    same_bits(sdpa(*inputs, causal="top-left"), sdpa(*inputs, top_left))
    same_bits(sdpa(*inputs, causal="bottom-right"), sdpa(*inputs, bottom_right))
    with pytest.raises(ValueError, match='causal: got "bottom-right" beside is_causal=True'):
        sdpa(*inputs, is_causal=True, causal="bottom-right")


@pytest.mark.parametrize(("len_query", "len_key"), [(5, 2), (300, 65), (2048, 1024)])
def test_a02_queries_before_the_first_key(len_query, len_key):
    """flash-attention #1778: rows without a key kept stale memory."""
    query, key, value = arrays((1, 1, len_query, 4), (1, 1, len_key, 4))
    out = np.full((1, 1, len_query, 4), np.nan, np.float32)
    sdpa(query, key, value, causal="bottom-right", out=out)
    assert not out[:, :, : len_query - len_key].any()
    mask = np.tri(len_query, len_key, len_key - len_query, dtype=bool)
    assert_near(out, textbook(query, key, value, mask=mask)[0], value)


def test_a04_is_causal_and_a_mask_both_hold():
    """pytorch #187801, #118972; keras #23040: one of the two was ignored."""
    inputs = arrays(*PLAIN)
    no_first_key = np.arange(10) > 0
    both = sdpa(*inputs, no_first_key, is_causal=True)
    same_bits(both, sdpa(*inputs, LOWER & no_first_key))
    assert not both[:, :, 0].any()
    assert not np.array_equal(both, sdpa(*inputs, no_first_key))
    assert not np.array_equal(both, sdpa(*inputs, is_causal=True))


ZEROS = np.zeros((64, 64), np.float32)


@pytest.mark.parametrize(
    ("dtype", "lead", "dim_value", "options"),
    [
        (np.float32, (), 8, {}),
        (np.float32, (2,), 8, {}),
        (np.float32, (2, 1, 2), 8, {}),
        (np.float32, (1, 1), 8, {"attn_mask": ZEROS}),
        (np.float32, (1, 1), 8, {"attn_mask": ZEROS == 0}),
        (np.float32, (1, 1), 8, {"softcap": 30.0}),
        (np.float32, (1, 1), 8, {"alibi_slopes": [0.5]}),
        (np.float32, (1, 1), 8, {"sinks": [1.0]}),
        (np.float32, (1, 1), 8, {"enable_gqa": True}),
        (np.float32, (1, 1), 24, {}),
        (np.float64, (1, 1), 8, {}),
        (np.float16, (1, 1), 8, {}),
        (ml_dtypes.bfloat16, (1, 1), 8, {}),
    ],
    ids=str,
)
def test_a05_the_future_is_never_seen(dtype, lead, dim_value, options):
    """keras #23038, transformers #30652: causal masking was lost where an option led to another path."""
    query, key, value = arrays((*lead, 64, 8), (*lead, 64, 8), (*lead, 64, dim_value), dtype=dtype)
    result = sdpa(query, key, value, is_causal=True, return_weights=True, **options)
    same_bits(result.output, sdpa(query, key, value, is_causal=True, **options))
    assert not np.triu(result.weights.astype(np.float32), 1).any()
    views = [np.asfortranarray(array) for array in (query, key, value)]
    same_bits(sdpa(*views, is_causal=True, **options), result.output)
    for row in (0, 31, 62):
        key[..., row + 1 :, :] = np.nan
        value[..., row + 1 :, :] = np.nan
        poisoned = sdpa(query, key, value, is_causal=True, **options)
        same_bits(poisoned[..., : row + 1, :], result.output[..., : row + 1, :])
        query, key, value = arrays((*lead, 64, 8), (*lead, 64, 8), (*lead, 64, dim_value), dtype=dtype)


def test_a07_windows_count_the_keys_beside_one():
    """transformers #39408; flash-attention #1133: off by one, and 0 taken for no bound."""
    inputs = arrays(*SQUARE)
    causal = sdpa(*inputs, is_causal=True)
    same_bits(sdpa(*inputs, window=(63, 0)), causal)
    same_bits(sdpa(*inputs, window=(None, 0)), causal)
    assert not np.array_equal(sdpa(*inputs, window=(62, 0)), causal)
    same_bits(sdpa(*inputs, window=(0, 0)), inputs[2])
    same_bits(sdpa(*inputs, window=(None, None)), sdpa(*inputs))


def test_a09_key_lengths():
    """jax #23349; onnxruntime #20521: lengths were ignored, or old cache slots read."""
    lengths = [0, 1, 15, 16]
    query, key, value = arrays((4, 2, 3, 8), (4, 2, 16, 8))
    junk = np.arange(16) >= np.array(lengths)[:, None, None]
    for array in (key, value):
        array[np.broadcast_to(junk, (4, 2, 16))] = np.nan
    output = sdpa(query, key, value, key_lengths=lengths)
    assert not output[0].any()
    for batch, length in enumerate(lengths):
        same_bits(output[batch], sdpa(query[batch], key[batch, :, :length], value[batch, :, :length]))
    for wrong in ([0, 1, 15, 17], [0, 1, -1, 16], [0, 1, 15], 17):
        with pytest.raises(ValueError, match="key_lengths: got "):
            sdpa(query, key, value, key_lengths=wrong)


@pytest.mark.parametrize("argument", range(4), ids=["query", "key", "value", "attn_mask"])
@pytest.mark.parametrize(
    "layout",
    [
        lambda x: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
        lambda x: np.repeat(x, 2, -1)[..., ::2],
        lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
    ],
    ids=["transposed", "every second", "backwards"],
)
def test_l02_the_last_axis_may_have_any_stride(layout, argument):
    """pytorch #187506: a stride other than 1 was taken for 1."""
    plain = [*arrays(*PLAIN), grid((1, 2, 6, 10), 3)]
    viewed = list(plain)
    viewed[argument] = layout(plain[argument])
    assert viewed[argument].strides[-1] != plain[argument].strides[-1]
    same_bits(viewed[argument], plain[argument])
    same_bits(sdpa(*viewed), sdpa(*plain))


def test_l04_one_buffer_of_queries_keys_and_values():
    """SageAttention #386: offsets wrapped."""
    packed = grid((1, 40, 3, 3, 8))
    views = [packed[:, :, which].swapaxes(1, 2) for which in range(3)]
    same_bits(sdpa(*views, is_causal=True), sdpa(*(view.copy() for view in views), is_causal=True))


def test_l04_offsets_beyond_32_bits(tmp_path):
    """Three keys, 2³¹ numbers apart, in a file of which three pages are ever written."""
    try:
        far = np.memmap(tmp_path / "sparse", np.float16, "w+", shape=(3, 1 << 31))[:, :8]
    except OSError:
        pytest.skip("no sparse file of 13 GB here")
    near = grid((3, 8), 1).astype(np.float16)
    far[...] = near
    query = grid((2, 8)).astype(np.float16)
    same_bits(sdpa(query, far, far), sdpa(query, near, near))


def test_l07_the_layout_is_said():
    """mlx #3585; xformers #683: positions before heads, read as heads before positions."""
    inputs = arrays((2, 7, 3, 8), (2, 7, 3, 8))
    assert_near(sdpa(*inputs), textbook(*inputs)[0], inputs[2])
    swapped = [array.swapaxes(1, 2) for array in inputs]
    output = sdpa(*inputs, layout="bshd")
    assert_near(output.swapaxes(1, 2), textbook(*swapped)[0], inputs[2])
    assert output.flags.c_contiguous
    same_bits(output.swapaxes(1, 2), sdpa(*swapped))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ((2, 5, 3, 6), (2, 5, 3, 8), "key: got shape (2, 5, 3, 6), "),
        ((2, 5, 3, 8), (2, 6, 3, 8), "value: got shape (2, 6, 3, 8), "),
        ((4, 5, 3, 8), (4, 5, 3, 8), "key: got shape (4, 5, 3, 8), "),
    ],
)
def test_l07_an_error_shows_shapes_as_they_were_given(key, value, message):
    with pytest.raises(ValueError, match="got shape") as raised:
        sdpa(*arrays((2, 7, 3, 8), key, value), layout="bshd")
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_n01_scores_beyond_half_floats(dtype):
    """pytorch #116176, #119131: q·k exceeds 65504."""
    query, key = np.full((1, 1, 2, 64), 900, dtype), np.full((1, 1, 5, 64), 896, dtype)
    key[:, :, 0] = 900
    value = grid((1, 1, 5, 64), 2).astype(dtype)
    same_bits(sdpa(query, key, value), np.broadcast_to(value[:, :, :1], query.shape))
    mean = value.astype(np.float64).mean(2, keepdims=True).repeat(2, 2)
    assert_near(sdpa(-query, -key[:, :, [0] * 5], value), mean, value)


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf])
def test_n03_a_scale_that_is_not_finite_is_refused(scale):
    """pytorch #105202: a root of a negative scale. FP12 and FP13 have a negative one, and 0."""
    with pytest.raises(ValueError, match=r"scale: got .*, want a finite"):
        sdpa(*arrays(*PLAIN), scale=scale)


@pytest.mark.parametrize(
    ("dtype", "numbers", "mean"),
    [
        (np.float16, np.full(4096, 60000), 60000),
        (ml_dtypes.bfloat16, np.ones(8192), 1),
        (ml_dtypes.bfloat16, np.arange(8192) % 2 == 0, 0.5),
    ],
    ids=["overflow", "ones", "halves"],
)
@pytest.mark.parametrize("len_query", [1, 70])
def test_n06_sums_are_wider_than_half_floats(len_query, dtype, numbers, mean):
    """ik_llama.cpp #1196; mistral.rs #1417: sums in half floats overflow, or stop growing."""
    value = np.repeat(numbers[:, None], 3, 1).astype(dtype)
    query, key = np.zeros((len_query, 4), dtype), np.zeros((len(value), 4), dtype)
    same_bits(sdpa(query, key, value), np.full((len_query, 3), mean, dtype))


def test_n08_partial_results_merge_by_the_natural_logarithm():
    """pytorch #181645: log-sum-exp of base 2; flash-attention #404: without the maximum."""
    query, key, value = arrays(*PLAIN)
    whole = sdpa(query, key, value, return_lse=True)
    halves = [slice(0, 4), slice(4, 10)]
    parts = [sdpa(query, key[:, :, half], value[:, :, half], return_lse=True) for half in halves]
    lse = np.logaddexp(parts[0].lse, parts[1].lse)
    np.testing.assert_allclose(lse, whole.lse, rtol=4e-6, atol=1e-6)
    by_hand = sum(part.output * np.exp(part.lse - lse)[..., None] for part in parts)
    expected, _ = textbook(query, key, value)
    np.testing.assert_allclose(by_hand, expected, rtol=0, atol=2 * SHARES[np.float32] * 2)
    partials = [
        qkv.partial(query, key[:, :, half], value[:, :, half], key_offset=half.start) for half in halves
    ]
    merged = qkv.merge(*partials, return_lse=True)
    assert_near(merged.output, expected, value)
    np.testing.assert_allclose(merged.lse, whole.lse, rtol=4e-6, atol=1e-6)


def test_n08_an_empty_part_changes_nothing():
    query, key, value = arrays(*PLAIN)
    closed = np.zeros((6, 10), bool)
    whole = qkv.partial(query, key, value)
    empty = qkv.partial(query, key, value, closed, key_offset=10)
    assert (empty.lse == -np.inf).all()
    same_bits(qkv.merge(whole, empty), sdpa(query, key, value))
    nothing = qkv.merge(empty, return_lse=True)
    assert not nothing.output.any() and (nothing.lse == -np.inf).all()


@pytest.mark.parametrize("dtype", [np.float32, *HALVES])
def test_n09_low_precision_is_judged_by_float64(dtype):
    """pytorch #128922; flash-attention #1071: two roundings compared with one another."""
    query, key, value = ((4 * array).astype(dtype) for array in arrays((1, 16, 240, 128), (1, 16, 240, 128)))
    truth, _ = textbook(query, key, value)

    def error(result):
        return np.abs(result.astype(np.float64) - truth).max()

    def rounded(array):
        return array.astype(dtype).astype(np.float32)

    # The five steps in float32, each step's array rounded to the dtype.
    wide = [array.astype(np.float32) for array in (query, key, value)]
    scores = rounded(rounded(wide[0] @ wide[1].swapaxes(-1, -2)) * np.float32(128**-0.5))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    plain = error(rounded(rounded(weights / weights.sum(-1, keepdims=True)) @ wide[2]))
    ulp = np.spacing(np.abs(truth).max().astype(np.float32))
    assert error(sdpa(query, key, value)) <= (plain if dtype in HALVES else 2 * plain + 2 * ulp)


def test_s05_the_scale_comes_of_the_querys_dim():
    """pytorch #176843: a value of another dim gave the query's columns, or set the scale. FP10, FP11."""
    query, key, value = arrays((1, 2, 7, 16), (1, 2, 5, 16), (1, 2, 5, 32))
    output = sdpa(query, key, value)
    assert output.shape == (1, 2, 7, 32)
    same_bits(output, sdpa(query, key, value, scale=0.25))
    same_bits(output[..., :16], sdpa(query, key, value[..., :16]))


def test_s06_any_rank_is_a_loop_over_leading_axes():
    """pytorch #120810: inputs of five axes."""
    query, key, value = arrays((3, 2, 4, 7, 16), (3, 2, 4, 5, 16), (3, 2, 4, 5, 32))
    mask = grid((1, 1, 5), 3) > -1
    output = sdpa(query, key, value, mask)
    for index in np.ndindex(3, 2, 4):
        same_bits(output[index], sdpa(query[index], key[index], value[index], mask[0]))
    one = sdpa(query[:1], key, value, mask)
    for batch in range(3):
        same_bits(one[batch], sdpa(query[0], key[batch], value[batch], mask))
    shared = sdpa(query, key[:1], value[:1], mask)
    for batch in range(3):
        same_bits(shared[batch], sdpa(query[batch], key[0], value[0], mask))


def test_s06_ones_everywhere():
    """pytorch #127523: axes of length 1."""
    query, key, value = arrays((1, 1, 1, 1), (1, 1, 1, 1))
    same_bits(sdpa(query, key, value), value)
    same_bits(sdpa(query[0, 0], key[0, 0], value[0, 0]), value[0, 0])


QUERY, KEY, VALUE = arrays((2, 3, 4, 8), (2, 3, 6, 8))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((QUERY, KEY.astype(np.float16), VALUE), TypeError, "key: got dtype float16, want float32"),
        ((QUERY, KEY, VALUE.astype(np.float64)), TypeError, "value: got dtype float64, want float32"),
        ((QUERY, KEY[..., :6], VALUE), ValueError, "key: got shape (2, 3, 6, 6), want (…, len_key, 8)"),
        ((QUERY, KEY, VALUE[:, :, :5]), ValueError, "value: got shape (2, 3, 5, 8), want (…, 6, dim_value)"),
        ((QUERY, KEY[0, 0, 0], VALUE), ValueError, "key: got shape (8,), want (len, dim)"),
        ((QUERY, KEY, VALUE, 0.1), TypeError, "attn_mask: got float, want an array"),
        ((QUERY, KEY, VALUE, None, QUERY), TypeError, "dropout_p: got ndarray, want a number"),
        ((QUERY, KEY, VALUE, None, 0.0, 0.125), TypeError, "is_causal: got float, want True or False"),
        ((QUERY, KEY, VALUE, None, 0.0, False, True), TypeError, "scale: got bool, want a number"),
    ],
    ids=str,
)
def test_p06_errors_name_the_argument(arguments, error, message):
    """pytorch #103826: what does not fit was cast, or said in the words of a kernel."""
    with pytest.raises(error) as raised:
        sdpa(*arguments)
    assert str(raised.value).startswith(message)
