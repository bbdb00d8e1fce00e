"""Attention on rows of different lengths, for which PyTorch has no kernel and uses a nested tensor of another layout,
which is not made of tensors: computed here on rows padded to one length, with a mask."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from framesmith.util.errors import Unsupported


def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
              scale: float | None = None, enable_gqa: bool = False) -> Any:
    """`scaled_dot_product_attention`, of nested tensors [batch, heads, ragged, features] with PyTorch's own checks."""
    own, nested = map(importlib.import_module, ("torch.nested._internal.sdpa", "torch.nested._internal.nested_tensor"))
    given = query, key, value, attn_mask, dropout_p, is_causal
    if not all(isinstance(x, nested.NestedTensor) for x in given[:3]):
        return F.scaled_dot_product_attention(*given, scale=scale, enable_gqa=enable_gqa)
    q, k, v, mask = own._autocast(*given[:4])
    own._validate_sdpa_input(q, k, v, mask, dropout_p, is_causal, scale)
    if q._ragged_idx != 2 or q.dim() != 4 or own._select_sdp_backend(
            q, k, v, mask, dropout_p, is_causal, enable_gqa) is not SDPBackend.MATH:
        return F.scaled_dot_product_attention(*given, scale=scale, enable_gqa=enable_gqa)
    if dropout_p or any(x.lengths() is not None for x in (q, k, v)) or q._size[1] != k._size[1]:
        raise Unsupported("attention of nested tensors with holes, with dropout or with groups of heads")
    lengths = k._offsets.diff()
    present = torch.arange(_longest(k), device=k.device) < lengths.unsqueeze(1)
    out = F.scaled_dot_product_attention(_padded(q), _padded(k), _padded(v), present[:, None, None], scale=scale)
    return nested.nested_from_padded(out, offsets=q._offsets, ragged_idx=2, min_seqlen=q._maybe_min_seqlen,
                                     max_seqlen=q._maybe_max_seqlen, sum_S=q._values.shape[1])


def _longest(x: Any) -> Any:
    """Return the length of the longest row, computed by the graph if the tensor does not store it, or a bound."""
    if (known := x._maybe_max_seqlen) is not None:
        return known
    recorder = x._offsets._alias.storage.recorder
    return x._values.shape[1] if recorder.shape_env is None else recorder.integer(x._offsets.diff().max())


def _padded(x: Any) -> Any:
    batch, heads, _, features = x._size
    return x.to_padded_tensor(0.0, output_size=(batch, heads, _longest(x), features))


INSTEAD: dict[Any, Any] = {torch._C._nn.scaled_dot_product_attention: attention}
"""Replacements of functions of torch for arguments that wrap other tensors."""
