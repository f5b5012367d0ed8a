"""attn_implementation="qkv" against Transformers' eager attention, on tiny models with random weights.

Real tokens are compared, not padding: eager attention gives a query that may attend nothing a mean of values.
"""

import subprocess
import sys

import pytest
import qkv
import qkv.transformers
import torch
import transformers
from qkv.transformers import Mask, qkv_attention_forward, qkv_mask
from tiny import (
    DECODERS,
    ENCODER_DECODERS,
    ENCODERS,
    GROUPED,
    TOKENS,
    another,
    batch,
    difference,
    pair,
    result_of,
)
from transformers import DynamicCache, StaticCache
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    or_masks,
    packed_sequence_mask_function,
    remap_positions_for_packed_sequence,
    sdpa_mask,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

CLOSE = 1e-5


@pytest.fixture(autouse=True, scope="module")
def registered():
    qkv.transformers.register()


@pytest.fixture(autouse=True)
def inference():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


# Models.


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", [*DECODERS, *ENCODERS])
def test_as_eager(name, padding):
    eager, ours = pair(*{**DECODERS, **ENCODERS}[name])
    ids, real = batch(padding)
    want, got = (result_of(model(ids, attention_mask=real)) for model in (eager, ours))
    assert difference(got, want, real) < CLOSE
    # In causal order, padding on the right makes no difference to the tokens before it.
    if padding == "left" or (padding == "right" and name in ENCODERS):
        assert difference(result_of(ours(ids)), want, real) > 100 * CLOSE


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_encoder_decoders_as_eager(name, padding):
    eager, ours = pair(*ENCODER_DECODERS[name])
    ids, real = batch(padding)
    tokens = torch.randint(3, 64, (2, 7))
    arguments = {"attention_mask": real, "decoder_input_ids": tokens, "output_attentions": True}
    want, got = (model(ids, **arguments) for model in (eager, ours))
    assert (got.last_hidden_state - want.last_hidden_state).abs().max() < CLOSE
    for kind in ("decoder_attentions", "cross_attentions", "encoder_attentions"):
        queries = real if kind == "encoder_attentions" else torch.ones_like(tokens)
        assert len(got[kind]) == 2
        for one, other in zip(got[kind], want[kind], strict=True):
            assert difference(one.transpose(1, 2), other.transpose(1, 2), queries) < CLOSE


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("cache", [DynamicCache, StaticCache])
@pytest.mark.parametrize("name", DECODERS)
def test_cached_steps_as_eager(name, cache, padding):
    """Of several tokens and of one; a static cache has empty places after them."""
    eager, ours = pair(*DECODERS[name])
    ids, real = batch(padding)

    def steps(model):
        size = {"max_cache_len": 20} if cache is StaticCache else {}
        state, stop = cache(config=model.config, **size), 0
        for count in (6, 1, 1, 3, 1):
            seen, stop = slice(stop, stop + count), stop + count
            yield model(ids[:, seen], attention_mask=real[:, :stop], cache=state, use_cache=True).logits

    want, got = (torch.cat(list(steps(model)), dim=1) for model in (eager, ours))
    assert difference(got, want, real) < CLOSE


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gemma4"])
def test_generates_the_same_tokens(name, cache):
    """Generation makes the masks for a static cache itself; Gemma 4 takes the last query of them."""
    eager, ours = pair(*DECODERS[name])
    ids, real = batch("left")
    options = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": cache}
    want, got = (model.generate(ids, attention_mask=real, **options) for model in (eager, ours))
    assert torch.equal(got, want)


def test_a_token_sees_none_after_it():
    """transformers #45811, #46132: with an attention function alone, causal order was lost in silence."""
    _, ours = pair(*DECODERS["llama"])
    ids, _ = batch()
    one, two = ours(ids).logits, ours(another(ids, -1)).logits
    assert torch.equal(one[:, :-1], two[:, :-1])
    assert not torch.equal(one[:, -1], two[:, -1])


def test_a_window_counts_the_query_itself():
    """transformers #39408: off by one."""
    _, ours = pair("MistralModel", {**GROUPED, "num_hidden_layers": 1, "sliding_window": 4})
    ids, _ = batch()
    last = ours(ids).last_hidden_state[:, -1]
    others = [ours(another(ids, -1 - back)).last_hidden_state[:, -1] for back in range(6)]
    assert [torch.equal(other, last) for other in others] == [False] * 4 + [True] * 2


