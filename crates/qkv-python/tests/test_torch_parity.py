"""Values and refusals of scaled_dot_product_attention, held against those of torch.

- Where torch computes, qkv computes the same, by the error law of NUMERICS.md.
- Where torch refuses what has no meaning, qkv refuses it too, with a message that says how to mend it.
- Where torch refuses only for want of a kernel, qkv computes, and a textbook in float64 judges.

Each agreed difference is a line of PARITY.md and a test here, marked ``difference``; the last test compares
the two.
"""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import qkv
import torch
import torch.nn.functional as F
from support import grid, same_bits, textbook
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

qkv_sdpa = qkv.scaled_dot_product_attention
torch_sdpa = F.scaled_dot_product_attention

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
FLOAT_MIN = torch.finfo(torch.float32).min

# Torch warns of what is new or old with it; both are tried here.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{beginning}")
    for beginning in (
        "ComplexHalf support is experimental",
        "torch.quantize_per_tensor",
        "Converting a tensor with requires_grad",
        "The PyTorch API of nested tensors",
        "`torch.jit.script` is deprecated",
    )
]

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture(autouse=True, scope="module")
def one_thread_of_torch():
    """Torch's threads wait for one another much longer than these small calls take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# The names of the tests that pin a line of PARITY.md.
DIFFERENCES = set()


def difference(test):
    """Marks a test that pins a line of PARITY.md."""
    DIFFERENCES.add(test.__name__)
    return test


def tensor(*shape, seed=0, dtype=torch.float32):
    return torch.from_numpy(grid(shape, seed)).to(dtype)


def tensors(query, key, value=None, dtype=torch.float32):
    """Query, key and value of these shapes."""
    shapes = (query, key, key if value is None else value)
    return [tensor(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes)]


def booleans(*shape, seed=3):
    """A mask of which a quarter is False."""
    return tensor(*shape, seed=seed) >= -1


def torch_math(*arrays, **options):
    """Torch's function on its plain path: a product, a softmax and another product."""
    with sdpa_kernel(SDPBackend.MATH):
        return torch_sdpa(*arrays, **options)


def in_float64(options):
    """The options with a float mask widened."""
    mask = options.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        return options | {"attn_mask": mask.double()}
    return options


def distance(one, other):
    """The largest difference; NaN if there is one in either."""
    difference = (one.double() - other.double()).abs()
    return difference.max().item() if difference.numel() else 0.0


def largest(numbers):
    return numbers.double().abs().max().item() if numbers.numel() else 0.0


def assert_error_law(got, truth, plain):
    """max|got - truth| ≤ 2 · max|plain - truth| + 2 ulp(max|truth|)."""
    exponent = math.frexp(largest(truth))[1] - 1
    ulp = torch.finfo(got.dtype).eps * 2.0**exponent
    error, limit = distance(got, truth), 2 * max(distance(result, truth) for result in plain) + 2 * ulp
    assert error <= limit


def assert_as_torch(query, key, value, **options):
    """qkv computes what torch computes, in the same dtype and shape, contiguous."""
    got = qkv_sdpa(query, key, value, **options)
    plain = [
        torch_sdpa(query, key, value, **options),
        torch_math(query, key, value, **options),
    ]
    # Two results in float64 that share no code must agree before either may judge.
    truth = torch_math(query.double(), key.double(), value.double(), **in_float64(options))
    reference = qkv.reference(query, key, value, **options)
    apart = distance(reference, truth)
    assert apart <= 8 * torch.finfo(torch.float64).eps * largest(value)
    assert_error_law(got, reference, plain)
    assert type(got) is torch.Tensor and got.dtype == query.dtype
    assert got.shape == plain[0].shape and got.is_contiguous()


