"""Metadata rows of losses. `reduction`: 0 none, 1 mean, 2 sum; where eager might complain, its own kernels are
asked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from framesmith.fake.infer import DOUBTED, rule
from framesmith.fake.tensor import FakeTensor, dense

aten = torch.ops.aten


def _names_classes(x: FakeTensor, target: FakeTensor, weight: Any) -> bool:
    """Return whether `target` holds a class for each row of `x`, [n, classes, ...], and `weight`, if any, a number for
    each class."""
    fits = (x.dim() > 1 and x.dtype.is_floating_point and target.dtype is torch.int64
            and tuple(target.shape) == (x.shape[0], *x.shape[2:]))
    return fits and (weight is None or tuple(weight.shape) == (x.shape[1],) and weight.dtype is x.dtype)


@rule(aten.cross_entropy_loss.default)
def cross_entropy_loss(
    x: FakeTensor, target: FakeTensor, weight: Any = None, reduction: int = 1, ignore_index: Any = -100,
    label_smoothing: float = 0.0
) -> Any:
    fits = _names_classes(x, target, weight) and reduction in (1, 2) and 0.0 <= label_smoothing <= 1.0
    return dense(x, ()) if fits else NotImplemented


@rule(aten.nll_loss_forward.default)
def nll_loss_forward(x: FakeTensor, target: FakeTensor, weight: Any, reduction: int, ignore_index: Any) -> Any:
    """The loss, and the sum of the weights that it was divided by."""
    if x.dim() != 2 or not _names_classes(x, target, weight):
        return NotImplemented
    return dense(x, () if reduction else tuple(target.shape)), dense(x, ())


@rule(aten.nll_loss2d_forward.default)
def nll_loss2d_forward(x: FakeTensor, target: FakeTensor, weight: Any, reduction: int, ignore_index: Any) -> Any:
    if x.dim() != 4 or not _names_classes(x, target, weight):
        return NotImplemented
    return dense(x, () if reduction else tuple(target.shape)), dense(x, ())


def _between(x: FakeTensor, others: Iterable[Any], reduction: int) -> Any:
    fits = x.dtype.is_floating_point and all(t.dtype is x.dtype and tuple(t.shape) == tuple(x.shape)
                                             for t in others if t is not None)
    return dense(x, ()) if fits and reduction in (1, 2) else NotImplemented


@rule(aten.mse_loss.default, aten.soft_margin_loss.default)
def loss_between(x: FakeTensor, target: FakeTensor, reduction: int = 1) -> Any:
    return _between(x, (target,), reduction)


@rule(aten.smooth_l1_loss.default)
def smooth_l1_loss(x: FakeTensor, target: FakeTensor, reduction: int = 1, beta: Any = 1.0) -> Any:
    return DOUBTED if type(beta) in (int, float) and not beta >= 0 else _between(x, (target,), reduction)


@rule(aten.huber_loss.default)
def huber_loss(x: FakeTensor, target: FakeTensor, reduction: int = 1, delta: Any = 1.0) -> Any:
    return DOUBTED if type(delta) in (int, float) and not delta > 0 else _between(x, (target,), reduction)


@rule(aten.binary_cross_entropy.default)
def binary_cross_entropy(x: FakeTensor, target: FakeTensor, weight: Any = None, reduction: int = 1) -> Any:
    return _between(x, (target, weight), reduction)


@rule(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    x: FakeTensor, target: FakeTensor, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Any:
    return _between(x, (target, weight), reduction) if pos_weight is None else NotImplemented
