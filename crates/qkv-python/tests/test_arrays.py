"""Arrays in and out: every kind and stride is read where it lies; results are of the kind that came in."""

import array
import ctypes
import gc

import ml_dtypes
import numpy as np
import pytest
import qkv
from support import grid, same_bits, textbook

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]


def arrays(dtype=np.float32):
    shapes = [(2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 5)]
    return [grid(shape, seed).astype(dtype) for seed, shape in enumerate(shapes)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_of_the_querys_dtype_and_contiguous(dtype):
    query, key, value = arrays(dtype)
    output, weights, lse = qkv.scaled_dot_product_attention(
        query, key, value, return_weights=True, return_lse=True
    )
    assert output.dtype == weights.dtype == dtype
    assert lse.dtype == (np.float64 if dtype == np.float64 else np.float32)
    assert (output.shape, weights.shape, lse.shape) == ((2, 3, 4, 5), (2, 3, 4, 6), (2, 3, 4))
    assert all(result.flags.c_contiguous and result.flags.writeable for result in (output, weights, lse))
    expected, _ = textbook(query, key, value)
    step = 2.0**-7 if dtype == ml_dtypes.bfloat16 else float(np.finfo(dtype).eps)
    np.testing.assert_allclose(output.astype(np.float64), expected, atol=4 * step, rtol=0)


def transposed(x):
    return np.ascontiguousarray(np.swapaxes(x, -1, -2)).swapaxes(-1, -2)


def every_second(x):
    wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), np.nan, x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


def reversed_axes(x):
    return np.ascontiguousarray(x[::-1, :, ::-1, ::-1])[::-1, :, ::-1, ::-1]


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("view", [transposed, every_second, reversed_axes, np.asfortranarray, read_only])
def test_a_view_gives_the_bits_of_its_copy(view, dtype):
    plain = arrays(dtype)
    expected = qkv.scaled_dot_product_attention(*plain)
    for place in range(3):
        viewed = list(plain)
        viewed[place] = view(plain[place])
        same_bits(viewed[place], plain[place])
        same_bits(qkv.scaled_dot_product_attention(*viewed), expected)


def test_repeated_axes_are_not_expanded():
    # Written out, the keys would be 2 TB.
    key = np.broadcast_to(np.zeros((1, 1, 2, 8), np.float32), (1 << 20, 1 << 14, 2, 8))[:1, :4]
    query = grid((1, 4, 3, 8))
    same_bits(
        qkv.scaled_dot_product_attention(query, key, key),
        qkv.scaled_dot_product_attention(query, key.copy(), key.copy()),
    )


