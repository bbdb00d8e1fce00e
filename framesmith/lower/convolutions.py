"""Convolutions on matrix units of a CUDA device that are computed without the library's convolutions.

    a kernel for each channel      sums over windows (`windows`); of halves, the gradient of a large kernel is the
                                   library's
    a kernel of one element        a product of matrices: the pixels of a channels-last image are its rows
                                   conv(x, w) = x w^T,   its gradients: of x  g w,   of w  g^T x
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import fx

from framesmith.loops.build import Builder
from framesmith.loops.nest import Call, Compute
from framesmith.lower.context import Context
from framesmith.lower.externs import plain_call
from framesmith.lower.geometry import row_major
from framesmith.lower.layouts import channels_last
from framesmith.lower.table import lowers_extern
from framesmith.lower.values import Lowered, Stored
from framesmith.lower.windows import Pair, are_summed, depthwise, depthwise_backward, pair, window_of
from framesmith.symbolic.expr import as_expr
from framesmith.util.precision import PRODUCTS, channels_of, in_tf32, on_matrix_units

aten = torch.ops.aten
ONE: Pair = (1, 1)
NONE: Pair = (0, 0)
_DEFAULTS = (None, ONE, NONE, ONE, 1)


@lowers_extern(aten.conv2d.default, aten.convolution.default)
def convolution(ctx: Context, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stored | None:
    """Return the image, channels-last; None if the library computes it."""
    x, weight, *rest = args
    if node.target is aten.convolution.default:
        bias, *window, transposed, _, groups = rest
    else:
        given = (*rest, *_DEFAULTS[len(rest) :])
        bias, window, groups, transposed = given[0], list(given[1:4]), given[4], False
    shape = tuple(node.meta["val"].shape)
    if kwargs or transposed or bias is not None or not _is_ours(ctx, window, (x, weight), shape):
        return None
    stride, padding, dilation = map(pair, window)
    found = window_of(x, weight, stride, padding, dilation, groups)
    if found is not None:
        return depthwise(ctx, x, weight, found, shape)
    return _product(ctx, x, weight, shape) if _is_plain(weight, stride, padding, groups) else None


@lowers_extern(aten.convolution_backward.default)
def convolution_backward(ctx: Context, node: fx.Node, args: tuple[Any, ...],
                         kwargs: dict[str, Any]) -> tuple[Stored | None, ...] | None:
    """Return the needed gradients of the image, the weight and the bias; None if the library computes them."""
    tangent, x, weight, _, *window, transposed, _, groups, wanted = args
    if transposed or not _is_ours(ctx, window, (tangent, x, weight), ()):
        return None
    stride, padding, dilation = map(pair, window)
    found = window_of(x, weight, stride, padding, dilation, groups)
    gradients: tuple[Stored | None, Stored | None]
    if found is not None:
        here = wanted[1] and are_summed(found, tangent.dtype)
        gradients = depthwise_backward(ctx, tangent, x, weight, found, (wanted[0], here))
        if wanted[1] and not here:
            rest = (*args[:-1], (False, True, False))
            specs = (None, node.meta["val"][1], None)
            gradients = gradients[0], plain_call(ctx, node.target, node, rest, kwargs, specs)[1]
    elif _is_plain(weight, stride, padding, groups):
        gradients = _product_backward(ctx, tangent, x, weight, wanted)
    else:
        return None
    return (*gradients, _bias_gradient(ctx, tangent) if wanted[2] else None)


def _is_ours(ctx: Context, window: Sequence[Any], values: Sequence[Any], shape: tuple[Any, ...]) -> bool:
    """Return whether all sizes are known, and all values of one type that matrix units multiply. `shape`: of the
    result."""
    if ctx.device.type != "cuda" or not all(isinstance(v, Lowered) and len(v.shape) == 4 for v in values):
        return False
    sizes = [n for of in (shape, *(v.shape for v in values),
                          *(a if isinstance(a, (tuple, list)) else (a,) for a in window)) for n in of]
    known = all(type(n) is int for n in sizes) and all(prod(v.shape) for v in values) and 0 not in shape
    alike = known and all(v.dtype is values[0].dtype for v in values)
    return alike and on_matrix_units(values[0].dtype, *channels_of(*values[-2:]))


def _is_plain(weight: Lowered, stride: Pair, padding: Pair, groups: int) -> bool:
    """Return whether a convolution is a plain product, with the same precision."""
    plain = groups == 1 and tuple(weight.shape[2:]) == ONE == stride and padding == NONE
    return plain and (weight.dtype is not torch.float32 or in_tf32(PRODUCTS))


def _rows(x: Stored) -> Stored:
    """Return a channels-last image as a matrix of (pixels, channels)."""
    channels = x.shape[1]
    return Stored(x.buffer, (prod(x.shape) // channels, channels), (channels, 1), x.offset, x.dtype)


def _turned(x: Stored) -> Stored:
    return Stored(x.buffer, (x.shape[1], x.shape[0]), (x.stride[1], x.stride[0]), x.offset, x.dtype)


def _matrix(ctx: Context, weight: Lowered) -> Stored:
    """Return the weight as a matrix of (results, channels)."""
    w = ctx.realise(weight)
    return Stored(w.buffer, w.shape[:2], w.stride[:2], w.offset, w.dtype)


def _call(ctx: Context, left: Stored, right: Stored, out: Stored) -> None:
    """out = left right, by the library."""
    refs = tuple(ctx.ref(v) for v in (left, right, out))
    reads, writes = frozenset((left.buffer, right.buffer)), frozenset((out.buffer,))
    ctx.items.append(Call(aten.mm.default, refs[:2], {}, (refs[2].name,), (), reads, writes, ctx.origin))


def _product(ctx: Context, image: Lowered, weight: Lowered, shape: tuple[int, ...]) -> Stored:
    x = ctx.realise(image, channels_last(image.shape))
    out = ctx.storage(shape, channels_last(shape), x.dtype)
    _call(ctx, _rows(x), _turned(_matrix(ctx, weight)), _rows(out))
    return out


def _product_backward(
    ctx: Context, tangent: Lowered, image: Lowered, weight: Lowered, wanted: Sequence[bool]
) -> tuple[Stored | None, Stored | None]:
    g = ctx.realise(tangent, channels_last(tangent.shape))
    of_image = of_weight = None
    if wanted[0]:
        of_image = ctx.storage(image.shape, channels_last(image.shape), g.dtype)
        _call(ctx, _rows(g), _matrix(ctx, weight), _rows(of_image))
    if wanted[1]:
        x = ctx.realise(image, channels_last(image.shape))
        of_weight = ctx.storage(weight.shape, row_major(weight.shape), g.dtype)
        _call(ctx, _turned(_rows(g)), _rows(x), _matrix(ctx, of_weight))
    return of_image, of_weight


def _bias_gradient(ctx: Context, tangent: Lowered) -> Stored:
    g = ctx.realise(tangent, channels_last(tangent.shape))
    out = ctx.storage((g.shape[1],), (1,), g.dtype)
    index, axes = ctx.axes(g.shape)
    inner, after = Builder(), Builder()
    total = inner.reduce("sum", (g.element(inner, index),), torch.float32)
    after.store(out.buffer, as_expr(index[1]), total)
    kept = tuple(a for a in axes if a.symbol is index[1])
    gone = tuple(a for a in axes if a.symbol is not index[1])
    ctx.items.append(Compute(kept, gone, tuple(inner.ops), tuple(after.ops), ctx.origin))
    return out
