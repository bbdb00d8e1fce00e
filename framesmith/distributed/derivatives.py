"""Derivatives of collectives, as PyTorch's functional collectives have them: the gradient of a sum over processes is
the sum of gradients, that of a gathered tensor is reduced and scattered."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.autograd.formulas import DIFFERENTIABLE
from framesmith.distributed.operators import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, WAIT
from framesmith.fake import FakeTensor
from framesmith.util.errors import Unsupported


class _Collective(torch.autograd.Function):
    """`op(x, *how)`, whose gradient is `back(gradient, *back_how)`, waited for."""

    @staticmethod
    def forward(ctx: Any, op: Any, back: Any, back_how: Any, x: FakeTensor, *how: Any) -> Any:  # type: ignore[override]
        ctx.back, ctx.how, ctx.rest = back, back_how, (None,) * len(how)
        return op(x, *how)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        begun = DIFFERENTIABLE[ctx.back](grad.contiguous(), *ctx.how)
        return None, None, None, DIFFERENTIABLE[WAIT](begun), *ctx.rest


def _summed(op: Any, back: Any, size: int) -> Any:
    """Return a row of an operator that reduces: only sums have a derivative. `size`: how many of its arguments behind
    the first are its opposite's, too."""

    def row(x: FakeTensor, kind: str, *how: Any) -> Any:
        if kind != "sum" and x.requires_grad and torch.is_grad_enabled():
            raise Unsupported(f"the derivative of {op} of kind {kind!r}")
        return _Collective.apply(op, back, how if size else (kind, *how), x, kind, *how)

    return row


class _Waited(torch.autograd.Function):
    """The value of a collective once it is there."""

    @staticmethod
    def forward(ctx: Any, x: FakeTensor) -> Any:  # type: ignore[override]
        return WAIT(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        return grad


DIFFERENTIABLE.update({
    ALL_REDUCE: _summed(ALL_REDUCE, ALL_REDUCE, 0), REDUCE_SCATTER: _summed(REDUCE_SCATTER, ALL_GATHER, 2),
    ALL_GATHER: lambda x, size, group: _Collective.apply(ALL_GATHER, REDUCE_SCATTER, ("sum", size, group), x, size,
                                                         group),
    ALL_TO_ALL: lambda x, received, sent, group: _Collective.apply(ALL_TO_ALL, ALL_TO_ALL, (sent, received, group), x,
                                                                   received, sent, group),
    WAIT: lambda x: _Waited.apply(x),
})
