"""Recordings of tiny models with random weights: what they hold is what eager attention computes with."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import qkv
import qkv.transformers
import torch
import transformers
from qkv.transformers import record
from recorded import assert_same_weights, computed, layers, made, recorded
from safetensors import safe_open
from tiny import DECODERS, ENCODERS, GROUPED, SMALL, TOKENS, batch, difference, result_of
from transformers import DynamicCache, StaticCache

CLOSE = 1e-5

# Of these a layer has what a recording cannot say: attention sinks, and chunks.
REFUSED = {"gpt_oss", "llama4"}
MODELS = {name: model for name, model in {**DECODERS, **ENCODERS}.items() if name not in REFUSED}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def metadata(recording):
    return [texts for _, texts in layers(recording.path).values()]


# What is recorded.


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", MODELS)
def test_weights_of_the_file_are_the_models(name, padding):
    model = made(name)
    ids, real = batch(padding)
    with torch.no_grad():
        want = model(ids, attention_mask=real, output_attentions=True)
    with record(model) as recording:
        got = model(ids, attention_mask=real)
    assert recording.layers == list(range(len(want.attentions)))
    assert_same_weights(recording.path, want.attentions, real, CLOSE)
    assert difference(result_of(got), result_of(want), real) < CLOSE
    for texts in metadata(recording):
        assert json.loads(texts["tokens"]) == [[str(token) for token in row] for row in ids.tolist()]
        ranges = {"none": None, "left": [[5, TOKENS], [0, TOKENS]], "right": [[0, TOKENS - 5], [0, TOKENS]]}
        assert json.loads(texts.get("padding", "null")) == ranges[padding]


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("cache", [DynamicCache, StaticCache])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3"])
def test_steps_with_a_cache(name, cache, padding):
    """The last queries stand at the last keys; the empty end of a static cache is not recorded."""
    model = made(name)
    ids, real = batch(padding)

    def steps():
        size = {"max_cache_len": 20} if cache is StaticCache else {}
        state, stop = cache(config=model.config, **size), 0
        for count in (6, 1, 3):
            seen, stop = slice(stop, stop + count), stop + count
            options = {"attention_mask": real[:, :stop], "cache": state}
            yield seen, lambda ids=ids[:, seen], options=options, **more: model(ids, **options, **more)

    with torch.no_grad():
        want = [(seen, step(output_attentions=True)) for seen, step in steps()]
    for (seen, step), (_, expected) in zip(steps(), want, strict=True):
        with record(model) as recording:
            output = step()
        assert_same_weights(recording.path, expected.attentions, real[:, seen], CLOSE)
        assert difference(output.logits, expected.logits, real[:, seen]) < CLOSE
        # Tokens name the keys, and of earlier calls they are not known.
        assert all(("tokens" in texts) == (seen.start == 0) for texts in metadata(recording))


def test_what_one_layer_alone_says():
    """A window of one layer; what all agree in is said once."""
    recording = recorded(made("gemma3"), input_ids=batch()[0])
    with safe_open(recording.path, "pt") as file:
        texts = file.metadata()
    assert texts["layers.0.window"] == "3,-" and "layers.1.window" not in texts
    assert texts["causal"] == "top-left" and float(texts["scale"]) > 0
    assert {name.split(".")[2] for name in texts if name.startswith("layers.")} == {"window"}
    assert "softcap" not in texts and "padding" not in texts
    assert [texts["softcap"] for texts in metadata(recorded(made("gemma2"), input_ids=batch()[0]))] == [
        "2.0"
    ] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_arrays_are_what_attention_was_given(dtype, monkeypatch):
    """In every dtype, bit for bit; heads of keys are not repeated."""
    model = made("llama").to(dtype)
    given = []

    def spy(module, query, key, value, *args, **options):
        given.append([array.clone() for array in (query, key, value)])
        return qkv.transformers.qkv_attention_forward(module, query, key, value, *args, **options)

    monkeypatch.setattr("qkv._record.qkv_attention_forward", spy)
    recording = recorded(model, input_ids=batch()[0])
    assert given[0][0].shape == (2, 4, TOKENS, 8) and given[0][1].shape == (2, 2, TOKENS, 8)
    for arrays, (stored, _) in zip(given, layers(recording.path).values(), strict=True):
        for name, array in zip("qkv", arrays, strict=True):
            assert stored[name].dtype == dtype and torch.equal(stored[name], array)


def test_cross_attention():
    """Keys of the encoder, of which there are other tokens than queries; layers are counted as they run."""
    model = made("bart")
    ids, _ = batch()
    tokens = torch.randint(3, 64, (2, 7))
    with torch.no_grad():
        want = model(ids, decoder_input_ids=tokens, output_attentions=True)
    recording = recorded(model, input_ids=ids, decoder_input_ids=tokens)
    assert recording.layers == list(range(6))
    both = zip(want.decoder_attentions, want.cross_attentions, strict=True)
    attentions = [*want.encoder_attentions, *(weights for layer in both for weights in layer)]
    for (arrays, texts), weights in zip(layers(recording.path).values(), attentions, strict=True):
        assert (computed(arrays, texts).weights - weights).abs().max() < CLOSE
        keys = tokens if texts["causal"] == "top-left" else ids
        assert json.loads(texts["tokens"]) == [[str(token) for token in row] for row in keys.tolist()]


def test_one_module_that_runs_several_times():
    """ALBERT's layers are one."""
    model = transformers.AlbertModel(transformers.AlbertConfig(**SMALL, embedding_size=16)).eval()
    ids, real = batch("right")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        want = model(ids, attention_mask=real, output_attentions=True).attentions
    recording = recorded(model, input_ids=ids, attention_mask=real)
    assert recording.layers == [0, 1]
    assert_same_weights(recording.path, want, real, CLOSE)


