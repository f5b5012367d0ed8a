"""qkv inside torch: the operator in graphs, and qkv in the place of torch's function."""

import subprocess
import sys
import threading

import pytest
import qkv
import qkv.torch
import torch
from parity import gradients, tensor
from support import grid
from torch.nn import functional as F


def tensors(heads=4, key_heads=4, dtype=torch.float32):
    shapes = [(2, heads, 5, 8), (2, key_heads, 7, 8), (2, key_heads, 7, 6)]
    return [torch.from_numpy(grid(shape, seed)).to(dtype) for seed, shape in enumerate(shapes)]


@pytest.fixture(autouse=True)
def torchs_own_function_comes_back():
    qkv.torch.reset_stats()
    yield
    assert F.scaled_dot_product_attention is qkv.torch._torch_sdpa
    torch._dynamo.reset()


MASK = torch.arange(7) % 3 != 1
CALLS = [
    {},
    {"is_causal": True, "window": (2, None), "scale": 0.5},
    {"attn_mask": MASK, "causal": "bottom-right", "softcap": 2.0},
    {"attn_mask": MASK.float(), "key_lengths": [3, 6], "sinks": torch.tensor([0.5, 1, -1, 0])},
    {"key_lengths": torch.tensor([3, 6]), "alibi_slopes": torch.tensor([1, 0.5, 0.25, 0.125])},
    {"is_causal": True, "prefix": 2, "query_offset": 1},
    {"segment_ids": (torch.arange(5) // 2, torch.arange(7) // 2)},
    {"return_weights": True},
    {"return_lse": True},
    {"return_weights": True, "return_lse": True, "is_causal": True},
]


def all_equal(one, other):
    assert type(one) is type(other)
    pairs = [(one, other)] if isinstance(one, torch.Tensor) else zip(one, other, strict=True)
    for left, right in pairs:
        assert left.dtype == right.dtype and left.stride() == right.stride()
        assert torch.equal(left, right)


@pytest.mark.parametrize("options", CALLS)
def test_a_graph_gives_the_bits_of_the_plain_call(options):
    query, key, value = tensors()
    expected = qkv.scaled_dot_product_attention(query, key, value, **options)
    all_equal(qkv.torch.attention(query, key, value, **options), expected)
    call = torch.compile(
        lambda *inputs: qkv.scaled_dot_product_attention(*inputs, **options),
        fullgraph=True,
        backend="aot_eager",
    )
    all_equal(call(query, key, value), expected)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"return_weights": True, "return_lse": True},
        {"layout": "bshd"},
        {"attn_mask": MASK, "is_causal": True},
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_operator_holds_to_torchs_rules(options, dtype):
    query, key, value = tensors(dtype=dtype)
    if "layout" in options:
        query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    # With gradients: `test_torch_gradients.py`.
    torch.library.opcheck(torch.ops.qkv.attention.default, (query, key, value), options)


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        ([(5, 8), (7, 8), (7, 6)], {}),
        ([(4, 5, 8), (4, 7, 8), (7, 6)], {}),
        ([(3, 1, 5, 8), (1, 4, 7, 8), (3, 1, 7, 6)], {}),
        ([(2, 6, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6)], {"enable_gqa": True}),
        ([(5, 6, 8), (7, 2, 8), (7, 2, 6)], {"enable_gqa": True, "layout": "bshd"}),
        ([(3, 1, 4, 5, 8), (2, 4, 7, 8), (4, 7, 6)], {"return_lse": True}),
    ],
)
def test_the_fake_knows_the_shapes(shapes, options):
    inputs = [torch.from_numpy(grid(shape)) for shape in shapes]
    real = torch.ops.qkv.attention(*inputs, **options)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = torch.ops.qkv.attention(*map(mode.from_tensor, inputs), **options)
    assert [(x.shape, x.stride(), x.dtype) for x in fake] == [(x.shape, x.stride(), x.dtype) for x in real]


