"""Reductions over dims, and scans."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from framesmith.prims.builder import Builder, Value
from framesmith.prims.core import Size, table
from framesmith.prims.promotion import BOOL, FLOAT, category, floating
from framesmith.prims.registry import decomposes, decomposes_named
from framesmith.prims.rules.comparisons import truth

aten = torch.ops.aten


def dims_of(x: Value, dim: Any) -> tuple[int, ...]:
    """Return the dims to reduce: sorted, non-negative; all of them for None or an empty list."""
    if dim is None:
        return tuple(range(x.ndim))
    if isinstance(dim, int):
        return (dim % x.ndim,) if x.ndim else ()
    return tuple(sorted({one % x.ndim for one in dim})) if dim and x.ndim else tuple(range(x.ndim))


def count_of(x: Value, dims: tuple[int, ...]) -> Size:
    """Return the number of elements of each result."""
    total: Any = 1
    for dim in dims:
        total = x.shape[dim] * total
    return total


def _flat(b: Builder, x: Value) -> Value:
    return b.reshape(x, (x.spec.numel,))


def _kept_flat(b: Builder, out: Value, x: Value, keepdim: bool) -> Value:
    """Return the result of reducing everything, with x's rank if the dims are kept."""
    return b.reshape(out, (1,) * x.ndim if keepdim else ())


# -- sums -------------------------------------------------------------------------------------------------------------


def _sum_dtype(x: Value, dtype: Any) -> torch.dtype:
    return dtype or (x.dtype if category(x.dtype) >= FLOAT else torch.int64)


def _total(b: Builder, x: Value, dim: Any, keepdim: bool, dtype: Any, numbers: str = "sum",
           truths: str = "any") -> Value:
    """Return a sum (or product) in `dtype`; one of bools is a reduction of bools."""
    x = b.convert(x, _sum_dtype(x, dtype))
    if numbers == "sum" and not x.ndim and category(x.dtype) == FLOAT:
        return x + 0.0  # sums begin with zero: that of -0.0 is 0.0
    return b.emit(table[truths if x.dtype is torch.bool else numbers],  # type: ignore[no-any-return]
                  (x, dims_of(x, dim), keepdim))


@decomposes(aten.sum.default)
def sum_all(b: Builder, x: Value, *, dtype: Any = None) -> Value:
    return _total(b, x, None, False, dtype)


