"""The tokens that a model is given, and which of them the keys of a layer are."""

import inspect
import json

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Tokens:
    """The tokens of one pass of a model, as texts: by a tokenizer, or their ids."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None):
        self.tokenizer = tokenizer
        self.arguments = list(inspect.signature(model.forward).parameters)
        encoder = model.get_encoder() if model.config.is_encoder_decoder else model
        self.has_encoder = encoder is not model
        self.of_encoder = set(encoder.modules()) if self.has_encoder else set()
        self.ids: dict[str, torch.Tensor] = {}
        self.lists: dict[str, str] = {}

    def see(self, args: tuple, kwargs: dict) -> None:
        """Takes note of what the model is called with."""
        given = {**dict(zip(self.arguments, args, strict=False)), **kwargs}
        names = ("input_ids", "decoder_input_ids")
        self.ids = {name: given[name] for name in names if isinstance(given.get(name), torch.Tensor)}

    def of_keys(self, module: torch.nn.Module, is_causal: bool) -> tuple[str | None, bool]:
        """The argument whose tokens the keys of a module are, and whether its queries are of the same."""
        is_causal = is_causal or bool(getattr(module, "is_causal", False))
        in_decoder = getattr(module, "is_decoder", False) or (
            self.has_encoder and module not in self.of_encoder
        )
        crosses = getattr(module, "is_cross_attention", False) or "Cross" in type(module).__name__
        if crosses or (in_decoder and not is_causal):
            return ("input_ids" if self.has_encoder else None), False
        return ("decoder_input_ids" if self.has_encoder and in_decoder else "input_ids"), True

    def texts(self, argument: str | None, batches: int, keys: int) -> str | None:
        """A JSON list of the texts of each batch. None if the keys are not the tokens of this pass alone."""
        ids = self.ids.get(argument)
        if ids is None or tuple(ids.shape) != (batches, keys):
            return None
        if argument not in self.lists:
            text = {token: self._text(token) for token in ids.unique().tolist()}
            self.lists[argument] = json.dumps(
                [[text[token] for token in row] for row in ids.tolist()], ensure_ascii=False
            )
        return self.lists[argument]

    def _text(self, token: int) -> str:
        if self.tokenizer is None:
            return str(token)
        # Left as it is: a text of one token alone has no other beside it to be tidied up with.
        return self.tokenizer.decode([token], clean_up_tokenization_spaces=False)
