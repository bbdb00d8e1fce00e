"""One step of a Llama's decoding: a token at a position given as a tensor; the cache of keys and values is written in
place."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Layer(nn.Module):
    def __init__(self, width: int, inner: int, heads: int, longest: int) -> None:
        super().__init__()
        self.heads, size = heads, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(1, heads, longest, size), persistent=False)

    def forward(self, x: Tensor, position: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (project(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for project in (self.q, self.k, self.v))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        self.keys.index_copy_(2, position, k.to(self.keys.dtype))
        self.values.index_copy_(2, position, v.to(self.values.dtype))
        y = F.scaled_dot_product_attention(q.to(self.keys.dtype), self.keys, self.values, attn_mask=mask)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """A Llama whose cache has room for `longest` tokens."""

    def __init__(
        self, width: int = 2048, inner: int = 5504, layers: int = 8, heads: int = 16, words: int = 32_000,
        longest: int = 1024
    ) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(words, width), nn.RMSNorm(width, eps=1e-6)
        self.layers = nn.ModuleList(Layer(width, inner, heads, longest) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)
        size = width // heads
        self.register_buffer("rates", 10_000.0 ** (-torch.arange(0, size, 2) / size), persistent=False)
        self.register_buffer("places", torch.arange(longest), persistent=False)

    def keep_in(self, dtype: torch.dtype) -> None:
        """Keys and values are kept in `dtype`."""
        for layer in self.layers:
            layer.keys, layer.values = layer.keys.to(dtype), layer.values.to(dtype)

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        """[1, 1], [1] -> [1, 1, words]"""
        x = self.words(token)
        angles = position[:, None] * self.rates.repeat(2)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        mask = (self.places <= position)[None, None, None]
        for layer in self.layers:
            x = layer(x, position, mask, cos, sin)
        return self.head(self.norm(x))
