"""What a recording refuses, and that it leaves nothing then; the files of those that are made."""

import contextlib
import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import qkv
import torch
import transformers
from qkv._masks import PADDING
from qkv._metadata import metadata_of
from qkv._qkv import ArrayFile
from qkv.transformers import record
from recorded import made, recorded
from safetensors.torch import save_file
from tiny import TOKENS, batch


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where files go, the temporary ones too."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


CAUSAL = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).tril()
POSITIONS = torch.tensor([[*range(7), *range(TOKENS - 7)]])
GAP = torch.ones(2, TOKENS, dtype=torch.int64).index_fill(1, torch.tensor([4]), 0)
LEFT = batch("left")[1]

CANNOT_BE_SAID = {
    "dense": ("llama", {"attention_mask": CAUSAL}, r"layer 0 \(model.layers.0.self_attn\).*dense"),
    "packed": ("llama", {"position_ids": POSITIONS, "use_cache": False}, "layer 0 .*batch 0 .*segments"),
    "chunks": ("llama4", {}, "layer [01] .*segments"),
    "a gap": ("llama", {"attention_mask": GAP}, "layer 0 .*batch 0 .*between its tokens"),
    "sinks": ("gpt_oss", {}, "layer 0 .*attention sinks"),
    "bias": ("t5", {"decoder_input_ids": torch.ones(2, 3, dtype=torch.int64)}, r"encoder.*position_bias"),
    "padding of others": (
        "bart",
        {"attention_mask": LEFT, "decoder_input_ids": torch.ones(2, TOKENS, dtype=torch.int64)},
        r"layer 0 \(decoder.layers.0.encoder_attn\).*padding",
    ),
}


@pytest.mark.parametrize("path", [None, "a.safetensors"])
@pytest.mark.parametrize("reason", CANNOT_BE_SAID)
def test_what_metadata_cannot_say(reason, path, folder):
    name, inputs, message = CANNOT_BE_SAID[reason]
    model = made(name)
    ids, _ = batch()
    with pytest.raises(NotImplementedError, match=message), record(model, path and folder / path):
        model(ids, **inputs)
    assert not os.listdir(folder) and model.config._attn_implementation == "eager"


# Options, numbers of queries and keys, what is said of them, and how many keys that is about.
SAID = [
    ({}, 3, 5, {"causal": "false"}, 5),
    ({"is_causal": True}, 5, 5, {"causal": "top-left"}, 5),
    # One that was seen before, and a cache with room for more.
    ({"is_causal": True, "query_offset": 4}, 1, 5, {"causal": "bottom-right"}, 5),
    ({"is_causal": True, "query_offset": 4}, 2, 9, {"causal": "bottom-right"}, 6),
    ({"is_causal": True}, 5, 9, {"causal": "top-left"}, 5),
    ({"is_causal": True}, 5, 3, {"causal": "top-left"}, 3),
    # The first query stands before the first key.
    ({"is_causal": True, "query_offset": -1}, 3, 3, {"causal": "bottom-right"}, 2),
    # A cache that dropped the first keys of a window.
    (
        {"is_causal": True, "query_offset": 9, "key_offset": 7, "window": (2, None)},
        1,
        3,
        {"causal": "bottom-right", "window": "2,-"},
        3,
    ),
    ({"window": (0, 4)}, 5, 5, {"causal": "false", "window": "0,4"}, 5),
]


@pytest.mark.parametrize("options, queries, keys, said, kept", SAID)
def test_what_metadata_says(options, queries, keys, said, kept):
    assert metadata_of(options, queries, keys, True) == (said, kept)


IDS = torch.zeros(1, 5, dtype=torch.int64)
PADDED = torch.where(torch.arange(5) < 2, PADDING, IDS)


@pytest.mark.parametrize(
    "options, queries, keys, message",
    [
        ({"is_causal": True, "query_offset": 3}, 2, 4, "stands at position 3 of 4 keys"),
        ({"window": (1, 1), "query_offset": 2}, 3, 5, "its window is of keys that are not"),
        ({"segment_ids": (IDS[:, :3], PADDED)}, 3, 5, "its padding is of keys that are not"),
    ],
)
def test_places_that_metadata_cannot_say(options, queries, keys, message):
    with pytest.raises(NotImplementedError, match=message):
        metadata_of(options, queries, keys, True)


def test_a_second_pass(folder):
    model = made("llama")
    ids, _ = batch()
    with pytest.raises(RuntimeError, match="one pass: generate first, then record"), record(model):
        model.generate(ids, max_new_tokens=3, do_sample=False)
    assert not os.listdir(folder)


def test_no_pass(folder):
    with pytest.raises(RuntimeError, match="ended before the pass"), record(made("llama")):
        pass
    # One that was broken off, whatever became of the exception.
    model = made("llama")
    broken_off = contextlib.suppress(NotImplementedError)
    with pytest.raises(RuntimeError, match="ended in the pass"), record(model), broken_off:
        model(batch()[0], attention_mask=CAUSAL)
    # A part alone: which tokens it has, and when it ends, is not known.
    with pytest.raises(RuntimeError, match=r"want the model itself called"), record(model):
        model.model(batch()[0])
    assert not os.listdir(folder)
    with record(model.model) as recording:
        model.model(batch()[0])
    assert recording.layers == [0, 1]


