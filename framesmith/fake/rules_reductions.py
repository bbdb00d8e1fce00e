"""Metadata rows of reductions, scans, sorting and normalisation over dimensions. Results are contiguous, as in
eager."""

from __future__ import annotations

import math
from typing import Any

import torch

from framesmith.fake.decomposed import by_decomposition
from framesmith.fake.infer import DOUBTED, RULES, doubted, rule
from framesmith.fake.layout import is_filled, may_be_small, preserved_strides
from framesmith.fake.tensor import FakeTensor, dense, new_fake
from framesmith.prims.registry import overload
from framesmith.symbolic.layout import expected

aten = torch.ops.aten


by_decomposition(
    "sum sum.dim_IntList nansum prod prod.dim_int mean mean.dim amax amin max max.dim min min.dim argmax argmin any "
    "any.dim any.dims all all.dim all.dims var.dim var.correction std.dim std.correction var_mean.correction "
    "linalg_vector_norm logsumexp cumsum cumprod"
)


def _lacks_elements(x: FakeTensor, dim: Any) -> bool:
    """Return whether a reduction over `dim` (by default all dimensions) is of no elements, if a size may be 0."""
    dims = dim if isinstance(dim, (list, tuple)) else () if dim is None else (dim,)
    sizes = [x.shape[d] for d in dims if -x.dim() <= d < x.dim()] if dims else x.shape
    return any(may_be_small(n) and not is_filled(n) for n in sizes)


def _of_elements(func: Any) -> None:
    """Let a row of an operator that eager refuses on empty tensors assert elements if their number is
    data-dependent."""
    row = RULES[func]

    def checked(x: FakeTensor, dim: Any = None, *rest: Any, **named: Any) -> Any:
        if _lacks_elements(x, named.get("dim", dim)):
            return NotImplemented
        return row(x, *(() if dim is None and not rest else (dim, *rest)), **named)

    RULES[func] = checked


def _norm_of_elements(x: FakeTensor, order: Any = 2, dim: Any = None, *_: Any, **__: Any) -> bool:
    """Return whether a norm that eager refuses on no elements is of none."""
    return (order == math.inf or order < 0) and _lacks_elements(x, dim)


doubted(aten.linalg_vector_norm.default, _norm_of_elements)
for _name in ("amax", "amin", "max", "max.dim", "min", "min.dim", "argmax", "argmin"):
    _of_elements(overload(_name))
doubted(aten.logsumexp.default, lambda x, dims, *_: not isinstance(dims, int) and not len(dims))


@rule(aten.histc.default)
def histc(x: FakeTensor, bins: int = 100, *_: Any) -> Any:
    return dense(x, (bins,)) if bins > 0 and x.dtype.is_floating_point else DOUBTED


@rule(aten.softmax.int, aten.log_softmax.int)
def softmax(x: FakeTensor, dim: int, dtype: Any = None) -> Any:
    dtype = dtype or x.dtype
    fits = -max(x.dim(), 1) <= dim < max(x.dim(), 1)
    return NotImplemented if not dtype.is_floating_point else dense(x, tuple(x.shape), dtype) if fits else DOUBTED


@rule(aten._softmax.default, aten._log_softmax.default)
def inner_softmax(x: FakeTensor, dim: int, half_to_float: bool) -> Any:
    return NotImplemented if half_to_float else softmax(x, dim)


@rule(aten.topk.default)
def topk(x: FakeTensor, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    count = x.dim()
    if count == 0 or not -count <= dim < count or not expected(k >= 0) or not expected(k <= x.shape[dim]):
        return DOUBTED
    shape = list(x.shape)
    shape[dim] = k
    return dense(x, tuple(shape)), dense(x, tuple(shape), torch.int64)


@rule(aten.sort.stable)
def stable_sort(x: FakeTensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    return sort(x, dim, descending)


@rule(aten.sort.default)
def sort(x: FakeTensor, dim: int = -1, descending: bool = False) -> Any:
    if not -max(x.dim(), 1) <= dim < max(x.dim(), 1):
        return NotImplemented
    shape, strides = tuple(x.shape), preserved_strides(x)
    return new_fake(shape, strides, x.dtype, x.device), new_fake(shape, strides, torch.int64, x.device)
