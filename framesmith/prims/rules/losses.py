"""Losses, with their `reduction` argument: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.prims.builder import Builder, Value
from framesmith.prims.promotion import category
from framesmith.prims.registry import decomposes
from framesmith.prims.rules.norms import log_softmax_of
from framesmith.prims.rules.reductions import divided

aten = torch.ops.aten


def reduced(b: Builder, loss: Value, reduction: int, dtype: torch.dtype) -> Value:
    """Reduce an elementwise loss by `reduction`, in `dtype`."""
    if reduction == 0:
        return b.convert(loss, dtype)
    total = b.sum(loss, tuple(range(loss.ndim)), False)
    return b.convert(divided(b, total, loss.spec.numel) if reduction == 1 else total, dtype)


def _pair(b: Builder, x: Value, y: Value) -> tuple[Value, Value, torch.dtype]:
    x, y = b.promote(x, y)
    return b.wide(x), b.wide(y), x.dtype


@decomposes(aten.mse_loss.default)
def mse_loss(b: Builder, x: Value, target: Value, reduction: int = 1) -> Value:
    x, target, dtype = _pair(b, x, target)
    gap = x - target
    return reduced(b, gap * gap, reduction, dtype)


@decomposes(aten.smooth_l1_loss.default)
def smooth_l1_loss(b: Builder, x: Value, target: Value, reduction: int = 1, beta: float = 1.0) -> Value:
    x, target, dtype = _pair(b, x, target)
    gap = b.abs(x - target)
    loss = gap if beta == 0 else b.where(gap < beta, gap * gap * 0.5 / beta, gap - 0.5 * beta)
    return reduced(b, loss, reduction, dtype)


@decomposes(aten.huber_loss.default)
def huber_loss(b: Builder, x: Value, target: Value, reduction: int = 1, delta: float = 1.0) -> Value:
    wide, target, _ = _pair(b, x, target)
    gap = b.abs(wide - target)
    return reduced(b, b.where(gap <= delta, gap * gap * 0.5, (gap - 0.5 * delta) * delta), reduction, x.dtype)


@decomposes(aten.soft_margin_loss.default)
def soft_margin_loss(b: Builder, x: Value, target: Value, reduction: int = 1) -> Value:
    x, target, dtype = _pair(b, x, target)
    return reduced(b, b.log1p(b.exp(b.neg(x * target))), reduction, dtype)


@decomposes(aten.binary_cross_entropy.default)
def binary_cross_entropy(b: Builder, x: Value, target: Value, weight: Any = None, reduction: int = 1) -> Value:
    x, target, dtype = _pair(b, x, target)
    loss = (target - 1.0) * b.maximum(b.log1p(b.neg(x)), -100.0) - target * b.maximum(b.log(x), -100.0)
    out = reduced(b, loss if weight is None else loss * b.convert(weight, loss.dtype), reduction, dtype)
    if x.device.type != "cpu" or 0 in x.shape:
        return out
    # values that eager refuses become an index out of range, so that eager runs
    inside = b.convert((x >= 0.0) & (x <= 1.0) & (target >= 0.0) & (target <= 1.0), x.dtype)
    outside = b.convert(1.0 - b.amin(inside, tuple(range(x.ndim)), False), torch.int64)
    return b.index(b.unsqueeze(out, 0), (outside,), 0)


@decomposes(aten.binary_cross_entropy_with_logits.default)
def bce_with_logits(b: Builder, x: Value, target: Value, weight: Any = None, pos_weight: Any = None,
                    reduction: int = 1) -> Value:
    x, target, dtype = _pair(b, x, target)
    low = b.minimum(x, 0.0) - b.log1p(b.exp(b.neg(b.abs(x))))  # log of the sigmoid
    if pos_weight is None:
        loss = (1.0 - target) * x - low
    else:
        loss = (1.0 - target) * x - ((b.convert(pos_weight, x.dtype) - 1.0) * target + 1.0) * low
    return reduced(b, loss if weight is None else loss * b.convert(weight, loss.dtype), reduction, dtype)


# -- classes ----------------------------------------------------------------------------------------------------------


def _class_losses(b: Builder, logs: Value, target: Value, weight: Any, ignore: int) -> tuple[Value, Value]:
    """Return the negative log probability of the target class, and the weight, of each sample; classes are dim 1 (0 for
    one sample)."""
    dim = 1 if logs.ndim > 1 else 0
    counts = b.ne(target, ignore)
    safe = b.where(counts, target, 0)
    picked = b.reshape(b.gather(logs, b.unsqueeze(safe, dim), dim), target.shape)
    if weight is None:
        factor = b.convert(counts, logs.dtype)
        return b.where(counts, b.neg(picked), 0.0), factor
    factor = b.where(counts, b.convert(b.index(weight, (safe,), 0), logs.dtype), 0.0)
    return b.neg(picked) * factor, factor


def _nll(b: Builder, logs: Value, target: Value, weight: Any, reduction: int, ignore: int) -> tuple[Value, Value]:
    """Return the loss and the total weight, in `logs`' dtype."""
    loss, factor = _class_losses(b, logs, target, weight, ignore)
    every = tuple(range(loss.ndim))
    total = b.sum(factor, every, False)
    if reduction == 0:
        return loss, total
    whole = b.sum(loss, every, False)
    return (whole / total if reduction == 1 else whole), total


