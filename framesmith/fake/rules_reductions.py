"""Metadata rows of reductions, scans, sorting and normalisation over dimensions. Results are contiguous, as in
eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framesmith.fake.infer import DOUBTED, RULES, rule
from framesmith.fake.layout import is_dense
from framesmith.fake.tensor import FakeTensor, contiguous_strides, new_fake

aten = torch.ops.aten


def reduced_shape(x: FakeTensor, dims: Any, keepdim: bool) -> tuple | None:
    """The shape without the dimensions `dims` (all of them for None or []), None if one is out of range or named twice,
    or eager's sets of dimensions are too small."""
    shape = x.shape
    count = len(shape)
    if count > 64:
        return None
    if dims is None or not isinstance(dims, int) and len(dims) == 0:
        return (1,) * count if keepdim else ()
    if isinstance(dims, int):
        dims = (dims,)
    if count == 0:
        return () if len(dims) == 1 and dims[0] in (0, -1) else None
    gone = set()
    for d in dims:
        if not -count <= d < count or d % count in gone:
            return None
        gone.add(d % count)
    if keepdim:
        return tuple([1 if i in gone else n for i, n in enumerate(shape)])
    return tuple([n for i, n in enumerate(shape) if i not in gone])


def _result(x: FakeTensor, shape: tuple | None, dtype: torch.dtype) -> Any:
    return DOUBTED if shape is None else new_fake(shape, contiguous_strides(shape), dtype, x.device)


def _sum_type(x: FakeTensor, dtype: torch.dtype | None) -> torch.dtype:
    if dtype is not None:
        return dtype
    return x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64


@rule(aten.sum.dim_IntList, aten.nansum.default)
def sum_(x: FakeTensor, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _result(x, reduced_shape(x, dims, keepdim), _sum_type(x, dtype))


@rule(aten.sum.default, aten.prod.default)
def sum_all(x: FakeTensor, *, dtype: Any = None) -> Any:
    return _result(x, (), _sum_type(x, dtype))


@rule(aten.prod.dim_int)
def prod(x: FakeTensor, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _result(x, reduced_shape(x, dim, keepdim), _sum_type(x, dtype))


@rule(aten.mean.dim)
def mean(x: FakeTensor, dims: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    dtype = dtype or x.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        return NotImplemented
    return _result(x, reduced_shape(x, dims, keepdim), dtype)


@rule(aten.mean.default)
def mean_all(x: FakeTensor, *, dtype: Any = None) -> Any:
    return mean(x, None, False, dtype=dtype)


@rule(aten.amax.default, aten.amin.default)
def amax(x: FakeTensor, dims: Any = (), keepdim: bool = False) -> Any:
    return _result(x, reduced_shape(x, dims, keepdim), x.dtype)


@rule(aten.max.default, aten.min.default)
def max_all(x: FakeTensor) -> Any:
    return _result(x, (), x.dtype)


@rule(aten.max.dim, aten.min.dim)
def max_dim(x: FakeTensor, dim: int, keepdim: bool = False) -> Any:
    shape = reduced_shape(x, dim, keepdim)
    if shape is None:
        return DOUBTED
    return _result(x, shape, x.dtype), _result(x, shape, torch.int64)


@rule(aten.argmax.default, aten.argmin.default)
def argmax(x: FakeTensor, dim: Any = None, keepdim: bool = False) -> Any:
    return _result(x, reduced_shape(x, dim, keepdim), torch.int64)


@rule(aten.any.default, aten.all.default)
def any_all(x: FakeTensor) -> Any:
    return NotImplemented if x.dtype is torch.uint8 else _result(x, (), torch.bool)


@rule(aten.any.dim, aten.all.dim, aten.any.dims, aten.all.dims)
def any_dim(x: FakeTensor, dim: Any = None, keepdim: bool = False) -> Any:
    return NotImplemented if x.dtype is torch.uint8 else _result(x, reduced_shape(x, dim, keepdim), torch.bool)


def _spread(shape_of: Callable[..., tuple | None]) -> Callable[..., Any]:
    def row(x: FakeTensor, *args: Any, **kwargs: Any) -> Any:
        if not x.dtype.is_floating_point:
            return NotImplemented
        return _result(x, shape_of(x, *args, **kwargs), x.dtype)

    return row


RULES[aten.var.dim] = RULES[aten.std.dim] = _spread(
    lambda x, dims=None, unbiased=True, keepdim=False: reduced_shape(x, dims, keepdim)
)
RULES[aten.var.correction] = RULES[aten.std.correction] = _spread(
    lambda x, dims=None, *, correction=None, keepdim=False: reduced_shape(x, dims, keepdim)
)


@rule(aten.var_mean.correction)
def var_mean(x: FakeTensor, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    shape = reduced_shape(x, dims, keepdim)
    if shape is None or not x.dtype.is_floating_point:
        return DOUBTED
    return _result(x, shape, x.dtype), _result(x, shape, x.dtype)


@rule(aten.linalg_vector_norm.default)
def vector_norm(x: FakeTensor, ord: Any = 2, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    dtype = dtype or x.dtype
    return _result(x, reduced_shape(x, dims, keepdim), dtype) if dtype.is_floating_point else NotImplemented


@rule(aten.logsumexp.default)
def logsumexp(x: FakeTensor, dims: Any, keepdim: bool = False) -> Any:
    if not isinstance(dims, int) and not len(dims):
        return DOUBTED
    return _result(x, reduced_shape(x, dims, keepdim), x.dtype) if x.dtype.is_floating_point else NotImplemented


@rule(aten.cumsum.default, aten.cumprod.default)
def cumsum(x: FakeTensor, dim: int, *, dtype: Any = None) -> Any:
    fits = -max(x.dim(), 1) <= dim < max(x.dim(), 1)
    return _result(x, tuple(x.shape) if fits else None, _sum_type(x, dtype))


@rule(aten.softmax.int, aten.log_softmax.int)
def softmax(x: FakeTensor, dim: int, dtype: Any = None) -> Any:
    dtype = dtype or x.dtype
    fits = -max(x.dim(), 1) <= dim < max(x.dim(), 1)
    return _result(x, tuple(x.shape) if fits else None, dtype) if dtype.is_floating_point else NotImplemented


@rule(aten._softmax.default, aten._log_softmax.default)
def inner_softmax(x: FakeTensor, dim: int, half_to_float: bool) -> Any:
    return NotImplemented if half_to_float else softmax(x, dim)


@rule(aten.topk.default)
def topk(x: FakeTensor, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    count = x.dim()
    if count == 0 or not -count <= dim < count or k < 0 or k > x.shape[dim]:
        return DOUBTED
    shape = list(x.shape)
    shape[dim] = k
    return _result(x, tuple(shape), x.dtype), _result(x, tuple(shape), torch.int64)


@rule(aten.sort.default)
def sort(x: FakeTensor, dim: int = -1, descending: bool = False) -> Any:
    if not is_dense(x.shape, x.stride()) or not -max(x.dim(), 1) <= dim < max(x.dim(), 1):
        return NotImplemented
    shape = tuple(x.shape)
    return new_fake(shape, x.stride(), x.dtype, x.device), new_fake(shape, x.stride(), torch.int64, x.device)