def assert_as_textbook(query, key, value, options, as_torch):
    """qkv computes what torch refuses for want of a kernel: the same as `as_torch`, which it takes."""
    with pytest.raises((RuntimeError, IndexError)):
        torch_sdpa(query, key, value, **options)
    got = qkv_sdpa(query, key, value, **options)
    mask = as_torch.get("attn_mask")
    is_boolean = mask is not None and mask.dtype == torch.bool
    meaning = {
        "mask" if is_boolean else "bias": None if mask is None else in_float64(as_torch)["attn_mask"].numpy()
    }
    output, _ = textbook(query.double(), key.double(), value.double(), **meaning)
    assert_error_law(got, torch.from_numpy(output), [torch_math(query, key, value, **as_torch)])


# --- values

# Of query, key and value. 64 keys are a tile of qkv's and 512 a chunk, so lengths around both are here.
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


def shown(shapes):
    return " ".join("x".join(map(str, shape)) for shape in shapes)


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


def positions_first(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


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


# --- refusals

QUERY, KEY, VALUE = tensors((2, 4, 3, 8), (2, 4, 5, 8))
MASK = booleans(3, 5)
FLOATS = "float32, float64, float16 or bfloat16"
BOOLEAN_OR_FLOATS = 'bool, where True is "may attend", or floats that are added to the scores'
ARRAY = "an array: of NumPy, torch, or anything with DLPack or the buffer protocol"


def assert_refused(changed, error, message):
    """Torch refuses a good call so changed, and qkv does with this error and a message that begins so."""
    call = {"query": QUERY, "key": KEY, "value": VALUE} | changed
    with pytest.raises((RuntimeError, TypeError, IndexError, NotImplementedError, OverflowError)):
        torch_math(**call)
    with pytest.raises(error) as raised:
        qkv_sdpa(**call)
    said = str(raised.value)
    assert said.startswith(message)
    # One line that is read at a bad moment, without another exception inside.
    assert len(said) < 300 and "\n" not in said and "Error" not in said


ALL_OF_ONE_AXIS = {"query": QUERY[0, 0, 0], "key": KEY[0, 0, 0], "value": VALUE[0, 0, 0]}
KEY_OF_ONE_AXIS = {"query": QUERY[0], "key": KEY[0, 0, 0], "value": VALUE[0]}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"query": QUERY[0, 0, 0, 0]}, "query: got shape (), want (len, dim)"),
        ({"query": QUERY[0, 0, 0]}, "query: got shape (8,), want (len, dim)"),
        ({"key": KEY[0, 0, 0, 0]}, "key: got shape (), want (len, dim)"),
        ({"key": KEY[0, 0, 0]}, "key: got shape (8,), want (len, dim)"),
        ({"value": VALUE[0, 0, 0, 0]}, "value: got shape (), want (len, dim)"),
        ({"value": VALUE[0, 0, 0]}, "value: got shape (8,), want (len, dim)"),
        (ALL_OF_ONE_AXIS, "query: got shape (8,), want (len, dim)"),
        (KEY_OF_ONE_AXIS, "key: got shape (8,), want (len, dim)"),
        ({"key": tensor(2, 4, 5, 6)}, "key: got shape (2, 4, 5, 6), want (…, len_key, 8)"),
        ({"key": tensor(5, 6)}, "key: got shape (5, 6), read as (1, 4, 5, 6), want (…, len_key, 8)"),
        ({"value": VALUE[:, :, :4]}, "value: got shape (2, 4, 4, 8), want (…, 5, "),
        ({"value": VALUE[:, :, :1]}, "value: got shape (2, 4, 1, 8), want (…, 5, "),
        ({"value": tensor(6, 8)}, "value: got shape (6, 8), read as (1, 4, 6, 8), want (…, 5, "),
        ({"key": tensor(3, 4, 5, 8)}, "key: got shape (3, 4, 5, 8), want 2 or 1 on axis 0"),
        ({"value": tensor(3, 4, 5, 8)}, "value: got shape (3, 4, 5, 8), want 2 or 1 on axis 0"),
        ({"query": QUERY[:0]}, "key: got shape (2, 4, 5, 8), want 0 or 1 on axis 0"),
        ({"key": KEY[:, :2], "value": VALUE[:, :2]}, "key: got 2 key heads"),
        ({"query": QUERY[:, :2]}, "key: got 4 key heads"),
        ({"value": VALUE[:, :2]}, "value: got 2 value heads"),
        (
            {"key": KEY[:, :3], "value": VALUE[:, :3], "enable_gqa": True},
            "key: got shape (2, 3, 5, 8), want a number of key heads that divides the 4 query heads",
        ),
        (
            {"query": QUERY[:, :2], "enable_gqa": True},
            "key: got shape (2, 4, 5, 8), want a number of key heads that divides the 2 query heads",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_shapes_that_do_not_fit(changed, message):
    assert_refused(changed, ValueError, message)


# Of masks for a call of shape (2, 4, 3, 5).
@pytest.mark.parametrize(
    "shape",
    [
        (3, 6),
        (4, 5),
        (3, 4),
        (2, 5),
        (3,),
        (2, 3, 5),
        (2, 5, 3, 5),
        (3, 1, 3, 5),
        (1, 2, 4, 3, 5),
        (0, 5),
        (3, 0),
        (0,),
    ],
    ids=str,
)
def test_masks_that_do_not_fit(shape):
    for mask in (booleans(*shape), tensor(*shape)):
        message = f"attn_mask: got shape {shape}, want (2, 4, 3, 5) or what broadcasts to it"
        assert_refused({"attn_mask": mask}, ValueError, message)


@pytest.mark.parametrize(
    ("changed", "shape", "wanted"),
    [
        ({"query": QUERY[:1], "key": KEY[:1], "value": VALUE[:1]}, (2, 4, 3, 5), (1, 4, 3, 5)),
        ({"query": QUERY[:, :1], "key": KEY[:, :1], "value": VALUE[:, :1]}, (4, 3, 5), (2, 1, 3, 5)),
        ({"query": QUERY[:, :, :1]}, (3, 5), (2, 4, 1, 5)),
        ({"key": KEY[:, :, :1], "value": VALUE[:, :, :1]}, (3, 5), (2, 4, 3, 1)),
        ({"query": QUERY[0, 0], "key": KEY[0, 0], "value": VALUE[0, 0]}, (1, 3, 5), (3, 5)),
    ],
    ids=["batch", "heads", "queries", "keys", "rank"],
)
def test_masks_do_not_widen_a_call(changed, shape, wanted):
    message = f"attn_mask: got shape {shape}, want {wanted} or what broadcasts to it"
    assert_refused(changed | {"attn_mask": booleans(*shape)}, ValueError, message)


@pytest.mark.parametrize(
    ("mask", "mend"),
    [(MASK.int(), "attn_mask != 0"), (booleans(2, 3, 5), "unsqueeze(1)")],
    ids=["dtype", "heads"],
)
def test_a_mask_that_does_not_fit_is_told_the_mend(mask, mend):
    with pytest.raises((TypeError, ValueError), match=re.escape(mend)):
        qkv_sdpa(QUERY, KEY, VALUE, mask)


OTHER_DTYPES = [torch.int8, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.bool]
OTHER_DTYPES += [torch.complex32, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", OTHER_DTYPES, ids=str)
def test_other_dtypes(dtype):
    name = str(dtype).removeprefix("torch.")
    every = {"query": QUERY.to(dtype), "key": KEY.to(dtype), "value": VALUE.to(dtype)}
    assert_refused(every, TypeError, f"query: got dtype {name}, want {FLOATS}")
    wanted = "want float32, as the query has"
    assert_refused({"key": KEY.to(dtype)}, TypeError, f"key: got dtype {name}, {wanted}")
    if dtype != torch.bool:
        message = f"attn_mask: got dtype {name}, want {BOOLEAN_OR_FLOATS}"
        assert_refused({"attn_mask": MASK.to(dtype)}, TypeError, message)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_dtypes_are_not_mixed(dtype):
    name = str(dtype).removeprefix("torch.")
    wanted = "want float32, as the query has"
    assert_refused({"key": KEY.to(dtype)}, TypeError, f"key: got dtype {name}, {wanted}")
    assert_refused({"value": VALUE.to(dtype)}, TypeError, f"value: got dtype {name}, {wanted}")
    assert_refused({"query": QUERY.to(dtype)}, TypeError, f"key: got dtype float32, want {name}")


@pytest.mark.parametrize("argument", ["query", "key", "value"])
@pytest.mark.parametrize("thing", [None, 1, 1.0, True, "text", b"bytes", {}, object()], ids=repr)
def test_things_that_are_no_arrays(argument, thing):
    assert_refused({argument: thing}, TypeError, f"{argument}: got {type(thing).__name__}, want {ARRAY}")


@pytest.mark.parametrize("thing", [1, 0.5, True, "causal", {}], ids=repr)
def test_things_that_are_no_masks(thing):
    assert_refused({"attn_mask": thing}, TypeError, f"attn_mask: got {type(thing).__name__}, want {ARRAY}")


@pytest.mark.parametrize(
    "thing", [np.float32(1), [[1.0, 2.0], [1.0]]], ids=["scalar of NumPy", "ragged list"]
)
def test_things_that_are_hardly_arrays(thing):
    assert_refused({"key": thing}, (TypeError, ValueError), "key: got ")


STORED_OTHERWISE = {
    "sparse": lambda x: x.float().to_sparse(),
    "oneDNN": lambda x: x.float().to_mkldnn(),
    "quantized": lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
}


@pytest.mark.parametrize("argument", ["query", "key", "value", "attn_mask"])
@pytest.mark.parametrize("kind", STORED_OTHERWISE)
def test_tensors_stored_otherwise(kind, argument):
    if (kind, argument) == ("sparse", "attn_mask"):
        pytest.skip("torch's plain path adds a sparse mask; the next test has it")
    good = {"query": QUERY, "key": KEY, "value": VALUE, "attn_mask": tensor(2, 4, 3, 5)}[argument]
    assert_refused({argument: STORED_OTHERWISE[kind](good)}, TypeError, f"{argument}: got a Tensor")


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


@pytest.mark.parametrize("argument", ["query", "key", "value", "attn_mask"])
def test_tensors_on_another_device(argument):
    good = {"query": QUERY, "key": KEY, "value": VALUE, "attn_mask": MASK}[argument]
    assert_refused({argument: good.to("meta")}, TypeError, f"{argument}: got a Tensor on meta")


@pytest.mark.parametrize(
    ("option", "value", "error", "message"),
    [
        ("dropout_p", MASK, TypeError, "got Tensor, want a number"),
        ("dropout_p", "0", TypeError, "got str, want a number"),
        ("dropout_p", 1.1, ValueError, "got 1.1, want "),
        ("dropout_p", 2, ValueError, "got 2, want "),
        ("scale", "1", TypeError, "got str, want a number"),
        ("scale", [1.0], TypeError, "got list, want a number"),
        ("scale", 1j, TypeError, "got complex, want a number"),
        ("scale", MASK, TypeError, "got Tensor, want a number"),
        ("scale", 10**400, ValueError, "got "),
        ("scale", torch.tensor(0.5, requires_grad=True), (TypeError, NotImplementedError), "got "),
        ("is_causal", 1, TypeError, "got int, want True or False"),
        ("is_causal", 1.0, TypeError, "got float, want True or False"),
        ("is_causal", "yes", TypeError, "got str, want True or False"),
        ("is_causal", torch.tensor(True), TypeError, "got Tensor, want True or False"),
        ("is_causal", MASK, TypeError, "got Tensor, want True or False"),
        ("enable_gqa", 1, TypeError, "got int, want True or False"),
        ("enable_gqa", "yes", TypeError, "got str, want True or False"),
    ],
    ids=lambda value: "" if isinstance(value, tuple | type) else str(value)[:20],
)
def test_options_without_a_meaning(option, value, error, message):
    assert_refused({option: value}, error, f"{option}: {message}")


@pytest.mark.parametrize("dropout_p", [-0.1, math.nan])
def test_dropout_out_of_range(dropout_p):
    with pytest.raises(RuntimeError):
        torch_sdpa(QUERY, KEY, VALUE, dropout_p=dropout_p)
    with pytest.raises(ValueError, match=f"dropout_p: got {dropout_p}, want "):
        qkv_sdpa(QUERY, KEY, VALUE, dropout_p=dropout_p)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((), {}, "missing 3 required positional arguments: 'query', 'key', and 'value'"),
        ((QUERY, KEY), {}, "missing 1 required positional argument: 'value'"),
        ((), {"key": KEY, "value": VALUE}, "missing 1 required positional argument: 'query'"),
        ((QUERY, KEY, VALUE), {"query": QUERY}, "got multiple values for argument 'query'"),
        ((QUERY, KEY, VALUE, MASK), {"attn_mask": MASK}, "got multiple values for argument 'attn_mask'"),
        ((QUERY, KEY, VALUE), {"mask": MASK}, "got an unexpected keyword argument 'mask'"),
        ((QUERY, KEY, VALUE), {"need_weights": True}, "got an unexpected keyword argument 'need_weights'"),
        ((QUERY, KEY, VALUE, *[None] * 6), {}, "takes 8 positional arguments but 9 were given"),
        ((QUERY, KEY, VALUE, 0.5), {}, "attn_mask: got float"),
        ((QUERY, KEY, VALUE, None, MASK), {}, "dropout_p: got Tensor"),
        ((QUERY, KEY, VALUE, None, 0.0, 0.5), {}, "is_causal: got float"),
    ],
    ids=range(11),
)
def test_arguments_in_the_wrong_place(arguments, options, message):
    with pytest.raises(TypeError):
        torch_sdpa(*arguments, **options)
    with pytest.raises(TypeError, match=re.escape(message)):
        qkv_sdpa(*arguments, **options)


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
@pytest.mark.parametrize("dropout_p", [0.5, 1.0, 1, torch.tensor(0.5)], ids=repr)
def test_dropout_is_not_there_yet(dropout_p):
    assert torch_sdpa(QUERY, KEY, VALUE, dropout_p=dropout_p).shape == QUERY.shape
    with pytest.raises(NotImplementedError, match=r"dropout_p: got (0\.5|1), want 0\.0"):
        qkv_sdpa(QUERY, KEY, VALUE, dropout_p=dropout_p)


@pytest.mark.parametrize("dropout_p", [0, 0.0, torch.tensor(0.0)], ids=repr)
def test_no_dropout(dropout_p):
    assert_as_torch(QUERY, KEY, VALUE, dropout_p=dropout_p)


@difference
@pytest.mark.parametrize("argument", ["query", "key", "value", "attn_mask"])
def test_gradients_are_not_there_yet(argument):
    call = {"query": QUERY, "key": KEY, "value": VALUE, "attn_mask": tensor(3, 5)}
    call[argument] = call[argument].clone().requires_grad_()
    assert torch_sdpa(**call).requires_grad
    message = rf"{argument}: .* gradients.*{argument}\.detach\(\).*no_grad\(\)"
    with pytest.raises(NotImplementedError, match=message):
        qkv_sdpa(**call)
    with torch.no_grad():
        assert_as_torch(**call)


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


def test_every_difference_is_in_the_table_and_every_line_has_a_test():
    table = (Path(__file__).parent.parent / "PARITY.md").read_text(encoding="utf-8")
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    named = [re.findall(r"`(test_\w+)`", line.split("|")[-2]) for line in lines]
    assert all(named)
    assert {name for names in named for name in names} == DIFFERENCES
