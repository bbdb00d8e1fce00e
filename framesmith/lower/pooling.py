"""Max pooling of a channels-last image as one pointwise nest: the window's elements one after another, lanes along channels.

Positions outside of the image move to its nearest row and column, which the window holds as well: the maximum does not change.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from framesmith.loops.build import Builder
from framesmith.lower.context import Context
from framesmith.lower.geometry import flat
from framesmith.lower.layouts import channels_last, is_channels_last
from framesmith.lower.table import lowers_extern
from framesmith.lower.values import Strided, Value
from framesmith.lower.windows import pair
from framesmith.symbolic.expr import Expr, as_expr, max_, min_

# what generated code pools better than eager's kernel
DTYPES = {"cpu": (torch.float32,), "cuda": (torch.float32, torch.bfloat16, torch.float16)}
LARGEST = 25  # positions of a window that are written out


@lowers_extern(torch.ops.aten.max_pool2d.default)
def max_pool2d(ctx: Context, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Strided | None:
    """The pooled image, as below."""
    return _pooled(ctx, node.meta["val"], args, kwargs)


@lowers_extern(torch.ops.aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(ctx: Context, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Strided, None] | None:
    """Where nobody asks for the indices."""
    if any(user.target is not operator.getitem or user.args[1] for user in node.users):
        return None
    out = _pooled(ctx, node.meta["val"][0], args, kwargs)
    return (out, None) if out is not None else None


def _pooled(ctx: Context, spec: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Strided | None:
    """The pooled image, channels-last; None (eager's kernel) for another layout, a dilated or a large window."""
    x, kernel, stride, padding, dilation = (*args, *((), 0, 1)[len(args) - 2 :])[:5]
    if kwargs or not isinstance(x, Value) or len(x.shape) != 4 or any(type(n) is not int for n in (*x.shape, *spec.shape)):
        return None
    kernel, stride, padding, dilation = pair(kernel), pair(stride or kernel), pair(padding), pair(dilation)
    if x.dtype not in DTYPES[ctx.device.type] or dilation != (1, 1) or kernel[0] * kernel[1] > LARGEST or 0 in (*x.shape, *spec.shape):
        return None
    x = ctx.realise(x)
    if not is_channels_last(x) or x.shape[1] < 8:
        return None
    b = Builder()
    index, axes = ctx.axes(spec.shape)
    rows, columns = (_positions(index[d + 2], x.shape[d + 2], kernel[d], stride[d], padding[d]) for d in (0, 1))
    best = None
    for row in rows:
        for column in columns:
            value = x.element(b, [index[0], index[1], row, column])
            best = value if best is None else b.scalar("maximum", best, value)
    out = ctx.storage(tuple(spec.shape), channels_last(spec.shape), x.dtype)
    b.store(out.buffer, flat(index, out.stride), best)  # type: ignore[arg-type]
    ctx.add(axes, b, window=True)
    return out


def _positions(index: Any, size: int, kernel: int, stride: int, padding: int) -> list[Expr]:
    first = as_expr(index * stride - padding)
    return [min_(max_(first + k, 0), size - 1) for k in range(kernel)]