def test_packed_sequences_do_not_see_each_other():
    eager, ours = pair(*DECODERS["mistral"])
    ids, real = batch()
    positions = torch.tensor([[*range(7), *range(TOKENS - 7)]]).expand(2, -1)
    want, got = (model(ids, position_ids=positions, use_cache=False).logits for model in (eager, ours))
    assert difference(got, want, real) < CLOSE
    assert difference(ours(ids, use_cache=False).logits, want, real) > 100 * CLOSE


def added(mask):
    """Floats that say what booleans do when they are added to scores."""
    return torch.zeros(()).where(mask, -torch.inf)


@pytest.mark.parametrize("make", [torch.clone, added])
def test_a_mask_of_the_caller(make):
    """With four axes, it goes to the attention as it is: booleans, or floats that are added."""
    eager, ours = pair(*DECODERS["llama"])
    ids, real = batch()
    mask = torch.ones(2, 1, TOKENS, TOKENS, dtype=torch.bool).tril()
    mask[:, :, 4:, 3] = False
    want = eager(ids, attention_mask=added(mask)).logits
    assert difference(ours(ids, attention_mask=make(mask)).logits, want, real) < CLOSE


@pytest.mark.parametrize("dtype, close", [(torch.bfloat16, 0.05), (torch.float16, 0.01)])
def test_half_precision(dtype, close):
    eager, ours = (model.to(dtype) for model in pair(*DECODERS["llama"]))
    ids, real = batch("left")
    want, got = (model(ids, attention_mask=real).logits for model in (eager, ours))
    assert got.dtype == dtype
    assert difference(got, want, real) < close * want[real.bool()].abs().max()


# Attention weights.


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_oss", "gemma2", "bert"])
def test_output_attentions(name):
    """transformers #26572, #33660: None, or another way of computing. GPT-2 does not hand the argument on."""
    eager, ours = pair(*{**DECODERS, **ENCODERS}[name])
    ids, real = batch("left")
    want, got = (model(ids, attention_mask=real, output_attentions=True) for model in (eager, ours))
    assert len(got.attentions) == 2
    for one, other in zip(got.attentions, want.attentions, strict=True):
        assert difference(one.transpose(1, 2), other.transpose(1, 2), real) < CLOSE
    without = ours(ids, attention_mask=real)
    assert without.attentions is None and torch.equal(result_of(got), result_of(without))


def test_output_attentions_in_the_configuration():
    """Transformers refuses it beside attn_implementation="qkv", unless it was there before."""
    eager, ours = pair(*DECODERS["llama"])
    with pytest.raises(Exception, match="output_attentions"):
        transformers.LlamaConfig(**GROUPED, attn_implementation="qkv", output_attentions=True)
    with pytest.raises(ValueError, match="output_attentions"):
        ours.config.output_attentions = True
    eager.config.output_attentions = True
    eager.set_attn_implementation("qkv")
    ids, _ = batch()
    assert eager(ids).attentions[1].shape == (2, 4, TOKENS, TOKENS)
    with pytest.raises(Exception, match="output_attentions"):
        eager.config.validate()


# Masks.

PACKED = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2, 2], [0, 1, 1, 1, 1, 1, 1, 1, 1, 1]])
POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 0, 1, 2], [0, 0, 1, 2, 3, 4, 5, 6, 7, 8]])
FUNCTIONS = {
    "causal": causal_mask_function,
    "bidirectional": bidirectional_mask_function,
    "window": sliding_window_causal_mask_function(3),
    "both sides": sliding_window_bidirectional_mask_function(2),
    "chunks": chunked_causal_mask_function(3, torch.tensor([0, 2])),
}
# Queries, keys, and the positions of the first of each.
PLACES = {
    "square": (10, 10, 0, 0),
    "after a cache": (3, 10, 7, 0),
    "one query": (1, 10, 9, 0),
    "static cache": (4, 10, torch.tensor(2), 0),
    "cache of a window": (3, 5, 9, 7),
}


def module(**attributes):
    made = torch.nn.Module()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def allowed(mask):
    """Which query may attend which key: where the weights of equal scores are not 0."""
    batch, _, queries, keys = mask.shape
    query, key = torch.zeros(batch, 1, queries, 8), torch.zeros(batch, 1, keys, 8)
    value = torch.eye(keys).expand(batch, 1, keys, keys)
    return qkv_attention_forward(module(), query, key, value, mask)[0].transpose(1, 2) > 0


