"""Operators that only move elements. Rules take shapes from the recorded results."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.prims.builder import Builder, Value
from framesmith.prims.core import Size, contiguous_strides, size_of
from framesmith.prims.registry import decomposes, decomposes_named
from framesmith.symbolic.expr import as_expr, max_

aten = torch.ops.aten


@decomposes(aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default)
@decomposes(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten._reshape_alias.default)
@decomposes_named("_reshape_copy", "view_copy", "unsqueeze_copy", "squeeze_copy", "squeeze_copy.dim",
                  "squeeze_copy.dims")
def reshape(b: Builder, x: Value, *args: Any, **options: Any) -> Value:
    return b.reshape(x, b.out.shape)


@decomposes(aten.expand.default)
@decomposes_named("expand_copy")
def expand(b: Builder, x: Value, *args: Any, **options: Any) -> Value:
    return b.expand(x, b.out.shape)


@decomposes(aten.permute.default)
@decomposes_named("permute_copy")
def permute(b: Builder, x: Value, dims: Any) -> Value:
    return b.permute(x, tuple([dim % x.ndim for dim in dims]))


@decomposes(aten.transpose.int)
@decomposes_named("transpose_copy.int")
def transpose(b: Builder, x: Value, dim0: int, dim1: int) -> Value:
    return b.transpose(x, dim0 % x.ndim, dim1 % x.ndim) if x.ndim else x


@decomposes(aten.t.default)
@decomposes_named("t_copy")
def t(b: Builder, x: Value) -> Value:
    return b.permute(x, tuple(reversed(range(x.ndim))))


# -- slices -----------------------------------------------------------------------------------------------------------


def bounded(index: Any, size: Size) -> Size:
    """Return a slice bound counted from the front and clamped to the dim."""
    if type(index) is int and type(size) is int:
        return min(max(index + size if index < 0 else index, 0), size)
    return size_of(max_(as_expr(size) + index, 0)) if _is_negative(index) else index


def _is_negative(index: Any) -> bool:
    return index is not None and (high := as_expr(index).hi) is not None and high < 0


def slice_bounds(size: Size, start: Any, end: Any, length: Size, step: int) -> tuple[Size, Size]:
    """Return normalised start and stop; `length` is the recorded number of elements, which decides where a symbolic
    size does not."""
    low = 0 if start is None else bounded(start, size)
    if _is_negative(start) and step == 1 and end in (None, torch.iinfo(torch.int64).max):
        low = size_of(size - length)
    if type(size) is int and type(low) is int and (end is None or type(end) is int):
        return low, max(low, size if end is None else bounded(end, size))
    return low, size_of(length + low if step == 1 else (length - 1) * step + 1 + low)


@decomposes(aten.slice.Tensor)
@decomposes_named("slice_copy.Tensor")
def slice_(b: Builder, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    dim %= x.ndim
    low, high = slice_bounds(x.shape[dim], start, end, b.out.shape[dim], step)
    return b.slice(x, dim, low, high, step)


@decomposes_named("narrow_copy")
def narrow(b: Builder, x: Value, dim: int, start: Any, length: Any) -> Value:
    dim %= x.ndim
    low = bounded(start, x.shape[dim])
    return b.slice(x, dim, low, size_of(length + low), 1)


@decomposes(aten.select.int)
@decomposes_named("select_copy.int")
def select(b: Builder, x: Value, dim: int, index: Any) -> Value:
    dim %= x.ndim
    if type(index) is int and index < 0:
        index = size_of(x.shape[dim] + index)
    return b.select(x, dim, index)


def _pieces(b: Builder, x: Value, dim: int) -> tuple[Value, ...]:
    """Consecutive slices of the recorded results' sizes."""
    dim %= x.ndim
    at: Any = 0
    parts = []
    for spec in b.out:
        end = size_of(spec.shape[dim] + at)
        parts.append(b.slice(x, dim, at, end, 1))
        at = end
    return tuple(parts)


@decomposes(aten.split_with_sizes.default)
@decomposes_named("split_copy.Tensor", "split_with_sizes_copy")
def split(b: Builder, x: Value, sizes: Any = None, dim: int = 0, **options: Any) -> tuple[Value, ...]:
    return _pieces(b, x, dim)


@decomposes_named("unbind_copy.int")
def unbind(b: Builder, x: Value, dim: int = 0) -> tuple[Value, ...]:
    dim %= x.ndim
    return tuple([b.select(x, dim, index) for index in range(len(b.out))])