def test_numbers_of_layers():
    """The model's own where it has them, as one has whose layers are not all attention."""
    model = made("llama")
    for part, number in zip(model.model.layers, (7, 3), strict=True):
        part.self_attn.layer_idx = number
    recording = recorded(model, input_ids=batch()[0], use_cache=False)
    assert recording.layers == [3, 7]
    first = layers(recording.path)[7][0]["q"]
    model.model.layers[1].self_attn.layer_idx = None
    recording = recorded(model, input_ids=batch()[0], use_cache=False)
    assert recording.layers == [0, 1]
    assert layers(recording.path)[0][0]["q"].shape == first.shape


class Tokenizer:
    """Texts as files may hold them."""

    texts = ("<s>", "</script><b>", "a<b&c", "\n", "", " ", "שלום", "🙂", '"', "\x1b[31m")

    def decode(self, ids, **_):
        [token] = ids
        return self.texts[token % len(self.texts)]


def test_texts_of_tokens():
    ids, _ = batch()
    model = made("llama")
    with record(model, tokenizer=Tokenizer()) as recording:
        model(ids)
    texts = metadata(recording)[0]["tokens"]
    assert json.loads(texts) == [[Tokenizer.texts[token % 10] for token in row] for row in ids.tolist()]


def test_embeddings_have_no_tokens():
    model = made("llama")
    ids, _ = batch()
    with torch.no_grad():
        embeddings = model.get_input_embeddings()(ids)
    assert all("tokens" not in texts for texts in metadata(recorded(model, inputs_embeds=embeddings)))
    # By its place among the arguments.
    with record(model) as recording:
        model(ids)
    assert all("tokens" in texts for texts in metadata(recording))


def test_the_models_name(tmp_path):
    model = made("llama")
    assert metadata(recorded(model, input_ids=batch()[0]))[0]["model"] == "LlamaForCausalLM"
    model.save_pretrained(tmp_path / "tiny")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "tiny")
    # Not where it is on this machine.
    assert metadata(recorded(model, input_ids=batch()[0]))[0]["model"] == "tiny"


@pytest.mark.parametrize("padding", ["none", "left"])
def test_one_chunk_can_be_said(padding):
    """Left padding, too, whose own positions are of the chunk before."""
    model = made("llama4", attention_chunk_size=16)
    ids, real = batch(padding)
    with torch.no_grad():
        want = model(ids, attention_mask=real, output_attentions=True).attentions
    recording = recorded(model, input_ids=ids, attention_mask=real)
    assert_same_weights(recording.path, want, real, CLOSE)
    assert all(("padding" in texts) == (padding == "left") for texts in metadata(recording))


