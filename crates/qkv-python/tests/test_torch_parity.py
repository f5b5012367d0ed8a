"""Each agreed difference to torch is a line of PARITY.md and a test here, marked ``difference``; the last
test compares the two.

Where torch refuses only for want of a kernel, qkv computes, and a textbook in float64 judges.
"""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from parity import (
    DIFFERENCES,
    FLOAT_MIN,
    KEY,
    MASK,
    QUERY,
    VALUE,
    WARNINGS,
    assert_as_textbook,
    assert_as_torch,
    assert_error_law,
    booleans,
    difference,
    distance,
    every_dtype,
    largest,
    one_thread_of_torch,  # noqa: F401
    positions_first,
    qkv_sdpa,
    shown,
    tensor,
    tensors,
    torch_math,
    torch_sdpa,
)
from support import same_bits
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

pytestmark = WARNINGS

# --- differences: what torch has no kernel for


@difference
@every_dtype
def test_masks_compose(dtype):
    query, key, value = tensors((2, 3, 17, 8), (2, 3, 21, 8), dtype=dtype)
    before = torch.ones(17, 21, dtype=torch.bool).tril()
    mask, bias = booleans(17, 21), tensor(17, 21, seed=4, dtype=dtype)
    composed = bias.masked_fill(~before, -math.inf)
    assert_as_textbook(
        query, key, value, {"attn_mask": mask, "is_causal": True}, as_torch={"attn_mask": mask & before}
    )
    assert_as_textbook(
        query, key, value, {"attn_mask": bias, "is_causal": True}, as_torch={"attn_mask": composed}
    )


@difference
@pytest.mark.parametrize(
    ("dtype", "mask"),
    [
        (torch.float32, torch.float64),
        (torch.float32, torch.float16),
        (torch.float32, torch.bfloat16),
        (torch.float64, torch.float16),
        (torch.float16, torch.float64),
        (torch.float16, torch.bfloat16),
        (torch.bfloat16, torch.float64),
        (torch.bfloat16, torch.float16),
    ],
    ids=str,
)
def test_float_mask_of_another_width(dtype, mask):
    query, key, value = tensors((2, 3, 17, 8), (2, 3, 21, 8), dtype=dtype)
    bias = tensor(17, 21, seed=3, dtype=mask)
    assert_as_textbook(query, key, value, {"attn_mask": bias}, as_torch={"attn_mask": bias.to(dtype)})


