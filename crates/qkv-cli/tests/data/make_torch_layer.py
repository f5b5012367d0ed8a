#!/usr/bin/env python3
"""Makes torch-mha.safetensors and torch-mha-causal.safetensors: states of torch's nn.MultiheadAttention, an input, and
what torch's self-attention makes of it in float64, rounded to f32. Made with torch 2.15.0 and safetensors 0.8.0.

    python make_torch_layer.py      # beside this file
"""

from pathlib import Path

import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent


def make(name, embed, heads, shape, bias, causal):
    module = torch.nn.MultiheadAttention(embed, heads, bias=bias, batch_first=True)
    # torch starts biases at 0, which would hide one that is left out.
    for parameter in module.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(*shape, embed)
    state = {key: value.clone() for key, value in module.state_dict().items()}
    length = shape[-1]
    # True is "may not attend" here.
    mask = torch.ones(length, length, dtype=torch.bool).triu(1) if causal else None
    module = module.double().eval()
    wide = x.double()
    with torch.no_grad():
        expected, _ = module(wide, wide, wide, attn_mask=mask, need_weights=False)
    arrays = state | {"x": x, "expected": expected.float().contiguous()}
    metadata = {"made_by": f"make_torch_layer.py, torch {torch.__version__}, {heads} heads, float64"}
    save_file(arrays, HERE / name, metadata | ({"causal": "true"} if causal else {}))


torch.manual_seed(20260)
make("torch-mha.safetensors", 32, 4, (2, 7), bias=True, causal=False)
make("torch-mha-causal.safetensors", 24, 3, (2, 6), bias=False, causal=True)
