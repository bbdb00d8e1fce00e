"""Shapes, strides and index tuples. Sizes are ints where known and `Expr` where symbolic; equal symbolic sizes are the
same object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from framesmith.prims.core import numel as numel
from framesmith.symbolic.expr import Expr, as_expr, simplify_int
from framesmith.symbolic.layout import contiguous_strides as row_major
from framesmith.symbolic.layout import strides_in_order as strides_in_order

Size = Any


def strides_of(value: Any) -> tuple[Size, ...]:
    """Return the strides of a node's metadata, a fake tensor or a `Spec`."""
    return tuple(value.stride() if callable(value.stride) else value.stride)


def is_empty(shape: Sequence[Size]) -> bool:
    """Return whether a tensor is known to have no elements."""
    return any(type(s) is int and s == 0 for s in shape)


def same_layout(shape: Sequence[Size], a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Return whether two strides address alike (dims of size 1 and empty tensors do not count)."""
    return is_empty(shape) or all(s == 1 or x == y for s, x, y in zip(shape, a, b, strict=True))


def flat(index: Sequence[Any], stride: Sequence[Size], offset: Size = 0) -> Expr:
    """offset + sum of index * stride."""
    total = as_expr(offset)
    for i, s in zip(index, stride, strict=True):
        if type(i) is int and i == 0:
            continue
        total = total + as_expr(i) * s
    return total


def split_flat(position: Any, shape: Sequence[Size]) -> list[Any]:
    """Return the index tuple of row-major position `position` in `shape`."""
    index: list[Any] = []
    rest = as_expr(position)
    for size in reversed(shape[1:]):
        if size == 1:
            index.append(0)
            continue
        index.append(simplify_int(rest % size))
        rest = rest // size
    if shape:
        index.append(0 if shape[0] == 1 else simplify_int(rest))
    return list(reversed(index))


def groups(old: Sequence[Size], new: Sequence[Size]) -> list[tuple[range, range]] | None:
    """Pairs of runs of dims of two shapes with equal products, as short as they can be; None when they cannot be
    matched."""
    out: list[tuple[range, range]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        start_i, start_j = i, j
        a: Size = 1
        b: Size = 1
        if i < len(old):
            a, i = old[i], i + 1
        if j < len(new):
            b, j = new[j], j + 1
        while not _same(a, b):
            if j < len(new) and _smaller(b, a):
                b, j = simplify_int(new[j] * b), j + 1
            elif i < len(old) and _smaller(a, b):
                a, i = simplify_int(old[i] * a), i + 1
            elif j < len(new) and type(a) is not int:
                b, j = simplify_int(new[j] * b), j + 1
            elif i < len(old):
                a, i = simplify_int(old[i] * a), i + 1
            elif j < len(new):
                b, j = simplify_int(new[j] * b), j + 1
            else:
                return None
        out.append((range(start_i, i), range(start_j, j)))
    return out


def _same(a: Size, b: Size) -> bool:
    return a is b or (type(a) is int and type(b) is int and a == b)


def _smaller(a: Size, b: Size) -> bool:
    """Return whether a < b is known, or b is a multiple that a may still reach."""
    if type(a) is int and type(b) is int:
        return a < b
    if type(a) is int:
        return a == 1 or as_expr(b) % a is as_expr(0)
    return False


def reshape_index(index: Sequence[Any], new: Sequence[Size], old: Sequence[Size]) -> list[Any]:
    """Return the index in shape `old` of the element at `index` of its reshape `new`."""
    pairs = groups(old, new)
    if pairs is None:
        return split_flat(flat(index, row_major(new)), old)
    out: list[Any] = []
    for olds, news in pairs:
        old_part, new_part = [old[d] for d in olds], [new[d] for d in news]
        if len(new_part) == 1 and len(old_part) == 1:
            out.append(index[news[0]])
            continue
        if not old_part:
            continue
        position = flat([index[d] for d in news], row_major(new_part))
        out += split_flat(position, old_part)
    return out


def reshape_strides(old: Sequence[Size], stride: Sequence[Size], new: Sequence[Size]) -> tuple[Size, ...] | None:
    """Strides of the reshape as a view, or None when elements would have to move."""
    if is_empty(new):
        return row_major(new)
    kept = [(s, t) for s, t in zip(old, stride, strict=True) if s != 1]
    kept_shape = [s for s, _ in kept]
    pairs = groups(kept_shape, new)
    if pairs is None:
        return None
    out: list[Size] = [0] * len(new)
    for olds, news in pairs:
        run = [kept[d] for d in olds]
        for (_, outer), (size, inner) in zip(run, run[1:]):
            if not _same(outer, simplify_int(as_expr(inner) * size)):
                return None
        step: Size = run[-1][1] if run else 1
        for d in reversed(news):
            out[d] = step
            step = simplify_int(new[d] * step)
    return tuple(out)


def memory_order(shape: Sequence[Size], stride: Sequence[Size]) -> tuple[int, ...]:
    """Dims from the largest stride to the smallest; ties and size-1 dims keep their logical order."""

    def key(dim: int) -> tuple[int, int]:
        step = stride[dim]
        return (-(step if type(step) is int else _magnitude(step)), dim)

    order = sorted((d for d in range(len(shape)) if shape[d] != 1), key=key)
    for dim in range(len(shape)):
        if shape[dim] == 1:
            order.insert(min(dim, len(order)), dim)
    return tuple(order)


def _magnitude(step: Expr) -> int:
    """Return an estimate of a symbolic stride for ordering: more factors, larger."""
    return 1 << (20 * sum(1 for _ in step.text.split("*")))