def test_a_graph_has_no_place_for_out():
    with pytest.raises(TypeError, match="out: got one in a graph"):
        qkv.torch.attention(*tensors(), out=torch.empty(2, 4, 5, 6))


class Attend(torch.nn.Module):
    """As models call torch's function: by attribute."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, **self.options)


def test_an_exported_program_holds_the_operator():
    query, key, value = tensors()
    with qkv.torch.sdpa():
        lens = {2: torch.export.Dim("len_query")}
        program = torch.export.export(
            Attend(is_causal=True), (query, key, value), dynamic_shapes=(lens, None, None)
        )
    assert "torch.ops.qkv.attention" in program.graph_module.code
    longer = torch.cat([query, query], dim=2)
    all_equal(
        program.module()(longer, key, value),
        qkv.scaled_dot_product_attention(longer, key, value, is_causal=True),
    )


def test_a_compiled_model_holds_the_operator_while_qkv_is_in_place():
    query, key, value = tensors()
    graphs = []

    def backend(graph, _):
        graphs.append(graph.code)
        return graph.forward

    model = torch.compile(Attend(), fullgraph=True, backend=backend)
    with qkv.torch.sdpa():
        all_equal(model(query, key, value), qkv.scaled_dot_product_attention(query, key, value))
    assert "torch.ops.qkv.attention" in graphs[0]
    all_equal(model(query, key, value), F.scaled_dot_product_attention(query, key, value))
    assert len(graphs) == 2 and "qkv" not in graphs[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": MASK}, {"scale": 0.25}])
def test_torchs_function_is_replaced_and_comes_back(options, dtype):
    query, key, value = tensors(dtype=dtype)
    with qkv.torch.sdpa():
        assert qkv.torch.is_installed()
        output = F.scaled_dot_product_attention(query, key, value, **options)
        all_equal(output, qkv.scaled_dot_product_attention(query, key, value, **options))
    assert not qkv.torch.is_installed()
    assert qkv.torch.stats() == {"qkv": 1, "torch": {}}


def test_heads_are_shared_as_in_torch():
    query, key, value = tensors(heads=6, key_heads=2)
    with qkv.torch.sdpa():
        output = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    torch.testing.assert_close(output, F.scaled_dot_product_attention(query, key, value, enable_gqa=True))
    assert qkv.torch.stats()["qkv"] == 1


class Subclass(torch.Tensor):
    pass


def vmapped(query, key, value):
    return torch.func.vmap(F.scaled_dot_product_attention)(query, key, value)


def counted(query, key, value):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as mode:
        output = F.scaled_dot_product_attention(query, key, value)
    assert mode.get_total_flops() > 0
    return output


@pytest.mark.parametrize(
    ("reason", "call"),
    [
        ("tensor type", lambda q, k, v: F.scaled_dot_product_attention(q.as_subclass(Subclass), k, v)),
        ("device", lambda q, k, v: F.scaled_dot_product_attention(*(x.to("meta") for x in (q, k, v)))),
        ("transform", vmapped),
        ("transform", counted),
        ("transform", lambda q, k, v: torch.jit.trace(Attend(), (q, k, v), check_trace=False)(q, k, v)),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_stays_with_torch_is_counted(reason, call):
    query, key, value = tensors()
    expected = F.scaled_dot_product_attention(query, key, value)
    with qkv.torch.sdpa():
        output = call(query, key, value)
    if reason != "device":
        torch.testing.assert_close(output.as_subclass(torch.Tensor), expected)
    assert qkv.torch.stats() == {"qkv": 0, "torch": {reason: 1}}


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


def test_autocast_trains():
    given = tensors()
    with torch.autocast("cpu", torch.bfloat16):
        want = gradients(F.scaled_dot_product_attention, given, tensor(2, 4, 5, 6, seed=9))
        with qkv.torch.sdpa():
            got = gradients(F.scaled_dot_product_attention, given, tensor(2, 4, 5, 6, seed=9))
    for one, other in zip(got, want, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0, atol=0.03)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("trace", ["make_fx", "jit"])
def test_tracers_see_a_call(trace):
    """Plain calls too are no constants to them."""
    from torch.fx.experimental.proxy_tensor import make_fx

    query, key, value = tensors()

    def call(query):
        return qkv.scaled_dot_product_attention(query, key, value)

    traced = (
        make_fx(call)(query) if trace == "make_fx" else torch.jit.trace(call, (query,), check_trace=False)
    )
    assert torch.equal(traced(2 * query), call(2 * query))


def test_autocast_casts_as_for_torch():
    query, key, value = tensors()
    bias = torch.from_numpy(grid((5, 7), 3))
    with torch.autocast("cpu", torch.bfloat16):
        expected = F.scaled_dot_product_attention(query, key, value, bias)
        with qkv.torch.sdpa():
            output = F.scaled_dot_product_attention(query, key, value, bias)
    assert output.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(output, expected, atol=2**-7, rtol=0)


def test_errors_are_the_same_kind_of_no():
    query, key, value = tensors()
    with qkv.torch.sdpa(), pytest.raises(ValueError, match="key: got shape"):
        F.scaled_dot_product_attention(query, key[..., :3], value)


def test_blocks_nest_and_installing_lasts():
    own = F.scaled_dot_product_attention
    with qkv.torch.sdpa():
        with qkv.torch.sdpa():
            pass
        assert qkv.torch.is_installed()
        with pytest.raises(ZeroDivisionError), qkv.torch.sdpa():
            raise ZeroDivisionError
        assert qkv.torch.is_installed()
    assert F.scaled_dot_product_attention is own
    qkv.torch.install()
    qkv.torch.install()
    seen = []
    thread = threading.Thread(target=lambda: seen.append(qkv.torch.is_installed()))
    thread.start()
    thread.join()
    qkv.torch.uninstall()
    assert seen == [True] and F.scaled_dot_product_attention is own


def test_a_name_bound_before_keeps_torchs_function():
    """A documented limit."""
    script = """
