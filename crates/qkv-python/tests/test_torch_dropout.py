"""Dropout of tensors: whose seed it is, and that gradients drop what the output did."""

from functools import partial

import pytest
import qkv
import qkv.torch
import torch
from parity import gradients, leaves, one_thread_of_torch, tensor, tensors  # noqa: F401
from torch.nn import functional as F

SDPA = qkv.scaled_dot_product_attention
SHAPES = [(2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)]


def dropped_by_hand(query, key, value, p, seed):
    weights = torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, -1)
    kept = torch.from_numpy(qkv.dropout_mask(seed, weights.shape, p))
    return (weights * kept / (1 - p)) @ value


def test_gradients_drop_what_the_output_did():
    given = tensors((2, 4, 130, 8), (2, 4, 70, 8), dtype=torch.float64)
    d_output = tensor(2, 4, 130, 8, seed=9)
    want = gradients(lambda *x: dropped_by_hand(*x, 0.3, 11), given, d_output)
    got = gradients(lambda *x: SDPA(*x, dropout_p=0.3, seed=11), given, d_output)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("needs_gradients", [False, True])
def test_the_seed_is_drawn_from_torchs_generator_and_only_for_dropout(needs_gradients):
    given = [x.requires_grad_(needs_gradients) for x in tensors(*SHAPES)]
    torch.manual_seed(3)
    state = torch.get_rng_state()
    plain = SDPA(*given, dropout_p=0.0)
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(plain, SDPA(*given))
    one, other = SDPA(*given, dropout_p=0.5), SDPA(*given, dropout_p=0.5)
    torch.manual_seed(3)
    assert torch.equal(SDPA(*given, dropout_p=0.5), one) and not torch.equal(one, other)
    # The operator draws what the plain call draws.
    torch.manual_seed(3)
    assert torch.equal(qkv.torch.attention(*given, dropout_p=0.5), one)


def test_nothing_is_drawn_for_what_drops_nothing():
    given = tensors(*SHAPES)
    state = torch.get_rng_state()
    for function in (qkv.plan, qkv.scores, partial(qkv.explain, print=False)):
        function(*given, dropout_p=0.5)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_operator_alone_has_no_seed_of_its_own():
    """Its gradients would drop other weights than its output did."""
    with pytest.raises(ValueError, match="seed: got None beside dropout_p, want one"):
        torch.ops.qkv.attention(*tensors(*SHAPES), dropout_p=0.5)


def test_weights_and_lse_are_from_before_dropout():
    given = tensors(*SHAPES)
    options = {"return_weights": True, "return_lse": True}
    plain = SDPA(*given, **options)
    dropped = SDPA(*given, dropout_p=0.5, seed=1, **options)
    assert torch.equal(dropped.weights, plain.weights) and torch.equal(dropped.lse, plain.lse)
    assert not torch.equal(dropped.output, plain.output)
    assert not SDPA(*given, dropout_p=1.0, seed=1).any()


def test_dropout_in_a_graph_is_drawn_anew_each_time():
    given = tensors(*SHAPES)
    call = torch.compile(lambda *x: SDPA(*x, dropout_p=0.5), fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    one, other = call(*given), call(*given)
    torch.manual_seed(0)
    assert torch.equal(call(*given), one) and not torch.equal(one, other)
    torch._dynamo.reset()


def test_dropout_in_the_place_of_torchs():
    given = leaves(*tensors(*SHAPES))
    torch.manual_seed(3)
    want = SDPA(*given, dropout_p=0.5)
    qkv.torch.reset_stats()
    torch.manual_seed(3)
    with qkv.torch.sdpa():
        assert torch.equal(F.scaled_dot_product_attention(*given, dropout_p=0.5), want)
    assert qkv.torch.stats() == {"qkv": 1, "torch": {}}


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_drops_the_same_again(use_reentrant):
    from torch.utils.checkpoint import checkpoint

    given, d_output = tensors(*SHAPES), tensor(2, 4, 5, 6, seed=9)

    def call(*x):
        return SDPA(*x, dropout_p=0.5)

    torch.manual_seed(3)
    want = gradients(call, given, d_output)
    torch.manual_seed(3)
    got = [x.clone().requires_grad_() for x in given]
    checkpoint(call, *got, use_reentrant=use_reentrant).backward(d_output)
    assert all(torch.equal(x.grad, other) for x, other in zip(got, want, strict=True))
