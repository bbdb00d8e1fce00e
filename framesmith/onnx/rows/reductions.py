"""Sums, extremes and the like over dimensions, and scans along one."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import onnx_ir as ir
import torch

from framesmith.onnx.emitter import Emitter, NoForm, Value, dtype_of, rank, shape_of
from framesmith.onnx.table import aten, row

reduction = partial(row, "reductions")


def _dims(x: Value, dims: Any) -> list[int]:
    """Return the dimensions that are meant: all, where none is named."""
    found = [dims] if isinstance(dims, int) else list(dims or range(rank(x)))
    return sorted({d % max(rank(x), 1) for d in found}) if rank(x) else []


def _reduce(m: Emitter, op: str, x: Value, dims: Any, keepdim: bool) -> Value:
    return _over(m, op, x, _dims(x, dims), keepdim)


def _over(m: Emitter, op: str, x: Value, dims: list[int], keepdim: bool) -> Value:
    return m(op, x, m.ints(dims), keepdims=int(keepdim)) if dims else x


def _arithmetic(op: str) -> Any:
    """Return a reduction in the dtype of the result."""
    def emit(m: Emitter, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
        return _reduce(m, op, m.cast(x, m.out.dtype), dim, keepdim)

    return emit


reduction(aten.sum.dim_IntList, aten.sum.default)(_arithmetic("ReduceSum"))


@reduction(aten.mean.dim, aten.mean.default)
def _mean(m: Emitter, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return _average(m, m.cast(x, m.out.dtype), _dims(x, dim), keepdim)


def _average(m: Emitter, x: Value, dims: list[int], keepdim: bool) -> Value:
    made = _over(m, "ReduceMean", x, dims, keepdim)
    if any(shape_of(x)[d] == 0 for d in dims):  # of nothing it is 0 in engines, and NaN in eager
        return m("Mul", made, m.constant(math.nan, dtype_of(x)))
    return made


reduction(aten.prod.dim_int, aten.prod.default)(_arithmetic("ReduceProd"))
reduction(aten.logsumexp.default)(_arithmetic("ReduceLogSumExp"))


def _extreme(op: str) -> Any:
    def emit(m: Emitter, x: Value, dim: Any = (), keepdim: bool = False) -> Value:
        if not _dims(x, dim):
            return x
        if dtype_of(x) is torch.bool:
            return m("Cast", _reduce(m, op, m.cast(x, torch.int32), dim, keepdim), to=x.dtype)
        return _reduce(m, op, x, dim, keepdim)

    return emit


_amax, _amin = _extreme("ReduceMax"), _extreme("ReduceMin")
reduction(aten.amax.default, aten.max.default)(_amax)
reduction(aten.amin.default, aten.min.default)(_amin)


@reduction(aten.any.default, aten.any.dim, aten.any.dims)
def _any(m: Emitter, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return _of_truths(m, "ReduceMax", x, dim, keepdim)


@reduction(aten.all.default, aten.all.dim, aten.all.dims)
def _all(m: Emitter, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return _of_truths(m, "ReduceMin", x, dim, keepdim)


def _of_truths(m: Emitter, op: str, x: Value, dim: Any, keepdim: bool) -> Value:
    found = _over(m, op, m.cast(m.cast(x, torch.bool), torch.int32), _dims(x, dim), keepdim)
    return m.cast(m("Cast", found, to=ir.DataType.BOOL), m.out.dtype)  # of uint8 it is uint8


def _place(op: str) -> Any:
    """Return an emitter of the extreme's position, the first of equal ones."""
    def emit(m: Emitter, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if not rank(x):
            return m.constant(0, torch.int64)
        if dim is not None:
            return m(op, x, axis=dim % rank(x), keepdims=int(keepdim))
        flat = m(op, m("Reshape", x, m.ints([-1])), axis=0, keepdims=0)
        return m("Reshape", flat, m.ints([1] * rank(x))) if keepdim else flat

    return emit


reduction(aten.argmax.default)(_place("ArgMax"))
reduction(aten.argmin.default)(_place("ArgMin"))


def _extreme_and_place(value: Any, place: Any) -> Any:
    def emit(m: Emitter, x: Value, dim: int, keepdim: bool = False) -> Any:
        return value(m, x, dim, keepdim), place(m, x if dtype_of(x) is not torch.bool else m.cast(x, torch.int32),
                                                dim, keepdim)

    return emit


reduction(aten.max.dim)(_extreme_and_place(_amax, _place("ArgMax")))
reduction(aten.min.dim)(_extreme_and_place(_amin, _place("ArgMin")))


@reduction(aten.var.correction)
def _variance(m: Emitter, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Value:
    dims, dtype = _dims(x, dim), m.out.dtype
    if not dims:
        return m("Sub", x, x) if correction == 0 else m("Mul", m("Sub", x, x), m.constant(math.nan, dtype))
    mean = m("ReduceMean", x, m.ints(dims), keepdims=1)
    off = m("Sub", x, mean)
    total = m("ReduceSum", m("Mul", off, off), m.ints(dims), keepdims=int(keepdim))
    n = m.constant(1, torch.float64)
    for d in dims:
        n = m("Mul", n, m.number(m.size(x, d), torch.float64))
    left = m("Max", m("Sub", n, m.constant(1 if correction is None else correction, torch.float64)),
             m.constant(0, torch.float64))
    return m("Div", total, m("Cast", left, to=x.dtype))


@reduction(aten.var.dim)
def _variance_over(m: Emitter, x: Value, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Value:
    return _variance(m, x, dim, correction=int(unbiased), keepdim=keepdim)  # type: ignore[no-any-return]


@reduction(aten.var_mean.correction)
def _variance_and_mean(m: Emitter, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    both, m.out = m.out, m.out[0]
    mean = _average(m, x, _dims(x, dim), keepdim)
    made = _variance(m, x, dim, correction=correction, keepdim=keepdim)
    m.out = both
    return made, mean


@reduction(aten.std.correction)
def _deviation(m: Emitter, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Value:
    return m("Sqrt", _variance(m, x, dim, correction=correction, keepdim=keepdim))


@reduction(aten.std_mean.correction)
def _deviation_and_mean(m: Emitter, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    variance, mean = _variance_and_mean(m, x, dim, correction=correction, keepdim=keepdim)
    return m("Sqrt", variance), mean


@reduction(aten.linalg_vector_norm.default)
def _vector_norm(m: Emitter, x: Value, order: float = 2, dim: Any = None, keepdim: bool = False, *,
                 dtype: Any = None) -> Value:
    x, dims = m.cast(x, m.out.dtype), _dims(x, dim)
    if order in (1, 2) and dims:
        return _reduce(m, f"ReduceL{int(order)}", x, dims, keepdim)
    size = m("Abs", x)
    if order in (math.inf, -math.inf):
        return _over(m, "ReduceMax" if order > 0 else "ReduceMin", size, dims, keepdim)
    if order == 0:
        counted = m("Where", m("Equal", x, m.constant(0, m.out.dtype)), m.constant(0, m.out.dtype),
                    m.constant(1, m.out.dtype))
        return _over(m, "ReduceSum", counted, dims, keepdim)
    total = _over(m, "ReduceSum", m("Pow", size, m.constant(order, m.out.dtype)), dims, keepdim)
    return m("Pow", total, m.constant(1 / order, m.out.dtype))


def _softmax_of(op: str) -> Any:
    def emit(m: Emitter, x: Value, dim: int, dtype: Any = None) -> Value:
        x = m.cast(x, m.out.dtype)
        if rank(x):
            return m(op, x, axis=dim % rank(x))
        return m.squeeze(m(op, m.unsqueeze(x, 0), axis=0), 0)

    return emit


reduction(aten._softmax.default, aten.softmax.int)(_softmax_of("Softmax"))
reduction(aten._log_softmax.default, aten.log_softmax.int)(_softmax_of("LogSoftmax"))


@reduction(aten.histc.default)
def _histogram(m: Emitter, x: Value, bins: int = 100, low: Any = 0, high: Any = 0) -> Value:
    if low == high:
        raise NoForm("a histogram between the extremes of the data")
    wide = m.cast(m("Reshape", x, m.ints([-1])), torch.float64)
    start, end, last = (m.constant(float(v), torch.float64) for v in (low, high, bins - 1))
    step = m.constant((high - low) / bins, torch.float64)
    place = m("Min", m("Floor", m("Div", m("Sub", wide, start), step)), last)  # the end belongs to the last
    inside = m("And", m("GreaterOrEqual", wide, start), m("LessOrEqual", wide, end))
    same = m("Equal", m.unsqueeze(place, 1), m.constant([float(k) for k in range(bins)], torch.float64))
    counted = m.cast(m("And", same, m.unsqueeze(inside, 1)), m.out.dtype)
    return m("ReduceSum", counted, m.ints([0]), keepdims=0)


@reduction(aten.cumsum.default)
def _cumsum(m: Emitter, x: Value, dim: int, *, dtype: Any = None) -> Value:
    x = m.cast(x, m.out.dtype)
    return m("CumSum", x, m.constant(dim % rank(x), torch.int64)) if rank(x) else x
