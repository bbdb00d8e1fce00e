"""Other shapes of the same elements, pieces and joins, and tensors that are made of sizes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from onnx_ir.tensor_adapters import from_torch_dtype

from framesmith.onnx.emitter import LAST, Emitter, NoForm, Value, rank, shape_of, spec_of
from framesmith.onnx.table import aten, row
from framesmith.prims.core import contiguous_strides

view = partial(row, "views")


def _at(x: Value, dim: int) -> int:
    return dim % max(rank(x), 1)


# --- shapes
@view(aten.view.default, aten.reshape.default, aten._unsafe_view.default)
def _view(m: Emitter, x: Value, shape: Sequence[Any]) -> Value:
    return m.reshape(x, m.out.shape, [-1 if isinstance(v, int) and v < 0 else v for v in shape])


@view(aten.permute.default)
def _permute(m: Emitter, x: Value, dims: Sequence[int]) -> Value:
    return m.transpose(x, [_at(x, d) for d in dims])


@view(aten.transpose.int)
def _transpose(m: Emitter, x: Value, first: int, second: int) -> Value:
    dims = list(range(rank(x)))
    if dims:
        first, second = _at(x, first), _at(x, second)
        dims[first], dims[second] = second, first
    return m.transpose(x, dims)


@view(aten.t.default)
def _t(m: Emitter, x: Value) -> Value:
    return m.transpose(x, list(reversed(range(rank(x)))))


@view(aten.squeeze.dim, aten.squeeze.dims)
def _squeeze(m: Emitter, x: Value, dims: Any) -> Value:
    found = sorted({_at(x, d) for d in ([dims] if isinstance(dims, int) else dims)})
    found = [d for d in found if rank(x) and shape_of(x)[d] == 1]
    return m.squeeze(x, *found) if found else x


@view(aten.unsqueeze.default)
def _unsqueeze(m: Emitter, x: Value, dim: int) -> Value:
    return m.unsqueeze(x, dim % (rank(x) + 1))


@view(aten.expand.default)
def _expand(m: Emitter, x: Value, sizes: Sequence[Any], *, implicit: bool = False) -> Value:
    if shape_of(x) == tuple(m.out.shape):
        return x
    return m("Expand", x, m.ints([1 if isinstance(n, int) and n == -1 else n for n in sizes]))


@view(aten.copy.default)
def _copy(m: Emitter, x: Value, source: Value, non_blocking: bool = False) -> Value:
    made = m.cast(source, m.out.dtype)
    return made if shape_of(source) == shape_of(x) else m("Expand", made, m.ints(m.sizes(x)))


@view(aten.diagonal.default)
def _diagonal(m: Emitter, x: Value, offset: int = 0, first: int = 0, second: int = 1) -> Value:
    first, second = _at(x, first), _at(x, second)
    moved = m.transpose(x, [*[d for d in range(rank(x)) if d not in (first, second)], first, second])
    length = m.out.shape[-1]
    rows, columns = shape_of(x)[first], shape_of(x)[second]
    if not all(isinstance(n, int) for n in (rows, columns, length)):
        raise NoForm("a diagonal of sizes that vary")
    places = [(k + max(-offset, 0)) * columns + k + max(offset, 0) for k in range(length)]
    flat = m("Reshape", moved, m.ints([*[0] * (rank(x) - 2), rows * columns]), allowzero=None)
    return m("Gather", flat, m.constant(places, torch.int64), axis=-1)


@view(aten.as_strided.default)
def _as_strided(m: Emitter, x: Value, size: Sequence[Any], stride: Sequence[Any], offset: Any = None) -> Value:
    if spec_of(x).stride not in (None, contiguous_strides(shape_of(x))):
        raise NoForm("other strides of a value that is not contiguous")
    if x.producer() is None:
        raise NoForm("an input by places in its memory")
    flat = m("Reshape", x, m.ints([-1]))
    places = m.ints([offset or 0])
    for d, (n, step) in enumerate(zip(size, stride, strict=True)):
        run = m("Range", m.constant(0, torch.int64), m.number(n, torch.int64), m.constant(1, torch.int64))
        run = m("Mul", run, m.number(step, torch.int64))
        places = m("Add", places, m("Reshape", run, m.ints([-1, *[1] * (len(size) - d - 1)])))
    return m("Gather", flat, places if size else m.squeeze(places, 0))


# --- pieces
@view(aten.slice.Tensor)
def _slice(m: Emitter, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    start, end = 0 if start is None else start, LAST if end is None else end
    if shape_of(x) == tuple(m.out.shape) and step == 1:
        return x
    return m.slice(x, _at(x, dim), start, end, step)


@view(aten.select.int)
def _select(m: Emitter, x: Value, dim: int, index: Any) -> Value:
    return m("Gather", x, m.number(index, torch.int64), axis=_at(x, dim))


@view(aten.split_with_sizes.default)
def _split(m: Emitter, x: Value, sizes: Sequence[Any], dim: int = 0) -> Any:
    made = m("Split", x, m.ints(sizes), axis=_at(x, dim), outputs=len(sizes))
    return (made,) if len(sizes) == 1 else made


@view(operator.getitem)
def _part(m: Emitter, x: Any, place: int) -> Value:
    if x[place] is None:
        raise NoForm(f"result {place} of the operator")
    return x[place]  # type: ignore[no-any-return]


@view(aten.slice_scatter.default)
def _slice_scatter(m: Emitter, x: Value, source: Value, dim: int = 0, start: Any = None, end: Any = None,
                   step: int = 1) -> Value:
    dim = _at(x, dim)
    every = m("Range", m.constant(0, torch.int64), m.number(m.size(x, dim), torch.int64),
              m.constant(1, torch.int64))
    places = m.slice(every, 0, 0 if start is None else start, LAST if end is None else end, step)
    moved, piece = _first(m, x, dim), _first(m, m.cast(source, m.out.dtype), dim, rank(x))
    made = m("ScatterND", moved, m.unsqueeze(places, 1), piece)
    return _back(m, made, dim, rank(x))


@view(aten.select_scatter.default)
def _select_scatter(m: Emitter, x: Value, source: Value, dim: int, index: Any) -> Value:
    dim = _at(x, dim)
    place = m("Reshape", m.number(index, torch.int64), m.ints([1, 1]))
    piece = m.unsqueeze(m.cast(source, m.out.dtype), 0)
    return _back(m, m("ScatterND", _first(m, x, dim), place, piece), dim, rank(x))


def _first(m: Emitter, x: Value, dim: int, count: int | None = None) -> Value:
    """Return a value with a dimension as its first."""
    dims = range(rank(x) if count is None else count)
    return m.transpose(x, [dim, *[d for d in dims if d != dim]])


def _back(m: Emitter, x: Value, dim: int, count: int) -> Value:
    """Return a value with its first dimension in another place."""
    rest = list(range(1, count))
    return m.transpose(x, [*rest[:dim], 0, *rest[dim:]])


# --- joins and repeats
@view(aten.cat.default)
def _cat(m: Emitter, xs: Sequence[Value], dim: int = 0) -> Value:
    # one empty vector is left out of a join of others
    given = [x for x in xs if shape_of(x) != (0,) or len(m.out.shape) == 1]
    return m.concat([m.cast(x, m.out.dtype) for x in given], dim % len(m.out.shape))


@view(aten.repeat.default)
def _repeat(m: Emitter, x: Value, times: Sequence[Any]) -> Value:
    more = len(times) - rank(x)
    return m("Tile", m.unsqueeze(x, *range(more)) if more else x, m.ints(times)) if times else x


@view(aten.flip.default)
def _flip(m: Emitter, x: Value, dims: Sequence[int]) -> Value:
    if not dims or not rank(x):
        return x
    found = [_at(x, d) for d in dims]
    return m("Slice", x, m.ints([-1] * len(found)), m.ints([-LAST] * len(found)), m.ints(found),
             m.ints([-1] * len(found)))


@view(aten.roll.default)
def _roll(m: Emitter, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    if not dims:
        flat = m("Reshape", x, m.ints([-1]))
        return m.like(_rolled(m, flat, 0, shifts[0], m.out.numel), x)
    for shift, dim in zip(shifts, dims, strict=True):
        x_, d = x, _at(x, dim)
        made = _rolled(m, x_, d, shift, shape_of(x)[d])
        made.meta["spec"] = x.meta["spec"]
        x = made
    return x


def _rolled(m: Emitter, x: Value, dim: int, shift: Any, size: Any) -> Value:
    if isinstance(size, int) and isinstance(shift, int):
        shift = shift % size if size else 0
    if isinstance(shift, Value):
        raise NoForm("a roll by a size that varies")
    return m.concat([m.slice(x, dim, -shift, LAST), m.slice(x, dim, 0, -shift)], dim) if shift else m("Identity", x)


@view(aten.tril.default)
def _tril(m: Emitter, x: Value, diagonal: int = 0) -> Value:
    return m("Trilu", x, m.number(diagonal, torch.int64), upper=0)


@view(aten.triu.default)
def _triu(m: Emitter, x: Value, diagonal: int = 0) -> Value:
    return m("Trilu", x, m.number(diagonal, torch.int64), upper=1)


# --- borders
def _padded(m: Emitter, x: Value, pad: Sequence[Any], *fill: Value, mode: str = "constant") -> Value:
    """Return a value with borders, whose widths go from the last dimension to the first; a negative one cuts off."""
    dims = list(range(rank(x) - len(pad) // 2, rank(x)))
    begins, ends = list(pad[::2])[::-1], list(pad[1::2])[::-1]
    wide = m.ints([v if isinstance(v, Value) else max(v, 0) for v in (*begins, *ends)])
    made = m("Pad", x, wide, *(fill or (None,)), m.ints(dims), mode=mode)
    if any(isinstance(n, int) and n < 0 for n in pad):
        starts, stops = ([0 if isinstance(n, Value) else min(n, 0) for n in side] for side in (begins, ends))
        made = m("Slice", made, m.ints([-n for n in starts]), m.ints([n or LAST for n in stops]), m.ints(dims))
    return made


@view(aten.constant_pad_nd.default)
def _pad(m: Emitter, x: Value, pad: Sequence[Any], value: Any = 0) -> Value:
    return _padded(m, x, pad, m.number(value, m.out.dtype)) if pad else x


def _bordered(mode: str) -> Any:
    return lambda m, x, pad: _padded(m, x, pad, mode=mode)


view(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)(_bordered("reflect"))
view(aten.replication_pad1d.default, aten.replication_pad2d.default,
     aten.replication_pad3d.default)(_bordered("edge"))


# --- made of sizes
@view(aten.full.default)
def _full(m: Emitter, size: Sequence[Any], value: Any, **_: Any) -> Value:
    return m.full(size, value, m.out.dtype) if size else m.number(value, m.out.dtype)


@view(aten.full_like.default)
def _full_like(m: Emitter, x: Value, value: Any, **_: Any) -> Value:
    return m.full(m.sizes(x), value, m.out.dtype)


@view(aten.fill.Scalar)
def _fill(m: Emitter, x: Value, value: Any) -> Value:
    return m.full(m.sizes(x), value, m.out.dtype)


@view(aten.scalar_tensor.default)
def _scalar(m: Emitter, value: Any, **_: Any) -> Value:
    return m.number(value, m.out.dtype)


@view(aten.new_empty.default, aten.new_empty_strided.default)
def _new_empty(m: Emitter, x: Value, size: Sequence[Any], *_: Any, **__: Any) -> Value:
    return m.full(size, 0, m.out.dtype)


def _triangle(places: Any) -> Any:
    return lambda m, rows, columns, offset=0, **_: m.constant(places(rows, columns, offset).tolist(), m.out.dtype)


view(aten.tril_indices.default)(_triangle(torch.tril_indices))
view(aten.triu_indices.default)(_triangle(torch.triu_indices))


@view(aten.empty.memory_format, aten.empty_strided.default, aten.empty_permuted.default)
def _empty(m: Emitter, size: Sequence[Any], *_: Any, **__: Any) -> Value:
    return m.full(size, 0, m.out.dtype)


@view(aten.arange.start_step)
def _arange(m: Emitter, start: Any, end: Any, step: Any = 1, **_: Any) -> Value:
    dtype, n = m.out.dtype, m.out.shape[0]
    if all(isinstance(v, int) or isinstance(v, Value) and v.meta["number"] is int for v in (start, end, step)):
        made = m("Range", *[m.number(v, torch.int64) for v in (start, end, step)])
        return made if dtype is torch.int64 else m("Cast", made, to=from_torch_dtype(dtype))
    if not isinstance(n, int):
        raise NoForm("a range of fractions of which the length varies")
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    every = m.constant(list(range(n)), wide)
    made = m("Add", m("Mul", every, m.number(step, wide)), m.number(start, wide))
    return m("Cast", made, to=from_torch_dtype(dtype))


@view(aten.linspace.default)
def _linspace(m: Emitter, start: Any, end: Any, steps: int, **_: Any) -> Value:
    if not all(isinstance(v, int | float) for v in (start, end, steps)):
        raise NoForm("points between sizes that vary")
    found = torch.linspace(start, end, steps, dtype=m.out.dtype)
    return m.constant(found.tolist(), m.out.dtype)


@view(aten.logspace.default)
def _logspace(m: Emitter, start: Any, end: Any, steps: int, base: float = 10.0, **_: Any) -> Value:
    if not all(isinstance(v, int | float) for v in (start, end, steps)):
        raise NoForm("points between sizes that vary")
    return m.constant(torch.logspace(start, end, steps, base, dtype=m.out.dtype).tolist(), m.out.dtype)


@view(aten.block_diag.default)
def _block_diagonal(m: Emitter, blocks: Sequence[Value]) -> Value:
    wide = [m("Reshape", m.cast(x, m.out.dtype), m.ints([*[1] * (2 - rank(x)), *m.sizes(x)])) for x in blocks]
    ends = [m("Shape", x) for x in wide]
    made = wide[0]
    for x, end in zip(wide[1:], ends[1:], strict=True):
        before = m("Shape", made)
        none = m.constant([0, 0], torch.int64)
        made = m("Add", m("Pad", made, m("Concat", none, end, axis=0)), m("Pad", x, m("Concat", before, none, axis=0)))
    return made


@view(aten.eye.m)
def _eye(m: Emitter, rows: Any, columns: Any, **_: Any) -> Value:
    return m("EyeLike", m.full([rows, columns], 0, m.out.dtype))


