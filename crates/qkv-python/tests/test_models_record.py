"""Recordings of two trained models, an encoder and a decoder: what they hold is what the models attend by."""

import json
import os
import subprocess
import sys

import pytest
import torch
from qkv.transformers import record
from recorded import assert_same_weights, computed, layers

CLOSE = 1e-4

SENTENCES = ["A short one.", "The quick brown fox jumps over the lazy dog, again and again.", "Attention!"]
PROMPTS = ["The capital of France is", "Once upon a time, in a small village by the sea, there lived"]


def eager(model, **inputs):
    """What eager attention gives, with its weights; it is the model's afterwards."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(**inputs, output_attentions=True)


def is_near(got, want, real):
    return (got - want)[real.bool()].abs().max() < CLOSE


@pytest.mark.parametrize("side", ["left", "right"])
def test_minilm(minilm, side):
    model, tokenizer = minilm
    batch = tokenizer(SENTENCES, padding=True, padding_side=side, return_tensors="pt")
    real = batch["attention_mask"]
    want = eager(model, **batch)
    with record(model, tokenizer=tokenizer) as recording:
        got = model(**batch)
    assert model.config._attn_implementation == "eager"
    assert recording.layers == list(range(6))
    assert_same_weights(recording.path, want.attentions, real, CLOSE)
    assert is_near(got.last_hidden_state, want.last_hidden_state, real)
    _, texts = layers(recording.path)[5]
    assert (texts["causal"], float(texts["scale"])) == ("false", 32**-0.5)
    longest = json.loads(texts["tokens"])[1]
    assert longest[:4] == ["[CLS]", "the", "quick", "brown"] and longest[-1] == "[SEP]"
    lengths = [6, len(longest), 4]
    first = [len(longest) - length if side == "left" else 0 for length in lengths]
    ranges = [[start, start + length] for start, length in zip(first, lengths, strict=True)]
    assert json.loads(texts["padding"]) == ranges


def test_smollm2(smollm2):
    model, tokenizer = smollm2
    batch = tokenizer(PROMPTS, padding=True, return_tensors="pt")
    real = batch["attention_mask"]
    want = eager(model, **batch)
    with record(model, tokenizer=tokenizer) as recording:
        got = model(**batch)
    assert recording.layers == list(range(30))
    assert_same_weights(recording.path, want.attentions, real, CLOSE)
    assert is_near(got.logits, want.logits, real)
    arrays, texts = layers(recording.path)[29]
    assert [arrays[name].shape[1] for name in "qkv"] == [9, 3, 3]
    assert (texts["causal"], texts["scale"]) == ("top-left", "0.125")
    # Each by itself, with its space.
    assert json.loads(texts["tokens"])[1][:4] == ["Once", " upon", " a", " time"]
    assert json.loads(texts["padding"])[1] == [0, real.shape[1]]


def test_generated_text_is_recorded_afterwards(smollm2, tmp_path):
    """As the error for a second pass says: all tokens at once. Weights may be asked for meanwhile."""
    model, tokenizer = smollm2
    path = tmp_path / "recording.safetensors"
    prompt = tokenizer(PROMPTS[0], return_tensors="pt")
    with pytest.raises(RuntimeError, match="second forward pass"), record(model, path):
        model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert not os.listdir(tmp_path)
    tokens = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    want = eager(model, input_ids=tokens)
    with record(model, path, tokenizer=tokenizer) as recording:
        got = model(tokens, output_attentions=True)
    assert_same_weights(path, want.attentions, torch.ones_like(tokens), CLOSE)
    assert_same_weights(recording.path, got.attentions, torch.ones_like(tokens), CLOSE)


def test_the_command_reads_recordings(smollm2, tmp_path):
    model, tokenizer = smollm2
    path = tmp_path / "recording.safetensors"
    batch = tokenizer(PROMPTS, padding=True, return_tensors="pt")
    with record(model, path, tokenizer=tokenizer):
        model(**batch)

    def qkv(*arguments):
        command = [sys.executable, "-m", "qkv", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    heads = json.loads(qkv("heads", path, "--json"))
    assert len(heads["heads"]) == 30 * 9
    top = json.loads(qkv("top", path, "--layer", 3, "--query", 5, "--batch", 1, "--json"))
    arrays, texts = layers(path)[3]
    weights = computed(arrays, texts).weights[1, 0, 5]
    assert top["token"] == " in" and top["by_weight"]
    for key in top["by_weight"]:
        assert abs(key["weight"] - weights[key["key"]]) < 1e-5
    qkv("map", path, "--layer", 0, "--sheet", "-o", tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")
