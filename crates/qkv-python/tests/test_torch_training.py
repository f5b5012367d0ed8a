"""A model of characters learns a text by heart, with torch's attention and with qkv in its place."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import qkv
import qkv.torch
import torch
from parity import one_thread_of_torch  # noqa: F401
from torch import nn
from torch.nn import functional as F

# Abraham Lincoln's address of 1863, in the public domain.
TEXT = Path(__file__).with_name("gettysburg.txt").read_text()
LETTERS = sorted(set(TEXT))
TOKENS = torch.tensor([LETTERS.index(letter) for letter in TEXT])
CONTEXT, BATCH, STEPS, WIDTH = 64, 8, 300, 64


class Block(nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.to_qkv, self.to_output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mix = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, dropout_p):
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.to_qkv(self.before(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout_p, is_causal=True)
        x = x + self.to_output(mixed.transpose(1, 2).flatten(2))
        return x + self.mix(self.after(x))


class Characters(nn.Module):
    """Two layers that tell the next character from those before."""

    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.last, self.to_letters = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(LETTERS))

    def forward(self, tokens, dropout_p):
        x = self.letters(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x, dropout_p)
        return self.to_letters(self.last(x))


def train(context, dropout_p=0.0, steps=STEPS):
    """The loss at each step, and the weights at the end."""
    torch.manual_seed(0)
    model = Characters()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    with context:
        for _ in range(steps):
            starts = torch.randint(len(TOKENS) - CONTEXT, (BATCH,))
            lines = TOKENS[starts[:, None] + torch.arange(CONTEXT + 1)]
            loss = F.cross_entropy(model(lines[:, :-1], dropout_p).flatten(0, 1), lines[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, [parameter.detach() for parameter in model.parameters()]


@pytest.fixture(autouse=True)
def threads_of_qkv():
    threads = qkv.get_num_threads()
    qkv.torch.reset_stats()
    yield
    qkv.set_num_threads(threads)


def test_a_model_learns_as_with_torch():
    with torch.enable_grad():
        want, _ = train(nullcontext())
        got, _ = train(qkv.torch.sdpa())
    assert qkv.torch.stats() == {"qkv": 2 * STEPS, "torch": {}}
    assert want[-1] < want[0] / 2
    assert max(abs(one - other) for one, other in zip(got[:20], want[:20], strict=True)) < 1e-4
    assert abs(got[-1] - want[-1]) < want[-1] / 100


@pytest.mark.parametrize("dropout_p", [0.0, 0.2])
def test_training_twice_gives_the_same_bits_on_any_number_of_threads(dropout_p):
    runs = []
    for threads in (1, 2, 3):
        qkv.set_num_threads(threads)
        runs.append(train(qkv.torch.sdpa(), dropout_p, steps=30))
    (losses, weights), *others = runs
    for again, own in others:
        assert again == losses and all(map(torch.equal, own, weights))


def test_a_model_learns_with_dropout():
    losses, _ = train(qkv.torch.sdpa(), 0.2)
    assert losses[-1] < losses[0] / 2
