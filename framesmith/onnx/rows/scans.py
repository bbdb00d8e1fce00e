"""Running products, extremes and logarithms of sums along a dimension."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from framesmith.onnx.emitter import Emitter, Value, dtype_of, rank, shape_of
from framesmith.onnx.graphs import inner_graph
from framesmith.onnx.table import aten, row

reduction = partial(row, "reductions")
Step = Callable[..., Sequence[Value]]


def _scanned(m: Emitter, x: Value, dim: int, first: Sequence[tuple[Any, torch.dtype]], step: Step) -> list[Value]:
    """Return what the state is after each element along a dimension. `first`: the state's numbers before, and their
    dtypes. `step(emitter, *state, element)`: the next state."""
    dim = dim % rank(x)
    if 0 in shape_of(x):
        return [m.full(m.sizes(x), 0, dtype) for _, dtype in first]
    sizes = [n for d, n in enumerate(m.sizes(x)) if d != dim]
    before = [m.full(sizes, number, dtype) for number, dtype in first]

    def emit(inner: Emitter, *given: Value) -> list[Value]:
        state = list(step(inner, *given))
        return [*state, *[inner("Identity", v) for v in state]]

    body = inner_graph(m, [(v.dtype, rank(x) - 1) for v in (*before, x)], emit)
    axes = [dim] * len(before)
    made = m("Scan", *before, x, body=body, num_scan_inputs=1, scan_input_axes=[dim], scan_output_axes=axes,
             outputs=2 * len(before))
    return list(made[len(before):])


@reduction(aten.cumprod.default)
def _products(m: Emitter, x: Value, dim: int, *, dtype: Any = None) -> Value:
    x = m.cast(x, m.out.dtype)
    if not rank(x):
        return x
    return _scanned(m, x, dim, [(1, m.out.dtype)], lambda inner, total, x: [inner("Mul", total, x)])[0]


@reduction(aten.logcumsumexp.default)
def _logarithms_of_sums(m: Emitter, x: Value, dim: int) -> Value:
    dtype = m.out.dtype

    def step(inner: Emitter, total: Value, x: Value) -> list[Value]:
        high = inner("Max", total, x)
        ratio = inner("Exp", inner("Sub", inner("Min", total, x), high))
        more = inner("Log", inner("Add", ratio, inner.constant(1, dtype)))
        return [inner("Where", inner("IsInf", high), high, inner("Add", high, more))]

    return _scanned(m, x, dim, [(-math.inf, dtype)], step)[0] if rank(x) else x


def _extremes(comparison: str) -> Any:
    """Return a row of running extremes and their places: of equal ones the last, and of NaN every one."""
    def emit(m: Emitter, x: Value, dim: int) -> Any:
        if not rank(x):
            return x, m.constant(0, torch.int64)
        dtype = torch.int32 if dtype_of(x) is torch.bool else dtype_of(x)
        bounds = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        worst: Any = bounds.min if comparison == "GreaterOrEqual" else bounds.max
        if dtype.is_floating_point:
            worst = math.copysign(math.inf, worst)

        def step(inner: Emitter, best: Value, place: Value, at: Value, x: Value) -> list[Value]:
            better = inner(comparison, x, best)
            if dtype.is_floating_point:
                better = inner("Or", better, inner("IsNaN", x))
            return [inner("Where", better, x, best), inner("Where", better, at, place),
                    inner("Add", at, inner.constant(1, torch.int64))]

        state = [(worst, dtype), (0, torch.int64), (0, torch.int64)]
        values, places, _ = _scanned(m, m.cast(x, dtype), dim, state, step)
        return values if values.dtype == x.dtype else m("Cast", values, to=x.dtype), places

    return emit


reduction(aten.cummax.default)(_extremes("GreaterOrEqual"))
reduction(aten.cummin.default)(_extremes("LessOrEqual"))
