"""Makes torch-random.safetensors: what torch's CPU generator draws, each array from a fresh seed.

Made with torch 2.15.0 and safetensors 0.8 on a processor with AVX2:

    python make_torch_random.py
"""

import torch
from safetensors.torch import save_file

arrays = {}
for kind in ("rand", "randn"):
    for seed in (0, 42, 1234567890123):
        for count in (1, 9, 15, 16, 17, 33, 320):
            torch.manual_seed(seed)
            arrays[f"{kind}/{seed}/{count}"] = getattr(torch, kind)(count)

made_by = "torch 2.15 CPU generator; key = kind/seed/count, each from a fresh manual_seed"
save_file(arrays, "torch-random.safetensors", {"made_by": made_by})
