"""What the tests of parity with torch share: inputs, torch's plain path, and the error law that judges."""

import math

import pytest
import qkv
import torch
import torch.nn.functional as F
from support import grid, textbook
from torch.nn.attention import SDPBackend, sdpa_kernel

qkv_sdpa = qkv.scaled_dot_product_attention
torch_sdpa = F.scaled_dot_product_attention

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
FLOAT_MIN = torch.finfo(torch.float32).min

# Torch warns of what is new or old with it; both are tried here.
WARNINGS = [
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


def leaves(*given):
    """Copies of tensors of floats that need gradients; what is none stays."""
    return [
        x.clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in given
    ]


def gradients(function, given, d_output):
    """Of all tensors of floats among what a function is given."""
    given = leaves(*given)
    output = function(*given)
    needed = [x for x in given if isinstance(x, torch.Tensor) and x.requires_grad]
    return torch.autograd.grad(output, needed, d_output.to(output.dtype))


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


def shown(shapes):
    return " ".join("x".join(map(str, shape)) for shape in shapes)


def positions_first(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


# A good call, to be changed.
QUERY, KEY, VALUE = tensors((2, 4, 3, 8), (2, 4, 5, 8))
MASK = booleans(3, 5)
FLOATS = "float32, float64, float16 or bfloat16"
BOOLEAN_OR_FLOATS = 'bool, where True is "may attend", or floats that are added to the scores'
ARRAY = "an array: of NumPy, torch, or anything with DLPack or the buffer protocol"
