"""Elements of integer tensors that are made of sizes: `torch.tensor([h, w])[0]` is the symbol of `h`, not its value."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from framesmith.fake.recording import Recording
from framesmith.fake.tensor import FakeTensor
from framesmith.util.tables import entry

aten = torch.ops.aten
Place = tuple[int, ...]
_ROWS: dict[Any, Callable[[Any, Place], Any]] = {}
"""By operator: the element of its result at a place, from its operands."""


def size_in(rec: Recording, x: FakeTensor) -> Any:
    """Return the element of an integer tensor that has one: see `size_at`."""
    return size_at(rec.nodes(x), (0,) * x.dim()) if x.dtype is torch.int64 and x.numel() == 1 else None


def size_at(node: Any, place: Place) -> Any:
    """Return the element of an integer tensor at `place`, an int or a `torch.SymInt`; None if it is not found by
    looking through operators that move elements, sums, differences and products."""
    return _ROWS[node.target](node, place) if node.target in _ROWS and _sizes(node) is not None else None


def _sizes(node: Any) -> tuple[int, ...] | None:
    """Return the shape of an integer tensor; None if it varies, or the tensor is another."""
    val = node.meta.get("val")
    integral = isinstance(val, torch.Tensor) and val.dtype is torch.int64
    return tuple(val.shape) if integral and all(type(n) is int for n in val.shape) else None


@entry(_ROWS, aten.scalar_tensor.default)
def _number(node: Any, place: Place) -> Any:
    return node.args[0] if type(node.args[0]) in (int, torch.SymInt) else None


@entry(_ROWS, aten.full.default)
def _filled(node: Any, place: Place) -> Any:
    return node.args[1] if type(node.args[1]) in (int, torch.SymInt) else None


@entry(_ROWS, aten.select.int)
def _selected(node: Any, place: Place) -> Any:
    x, dim, index = node.args
    sizes = _sizes(x)
    if sizes is None or type(index) is not int:
        return None
    dim %= len(sizes)
    return size_at(x, (*place[:dim], index % sizes[dim], *place[dim:]))


@entry(_ROWS, aten.stack.default)
def _stacked(node: Any, place: Place) -> Any:
    xs, dim = (*node.args, 0)[:2]
    dim %= len(place)
    return size_at(xs[place[dim]], (*place[:dim], *place[dim + 1:]))


def _computed(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Place], Any]:
    """Make a row of arithmetic, element by element."""

    def row(node: Any, place: Place) -> Any:
        a, b = (_operand(x, place) for x in node.args[:2])
        return None if a is None or b is None or node.kwargs or len(node.args) > 2 else fn(a, b)

    return row


def _operand(x: Any, place: Place) -> Any:
    """Return the element of an operand that is broadcast to a place."""
    sizes = _sizes(x) if isinstance(x, Node) else None
    if sizes is None:
        return x if type(x) in (int, torch.SymInt) else None
    return size_at(x, tuple([k if n > 1 else 0 for k, n in zip(place[len(place) - len(sizes):], sizes)]))


for _name, _fn in (("add", operator.add), ("sub", operator.sub), ("mul", operator.mul)):
    entry(_ROWS, getattr(aten, _name).Tensor)(_computed(_fn))


@entry(_ROWS, aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.unsqueeze.default)
def _viewed(node: Any, place: Place) -> Any:
    """Elements in the same order, in other dimensions."""
    sizes, own = _sizes(node.args[0]), _sizes(node)
    if sizes is None or own is None:
        return None
    at, inner = 0, list[int]()
    for n, k in zip(own, place, strict=True):
        at = at * n + k
    for n in reversed(sizes):
        at, k = divmod(at, n)
        inner.insert(0, k)
    return size_at(node.args[0], tuple(inner))
