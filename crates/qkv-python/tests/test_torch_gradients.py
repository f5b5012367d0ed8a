"""Gradients through torch: against finite differences, against torch's own, in graphs, and bit for bit."""

import pytest
import qkv
import qkv.torch
import torch
from parity import (
    assert_error_law,
    booleans,
    gradients,
    leaves,
    one_thread_of_torch,  # noqa: F401
    tensor,
    tensors,
    torch_math,
)
from torch.utils._python_dispatch import TorchDispatchMode

MASK = booleans(5, 7)
NOTHING = MASK & (torch.arange(5) != 2)[:, None]
# Of queries, keys and values.
SHAPES = {
    "heads": [(2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)],
    "groups": [(2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6)],
    "one key head": [(2, 4, 5, 8), (2, 1, 7, 8), (2, 1, 7, 6)],
    "one query head": [(2, 1, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)],
    "one value head": [(4, 5, 8), (4, 7, 8), (1, 7, 6)],
    "batches that broadcast": [(3, 1, 2, 5, 8), (2, 2, 7, 8), (1, 2, 7, 6)],
    "one head": [(5, 8), (7, 8), (7, 6)],
    "one query": [(2, 4, 1, 8), (2, 4, 7, 8), (2, 4, 7, 6)],
}
# Those of four heads and five queries.
OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True},
    "bottom right": {"causal": "bottom-right", "scale": 0.3},
    "booleans": {"attn_mask": MASK},
    "a row that may attend nothing": {"attn_mask": NOTHING},
    "floats": {"attn_mask": tensor(5, 7, seed=4, dtype=torch.float64)},
    "floats for each key": {"attn_mask": tensor(1, 1, 1, 7, seed=4, dtype=torch.float64)},
    "floats for each head": {"attn_mask": tensor(4, 5, 7, seed=4, dtype=torch.float64), "is_causal": True},
    "floats for each batch": {"attn_mask": tensor(2, 1, 1, 1, seed=4, dtype=torch.float64)},
    "lengths": {"key_lengths": [3, 6]},
    "window": {"window": (2, 1), "softcap": 1.5},
    "segments": {"segment_ids": (torch.arange(5) // 2, torch.arange(7) // 2)},
    "slopes": {"alibi_slopes": [1.0, 0.5, 0.25, 0.125], "is_causal": True, "query_offset": 2},
    "sinks": {"sinks": torch.tensor([0.5, 1, -1, 0], dtype=torch.float64), "key_lengths": 4},
    "dropout": {"dropout_p": 0.4, "seed": 7},
    "dropout, causal": {"dropout_p": 0.25, "seed": 8, "is_causal": True},
}


def attend(query, key, value, attn_mask=None, sinks=None, **options):
    return qkv.scaled_dot_product_attention(query, key, value, attn_mask, sinks=sinks, **options)


def checked(arrays, attn_mask=None, sinks=None, **options):
    arguments = leaves(*arrays, attn_mask, sinks)

    def call(*arguments):
        result = attend(*arguments, **options, return_lse=True)
        # A row that may attend nothing has an lse of -∞.
        return result.output, result.lse.where(result.lse.isfinite(), 0)

    return torch.autograd.gradcheck(call, arguments, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("shapes", ["heads", "groups"])
def test_options_against_finite_differences(shapes, options):
    assert checked(tensors(*SHAPES[shapes], dtype=torch.float64), enable_gqa=True, **options)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"dropout_p": 0.5, "seed": 1}], ids=str)
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_shapes_against_finite_differences(shapes, options):
    has_groups = shapes is SHAPES["groups"]
    assert checked(tensors(*shapes, dtype=torch.float64), enable_gqa=has_groups, **options)


@pytest.mark.parametrize("shapes", ["heads", "groups", "one query head"])
def test_positions_first_against_finite_differences(shapes):
    arrays = [x.transpose(1, 2).contiguous() for x in tensors(*SHAPES[shapes], dtype=torch.float64)]
    assert checked(arrays, enable_gqa=shapes == "groups", layout="bshd", is_causal=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"attn_mask": tensor(130, 200, seed=5)}], ids=list
)
def test_as_exact_as_torchs_own(dtype, options):
    shapes = [(2, 2, 130, 32), (2, 2, 200, 32), (2, 2, 200, 24)]
    arrays, d_output = tensors(*shapes, dtype=dtype), tensor(2, 2, 130, 24, seed=9)
    mask = options.get("attn_mask")
    given = (*arrays, None if mask is None else mask.to(dtype))
    options = {name: value for name, value in options.items() if name != "attn_mask"}
    exact = [x if x is None else x.double() for x in given]
    truth = gradients(lambda *x: torch_math(*x, **options), exact, d_output.to(dtype).double())
    plain = gradients(lambda *x: torch_math(*x, **options), given, d_output)
    ours = gradients(lambda *x: attend(*x, **options), given, d_output)
    for true, one, other in zip(truth, plain, ours, strict=True):
        assert one.dtype == other.dtype == dtype and one.shape == other.shape
        assert_error_law(other, true, [one])