from torch.nn.functional import scaled_dot_product_attention as bound
import qkv.torch, torch
qkv.torch.install()
bound(*[torch.ones(1, 2, 3, 4)] * 3)
print(qkv.torch.stats())
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "{'qkv': 0, 'torch': {}}\n"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: x.to("meta"), "query: got a Tensor on meta"),
        (lambda x: x.to_sparse(), r"query: got a Tensor on cpu, torch\.sparse_coo, without plain memory"),
        (lambda x: torch._efficientzerotensor(x.shape), "query: got a Tensor without memory"),
        (lambda x: x.to(torch.float8_e4m3fn), "query: got dtype float8_e4m3fn"),
        (lambda x: x.to(torch.complex64), "query: got dtype complex64"),
        (lambda x: x.long(), "query: got dtype int64"),
    ],
)
def test_tensors_that_cannot_be_read_are_named(make, message):
    query, key, value = tensors()
    with pytest.raises(TypeError, match=message):
        qkv.scaled_dot_product_attention(make(query), key, value)


def test_a_tensor_marked_as_negated_is_read_as_it_is():
    query, key, value = tensors()
    negated = torch.complex(torch.zeros_like(query), -query).conj().imag
    assert negated.is_neg() and torch.equal(negated, query)
    all_equal(
        qkv.scaled_dot_product_attention(negated, key, value),
        qkv.scaled_dot_product_attention(query, key, value),
    )


def test_gradients_are_recorded_where_they_are_on():
    query, key, value = tensors()
    expected = qkv.scaled_dot_product_attention(query, key, value)
    weights = torch.nn.Parameter(key)
    output = qkv.scaled_dot_product_attention(query, weights, value)
    assert output.requires_grad and torch.equal(output, expected)
    with torch.no_grad():
        all_equal(qkv.scaled_dot_product_attention(query, weights, value), expected)
    with torch.inference_mode():
        output = qkv.scaled_dot_product_attention(query.clone(), weights, value)
    assert torch.equal(output, expected) and not output.requires_grad


