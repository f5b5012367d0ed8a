"""A trained model goes on learning with qkv as it does with torch's attention."""

import copy

import qkv.transformers
import torch
from parity import one_thread_of_torch  # noqa: F401

STEPS, CLOSE = 10, 1e-3
TEXTS = [
    "Attention compares every query with every key, and mixes the values by what it finds.",
    "A mask that hides the future sets the scores of later keys to minus infinity.",
]


def fine_tuned(smollm2, implementation):
    """The loss at each of some steps."""
    model, tokenizer = copy.deepcopy(smollm2[0]).train(), smollm2[1]
    model.set_attn_implementation(implementation)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert not batch["attention_mask"].all()
    labels = batch["input_ids"].where(batch["attention_mask"].bool(), -100)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)
    losses = []
    for _ in range(STEPS):
        loss = model(**batch, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_smollm2_is_fine_tuned_as_with_torch(smollm2):
    qkv.transformers.register()
    want, got, again = (fine_tuned(smollm2, implementation) for implementation in ("sdpa", "qkv", "qkv"))
    assert want[-1] < want[0] - 0.1
    assert max(abs(one - other) for one, other in zip(got, want, strict=True)) < CLOSE
    assert again == got
