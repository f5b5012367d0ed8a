"""Tiny models with random weights, what they are given, and how their results are compared."""

import copy

import torch
import transformers

TOKENS = 12

# A class, and what is said in its configuration.

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}
WINDOWED = {**GROUPED, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
SHARED = {
    **WINDOWED,
    "num_hidden_layers": 4,
    "layer_types": WINDOWED["layer_types"] * 2,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 64,
    "global_head_dim": 8,
}
CHUNKED = {**GROUPED, "attention_chunk_size": 4, "intermediate_size_mlp": 32, "num_local_experts": 2}

DECODERS = {
    "llama": ("LlamaForCausalLM", GROUPED),
    "gpt2": ("GPT2LMHeadModel", SMALL),
    "mistral": ("MistralForCausalLM", {**GROUPED, "sliding_window": 4}),
    "gemma2": ("Gemma2ForCausalLM", {**WINDOWED, "attn_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3ForCausalLM", WINDOWED),
    "gemma4": ("Gemma4ForCausalLM", SHARED),
    "gpt_oss": ("GptOssForCausalLM", {**WINDOWED, "num_local_experts": 2, "num_experts_per_tok": 1}),
    "llama4": ("Llama4ForCausalLM", CHUNKED),
}
ENCODERS = {
    "bert": ("BertModel", SMALL),
    "modernbert": ("ModernBertModel", {**SMALL, "local_attention": 4, "global_attn_every_n_layers": 2}),
    "bidirectional llama": ("LlamaModel", {**GROUPED, "is_causal": False}),
}
ENCODER_DECODERS = {
    "bart": ("BartModel", {**SMALL, "init_std": 0.2, "decoder_layers": 2, "decoder_attention_heads": 4}),
    "t5": ("T5Model", {**SMALL, "num_decoder_layers": 2, "d_kv": 8, "d_ff": 32}),
}


def one(name, settings, implementation="eager"):
    """A model with its own weights."""
    model_class = getattr(transformers, name)
    config = model_class.config_class(**copy.deepcopy(settings))
    return model_class._from_config(config, attn_implementation=implementation).eval()


def pair(name, settings):
    """The same model with eager attention and with qkv."""
    eager, ours = one(name, settings), one(name, settings, "qkv")
    ours.load_state_dict(eager.state_dict())
    return eager, ours


def batch(padding="none"):
    """Two sequences, one of which is padded, and where their real tokens are."""
    ids = torch.randint(3, 64, (2, TOKENS))
    real = torch.ones(2, TOKENS, dtype=torch.int64)
    real[0, {"none": slice(0), "left": slice(5), "right": slice(-5, None)}[padding]] = 0
    return ids, real


def another(ids, place):
    """The same tokens but for those in one place."""
    ids = ids.clone()
    ids[:, place] = (ids[:, place] - 2) % 61 + 3
    return ids


def difference(one, other, real):
    return (one - other)[real.bool()].abs().max().item()


def result_of(output):
    return output.logits if "logits" in output else output.last_hidden_state
