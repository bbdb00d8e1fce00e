"""The memory layouts that sizes and strides describe, as relations between integer expressions."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from framesmith.symbolic.expr import Expr, ge, prod
from framesmith.symbolic.node import env_of, expr_of, symint


def decide_layout(truth: Any) -> bool:
    """Return the truth of a comparison of sizes or strides that asks for a layout: see `ShapeEnv.decide_layout`."""
    return truth if type(truth) is bool else truth.node.guard_size_oblivious("", 0)  # type: ignore[no-any-return]


def expected(truth: Any) -> bool:
    """Return the truth of a comparison of sizes without which the program raises: see `ShapeEnv.expect`."""
    return truth if type(truth) is bool else truth.node.expect_true("", 0)  # type: ignore[no-any-return]


def strides_in_order(sizes: Sequence[Any], order: Sequence[int]) -> tuple[Any, ...]:
    """Dense strides over ints, `Expr` or `torch.SymInt`, where `order` lists the dimensions from the outermost to the
    innermost in memory. One of size 0 counts as 1, as in eager."""
    env = env_of(*sizes)
    parts = sizes if env is None else [n if type(n) is int else expr_of(n) for n in sizes]
    strides: list[Any] = [1] * len(sizes)
    step: Any = 1
    for dim in reversed(order):
        strides[dim] = step
        size = parts[dim]
        if type(size) is not int or size > 1:
            step = step * size
    return tuple(strides) if env is None else tuple([n if type(n) is int else symint(n, env) for n in strides])


def element_count(sizes: Sequence[Any]) -> Any:
    """Return the product of sizes: ints or `torch.SymInt`, of which only the product is made."""
    env = env_of(*sizes)
    return math.prod(sizes) if env is None else symint(prod(map(expr_of, sizes)), env)


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
