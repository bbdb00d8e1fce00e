"""Lists of which branches and loops on data change the length: their elements, which are alike, become the slices of
one tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from framesmith.fake.tensor import FakeTensor, Storage, new_fake
from framesmith.graph.control import layout_of
from framesmith.symbolic.layout import contiguous_strides
from framesmith.symbolic.node import expr_of
from framesmith.util.errors import Unsupported

from . import data
from . import trackers as t


@dataclass(frozen=True, slots=True)
class Row:
    """What the elements of a list have in common: their layout as tensors and, of numbers, the class."""

    val: FakeTensor
    kind: type | None

    def fits(self, other: Row) -> bool:
        """Return whether elements of both may be in one list."""
        return self.kind is other.kind and layout_of(self.val, expr_of) == layout_of(other.val, expr_of)


def own_lists(values: Iterable[Any]) -> list[t.List]:
    """Return the lists that captured code has made among `values`."""
    return [x for x in values
            if type(x) in (t.List, t.FilledList) and x._items is not None and x.value is None and x.source is None]


def refill(x: t.List, items: Sequence[t.Tracker]) -> None:
    """Let a list have these elements."""
    x._items = list(items)
    x.__class__ = t.FilledList if any(isinstance(y, t.StackedItems) for y in items) else t.List


def grown(before: Sequence[t.Tracker], after: Sequence[t.Tracker]) -> bool:
    """Return whether a list has other elements than before."""
    return len(before) != len(after) or any(a is not b for a, b in zip(before, after))


def row_of(tracer: Any, items: Sequence[t.Tracker]) -> Row | None:
    """Return what elements have in common; None if there are none. Raises Unsupported if they are not alike."""
    rows = [_row(tracer, x) for x in items]
    if any(not row.fits(rows[0]) for row in rows):
        raise Unsupported("a list whose length depends on data, of elements of different layouts or types")
    return rows[0] if rows else None


def _row(tracer: Any, x: t.Tracker) -> Row:
    if isinstance(x, t.SplitItems):
        raise Unsupported("a list whose length depends on data, of tensors of different sizes")
    if isinstance(x, t.StackedItems):
        return Row(_first_of(x.stack.fake), x.kind)  # type: ignore[attr-defined]
    if data.is_number(x) and not isinstance(x, t.Tensor):
        kind = x.pytype()
        dtype = torch.float64 if kind is float else torch.int64 if kind is int else torch.bool
        return Row(new_fake((), (), dtype, torch.device("cpu")), kind)
    if not isinstance(x, t.Tensor) or x.pyclass is not torch.Tensor or x.attrs:
        raise Unsupported(f"a list whose length depends on data, with {x.describe()}")
    if tuple(map(expr_of, x.fake.stride())) != tuple(map(expr_of, contiguous_strides(x.fake.shape))):
        raise Unsupported("a list whose length depends on data, of tensors that are not contiguous")
    return Row(x.fake, None)


def _first_of(stack: FakeTensor) -> FakeTensor:
    return new_fake(tuple(stack.shape[1:]), stack.stride()[1:], stack.dtype, stack.device)


def stack_of(tracer: Any, items: Sequence[t.Tracker], row: Row) -> t.Tensor:
    """Return the elements of a list as the slices of one tensor."""
    parts: list[t.Tracker] = []
    for x in items:
        if isinstance(x, t.StackedItems):
            x.check()
        parts.append(x.stack if isinstance(x, t.StackedItems)
                     else tracer.torch_call(torch.unsqueeze, [data.tensor_of(tracer, x), t.Const(0)], {}))
    if not parts:
        how = {"dtype": tracer.made(row.val.dtype), "device": tracer.made(row.val.device)}
        return tracer.torch_call(torch.zeros, [tracer.made((0, *row.val.shape))], how)  # type: ignore[no-any-return]
    return tracer.torch_call(torch.cat, [t.List(parts)], {})  # type: ignore[no-any-return]


def storages_of(items: Sequence[t.Tracker]) -> list[Storage]:
    """Return the storages with which elements of a list may share memory."""
    return [storage for x in items for storage in (
        [own for own, _ in x.watched] if isinstance(x, t.StackedItems)
        else [x.fake._alias.storage] if isinstance(x, t.Tensor) else [])]


def common_start(a: Sequence[t.Tracker], b: Sequence[t.Tracker]) -> int:
    """Return the number of elements with which both lists begin."""
    return next((k for k, (x, y) in enumerate(zip(a, b)) if x is not y), min(len(a), len(b)))


__all__ = ["Row", "common_start", "grown", "own_lists", "refill", "row_of", "stack_of", "storages_of"]
