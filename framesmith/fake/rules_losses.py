"""Metadata rows of losses. `reduction`: 0 none, 1 mean, 2 sum; where eager might raise, its own kernels are run."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.fake.decomposed import by_decomposition
from framesmith.fake.infer import RULES, Rule, doubted, rule
from framesmith.fake.layout import same_shape
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


def _nll(rank: int) -> Rule:
    """Return the loss, and the sum of the weights that it was divided by."""
    def row(x: FakeTensor, target: FakeTensor, weight: Any, reduction: int, ignore_index: Any) -> Any:
        if x.dim() != rank or not _names_classes(x, target, weight):
            return NotImplemented
        return dense(x, () if reduction else tuple(target.shape)), dense(x, ())

    return row


RULES[aten.nll_loss_forward.default], RULES[aten.nll_loss2d_forward.default] = _nll(2), _nll(4)


def _is_between(x: FakeTensor, *rest: Any) -> bool:
    """Return whether a loss of two similar tensors is reduced to one number."""
    reduced = not any(type(n) is int and n == 0 for n in rest)
    return reduced and x.dtype.is_floating_point and all(t.dtype is x.dtype and same_shape(t.shape, x.shape)
                                                         for t in rest if type(t) is FakeTensor)


by_decomposition("mse_loss soft_margin_loss smooth_l1_loss huber_loss binary_cross_entropy "
                 "binary_cross_entropy_with_logits", _is_between)
doubted(aten.smooth_l1_loss.default, lambda x, y, _=1, beta=1.0: type(beta) in (int, float) and not beta >= 0)
doubted(aten.huber_loss.default, lambda x, y, _=1, delta=1.0: type(delta) in (int, float) and not delta > 0)
