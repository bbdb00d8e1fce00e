"""Operators that eager fuses by hand: recorded as their parts, which later stages fuse better.

A mask has another meaning in them (nonzero is masked out, whatever the dtype): with one, the operator is recorded
whole.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from framesmith.fake.handlers import functional, handles, lifted, positional
from framesmith.fake.infer import rule
from framesmith.fake.recording import Recording
from framesmith.fake.tensor import FakeTensor, dense

aten = torch.ops.aten
_LAYER = aten._transformer_encoder_layer_fwd.default
_ATTENTION = aten._native_multi_head_attention.default


@rule(_LAYER)
def layer_shape(x: FakeTensor, width: int, heads: int, *args: Any) -> Any:
    """Return the layer's metadata, for which some versions of PyTorch have no meta kernel."""
    if not _fits(x, width, heads):
        return NotImplemented
    return dense(x, tuple(x.shape))


@handles(_LAYER)
def transformer_encoder_layer(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    args, kwargs = lifted(rec, args, kwargs)
    given = positional(func, args, kwargs)
    masked = len(given) > 18 and given[18] is not None
    if masked or torch.is_autocast_enabled("cpu") or not _fits(*given[:3]):
        return functional(rec, func, args, kwargs)
    return rec.inside(_layer, *given[:18])


@handles(_ATTENTION)
def multi_head_attention(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record self-attention without a mask, and without the weights as a result, as its parts."""
    args, kwargs = lifted(rec, args, kwargs)
    query, key, value, width, heads, *weights = positional(func, args, kwargs)
    masked_or_asked = len(weights) < 6 or weights[4] is not None or weights[5]
    if masked_or_asked or not query is key is value or torch.is_autocast_enabled("cpu") or not _fits(query, width,
                                                                                                     heads):
        return functional(rec, func, args, kwargs)
    return rec.inside(_attend, query, heads, *weights[:4]), None


def _fits(x: FakeTensor, width: int, heads: int) -> bool:
    return x.dim() == 3 and x.shape[2] == width and heads > 0 and width % heads == 0


def _attend(x: Any, heads: int, in_weight: Any, in_bias: Any, out_weight: Any, out_bias: Any) -> Any:
    query, key, value = (p.unflatten(-1, (heads, -1)).transpose(1, 2)
                         for p in F.linear(x, in_weight, in_bias).chunk(3, dim=-1))
    mixed = F.scaled_dot_product_attention(query, key, value)
    return F.linear(mixed.transpose(1, 2).flatten(2), out_weight, out_bias)


def _layer(
    x: Any, width: int, heads: int, in_weight: Any, in_bias: Any, out_weight: Any, out_bias: Any,
    gelu: bool, norm_first: bool, eps: float, weight1: Any, bias1: Any, weight2: Any, bias2: Any,
    up_weight: Any, up_bias: Any, down_weight: Any, down_bias: Any,
) -> Any:  # fmt: skip
    """Record attention and a feed-forward part, each with a residual and normalised before or after, as their parts."""

    def attend(y: Any) -> Any:
        return _attend(y, heads, in_weight, in_bias, out_weight, out_bias)

    def feed(y: Any) -> Any:
        hidden = F.linear(y, up_weight, up_bias)
        return F.linear(F.gelu(hidden) if gelu else F.relu(hidden), down_weight, down_bias)

    def norm(y: Any, weight: Any, bias: Any) -> Any:
        return F.layer_norm(y, (width,), weight, bias, eps)

    x = x.contiguous()
    if norm_first:
        x = x + attend(norm(x, weight1, bias1))
        return x + feed(norm(x, weight2, bias2))
    x = norm(x + attend(x), weight1, bias1)
    return norm(x + feed(x), weight2, bias2)