@pytest.mark.parametrize("padding", [None, slice(0), slice(3), slice(7, None), slice(2, 4)])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_compact_masks_are_those_of_sdpa(name, place, padding):
    queries, keys, q_offset, kv_offset = PLACES[place]
    real = None
    if padding is not None:
        real = torch.ones(2, q_offset + queries, dtype=torch.bool)
        real[1, padding] = False
    arguments = (2, queries, keys, q_offset, kv_offset, FUNCTIONS[name], real)
    mask = qkv_mask(*arguments, allow_is_causal_skip=True, allow_is_bidirectional_skip=True)
    want = sdpa_mask(*arguments, allow_is_causal_skip=False)
    assert isinstance(mask, Mask) and mask.shape == want.shape and mask.dtype == want.dtype
    assert "attn_mask" not in mask.options
    assert torch.equal(allowed(mask), want)
    assert torch.equal(allowed(mask[:, :, -2:, :]), want[:, :, -2:, :])


def test_no_padding_costs_nothing():
    """Ones, as tokenizers give them, and the empty places of a static cache."""
    mask = qkv_mask(2, 2, 20, 4, 0, causal_mask_function, torch.ones(2, 6, dtype=torch.bool))
    assert mask.options == {"is_causal": True, "query_offset": 4, "key_offset": 0}


@pytest.mark.parametrize("inner", [causal_mask_function, FUNCTIONS["window"]])
def test_packed_masks_are_those_of_sdpa(inner):
    remapped = remap_positions_for_packed_sequence(inner, POSITIONS)
    arguments = (2, 10, 10, 0, 0, and_masks(remapped, packed_sequence_mask_function(PACKED)))
    mask = qkv_mask(*arguments)
    assert "attn_mask" not in mask.options
    assert torch.equal(allowed(mask), sdpa_mask(*arguments, allow_is_causal_skip=False))


@pytest.mark.parametrize(
    "function",
    [
        or_masks(causal_mask_function, lambda batch, head, query, key: key < 3),
        and_masks(causal_mask_function, lambda batch, head, query, key: key != 2),
        and_masks(FUNCTIONS["window"], sliding_window_causal_mask_function(5)),
        and_masks(FUNCTIONS["chunks"], packed_sequence_mask_function(PACKED)),
    ],
)
def test_other_masks_are_dense(function):
    real = torch.ones(2, 10, dtype=torch.bool)
    real[0, :2] = False
    arguments = (2, 10, 10, 0, 0, function, real)
    mask, want = qkv_mask(*arguments), sdpa_mask(*arguments, allow_is_causal_skip=False)
    assert "attn_mask" in mask.options
    assert torch.equal(allowed(mask), want)
    assert torch.equal(allowed(mask[:, :, 4:]), want[:, :, 4:])


def test_a_mask_stays_itself_or_raises():
    mask = qkv_mask(2, 4, 4)
    assert mask.contiguous() is mask and mask.to("cpu") is mask and mask.bool() is mask
    scores = torch.zeros(2, 4, 4, 4)
    operations = [
        lambda: scores + mask,
        lambda: scores.masked_fill(mask, 1),
        lambda: mask == 0,
        lambda: ~mask,
        lambda: mask[:, :, :, :2],
        lambda: mask[:, :, ::2],
        lambda: mask[0],
        lambda: mask.to(torch.float32),
        lambda: mask.fill_(True),
        lambda: mask.any(),
    ]
    for operation in operations:
        with pytest.raises(NotImplementedError, match="computes with its mask"):
            operation()


@pytest.mark.parametrize("name", ["BloomModel", "MptModel"])
def test_models_that_compute_with_their_mask_raise(name):
    """BLOOM would add booleans to its scores; to MPT, True is what may not be attended."""
    _, ours = pair(
        name, {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1}
    )
    ids, real = batch("left")
    with pytest.raises(NotImplementedError, match="computes with its mask"):
        ours(ids, attention_mask=real)


# The attention function.


def inputs(queries=3, keys=5):
    """Four heads of queries and two of keys, in the layout that models make."""
    query = torch.randn(2, queries, 4, 8).transpose(1, 2)
    key, value = (torch.randn(2, keys, 2, 8).transpose(1, 2) for _ in range(2))
    return query, key, value


