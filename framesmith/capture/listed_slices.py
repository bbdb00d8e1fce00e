"""Lists of data whose length varies: the elements are the slices of a tensor, or its parts of lengths that data tell.

`counted_loops` records a loop over them as one node; with any other use, the code is captured again and the list is not
made.
"""

from __future__ import annotations

from typing import Any

import torch

from framesmith.fake import known_value
from framesmith.fake.layout import is_of_data
from framesmith.symbolic.layout import expected
from framesmith.symbolic.node import expr_of
from framesmith.util.errors import Unsupported

from . import trackers as t

aten = torch.ops.aten
_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
_WIDEST = 8
"""The maximal length of a list in a list."""


def listed_slices(tracer: Any, x: t.Tensor) -> t.Tracker | None:
    """Return `x.tolist()` for a length that varies, as numbers of the graph; None where its values are known or assumed
    instead."""
    shape, place = x.fake.shape, _place(tracer)
    if not tracer.lists_data or len(shape) not in (1, 2) or type(shape[0]) is int or x.fake.dtype not in _INTEGERS:
        return None
    if not (tracer.symbolic_contents or is_of_data(shape[0])) or place in tracer.unrolled or tracer.wants_grad(x.fake):
        return None
    if len(shape) == 2 and (is_of_data(shape[1]) or tracer.shapes.hint(expr_of(shape[1])) > _WIDEST):
        return None
    value = _repeated(tracer, x)

    def each(tracer: Any, x: t.Tracker) -> t.Tracker:
        if value is not None:
            return value
        return _row(tracer, x) if len(shape) == 2 else tracer.integer_in(x)  # type: ignore[no-any-return]

    return t.FilledList([t.StackedItems(x, None, [x.fake._alias.storage], place, int, each)])


def split_by_lengths(tracer: Any, x: t.Tensor, lengths: t.FilledList, dim: int) -> t.Tracker:
    """Return `torch.split(x, lengths, dim)`."""
    if _place(tracer) in tracer.unrolled:
        raise Unsupported("torch.split into a number of parts that data tell")
    n = lengths.numbers(tracer, int)
    total = tracer.recorder.integer(tracer.torch_call(torch.sum, [n], {}).fake)
    dim %= x.fake.dim()
    expected(total == x.fake.shape[dim])
    tracer.totals[id(n.fake)] = n.fake, x.fake.shape[dim]  # type: ignore[attr-defined]
    return t.FilledTuple([t.SplitItems(x, dim, n, [n.fake._alias.storage], _place(tracer))])  # type: ignore[attr-defined]


def _place(tracer: Any) -> t.Place:
    """Return the call that makes a list: no loop, so the complement of its instruction."""
    f = tracer.frames[-1]
    return f.code, ~(f.ip - 1)


def _row(tracer: Any, x: t.Tracker) -> t.Tracker:
    count = int(x.fake.shape[0])  # type: ignore[attr-defined]  # a list of lists has one length for all
    return t.List([tracer.integer_in(tracer.torch_call(torch.select, [x, t.Const(0), t.Const(k)], {}))
                   for k in range(count)])


def _repeated(tracer: Any, x: t.Tensor) -> t.Tracker | None:
    """Return the number that all elements are known to be."""
    node = tracer.recorder.nodes(x.fake)
    if x.fake.dim() != 1 or node.target is not aten.expand.default:
        return None
    base = node.args[0].meta["val"]
    found = known_value(tracer.recorder, base) if base.numel() == 1 else None
    return None if found is None else t.Const(found.item())
