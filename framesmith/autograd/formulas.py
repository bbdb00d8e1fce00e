"""Formulas recorded for operators below autograd that have no derivative of their own, so that graphs with them can be
differentiated; and derivatives for which autograd has one formula for tensors with data and another for fakes, which
differs where numbers are not finite."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from framesmith.autograd.strided_masks import attention
from framesmith.fake import FakeTensor
from framesmith.fake.layout import preserved_strides
from framesmith.fake.products import linear
from framesmith.fake.recurrent import LAYER

aten = torch.ops.aten


class Copied(torch.autograd.Function):
    """The value of the second in the layout of the first, with the gradient of a write in autograd: that of the second
    and zeros for the first; or the first's if that is the one `before`."""

    @staticmethod
    def forward(ctx: Any, first: FakeTensor, second: FakeTensor, before: bool) -> Any:  # type: ignore[override]
        ctx.before = before
        return aten.copy.default(first, second)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        if ctx.before:
            return grad, None, None
        first, second, _ = ctx.needs_input_grad
        return torch.zeros_like(grad) if first else None, grad if second else None, None


def _copy(like: FakeTensor, x: FakeTensor, non_blocking: bool = False) -> Any:
    return Copied.apply(like, x.expand(like.shape).to(like.dtype), False)  # a gradient is cast, then summed


class _LaidOut(torch.autograd.Function):
    """The identity, whose gradient gets the value's layout."""

    @staticmethod
    def forward(ctx: Any, x: FakeTensor) -> Any:  # type: ignore[override]
        ctx.set_materialize_grads(False)
        ctx.like = x.shape, preserved_strides(x), x.dtype, x.device
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        shape, strides, dtype, device = ctx.like
        if grad is None or grad.stride() == strides:
            return grad
        return aten.copy.default(torch.empty_strided(shape, strides, dtype=dtype, device=device), grad)


def _reflecting(func: Any) -> Any:
    """Lay out the gradient of vectors of reflections as eager's formula does: it differs for classes of tensors."""
    return lambda vectors, *args: func(_LaidOut.apply(vectors), *args)


class Written(torch.autograd.Function):
    """A tensor after a write through `as_strided`: overwritten elements have a zero gradient. (With the operator
    `as_strided_scatter`, the other elements do.)"""

    @staticmethod
    def forward(ctx: Any, x: FakeTensor, written: FakeTensor, size: Any, stride: Any,  # type: ignore[override]
                offset: Any) -> Any:
        ctx.layout = x.stride(), size, stride, offset - x.storage_offset()
        value = aten.as_strided_scatter.default(x, written, size, stride, offset)
        value._alias.node.meta["written"] = True
        return value

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        strides, *place = ctx.layout
        fresh = torch.empty_strided(grad.shape, strides, dtype=grad.dtype, device=grad.device)
        laid_out = aten.copy.default(fresh, grad)
        part = aten.as_strided.default(laid_out, *place)
        return Written.apply(laid_out, torch.zeros_like(part), *place), part, None, None, None


class _Overlaid(torch.autograd.Function):
    """A complex tensor after a write into a slice, for which the operator has no derivative in autograd, as a write
    has. `part`: the operator that takes the slice."""

    @staticmethod
    def forward(ctx: Any, func: Any, part: Any, x: FakeTensor, written: FakeTensor,  # type: ignore[override]
                *place: Any) -> Any:
        ctx.call = func, part, place
        value = func(x, written, *place)
        value._alias.node.meta["written"] = True
        return value

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        func, part, place = ctx.call
        taken = part(grad, *place)
        below = _Overlaid.apply(func, part, grad, torch.zeros_like(taken), *place)
        return None, None, below, taken, *[None] * len(place)


class _Extreme(torch.autograd.Function):
    """The maximum, minimum or median: all elements equal to it share the gradient, the others have zeros."""

    @staticmethod
    def forward(ctx: Any, func: Any, x: FakeTensor) -> Any:  # type: ignore[override]
        y = func(x)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        x, y = ctx.saved_tensors
        same = (x == y) | (x.isnan() & y.isnan())
        return None, torch.where(same, grad / same.sum(), torch.zeros((), dtype=x.dtype, device=x.device))