def computed(arrays, **options):
    """What qkv's own function gives, as Transformers wants it."""
    return qkv.scaled_dot_product_attention(*arrays, enable_gqa=True, **options).transpose(1, 2)


def test_nothing_is_copied(monkeypatch):
    """Heads of keys are not repeated, and the output is (batch, queries, heads, dim) in one piece."""
    seen = []

    def spy(*arrays, **options):
        seen.extend(arrays)
        return qkv.scaled_dot_product_attention(*arrays, **options)

    monkeypatch.setattr("qkv._attention.scaled_dot_product_attention", spy)
    arrays = inputs(5, 5)
    output, weights = qkv_attention_forward(module(is_causal=True), *arrays, None)
    assert output.shape == (2, 5, 4, 8) and output.is_contiguous() and weights is None
    for given, array in zip(seen, arrays, strict=True):
        assert given.data_ptr() == array.data_ptr() and given.shape == array.transpose(1, 2).shape


def test_no_mask():
    """As in sdpa_attention_forward: causal if the module is, from the first key on, but for one query."""

    def got(module, arrays, **options):
        return qkv_attention_forward(module, *arrays, None, **options)[0]

    arrays, last = inputs(3, 5), inputs(1, 5)
    causal, everything = computed(arrays, is_causal=True), computed(arrays)
    assert torch.equal(got(module(is_causal=True), arrays), causal)
    assert torch.equal(got(module(), arrays, is_causal=True), causal)
    assert torch.equal(got(module(is_causal=False), arrays), everything)
    assert torch.equal(got(module(is_causal=True), arrays, is_causal=False), everything)
    assert torch.equal(got(module(is_causal=True), last), computed(last))
    assert torch.equal(got(module(), last, is_causal=True), computed(last))
    assert torch.equal(got(module(), last, sliding_window=5), computed(last))


def test_no_mask_where_it_would_be_a_guess():
    with pytest.raises(ValueError, match="Module has no is_causal"):
        qkv_attention_forward(module(), *inputs(3, 5), None)
    with pytest.raises(ValueError, match="3 causal queries of 2 keys"):
        qkv_attention_forward(module(is_causal=True), *inputs(3, 2), None)
    with pytest.raises(ValueError, match="a window of 4"):
        qkv_attention_forward(module(is_causal=True), *inputs(1, 5), None, sliding_window=4)


def test_masks_that_do_not_fit():
    with pytest.raises(ValueError, match=r"for \(3, 5\) queries and keys, want \(3, 6\)"):
        qkv_attention_forward(module(), *inputs(3, 6), qkv_mask(2, 3, 5))
    with pytest.raises(ValueError, match="got 2 axes"):
        qkv_attention_forward(module(), *inputs(2, 5), torch.ones(2, 5, dtype=torch.bool))


@pytest.mark.parametrize("kind", ["none", "booleans", "floats", "compact"])
def test_position_bias(kind):
    arrays, bias = inputs(3, 5), torch.randn(1, 4, 3, 5)
    lower = torch.ones(2, 1, 3, 5, dtype=torch.bool).tril()
    mask = {"none": None, "booleans": lower, "floats": added(lower), "compact": qkv_mask(2, 3, 5)}[kind]
    got, _ = qkv_attention_forward(module(is_causal=False), *arrays, mask, position_bias=bias)
    want = computed(arrays, attn_mask=bias if mask is None else bias + added(lower))
    assert (got - want).abs().max() < CLOSE


@pytest.mark.parametrize("kind", DECODERS | ENCODERS)
def test_gradients(kind):
    """Of all weights, with padding, as eager attention has them; twice the same."""
    name, configuration = (DECODERS | ENCODERS)[kind]
    theirs, ours = pair(name, configuration)
    ids, padding = batch("right")

    def trained(model):
        model.zero_grad()
        with torch.enable_grad():
            output = model(ids, attention_mask=padding)[0]
            (output * padding[..., None]).square().mean().backward()
        return {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}

    want, got, again = trained(theirs), trained(ours), trained(ours)
    assert want.keys() == got.keys()
    for name, own in got.items():
        assert (own - want[name]).abs().max() < CLOSE * max(1, want[name].abs().max()), name
        assert torch.equal(own, again[name]), name


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama"])
def test_checkpoints(kind, use_reentrant):
    _, model = pair(*(DECODERS | ENCODERS)[kind])
    ids, padding = batch("right")

    def trained():
        model.zero_grad()
        with torch.enable_grad():
            (model.train()(ids, attention_mask=padding)[0] * padding[..., None]).square().mean().backward()
        return [x.grad.clone() for x in model.parameters() if x.grad is not None]

    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    want = trained()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant})
    assert all(map(torch.equal, trained(), want))