@decomposes(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(b: Builder, x: Value, target: Value, weight: Any, reduction: int, ignore_index: int) -> Any:
    loss, total = _nll(b, b.wide(x), target, weight, reduction, ignore_index)
    if reduction == 0:  # eager leaves the total weight as it is, and reads it nowhere
        total = b.full(b.out[1].shape, 0.0, total.dtype, x.device)
    return b.convert(loss, b.out[0].dtype), b.convert(total, b.out[1].dtype)


@decomposes(aten.cross_entropy_loss.default)
def cross_entropy(
    b: Builder, x: Value, target: Value, weight: Any = None, reduction: int = 1, ignore_index: int = -100,
    label_smoothing: float = 0.0
) -> Any:
    dim = 1 if x.ndim > 1 else 0
    logs = log_softmax_of(b, b.wide(x), dim)
    if category(target.dtype) >= 2:
        return _soft_cross_entropy(b, logs, target, weight, reduction, label_smoothing, x.dtype)
    loss, total = _nll(b, logs, target, weight, reduction, ignore_index)
    if label_smoothing > 0:
        classes = x.shape[dim]
        factor = logs if weight is None else logs * b.along(b.convert(weight, logs.dtype), dim, logs.ndim)
        smooth = b.where(b.ne(target, ignore_index), b.neg(b.sum(factor, (dim,), False)), 0.0)
        if reduction:
            smooth = b.sum(smooth, tuple(range(smooth.ndim)), False)
            smooth = smooth / total if reduction == 1 else smooth
        loss = loss * (1.0 - label_smoothing) + smooth * (label_smoothing / classes)
    return b.convert(loss, x.dtype)


def _soft_cross_entropy(b: Builder, logs: Value, target: Value, weight: Any, reduction: int, smoothing: float,
                        dtype: torch.dtype) -> Value:
    """Return the cross entropy with probabilities as targets."""
    dim = 1 if logs.ndim > 1 else 0
    target = b.convert(target, logs.dtype)
    if smoothing > 0:
        target = target * (1.0 - smoothing) + smoothing / logs.shape[dim]
    loss = logs * target
    if weight is not None:
        loss = loss * b.along(b.convert(weight, logs.dtype), dim, logs.ndim)
    loss = b.neg(b.sum(loss, (dim,), False))
    if reduction == 0:
        return b.convert(loss, dtype)
    total = b.sum(loss, tuple(range(loss.ndim)), False)
    return b.convert(divided(b, total, loss.spec.numel) if reduction == 1 else total, dtype)
