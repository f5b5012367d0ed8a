"""One pass of a model on its way to a file, layer by layer."""

import ctypes
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from qkv._attention import options_of, qkv_attention_forward, refuse
from qkv._masks import qkv_mask
from qkv._metadata import metadata_of
from qkv._qkv import StreamWriter
from qkv._tokens import Tokens
from qkv.recording import Recording

IMPLEMENTATION = "qkv_recording"

# The recorder of each module of the models that are being recorded.
_recorders: dict[torch.nn.Module, "_Recorder"] = {}


@contextmanager
def record(
    model: PreTrainedModel,
    path: str | os.PathLike[str] | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Iterator[Recording]:
    """Records the queries, keys and values of all attention layers of one forward pass.

    ::

        with qkv.transformers.record(model, tokenizer=tokenizer) as recording:
            model(**inputs)
        print(recording.layers)
        recording.save("recording.safetensors")

    In the ``with`` block the model computes with the engine, whatever its ``attn_implementation`` is
    otherwise, and gradients are not recorded. Each layer goes to the disk as it is computed. The file
    appears when the block ends; until then the disk holds up to twice its size. ``qkv.recording`` says what
    is in it.

    ``path`` ends in ``.safetensors``; a file of this name is replaced. For None the recording is a
    temporary file, which is deleted when the recording is closed or collected. ``tokenizer`` makes texts of
    the tokens' ids; without it the ids are the texts. There are none for ``inputs_embeds``, or if a cache
    holds keys of earlier calls. Layers have the numbers that the model gives them (``layer_idx``) if these
    differ, else they are counted as they run.

    An exception leaves no file. Raises:

    - RuntimeError for a second forward pass, such as ``generate`` makes for each token; for no pass, or one
      that did not end; for a model that does not use Transformers' attention interface, or is being
      recorded already;
    - NotImplementedError, with the layer, for a mask that the file's metadata cannot say (dense, of packed
      sequences, of chunks), for attention sinks, position biases and dropout, and for what
      ``qkv_attention_forward`` does not compute;
    - TypeError for what is no model of Transformers, ValueError for another ending, OSError where the system
      refuses.
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"model: got {type(model).__name__}, want a model of Transformers")
    if any(module in _recorders for module in model.modules()):
        raise RuntimeError(f"model: this {type(model).__name__}, or a part of it, is being recorded already")
    with ExitStack() as unless_finished:
        recording = Recording._to_come(path)
        unless_finished.callback(recording.close)
        recorder = _Recorder(model, recording.path, tokenizer)
        unless_finished.callback(recorder.file.discard)
        with _attention_of(model), _told(recorder, model), torch.no_grad():
            yield recording
        recorder.finish()
        recording._open()
        unless_finished.pop_all()


@contextmanager
def _told(recorder: "_Recorder", model: PreTrainedModel) -> Iterator[None]:
    """A recorder that is told what a model does."""
    modules = list(model.modules())
    hooks = [
        model.register_forward_pre_hook(recorder.begin, with_kwargs=True),
        model.register_forward_hook(recorder.end),
    ]
    _recorders.update(dict.fromkeys(modules, recorder))
    try:
        yield
    finally:
        for module in modules:
            del _recorders[module]
        for hook in hooks:
            hook.remove()


@contextmanager
def _attention_of(model: PreTrainedModel) -> Iterator[None]:
    """A model whose attention is the one that records."""
    AttentionInterface.register(IMPLEMENTATION, _recording_forward)
    AttentionMaskInterface.register(IMPLEMENTATION, qkv_mask)
    before = [(config, config._attn_implementation) for config in _configs(model)]
    try:
        model.set_attn_implementation(IMPLEMENTATION)
        yield
    finally:
        for config, own in before:
            # Each to its own: the public attribute would set those of its parts as well.
            config._attn_implementation_internal = own


def _configs(model: PreTrainedModel) -> list[PretrainedConfig]:
    """All configurations that the parts of a model look at."""
    found = {id(part.config): part.config for part in model.modules() if hasattr(part, "config")}
    left = [config for config in found.values() if isinstance(config, PretrainedConfig)]
    configs = {}
    while left:
        config = left.pop()
        configs[id(config)] = config
        parts = (getattr(config, name, None) for name in config.sub_configs)
        left += [part for part in parts if isinstance(part, PretrainedConfig) and id(part) not in configs]
    return list(configs.values())


@torch.compiler.disable
def _recording_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As ``qkv_attention_forward``, and records what it is given."""
    # A model that shares its configuration with one that is recorded has none.
    if recorder := _recorders.get(module):
        recorder.add(_Call(module, (query, key, value), attention_mask, kwargs))
    return qkv_attention_forward(module, query, key, value, attention_mask, **kwargs)


class _Call(NamedTuple):
    """What one call of attention is given."""

    module: torch.nn.Module
    # Queries, keys and values (batch, heads, length, dim).
    arrays: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    attention_mask: torch.Tensor | None
    kwargs: dict


class _Recorder:
    """What is known of a pass so far, and the file that its layers go to."""

    def __init__(self, model: PreTrainedModel, path: Path, tokenizer: PreTrainedTokenizerBase | None):
        self.model = model
        self.tokens = Tokens(model, tokenizer)
        self.file = StreamWriter(path)
        self.state = "before the pass"
        # Of each call of attention, in the order of the calls.
        self.numbers: list[int | None] = []
        self.metadata: list[dict[str, str]] = []

    @torch.compiler.disable
    def begin(self, model: PreTrainedModel, args: tuple, kwargs: dict) -> None:
        if self.state != "before the pass":
            raise RuntimeError(
                "record: got a second forward pass, and a recording holds one pass: generate first, then "
                "record the model on all its tokens at once"
            )
        self.state = "in the pass"
        self.tokens.see(args, kwargs)

    @torch.compiler.disable
    def end(self, *_) -> None:
        self.state = "after the pass"

    def add(self, call: _Call) -> None:
        """Writes the arrays of a call down."""
        if self.state != "in the pass":
            raise RuntimeError(
                f"record: got attention outside of a pass of the {type(self.model).__name__}, want the model "
                "itself called, as model(…), or the part that is called recorded"
            )
        own = getattr(call.module, "layer_idx", None)
        index = len(self.numbers)
        try:
            texts, keys = self._described(call)
        except NotImplementedError as error:
            [name] = (name for name, part in self.model.named_modules() if part is call.module)
            layer = index if own is None else own
            raise NotImplementedError(
                f"record: layer {layer} ({name}) cannot be recorded: {error}"
            ) from error
        query, key, value = call.arrays
        for name, array in zip("qkv", (query, key[:, :, :keys], value[:, :, :keys]), strict=True):
            self.file.push(f"{index}.{name}", array)
        _give_back()
        self.numbers.append(own)
        self.metadata.append(texts)

    def _described(self, call: _Call) -> tuple[dict[str, str], int]:
        """The metadata of a call, and how many of its keys are recorded."""
        module, (query, key, _), attention_mask, kwargs = call
        refuse(kwargs)
        if dropout := kwargs.get("dropout"):
            raise NotImplementedError(f"dropout: got {dropout}, want none (model.eval())")
        for name, what in (("s_aux", "attention sinks"), ("position_bias", "a bias for each position")):
            if kwargs.get(name) is not None:
                raise NotImplementedError(f"it has {what} ({name}), which a recording has no place for")
        order = (kwargs.get("is_causal"), kwargs.get("sliding_window"))
        options = options_of(module, query, key, attention_mask, *order)
        source, own_keys = self.tokens.of_keys(module, options.get("is_causal", False))
        texts, keys = metadata_of(options, query.shape[2], key.shape[2], own_keys)
        for name, number in (("scale", kwargs.get("scaling")), ("softcap", kwargs.get("softcap"))):
            if number is not None:
                texts[name] = repr(float(number))
        if tokens := self.tokens.texts(source, query.shape[0], keys):
            texts["tokens"] = tokens
        return texts, keys

    def finish(self) -> None:
        if self.state != "after the pass":
            raise RuntimeError(
                f"record: the with block ended {self.state}, want one whole forward pass of the model in it"
            )
        if not self.numbers:
            raise RuntimeError(
                f"record: no attention of the {type(self.model).__name__} went through Transformers' "
                "attention interface, where recordings are made; want a model that uses it"
            )
        numbers = self._layer_numbers()
        names = {
            f"{call}.{name}": f"layers.{number}.{name}"
            for call, number in enumerate(numbers)
            for name in "qkv"
        }
        self.file.finish(self._all_metadata(numbers), names)

    def _layer_numbers(self) -> Iterable[int]:
        are_numbers = all(isinstance(number, int) and number >= 0 for number in self.numbers)
        if are_numbers and len(set(self.numbers)) == len(self.numbers):
            return self.numbers
        return range(len(self.numbers))

    def _all_metadata(self, numbers: Iterable[int]) -> dict[str, str]:
        """What all layers say is said once."""
        first, *others = self.metadata
        of_all = {key: text for key, text in first.items() if all(other.get(key) == text for other in others)}
        metadata = {"model": _name_of(self.model), **of_all}
        for number, texts in zip(numbers, self.metadata, strict=True):
            own = {key: text for key, text in texts.items() if key not in of_all}
            metadata |= {f"layers.{number}.{key}": text for key, text in own.items()}
        return metadata


def _give_back() -> None:
    """Gives free memory back to the system.

    What is kept of a layer, though little, splits the pieces that glibc has of those before, so that the next
    layer's arrays do not fit into them: of long texts that is hundreds of MB.
    """
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def _name_of(model: PreTrainedModel) -> str:
    """As the hub has it; a folder's own name, not where it is."""
    name = model.name_or_path or type(model).__name__
    return os.path.basename(os.path.abspath(name)) if os.path.exists(name) else name