def test_dropout_while_training():
    _, ours = pair("LlamaModel", {**GROUPED, "attention_dropout": 0.5})
    ids, _ = batch()
    plain = ours(ids)[0]
    torch.manual_seed(0)
    with torch.enable_grad():
        dropped = ours.train()(ids)[0]
        dropped.sum().backward()
    torch.manual_seed(0)
    assert torch.equal(ours(ids)[0], dropped) and not torch.equal(plain, dropped)
    assert all(x.grad is not None and x.grad.isfinite().all() for x in ours.parameters())


@pytest.mark.parametrize("name", ["indices", "block_indices", "sinks"])
def test_what_would_change_the_result_is_refused(name):
    with pytest.raises(NotImplementedError, match=name):
        qkv_attention_forward(module(is_causal=False), *inputs(), None, **{name: torch.zeros(1)})


@pytest.mark.filterwarnings("ignore")
def test_a_trace_is_refused():
    def attend(*arrays):
        return qkv_attention_forward(module(is_causal=False), *arrays, None)[0]

    with pytest.raises(NotImplementedError, match="constant"):
        torch.jit.trace(attend, inputs())


@pytest.mark.filterwarnings("ignore")
def test_compiled():
    """The graph breaks at each mask and attention; masks and places change from call to call."""
    eager, ours = pair("MistralForCausalLM", {**GROUPED, "num_hidden_layers": 1, "sliding_window": 4})
    compiled = torch.compile(ours, backend="eager")
    ids, real = batch("left")
    states = [StaticCache(config=eager.config, max_cache_len=16) for _ in range(2)]
    for seen in (slice(0, 6), slice(6, 7), slice(7, 8)):
        arguments = {"attention_mask": real[:, : seen.stop], "output_attentions": True}
        want, got = (
            model(ids[:, seen], cache=state, **arguments)
            for model, state in zip((eager, compiled), states, strict=True)
        )
        assert difference(got.logits, want.logits, real[:, seen]) < CLOSE
        weights, expected = (output.attentions[0].transpose(1, 2) for output in (got, want))
        assert difference(weights, expected, real[:, seen]) < CLOSE


# Memory and imports, in processes of their own.

LONG = """
import os, torch, transformers
import qkv.transformers
from transformers import AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

@torch.no_grad()
def added(masks, kind):
    qkv.transformers.register()
    AttentionMaskInterface.register("qkv", masks)
    model = transformers.MistralModel(transformers.MistralConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=64 if kind == "window" else None, attn_implementation="qkv",
    )).eval()

    def run(tokens):
        real = torch.ones(1, tokens, dtype=torch.int64)
        real[:, : tokens // 4 if kind == "padding" else 0] = 0
        model(torch.full((1, tokens), 5), attention_mask=real, use_cache=False)

    run(64)
    before = peak()
    run(8192)
    return peak() - before

for masks in (qkv.transformers.qkv_mask, sdpa_mask):
    for kind in ("padding", "window"):
        if os.fork() == 0:
            print(added(masks, kind), flush=True)
            os._exit(0)
        os.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_memory_is_linear():
    """What 8192 tokens add to a process's peak, in MiB. A dense mask is 64 of booleans, or 256 of floats."""
    run = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, check=True)
    padding, window, stock_padding, stock_window = map(float, run.stdout.split())
    assert max(padding, window) < 24
    assert min(stock_padding, stock_window) > 64, "the measure does not see a dense mask"


def test_imports():
    script = "import sys, qkv; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
    for library in ("torch", "transformers"):
        script = f"import sys; sys.modules['{library}'] = None; import qkv.transformers"
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert "ImportError: " in run.stderr and "pip install qkv[transformers]" in run.stderr


def test_both_functions_are_registered():
    assert ALL_ATTENTION_FUNCTIONS["qkv"] is qkv_attention_forward
    assert ALL_MASK_ATTENTION_FUNCTIONS["qkv"] is qkv_mask
