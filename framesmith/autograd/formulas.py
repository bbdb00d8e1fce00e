"""What is recorded for operators below autograd that have no derivative of their own, so that graphs with them can be differentiated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from framesmith.fake import FakeTensor
from framesmith.fake.recurrent import LAYER

aten = torch.ops.aten


class Copied(torch.autograd.Function):
    """The value of the second in the layout of the first, with the gradient of the second, or of the first if that is the one `before`."""

    @staticmethod
    def forward(ctx: Any, first: FakeTensor, second: FakeTensor, before: bool) -> Any:  # type: ignore[override]
        ctx.before = before
        return aten.copy.default(first, second)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        return (grad, None, None) if ctx.before else (None, grad, None)


def _copy(like: FakeTensor, x: FakeTensor, non_blocking: bool = False) -> Any:
    return Copied.apply(like, x.to(like.dtype).expand(like.shape), False)


def _composed(func: Any) -> Any:
    """An operator as eager writes it in terms of others."""
    return lambda *args: func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args)


def _rrelu(x: Tensor, noise: Tensor, *args: Any) -> Any:
    """In training: what is drawn is what `x` is multiplied by."""
    drawn = aten.rrelu_with_noise_functional.default(x.detach(), noise, *args)[1]
    return x * drawn, drawn


def _group_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, n: int, c: int, hxw: int, groups: int, mask: Sequence[bool]
) -> Any:
    """Gradients of input [n, c, ...], weight [c] and bias [c], for those that `mask` asks for; eager has such a formula, too, under
    `create_graph`. Statistics are functions of `x`, through which derivatives go on."""
    wide = torch.promote_types(x.dtype, torch.float32)
    parts = (n, groups, c // groups, hxw)
    scale = rstd.to(wide).reshape(n, groups, 1, 1)
    normal = (x.to(wide).reshape(parts) - mean.to(wide).reshape(n, groups, 1, 1)) * scale
    up = grad.to(wide).reshape(parts)
    first = second = third = None
    if mask[0]:
        inner = up if weight is None else up * weight.to(wide).reshape(1, groups, c // groups, 1)
        level, pull = inner.mean((2, 3), keepdim=True), (inner * normal).mean((2, 3), keepdim=True)
        first = ((inner - level - normal * pull) * scale).reshape(x.shape).to(x.dtype)
    like = x if weight is None else weight
    if mask[1]:
        second = (up * normal).sum((0, 3)).reshape(c).to(like.dtype)
    if mask[2]:
        third = up.sum((0, 3)).reshape(c).to(like.dtype)
    return first, second, third


DIFFERENTIABLE: dict[Any, Any] = {
    aten._embedding_bag_forward_only.default: aten._embedding_bag.default, aten.copy.default: _copy,
    aten.silu_backward.default: _composed(aten.silu_backward.default), aten.mish_backward.default: _composed(aten.mish_backward.default),
    aten.native_group_norm_backward.default: _group_norm_backward, LAYER: aten.mkldnn_rnn_layer.default,
    aten.rrelu_with_noise_functional.default: _rrelu,
}  # fmt: skip
"""What has a derivative, for an operator below autograd that has none."""

__all__ = ["DIFFERENTIABLE", "Copied"]
