"""Orders of elements."""

from __future__ import annotations

from functools import partial
from typing import Any

import onnx_ir as ir
import torch

from framesmith.onnx.emitter import Emitter, Value, dtype_of, rank
from framesmith.onnx.table import aten, row

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
