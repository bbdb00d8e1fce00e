"""Depthwise convolutions on a CUDA device: a sum over the positions of a window, unrolled in one pointwise nest over a
channels-last image.

    conv2d(x, k, groups=channels)[n, c, h, w] = sum over i, j of x[n, c, h*s + i - p, w*s + j - p] * k[c, 0, i, j]
    its gradients: of x[n, c, h, w]             sum over i, j of g[n, c, (h + p - i) / s, (w + p - j) / s] * k[c, 0, i,
                                                j]
                   of k[c, 0, i, j]             sum over n, h, w of g[n, c, h, w] * x[n, c, h*s + i - p, w*s + j - p]

Each element is read once for each position, but nearly always from a register or the cache (`codegen.triton.columns`),
so such a nest takes what moving its image takes; and it fuses with what follows as any other nest does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from framesmith.loops.build import Builder
from framesmith.loops.ir import Op
from framesmith.loops.nest import Compute
from framesmith.lower.context import Context
from framesmith.lower.geometry import flat, row_major
from framesmith.lower.layouts import channels_last
from framesmith.lower.values import Lowered, Stored
from framesmith.symbolic.expr import Expr, as_expr

LARGEST = 49  # positions of a window that are written out
VECTOR = 8  # channels that a thread moves at once
MOST_SUMS = 25  # positions of a kernel, whose sums a thread holds all at once
Pair = tuple[int, int]
Where = Callable[[Builder, Sequence[Any], Pair, "DepthwiseWindow", Sequence[int]], tuple[Op, list[Expr]]]


@dataclass(frozen=True, slots=True)
class DepthwiseWindow:
    """Position (i, j) of a window at (h, w) is element h * stride + i * dilation - padding of the image, and so along
    w."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @property
    def positions(self) -> list[Pair]:
        return list(product(range(self.kernel[0]), range(self.kernel[1])))


def window_of(x: Lowered, weight: Lowered, stride: Pair, padding: Pair, dilation: Pair,
              groups: int) -> DepthwiseWindow | None:
    """Return the window of a depthwise convolution that is unrolled, else None."""
    channels = x.shape[1]
    if groups != channels or tuple(weight.shape[:2]) != (channels, 1) or channels % VECTOR:
        return None
    kernel = (weight.shape[2], weight.shape[3])
    return DepthwiseWindow(kernel, stride, padding, dilation) if kernel[0] * kernel[1] <= LARGEST else None


def are_summed(window: DepthwiseWindow, dtype: torch.dtype) -> bool:
    """Return whether the gradient of a weight is computed here: all sums at once, or in float32 those of a row of the
    kernel, for which the library takes ten times as long."""
    return len(window.positions) <= MOST_SUMS or dtype is torch.float32 and window.kernel[1] <= MOST_SUMS


