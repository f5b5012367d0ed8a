"""Recordings, and what they say: read by another library, and computed by the engine's own function."""

import json

import qkv
import torch
from qkv.transformers import record
from safetensors import safe_open
from tiny import DECODERS, ENCODER_DECODERS, ENCODERS, one


def made(name, **settings):
    """One of the tiny models, with eager attention."""
    model_class, usual = {**DECODERS, **ENCODERS, **ENCODER_DECODERS}[name]
    return one(model_class, {**usual, **settings})


def recorded(model, **inputs):
    """The recording of one call."""
    with record(model) as recording:
        model(**inputs)
    return recording


def layers(path):
    """Of each layer, by its number: the arrays q, k and v, and the metadata that holds for it."""
    found = {}
    with safe_open(path, "pt") as file:
        texts = file.metadata()
        for name in file.keys():  # noqa: SIM118 (it is no mapping)
            prefix, number, array = name.split(".")
            assert prefix == "layers"
            of_all = {key: text for key, text in texts.items() if not key.startswith("layers.")}
            start = f"layers.{number}."
            own = {key.removeprefix(start): text for key, text in texts.items() if key.startswith(start)}
            found.setdefault(int(number), ({}, of_all | own))[0][array] = file.get_tensor(name)
    return dict(sorted(found.items()))


def computed(arrays, texts):
    """The output and the weights (batch, heads, queries, keys) of a layer's arrays and metadata."""
    query, key, value = (arrays[name] for name in "qkv")
    options = {"scale": float(texts["scale"])} if "scale" in texts else {}
    if texts["causal"] != "false":
        options["causal"] = texts["causal"]
    if "window" in texts:
        options["window"] = tuple(
            None if bound == "-" else int(bound) for bound in texts["window"].split(",")
        )
    if "softcap" in texts:
        options["softcap"] = float(texts["softcap"])
    if "padding" in texts:
        first = key.shape[2] - query.shape[2] if texts["causal"] == "bottom-right" else 0
        ranges = torch.tensor(json.loads(texts["padding"])).expand(len(query), 2)[:, :, None]
        queries, keys = torch.arange(query.shape[2]) + first, torch.arange(key.shape[2])
        # Real tokens are of segment 0; no segment has queries and keys of padding.
        ids = [
            torch.where((ranges[:, 0] <= places) & (places < ranges[:, 1]), 0, other)
            for places, other in ((queries, 1), (keys, 2))
        ]
        options["segment_ids"] = tuple(ids)
    return qkv.scaled_dot_product_attention(
        query, key, value, enable_gqa=True, return_weights=True, **options
    )


def assert_same_weights(path, attentions, real, close):
    """That a recording gives the weights (batch, heads, queries, keys) of a model, for real queries."""
    found = layers(path)
    assert len(found) == len(attentions) > 0
    for (arrays, texts), want in zip(found.values(), attentions, strict=True):
        got = computed(arrays, texts).weights
        # What a static cache has no keys for yet is not recorded.
        got = torch.nn.functional.pad(got, (0, want.shape[3] - got.shape[3]))
        assert (got - want).transpose(1, 2)[real.bool()].abs().max() < close
