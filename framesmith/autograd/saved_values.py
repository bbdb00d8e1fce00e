"""The values that a forward saves for its backward: the cheapest cut of those that the backward reads, priced in bytes
moved.

A value that the forward stores anyway costs a read; one that would stay in registers also costs a write. Pointwise
work, views and constants may be recomputed from saved values, unless forward and backward both need the value in
memory; contractions, reductions and searches are recomputed only under a memory budget, those with the fewest
operations for each byte first, and in regions of activation checkpointing; random draws never are.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import fx

from framesmith.autograd.min_cut import FREE, cheapest_cut
from framesmith.fake.outputs import memory_of
from framesmith.graph.purity import draws, is_pure, is_view
from framesmith.graph.traversal import ancestors
from framesmith.symbolic.node import hint_of

aten = torch.ops.aten
_SAME_ELEMENTS = frozenset((
    aten.clone.default, aten._to_copy.default, aten.alias.default, aten.expand.default, aten._unsafe_view.default,
    aten.reshape.default,
    aten.where.self, aten.masked_fill.Scalar, aten.masked_fill.Tensor, aten.native_dropout_backward.default,
    aten.constant_pad_nd.default,
    aten.cat.default, aten.stack.default, aten.full.default, aten.arange.start_step, aten.scalar_tensor.default,
    aten.full_like.default,
    aten.zeros_like.default, aten.ones_like.default, aten.zeros.default, aten.ones.default,
))
"""Operators without arithmetic that are as cheap."""
_PRODUCTS: dict[Any, tuple[int, int]] = {
    aten.mm.default: (0, 1), aten.bmm.default: (0, 2), aten.addmm.default: (1, 1), aten.baddbmm.default: (1, 2),
    aten.linear.default: (0, -1), aten.matmul.default: (0, -1),
}
"""The argument, and its dimension, over which a product sums."""


def kept_values(nodes: list[fx.Node], late: set[fx.Node], read: set[fx.Node], inputs: set[fx.Node], budget: float = 1.0,
                barred: Collection[fx.Node] = (), results: Collection[fx.Node] = (),
                fixed: Collection[fx.Node] = (), again: Collection[fx.Node] = ()) -> set[fx.Node]:
    """Return the values to save of a joint graph: `late` depends on tangents and reads `read`. `budget` is the
    fraction, from 0 to 1, of the otherwise saved bytes that may be saved; the rest is recomputed. `barred`: values that
    the program may write before the backward; `results`: values returned to it, which are in memory; `fixed`: values
    that are not recomputed; `again`: values that are, whatever they cost."""
    problem = _Problem(nodes, late, read, inputs, barred, set(results), fixed, again)
    kept = problem.solve(())
    if budget >= 1:
        return kept
    room = budget * problem.size(kept)
    costly = problem.costly()
    low, high = 0, len(costly)  # the fewest that have to be made again
    while low < high:
        middle = (low + high) // 2
        if problem.size(problem.solve(costly[:middle])) <= room:
            high = middle
        else:
            low = middle + 1
    return problem.solve(costly[:low])


class _Problem:
    def __init__(self, nodes: list[fx.Node], late: set[fx.Node], read: set[fx.Node], inputs: set[fx.Node],
                 barred: Collection[fx.Node], results: set[fx.Node], fixed: Collection[fx.Node],
                 again: Collection[fx.Node]) -> None:
        early = ancestors(read)
        self.nodes = [n for n in nodes if n in early]
        self.again = {n for n in again if not _draws(n)}
        self.late, self.read, self.inputs, self.barred, self.results = late, read, inputs, barred, results
        self.prices = {n: self._price(n) for n in self.nodes}
        self.fixed = {n for n in fixed if self.prices.get(n, FREE) < FREE}

    def solve(self, again: Collection[fx.Node]) -> set[fx.Node]:
        """Return the cheapest cut, if `again` may also be recomputed."""
        fixed = [n for n in self.nodes if n.op == "placeholder" or n in self.fixed
                 or n not in again and self._stays(n, bool(again))]
        cheap = set(self.nodes) - set(fixed)
        edges = [(arg, n) for n in cheap for arg in n.all_input_nodes]
        return cheapest_cut(self.prices, edges, fixed, self.read)

    def size(self, kept: Iterable[fx.Node]) -> int:
        """Return the saved bytes, without inputs."""
        return sum(_bytes(n) for n in kept if n not in self.inputs)

    def costly(self) -> list[fx.Node]:
        """Return the nodes that may be recomputed under a budget, those with the fewest operations for a byte first."""
        found = [n for n in self.nodes if n.op == "call_function" and not is_cheap(n) and not _draws(n) and is_pure(n)]
        return sorted(found, key=lambda n: _operations(n) / max(1, _bytes(n)))

    def _stays(self, node: fx.Node, tight: bool) -> bool:
        if node in self.again or "checkpoint" in node.meta and not _draws(node):
            return False
        if not is_cheap(node):
            return True
        if tight or node.target is operator.getitem or is_view(node.target):
            return False
        return _is_read(node, lambda u: u not in self.late) and _is_read(node, lambda u: u in self.late)

    def _price(self, node: fx.Node) -> int:
        if (not isinstance(node.meta["val"], torch.Tensor) or node in self.again or self._is_inside(node)
                or memory_of(node)[0] in self.barred):
            return FREE
        if node in self.inputs:
            return 1
        size = max(1, _bytes(node))
        if node in self.results:  # rather than what it is computed of
            return max(1, size - 1)
        return size if not is_cheap(node) or _is_read(node, lambda u: True) else 2 * size

    def _is_inside(self, node: fx.Node) -> bool:
        """Return whether only its own region of activation checkpointing reads a value in the forward: then it is not
        saved."""
        region = node.meta.get("checkpoint")
        if region is None or _draws(node):
            return False
        return all(u in self.late or u.meta.get("checkpoint") == region for u in node.users)


def drawn(read: Iterable[fx.Node]) -> set[fx.Node]:
    """Return the random values that `read` depends on, which recomputation must not draw again."""
    return {n for n in ancestors(read) if isinstance(n.meta["val"], torch.Tensor) and _draws(n)}


def is_cheap(node: fx.Node) -> bool:
    """Return whether an operator costs no more than a pass over its result."""
    if node.target is operator.getitem:
        return True
    tags = getattr(node.target, "tags", ())
    return is_pure(node) and (torch.Tag.pointwise in tags or is_view(node.target) or node.target in _SAME_ELEMENTS)


def _draws(node: fx.Node) -> bool:
    source = node.args[0] if node.target is operator.getitem else node
    return isinstance(source, fx.Node) and draws(source)


def _is_read(node: fx.Node, where: Any) -> bool:
    """Return whether an operator that needs its arguments in memory reads the value, or a view of it, among the users
    selected by `where`."""
    for user in node.users:
        if user.op == "call_function" and is_view(user.target) and user.target is not operator.getitem:
            if _is_read(user, where):
                return True
        elif user.op == "call_function" and where(user) and not is_cheap(user):
            return True
    return False


def _bytes(node: fx.Node) -> int:
    val = node.meta["val"]
    return sum(hint_of(x.numel()) * x.element_size() for x in _tensors(val))


def _tensors(val: Any) -> list[torch.Tensor]:
    return [x for x in (val if isinstance(val, (tuple, list)) else (val,)) if isinstance(x, torch.Tensor)]


def _operations(node: fx.Node) -> float:
    """Return the approximate number of additions and multiplications."""
    val = node.meta["val"]
    size = sum(hint_of(x.numel()) for x in _tensors(val))
    if node.target in _PRODUCTS:
        place, dim = _PRODUCTS[node.target]
        return 2.0 * size * hint_of(node.args[place].meta["val"].shape[dim])  # type: ignore[union-attr]
    if node.target is aten.convolution.default:
        return 2.0 * size * math.prod(map(hint_of, node.args[1].meta["val"].shape[1:]))  # type: ignore[union-attr]
    read = sum(hint_of(a.meta["val"].numel()) for a in node.all_input_nodes if isinstance(a.meta["val"], torch.Tensor))
    return 8.0 * (read + size)


__all__ = ["drawn", "is_cheap", "kept_values"]
