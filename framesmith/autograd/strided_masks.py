"""Attention in training with a mask whose rows are not contiguous, on a CUDA device.

Eager computes it in parts, and keeps the scores of all heads for the gradient: 323 MB for 16 x 12 heads of 512 x 512 in
bfloat16, where the fused kernels keep 21 (H200). Libraries make such masks, expanded along the keys, where they are
compiled; in eager they look at the elements and pass none.
"""

from __future__ import annotations

from typing import Any

import torch

from framesmith.fake import FakeTensor
from framesmith.fake.rules_attention import MATH, choice
from framesmith.fake.tensor import contiguous_strides, new_fake

aten = torch.ops.aten
_ATTENTION = aten.scaled_dot_product_attention.default


def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
              *, scale: Any = None, enable_gqa: bool = False) -> Any:
    """Return attention by a fused kernel if only the layout of the mask's rows keeps eager from it. Dropout stays
    eager's: other kernels draw other numbers."""
    given, how = (query, key, value), {"scale": scale, "enable_gqa": enable_gqa}
    if not dropout_p and _has_strided_rows(attn_mask):
        shape = tuple(attn_mask.shape)
        dense = new_fake(shape, contiguous_strides(shape), attn_mask.dtype, attn_mask.device)
        as_is, copied = [choice(*given, mask, 0.0, is_causal, scale, enable_gqa) for mask in (attn_mask, dense)]
        if as_is == MATH != copied:
            out = _ATTENTION(*given, _with_contiguous_rows(attn_mask), 0.0, is_causal, **how)
            return _dense(out)  # as eager's parts give it
    return _ATTENTION(*given, attn_mask, dropout_p, is_causal, **how)


def _has_strided_rows(mask: Any) -> bool:
    if not isinstance(mask, FakeTensor) or mask.device.type != "cuda" or mask.requires_grad:
        return False
    fixed = all(type(n) is int for n in (*mask.shape, *mask.stride()))
    return fixed and mask.dim() > 1 and mask.shape[-1] > 1 and mask.stride(-1) != 1


def _with_contiguous_rows(mask: Any) -> Any:
    """Return a copy with contiguous rows, of the memory that the mask has: it is expanded along the same dimensions,
    but for the last."""
    part = mask
    for dim in range(mask.dim() - 1):
        if mask.stride(dim) == 0 and mask.shape[dim] > 1:
            part = part.narrow(dim, 0, 1)
    return _dense(part).expand(mask.shape)


def _dense(x: Any) -> Any:
    return x if x.is_contiguous() else aten.clone.default(x, memory_format=torch.contiguous_format)
