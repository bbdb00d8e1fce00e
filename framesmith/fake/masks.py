"""Attention masks with known elements: a mask that masks nothing (added zeros) is dropped, and a triangle becomes
`is_causal`.

Libraries build such masks when they are compiled, where eager code would inspect them; kernels without a mask are
faster.
"""

from __future__ import annotations

from typing import Any

import torch

from framesmith.fake.constant_eval import known_value
from framesmith.fake.elements import Elements, Unknown, parts
from framesmith.fake.handlers import handles, whole
from framesmith.fake.recording import Recording
from framesmith.fake.tensor import CPU, FakeTensor
from framesmith.symbolic.expr import TRUE, le, lt
from framesmith.symbolic.node import expr_of

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_IN_PARTS = torch.ops.aten._scaled_dot_product_attention_math.default
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_MOST_ELEMENTS = 1 << 24


@handles(_ATTENTION)
def attention(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record attention whole, unless the mask requires grad, for which the CPU's fused kernel has no gradient. With
    dropout a mask is kept: eager's kernel for it draws different random numbers."""
    given = {**dict(zip(_NAMES, args)), **kwargs}
    mask = given.get("attn_mask")
    if isinstance(mask, FakeTensor) and mask.device == CPU and rec.keeps_history and rec.keeps_history(mask):
        return rec.inside(_IN_PARTS, *args, **kwargs)[0]
    if isinstance(mask, FakeTensor) and _is_mask(mask) and not given.get("dropout_p") and not given.get("is_causal"):
        causal = _is_causal(rec, mask, given["query"].shape[-2])
        if causal is not None:
            args = (*[given[name] for name in _NAMES[:3]], *((None, 0.0, True) if causal else ()))
            kwargs = {name: value for name, value in given.items() if name not in _NAMES}
    return whole(rec, func, args, kwargs)


def _is_mask(mask: FakeTensor) -> bool:
    """Return whether a mask may be dropped; an additive one only on a CUDA device, with contiguous rows: elsewhere
    eager's results have another layout without a mask."""
    numbers = mask.dtype.is_floating_point and mask.device.type == "cuda" and mask.dim() and mask.stride(-1) == 1
    return (mask.dtype is torch.bool or bool(numbers)) and not mask.requires_grad


def _is_causal(rec: Recording, mask: FakeTensor, rows: Any) -> bool | None:
    """Return False for a mask that masks nothing, True for a square causal one."""
    if mask.dim() < 2:
        return None
    found = rec.nodes(mask).meta
    if "lets through" not in found:  # many layers have one mask
        known = all(type(n) is int for n in mask.shape)
        found["lets through"] = _lets_through(rec, mask) if known else _always_lets_through(rec, mask)
    kind: bool | None = found["lets through"]
    return None if kind and expr_of(mask.shape[-2]) is not expr_of(rows) else kind


def _always_lets_through(rec: Recording, mask: FakeTensor) -> bool | None:
    """Classify a mask of varying sizes as `_lets_through` does, for all of them."""
    if mask.dtype is not torch.bool:
        return None
    shape = tuple(map(expr_of, mask.shape))
    elements, masked, causal = Elements(), False, shape[-1] is shape[-2]
    try:
        for index in parts(shape):
            kept = elements.at(rec.nodes(mask), index)
            masked |= kept is not TRUE and all(kept is not lt(i, n) for i, n in zip(index, shape))
            causal &= kept is le(index[-1], index[-2])
    except Unknown:
        return None
    return False if not masked else True if causal else None


def _lets_through(rec: Recording, mask: FakeTensor) -> bool | None:
    """Classify a mask. False: nothing is masked; True: causal; None: other or unknown."""
    value = known_value(rec, mask, most=_MOST_ELEMENTS, device=CPU)
    if value is None or value.dtype is not torch.bool and not (value := _of_numbers(value)).numel():
        return None
    if value.all():
        return False
    rows, columns = value.shape[-2:]
    triangle = torch.ones((rows, columns), dtype=torch.bool).tril()
    return True if rows == columns and torch.equal(value, triangle.expand(value.shape)) else None


def _of_numbers(value: torch.Tensor) -> torch.Tensor:
    """Return the boolean form of an additive mask of zeros and the lowest numbers; an empty tensor for others."""
    open_, shut = value == 0, value <= torch.finfo(value.dtype).min
    return open_ if bool((open_ | shut).all()) else torch.empty(0, dtype=torch.bool)