def test_results_are_tensors_of_full_right():
    query, key, value = tensors()
    output = qkv.scaled_dot_product_attention(query, key, value)
    output.add_(1).mul_(2)
    assert output.requires_grad_().sum().backward() is None and output.grad is not None
    assert torch.equal(output.detach().clone(), output.detach())
    out = torch.empty(2, 4, 5, 6)
    assert qkv.scaled_dot_product_attention(query, key, value, out=out) is out
    mixed = qkv.scaled_dot_product_attention(query.numpy(), key, value)
    assert type(mixed).__module__ == "numpy"
    mixed = qkv.scaled_dot_product_attention(query, key.numpy(), value.numpy(), MASK.numpy())
    assert isinstance(mixed, torch.Tensor)


def test_blocks_of_two_threads_may_overlap():
    own = F.scaled_dot_product_attention
    first, second = qkv.torch.sdpa(), qkv.torch.sdpa()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert qkv.torch.is_installed()
    second.__exit__(None, None, None)
    assert F.scaled_dot_product_attention is own


def test_forward_derivatives_and_fakes_stay_with_torch():
    query, key, value = tensors()
    with torch.autograd.forward_ad.dual_level(), qkv.torch.sdpa():
        dual = torch.autograd.forward_ad.make_dual(query, torch.ones_like(query))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            output = F.scaled_dot_product_attention(dual, key, value)
        assert torch.autograd.forward_ad.unpack_dual(output).tangent is not None
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in (query, key, value)]
    with qkv.torch.sdpa():
        assert F.scaled_dot_product_attention(*fakes).shape == (2, 4, 5, 6)
    assert qkv.torch.stats()["qkv"] == 0


def test_the_operator_takes_what_the_function_takes():
    query, key, value = tensors()
    options = {"sinks": [0.5, 1.0, -1.0, 0.0], "alibi_slopes": [1.0, 0.5, 0.25, 0.125], "is_causal": None}
    options |= {"key_lengths": 3, "segment_ids": ([0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 0, 0]), "scale": None}
    expected = qkv.scaled_dot_product_attention(
        query, key, value, **options | {"segment_ids": tuple(map(torch.tensor, options["segment_ids"]))}
    )
    all_equal(qkv.torch.attention(query, key, value, None, None, **options), expected)


def test_torch_knows_that_out_was_written():
    query, key, value = tensors()
    out, weights = torch.empty(2, 4, 5, 6), torch.ones(2, 4, 5, 6, requires_grad=True)
    product = (weights * out).sum()
    qkv.scaled_dot_product_attention(query, key, value, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.complex(torch.zeros(2, 4, 5, 6), torch.ones(2, 4, 5, 6)).conj().imag,
        lambda: torch.empty(2, 4, 5, 6).tolist(),
    ],
    ids=["negated", "list"],
)
def test_out_is_written_in_place_or_refused(make):
    with pytest.raises(TypeError, match=r"out: got (Tensor|list), want an array or tensor that is written"):
        qkv.scaled_dot_product_attention(*tensors(), out=make())


def test_a_view_of_no_memory_is_refused():
    query, key, value = tensors()
    zero = torch._efficientzerotensor((2, *query.shape))[1]
    with pytest.raises(TypeError, match="query: got a Tensor without memory"):
        qkv.scaled_dot_product_attention(zero, key, value)


def test_lists_keep_their_width_in_graphs():
    query, key, value = (tensor.double() for tensor in tensors())
    slopes = [0.1, 0.2, 0.3, 1 / 3]
    all_equal(
        qkv.torch.attention(query, key, value, alibi_slopes=slopes),
        qkv.scaled_dot_product_attention(query, key, value, alibi_slopes=slopes),
    )


def test_a_function_put_over_ours_stays():
    own = F.scaled_dot_product_attention

    def patch(*inputs, **options):
        return own(*inputs, **options)

    try:
        with qkv.torch.sdpa():
            F.scaled_dot_product_attention = patch
        assert F.scaled_dot_product_attention is patch
    finally:
        F.scaled_dot_product_attention = own