@difference
@pytest.mark.parametrize("mask", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_wide_float_mask_is_not_narrowed(dtype, mask):
    """2049 is no float16 and no bfloat16; narrowed, it would be as likely as 2048."""
    zeros, value = torch.zeros(2, 4, dtype=dtype), torch.eye(2, dtype=dtype)
    weights = qkv_sdpa(zeros, zeros, value, torch.tensor([[2049, 2048]], dtype=mask))
    assert distance(weights[0], torch.tensor([math.e, 1.0]) / (1 + math.e)) <= torch.finfo(dtype).eps / 2


@difference
@pytest.mark.parametrize("shape", [(), (1,), (21,)], ids=str)
def test_mask_of_fewer_than_two_axes(shape):
    query, key, value = tensors((2, 3, 17, 8), (2, 3, 21, 8))
    for mask in (booleans(*shape), tensor(*shape, seed=3)):
        whole = mask.expand(17, 21)
        assert_as_textbook(query, key, value, {"attn_mask": mask}, as_torch={"attn_mask": whole})


@difference
@pytest.mark.parametrize("shapes", [((70, 8), (21, 8)), ((2, 4, 17, 8), (21, 8))], ids=shown)
def test_enable_gqa_of_one_head_without_an_axis(shapes):
    assert_as_textbook(*tensors(*shapes), {"enable_gqa": True}, as_torch={})


# --- differences: numbers that are not finite


@difference
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("argument", ["key", "value"])
@pytest.mark.parametrize("masked_by", ["boolean", "additive", "is_causal"])
@every_dtype
def test_masked_junk_does_not_leak(dtype, masked_by, argument, junk):
    query, key, value = tensors((2, 3, 17, 8), (2, 3, 70, 8), dtype=dtype)
    allowed = (torch.arange(70) < 66)[None]
    options = {
        "boolean": {"attn_mask": allowed},
        "additive": {"attn_mask": torch.zeros(1, 70, dtype=dtype).masked_fill(~allowed, -math.inf)},
        "is_causal": {"is_causal": True},
    }[masked_by]
    clean = qkv_sdpa(query, key, value, **options, return_weights=True, return_lse=True)
    (key if argument == "key" else value)[:, :, 66:] = junk
    assert torch_math(query, key, value, **options).isnan().any()
    got = qkv_sdpa(query, key, value, **options, return_weights=True, return_lse=True)
    for one, other in zip(got, clean, strict=True):
        assert one.equal(other)


@difference
@pytest.mark.parametrize("is_causal", [False, True], ids=["open", "causal"])
@every_dtype
def test_nan_queries_are_not_hidden(dtype, is_causal):
    """Torch hides them where the keys are fewer than the numbers that its fast path takes at a time."""
    query, key, value = tensors((2, 2, 17, 4), (2, 2, 3, 4), dtype=dtype)
    clean = qkv_sdpa(query, key, value, is_causal=is_causal)
    query[:, :, 5] = math.nan
    hidden = torch_sdpa(query, key, value, is_causal=is_causal)
    assert hidden[:, :, 5].eq(0).all()
    got = qkv_sdpa(query, key, value, is_causal=is_causal)
    assert got[:, :, 5].isnan().all()
    others = torch.arange(17) != 5
    assert got[:, :, others].equal(clean[:, :, others])


@difference
def test_a_row_that_may_attend_nothing_is_0_whatever_its_query():
    query, key, value = tensors((2, 2, 17, 4), (2, 2, 21, 4))
    mask = booleans(17, 21)
    mask[5] = False
    query[:, :, 5] = math.nan
    assert torch_sdpa(query, key, value, mask)[:, :, 5].isnan().all()
    assert qkv_sdpa(query, key, value, mask)[:, :, 5].eq(0).all()


@difference
@every_dtype
def test_a_row_that_may_attend_nothing_has_an_lse(dtype):
    query, key, value = tensors((2, 2, 17, 4), (2, 2, 21, 4), dtype=dtype)
    mask = booleans(17, 21)
    mask[5] = False
    output, weights, lse = qkv_sdpa(query, key, value, mask, return_weights=True, return_lse=True)
    assert output[:, :, 5].eq(0).all() and weights[:, :, 5].eq(0).all() and lse[:, :, 5].eq(-math.inf).all()
    assert not lse[:, :, :5].isinf().any() and not output.isnan().any() and not weights.isnan().any()


@difference
@pytest.mark.parametrize("mask", [None, torch.full((3, 5), FLOAT_MIN)], ids=["product", "sum"])
def test_a_score_that_overflows_is_no_mask(mask):
    """All scores are below the least float32, and finite: the keys are as likely as one another."""
    query, key, value = torch.full((3, 4), 1e10), torch.full((5, 4), -1e28), tensor(5, 4, seed=2)
    if mask is None:
        query = query * 1e10
    assert torch_sdpa(query, key, value, mask).eq(0).all()
    got = qkv_sdpa(query, key, value, mask)
    assert_error_law(got, value.double().mean(0).expand(3, 4), [value.mean(0).expand(3, 4)])


@difference
def test_denormal_numbers_are_kept():
    query, key, value = torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 5, 4), torch.full((1, 1, 5, 4), 1e-40)
    expected = qkv_sdpa(query, key, value)
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine cannot flush")
    try:
        flushed = torch_sdpa(query, key, value)
        got = qkv_sdpa(query, key, value)
    finally:
        torch.set_flush_denormal(False)
    assert flushed.eq(0).all()
    assert got.equal(expected) and got.gt(0).all()


