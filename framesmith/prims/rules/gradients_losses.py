"""Backward of softmax and of the losses, as the autograd engine calls it; `reduction` is 0 none, 1 mean, 2 sum."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.prims.builder import Builder, Value
from framesmith.prims.registry import decomposes

aten = torch.ops.aten


@decomposes(aten._softmax_backward_data.default)
def softmax_backward(b: Builder, grad: Value, y: Value, dim: int, input_dtype: torch.dtype) -> Any:
    if not y.ndim:
        return NotImplemented
    wide = b.wide(y)
    weighted = b.wide(grad) * wide
    out = weighted - wide * b.sum(weighted, (dim % y.ndim,), True)
    return b.convert(out, input_dtype)


@decomposes(aten._log_softmax_backward_data.default)
def log_softmax_backward(b: Builder, grad: Value, y: Value, dim: int, input_dtype: torch.dtype) -> Any:
    if not y.ndim:
        return NotImplemented
    up = b.wide(grad)
    out = up - b.exp(b.wide(y)) * b.sum(up, (dim % y.ndim,), True)
    return b.convert(out, input_dtype)


@decomposes(aten.mse_loss_backward.default)
def mse_loss_backward(b: Builder, grad: Value, x: Value, target: Value, reduction: int) -> Any:
    scale = _scale(x, target, reduction)
    if scale is None:
        return NotImplemented
    return b.convert((b.wide(x) - b.wide(target)) * (2.0 * scale) * b.wide(grad), x.dtype)


@decomposes(aten.smooth_l1_loss_backward.default)
def smooth_l1_backward(b: Builder, grad: Value, x: Value, target: Value, reduction: int, beta: float) -> Any:
    return _kinked(b, grad, x, target, reduction, float(beta), 1.0)


@decomposes(aten.huber_loss_backward.default)
def huber_backward(b: Builder, grad: Value, x: Value, target: Value, reduction: int, delta: float) -> Any:
    return _kinked(b, grad, x, target, reduction, float(delta), float(delta))


def _kinked(b: Builder, grad: Value, x: Value, target: Value, reduction: int, bound: float, steepest: float) -> Any:
    """Return the gradient of a parabola continued as straight lines of slope `steepest` from `bound` on."""
    scale = _scale(x, target, reduction)
    if scale is None or bound == 0.0:
        return NotImplemented
    gap, up = b.wide(x) - b.wide(target), b.wide(grad) * scale
    ratio = 1.0 if steepest == bound else steepest / bound  # both may be infinite
    slope = b.where(gap <= -bound, -steepest, b.where(gap >= bound, steepest, gap * ratio))
    return b.convert(slope * up, x.dtype)


@decomposes(aten.soft_margin_loss_backward.default)
def soft_margin_backward(b: Builder, grad: Value, x: Value, target: Value, reduction: int) -> Any:
    scale = _scale(x, target, reduction)
    if scale is None:
        return NotImplemented
    wide, sign = b.wide(x), b.wide(target)
    odds = b.exp(b.neg(sign) * wide)
    return b.convert(sign * odds * -scale / (odds + 1.0) * b.wide(grad), x.dtype)


@decomposes(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(b: Builder, grad: Value, x: Value, target: Value, weight: Any = None,
                                  reduction: int = 1) -> Any:
    scale = _scale(x, target, reduction)
    if scale is None:
        return NotImplemented
    wide = b.wide(x)
    slope = b.wide(grad) * (wide - b.wide(target)) / b.maximum((1.0 - wide) * wide, 1e-12)
    return b.convert((slope if weight is None else slope * b.wide(weight)) * scale, x.dtype)


def _scale(x: Value, target: Value, reduction: int) -> float | None:
    """Return the weight of one element in the loss; None if that is unknown, or the dtypes differ."""
    count = x.spec.numel
    if type(count) is not int or x.dtype is not target.dtype:
        return None
    return 1.0 / max(count, 1) if reduction == 1 else 1.0


@decomposes(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    b: Builder, grad: Value, x: Value, target: Value, weight: Any, reduction: int, ignore_index: int,
    total_weight: Value
) -> Value:
    dim = 1 if x.ndim > 1 else 0
    target = b.reshape(target, (*x.shape[:dim], *x.shape[dim + 1 :]))  # the same sizes, in the terms of `x`
    counts = b.ne(target, ignore_index)
    safe = b.where(counts, target, 0)
    up = grad / total_weight if reduction == 1 else grad
    if reduction == 0 and weight is None:
        up = b.expand(up, target.shape)
    share = up if weight is None else up * b.index(weight, (safe,), 0)
    share = b.where(b.expand(counts, target.shape), b.neg(b.expand(share, target.shape)), 0.0)
    classes = b.along(b.iota(x.shape[dim], 0, 1, torch.int64, x.device), dim, x.ndim)
    hit = b.eq(b.unsqueeze(safe, dim), classes)
    return b.where(hit, b.expand(b.unsqueeze(share, dim), x.shape), 0.0)