@decomposes(aten.sum.dim_IntList)
def sum_(b: Builder, x: Value, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return _total(b, x, dim, keepdim, dtype)


@decomposes(aten.nansum.default)
def nansum(b: Builder, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    if category(x.dtype) == FLOAT:
        x = b.where(b.isnan(x), 0.0, x)
    return sum_(b, x, dim, keepdim, dtype=dtype)


@decomposes(aten.mean.default)
def mean_all(b: Builder, x: Value, *, dtype: Any = None) -> Any:
    return mean(b, x, None, False, dtype=dtype)


@decomposes(aten.mean.dim)
def mean(b: Builder, x: Value, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    out = dtype or x.dtype
    dims = dims_of(x, dim)
    if category(out) != FLOAT:
        return NotImplemented
    total = _total(b, b.wide(b.convert(x, out)), dims, keepdim, None)
    return b.convert(divided(b, total, count_of(x, dims)), out)


def divided(b: Builder, x: Value, count: Size) -> Value:
    """x over a number of elements, which may be symbolic."""
    return b.over(x, float(count) if type(count) is int else count)


@decomposes(aten.prod.default)
def prod_all(b: Builder, x: Value, *, dtype: Any = None) -> Value:
    return _total(b, x, None, False, dtype, "prod", "all")


@decomposes(aten.prod.dim_int)
def prod(b: Builder, x: Value, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return _total(b, x, dim, keepdim, dtype, "prod", "all")


@decomposes(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(b: Builder, x: Value, dim: Any = None) -> Value:
    return b.sum(b.convert(truth(b, x), torch.int64), dims_of(x, dim), False)


@decomposes(aten.trace.default)
def trace(b: Builder, x: Value) -> Any:
    return sum_all(b, b.diagonal(x, 0, 0, 1))


# -- extremes ---------------------------------------------------------------------------------------------------------


def _extreme(name: str, prim: str, arg: str) -> None:
    row, place = table[prim], table[arg]

    def values(b: Builder, x: Value, dim: Any = (), keepdim: bool = False) -> Value:
        return b.emit(row, (x, dims_of(x, dim), keepdim))

    def everything(b: Builder, x: Value) -> Value:
        return b.emit(row, (x, dims_of(x, None), False))

    def with_places(b: Builder, x: Value, dim: int, keepdim: bool = False) -> Any:
        if not x.ndim:
            return x, b.full((), 0, torch.int64, x.device)
        dims = dims_of(x, dim)
        ordered = b.convert(x, torch.uint8) if x.dtype is torch.bool else x
        return b.emit(row, (x, dims, keepdim)), b.emit(place, (ordered, dims[0], keepdim))

    decomposes_named(prim)(values)
    decomposes_named(name)(everything)
    decomposes_named(f"{name}.dim")(with_places)


_extreme("max", "amax", "argmax")
_extreme("min", "amin", "argmin")


def _arg(name: str) -> None:
    row = table[name]

    def rule(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if not x.ndim:
            return b.full((), 0, torch.int64, x.device)
        if dim is None:
            return _kept_flat(b, b.emit(row, (_flat(b, x), 0, False)), x, keepdim)
        return b.emit(row, (x, dim % x.ndim, keepdim))

    decomposes_named(name)(rule)


_arg("argmax")
_arg("argmin")


@decomposes(aten.aminmax.default)
def aminmax(b: Builder, x: Value, *, dim: int | None = None, keepdim: bool = False) -> tuple[Value, Value]:
    dims = dims_of(x, dim)
    return b.amin(x, dims, keepdim), b.amax(x, dims, keepdim)


def _truth_of(name: str) -> Callable[..., Value]:
    row = table[name]

    def rule(b: Builder, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
        dims = () if isinstance(dim, tuple) and not dim else dims_of(x, dim)  # unlike other ops': no dims are none
        out = b.emit(row, (truth(b, x), dims, keepdim))
        return b.convert(out, torch.uint8) if x.dtype is torch.uint8 else out

    decomposes_named(name, f"{name}.dim", f"{name}.dims")(rule)
    return rule


_truth_of("any")
_truth_of("all")


# -- moments ----------------------------------------------------------------------------------------------------------


def moments(b: Builder, x: Value, dims: tuple[int, ...], keepdim: bool, correction: Any) -> tuple[Value, Value]:
    """Return variance and mean in the compute dtype of x."""
    return b.var_mean(b.wide(x), dims, keepdim, correction)


def _is_real(x: Value) -> bool:
    return category(x.dtype) == FLOAT


@decomposes(aten.var.correction, aten.var.dim)
def var(b: Builder, x: Value, dim: Any = None, unbiased: Any = True, keepdim: bool = False, *,
        correction: Any = None) -> Any:
    correction = correction if correction is not None else int(unbiased)
    return b.convert(moments(b, x, dims_of(x, dim), keepdim, correction)[0], x.dtype) if _is_real(x) else NotImplemented


@decomposes(aten.std.correction, aten.std.dim)
def std(b: Builder, x: Value, dim: Any = None, unbiased: Any = True, keepdim: bool = False, *,
        correction: Any = None) -> Any:
    correction = correction if correction is not None else int(unbiased)
    return b.convert(b.sqrt(moments(b, _wide(b, x), dims_of(x, dim), keepdim, correction)[0]),
                     x.dtype) if _is_real(x) else NotImplemented


def _wide(b: Builder, x: Value) -> Value:
    """Cast a variance for its root as eager does on a CPU: to float64, whose range covers the squares of the others."""
    return b.convert(x, torch.float64) if x.dtype in (torch.float32, torch.bfloat16) and x.device.type == "cpu" else x


@decomposes(aten.var_mean.correction)
def var_mean(b: Builder, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    if not _is_real(x):
        return NotImplemented
    variance, average = moments(b, x, dims_of(x, dim), keepdim, 1 if correction is None else correction)
    return b.convert(variance, x.dtype), b.convert(average, x.dtype)


@decomposes(aten.std_mean.correction)
def std_mean(b: Builder, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    if not _is_real(x):
        return NotImplemented
    variance, average = moments(b, _wide(b, x), dims_of(x, dim), keepdim, 1 if correction is None else correction)
    return b.convert(b.sqrt(variance), x.dtype), b.convert(average, x.dtype)


# -- norms of vectors -------------------------------------------------------------------------------------------------


def _p_norm(b: Builder, x: Value, order: float, dims: tuple[int, ...], keepdim: bool) -> Value:
    if order == 1 or order and all(x.shape[d] == 1 for d in dims):  # no powers of single numbers, which may overflow
        return b.sum(b.abs(x), dims, keepdim)
    if order == 2:
        return b.sqrt(b.sum(x * x, dims, keepdim))
    if order == 0:
        return b.sum(b.convert(b.ne(x, 0.0), x.dtype), dims, keepdim)
    if order == math.inf:
        return b.amax(b.abs(x), dims, keepdim)
    if order == -math.inf:
        return b.amin(b.abs(x), dims, keepdim)
    return b.pow(b.sum(b.pow(b.abs(x), order), dims, keepdim), 1.0 / order)


@decomposes(aten.linalg_vector_norm.default)
def vector_norm(b: Builder, x: Value, ord: Any = 2, dim: Any = None, keepdim: bool = False, *,
                dtype: Any = None) -> Any:
    x = b.convert(x, dtype or x.dtype)
    if not _is_real(x):
        return NotImplemented
    return b.convert(_p_norm(b, b.wide(x), float(ord), dims_of(x, dim), keepdim), x.dtype)


@decomposes(aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dim_dtype, aten.norm.Scalar, aten.norm.ScalarOpt_dtype)
def norm(b: Builder, x: Value, p: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return vector_norm(b, x, 2 if p is None else p, dim, keepdim, dtype=dtype)


@decomposes(aten.dist.default)
def dist(b: Builder, x: Value, y: Value, p: Any = 2) -> Any:
    return vector_norm(b, x - y, p) if x.dtype is y.dtype else NotImplemented


# -- scans ------------------------------------------------------------------------------------------------------------


def _scan(name: str) -> None:
    row = table[name]

    def rule(b: Builder, x: Value, dim: int, *, dtype: Any = None) -> Any:
        wanted = dtype or (torch.int64 if category(x.dtype) in (BOOL, BOOL + 1) else x.dtype)
        x = b.convert(x, wanted)
        return b.emit(row, (x, dim % x.ndim)) if x.ndim else x

    decomposes_named(name)(rule)


_scan("cumsum")
_scan("cumprod")


@decomposes(aten.logsumexp.default)
def logsumexp(b: Builder, x: Value, dim: Any, keepdim: bool = False) -> Value:
    x = b.convert(x, floating(x.dtype))
    wide, dims = b.wide(x), dims_of(x, dim)
    if 0 in x.shape:
        return b.convert(b.log(b.sum(b.exp(wide), dims, keepdim)), x.dtype)
    peak = b.amax(wide, dims, True)
    peak = b.where(b.isinf(peak), 0.0, peak)
    total = b.log(b.sum(b.exp(wide - peak), dims, keepdim))
    return b.convert(total + b.reshape(peak, total.shape), x.dtype)