@difference
@pytest.mark.parametrize(
    "scale", [math.nan, math.inf, -math.inf, torch.tensor(math.nan), 1e39, 1e300], ids=repr
)
def test_scale_must_be_finite(scale):
    assert torch_math(QUERY, KEY, VALUE, scale=scale).shape == QUERY.shape
    with pytest.raises(ValueError, match=r"^scale: got .*, want a finite") as raised:
        qkv_sdpa(QUERY, KEY, VALUE, scale=scale)
    assert len(str(raised.value)) < 100


# --- differences: shapes


@difference
@pytest.mark.parametrize("len_value", [6, 9])
def test_key_and_value_have_one_length(len_value):
    """Torch's fast path does not ask, and may read beyond the shorter one: here that is memory of its own."""
    key, value = tensor(2, 4, 12, 8, seed=1)[:, :, :5], tensor(2, 4, 12, 8, seed=2)[:, :, :len_value]
    assert torch_sdpa(QUERY, key, value).shape == QUERY.shape
    with pytest.raises(RuntimeError):
        torch_math(QUERY, key, value)
    with pytest.raises(ValueError, match=re.escape(f"value: got shape (2, 4, {len_value}, 8), want (…, 5, ")):
        qkv_sdpa(QUERY, key, value)


@difference
@pytest.mark.parametrize(("key_heads", "value_heads"), [(4, 2), (2, 4), (2, 1)])
def test_grouped_keys_and_values_have_as_many_heads(key_heads, value_heads):
    key, value = KEY[:, :key_heads], VALUE[:, :value_heads]
    assert torch_sdpa(QUERY, key, value, enable_gqa=True).shape == QUERY.shape
    message = f"value: got shape (2, {value_heads}, 5, 8), want (…, {key_heads}, "
    with pytest.raises(ValueError, match=re.escape(message)):
        qkv_sdpa(QUERY, key, value, enable_gqa=True)


@difference
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"query": QUERY[:, :, :0], "key": tensor(2, 4, 5, 6)},
            "key: got shape (2, 4, 5, 6), want (…, len_key, 8)",
        ),
        (
            {"query": QUERY[:, :, :0], "key": tensor(3, 4, 5, 8)},
            "key: got shape (3, 4, 5, 8), want 2 or 1 on axis 0",
        ),
        (
            {"query": QUERY[:, :, :0], "attn_mask": booleans(7, 5)},
            "attn_mask: got shape (7, 5), want (2, 4, 0, 5)",
        ),
        ({"value": VALUE[:, :, :0]}, "value: got shape (2, 4, 0, 8), want (…, 5, "),
        ({"key": KEY[:, :3, :0], "value": VALUE[:, :3, :0]}, "key: got 3 key heads"),
        (
            {"key": KEY[:, :0], "value": VALUE[:, :0], "enable_gqa": True},
            "key: got shape (2, 0, 5, 8), want a number of key heads that divides the 4 query heads",
        ),
    ],
    ids=["dim", "batch", "mask", "length", "heads", "groups"],
)
def test_calls_with_an_empty_array_are_checked_too(changed, message):
    call = {"query": QUERY, "key": KEY, "value": VALUE} | changed
    assert torch_sdpa(**call).shape == call["query"].shape
    with pytest.raises(ValueError, match=re.escape(message)):
        qkv_sdpa(**call)


@difference
@pytest.mark.parametrize(
    ("query", "key", "value", "shape"),
    [
        (QUERY[:1], KEY[:0], VALUE[:0], (0, 4, 3, 8)),
        (QUERY[:, :1], KEY[:, :0], VALUE[:, :0], (2, 0, 3, 8)),
        (QUERY[0, 0], KEY[0, 0, :0], VALUE[:, :, :0], (2, 4, 3, 8)),
    ],
    ids=["batch", "heads", "rank"],
)
def test_calls_with_an_empty_array_broadcast_too(query, key, value, shape):
    assert torch_sdpa(query, key, value).shape == query.shape
    assert qkv_sdpa(query, key, value).shape == shape


