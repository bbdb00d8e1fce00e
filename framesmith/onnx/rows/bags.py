"""Embedding bags: sums, means and maxima of a table's rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from framesmith.onnx.emitter import LAST, Emitter, Value, dtype_of, shape_of
from framesmith.onnx.graphs import inner_graph
from framesmith.onnx.table import aten, row

bags = partial(row, "embedding bags")
RADIX = 4
"""How many neighbours a round reduces to one element."""
ROUNDS = 32
"""The most rounds that any number of elements takes: an engine that misreads offsets does not go on for ever."""


@bags(aten._embedding_bag_forward_only.default)
def _embedding_bag(m: Emitter, table: Value, index: Value, offsets: Value, scale_grad_by_freq: bool = False,
                   mode: int = 0, sparse: bool = False, weights: Value | None = None, ended: bool = False,
                   padding: int = -1) -> Any:
    """Gather rows of the table, and reduce those of each bag, in float32 at least as in eager."""
    wide = torch.float64 if dtype_of(table) is torch.float64 else torch.float32
    size = _size_of_each(index, offsets, ended) if padding < 0 else None
    places, starts = m.cast(index, torch.int64), m.cast(offsets, torch.int64)
    if padding >= 0:
        kept, starts = _without(m, m("Not", m("Equal", places, m.constant(padding, torch.int64))), starts)
        places = m("Gather", places, kept, axis=0)
        weights = weights if weights is None else m("Gather", weights, kept, axis=0)
    x = m.cast(m("Gather", table, places, axis=0), wide)
    if weights is not None:
        x = m("Mul", x, m.unsqueeze(m.cast(weights, wide), 1))
    operator = ("ReduceSum", "ReduceMean", "ReduceMax")[mode]
    if size is None:
        found = _reduced(m, operator, x, starts, m.size(table, 1), ended)
    elif size == 1:
        found = x
    else:
        found = m(operator, m("Reshape", x, m.ints([-1, size, m.size(table, 1)])), m.ints([1]), keepdims=0)
    return m.cast(found, dtype_of(table)), None, None, None


def _size_of_each(index: Value, offsets: Value, ended: bool) -> int | None:
    """Return how many elements every bag has, if all are known to have equally many."""
    length, starts, producer = shape_of(index)[0], shape_of(offsets)[0], offsets.producer()
    if producer is not None and producer.op_type == "Cast":
        producer = producer.inputs[0].producer()  # type: ignore[union-attr]
    if producer is not None and producer.op_type == "Range" and not ended:
        start, _, step = (v.const_value and int(v.const_value.numpy()) for v in producer.inputs)  # type: ignore
        return step if start == 0 and step and starts * step == length else None
    if offsets.const_value is None or not isinstance(length, int) or starts <= ended:
        return None
    size = length // (starts - ended)
    even = np.arange(starts) * size
    return size if size and size * (starts - ended) == length and (offsets.const_value.numpy() == even).all() else None


def _without(m: Emitter, keep: Value, starts: Value) -> tuple[Value, Value]:
    """Return the places of the elements that are kept, and where bags start among these."""
    counted = m("CumSum", m.cast(keep, torch.int64), m.constant(0, torch.int64))
    before = m.concat([m.constant([0], torch.int64), counted], 0)
    return m.squeeze(m("NonZero", keep), 0), m("Gather", before, starts, axis=0)


def _reduced(m: Emitter, operator: str, x: Value, starts: Value, width: Any, ended: bool) -> Value:
    """Return a row for each bag of elements x [n, width]; of an empty bag 0.

    A loop reduces neighbours of a bag until each bag has one element: engines' scatters that add are slow, or have data
    races. The bag of an element: the number of bags that start at or before it, less one."""
    zero, one, dtype = m.constant(0, torch.int64), m.constant(1, torch.int64), x.dtype
    length = m("Shape", x, end=1)
    none = m("Expand", zero, m("Add", length, one))  # a bag may start behind the last element
    counted = m("ScatterElements", none, starts, m("Expand", one, m("Shape", starts)), axis=0, reduction="add")
    bag = m("Slice", m("Sub", m("CumSum", counted, zero), one), m.ints([0]), length)
    every = m("Range", zero, m.squeeze(length, 0), one)
    within = m("Sub", every, m("Gather", starts, bag, axis=0))
    ends = m("Slice", m("Concat", starts, length, axis=0), m.ints([1]), m.ints([LAST]))
    sizes = m.unsqueeze(m("Sub", ends, starts), 1)
    state = x, bag, within
    body = inner_graph(m, [(ir.DataType.INT64, 0), (ir.DataType.BOOL, 0), *zip([v.dtype for v in state], (2, 1, 1))],
                       partial(_round, "ReduceMax" if operator == "ReduceMax" else "ReduceSum"))
    x, bag, _ = m("Loop", m.constant(ROUNDS, torch.int64), _any_above(m, within), *state, body=body, outputs=3)
    empty = m("Expand", m("Cast", zero, to=dtype), m("Concat", m("Shape", starts), m.ints([width]), axis=0))
    made = m("ScatterND", empty, m.unsqueeze(bag, 1), x)
    if operator == "ReduceMean":
        made = m("Div", made, m("Cast", m("Max", sizes, one), to=dtype))
    return m.slice(made, 0, 0, -1) if ended else made  # type: ignore[no-any-return]


def _any_above(m: Emitter, x: Value) -> Value:
    """Return whether any of the numbers is above 0."""
    padded = m("Concat", x, m.constant([0], torch.int64), axis=0)
    return m("Greater", m("ReduceMax", padded, keepdims=0), m.constant(0, torch.int64))


def _round(operator: str, m: Emitter, _: Value, __: Value, x: Value, bag: Value, within: Value) -> Sequence[Value]:
    """Reduce neighbours to one: whether any are left, the elements, the bag of each, and its place there."""
    radix = m.constant(RADIX, torch.int64)
    first = m.squeeze(m("NonZero", m("Equal", m("Mod", within, radix), m.constant(0, torch.int64))), 0)
    places = m("Add", m.unsqueeze(first, 1), m.constant(list(range(RADIX)), torch.int64))
    own = m("Gather", bag, first, axis=0)
    bags = m("Gather", m("Concat", bag, m.constant([-1] * RADIX, torch.int64), axis=0), places, axis=0)
    same = m.unsqueeze(m("Equal", bags, m.unsqueeze(own, 1)), 2)
    neutral = m("Cast", m.constant(-math.inf if operator == "ReduceMax" else 0.0, torch.float32), to=x.dtype)
    last = m("Sub", m("Size", bag), m.constant(1, torch.int64))
    groups = m("Where", same, m("Gather", x, m("Min", places, last), axis=0), neutral)
    within = m("Div", m("Gather", within, first, axis=0), radix)
    return _any_above(m, within), m(operator, groups, m.ints([1]), keepdims=0), own, within