def test_models_without_the_interface(folder):
    config = transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4)
    model = transformers.BloomForCausalLM(config).eval()
    with pytest.raises(RuntimeError, match="no attention of the BloomForCausalLM"), record(model):
        model(batch()[0])
    assert not os.listdir(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_an_exception_that_is_kept_keeps_no_disk(folder):
    """As notebooks keep the last one."""

    def unnamed():
        files = map(os.path.realpath, Path("/proc/self/fd").iterdir())
        return [file for file in files if file.startswith(str(folder))]

    def keep():
        model = made("llama")
        with record(model) as recording:
            model(batch()[0])
            assert unnamed() and recording.path.parent.exists()
            model(batch()[0])

    with pytest.raises(RuntimeError) as raised:
        keep()
    assert raised.value.__traceback__ and not unnamed() and not os.listdir(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file of nothing")
def test_copying_can_be_interrupted(folder):
    source, path = folder / "source", folder / "copy"
    source.touch()
    os.truncate(source, 2 << 30)
    file = ArrayFile(source)

    def interrupt():
        while os.listdir(folder) == ["source"]:
            time.sleep(0.001)
        signal.raise_signal(signal.SIGINT)

    # A shell's background jobs are started without one.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt, daemon=True)
    try:
        with pytest.raises(KeyboardInterrupt):
            thread.start()
            file.copy(path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert os.listdir(folder) == ["source"]


def test_an_exception_leaves_what_was_there(folder):
    model, path = made("llama"), folder / "a.safetensors"
    for before in (None, b"old"):
        if before:
            path.write_bytes(before)
        for raised in (ValueError, KeyboardInterrupt):
            with pytest.raises(raised), record(model, path) as recording:
                model(batch()[0])
                raise raised
            assert os.listdir(folder) == ([path.name] if before else [])
            assert not before or path.read_bytes() == before
            with pytest.raises(RuntimeError, match="not recorded yet"):
                recording.layers  # noqa: B018
    with record(model, path) as recording:
        model(batch()[0])
    assert os.listdir(folder) == [path.name] and recording.path == path
    assert qkv.Recording(path).layers == [0, 1]


def test_a_model_that_is_recorded_already(folder):
    model = made("llama")
    for part in (model, model.model):
        with pytest.raises(RuntimeError, match="being recorded already"), record(model), record(part):
            pass
    assert model.config._attn_implementation == "eager" and not os.listdir(folder)
    recorded(model, input_ids=batch()[0])


def test_arguments(folder):
    model = made("llama")
    for path in ("a", "a.npz", "a.safetensors.tmp"):
        with pytest.raises(ValueError, match=r"path: got '.*', want a name that ends in .safetensors"):
            record(model, folder / path).__enter__()
    with pytest.raises(FileNotFoundError, match="none"):
        record(model, folder / "none" / "a.safetensors").__enter__()
    with pytest.raises(TypeError, match="model: got Linear"):
        record(torch.nn.Linear(2, 2)).__enter__()
    assert model.config._attn_implementation == "eager" and not os.listdir(folder)


def test_training():
    """Gradients are not recorded; dropout would make weights that are not in the file."""
    model = made("llama", attention_dropout=0.5)
    assert any(parameter.requires_grad for parameter in model.parameters())
    with record(model):
        output = model(batch()[0])
    assert not output.logits.requires_grad
    with pytest.raises(NotImplementedError, match=r"layer 0 .*dropout: got 0.5"), record(model.train()):
        model(batch()[0])


# Files.


def test_a_temporary_file_goes_with_its_recording(folder):
    model = made("llama")
    recording = recorded(model, input_ids=batch()[0])
    assert recording.path.exists() and recording.path.is_relative_to(folder)
    recording.close()
    assert not os.listdir(folder)
    recording.close()
    recording = recorded(model, input_ids=batch()[0])
    assert os.listdir(folder)
    del recording
    gc.collect()
    assert not os.listdir(folder)
    recording = recorded(model, input_ids=batch()[0])
    # A child that was forked has a copy of the object, not the file.
    if child := os.fork() if hasattr(os, "fork") else 0:
        os.waitpid(child, 0)
    elif hasattr(os, "fork"):
        recording.close()
        os._exit(0)
    assert recording.path.exists()


def test_files_are_saved_and_opened_again(folder):
    recording = recorded(made("llama"), input_ids=batch()[0])
    path = folder / "saved.safetensors"
    path.write_bytes(b"old")
    recording.save(path)
    assert path.read_bytes() == recording.path.read_bytes()
    with pytest.raises(ValueError, match=r"ends in .safetensors"):
        recording.save(folder / "saved.npz")
    recording.close()
    again = qkv.Recording(str(path))
    assert (again.path, again.layers) == (path, [0, 1])
    assert repr(again) == f"Recording({str(path)!r}, 2 layers)"
    again.close()
    assert path.exists()
    with pytest.raises(FileNotFoundError):
        recording.save(path)
    assert qkv.Recording(path).layers == [0, 1]


def test_what_is_no_recording(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none.safetensors"):
        qkv.Recording(tmp_path / "none.safetensors")
    (tmp_path / "text.safetensors").write_bytes(b"no arrays")
    with pytest.raises(ValueError, match=r"text.safetensors: "):
        qkv.Recording(tmp_path / "text.safetensors")
    save_file({"layers.0.q": torch.zeros(1), "layers.0.k": torch.zeros(1)}, tmp_path / "half.safetensors")
    with pytest.raises(ValueError, match=r"half.safetensors: is no recording"):
        qkv.Recording(tmp_path / "half.safetensors")
