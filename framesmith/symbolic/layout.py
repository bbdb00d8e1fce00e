"""The memory layouts that sizes and strides describe, as relations between integer expressions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from framesmith.symbolic.expr import FALSE, Expr, Int, Rel, and_, eq, ge, le, lt, max_, ne, or_

Hint = Callable[[Expr], int]
Predicate = Callable[[Sequence[Expr], Sequence[Expr], Hint], Rel]


def decide_layout(truth: Any) -> bool:
    """Return the truth of a comparison of sizes or strides that asks for a layout: see `ShapeEnv.decide_layout`."""
    return truth if type(truth) is bool else truth.node.guard_size_oblivious("", 0)  # type: ignore[no-any-return]


def expected(truth: Any) -> bool:
    """Return the truth of a comparison of sizes without which the program raises: see `ShapeEnv.expect`."""
    return truth if type(truth) is bool else truth.node.expect_true("", 0)  # type: ignore[no-any-return]


def strides_in_order(sizes: Sequence[Any], order: Sequence[int]) -> tuple[Any, ...]:
    """Dense strides over ints, `Expr` or `torch.SymInt`, where `order` lists the dimensions from the outermost to the
    innermost in memory. One of size 0 counts as 1, as in eager."""
    strides: list[Any] = [1] * len(sizes)
    step: Any = 1
    for dim in reversed(order):
        strides[dim] = step
        size = sizes[dim]
        if type(size) is not int or size > 1:
            step = step * size
    return tuple(strides)


def contiguous_strides(sizes: Sequence[Any]) -> tuple[Any, ...]:
    """Row-major strides."""
    return strides_in_order(sizes, range(len(sizes)))


def is_dense(sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Return whether the elements fill one block of memory, each at a place of its own, in some order of the
    dimensions. Sizes and strides are ints, `Expr` or `torch.SymInt`; an empty tensor is dense."""
    dims = [(n, s) for n, s in zip(sizes, strides, strict=True) if decide_layout(n != 1)]
    return any(type(n) is int and n == 0 for n, _ in dims) or layout_holds(_fill_memory, dims)


def layout_holds(rule: Callable[[list[tuple[Any, Any]]], bool], dims: list[tuple[Any, Any]]) -> bool:
    """Return the answer of a rule about sizes with their strides. If it is False, but True of the present sizes if some
    that `decide_layout` takes to be larger are 1, the environment records these: see `ShapeEnv.layout_assumptions`."""
    if rule(dims):
        return True
    small = {n.node.expr: n.node.env for n, _ in dims
             if type(n) is torch.SymInt and n.node.env.may_be_one(n.node.expr)}

    def holds_if_one(sizes: Collection[Expr]) -> bool:
        return rule([(_present(n), _present(s)) for n, s in dims if type(n) is int or n.node.expr not in sizes])

    for decisive in [e for e in small if holds_if_one([e])] or (list(small) if small and holds_if_one(small) else []):
        small[decisive].layout_assumptions.append(ge(decisive, 2))
    return False


def _present(n: Any) -> int:
    return n if type(n) is int else n.node.hint  # type: ignore[no-any-return]


def _fill_memory(left: list[tuple[Any, Any]]) -> bool:
    left, step = list(left), 1
    while left:
        at = next((i for i in reversed(range(len(left))) if decide_layout(left[i][1] == step)), None)
        if at is None:
            return False
        step = step * left.pop(at)[0]
    return True


def _dense_in(order: Sequence[int], sizes: Sequence[Expr], strides: Sequence[Expr]) -> Rel:
    """Return whether strides are those of a dense tensor whose dimensions, from the outermost, are `order`."""
    empty = or_(*(eq(size, 0) for size in sizes))
    expected: Expr = Int(1)
    parts = []
    for dim in reversed(order):
        parts.append(or_(eq(sizes[dim], 1), eq(strides[dim], expected)))
        expected = expected * sizes[dim]
    return or_(empty, and_(*parts))


def is_contiguous(sizes: Sequence[Expr], strides: Sequence[Expr], hint: Hint) -> Rel:
    """Dense and row-major."""
    return _dense_in(range(len(sizes)), sizes, strides)


def _channels_last_contiguous(rank: int) -> Predicate:
    order = (0, *range(2, rank), 1)

    def rule(sizes: Sequence[Expr], strides: Sequence[Expr], hint: Hint) -> Rel:
        return _dense_in(order, sizes, strides) if len(sizes) == rank else FALSE

    return rule


def _channels_last_strides(rank: int) -> Predicate:
    """Strides grow from the channels over the innermost spatial dimension to the batch, and are not those of a
    broadcast."""
    order = (1, *range(rank - 1, 1, -1), 0)

    def rule(sizes: Sequence[Expr], strides: Sequence[Expr], hint: Hint) -> Rel:
        if len(sizes) != rank:
            return FALSE
        least: Expr = Int(0)
        parts = [ne(strides[1], 0)]
        for dim in order:
            parts += [ne(sizes[dim], 0), le(least, strides[dim])]
            if dim == 0:  # N111: with one channel-like dimension the tensor is row-major instead
                parts.append(ne(least, strides[1]))
            least = strides[dim] * max_(sizes[dim], 1)
        return and_(*parts)

    return rule


def is_non_overlapping_and_dense(sizes: Sequence[Expr], strides: Sequence[Expr], hint: Hint) -> Rel:
    """Dense in the order of dimensions that the strides have for the present inputs."""
    if len(sizes) == 1:
        return or_(lt(sizes[0], 2), eq(strides[0], 1))
    order = sorted(range(len(sizes)), key=lambda d: (hint(sizes[d]) < 2, hint(strides[d])), reverse=True)
    return _dense_in(order, sizes, strides)


PREDICATES: dict[str, Predicate] = {
    "is_contiguous": is_contiguous,
    "is_channels_last_contiguous_2d": _channels_last_contiguous(4),
    "is_channels_last_contiguous_3d": _channels_last_contiguous(5),
    "is_channels_last_strides_2d": _channels_last_strides(4),
    "is_channels_last_strides_3d": _channels_last_strides(5),
    "is_non_overlapping_and_dense": is_non_overlapping_and_dense,
}