def test_inputs_are_read_where_they_lie():
    """No copies: a few bytes of work memory where copies would take hundreds of megabytes."""
    import resource

    key = np.zeros((1, 1, 1 << 21, 16), np.float32)
    value = key[:, :, ::-1]
    query = grid((1, 1, 1, 16))
    qkv.scaled_dot_product_attention(query, key, value)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    qkv.scaled_dot_product_attention(query, np.swapaxes(key, 0, 1), value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10


def test_inputs_are_left_as_they_were():
    before = arrays()
    after = [x.copy() for x in before]
    qkv.scaled_dot_product_attention(*after, is_causal=True, return_weights=True)
    for one, other in zip(before, after, strict=True):
        same_bits(one, other)


def test_lists_and_buffers_come_back_as_numpy():
    rows = [[1, 2], [3, 4]]
    from_lists = qkv.scaled_dot_product_attention([[1.0, 2.0], [3.0, 4.0]], rows_of(rows), rows_of(rows))
    assert isinstance(from_lists, np.ndarray) and from_lists.dtype == np.float64
    flat = array.array("f", [1, 2, 3, 4])
    buffer = memoryview(flat).cast("B").cast("f", (2, 2))
    output = qkv.scaled_dot_product_attention(buffer, buffer, buffer)
    assert isinstance(output, np.ndarray) and output.dtype == np.float32
    np.testing.assert_allclose(output, from_lists, atol=1e-6)


def rows_of(rows):
    return [[float(x) for x in row] for row in rows]


class Producer:
    """What has DLPack and nothing else, and counts what lives."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack__(self, **request):
        return self.array.__dlpack__(**request)

    def __dlpack_device__(self):
        return self.device

    def __array_namespace__(self):
        return Library


class Library:
    @staticmethod
    def from_dlpack(tensor):
        return Producer(np.from_dlpack(tensor))


def test_what_has_dlpack_comes_back_as_its_own_library_makes_it():
    query, key, value = arrays()
    output = qkv.scaled_dot_product_attention(*map(Producer, (query, key, value)))
    assert isinstance(output, Producer)
    same_bits(output.array, qkv.scaled_dot_product_attention(query, key, value))
    del output
    gc.collect()


def test_another_device_is_named():
    query, key, value = arrays()
    with pytest.raises(TypeError, match=r"key: got a tensor on cuda:3, want one in the CPU's memory"):
        qkv.scaled_dot_product_attention(query, Producer(key, (2, 3)), value)


def test_out_is_written_and_returned():
    query, key, value = arrays()
    expected = qkv.scaled_dot_product_attention(query, key, value, return_lse=True)
    out = np.full((2, 3, 4, 5), np.nan, np.float32)
    assert qkv.scaled_dot_product_attention(query, key, value, out=out) is out
    same_bits(out, expected.output)
    strided = np.full((2, 4, 3, 10), np.nan, np.float32).swapaxes(1, 2)[..., ::-2]
    result = qkv.scaled_dot_product_attention(query, key, value, out=strided, return_lse=True)
    assert result.output is strided
    same_bits(strided, expected.output)
    same_bits(result.lse, expected.lse)


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (
            np.zeros((2, 3, 4, 6), np.float32),
            ValueError,
            r"out: got shape \(2, 3, 4, 6\), want \(2, 3, 4, 5\)",
        ),
        (np.zeros((2, 3, 4, 5)), TypeError, "out: got dtype float64, want float32"),
        (read_only(np.zeros((2, 3, 4, 5), np.float32)), ValueError, "out: got a read-only array"),
        (np.broadcast_to(np.zeros(5, np.float32), (2, 3, 4, 5)), ValueError, "out: got a read-only array"),
        (
            np.lib.stride_tricks.as_strided(np.zeros(64, np.float32), (2, 3, 4, 5), (0, 0, 4, 4)),
            ValueError,
            "out: got an array whose elements share memory",
        ),
        (1.0, TypeError, "out: got float, want an array"),
    ],
)
def test_what_cannot_be_written_is_refused(out, error, message):
    with pytest.raises(error, match=message):
        qkv.scaled_dot_product_attention(*arrays(), out=out)


def test_out_must_not_lie_in_an_input():
    query, key, _ = arrays()
    before = key.copy()
    with pytest.raises(ValueError, match="out: got memory of key, want memory of its own"):
        qkv.scaled_dot_product_attention(query, key, key, out=key[:, :, 1:5])
    same_bits(key, before)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (grid((2, 3, 6, 5)).astype(">f4"), r"got an array, of >f4, want this machine's byte order"),
        (grid((2, 3, 6, 5)).astype(np.complex64), "got dtype complex64, want float32"),
        (grid((2, 3, 6, 5)).astype(np.int32), "got dtype int32, want float32"),
        (grid((2, 3, 6, 5)).astype(np.longdouble), "got dtype float128, want float32|got dtype longdouble"),
        (grid((2, 3, 6, 5)).astype(object), "got dtype object, want float32"),
        (np.zeros((2, 3, 6, 5), "U1"), "got dtype <U1, want float32"),
        ("abc", "got str, want an array"),
        (b"abc", "got bytes, want an array"),
        (3.5, "got float, want an array"),
        (None, "got NoneType, want an array"),
        ({}, "got dict, want an array"),
        (object(), "got object, want an array"),
        (np.float32(1), r"got shape \(\), want \(len, dim\)"),
    ],
)
def test_what_is_no_array_of_floats_is_named(value, message):
    query, key, _ = arrays()
    with pytest.raises((TypeError, ValueError), match=f"value: ({message})"):
        qkv.scaled_dot_product_attention(query, key, value)


def test_odd_addresses_are_refused():
    memory = np.zeros(2 * 3 * 6 * 5 * 4 + 1, np.uint8)
    odd = memory[1:].view(np.float32).reshape(2, 3, 6, 5)
    query, key, _ = arrays()
    if odd.flags.aligned:
        pytest.skip("this NumPy has no unaligned arrays")
    with pytest.raises(
        TypeError, match="value: got an array at odd addresses, of float32, want an aligned one"
    ):
        qkv.scaled_dot_product_attention(query, key, odd)
    record = np.zeros((2, 3, 6, 5), np.dtype([("x", np.float32), ("tag", np.uint8)]))["x"]
    with pytest.raises(
        TypeError, match="value: got an array at odd addresses, of float32, want an aligned one"
    ):
        qkv.scaled_dot_product_attention(query, key, record)


def test_a_boolean_mask_of_other_bytes_is_refused():
    query, key, value = arrays()
    mask = np.full((4, 6), 2, np.uint8).view(np.bool_)
    with pytest.raises(ValueError, match="attn_mask: got a boolean whose byte is 2, want 0 or 1"):
        qkv.scaled_dot_product_attention(query, key, value, mask)


@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 3, 0, 8), (2, 3, 6, 8), (2, 3, 6, 5)],
        [(2, 3, 4, 8), (2, 3, 0, 8), (2, 3, 0, 5)],
        [(2, 3, 4, 0), (2, 3, 6, 0), (2, 3, 6, 5)],
        [(2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 0)],
        [(0, 3, 4, 8), (0, 3, 6, 8), (0, 3, 6, 5)],
        [(2, 0, 4, 8), (2, 0, 6, 8), (2, 0, 6, 5)],
        [(0, 0), (0, 0), (0, 0)],
    ],
)
def test_empty_axes_give_empty_or_zero_rows(shapes):
    query, key, value = (np.zeros(shape, np.float32) for shape in shapes)
    result = qkv.scaled_dot_product_attention(query, key, value, return_weights=True, return_lse=True)
    assert result.output.shape == (*shapes[0][:-1], shapes[2][-1])
    assert not result.output.any()
    assert result.weights.shape == (*shapes[0][:-1], shapes[1][-2])


def test_results_outlive_their_inputs():
    query, key, value = arrays()
    results = [qkv.scaled_dot_product_attention(query, key, value, return_lse=True) for _ in range(50)]
    expected = [part.copy() for part in results[0]]
    del query, key, value
    gc.collect()
    churn = [np.full((2, 3, 4, 5), np.nan, np.float32) for _ in range(50)]
    for result in results:
        same_bits(result.output, expected[0])
        same_bits(result.lse, expected[1])
    del churn


def test_memory_of_ctypes_is_a_buffer():
    memory = (ctypes.c_float * 8 * 3)()
    output = qkv.scaled_dot_product_attention(memory, memory, memory)
    assert output.shape == (3, 8)


class OldProducer:
    """What has DLPack from before its version 1.0."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return (1, 0)


def test_producers_of_old_are_read():
    query, key, value = arrays()
    output = qkv.scaled_dot_product_attention(query, OldProducer(key), OldProducer(value))
    same_bits(output, qkv.scaled_dot_product_attention(query, key, value))


def test_a_library_that_cannot_take_results_is_named_before_they_are_computed():
    with pytest.raises(TypeError, match="query: got a OldProducer, whose library has no from_dlpack"):
        qkv.scaled_dot_product_attention(*map(OldProducer, arrays()))