def test_a_gradient_is_as_wide_as_its_tensor():
    query, key, value = tensors(*SHAPES["heads"], dtype=torch.bfloat16)
    mask, sinks = leaves(tensor(5, 7), torch.ones(4, dtype=torch.float64))
    attend(*leaves(query, key, value), mask, sinks).sum().backward()
    assert mask.grad.dtype == torch.float32 and sinks.grad.dtype == torch.float64


def test_a_mask_alone_can_need_its_gradient():
    arrays, mask = tensors((1, 1, 64, 16), (1, 1, 64, 16)), tensor(64, 64, seed=4).requires_grad_()
    attend(*arrays, mask).square().sum().backward()
    # What moves all keys of a query alike moves no weight.
    assert mask.grad.any() and mask.grad.sum(-1).abs().max() < 1e-5


def test_masked_junk_has_no_gradient_and_reaches_none():
    query, key, value = leaves(*tensors(*SHAPES["heads"]))
    with torch.no_grad():
        key[:, :, 4:] = torch.nan
        value[:, :, 4:] = torch.inf
    attend(query, key, value, key_lengths=4).square().sum().backward()
    assert query.grad.isfinite().all()
    assert (key.grad[:, :, 4:] == 0).all() and (value.grad[:, :, 4:] == 0).all()


def test_any_strides_and_any_part():
    """Of the inputs and of the gradient that arrives, and with only some gradients wanted."""
    query, key, value = tensors(*SHAPES["heads"])
    d_output = tensor(2, 4, 5, 6, seed=9)
    want = gradients(attend, (query, key, value), d_output)
    strided = [x.mT.contiguous().mT for x in (query, key, value)]
    for one, other in zip(
        gradients(attend, strided, d_output.flip(2).flip(2).mT.contiguous().mT), want, strict=True
    ):
        assert torch.equal(one, other)
    for place in range(3):
        given = [x.clone().requires_grad_(at == place) for at, x in enumerate((query, key, value))]
        attend(*given).backward(d_output)
        assert torch.equal(given[place].grad, want[place])
    # What arrives from a sum is one number for all.
    got = leaves(query, key, value)
    attend(*got).sum().backward()
    for x, other in zip(got, gradients(attend, (query, key, value), torch.ones_like(d_output)), strict=True):
        assert torch.equal(x.grad, other)


@pytest.mark.parametrize(
    "shapes", [[(2, 0, 8), (2, 7, 8)], [(2, 5, 8), (2, 0, 8)], [(0, 5, 8), (0, 7, 8)]], ids=str
)
def test_empty_axes(shapes):
    query, key, value = leaves(*tensors(*shapes))
    attend(query, key, value).sum().backward()
    assert [x.grad.shape for x in (query, key, value)] == [x.shape for x in (query, key, value)]
    assert not any(x.grad.any() for x in (query, key, value))


@pytest.mark.parametrize("options", [{"is_causal": True}, {"dropout_p": 0.3, "seed": 5}], ids=str)
@pytest.mark.parametrize("heads", [1, 6])
def test_bits_do_not_depend_on_threads(heads, options):
    given, d_output = tensors((1, heads, 257, 24), (1, heads, 257, 24)), tensor(1, heads, 257, 24, seed=9)
    want = gradients(lambda *x: attend(*x, threads=1, **options), given, d_output)
    for threads in (2, 3, 5):
        got = gradients(lambda *x, n=threads: attend(*x, threads=n, **options), given, d_output)
        assert all(map(torch.equal, got, want))


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": True},
        {"attn_mask": tensor(5, 7, seed=4)},
        {"dropout_p": 0.5, "seed": 3},
        {"sinks": torch.ones(4)},
    ],
    ids=list,
)
def test_a_graph_gives_the_bits_of_the_plain_call(options):
    function = lambda query, key, value, mask, sinks: attend(query, key, value, mask, sinks, **options)  # noqa: E731
    options = dict(options)
    given = (*tensors(*SHAPES["heads"]), options.pop("attn_mask", None), options.pop("sinks", None))
    d_output = tensor(2, 4, 5, 6, seed=9)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert all(map(torch.equal, gradients(compiled, given, d_output), gradients(function, given, d_output)))
    torch._dynamo.reset()


