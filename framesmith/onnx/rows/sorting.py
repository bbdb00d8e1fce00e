"""Orders of elements."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import onnx_ir as ir
import torch

from framesmith.onnx.emitter import Emitter, NoForm, Value, count, dtype_of, rank, shape_of, spec_of
from framesmith.onnx.table import aten, row
from framesmith.prims.core import Spec

sorting = partial(row, "sorting")


def _single(m: Emitter, x: Value) -> Any:
    return x, m.constant(0, torch.int64)


def _ordered(m: Emitter, x: Value, k: Any, dim: int, largest: bool) -> Any:
    """Return the first of an order along a dimension, and their places; the lower of equal ones comes first."""
    is_bool = dtype_of(x) is torch.bool
    values, places = m("TopK", m.cast(x, torch.int32) if is_bool else x, m.ints([k]), axis=dim % rank(x),
                       largest=int(largest), outputs=2)
    return m("Cast", values, to=ir.DataType.BOOL) if is_bool else values, places


@sorting(aten.topk.default)
def _topk(m: Emitter, x: Value, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:  # noqa: A002
    if not rank(x):
        return _single(m, x)
    return _ordered(m, x, k, dim, largest)


@sorting(aten.sort.default)
def _sort(m: Emitter, x: Value, dim: int = -1, descending: bool = False) -> Any:
    if not rank(x):
        return _single(m, x)
    return _ordered(m, x, m.size(x, dim), dim, descending)


@sorting(aten.sort.stable)
def _stable_sort(m: Emitter, x: Value, *, stable: bool = False, dim: int = -1, descending: bool = False) -> Any:
    return _sort(m, x, dim, descending)


@sorting(aten.kthvalue.default)
def _kth(m: Emitter, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if not rank(x):
        return _single(m, x)
    least = _ordered(m, x, k, dim, False)
    last = [m.slice(part, dim % rank(x), -1, k) for part in least]
    return tuple(last if keepdim else [m.squeeze(part, dim % rank(x)) for part in last])


@sorting(aten.median.dim)
def _median(m: Emitter, x: Value, dim: int, keepdim: bool = False) -> Any:
    """Return the lower of the middle elements; where one is NaN, NaN."""
    if not rank(x):
        return _single(m, x)
    dim = dim % rank(x)
    values, places = _ordered(m, x, m.size(x, dim), dim, False)
    middle = m("Div", m("Sub", m.ints([m.size(x, dim)]), m.ints([1])), m.ints([2]))
    values, places = (m("Gather", v, middle, axis=dim) for v in (values, places))
    if dtype_of(x).is_floating_point:
        missing = m.cast(m("IsNaN", x), torch.int32)
        some = m("Cast", m("ReduceMax", missing, m.ints([dim]), keepdims=1), to=ir.DataType.BOOL)
        values = m("Where", some, m.constant(math.nan, dtype_of(x)), values)
        places = m("Where", some, m("ArgMax", missing, axis=dim, keepdims=1), places)
    return _kept(m, dim, keepdim, values, places)


@sorting(aten.nanmedian.dim)
def _median_of_numbers(m: Emitter, x: Value, dim: int, keepdim: bool = False) -> Any:
    """Return the lower of the middle elements that are not NaN."""
    if not rank(x) or not dtype_of(x).is_floating_point:
        return _median(m, x, dim, keepdim)
    dim, dtype, missing = dim % rank(x), dtype_of(x), m("IsNaN", x)
    numbers = m("ReduceSum", m.cast(m("Not", missing), torch.int64), m.ints([dim]), keepdims=1)
    middle = m("Div", m("Max", m("Sub", numbers, m.constant(1, torch.int64)), m.constant(0, torch.int64)),
               m.constant(2, torch.int64))
    last = m.describe(m("Where", missing, m.constant(math.inf, dtype), x), spec_of(x))
    ordered = _ordered(m, last, m.size(x, dim), dim, False)
    values, places = (m("GatherElements", v, middle, axis=dim) for v in ordered)
    none = m("Equal", numbers, m.constant(0, torch.int64))
    return _kept(m, dim, keepdim, m("Where", none, m.constant(math.nan, dtype), values), places)


def _kept(m: Emitter, dim: int, keepdim: bool, *values: Value) -> tuple[Value, ...]:
    return values if keepdim else tuple([m.squeeze(v, dim) for v in values])


def _over_all(of_one: Any) -> Any:
    """Return a row of all elements by that of a dimension."""
    def emit(m: Emitter, x: Value) -> Value:
        if 0 in shape_of(x):
            raise NoForm("the median of no elements")
        flat = m.describe(m("Reshape", x, m.ints([-1])), Spec((count(shape_of(x)),), dtype_of(x), spec_of(x).device))
        return of_one(m, flat, 0)[0]  # type: ignore[no-any-return]

    return emit


sorting(aten.median.default)(_over_all(_median))
sorting(aten.nanmedian.default)(_over_all(_median_of_numbers))
