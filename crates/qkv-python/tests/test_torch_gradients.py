"""Gradients through torch: against finite differences, against torch's own, in graphs, and bit for bit."""

import numpy as np
import pytest
import qkv
import qkv.torch
import torch
from parity import booleans, one_thread_of_torch, tensor, tensors, torch_math  # noqa: F401
from torch.nn import functional as F
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


def leaves(*given):
    """Copies of tensors of floats that need gradients; what is none stays."""
    return [
        x.clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in given
    ]


def checked(arrays, attn_mask=None, sinks=None, **options):
    arguments = leaves(*arrays, attn_mask, sinks)

    def call(*arguments):
        result = attend(*arguments, **options, return_lse=True)
        # A row that may attend nothing has an lse of -∞.
        return result.output, result.lse.where(result.lse.isfinite(), 0)

    return torch.autograd.gradcheck(call, arguments)


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


def gradients(function, given, d_output):
    given = leaves(*given)
    output = function(*given)
    needed = [x for x in given if isinstance(x, torch.Tensor) and x.requires_grad]
    return torch.autograd.grad(output, needed, d_output.to(output.dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"attn_mask": tensor(130, 200, seed=5)}], ids=list
)
def test_as_exact_as_torchs_own(dtype, options):
    """By the error law: at most twice torch's error, and two units of the largest in the last place."""
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
        ulp = torch.finfo(dtype).eps * true.abs().max()
        assert (other - true).abs().max() <= 2 * (one - true).abs().max() + 2 * ulp


def test_a_gradient_is_as_wide_as_its_tensor():
    query, key, value = tensors(*SHAPES["heads"], dtype=torch.bfloat16)
    mask, sinks = leaves(tensor(5, 7), torch.ones(4, dtype=torch.float64))
    attend(*leaves(query, key, value), mask, sinks).sum().backward()
    assert mask.grad.dtype == torch.float32 and sinks.grad.dtype == torch.float64


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


def test_dropout_in_a_graph_is_drawn_anew_each_time():
    given = tensors(*SHAPES["heads"])
    call = torch.compile(lambda *x: attend(*x, dropout_p=0.5), fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    one, other = call(*given), call(*given)
    torch.manual_seed(0)
    assert torch.equal(call(*given), one) and not torch.equal(one, other)
    torch._dynamo.reset()


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


# --- dropout


def dropped_by_hand(query, key, value, p, seed):
    weights = torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, -1)
    kept = torch.from_numpy(qkv.dropout_mask(seed, weights.shape, p))
    return (weights * kept / (1 - p)) @ value


def test_dropout_drops_what_its_mask_says():
    given, d_output = (
        tensors((2, 4, 130, 8), (2, 4, 70, 8), dtype=torch.float64),
        tensor(2, 4, 130, 8, seed=9),
    )
    want = gradients(lambda *x: dropped_by_hand(*x, 0.3, 11), given, d_output)
    got = gradients(lambda *x: attend(*x, dropout_p=0.3, seed=11), given, d_output)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


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
        ((1, (4, 4), 1.5), r"dropout_p: got 1\.5, want a probability from 0 to 1"),
        ((1, (4, 4), float("nan")), "dropout_p: got NaN"),
    ],
)
def test_masks_of_dropout_that_have_no_meaning(arguments, message):
    with pytest.raises(ValueError, match=message):
        qkv.dropout_mask(*arguments)


@pytest.mark.parametrize("needs_gradients", [False, True])
def test_the_seed_is_drawn_from_torchs_generator_and_only_for_dropout(needs_gradients):
    given = [x.requires_grad_(needs_gradients) for x in tensors(*SHAPES["heads"])]
    torch.manual_seed(3)
    state = torch.get_rng_state()
    plain = attend(*given, dropout_p=0.0)
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(plain, attend(*given))
    one, other = attend(*given, dropout_p=0.5), attend(*given, dropout_p=0.5)
    torch.manual_seed(3)
    assert torch.equal(attend(*given, dropout_p=0.5), one) and not torch.equal(one, other)
    # The operator draws what the plain call draws.
    torch.manual_seed(3)
    assert torch.equal(qkv.torch.attention(*given, dropout_p=0.5), one)