@difference
def test_a_mask_may_have_axes_that_the_value_alone_has():
    query, key, value = tensors((17, 8), (21, 8), (2, 3, 21, 8))
    mask = booleans(2, 3, 17, 21)
    with pytest.raises(RuntimeError):
        torch_sdpa(query, key, value, mask)
    same_bits(qkv_sdpa(query, key, value, mask), qkv_sdpa(query, key.expand(value.shape), value, mask))
    assert_as_torch(query, key.expand(value.shape), value, attn_mask=mask)


@difference
def test_a_mask_has_no_more_axes_than_the_arrays():
    mask = booleans(1, 1, 3, 5)
    assert torch_sdpa(QUERY[0], KEY[0], VALUE[0], mask).shape == QUERY[0].shape
    with pytest.raises(ValueError, match=re.escape("attn_mask: got shape (1, 1, 3, 5), want (4, 3, 5)")):
        qkv_sdpa(QUERY[0], KEY[0], VALUE[0], mask)


@difference
def test_output_is_contiguous_whatever_the_query():
    query, key, value = (positions_first(array) for array in tensors((2, 3, 17, 8), (2, 3, 21, 8)))
    assert not torch_sdpa(query, key, value).is_contiguous()
    assert qkv_sdpa(query, key, value).is_contiguous()


# --- differences: arguments


@difference
@pytest.mark.parametrize(
    ("changed", "of_torch", "of_qkv"),
    [
        ({"key": tensor(2, 4, 5, 6)}, RuntimeError, ValueError),
        ({"attn_mask": tensor(7)}, IndexError, ValueError),
        ({"key": KEY.half()}, RuntimeError, TypeError),
        ({"attn_mask": MASK.int()}, RuntimeError, TypeError),
        (dict.fromkeys(["query", "key", "value"], KEY.to(torch.complex64)), NotImplementedError, TypeError),
        ({"scale": 10**400}, OverflowError, ValueError),
    ],
    ids=["shape", "rank of a mask", "dtypes", "dtype of a mask", "dtype", "number"],
)
def test_errors_are_of_a_type_or_of_a_value(changed, of_torch, of_qkv):
    call = {"query": QUERY, "key": KEY, "value": VALUE} | changed
    with pytest.raises(of_torch):
        torch_sdpa(**call)
    with pytest.raises(of_qkv):
        qkv_sdpa(**call)


@difference
@pytest.mark.parametrize(
    "option", [{"scale": True}, {"scale": False}, {"dropout_p": False}, {"dropout_p": True}], ids=str
)
def test_a_boolean_is_no_number(option):
    """Given by position, is_causal=True can slip into another's place."""
    assert torch_sdpa(QUERY, KEY, VALUE, **option).shape == QUERY.shape
    with pytest.raises(TypeError, match=f"{next(iter(option))}: got bool, want a number"):
        qkv_sdpa(QUERY, KEY, VALUE, **option)


@difference
def test_scale_and_enable_gqa_may_go_by_position():
    arguments = (QUERY, KEY[:, :2], VALUE[:, :2], None, 0.0, True, 0.5, True)
    with pytest.raises(TypeError):
        torch_sdpa(*arguments)
    by_name = {"is_causal": True, "scale": 0.5, "enable_gqa": True}
    same_bits(qkv_sdpa(*arguments), qkv_sdpa(*arguments[:3], **by_name))


@difference
@pytest.mark.parametrize("option", ["dropout_p", "is_causal", "enable_gqa"])
def test_none_is_as_if_left_out(option):
    with pytest.raises(TypeError):
        torch_sdpa(QUERY, KEY, VALUE, **{option: None})
    same_bits(qkv_sdpa(QUERY, KEY, VALUE, **{option: None}), qkv_sdpa(QUERY, KEY, VALUE))


@difference
@pytest.mark.parametrize("option", ["is_causal", "enable_gqa"])
def test_booleans_of_numpy(option):
    with pytest.raises(TypeError):
        torch_sdpa(QUERY, KEY, VALUE, **{option: np.True_})
    expected = qkv_sdpa(QUERY, KEY, VALUE, **{option: True})
    same_bits(qkv_sdpa(QUERY, KEY, VALUE, **{option: np.True_}), expected)


