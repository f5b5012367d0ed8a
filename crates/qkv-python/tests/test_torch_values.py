"""Where torch computes, qkv computes the same, by the error law of NUMERICS.md."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from parity import (
    FLOAT_MIN,
    WARNINGS,
    assert_as_torch,
    assert_error_law,
    booleans,
    every_dtype,
    one_thread_of_torch,  # noqa: F401
    positions_first,
    qkv_sdpa,
    shown,
    tensor,
    tensors,
    torch_math,
)
from support import same_bits

pytestmark = WARNINGS

# Of query, key and value. 64 keys are a tile of qkv's, and lengths around that are here.
SHAPES = [
    ((2, 3, 17, 8), (2, 3, 21, 8), (2, 3, 21, 8)),
    ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)),
    ((2, 3, 65, 16), (2, 3, 63, 16), (2, 3, 63, 16)),
    ((1, 2, 64, 32), (1, 2, 64, 32), (1, 2, 64, 32)),
    ((2, 2, 33, 64), (2, 2, 129, 64), (2, 2, 129, 64)),
    ((1, 2, 70, 24), (1, 2, 513, 24), (1, 2, 513, 24)),
    ((4, 16, 1, 64), (4, 16, 600, 64), (4, 16, 600, 64)),
    # The value's dim is another than the query's.
    ((2, 3, 17, 8), (2, 3, 21, 8), (2, 3, 21, 40)),
    ((2, 3, 17, 40), (2, 3, 21, 40), (2, 3, 21, 1)),
    ((2, 3, 17, 8), (2, 3, 21, 8), (2, 3, 21, 0)),
    # Odd dims.
    ((2, 3, 17, 1), (2, 3, 21, 1), (2, 3, 21, 1)),
    ((2, 3, 17, 3), (2, 3, 21, 3), (2, 3, 21, 3)),
    ((2, 3, 17, 59), (2, 3, 21, 59), (2, 3, 21, 59)),
    ((2, 3, 17, 257), (2, 3, 21, 257), (2, 3, 21, 257)),
    # Ranks from 2 to 6.
    ((70, 8), (21, 8), (21, 8)),
    ((4, 17, 8), (4, 21, 8), (4, 21, 8)),
    ((2, 2, 3, 17, 8), (2, 2, 3, 21, 8), (2, 2, 3, 21, 8)),
    ((1, 2, 2, 3, 7, 8), (1, 2, 2, 3, 5, 8), (1, 2, 2, 3, 5, 8)),
    # Mixed ranks.
    ((17, 8), (2, 3, 21, 8), (2, 3, 21, 8)),
    ((2, 3, 17, 8), (21, 8), (21, 8)),
    ((3, 17, 8), (2, 3, 21, 8), (2, 3, 21, 8)),
    ((2, 3, 17, 8), (3, 21, 8), (3, 21, 8)),
    ((2, 3, 17, 8), (2, 3, 21, 8), (21, 8)),
    ((17, 8), (21, 8), (2, 3, 21, 8)),
    ((2, 1, 3, 17, 8), (2, 3, 21, 8), (3, 21, 8)),
    # One batch or one head serves for all, on any side.
    ((1, 3, 17, 8), (2, 3, 21, 8), (2, 3, 21, 8)),
    ((2, 3, 17, 8), (1, 3, 21, 8), (1, 3, 21, 8)),
    ((2, 3, 17, 8), (2, 3, 21, 8), (1, 3, 21, 8)),
    ((2, 1, 17, 8), (2, 3, 21, 8), (2, 3, 21, 8)),
    ((2, 3, 17, 8), (2, 1, 21, 8), (2, 1, 21, 8)),
    ((2, 3, 17, 8), (2, 3, 21, 8), (2, 1, 21, 8)),
    ((2, 3, 17, 8), (2, 1, 21, 8), (2, 3, 21, 8)),
    ((2, 1, 17, 8), (2, 1, 21, 8), (2, 3, 21, 8)),
    ((2, 1, 17, 8), (1, 3, 21, 8), (1, 1, 21, 8)),
    # Empty axes.
    ((2, 3, 0, 8), (2, 3, 5, 8), (2, 3, 5, 8)),
    ((2, 3, 17, 8), (2, 3, 0, 8), (2, 3, 0, 8)),
    ((2, 3, 0, 8), (2, 3, 0, 8), (2, 3, 0, 8)),
    ((2, 3, 17, 0), (2, 3, 21, 0), (2, 3, 21, 0)),
    ((2, 3, 17, 0), (2, 3, 21, 0), (2, 3, 21, 8)),
    ((0, 3, 17, 8), (0, 3, 21, 8), (0, 3, 21, 8)),
    ((0, 3, 17, 8), (1, 3, 21, 8), (1, 3, 21, 8)),
    ((2, 0, 17, 8), (2, 0, 21, 8), (2, 0, 21, 8)),
    ((2, 0, 17, 8), (2, 1, 21, 8), (2, 1, 21, 8)),
    ((0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0)),
    ((0, 8), (5, 8), (5, 8)),
    ((7, 8), (0, 8), (0, 8)),
]


@every_dtype
@pytest.mark.parametrize("is_causal", [False, True], ids=["open", "causal"])
@pytest.mark.parametrize("shapes", SHAPES, ids=shown)
def test_shapes(shapes, is_causal, dtype):
    assert_as_torch(*tensors(*shapes, dtype=dtype), is_causal=is_causal)


GROUPS = [
    ((2, 4, 17, 8), (2, 2, 21, 8)),
    ((2, 4, 17, 8), (2, 1, 21, 8)),
    ((2, 4, 17, 8), (2, 4, 21, 8)),
    ((1, 9, 17, 8), (1, 3, 21, 8)),
    ((6, 17, 8), (2, 21, 8)),
    ((2, 2, 4, 17, 8), (2, 2, 2, 21, 8)),
    ((2, 4, 17, 8), (2, 21, 8)),
    ((2, 4, 17, 8), (1, 2, 21, 8)),
    ((1, 4, 17, 8), (2, 2, 21, 8)),
    ((4, 32, 1, 16), (4, 8, 70, 16)),
    ((2, 0, 17, 8), (2, 2, 21, 8)),
    ((2, 0, 17, 8), (2, 0, 21, 8)),
]


@every_dtype
@pytest.mark.parametrize("shapes", GROUPS, ids=shown)
def test_grouped_heads(shapes, dtype):
    query, key, value = tensors(*shapes, dtype=dtype)
    mask = booleans(query.shape[-2], key.shape[-2])
    assert_as_torch(query, key, value, enable_gqa=True)
    assert_as_torch(query, key, value, enable_gqa=True, is_causal=True)
    assert_as_torch(query, key, value, enable_gqa=True, attn_mask=mask)


def test_grouped_heads_with_a_mask_for_each():
    query, key, value = tensors((2, 4, 17, 8), (2, 2, 21, 8))
    assert_as_torch(query, key, value, enable_gqa=True, attn_mask=tensor(4, 17, 21, seed=3))


# Of masks for inputs (2, 3, 17, …) and (2, 3, 21, …).
MASKS = [
    (17, 21),
    (1, 21),
    (17, 1),
    (1, 1),
    (3, 17, 21),
    (1, 17, 21),
    (3, 1, 21),
    (3, 17, 1),
    (2, 3, 17, 21),
    (2, 1, 17, 21),
    (1, 3, 17, 21),
    (2, 3, 1, 21),
    (2, 3, 17, 1),
    (2, 1, 1, 21),
    (1, 1, 1, 1),
]


@every_dtype
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks(shape, dtype):
    query, key, value = tensors((2, 3, 17, 8), (2, 3, 21, 8), dtype=dtype)
    bias = tensor(*shape, seed=3, dtype=dtype)
    for mask in (
        booleans(*shape),
        bias,
        bias.masked_fill(~booleans(*shape, seed=4), -math.inf),
        bias.float(),
    ):
        assert_as_torch(query, key, value, attn_mask=mask)


@pytest.mark.parametrize(
    ("shapes", "mask"),
    [
        (((70, 8), (21, 8)), ()),
        (((70, 8), (21, 8)), (21,)),
        (((70, 8), (21, 8)), (70, 21)),
        (((4, 17, 8), (4, 21, 8)), (17, 21)),
        (((4, 17, 8), (4, 21, 8)), (4, 1, 21)),
        (((2, 2, 3, 17, 8), (2, 2, 3, 21, 8)), (17, 21)),
        (((2, 2, 3, 17, 8), (2, 2, 3, 21, 8)), (3, 17, 21)),
        (((2, 2, 3, 17, 8), (2, 2, 3, 21, 8)), (2, 1, 1, 17, 21)),
        (((2, 3, 17, 8), (2, 3, 0, 8)), (17, 0)),
        (((2, 3, 0, 8), (2, 3, 5, 8)), (0, 5)),
        (((2, 3, 17, 8), (1, 21, 8)), (2, 3, 17, 21)),
    ],
    ids=str,
)
def test_masks_of_other_ranks(shapes, mask):
    assert_as_torch(*tensors(*shapes), attn_mask=booleans(*mask))
    assert_as_torch(*tensors(*shapes), attn_mask=tensor(*mask, seed=3))


@pytest.mark.parametrize("number", [math.inf, math.nan, FLOAT_MIN, 3.4e38, -1e30])
@pytest.mark.parametrize("where", [(1, 1), 1], ids=["pair", "row"])
def test_odd_numbers_in_a_mask(number, where):
    query, key, value = tensors((2, 2, 40, 4), (2, 2, 5, 4))
    mask = torch.zeros(40, 5)
    mask[where] = number
    got = qkv_sdpa(query, key, value, attn_mask=mask)
    plain = torch_math(query, key, value, attn_mask=mask)
    torch.testing.assert_close(got.isnan(), plain.isnan())
    truth = torch_math(query.double(), key.double(), value.double(), attn_mask=mask.double())
    assert_error_law(got.nan_to_num(), truth.nan_to_num(), [plain.nan_to_num()])


@pytest.mark.parametrize("rows", [[0, 7, 39], slice(None)], ids=["some", "all"])
@every_dtype
def test_rows_that_may_attend_nothing(dtype, rows):
    query, key, value = tensors((2, 2, 40, 4), (2, 2, 5, 4), dtype=dtype)
    mask = booleans(40, 5)
    mask[rows] = False
    assert_as_torch(query, key, value, attn_mask=mask)
    assert_as_torch(
        query, key, value, attn_mask=torch.zeros(40, 5, dtype=dtype).masked_fill(~mask, -math.inf)
    )


@pytest.mark.parametrize(
    "scale",
    [0, 0.0, 1, 0.3, -0.5, 1e-300, 1e30, torch.tensor(0.5), torch.tensor(2), np.float32(0.5), np.int32(1)],
    ids=repr,
)
def test_scales(scale):
    assert_as_torch(*tensors((2, 3, 17, 8), (2, 3, 21, 8)), scale=scale)


def test_scores_beyond_half_floats():
    query = torch.full((1, 1, 70, 64), 900.0, dtype=torch.float16)
    key = torch.full((1, 1, 5, 64), 899.5, dtype=torch.float16)
    key[:, :, 0] = 900
    assert_as_torch(query, key, tensor(1, 1, 5, 64, seed=2, dtype=torch.float16))


def transposed(x):
    """The same numbers; the last two axes lie in memory the other way round."""
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def every_second(x):
    """The same numbers; others, NaN where there is one, lie between them."""
    return torch.stack([x, torch.full_like(x, math.nan)], -1)[..., 0]


def sliced(x):
    """The same numbers, from the middle of a longer memory."""
    storage = torch.ones(x.numel() + 10, dtype=x.dtype)
    storage[3:-7] = x.flatten()
    return storage[3:-7].view(x.shape)


def one_head_expanded(x):
    return x[:, :1].expand(x.shape)


def one_position_expanded(x):
    return x[:, :, :1].expand(x.shape)


def negated_view(x):
    """The same numbers by a view that is only marked as negated."""
    view = torch.complex(x, -x).conj().imag
    assert view.is_neg()
    return view


LAYOUTS = [transposed, every_second, positions_first, sliced, one_head_expanded, one_position_expanded]


@pytest.mark.parametrize("argument", range(4), ids=["query", "key", "value", "attn_mask"])
@pytest.mark.parametrize("layout", [*LAYOUTS, negated_view])
def test_layouts(layout, argument):
    arrays = [*tensors((2, 3, 17, 8), (2, 3, 21, 8)), tensor(2, 3, 17, 21, seed=3)]
    arrays[argument] = layout(arrays[argument])
    assert_as_torch(*arrays[:3], attn_mask=arrays[3])
    copies = [array.contiguous().resolve_neg() for array in arrays]
    same_bits(qkv_sdpa(*arrays), qkv_sdpa(*copies))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_boolean_masks(layout):
    assert_as_torch(*tensors((2, 3, 17, 8), (2, 3, 21, 8)), attn_mask=layout(booleans(2, 3, 17, 21)))


@every_dtype
def test_one_buffer_of_queries_keys_and_values(dtype):
    packed = tensor(2, 40, 3, 3, 8, dtype=dtype)
    assert_as_torch(*(packed[:, :, which].transpose(1, 2) for which in range(3)), is_causal=True)


@pytest.mark.parametrize("axis", range(4))
def test_flipped_numpy_arrays(axis):
    """Torch has no negative strides; the same numbers in order are its."""
    arrays = [array.numpy() for array in tensors((2, 3, 17, 8), (2, 3, 21, 8))]
    got = qkv_sdpa(*(np.flip(array, axis) for array in arrays))
    in_order = [torch.from_numpy(np.flip(array, axis).copy()) for array in arrays]
    same_bits(got, qkv_sdpa(*in_order).numpy())
    assert_as_torch(*in_order)


KINDS = {
    "parameters without gradients": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "detached": lambda x: x.clone().requires_grad_().detach(),
    "data of parameters": lambda x: torch.nn.Parameter(x).data,
    "real parts": lambda x: torch.complex(x, x).real,
    "parts of complex numbers": lambda x: torch.view_as_real(torch.complex(x, x))[..., 1],
    "shared memory": lambda x: x.clone().share_memory_(),
    "of numpy": lambda x: torch.from_numpy(x.numpy()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_tensors(kind):
    assert_as_torch(*(KINDS[kind](array) for array in tensors((2, 3, 17, 8), (2, 3, 21, 8))))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_parameters_where_no_gradients_are_recorded(mode):
    parameters = [torch.nn.Parameter(array) for array in tensors((2, 3, 17, 8), (2, 3, 21, 8))]
    with mode():
        assert_as_torch(*parameters)


def test_tensors_of_inference_mode():
    with torch.inference_mode():
        arrays = tensors((2, 3, 17, 8), (2, 3, 21, 8))
    assert_as_torch(*arrays)


def test_one_tensor_for_all():
    x = tensor(2, 3, 17, 8)
    assert_as_torch(x, x, x, is_causal=True)


def test_inputs_stay_as_they_were():
    arrays = [*tensors((2, 3, 17, 8), (2, 3, 21, 8)), booleans(17, 21)]
    copies = [array.clone() for array in arrays]
    output = qkv_sdpa(*arrays)
    output.fill_(7)
    for array, copy in zip(arrays, copies, strict=True):
        assert array.equal(copy) and array._version == copy._version


def test_expanded_keys_are_not_copied():
    """64 heads read one head's keys and values of 3.2 MB each; copies would take 205 MB each."""

    def peak_kib():
        return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])

    query = tensor(1, 64, 1, 8)
    key, value = (tensor(1, 1, 100_000, 8, seed=seed).expand(1, 64, -1, -1) for seed in (1, 2))
    mask = torch.zeros(1, 1, 1, 100_000).expand(1, 64, 1, -1)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pytest.skip("the peak of memory cannot be set back here")
    before = peak_kib()
    output = qkv_sdpa(query, key, value, attn_mask=mask)
    assert peak_kib() - before < 20_000
    copies = [array[:, :1].contiguous() for array in (query, key, value)]
    same_bits(output[:, :1], qkv_sdpa(*copies))
