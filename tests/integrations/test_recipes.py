"""Recipes as torchtune writes them: each layer is compiled in place, and so is the loss over chunks of logits."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import framesmith

WORDS, WIDTH, HEADS, LENGTH, STEPS = 61, 32, 4, 12, 6


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.scale


class Layer(nn.Module):
    """Attention with rotary positions and a gated feed-forward, with checkpointing of activations if asked."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = RMSNorm(), RMSNorm()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        angles = torch.arange(LENGTH)[:, None] / 100 ** (torch.arange(0, WIDTH // HEADS, 2) / (WIDTH // HEADS))
        self.register_buffer("turns", torch.stack([angles.cos(), angles.sin()], -1), persistent=False)

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
        cos, sin = self.turns[None, : x.shape[1], None].unbind(-1)
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(3).type_as(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (y.unflatten(-1, (HEADS, -1)) for y in self.qkv(self.before(x)).chunk(3, -1))
        q, k = self.rotated(q).transpose(1, 2), self.rotated(k).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.after(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self, layers: int, recomputed: bool) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(WORDS, WIDTH), RMSNorm()
        self.layers = nn.ModuleList([Layer() for _ in range(layers)])
        self.output = nn.Linear(WIDTH, WORDS, bias=False)
        self.recomputed = recomputed

    def forward(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recomputed else layer(x)
        return self.output(self.norm(x)).chunk(4, dim=1)


class ChunkedLoss(nn.Module):
    def cross_entropy(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.float(), labels, ignore_index=-100, reduction="sum")

    def forward(self, logits: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
        chunks = [c.reshape(-1) for c in labels.chunk(len(logits), dim=1)]
        parts = [self.cross_entropy(x.reshape(-1, WORDS), y) for x, y in zip(logits, chunks, strict=True)]
        return torch.stack(parts).sum() / (labels != -100).sum()


def train(compiled: bool, recomputed: bool, bf16: bool) -> tuple[list[float], Any]:
    torch.manual_seed(0)
    model, loss_fn = Decoder(4, recomputed), ChunkedLoss()
    if compiled:
        backend = "inductor"
        for layer in reversed(list(model.layers)):
            layer.compile(backend=backend)
        loss_fn.cross_entropy = torch.compile(loss_fn.cross_entropy, backend=backend)  # type: ignore[method-assign]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    generator, losses = torch.Generator().manual_seed(1), []
    for _ in range(STEPS):
        tokens = torch.randint(0, WORDS, (2, LENGTH), generator=generator)
        labels = torch.cat([tokens[:, 1:], torch.full((2, 1), -100)], 1)
        with torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext():
            loss = loss_fn(model(tokens), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses, model


@pytest.mark.parametrize("recomputed", [False, True], ids=["kept", "recomputed"])
def test_layers_and_loss(recomputed: bool, graphs: list[int]) -> None:
    want, plain = train(False, recomputed, False)
    with framesmith.installed():
        got, fast = train(True, recomputed, False)
    assert got == pytest.approx(want, rel=1e-4)
    assert list(fast.state_dict()) == list(plain.state_dict())
    assert len(graphs) == 5, graphs  # four layers and the loss, whose chunks are equal
    other = copy.deepcopy(fast)
    tokens = torch.randint(0, WORDS, (2, LENGTH))
    for a, b in zip(other(tokens), plain(tokens), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_a_second_length_makes_sizes_symbols(graphs: list[int]) -> None:
    """Batches of other lengths do not compile each layer for each length."""
    with framesmith.installed():
        torch.manual_seed(0)
        model = Decoder(2, False)
        plain = copy.deepcopy(model)
        for layer in model.layers:
            layer.compile()
        for length in (12, 8, 9, 11, 4):
            tokens = torch.randint(0, WORDS, (2, length))
            for a, b in zip(model(tokens), plain(tokens), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert len(graphs) == 4, graphs
