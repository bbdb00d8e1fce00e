"""Tensors made from nothing: constants, ranges, and masks by position."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.prims.builder import Builder, Value
from framesmith.prims.promotion import FLOAT, category, coerce
from framesmith.prims.registry import decomposes

aten = torch.ops.aten


def constant(b: Builder, value: Any) -> Value:
    """A tensor of the recorded result's shape and dtype, one value everywhere."""
    return b.full(b.out.shape, coerce(value, b.out.dtype), b.out.dtype, b.out.device)


@decomposes(aten.full.default)
def full(b: Builder, size: Any, fill_value: Any, **options: Any) -> Any:
    return constant(b, fill_value)


@decomposes(aten.full_like.default, aten.new_full.default)
def full_like(b: Builder, x: Value, *args: Any, **options: Any) -> Any:
    return constant(b, options.get("fill_value", args[-1] if args else 0))


@decomposes(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
@decomposes(aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.empty_strided.default)
@decomposes(aten.new_empty_strided.default)
def zeros(b: Builder, *args: Any, **options: Any) -> Any:
    return constant(b, 0)


@decomposes(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(b: Builder, *args: Any, **options: Any) -> Any:
    return constant(b, 1)


@decomposes(aten.scalar_tensor.default)
def scalar_tensor(b: Builder, value: Any, **options: Any) -> Any:
    return constant(b, value)


# -- ranges -----------------------------------------------------------------------------------------------------------


def _arange(b: Builder, start: Any, step: Any) -> Value:
    kind = torch.float64 if category(b.out.dtype) == FLOAT else torch.int64
    start, step = coerce(start, kind), coerce(step, kind)
    return b.iota(b.out.shape[0], start, step, b.out.dtype, b.out.device)


@decomposes(aten.arange.default)
def arange(b: Builder, end: Any, **options: Any) -> Any:
    return _arange(b, 0, 1)


@decomposes(aten.arange.start)
def arange_start(b: Builder, start: Any, end: Any, **options: Any) -> Any:
    return _arange(b, start, 1)


@decomposes(aten.arange.start_step)
def arange_step(b: Builder, start: Any, end: Any, step: Any = 1, **options: Any) -> Any:
    return _arange(b, start, step)


@decomposes(aten.linspace.default)
def linspace(b: Builder, start: Any, end: Any, steps: int, **options: Any) -> Any:
    if category(b.out.dtype) != FLOAT or type(steps) is not int or steps < 2 or not _known(start, end):
        return NotImplemented
    # both halves count from their own end, so that both ends are exact
    step = (float(end) - float(start)) / (steps - 1)
    dtype = b.out.dtype
    place = b.iota(steps, 0, 1, torch.int64, b.out.device)
    rising = b.iota(steps, float(start), step, dtype, b.out.device)
    falling = b.iota(steps, float(end) - step * (steps - 1), step, dtype, b.out.device)
    return b.where(place < steps // 2, rising, falling)


def _known(*numbers: Any) -> bool:
    return all(isinstance(n, int | float) for n in numbers)


@decomposes(aten.eye.default, aten.eye.m)
def eye(b: Builder, *args: Any, **options: Any) -> Any:
    rows, columns = places(b, b.out.shape, 0, b.out.device), places(b, b.out.shape, 1, b.out.device)
    return b.expand(b.convert(b.eq(rows, columns), b.out.dtype), b.out.shape)


def places(b: Builder, shape: tuple[Any, ...], dim: int, device: torch.device) -> Value:
    """The coordinate along one dim, int64, shaped to broadcast against `shape`."""
    return b.along(b.iota(shape[dim], 0, 1, torch.int64, device), dim, len(shape))


# -- masks by position ------------------------------------------------------------------------------------------------


def _below(b: Builder, x: Value, diagonal: int) -> Value:
    rows, columns = places(b, x.shape, x.ndim - 2, x.device), places(b, x.shape, x.ndim - 1, x.device)
    return b.le(columns, rows if diagonal == 0 else rows + diagonal)


@decomposes(aten.tril.default)
def tril(b: Builder, x: Value, diagonal: int = 0) -> Value:
    return b.where(_below(b, x, diagonal), x, coerce(0, x.dtype))


@decomposes(aten.triu.default)
def triu(b: Builder, x: Value, diagonal: int = 0) -> Value:
    return b.where(_below(b, x, diagonal - 1), coerce(0, x.dtype), x)


@decomposes(aten.diag_embed.default)
def diag_embed(b: Builder, x: Value, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Value:
    shape = b.out.shape
    rank = len(shape)
    dim1, dim2 = dim1 % rank, dim2 % rank
    rest = [dim for dim in range(rank) if dim not in (dim1, dim2)]
    rows, columns = places(b, shape, dim1, x.device), places(b, shape, dim2, x.device)
    # the element at (row, column) is x[.., row + min(offset, 0)]: x is laid along the rows, padded to their length
    low = max(-offset, 0)
    size = x.shape[-1]
    along = b.pad(x, (*[(0, 0)] * (x.ndim - 1), (low, shape[dim1] - size - low)), coerce(0, x.dtype))
    order = (*rest, dim1)
    apart = b.permute(along, tuple([order.index(dim) for dim in sorted(order)]))
    apart = b.unsqueeze(apart, dim2)
    return b.where(b.eq(columns, rows if offset == 0 else rows + offset), apart, coerce(0, x.dtype))