def test_weights_and_lse_are_from_before_dropout():
    given = tensors(*SHAPES["heads"])
    options = {"return_weights": True, "return_lse": True}
    plain = attend(*given, **options)
    dropped = attend(*given, dropout_p=0.5, seed=1, **options)
    assert torch.equal(dropped.weights, plain.weights) and torch.equal(dropped.lse, plain.lse)
    assert not torch.equal(dropped.output, plain.output)
    assert not attend(*given, dropout_p=1.0, seed=1).any()


# --- in the place of torch's function


def test_modules_train_through_qkv():
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    x = tensor(2, 5, 16)

    def trained():
        layer.zero_grad()
        layer(x, x, x, need_weights=False)[0].square().sum().backward()
        return [parameter.grad.clone() for parameter in layer.parameters()]

    want = trained()
    qkv.torch.reset_stats()
    with qkv.torch.sdpa():
        got = trained()
    assert qkv.torch.stats() == {"qkv": 1, "torch": {}}
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_dropout_in_the_place_of_torchs():
    given = leaves(*tensors(*SHAPES["heads"]))
    torch.manual_seed(3)
    want = attend(*given, dropout_p=0.5)
    qkv.torch.reset_stats()
    torch.manual_seed(3)
    with qkv.torch.sdpa():
        assert torch.equal(F.scaled_dot_product_attention(*given, dropout_p=0.5), want)
    assert qkv.torch.stats() == {"qkv": 1, "torch": {}}


def test_autocast_trains():
    given = tensors(*SHAPES["heads"])
    with torch.autocast("cpu", torch.bfloat16):
        want = gradients(F.scaled_dot_product_attention, given, tensor(2, 4, 5, 6, seed=9))
        with qkv.torch.sdpa():
            got = gradients(F.scaled_dot_product_attention, given, tensor(2, 4, 5, 6, seed=9))
    for one, other in zip(got, want, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0, atol=0.03)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_drops_the_same_again(use_reentrant):
    from torch.utils.checkpoint import checkpoint

    given, d_output = tensors(*SHAPES["heads"]), tensor(2, 4, 5, 6, seed=9)

    def call(*x):
        return attend(*x, dropout_p=0.5)

    torch.manual_seed(3)
    want = gradients(call, given, d_output)
    torch.manual_seed(3)
    got = [x.clone().requires_grad_() for x in given]
    checkpoint(call, *got, use_reentrant=use_reentrant).backward(d_output)
    assert all(torch.equal(x.grad, other) for x, other in zip(got, want, strict=True))


# --- what has no gradient


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
    with pytest.raises(NotImplementedError, match="weights: got a loss that depends on the returned weights"):
        result.weights.square().sum().backward()


def test_other_arguments_have_no_gradients():
    slopes = torch.ones(4, requires_grad=True)
    with pytest.raises(NotImplementedError, match="alibi_slopes: got a tensor that requires gradients"):
        attend(*tensors(*SHAPES["heads"]), alibi_slopes=slopes)
    with pytest.raises(TypeError, match="out: got one in a graph or where gradients are recorded"):
        attend(*leaves(*tensors(*SHAPES["heads"])), out=torch.empty(2, 4, 5, 6))


def test_the_operator_alone_says_what_it_lacks():
    (output,) = torch.ops.qkv.attention(*leaves(*tensors(*SHAPES["heads"])))
    with pytest.raises(NotImplementedError, match="return_row_stats=True"):
        output.sum().backward()


@pytest.mark.parametrize("function", ["partial", "plan", "reference", "scores", "explain"])
def test_other_functions_record_nothing(function):
    given = leaves(*tensors((5, 8), (7, 8)))
    with pytest.raises(
        NotImplementedError, match=r"query: got a tensor that requires gradients.*query\.detach\(\)"
    ):
        getattr(qkv, function)(*given)
