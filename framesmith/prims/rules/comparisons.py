"""Comparisons, logic and choice."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.prims.builder import Builder, Value
from framesmith.prims.core import table
from framesmith.prims.promotion import BOOL, FLOAT, category
from framesmith.prims.registry import decomposes, decomposes_named

aten = torch.ops.aten


def truth(b: Builder, x: Any) -> Any:
    """Return a tensor or number as bool: whether it is nonzero."""
    return b.convert(x, torch.bool) if type(x) is Value else bool(x)


def _compare(name: str) -> None:
    prim = table[name]

    def rule(b: Builder, x: Any, y: Any) -> Any:
        return b.emit(prim, tuple(b.promote(x, y)))

    decomposes(getattr(aten, name).Tensor, getattr(aten, name).Scalar)(rule)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _compare(_name)


def _logical(name: str, prim: str) -> None:
    row = table[prim]

    def rule(b: Builder, x: Value, y: Value) -> Value:
        return b.emit(row, tuple([truth(b, one) for one in b.promote(x, y)]))

    decomposes_named(name)(rule)


_logical("logical_and", "bitwise_and")
_logical("logical_or", "bitwise_or")
_logical("logical_xor", "bitwise_xor")


@decomposes(aten.logical_not.default)
def logical_not(b: Builder, x: Value) -> Value:
    return b.bitwise_not(truth(b, x))


def _test(name: str) -> None:
    prim = table[name]

    def rule(b: Builder, x: Value) -> Value:
        if category(x.dtype) != FLOAT:
            return b.full(x.shape, False, torch.bool, x.device)
        return b.emit(prim, (x,))

    decomposes_named(name)(rule)


_test("isnan")
_test("isinf")


@decomposes(aten.signbit.default)
def signbit(b: Builder, x: Value) -> Value:
    if category(x.dtype) == FLOAT:
        return b.signbit(x)
    return b.full(x.shape, False, torch.bool, x.device) if x.dtype is torch.bool else x < 0


@decomposes(aten.isposinf.default)
def isposinf(b: Builder, x: Value) -> Any:
    return b.eq(x, float("inf")) if category(x.dtype) == FLOAT else b.full(x.shape, False, torch.bool, x.device)


@decomposes(aten.isneginf.default)
def isneginf(b: Builder, x: Value) -> Any:
    return b.eq(x, float("-inf")) if category(x.dtype) == FLOAT else b.full(x.shape, False, torch.bool, x.device)


@decomposes(aten.heaviside.default)
def heaviside(b: Builder, x: Value, values: Value) -> Any:
    if category(x.dtype) == BOOL:
        return NotImplemented
    zero, one = b.cast(0, x.dtype), b.cast(1, x.dtype)
    step = b.where(x > zero, b.tensor(one, x), b.tensor(zero, x))
    return b.where(b.eq(x, zero), values, step)


# -- choice -----------------------------------------------------------------------------------------------------------


@decomposes(aten.where.self)
def where(b: Builder, condition: Value, x: Value, y: Value) -> Value:
    return b.where(truth(b, condition), *b.promote(x, y))


@decomposes(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(b: Builder, x: Value, mask: Value, value: Any) -> Any:
    if mask.dtype is not torch.bool:
        return NotImplemented
    return b.where(mask, b.cast(value, x.dtype), x)


@decomposes(aten.threshold.default)
def threshold(b: Builder, x: Value, threshold: Any, value: Any) -> Value:
    return b.where(x <= b.cast(threshold, x.dtype), b.cast(value, x.dtype), x)


@decomposes(aten.fill.Scalar, aten.fill.Tensor)
def fill(b: Builder, x: Value, value: Any) -> Value:
    if type(value) is Value:
        return b.expand(b.convert(value, x.dtype), x.shape)
    return b.full(x.shape, b.cast(value, x.dtype), x.dtype, x.device)


@decomposes(aten.zero.default)
def zero(b: Builder, x: Value) -> Value:
    return b.full(x.shape, b.cast(0, x.dtype), x.dtype, x.device)


@decomposes(aten.copy.default)
def copy(b: Builder, x: Value, src: Value, non_blocking: bool = False) -> Any:
    if src.device != x.device:
        return NotImplemented
    return b.expand(b.convert(src, x.dtype), x.shape)


# -- types ------------------------------------------------------------------------------------------------------------


@decomposes(aten._to_copy.default)
def to_copy(b: Builder, x: Value, *, dtype: Any = None, device: Any = None, **options: Any) -> Any:
    if b.out.device != x.device:
        return NotImplemented
    return b.convert(x, b.out.dtype)


@decomposes(aten.clone.default, aten.alias_copy.default, aten.detach_copy.default)
def clone(b: Builder, x: Value, **options: Any) -> Value:
    return x


@decomposes(aten.alias.default, aten.detach.default)
def alias(b: Builder, x: Value) -> Value:
    return x


@decomposes(aten.view.dtype)
def view_dtype(b: Builder, x: Value, dtype: torch.dtype) -> Any:
    return (b.bitcast(x, dtype) if dtype.itemsize == x.dtype.itemsize
            and torch.bool not in (dtype, x.dtype) else NotImplemented)
