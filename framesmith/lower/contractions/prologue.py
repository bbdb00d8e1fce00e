"""Prologues: the computation of a contraction's operand as a part of the contraction.

    w16[n, k] = int8 w[n, k] to bfloat16 * scale[n]        product of a and (w[n, k] * scale[n]), in tiles:
    out = mm(a, w16^T)                                      w16 is never in memory

A nest is fused if it stores each element of the operand once, from loads of memory that is not overwritten before the
contraction. If nothing else reads the operand, the scheduler drops the nest itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from framesmith.loops.build import Builder, Replay
from framesmith.loops.ir import Op, Store
from framesmith.loops.nest import Compute, Item
from framesmith.symbolic.expr import Expr


class Prologues:
    """The nests of a lowered graph that may be prologues."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = items
        self.writers: dict[str, list[int]] = {}
        for place, item in enumerate(items):
            for name in item.writes:
                self.writers.setdefault(name, []).append(place)

    def nest(self, buffer: str, place: int) -> Compute | None:
        """Return the nest that computes `buffer`, element by element, for the item at `place`."""
        writers = self.writers.get(buffer, [])
        item = self.items[writers[0]] if len(writers) == 1 and writers[0] < place else None
        if not isinstance(item, Compute) or item.raxes or item.contract is not None or len(item.stores) != 1:
            return None
        store = item.stores[0]
        plain = store is item.ops[-1] and store.mode is None and len(store.args) == 1
        stay = all(not writers[0] < k < place for name in item.reads for k in self.writers.get(name, ()))
        return item if plain and stay and _digits(item, store) is not None else None

    def block(self, buffer: str, at: Expr, place: int, dtype: torch.dtype) -> tuple[Op, ...] | None:
        """Return the operations that compute element `at` of `buffer`, as type `dtype`, the element last; None if it
        must be loaded."""
        nest = self.nest(buffer, place)
        if nest is None:
            return None
        store = nest.stores[0]
        builder, values = Builder(), {}  # type: tuple[Builder, dict[Op, Op]]
        Replay(builder, _unravelled(nest, store, at), values).run(nest.ops[:-1])
        result = builder.cast(values[store.args[0]], dtype)
        if builder.ops[-1] is not result:  # the last operation is the element
            builder.ops.remove(result)
            builder.ops.append(result)
        return tuple(builder.ops)


def _digits(nest: Compute, store: Store) -> list[tuple[int, int]] | None:
    """Return pairs (axis number, stride), innermost in memory first; None unless each element corresponds to one
    point."""
    steps = [store.index.coeff(a.symbol) for a in nest.axes]
    if any(type(s) is not int or s <= 0 for s in steps) or any(not a.extent.is_const for a in nest.axes):
        return None
    order = sorted(((k, int(s)) for k, s in enumerate(steps) if s is not None), key=lambda digit: digit[1])
    below = 1
    for k, step in order:
        if step != below:
            return None
        below *= nest.axes[k].extent.const
    rest = store.index
    for a, s in zip(nest.axes, steps):
        rest = rest - a.symbol * (s or 0)
    return order if rest.is_const and rest.const == 0 else None


def _unravelled(nest: Compute, store: Store, at: Expr) -> dict[Expr, Expr | int]:
    """Return the point of the nest that stores element `at`."""
    digits = _digits(nest, store) or []
    found: dict[Expr, Expr | int] = {}
    for k, step in digits:
        axis = nest.axes[k]
        value = at // step
        found[axis.symbol] = value if (k, step) == digits[-1] else value % axis.extent
    return found
