"""Pooling, and images as columns of windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from framesmith.onnx.emitter import Emitter, NoForm, Value, dtype_of, rank, shape_of
from framesmith.onnx.table import aten, row

window = partial(row, "windows")


def _each(values: Any, count: int) -> list[int]:
    found = [values] if isinstance(values, int) else list(values)
    return found * count if len(found) == 1 else found


def _batched(m: Emitter, x: Value, count: int, emit: Callable[[Value], Any]) -> Any:
    """Apply a function of images with a batch to images that may have none."""
    if rank(x) == count + 2:
        return emit(x)
    made = emit(m.unsqueeze(x, 0))
    return tuple([m.squeeze(v, 0) for v in made]) if isinstance(made, tuple) else m.squeeze(made, 0)


def _average(count: int) -> Any:
    def emit(m: Emitter, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
             count_include_pad: bool = True, divisor_override: int | None = None) -> Value:
        sides = _each(kernel, count)
        pads = _each(padding, count)
        made: Value = _batched(m, x, count, lambda x: m(
            "AveragePool", x, kernel_shape=sides, strides=_each(stride or kernel, count), pads=[*pads, *pads],
            ceil_mode=int(ceil_mode), count_include_pad=int(count_include_pad or divisor_override is not None)))
        if divisor_override is None:
            return made
        if ceil_mode:
            raise NoForm("an average with a divisor of its own over windows that leave the image")
        return m("Mul", made, m.constant(math.prod(sides) / divisor_override, dtype_of(x)))

    return emit


for _count, _target in enumerate((aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default), 1):
    window(_target)(_average(_count))


def _greatest(count: int) -> Any:
    def emit(m: Emitter, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
             ceil_mode: bool = False) -> Any:
        pads, area = _each(padding, count), m.ints([1])
        for d in range(-count, 0):
            area = m("Mul", area, m.ints([m.size(x, d)]))

        def pooled(x: Value) -> Any:
            made, places = m("MaxPool", x, kernel_shape=_each(kernel, count), pads=[*pads, *pads],
                             strides=_each(stride or kernel, count), dilations=_each(dilation, count),
                             ceil_mode=int(ceil_mode), outputs=2)
            return made, m("Mod", places, area)  # ONNX counts through all images, eager within one

        return _batched(m, x, count, pooled)

    return emit


window(aten.max_pool2d_with_indices.default)(_greatest(2))
window(aten.max_pool3d_with_indices.default)(_greatest(3))


@window(aten.im2col.default)
def _image_to_columns(m: Emitter, x: Value, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Value:
    single = rank(x) == 3
    sides, steps, gaps, pads = (_each(v, 2) for v in (kernel, stride, dilation, padding))
    made = m.unsqueeze(x, 0) if single else x
    made = m("Pad", made, m.ints([0, 0, *pads, 0, 0, *pads])) if any(pads) else made
    windows = 1
    for d, (side, step, gap, pad) in enumerate(zip(sides, steps, gaps, pads, strict=True)):
        length = shape_of(x)[d - 2]
        if not isinstance(length, int):
            raise NoForm("the columns of an image of which the size varies")
        starts = range(0, length + 2 * pad - gap * (side - 1), step)
        windows *= len(starts)
        places = [[start + k * gap for start in starts] for k in range(side)]
        made = m("Gather", made, m.constant(places, torch.int64), axis=2 + 2 * d)
    columns = m.ints([0, shape_of(x)[-3] * math.prod(sides), windows])
    made = m("Reshape", m.transpose(made, [0, 1, 2, 4, 3, 5]), columns)
    return m.squeeze(made, 0) if single else made


def _adaptive(count: int) -> Any:
    """Averages over windows that share out an image: a product with a matrix of weights for each dimension."""
    def emit(m: Emitter, x: Value, sizes: Sequence[int]) -> Value:
        if all(n == 1 for n in sizes):
            return m("ReduceMean", x, m.ints(range(-count, 0)), keepdims=1)
        have = shape_of(x)[-count:]
        if not all(isinstance(n, int) for n in (*have, *sizes)):
            raise NoForm("windows that share out an image of which the size varies")
        if all(n % k == 0 for n, k in zip(have, sizes, strict=True)):
            steps = [n // k for n, k in zip(have, sizes, strict=True)]
            return _batched(m, x, count,  # type: ignore[no-any-return]
                            lambda x: m("AveragePool", x, kernel_shape=steps, strides=steps))
        for d, (n, k) in enumerate(zip(have, sizes, strict=True)):
            last = list(range(rank(x)))
            last[rank(x) - count + d], last[-1] = last[-1], last[rank(x) - count + d]
            made = m("MatMul", m.transpose(x, last), m.constant(_shares(n, k), dtype_of(x)))
            made = m.transpose(made, last)
            made.meta["spec"] = x.meta["spec"]
            x = made
        return m("Identity", x)

    return emit


def _shares(size: int, parts: int) -> list[list[float]]:
    """Return the weight of each element in the average of each part."""
    bounds = [(k * size // parts, -(-(k + 1) * size // parts)) for k in range(parts)]
    return [[1 / (end - start) if start <= place < end else 0.0 for start, end in bounds] for place in range(size)]


window(aten._adaptive_avg_pool2d.default, aten.adaptive_avg_pool2d.default)(_adaptive(2))
window(aten._adaptive_avg_pool3d.default, aten.adaptive_avg_pool3d.default)(_adaptive(3))
window(aten.adaptive_avg_pool1d.default)(_adaptive(1))


def _adaptive_greatest(count: int) -> Any:
    """Return a row of the greatest of windows that share out an image: each is gathered, the last element of a short
    one several times."""
    def emit(m: Emitter, x: Value, sizes: Any) -> Any:
        have, parts = list(shape_of(x)[-count:]), _each(sizes, count)
        if not all(isinstance(n, int) and n for n in (*have, *parts)):
            raise NoForm("windows that share out an image of which the size varies")
        outer, flat = rank(x) - count, np.zeros((), np.int64)
        made = x
        for d, (n, k) in enumerate(zip(have, parts, strict=True)):
            bounds = [(j * n // k, -(-(j + 1) * n // k)) for j in range(k)]
            wide = max(end - start for start, end in bounds)
            places = np.array([[min(start + j, end - 1) for j in range(wide)] for start, end in bounds])
            made = m("Gather", made, m.constant(places.tolist(), torch.int64), axis=outer + 2 * d)
            flat = np.expand_dims(flat * n, (-1, -2)) + places
        last = [outer + 2 * d for d in range(count)], [outer + 2 * d + 1 for d in range(count)]
        made = m("Reshape", m.transpose(made, [*range(outer), *last[0], *last[1]]), m.ints([0] * outer + [*parts, -1]))
        order = [*range(0, 2 * count, 2), *range(1, 2 * count, 2)]
        flat = flat.transpose(order).reshape(*parts, -1)
        at = m("ArgMax", made, axis=outer + count, keepdims=1)
        every = m("Expand", m.constant(flat.tolist(), torch.int64), m("Shape", made))
        return (m("ReduceMax", made, m.ints([-1]), keepdims=0),
                m.squeeze(m("GatherElements", every, at, axis=outer + count), -1))

    return emit


window(aten.adaptive_max_pool2d.default)(_adaptive_greatest(2))
window(aten.adaptive_max_pool3d.default)(_adaptive_greatest(3))


def _unpooled(count: int) -> Any:
    def emit(m: Emitter, x: Value, index: Value, sizes: Sequence[Any], *_: Any) -> Value:
        outer = m.ints(m.sizes(x)[:-count])
        area = m.constant(1, torch.int64)
        for n in sizes:
            area = m("Mul", area, m.number(n, torch.int64))
        whole = m("Concat", outer, m("Reshape", area, m.ints([1])), axis=0)
        columns = m("Concat", outer, m.ints([-1]), axis=0)
        made = m("ScatterElements", m("Expand", m.constant(0, dtype_of(x)), whole), m("Reshape", index, columns),
                 m("Reshape", x, columns), axis=rank(x) - count)
        return m("Reshape", made, m("Concat", outer, m.ints(sizes), axis=0))  # type: ignore[no-any-return]

    return emit


window(aten.max_unpool2d.default)(_unpooled(2))
window(aten.max_unpool3d.default)(_unpooled(3))


@window(aten.col2im.default)
def _columns_to_image(m: Emitter, x: Value, size: Sequence[Any], kernel: Any, dilation: Any, padding: Any,
                      stride: Any) -> Value:
    pads = _each(padding, 2)
    single = rank(x) == 2
    made = m("Col2Im", m.unsqueeze(x, 0) if single else x, m.ints(size), m.ints(_each(kernel, 2)),
             dilations=_each(dilation, 2), pads=[*pads, *pads], strides=_each(stride, 2))
    return m.squeeze(made, 0) if single else made


@window(aten.unfold.default)
def _windows_along(m: Emitter, x: Value, dim: int, size: int, step: int) -> Value:
    if not rank(x):
        return m("Reshape", x, m.ints([1])) if size else m.constant([], dtype_of(x))
    dim, one = dim % rank(x), m.constant(1, torch.int64)
    length = m.number(m.size(x, dim), torch.int64)
    starts = m("Range", m.constant(0, torch.int64), m("Add", m("Sub", length, m.constant(size, torch.int64)), one),
               m.constant(step, torch.int64))
    places = m("Add", m.unsqueeze(starts, 1), m.constant(list(range(size)), torch.int64))
    made = m("Gather", x, places, axis=dim)
    return m.transpose(made, [*[d for d in range(rank(x) + 1) if d != dim + 1], dim + 1])