class _Product(torch.autograd.Function):
    """A product, of all elements or along a dimension. Without zeros an element's gradient is the product over it (NaN
    of an infinity); among zeros it is the product of the others, and zero for all elements where two of them are
    zeros."""

    @staticmethod
    def forward(ctx: Any, func: Any, x: FakeTensor, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        y = func(x, *args, **kwargs)
        ctx.save_for_backward(x, y)
        ctx.dim, ctx.keepdim = args[0] if args else None, args[1] if len(args) > 1 else False
        return y

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        x, y = ctx.saved_tensors
        x, shape = x.to(grad.dtype), x.shape
        if x.dim() == 0:
            return None, grad, None, None
        zeros = (x == 0).sum()
        whole = ctx.dim is None
        dim = 0 if whole else ctx.dim
        if whole:
            x = x.reshape(-1)
        elif not ctx.keepdim:
            grad, y = grad.unsqueeze(dim), y.unsqueeze(dim)
        # values that are not selected are finite, and so are their derivatives
        none, one = zeros == 0, torch.ones((), dtype=x.dtype, device=x.device)
        others = _product_of_others(torch.where(none, one, x), dim).conj() * grad
        if whole:
            others = torch.where((zeros > 1) & ~others.isfinite(), torch.zeros_like(one), others)
        return None, torch.where(none, grad * (y / torch.where(none, x, one)).conj(), others).reshape(shape), None, None


def _product_of_others(x: Tensor, dim: int) -> Tensor:
    """Return for each element the product of the others along a dimension."""
    count = x.shape[dim]
    if x.numel() == 0 or count == 1:
        return torch.ones_like(x)
    one = torch.ones_like(x.narrow(dim, 0, 1))
    before = torch.cat([one, x.narrow(dim, 0, count - 1)], dim).cumprod(dim)
    after = torch.cat([one, x.narrow(dim, 1, count - 1).flip(dim)], dim).cumprod(dim).flip(dim)
    return before * after


def _extreme(func: Any) -> Any:
    """Make the replacement; on GPUs autograd's formula is the one for fakes."""
    return lambda x: _Extreme.apply(func, x) if x.device.type == "cpu" else func(x)


def _product(func: Any) -> Any:
    def product(x: FakeTensor, *args: Any, dtype: Any = None) -> Any:
        return _Product.apply(func, x if dtype is None else x.to(dtype), *args)

    return product


class _Padded(torch.autograd.Function):
    """Padding of jagged rows to one length: the gradient is that of the rows, without the padding."""

    @staticmethod
    def forward(ctx: Any, values: FakeTensor, offsets: FakeTensor, length: Any,  # type: ignore[override]
                padding: float) -> Any:
        ctx.save_for_backward(offsets)
        ctx.total = values.shape[0]
        return aten._jagged_to_padded_dense_forward.default(values, [offsets], [length], padding)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        return _Ragged.apply(grad, *ctx.saved_tensors, ctx.total), None, None, None


class _Ragged(torch.autograd.Function):
    """The jagged rows in padded ones."""

    @staticmethod
    def forward(ctx: Any, x: FakeTensor, offsets: FakeTensor, total: Any) -> Any:  # type: ignore[override]
        ctx.save_for_backward(offsets)
        ctx.length = x.shape[1]
        return aten._padded_dense_to_jagged_forward.default(x, [offsets], total)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        return _Padded.apply(grad, *ctx.saved_tensors, ctx.length, 0.0), None, None


def _padded(values: FakeTensor, offsets: Sequence[FakeTensor], lengths: Sequence[Any], padding: float = 0.0) -> Any:
    return _Padded.apply(values, offsets[0], lengths[0], padding)


def _ragged(x: FakeTensor, offsets: Sequence[FakeTensor], total: Any) -> Any:
    return _Ragged.apply(x, offsets[0], total)


def _composed(func: Any) -> Any:
    """Make the replacement of an operator by eager's composition of others."""
    return lambda *args: func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args)


def _rrelu(x: Tensor, noise: Tensor, *args: Any) -> Any:
    """rrelu in training: `x` is multiplied by the random slopes."""
    drawn = aten.rrelu_with_noise_functional.default(x.detach(), noise, *args)[1]
    return x * drawn, drawn


def _group_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, n: int, c: int, hxw: int, groups: int,
    mask: Sequence[bool]
) -> Any:
    """Return the gradients of input [n, c, ...], weight [c] and bias [c] selected by `mask`; eager has such a formula,
    too, under `create_graph`. Statistics are functions of `x`, so higher derivatives include them."""
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
    **{f: _product(f) for f in (aten.prod.default, aten.prod.dim_int)},
    aten._embedding_bag_forward_only.default: aten._embedding_bag.default, aten.copy.default: _copy,
    aten.scaled_dot_product_attention.default: attention,
    aten.silu_backward.default: _composed(aten.silu_backward.default),
    aten.mish_backward.default: _composed(aten.mish_backward.default),
    aten.native_group_norm_backward.default: _group_norm_backward, LAYER: aten.mkldnn_rnn_layer.default,
    aten._jagged_to_padded_dense_forward.default: _padded, aten._padded_dense_to_jagged_forward.default: _ragged,
    aten.rrelu_with_noise_functional.default: _rrelu, aten.ormqr.default: _reflecting(aten.ormqr.default),
    aten.linalg_householder_product.default: _reflecting(aten.linalg_householder_product.default),
    **{f: _extreme(f) for f in (aten.max.default, aten.min.default, aten.median.default, aten.nanmedian.default)},
}  # fmt: skip
"""Replacements of operators below autograd that have no derivative, or not eager's, by functions that have eager's; and
of attention, whose derivative may need less memory."""

WRITTEN: dict[Any, Any] = {
    aten.as_strided_scatter.default: Written.apply,
    aten.slice_scatter.default: partial(_Overlaid.apply, aten.slice_scatter.default, aten.slice.Tensor),
    aten.select_scatter.default: partial(_Overlaid.apply, aten.select_scatter.default, aten.select.int),
}
"""The same of operators that stand for a write, where that has another derivative: see the recorder."""

if torch.__version__ < "2.13":  # its composite kernel takes numbers alone
    DIFFERENTIABLE[aten.linear.default] = linear

__all__ = ["DIFFERENTIABLE", "WRITTEN", "Copied"]