@difference
def test_an_array_of_one_number_is_a_scale():
    scale = torch.tensor([0.5])
    with pytest.raises(TypeError):
        torch_sdpa(QUERY, KEY, VALUE, scale=scale)
    same_bits(qkv_sdpa(QUERY, KEY, VALUE, scale=scale), qkv_sdpa(QUERY, KEY, VALUE, scale=0.5))


@difference
def test_numpy_arrays_and_lists_beside_tensors():
    """Results are of the query's kind; lists come back as NumPy."""
    expected = qkv_sdpa(QUERY, KEY, VALUE, MASK)
    with pytest.raises(TypeError):
        torch_sdpa(QUERY, KEY.numpy(), VALUE)
    for key, mask in ((KEY.numpy(), MASK), (KEY, MASK.numpy()), (KEY, MASK.tolist())):
        got = qkv_sdpa(QUERY, key, VALUE, mask)
        assert type(got) is torch.Tensor and got.equal(expected)
    got = qkv_sdpa(QUERY.numpy(), KEY, VALUE, MASK)
    assert type(got) is np.ndarray
    same_bits(got, expected)
    wide = [array.double() for array in (QUERY, KEY, VALUE)]
    got = qkv_sdpa(*(array.tolist() for array in wide))
    assert type(got) is np.ndarray
    same_bits(got, qkv_sdpa(*wide))


@difference
def test_booleans_are_bytes_of_0_and_1():
    mask = torch.full((3, 5), 2, dtype=torch.uint8).view(torch.bool)
    assert torch_sdpa(QUERY, KEY, VALUE, mask).shape == QUERY.shape
    with pytest.raises(ValueError, match="attn_mask: got a boolean whose byte is 2, want 0 or 1"):
        qkv_sdpa(QUERY, KEY, VALUE, mask)


def nested(layout):
    return [torch.nested.nested_tensor([*array], layout=layout) for array in (QUERY, KEY, VALUE)]


def fake():
    mode = FakeTensorMode()
    return [mode.from_tensor(array) for array in (QUERY, KEY, VALUE)]


WITHOUT_MEMORY = {
    "meta": lambda: [array.to("meta") for array in (QUERY, KEY, VALUE)],
    "nested": lambda: nested(torch.strided),
    "jagged": lambda: nested(torch.jagged),
    "fake": fake,
    "zero": lambda: [torch._efficientzerotensor(QUERY.shape), KEY, VALUE],
}


@difference
@pytest.mark.parametrize("kind", WITHOUT_MEMORY)
def test_tensors_without_plain_memory(kind):
    arrays = WITHOUT_MEMORY[kind]()
    assert isinstance(torch_sdpa(*arrays), torch.Tensor)
    with pytest.raises(TypeError, match="query: got a "):
        qkv_sdpa(*arrays)


@difference
def test_the_result_of_a_subclass_is_a_plain_tensor():
    class Subclass(torch.Tensor):
        pass

    arrays = [array.as_subclass(Subclass) for array in (QUERY, KEY, VALUE)]
    assert type(torch_sdpa(*arrays)) is Subclass
    got = qkv_sdpa(*arrays)
    assert type(got) is torch.Tensor and got.equal(qkv_sdpa(QUERY, KEY, VALUE))