# The model is left as it was.


def composite():
    """A model of a vision tower and a decoder, each with an attention of its own."""
    vision = transformers.CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=8,
        patch_size=4,
    )
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=transformers.LlamaConfig(**GROUPED), image_token_id=63
    )
    model = transformers.LlavaForConditionalGeneration(config).eval()
    model.set_attn_implementation({"text_config": "eager", "vision_config": "sdpa"})
    return model


def implementations(model):
    configs = (model.config, model.config.text_config, model.config.vision_config)
    return [config._attn_implementation for config in configs]


@pytest.mark.parametrize("fails", [False, True])
def test_parts_with_attention_of_their_own(fails):
    model = composite()
    before = implementations(model)
    assert before[1:] == ["eager", "sdpa"]
    ids = torch.randint(3, 63, (2, TOKENS))
    ids[:, 2:6] = 63
    inputs = {"input_ids": ids, "pixel_values": torch.randn(2, 3, 8, 8)}
    with torch.no_grad():
        want = model(**inputs).logits
    try:
        with record(model) as recording:
            assert implementations(model) == ["qkv_recording"] * 3
            got = model(**inputs).logits
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    else:
        assert (got - want).abs().max() < CLOSE
        texts = metadata(recording)
        assert [of_layer["causal"] for of_layer in texts] == ["false", "false", "top-left", "top-left"]
        assert ["tokens" in of_layer for of_layer in texts] == [False, False, True, True]
    assert implementations(model) == before
    assert not model._forward_hooks and not model._forward_pre_hooks
    assert torch.is_grad_enabled()


def test_two_models_at_once():
    """Even where they share a configuration, each has its own recording."""
    one, two = made("llama"), made("llama")
    ids, _ = batch()
    with record(one) as first, record(two) as second:
        one(ids)
        two(ids[:1])
    queries = [layers(recording.path)[0][0]["q"] for recording in (first, second)]
    assert [len(query) for query in queries] == [2, 1]
    shared = made("llama")
    for part in shared.modules():
        if hasattr(part, "config"):
            part.config = one.config
    with record(one) as recording:
        shared(ids)
        one(ids[:1])
    assert len(layers(recording.path)[0][0]["q"]) == 1


LONG = """
import resource, sys, torch, qkv.transformers
from transformers import BertConfig, BertModel

torch.set_num_threads(1)
config = BertConfig(
    vocab_size=64, hidden_size=64, intermediate_size=64, num_attention_heads=2, num_hidden_layers=12,
    max_position_embeddings=2048,
)
model, ids = BertModel(config).eval(), torch.randint(3, 64, (8, 2048))
qkv.transformers.register()
model.set_attn_implementation("qkv")

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

with torch.no_grad():
    model(ids)
before = peak()
with qkv.transformers.record(model) as recording:
    model(ids)
print(recording.path.stat().st_size >> 20, peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts memory in KiB")
def test_memory_is_that_of_no_layer():
    """What recording adds to a process's peak, in MiB; a layer has 12, the file all of them."""
    run = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, check=True)
    size, added = map(int, run.stdout.split())
    assert size >= 12 * 12 and added < 24


def test_the_command_reads_it(tmp_path):
    model = made("gemma2")
    ids, real = batch("left")
    with record(model, tmp_path / "a.safetensors") as recording:
        model(ids, attention_mask=real)
    for layer, (arrays, texts) in layers(recording.path).items():
        options = ["--layer", str(layer), "--head", "1", "--query", "9", "--json"]
        command = [sys.executable, "-m", "qkv", "top", str(recording.path), *options]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        weights = computed(arrays, texts).weights[0, 1, 9]
        for key in json.loads(run.stdout)["by_weight"]:
            assert abs(key["weight"] - weights[key["key"]]) < CLOSE
    run = subprocess.run(
        [sys.executable, "-m", "qkv", "heads", str(recording.path)], capture_output=True, check=True
    )
    assert run.stdout.count(b"\n") > 8 and Path(recording.path).exists()
