"""Backward of pools and resizings with disjoint windows: each place of the input is in one window. Others stay extern
calls."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.prims.builder import Builder, Value
from framesmith.prims.registry import decomposes, decomposes_named

aten = torch.ops.aten


def _stretched(b: Builder, grad: Value, shape: tuple[Any, ...]) -> Value | None:
    """Repeat each element of `grad` over its window, where whole windows tile `shape`."""
    for dim, wanted in enumerate(shape):
        size = grad.shape[dim]
        if type(size) is not int or type(wanted) is not int or not size or wanted % size:
            return None
        if wanted != size:
            wide = (*grad.shape[: dim + 1], wanted // size, *grad.shape[dim + 1 :])
            grad = b.reshape(b.expand(b.unsqueeze(grad, dim + 1), wide),
                             (*grad.shape[:dim], wanted, *grad.shape[dim + 1 :]))
    return grad


def _averaged(b: Builder, grad: Value, x: Value) -> Any:
    """Distribute each element of `grad` equally over its window."""
    wide = _stretched(b, b.wide(grad), x.shape)
    return NotImplemented if wide is None else b.convert(wide * (grad.spec.numel / x.spec.numel), x.dtype)


@decomposes(aten._adaptive_avg_pool2d_backward.default, aten._adaptive_avg_pool3d_backward.default)
def adaptive_avg_pool_backward(b: Builder, grad: Value, x: Value) -> Any:
    return _averaged(b, grad, x)


@decomposes(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
def avg_pool_backward(
    b: Builder, grad: Value, x: Value, kernel: Any, stride: Any, padding: Any, ceil: bool, count_padding: bool,
    divisor: Any
) -> Any:
    rank = 2 if b.source is not None and b.source.target is aten.avg_pool2d_backward.default else 3
    kernels = tuple(kernel) * (rank if len(kernel) == 1 else 1)
    steps = (tuple(stride) or kernels) * (rank if len(stride) == 1 else 1)
    tiles = all(n == m * k for n, m, k in zip(x.shape[-rank:], grad.shape[-rank:], kernels))
    if not tiles or steps != kernels or any(padding) or divisor is not None:
        return NotImplemented
    return _averaged(b, grad, x)


@decomposes(aten.upsample_nearest1d_backward.default, aten.upsample_nearest2d_backward.default,
            aten.upsample_nearest3d_backward.default)
@decomposes_named("_upsample_nearest_exact1d_backward", "_upsample_nearest_exact2d_backward",
                  "_upsample_nearest_exact3d_backward")
def upsample_nearest_backward(b: Builder, grad: Value, output_size: Any, input_size: Any, *factors: Any,
                              **named: Any) -> Any:
    """Sum over the places that one place was copied to, for integer scales."""
    shape = tuple(input_size)
    given = (*factors, *named.values())
    wide = b.wide(grad)
    for dim in range(grad.ndim - 1, 1, -1):
        size, wanted = shape[dim], grad.shape[dim]
        factor = given[dim - 2] if given else None
        if type(size) is not int or type(wanted) is not int or not size or wanted % size or factor not in (None, wanted
                                                                                                           // size):
            return NotImplemented
        if wanted != size:
            parts = b.reshape(wide, (*wide.shape[:dim], size, wanted // size, *wide.shape[dim + 1 :]))
            wide = b.sum(parts, (dim + 1,), False)
    return b.convert(wide, grad.dtype)
