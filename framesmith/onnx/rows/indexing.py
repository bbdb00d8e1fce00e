"""Reads and writes at places that a tensor names. ONNX, too, counts negative places from the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import onnx_ir as ir
import torch

from framesmith.onnx.emitter import Emitter, NoForm, Value, dtype_of, rank, shape_of, spec_of
from framesmith.onnx.table import aten, row
from framesmith.prims.core import Spec

indexing = partial(row, "indexing")
REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


def _places(m: Emitter, index: Value) -> Value:
    return m.cast(index, torch.int64)


@indexing(aten.embedding.default)
def _embedding(m: Emitter, weight: Value, index: Value, *_: Any) -> Value:
    return m("Gather", weight, _places(m, index), axis=0)


@indexing(aten.index_select.default)
def _index_select(m: Emitter, x: Value, dim: int, index: Value) -> Value:
    places = _places(m, index)
    if not rank(x):
        return m("Reshape", m("Gather", m.unsqueeze(x, 0), places, axis=0), m.ints([]))
    return m("Gather", x, places if rank(index) else m.unsqueeze(places, 0), axis=dim % rank(x))


@indexing(aten.gather.default)
def _gather(m: Emitter, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    if 0 in shape_of(index):
        return m.full(m.sizes(index), 0, m.out.dtype)
    if not rank(x) or not rank(index):
        flat = m("Gather", m("Reshape", x, m.ints([-1])), m("Reshape", _places(m, index), m.ints([-1])), axis=0)
        return m.like(flat, index)
    return m("GatherElements", x, _places(m, index), axis=dim % rank(x))


def _scattered(m: Emitter, x: Value, dim: int, index: Value, source: Value, reduction: str = "none") -> Value:
    if 0 in shape_of(index):
        return x
    if not rank(x) or not rank(index):
        made = m("ScatterElements", *[m("Reshape", v, m.ints([-1])) for v in (x, _places(m, index), source)], axis=0,
                 reduction=reduction)
        return m.like(made, x)
    places = _places(m, index)
    if rank(source) == rank(index) and shape_of(source) != shape_of(index):  # what is beyond the places is not read
        for d in range(rank(index)):
            if shape_of(source)[d] != shape_of(index)[d]:
                source = m.slice(source, d, 0, m.size(index, d))
    return m("ScatterElements", x, places, source, axis=dim % rank(x), reduction=reduction)


@indexing(aten.scatter.src)
def _scatter(m: Emitter, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _scattered(m, x, dim, index, source)


@indexing(aten.scatter.value)
def _scatter_value(m: Emitter, x: Value, dim: int, index: Value, value: Any) -> Value:
    return _scattered(m, x, dim, index, _filled(m, index, value, dtype_of(x)))


def _filled(m: Emitter, like: Value, value: Any, dtype: torch.dtype) -> Value:
    """Equal elements in the shape of another value."""
    made = m("Expand", m.number(value, dtype), m("Shape", like))
    return m.describe(made, Spec(shape_of(like), dtype, spec_of(like).device))


@indexing(aten.scatter_add.default)
def _scatter_add(m: Emitter, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _scattered(m, x, dim, index, source, "add")


@indexing(aten.scatter_reduce.two)
def _scatter_reduce(m: Emitter, x: Value, dim: int, index: Value, source: Value, reduce: str, *,
                    include_self: bool = True) -> Value:
    if dtype_of(x) is torch.bool:
        raise NoForm(f"a scatter with the reduction {reduce}, of bool")
    if reduce == "mean":
        return _scatter_mean(m, x, dim, index, source, include_self)
    if not include_self:  # what is written begins with what leaves the sources as they are
        neutral = _filled(m, index, _neutral(reduce, dtype_of(x)), dtype_of(x))
        x = m.describe(_scattered(m, x, dim, index, neutral), spec_of(x))
    return _scattered(m, x, dim, index, source, REDUCTIONS[reduce])


def _scatter_mean(m: Emitter, x: Value, dim: int, index: Value, source: Value, include_self: bool) -> Value:
    dtype = dtype_of(x)
    total = _scatter_reduce(m, x, dim, index, source, "sum", include_self=include_self)
    zeros = _filled(m, x, int(include_self), dtype)
    number = _scattered(m, zeros, dim, index, _filled(m, index, 1, dtype), "add")
    number = m("Max", number, m.constant(1, dtype))
    if dtype.is_floating_point:
        return m("Div", total, number)
    return m("Div", m("Sub", total, m("Mod", total, number)), number)  # rounded down


def _neutral(reduce: str, dtype: torch.dtype) -> float:
    """Return the neutral element of a reduction."""
    if dtype.is_floating_point:
        least, most = -math.inf, math.inf
    else:
        least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return {"sum": 0, "prod": 1, "amax": least, "amin": most}[reduce]


def _along(m: Emitter, x: Value, dim: int, index: Value, source: Value) -> Value:
    """Whole slices of a value written at places along a dimension."""
    if not rank(x):
        made = _along_first(m, m.unsqueeze(x, 0), index, m("Reshape", source, m.ints([-1])))
        return m("Reshape", made, m.ints([]))
    dim = dim % rank(x)
    swap = list(range(rank(x)))
    swap[0], swap[dim] = dim, 0
    return m.transpose(_along_first(m, m.transpose(x, swap), index, m.transpose(source, swap)), swap)


def _along_first(m: Emitter, x: Value, index: Value, source: Value) -> Value:
    return m("ScatterND", x, m("Reshape", _places(m, index), m.ints([-1, 1])), source)


def _added(m: Emitter, x: Value, dim: int, places: Value, source: Value, dims: int) -> Value:
    """Add slices of a value with `dims` dimensions to others along one. Not by ScatterND: ONNX Runtime's kernel has a
    data race where places are equal."""
    column = [-1 if d == dim else 1 for d in range(dims)]
    wide = m("Expand", m("Reshape", places, m.ints(column)), m("Shape", source))
    return m("ScatterElements", x, wide, source, axis=dim, reduction="add")  # type: ignore[no-any-return]


@indexing(aten.index_add.default)
def _index_add(m: Emitter, x: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1) -> Value:
    if dtype_of(x) is torch.bool:
        raise NoForm("a sum of bools")
    scaled = source if not isinstance(alpha, Value) and alpha == 1 else m("Mul", source, m.number(alpha, m.out.dtype))
    if not rank(x):
        made = _added(m, m.unsqueeze(x, 0), 0, _places(m, index), m("Reshape", scaled, m.ints([-1])), 1)
        return m("Reshape", made, m.ints([]))
    return _added(m, x, dim % rank(x), _places(m, index), scaled, rank(x))


@indexing(aten.index_copy.default)
def _index_copy(m: Emitter, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _along(m, x, dim, index, source)


@indexing(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def _index_fill(m: Emitter, x: Value, dim: int, index: Value, value: Any) -> Value:
    sizes = m.sizes(x)
    if sizes:
        sizes[dim % rank(x)] = m("Size", index)
    filling = m.cast(value, m.out.dtype)
    return _along(m, x, dim, index, m("Expand", filling, m.ints(sizes)))


@indexing(aten.take.default)
def _take(m: Emitter, x: Value, index: Value) -> Value:
    return m("Gather", m("Reshape", x, m.ints([-1])), _places(m, index), axis=0)


@indexing(aten.put.default)
def _put(m: Emitter, x: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    if 0 in shape_of(index):
        return x
    flat = [m("Reshape", v, m.ints([-1])) for v in (x, _places(m, index), source)]
    return m.like(m("ScatterElements", *flat, axis=0, reduction="add" if accumulate else "none"), x)


@indexing(aten.searchsorted.Tensor)
def _searchsorted(m: Emitter, bounds: Value, x: Value, *, out_int32: bool = False, right: bool = False,
                  side: str | None = None, sorter: Value | None = None) -> Value:
    if sorter is not None:
        bounds = m.describe(_gather(m, bounds, -1, sorter), spec_of(bounds))
    if rank(bounds) > 1:  # a row of bounds for each row of numbers
        bounds = m.describe(m.unsqueeze(bounds, -2), Spec((*shape_of(bounds)[:-1], 1, shape_of(bounds)[-1]),
                                                          dtype_of(bounds), spec_of(bounds).device))
    return _bucketize(m, x, bounds, out_int32=out_int32, right=right or side == "right")  # type: ignore[no-any-return]


@indexing(aten.bucketize.Tensor, aten.bucketize.Scalar)
def _bucketize(m: Emitter, x: Any, bounds: Value, *, out_int32: bool = False, right: bool = False) -> Value:
    dtype = m.common(x, bounds)
    before = m("LessOrEqual" if right else "Less", m.cast(bounds, dtype),
               m.unsqueeze(m.cast(x, dtype), -1) if isinstance(x, Value) else m.number(x, dtype))
    return m("ReduceSum", m.cast(before, m.out.dtype), m.ints([-1]), keepdims=0)


@indexing(aten.isin.Tensor_Tensor)
def _isin(m: Emitter, x: Value, among: Value, *, assume_unique: bool = False, invert: bool = False) -> Value:
    dtype = m.common(x, among)
    same = m("Equal", m.unsqueeze(m.cast(x, dtype), -1), m("Reshape", m.cast(among, dtype), m.ints([-1])))
    found = m("ReduceMax", m.cast(same, torch.int32), m.ints([-1]), keepdims=0)
    made = m("Cast", found, to=ir.DataType.BOOL)
    return m("Not", made) if invert else made


# --- several tensors of places
def _coordinates(m: Emitter, x: Value, indices: Sequence[Any]) -> tuple[list[int], Value | None, int]:
    """Return the dimensions that are indexed, one value with all places of an element in its last dimension, and how
    many dimensions the places have. Masks become places."""
    dims, given, at = [], [], 0
    for index in indices:
        if index is not None and dtype_of(index) in (torch.bool, torch.uint8):
            if rank(index) == 0:
                raise NoForm("a mask without dimensions")
            found = m("NonZero", m.cast(index, torch.bool))
            for k in range(rank(index)):
                dims.append(at + k)
                given.append((m.squeeze(m("Gather", found, m.ints([k]), axis=0), 0), 1))
            at += rank(index)
            continue
        if index is not None:
            dims.append(at)
            given.append((_places(m, index), rank(index)))
        at += 1
    if not dims:
        return [], None, 0
    most = max(r for _, r in given)
    if len(given) == 1:
        return dims, m.unsqueeze(given[0][0], -1), most
    shapes = [m("Shape", v) for v, _ in given]
    whole = shapes[0]
    for v, _ in given[1:]:
        whole = m("Shape", m("Expand", m("Expand", given[0][0], whole), m("Shape", v)))
    return dims, m.concat([m.unsqueeze(m("Expand", v, whole), -1) for v, _ in given], -1), most


@indexing(aten.index.Tensor)
def _index(m: Emitter, x: Value, indices: Sequence[Any]) -> Value:
    used = [(d, index) for d, index in enumerate(indices) if index is not None]
    if len(used) == 1 and dtype_of(used[0][1]) not in (torch.bool, torch.uint8):
        return m("Gather", x, _places(m, used[0][1]), axis=used[0][0])
    dims, places, most = _coordinates(m, x, indices)
    if places is None:
        return x
    rest = [d for d in range(rank(x)) if d not in dims]
    made = m("GatherND", m.transpose(x, [*dims, *rest]), places)
    if dims == list(range(dims[0], dims[-1] + 1)) and dims[0]:  # neighbours: the result has their place
        before = len([d for d in rest if d < dims[0]])
        made = m.transpose(made, [*range(most, most + before), *range(most), *range(most + before, most + len(rest))])
    return made


@indexing(aten.index_put.default)
def _index_put(m: Emitter, x: Value, indices: Sequence[Any], values: Value, accumulate: bool = False) -> Value:
    dims, places, most = _coordinates(m, x, indices)
    if 0 in shape_of(x):
        return x
    if places is None:
        made = m("Expand", values, m("Shape", x))
        return m("Add", x, made) if accumulate else made
    rest = [d for d in range(rank(x)) if d not in dims]
    order = [*dims, *rest]
    moved = m.transpose(x, order)
    if dims == list(range(dims[0], dims[-1] + 1)) and dims[0]:
        before = len([d for d in rest if d < dims[0]])
        count = most + len(rest)
        if rank(values) < count:
            values = m("Reshape", values, m("Concat", m.ints([1] * (count - rank(values))), m("Shape", values), axis=0))
        values = m.transpose(values, [*range(before, before + most), *range(before), *range(before + most, count)])
    inner = [m("Shape", moved, start=len(dims))] if rest else []
    values = m("Expand", values, m.concat([m("Shape", places, end=-1), *inner], 0))
    if accumulate:
        flat = m.concat([m.ints([-1]), *inner], 0)
        made = _added(m, m("Reshape", moved, flat), 0, _counted_through(m, moved, places, len(dims)),
                      m("Reshape", values, flat), 1 + len(rest))
        made = m("Reshape", made, m("Shape", moved))
    else:
        made = m("ScatterND", moved, places, values)
    return m.transpose(made, [order.index(d) for d in range(rank(x))])


def _counted_through(m: Emitter, x: Value, places: Value, dims: int) -> Value:
    """Return places [..., dims] in the first dimensions of a value as places in these as one."""
    made = m("Gather", places, m.constant(0, torch.int64), axis=-1)
    for d in range(1, dims):
        size, place = m("Shape", x, start=d, end=d + 1), m("Gather", places, m.constant(d, torch.int64), axis=-1)
        beyond = m("Where", m("Less", place, m.constant(0, torch.int64)), m("Add", place, size), place)
        made = m("Add", m("Mul", made, size), beyond)
    return made


# --- masks
@indexing(aten.nonzero.default)
def _nonzero(m: Emitter, x: Value) -> Value:
    if not rank(x):
        raise NoForm("the places of a tensor without dimensions")
    return m.transpose(m("NonZero", m.cast(x, torch.bool)), [1, 0])


@indexing(aten.masked_scatter.default)
def _masked_scatter(m: Emitter, x: Value, mask: Value, source: Value) -> Value:
    whole = m("Shape", m("Add", *[m("Cast", m("Expand", m.constant(0, torch.int32), m("Shape", v)),
                                   to=ir.DataType.INT32) for v in (x, mask)]))
    mask, x = m("Expand", mask, whole), m("Expand", x, whole)
    places = m.transpose(m("NonZero", mask), [1, 0])
    taken = m("Slice", m("Reshape", source, m.ints([-1])), m.ints([0]), m("Shape", places, start=0, end=1))
    return m("ScatterND", x, places, taken)
