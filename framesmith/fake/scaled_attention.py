"""Attention whose scale is a number that varies from call to call, for which C++ takes no symbol: the query is
multiplied by it."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.fake.dynamic_scalars import Number
from framesmith.fake.infer import infer
from framesmith.fake.layout import surely_same_strides
from framesmith.fake.tensor import FakeTensor, new_fake

aten = torch.ops.aten
ATTENTION = torch._C._nn.scaled_dot_product_attention


def attention(rec: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
              is_causal: bool = False, *, scale: Any, enable_gqa: bool = False) -> Any:
    """Record attention by a scale that is a `Number`; it is specialised where it is not multiplied into the query."""
    number: Number = scale.node
    given = (key, value, attn_mask, dropout_p, is_causal)
    if not number.small or not _may_multiply(rec, query, given, enable_gqa):
        return ATTENTION(query, *given, scale=number.fix(), enable_gqa=enable_gqa)
    return ATTENTION(query * scale, *given, scale=1.0, enable_gqa=enable_gqa)


def _may_multiply(rec: Any, query: Any, given: tuple[Any, ...], shared: bool) -> bool:
    """Return whether a product with the query is as exact as one with the scores, and changes no layout. In half
    precision the query would be rounded once more."""
    if any(type(x) is not FakeTensor for x in (query, *given[:2])) or query.dtype not in (torch.float32, torch.float64):
        return False
    with rec.off():
        product = infer(aten.mul.Tensor, (query, new_fake((), (), query.dtype)), {})
        before, after = (infer(aten.scaled_dot_product_attention.default, (x, *given), {"enable_gqa": shared})
                         for x in (query, product))
    return surely_same_strides(before, after)


__all__ = ["ATTENTION", "attention"]