def pair(value: Any) -> Pair:
    """Return an argument of a window for both dimensions; a single number applies to both."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return (values[0], values[-1])


def depthwise(ctx: Context, image: Lowered, kernel: Lowered, window: DepthwiseWindow, shape: tuple[int, ...]) -> Stored:
    """Return the image of `shape`, channels-last."""
    x = ctx.realise(image, channels_last(image.shape))
    return _sums(ctx, x, _by_position(ctx, kernel), shape, window, _inside)


def depthwise_backward(
    ctx: Context, tangent: Lowered, image: Lowered, weight: Lowered, window: DepthwiseWindow, wanted: Sequence[bool]
) -> tuple[Stored | None, Stored | None]:
    """Return the `wanted` gradients of the image and the weight."""
    g = ctx.realise(tangent, channels_last(tangent.shape))
    of_image = _sums(ctx, g, _by_position(ctx, weight), image.shape, window, reader) if wanted[0] else None
    if not wanted[1]:
        return of_image, None
    return of_image, _weight_gradient(ctx, g, ctx.realise(image, channels_last(image.shape)), tuple(weight.shape),
                                      window)


def _by_position(ctx: Context, weight: Lowered) -> Stored:
    """Return the weight with its channels innermost."""
    channels, _, _, columns = weight.shape
    return ctx.realise(weight, (1, channels, columns * channels, channels))


def _inside(b: Builder, at: Sequence[Any], k: Pair, window: DepthwiseWindow,
            shape: Sequence[int]) -> tuple[Op, list[Expr]]:
    """Return the element of an image of `shape` that position `k` of the window at `at` reads, and whether it
    exists."""
    inside, place = None, []
    for d in (0, 1):
        p = as_expr(at[d] * window.stride[d] + (k[d] * window.dilation[d] - window.padding[d]))
        inside = b.both(inside, b.both(b.pred(-1, p), b.pred(p, shape[d + 2])))
        place.append(p)
    assert inside is not None
    return inside, place


def reader(b: Builder, at: Sequence[Any], k: Pair, window: DepthwiseWindow,
           shape: Sequence[int]) -> tuple[Op, list[Expr]]:
    """Return the window, of those of a result of `shape`, whose position `k` reads the element at `at`, and whether it
    exists."""
    reader, place = None, []
    for d in (0, 1):
        step = window.stride[d]
        before = -(-k[d] * window.dilation[d] // step)  # whole steps that keep what is divided from being negative
        p = as_expr(at[d] + (window.padding[d] - k[d] * window.dilation[d] + before * step))
        there = b.both(b.pred(before - 1, p // step), b.pred(p // step, shape[d + 2] + before))
        reader = b.both(reader, b.both(b.pred(p % step, 1), there))
        place.append(p // step - before)
    assert reader is not None
    return reader, place


def _sums(ctx: Context, x: Stored, weight: Stored, shape: tuple[int, ...], window: DepthwiseWindow,
          where: Where) -> Stored:
    """Return an image of `shape`, channels-last, that sums over the positions of the window the elements of `x` given
    by `where`."""
    out = ctx.storage(shape, channels_last(shape), x.dtype)
    b = Builder()
    index, axes = ctx.axes(shape)
    n, c, *at = index
    terms = []
    for i, j in window.positions:
        there, place = where(b, at, (i, j), window, x.shape)
        value = b.masked(there, lambda place=place: x.element(b, [n, c, *place]), 0.0)  # type: ignore[misc]
        terms.append(b.scalar("mul", value, weight.element(b, [c, 0, i, j])))
    total, *rest = terms
    for term in rest:
        total = b.scalar("add", total, term)
    b.store(out.buffer, flat(index, out.stride), total)
    ctx.add(axes, b, window=True)
    return out


def _weight_gradient(ctx: Context, tangent: Stored, x: Stored, shape: tuple[int, ...],
                     window: DepthwiseWindow) -> Stored:
    """Return the sums over all places of the window: for each channel those of all positions at once, or for each
    channel and row of the window those of its columns."""
    out = ctx.storage(shape, row_major(shape), x.dtype)
    rows, columns = window.kernel
    at_once = rows if rows * columns <= MOST_SUMS else 1
    index, axes = ctx.axes((*tangent.shape, rows // at_once))
    n, c, *at, row = index
    inner, after = Builder(), Builder()
    factor = tangent.element(inner, index[:-1])
    for k, j in product(range(at_once), range(columns)):
        inside, place = _inside(inner, at, (row + k, j), window, x.shape)
        value = inner.masked(inside, lambda place=place: x.element(inner, [n, c, *place]), 0.0)  # type: ignore[misc]
        total = inner.reduce("sum", (inner.scalar("mul", value, factor),), torch.float32)
        after.store(out.buffer, flat([c, 0, row + k, j], out.stride), total)
    kept = tuple(a for symbol in (row, c) for a in axes if a.symbol is symbol)
    gone = tuple(a for a in axes if a not in kept)
    ctx.items.append(Compute(kept, gone, tuple(inner.ops), tuple(after.ops), ctx.origin, window=True))
    return out