@decomposes(aten.diagonal.default)
@decomposes_named("diagonal_copy")
def diagonal(b: Builder, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    return b.diagonal(x, offset, dim1 % x.ndim, dim2 % x.ndim)


@decomposes(aten.unfold.default)
@decomposes_named("unfold_copy")
def unfold(b: Builder, x: Value, dimension: int, size: int, step: int) -> Any:
    if not x.ndim:
        return b.reshape(x, b.out.shape)
    return b.unfold(x, dimension % x.ndim, size, step)


def row_major(b: Builder, x: Value, strides: tuple[Any, ...], offset: Any) -> Value | None:
    """Return `x` permuted so that its elements in row-major order are in eager's memory order; None if no permutation
    does that."""
    if offset != 0 or any(type(stride) is not int for stride in strides):
        return None
    order = tuple(sorted(range(x.ndim), key=lambda dim: (-strides[dim], dim)))
    y = b.permute(x, order)
    dense = contiguous_strides(y.shape)
    fits = all(size == 1 or stride == strides[dim] for size, stride, dim in zip(y.shape, dense, order))
    return y if fits else None


@decomposes(aten.as_strided.default)
@decomposes_named("as_strided_copy")
def as_strided(b: Builder, x: Value, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    recorded = b.source.args[0].meta["val"]  # type: ignore[union-attr]
    base = recorded.storage_offset()
    y = row_major(b, x, tuple(recorded.stride()), 0)
    if y is None or (storage_offset is None and base != 0) or type(base) is not int or base != 0:
        return NotImplemented
    return b.as_strided(y, tuple(size), tuple(stride), storage_offset or 0)


# -- order and repetition ---------------------------------------------------------------------------------------------


@decomposes(aten.flip.default)
def flip(b: Builder, x: Value, dims: Any) -> Value:
    return b.flip(x, tuple(sorted({dim % x.ndim for dim in dims})) if x.ndim else ())


@decomposes(aten.rot90.default)
def rot90(b: Builder, x: Value, k: int = 1, dims: Any = (0, 1)) -> Value:
    first, second = (dim % x.ndim for dim in dims)
    k %= 4
    if k == 2:
        return b.flip(x, tuple(sorted((first, second))))
    if k == 1:
        return b.transpose(b.flip(x, (second,)), first, second)
    return b.flip(b.transpose(x, first, second), (second,)) if k == 3 else x


@decomposes(aten.roll.default)
def roll(b: Builder, x: Value, shifts: Any, dims: Any = ()) -> Any:
    shifts = shifts if isinstance(shifts, (tuple, list)) else (shifts,)
    dims = dims if isinstance(dims, (tuple, list)) else (dims,)
    if not dims:
        flat = b.reshape(x, (x.spec.numel,))
        return b.reshape(_roll(b, flat, shifts, (0,)), x.shape)
    return _roll(b, x, shifts, [dim % x.ndim for dim in dims])


def _roll(b: Builder, x: Value, shifts: Any, dims: Any) -> Value:
    total: dict[int, Any] = {}
    for shift, dim in zip(shifts, dims):
        total[dim] = total.get(dim, 0) + shift
    if 0 in x.shape:
        return x
    kept = sorted(total)
    return b.roll(x, tuple([size_of(total[dim] % x.shape[dim]) for dim in kept]), tuple(kept))


@decomposes(aten.repeat.default)
def repeat(b: Builder, x: Value, repeats: Any) -> Value:
    lead = len(repeats) - x.ndim
    sizes = (1,) * lead + x.shape
    apart = tuple([item for size in sizes for item in (1, size)])
    wide = tuple([item for count, size in zip(repeats, sizes) for item in (count, size)])
    return b.reshape(b.expand(b.reshape(x, apart), wide), b.out.shape)


# -- joins ------------------------------------------------------------------------------------------------------------


@decomposes(aten.cat.default)
def cat(b: Builder, tensors: Any, dim: int = 0) -> Any:
    # a legacy of eager: 1-d tensors of size 0 can be joined with anything
    kept = [x for x in tensors if x.shape != (0,)] or list(tensors[:1])
    dim %= kept[0].ndim
    kept = [x for x in kept if not (type(x.shape[dim]) is int and x.shape[dim] == 0)] or kept[:1]
    parts = tuple([b.convert(x, b.out.dtype) for x in kept])
    return b.cat(parts, dim) if len(parts) > 1 else parts[0]


@decomposes(aten.stack.default)
def stack(b: Builder, tensors: Any, dim: int = 0) -> Value:
    dim %= tensors[0].ndim + 1
    return b.cat(tuple([b.unsqueeze(b.convert(x, b.out.dtype), dim) for x in tensors]), dim)
