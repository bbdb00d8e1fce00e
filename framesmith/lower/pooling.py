"""Max pooling of a channels-last image as one pointwise nest: the window's elements one after another, lanes along
channels; and its gradient, the sum over the windows that an element is in of those whose maximum it was.

Positions outside of the image move to its nearest row and column, which the window holds as well: the maximum does not
change, nor where it is first.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from framesmith.loops.build import Builder
from framesmith.loops.ir import Op
from framesmith.lower.context import Context
from framesmith.lower.geometry import Size, flat, is_empty
from framesmith.lower.layouts import channels_last, is_channels_last
from framesmith.lower.table import lowers_extern
from framesmith.lower.values import Lowered, Stored
from framesmith.lower.windows import DepthwiseWindow, pair, reader
from framesmith.symbolic.expr import Expr, as_expr, max_, min_

aten = torch.ops.aten
# what generated code pools better than eager's kernel
DTYPES = {"cpu": (torch.float32,), "cuda": (torch.float32, torch.bfloat16, torch.float16)}
LARGEST = 25  # positions of a window that are written out
CHANNELS = 8  # from which lanes along channels are worth it


@lowers_extern(aten.max_pool2d.default)
def max_pool2d(ctx: Context, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stored | None:
    """The pooled image, as below."""
    found = _pooled(ctx, node.meta["val"], args, kwargs, False)
    return found[0] if found is not None else None


@lowers_extern(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    ctx: Context, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Stored, Stored | None] | None:
    """The pooled image and, if anybody asks for them, the places of the maxima; on the CPU, only where nobody does."""
    asked = any(user.target is not operator.getitem or user.args[1] for user in node.users)
    return None if asked and ctx.device.type == "cpu" else _pooled(ctx, node.meta["val"][0], args, kwargs, asked)


@lowers_extern(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_backward(ctx: Context, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stored | None:
    """The gradient of the image, channels-last; None (eager's kernel) as below, and on the CPU."""
    tangent, x, *how, _, indices = args
    window = _window(ctx, x, how, (x.shape, tangent.shape)) if not kwargs and ctx.device.type != "cpu" else None
    if window is None or not (is_channels_last(x) if isinstance(x, Stored) else x.dtype.itemsize == 2):
        return None
    g = ctx.realise(tangent, channels_last(tangent.shape))
    where = ctx.realise(indices, channels_last(indices.shape)) if ctx.is_heavy(indices) else indices
    b = Builder()
    index, axes = ctx.axes(x.shape)
    n, c, *at = index
    place = b.index(at[0] * x.shape[3] + at[1], torch.int32)
    total = b.const(0.0, torch.float32)

    def own(there: list[Expr]) -> Op:
        chosen = b.scalar("eq", b.cast(where.element(b, [n, c, *there]), torch.int32), place)
        value = g.element(b, [n, c, *there])
        return b.scalar("where", chosen, value, b.const(0.0, value.dtype))

    for position in window.positions:
        exists, there = reader(b, at, position, window, g.shape)
        total = b.scalar("add", total, b.masked(exists, lambda there=there: own(there), 0.0))  # type: ignore[misc]
    out = ctx.storage(tuple(x.shape), channels_last(x.shape), x.dtype)
    b.store(out.buffer, flat(index, out.stride), total)
    ctx.add(axes, b, window=True)
    return out


def _window(ctx: Context, x: Any, how: Any, shapes: tuple[Any, ...]) -> DepthwiseWindow | None:
    """The window that arguments behind an image describe; None for a dilated or a large one, and for an image that is
    not pooled here."""
    kernel, stride, padding, dilation = (*how, *((), 0, 1)[len(how) - 1 :])[:4]
    if not isinstance(x, Lowered) or len(x.shape) != 4 or any(map(is_empty, shapes)):
        return None
    if type(x.shape[1]) is not int or ctx.device.type != "cpu" and any(type(n) is not int for n in x.shape):
        return None
    window = DepthwiseWindow(pair(kernel), pair(stride or kernel), pair(padding), pair(dilation))
    large = len(window.positions) > LARGEST or x.shape[1] < CHANNELS
    return None if large or window.dilation != (1, 1) or x.dtype not in DTYPES[ctx.device.type] else window


def _pooled(
    ctx: Context, spec: Any, args: tuple[Any, ...], kwargs: dict[str, Any], places: bool
) -> tuple[Stored, Stored | None] | None:
    """The pooled image, channels-last, and with `places` where the maxima are; None (eager's kernel) for another
    layout, a dilated or a large window."""
    x, *how = args
    window = _window(ctx, x, how, (x.shape, spec.shape)) if not kwargs and isinstance(x, Lowered) else None
    if window is None:
        return None
    x = ctx.realise(x)
    if not is_channels_last(x):
        return None
    b = Builder()
    index, axes = ctx.axes(spec.shape)
    rows, columns = (
        _positions(index[d + 2], x.shape[d + 2], window.kernel[d], window.stride[d], window.padding[d]) for d in (0, 1)
    )
    best: Op | None = None
    at: Op | None = None
    for row in rows:
        for column in columns:
            value = x.element(b, [index[0], index[1], row, column])
            if places:
                at = _first(b, at, best, value, b.index(row * x.shape[3] + column, torch.int32))
            best = value if best is None else b.scalar("maximum", best, value)
    found = []
    for result, dtype in ((best, x.dtype), *([(at, torch.int64)] if places else [])):
        assert result is not None
        found.append(ctx.storage(tuple(spec.shape), channels_last(spec.shape), dtype))
        b.store(found[-1].buffer, flat(index, found[-1].stride), b.cast(result, dtype))
    ctx.add(axes, b, window=True)
    return found[0], found[1] if places else None


def _first(b: Builder, at: Op | None, best: Op | None, value: Op, place: Op) -> Op:
    """Update the position of the maximum by one more value: the first of equal ones, but the last NaN, as in eager."""
    if at is None or best is None:
        return place
    later = b.scalar("logical_or", b.scalar("gt", value, best), b.scalar("isnan", value))
    return b.scalar("where", later, place, at)


def _positions(index: Any, size: Size, kernel: int, stride: int, padding: int) -> list[Expr]:
    first = as_expr(index * stride - padding)
    return [min_(max_(first + k, 0), size - 1) for k in range(kernel)]