def test_modes_of_torch_see_the_operators():
    seen = []

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            seen.append(operator.name())
            return operator(*args, **(kwargs or {}))

    given, d_output = tensors(*SHAPES["heads"]), tensor(2, 4, 5, 6, seed=9)
    want = gradients(attend, given, d_output)
    with Seeing():
        got = gradients(attend, given, d_output)
    assert {"qkv::attention", "qkv::attention_backward"} <= set(seen)
    assert all(map(torch.equal, got, want))


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True, "return_lse": True}, {"dropout_p": 0.5}], ids=str
)
def test_the_operators_hold_to_torchs_rules(options):
    given = leaves(*tensors(*SHAPES["groups"]), tensor(5, 7, seed=4))
    seed = torch.tensor([3]) if "dropout_p" in options else None
    options = {"enable_gqa": True, "return_row_stats": True, **options}
    torch.library.opcheck(torch.ops.qkv.attention.default, tuple(given), {"seed": seed, **options})


def test_arrays_of_other_kinds_beside_a_tensor_that_needs_gradients():
    query, key, value = tensors(*SHAPES["heads"])
    given = leaves(query)[0]
    attend(given, key.numpy(), value.numpy()).sum().backward()
    (want,) = gradients(lambda x: attend(x, key, value), [query], torch.ones(2, 4, 5, 6))
    assert torch.equal(given.grad, want)


def test_gradients_of_gradients_are_refused():
    query, key, value = leaves(*tensors(*SHAPES["heads"]))
    (d_query,) = torch.autograd.grad(attend(query, key, value).sum(), query, create_graph=True)
    with pytest.raises(NotImplementedError, match="gradients of gradients"):
        d_query.square().sum().backward()


def test_gradients_through_the_weights_are_refused():
    given = leaves(*tensors(*SHAPES["heads"]))
    result = attend(*given, return_weights=True)
    result.output.sum().backward()
    result = attend(*given, return_weights=True)
    with pytest.raises(NotImplementedError, match="weights: got a loss that depends on those returned"):
        result.weights.square().sum().backward()


@pytest.mark.parametrize(
    "call", [attend, torch.ops.qkv.attention, torch.compile(attend, backend="aot_eager")]
)
def test_forward_derivatives_are_refused(call):
    """Through the operator too, which would be a constant to torch."""
    query, key, value = tensors((5, 4), (7, 4))
    with pytest.raises(Exception, match=r"forward derivative|a transform"):
        torch.func.jvp(lambda x: call(x, key, value)[0].sum(), (query,), (query,))
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"seed": 2**64, "dropout_p": 0.5},
            ValueError,
            "seed: got 18446744073709551616, want one of 64 bits",
        ),
        ({"seed": "3", "dropout_p": 0.5}, TypeError, "seed: got str, want a whole number"),
        ({"dropout_p": "0.5"}, TypeError, "dropout_p: got str, want a number"),
        ({"dropout_p": True}, TypeError, "dropout_p: got bool, want a number"),
        ({"window": 3}, TypeError, "window: got int, want a pair"),
        ({"segment_ids": (torch.zeros(5),)}, TypeError, "segment_ids: got tuple, want an array, or a pair"),
        ({"key_lengths": "3"}, TypeError, "key_lengths: got str"),
        ({"sinks": "3"}, TypeError, "sinks: got str"),
        ({"other": 1}, TypeError, "got an unexpected keyword argument 'other'"),
    ],
    ids=str,
)
def test_arguments_are_checked_as_ever(options, error, message):
    with pytest.raises(error, match=message):
        attend(*leaves(*tensors((5, 4), (7, 4))), **options)


def test_arrays_are_safe_from_their_writers():
    query, key = leaves(tensor(5, 4))[0], tensor(7, 4).numpy().copy()
    output = attend(query, key, key).sum()
    (want,) = torch.autograd.grad(output, query, retain_graph=True)
    key[:] = 0
    assert torch.equal(torch.autograd.grad(output, query)[0], want)


def test_other_arguments_have_no_gradients():
    slopes = torch.ones(4, requires_grad=True)
    with pytest.raises(NotImplementedError, match="alibi_slopes: got a tensor that requires gradients"):
        attend(*tensors(*SHAPES["heads"]), alibi_slopes=slopes)
    with pytest.raises(TypeError, match="out: got one in a graph or where gradients are recorded"):
        attend(*leaves(*tensors(*SHAPES["heads"])), out=torch.empty(2, 4, 5, 6))


def test_the_operator_alone_says_what_it_lacks():
    (output,) = torch.ops.qkv.attention(*leaves(*tensors(*SHAPES["heads"])))
    with pytest.raises(NotImplementedError, match="return_row_stats: got False"):
        output.sum().backward()


@pytest.mark.parametrize("function", ["partial", "plan", "reference", "scores", "explain"])
def test_other_functions_record_nothing(function):
    given = leaves(*tensors((5, 8), (7, 8)))
    with pytest.raises(
        NotImplementedError, match=r"query: got a tensor that requires gradients.*query\.detach\(\)"
    ):
        getattr(qkv, function)(*given)
