"""Two trained models, an encoder and a decoder, with attn_implementation="qkv" and with eager attention."""

import pytest
import qkv.transformers
import torch
from transformers import StaticCache

CLOSE = 1e-4
TOKENS = 64


@pytest.fixture(autouse=True)
def inference():
    with torch.no_grad():
        yield


def both(model, compute):
    """What compute gives with eager attention, and with qkv."""
    qkv.transformers.register()
    for implementation in ("eager", "qkv"):
        model.set_attn_implementation(implementation)
        yield compute(model)


def difference(one, other, real):
    """The largest for real tokens (batch, positions)."""
    return (one - other)[real.bool()].abs().max().item()


def assert_same_attentions(got, want, real):
    assert len(got) == len(want) > 0
    for one, other in zip(got, want, strict=True):
        assert one.shape == other.shape
        assert difference(one.transpose(1, 2), other.transpose(1, 2), real) < CLOSE


@pytest.fixture(scope="module")
def prompts(smollm2):
    texts = ["The capital of France is", "Once upon a time, in a small village by the sea, there lived"]
    batch = smollm2[1](texts, padding=True, return_tensors="pt")
    assert not batch["attention_mask"].all()
    return batch


def test_minilm(minilm):
    model, tokenizer = minilm
    texts = ["A short one.", "The quick brown fox jumps over the lazy dog, again and again.", "Attention!"]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    real = batch["attention_mask"]
    assert not real.all()
    want, got = both(model, lambda model: model(**batch, output_attentions=True))
    assert difference(got.last_hidden_state, want.last_hidden_state, real) < CLOSE
    assert_same_attentions(got.attentions, want.attentions, real)


def test_smollm2(smollm2, prompts):
    model, real = smollm2[0], prompts["attention_mask"]
    want, got = both(model, lambda model: model(**prompts, output_attentions=True))
    assert difference(got.logits, want.logits, real) < CLOSE
    assert_same_attentions(got.attentions, want.attentions, real)


def test_smollm2_with_a_static_cache(smollm2, prompts):
    model, real = smollm2[0], prompts["attention_mask"]
    cut = real.shape[1] - 1

    def steps(model):
        """All tokens but the last, then the last."""
        cache = StaticCache(config=model.config, max_cache_len=32)
        for seen in (slice(0, cut), slice(cut, None)):
            ids, mask = prompts["input_ids"][:, seen], real[:, : seen.stop]
            yield seen, model(ids, attention_mask=mask, cache=cache, output_attentions=True)

    want, got = both(model, lambda model: list(steps(model)))
    for (seen, expected), (_, output) in zip(want, got, strict=True):
        assert difference(output.logits, expected.logits, real[:, seen]) < CLOSE
        assert_same_attentions(output.attentions, expected.attentions, real[:, seen])


def test_smollm2_generates_the_same_tokens(smollm2, prompts):
    """With a cache that grows, and with a static one."""
    model = smollm2[0]
    options = {
        "max_new_tokens": TOKENS,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    want, got = both(model, lambda model: model.generate(**prompts, **options))
    static = model.generate(**prompts, **options, cache_implementation="static")
    assert len(want.logits) == TOKENS
    for output in (got, static):
        assert torch.equal(output.sequences, want.sequences)
        assert (torch.stack(output.logits) - torch.stack(want.logits)).abs().max() < CLOSE