@difference
def test_autocast_casts_nothing():
    expected = qkv_sdpa(QUERY, KEY, VALUE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch_sdpa(QUERY, KEY, VALUE).dtype == torch.bfloat16
        assert torch_sdpa(QUERY, KEY.bfloat16(), VALUE).dtype == torch.bfloat16
        same_bits(qkv_sdpa(QUERY, KEY, VALUE), expected)
        with pytest.raises(TypeError, match="key: got dtype bfloat16, want float32, as the query has"):
            qkv_sdpa(QUERY, KEY.bfloat16(), VALUE)


# --- differences: what is not there yet, and what is more


@difference
@pytest.mark.parametrize("dropout_p", [0.5, torch.tensor(0.5)], ids=repr)
def test_dropout_drops_by_place(dropout_p):
    """Which pairs are dropped is not torch's choice, and on any path the same."""
    arrays = tensors((1, 2, 130, 16), (1, 2, 130, 16))
    torch.manual_seed(0)
    torchs = torch_sdpa(*arrays, dropout_p=dropout_p)
    torch.manual_seed(0)
    assert not torch.equal(qkv_sdpa(*arrays, dropout_p=dropout_p), torchs)
    whole = qkv_sdpa(*arrays, dropout_p=dropout_p, seed=5)
    query, key, value = arrays
    same_bits(qkv_sdpa(query[:, :, :3], key, value, dropout_p=dropout_p, seed=5), whole[:, :, :3])


@pytest.mark.parametrize("dropout_p", [1, 1.0])
def test_all_dropped(dropout_p):
    assert_as_torch(QUERY, KEY, VALUE, dropout_p=dropout_p)


@pytest.mark.parametrize("dropout_p", [0, 0.0, torch.tensor(0.0)], ids=repr)
def test_no_dropout(dropout_p):
    assert_as_torch(QUERY, KEY, VALUE, dropout_p=dropout_p)


@pytest.mark.parametrize("argument", ["query", "key", "value", "attn_mask"])
def test_gradients_are_recorded(argument):
    call = {"query": QUERY, "key": KEY, "value": VALUE, "attn_mask": tensor(3, 5)}
    call[argument] = call[argument].clone().requires_grad_()
    got, want = (
        torch.autograd.grad(sdpa(**call).square().sum(), call[argument])[0] for sdpa in (qkv_sdpa, torch_sdpa)
    )
    torch.testing.assert_close(got, want)
    with torch.no_grad():
        assert_as_torch(**call)


@difference
def test_gradients_of_gradients_are_not_there_yet():
    def twice(sdpa):
        query = QUERY.clone().requires_grad_()
        (first,) = torch.autograd.grad(sdpa(query, KEY, VALUE).sum(), query, create_graph=True)
        return torch.autograd.grad(first.square().sum(), query)[0]

    assert twice(torch_math).shape == QUERY.shape
    with pytest.raises(NotImplementedError, match="gradients of gradients"):
        twice(qkv_sdpa)


@difference
def test_batched_gradients_are_not_there_yet():
    def jacobian(sdpa):
        return torch.autograd.functional.jacobian(lambda x: sdpa(x, KEY, VALUE), QUERY, vectorize=True)

    assert jacobian(torch_math).shape == QUERY.shape * 2
    with pytest.raises(NotImplementedError, match=r"batched gradients .* vectorize=False"):
        jacobian(qkv_sdpa)


@difference
def test_forward_derivatives_are_not_there_yet():
    with forward_ad.dual_level():
        query = forward_ad.make_dual(QUERY, torch.ones_like(QUERY))
        assert forward_ad.unpack_dual(torch_math(query, KEY, VALUE)).tangent is not None
        with pytest.raises(NotImplementedError, match="query: "):
            qkv_sdpa(query, KEY, VALUE)


TRANSFORMS = {
    "vmap": lambda function: torch.vmap(function)(QUERY, KEY, VALUE),
    "functionalize": lambda function: torch.func.functionalize(function)(QUERY, KEY, VALUE),
    "grad": lambda function: torch.func.grad(lambda query: function(query, KEY, VALUE).sum())(QUERY),
    "jvp": lambda function: torch.func.jvp(lambda query: function(query, KEY, VALUE), (QUERY,), (QUERY,))[1],
}


@difference
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_function_transforms_are_not_there_yet(transform):
    assert TRANSFORMS[transform](torch_math).shape == QUERY.shape
    with pytest.raises((TypeError, NotImplementedError), match="query: got a "):
        TRANSFORMS[transform](qkv_sdpa)


@difference
@every_dtype
def test_weights_and_lse_can_be_returned(dtype):
    query, key, value = tensors((2, 3, 17, 8), (2, 3, 21, 8), dtype=dtype)
    with pytest.raises(TypeError):
        torch_sdpa(query, key, value, return_weights=True)
    output, weights, lse = qkv_sdpa(query, key, value, is_causal=True, return_weights=True, return_lse=True)
    same_bits(output.double(), qkv_sdpa(query, key, value, is_causal=True).double())
    scores = query.double() @ key.double().mT / 8**0.5
    scores = scores.masked_fill(~torch.ones(17, 21, dtype=torch.bool).tril(), -math.inf)
    truth, lse_truth = scores.softmax(-1), scores.logsumexp(-1)
    assert weights.dtype == dtype and weights[truth == 0].eq(0).all()
    assert_error_law(weights, truth, [scores.to(dtype).softmax(-1)])
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    error = distance(lse, lse_truth)
    assert error <= 16 * torch.finfo(lse.dtype).eps * largest(lse_truth)


ROW = (slice(0, 1), slice(1, 2), slice(130, 131))


@difference
@every_dtype
def test_one_row_one_answer(dtype):
    """Torch's bits may change with each of these."""
    query, key, value = tensors((2, 3, 257, 72), (2, 3, 257, 72), dtype=dtype)
    output = qkv_sdpa(query, key, value)
    for threads in (1, 2, 3):
        assert qkv_sdpa(query, key, value, threads=threads).equal(output)
    alone = [array[ROW[:2]].contiguous() for array in (query, key, value)]
    assert qkv_sdpa(alone[0][:, :, ROW[2]], *alone[1:]).equal(output[ROW])
    padded = [torch.nn.functional.pad(array, (0, 0, 0, 300), value=math.nan) for array in (key, value)]
    assert qkv_sdpa(query, *padded, torch.arange(557) < 257).equal(output)
    extras = qkv_sdpa(query, key, value, return_weights=True, return_lse=True)
    assert extras.output.equal(output)
    causal = qkv_sdpa(query, key, value, is_causal=True)
    before = [array[:, :, :131] for array in (key, value)]
    assert qkv_sdpa(query[:, :, ROW[2]], *before).equal(causal[:, :, ROW[2]])
    as_mask = torch.ones(257, 257, dtype=torch.bool).tril()
    assert qkv_sdpa(query, key, value, as_mask).equal(causal)


@difference
@pytest.mark.parametrize(
    ("variant", "causal"), [(causal_upper_left, "top-left"), (causal_lower_right, "bottom-right")]
)
def test_causal_biases_of_torch_are_an_option(variant, causal):
    """Their memory was never written."""
    query, key, value = tensors((2, 3, 17, 8), (2, 3, 21, 8))
    bias = variant(17, 21)
    with pytest.raises(TypeError, match=r'attn_mask: got a CausalBias.*causal="bottom-right"'):
        qkv_sdpa(query, key, value, attn_mask=bias)
    truth = torch_sdpa(query.double(), key.double(), value.double(), attn_mask=bias)
    plain = torch_sdpa(query, key, value, attn_mask=bias)
    assert_error_law(qkv_sdpa(query, key, value, causal=causal), truth, [plain])


@difference
def test_a_sparse_mask_is_refused():
    mask = tensor(2, 4, 3, 5)
    assert torch.allclose(
        torch_math(QUERY, KEY, VALUE, mask.to_sparse()), torch_math(QUERY, KEY, VALUE, mask)
    )
    with pytest.raises(
        TypeError, match=r"attn_mask: got a Tensor on cpu, torch\.sparse_coo, .*want a dense one"
    ):
        qkv_sdpa(QUERY, KEY, VALUE, mask.to_sparse())


def test_every_difference_is_in_the_table_and_every_line_has_a_test():
    table = (Path(__file__).parent.parent / "PARITY.md").read_text(encoding="utf-8")
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    named = [re.findall(r"`(test_\w+)`", line.split("|")[-2]) for line in lines]
    assert all(named)
    assert {name for names in named for name in names} == DIFFERENCES
