"""Lowering rows of views: windows remain windows where strides can express the view; closures get a new index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from framesmith.lower.context import Context
from framesmith.lower.geometry import reshape_index, reshape_strides, row_major, same_layout
from framesmith.lower.table import lowers
from framesmith.lower.values import Computed, Joined, Lowered, Stored, cost_of, reads_of
from framesmith.symbolic.expr import as_expr, simplify_int

Reindex = Callable[[Sequence[Any]], Sequence[Any]]


def reindexed(ctx: Context, x: Lowered, shape: tuple[Any, ...], reindex: Reindex) -> Computed:
    """Return a closure of `shape` whose element at `index` is x's at `reindex(index)`."""
    return Computed(shape, x.dtype, lambda b, i: x.element(b, reindex(i)), cost_of(x), reads_of(x))


def window(x: Stored, shape: Sequence[Any], stride: Sequence[Any], offset: Any = None) -> Stored:
    """Another window on x's buffer."""
    at = x.offset if offset is None else simplify_int(offset)
    return Stored(x.buffer, tuple(shape), tuple(simplify_int(s) for s in stride), at, x.dtype)


@lowers("reshape")
def reshape(ctx: Context, spec: Any, x: Lowered, shape: Any) -> Lowered:
    old, new = x.shape, spec.shape
    if old == new:
        return x
    if isinstance(x, Stored):
        stride = reshape_strides(old, x.stride, new)
        if stride is not None:
            return window(x, new, stride)
    return reindexed(ctx, x, new, lambda i: reshape_index(i, new, old))


@lowers("permute")
def permute(ctx: Context, spec: Any, x: Lowered, dims: Sequence[int]) -> Lowered:
    return _permuted(ctx, x, dims)


def _permuted(ctx: Context, x: Lowered, dims: Sequence[int]) -> Lowered:
    shape = tuple([x.shape[d] for d in dims])
    if isinstance(x, Stored):
        return window(x, shape, [x.stride[d] for d in dims])
    place = sorted(range(len(dims)), key=dims.__getitem__)
    moved = reindexed(ctx, x, shape, lambda i: [i[p] for p in place])
    return Joined(moved, [_permuted(ctx, p, dims) for p in x.pieces], place[x.dim]) if isinstance(x, Joined) else moved


@lowers("expand")
def expand(ctx: Context, spec: Any, x: Lowered, shape: Any) -> Lowered:
    if x.shape == spec.shape:
        return x
    lead = len(spec.shape) - len(x.shape)
    fixed = [old == 1 and new != 1 for old, new in zip(x.shape, spec.shape[lead:])]
    if isinstance(x, Stored):
        stride = [0] * lead + [0 if f else s for f, s in zip(fixed, x.stride)]
        return window(x, spec.shape, stride)
    x = ctx.small_operand(x, spec.numel)
    if isinstance(x, Stored):
        return expand(ctx, spec, x, shape)
    return reindexed(ctx, x, spec.shape, lambda i: [0 if f else v for f, v in zip(fixed, i[lead:])])


@lowers("slice")
def slice_(ctx: Context, spec: Any, x: Lowered, dim: int, start: Any, stop: Any, step: int) -> Lowered:
    if x.shape == spec.shape and step == 1:
        return x
    if isinstance(x, Stored):
        stride = list(x.stride)
        offset = as_expr(x.offset) + as_expr(stride[dim]) * start
        stride[dim] = stride[dim] * step
        return window(x, spec.shape, stride, offset)
    return reindexed(ctx, x, spec.shape, lambda i: [*i[:dim], i[dim] * step + start, *i[dim + 1 :]])


@lowers("select")
def select(ctx: Context, spec: Any, x: Lowered, dim: int, index: Any) -> Lowered:
    if isinstance(x, Stored):
        offset = as_expr(x.offset) + as_expr(x.stride[dim]) * index
        return window(x, spec.shape, x.stride[:dim] + x.stride[dim + 1 :], offset)
    return reindexed(ctx, x, spec.shape, lambda i: [*i[:dim], index, *i[dim:]])


@lowers("flip")
def flip(ctx: Context, spec: Any, x: Lowered, dims: Sequence[int]) -> Lowered:
    last = {d: x.shape[d] - 1 for d in dims}
    return reindexed(ctx, x, spec.shape, lambda i: [last[d] - v if d in last else v for d, v in enumerate(i)])


@lowers("roll")
def roll(ctx: Context, spec: Any, x: Lowered, shifts: Any, dims: Any) -> Lowered:
    by = {d: (s, x.shape[d]) for s, d in zip(shifts, dims) if x.shape[d] != 1}

    def reindex(index: Sequence[Any]) -> list[Any]:
        out = list(index)
        for d, (shift, size) in by.items():
            out[d] = (as_expr(index[d]) + (as_expr(size) - shift)) % size
        return out

    return reindexed(ctx, x, spec.shape, reindex)


@lowers("diagonal")
def diagonal(ctx: Context, spec: Any, x: Lowered, offset: int, dim1: int, dim2: int) -> Lowered:
    rows, columns = max(-offset, 0), max(offset, 0)
    rest = [d for d in range(len(x.shape)) if d not in (dim1, dim2)]
    if isinstance(x, Stored):
        stride = [x.stride[d] for d in rest] + [x.stride[dim1] + x.stride[dim2]]
        start = as_expr(x.offset) + as_expr(x.stride[dim1]) * rows + as_expr(x.stride[dim2]) * columns
        return window(x, spec.shape, stride, start)

    def reindex(index: Sequence[Any]) -> list[Any]:
        out: list[Any] = [0] * len(x.shape)
        for d, v in zip(rest, index):
            out[d] = v
        out[dim1], out[dim2] = index[-1] + rows, index[-1] + columns
        return out

    return reindexed(ctx, x, spec.shape, reindex)


@lowers("unfold")
def unfold(ctx: Context, spec: Any, x: Lowered, dim: int, size: int, step: int) -> Lowered:
    if isinstance(x, Stored):
        stride = [*x.stride[:dim], x.stride[dim] * step, *x.stride[dim + 1 :], x.stride[dim]]
        return window(x, spec.shape, stride)
    return reindexed(ctx, x, spec.shape, lambda i: [*i[:dim], i[dim] * step + i[-1], *i[dim + 1 : -1]])


@lowers("as_strided")
def as_strided(ctx: Context, spec: Any, x: Lowered, size: Any, stride: Sequence[Any], offset: Any) -> Lowered:
    base = ctx.realise(x, row_major(x.shape))
    assert same_layout(x.shape, base.stride, row_major(x.shape))
    return window(base, spec.shape, stride, as_expr(base.offset) + offset)
