"""Reads and writes through index tensors, and writes of slices."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.prims.builder import Builder, Value
from framesmith.prims.elementwise import broadcast_shapes
from framesmith.prims.registry import decomposes, decomposes_named
from framesmith.prims.rules.views import slice_bounds

aten = torch.ops.aten


@decomposes(aten.embedding.default)
def embedding(
    b: Builder, weight: Value, indices: Value, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False
) -> Value:
    return b.embedding(weight, indices)


@decomposes(aten.index_select.default)
def index_select(b: Builder, x: Value, dim: int, index: Value) -> Any:
    if not x.ndim:
        return NotImplemented
    return b.index_select(x, index if index.ndim else b.reshape(index, (1,)), dim % x.ndim)


@decomposes(aten.gather.default)
def gather(b: Builder, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Any:
    if not x.ndim or x.ndim != index.ndim:
        return NotImplemented
    return b.gather(x, index, dim % x.ndim)


@decomposes(aten.take.default)
def take(b: Builder, x: Value, index: Value) -> Value:
    return b.index(b.reshape(x, (x.spec.numel,)), (index,), 0)


# -- advanced indexing ------------------------------------------------------------------------------------------------


def _arranged(b: Builder, x: Value, indices: Any) -> tuple[Value, tuple[Value, ...], int, list[int]] | None:
    """Return x permuted so that the indexed dims are adjacent at `dim`, the index tensors in one shape, and the order
    of the dims.

    As in eager, dims that are not adjacent move to the front. None for masks, whose results have no static shape.
    """
    held = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if not held or any(index.dtype in (torch.bool, torch.uint8) for _, index in held):
        return None
    dims = [dim for dim, _ in held]
    together = dims == list(range(dims[0], dims[0] + len(dims)))
    order = list(range(x.ndim)) if together else dims + [dim for dim in range(x.ndim) if dim not in dims]
    shape: tuple[Any, ...] = ()
    for _, index in held:
        shape = broadcast_shapes(shape, index.shape)
    parts = tuple([b.expand(b.convert(index, torch.int64), shape) for _, index in held])
    return b.permute(x, tuple(order)), parts, dims[0] if together else 0, order


@decomposes(aten.index.Tensor)
@decomposes_named("_unsafe_index.Tensor")
def index(b: Builder, x: Value, indices: Any) -> Any:
    arranged = _arranged(b, x, indices)
    if arranged is None:
        return NotImplemented
    y, parts, dim, _ = arranged
    return b.index(y, parts, dim)


@decomposes(aten.index_put.default)
@decomposes_named("_unsafe_index_put")
def index_put(b: Builder, x: Value, indices: Any, values: Value, accumulate: bool = False) -> Any:
    masks = [index for index in indices if index is not None]
    if len(masks) == 1 and masks[0].dtype is torch.bool and not accumulate:
        return _put_masked(b, x, indices, values)
    arranged = _arranged(b, x, indices)
    if arranged is None or (accumulate and x.dtype is torch.bool):
        return NotImplemented
    y, parts, dim, order = arranged
    out = b.index_put(y, b.convert(values, x.dtype), parts, dim, accumulate)
    return b.permute(out, tuple([order.index(place) for place in range(x.ndim)]))


def _put_masked(b: Builder, x: Value, indices: Any, values: Value) -> Any:
    """Write one value wherever the mask is true."""
    if any(size != 1 for size in values.shape):
        return NotImplemented
    lead = next(place for place, index in enumerate(indices) if index is not None)
    mask = indices[lead]
    behind = x.ndim - lead - mask.ndim
    mask = b.reshape(mask, (*mask.shape, *[1] * behind))
    return b.where(mask, b.reshape(b.convert(values, x.dtype), ()), x)


# -- scatters ---------------------------------------------------------------------------------------------------------


@decomposes(aten.scatter.src, aten.scatter.value)
def scatter(b: Builder, x: Value, dim: int, index: Value, src: Any = None, *, value: Any = None) -> Any:
    if not x.ndim:
        return NotImplemented
    return b.scatter(x, index, b.cast(src if src is not None else value, x.dtype), dim % x.ndim)


@decomposes(aten.scatter_add.default)
def scatter_add(b: Builder, x: Value, dim: int, index: Value, src: Value) -> Any:
    if not x.ndim or x.dtype is torch.bool:
        return NotImplemented
    return b.scatter_reduce(x, index, src, dim % x.ndim, "add")


_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "maximum", "amin": "minimum", "add": "add", "multiply": "mul"}


@decomposes(aten.scatter_reduce.two, aten.scatter.reduce)
def scatter_reduce(b: Builder, x: Value, dim: int, index: Value, src: Value, reduce: str, *,
                   include_self: bool = True) -> Any:
    kind = _REDUCTIONS.get(reduce)
    if not x.ndim or kind is None or not include_self or x.dtype is torch.bool:
        return NotImplemented
    return b.scatter_reduce(x, index, src, dim % x.ndim, kind)


@decomposes(aten.index_add.default)
def index_add(b: Builder, x: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1) -> Any:
    if not x.ndim or x.dtype is torch.bool:
        return NotImplemented
    source = source if alpha == 1 else source * b.cast(alpha, source.dtype)
    return _put_along(b, x, dim, index, source, True)


@decomposes(aten.index_copy.default)
def index_copy(b: Builder, x: Value, dim: int, index: Value, source: Value) -> Any:
    return _put_along(b, x, dim, index, source, False) if x.ndim else NotImplemented


def _put_along(b: Builder, x: Value, dim: int, index: Value, source: Value, accumulate: bool) -> Any:
    if not index.ndim or not source.ndim:
        return NotImplemented
    return b.index_put(x, source, (b.convert(index, torch.int64),), dim % x.ndim, accumulate)


@decomposes(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(b: Builder, x: Value, dim: int, index: Value, value: Any) -> Any:
    if not x.ndim:
        return NotImplemented
    index = b.convert(index if index.ndim else b.reshape(index, (1,)), torch.int64)
    return b.index_put(x, b.cast(value, x.dtype), (index,), dim % x.ndim, False)


# -- writes over a part -----------------------------------------------------------------------------------------------


@decomposes(aten.slice_scatter.default)
def slice_scatter(b: Builder, x: Value, src: Value, dim: int = 0, start: Any = None, end: Any = None,
                  step: int = 1) -> Any:
    dim %= x.ndim
    size = x.shape[dim]
    low, high = slice_bounds(size, start, end, src.shape[dim] if src.ndim == x.ndim else size, step)
    src = b.convert(src, x.dtype)
    if low == 0 and high == size and step == 1:
        return b.expand(src, x.shape)
    shape = (*x.shape[:dim], b.slice(x, dim, low, high, step).shape[dim], *x.shape[dim + 1 :])
    return b.slice_scatter(x, b.expand(src, shape), dim, low, high, step)


@decomposes(aten.select_scatter.default)
def select_scatter(b: Builder, x: Value, src: Value, dim: int, index: Any) -> Value:
    dim %= x.ndim
    place = index + x.shape[dim] if type(index) is int and index < 0 else index
    return b.select_scatter(x, b.convert(src, x.dtype), dim, place)


@decomposes(aten.diagonal_scatter.default)
def diagonal_scatter(b: Builder, x: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    dim1, dim2 = dim1 % x.ndim, dim2 % x.ndim
    rest = [dim for dim in range(x.ndim) if dim not in (dim1, dim2)]
    length = src.shape[-1]
    rows, columns = max(-offset, 0), max(offset, 0)
    along = [b.iota(length, start, 1, torch.int64, x.device) for start in (rows, columns)]
    order = (dim1, dim2, *rest)
    source = b.permute(b.convert(src, x.dtype), (src.ndim - 1, *range(src.ndim - 1)))
    out = b.index_put(b.permute(x, order), source, tuple(along), 0, False)
    return b.permute(out, tuple([order.index(dim) for dim in range(x.ndim)]))
