"""Pad the row strides of matrices to multiples of a vector, on a CUDA device: other matrices cannot be read in vectors.

    d: bfloat16[8192, 30522] strides (30522, 1)      ->  strides (30528, 1)      d is read by products, and nobody
                                                                                 outside sees it
    d, given from outside                            ->  a copy with such rows, where products compute enough with it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch

from framesmith.loops.build import Builder
from framesmith.loops.ir import Axis, Load, Op, Ref, Store
from framesmith.loops.nest import Call, Compute, Item, LoopGraph, Storage
from framesmith.lower.geometry import flat, row_major
from framesmith.symbolic.expr import Expr, FloorDiv, Mod
from framesmith.util.precision import HALF

aten = torch.ops.aten
PLAIN = frozenset((aten.mm.default, aten.bmm.default, aten.mm.dtype, aten.bmm.dtype))
PRODUCTS = PLAIN | {aten.addmm.default, aten.baddbmm.default, aten._addmm_activation.default}
KINDS = frozenset((*HALF, torch.float32))
VECTOR = 16  # bytes that are moved at once
LARGE = 1 << 20  # elements from which it matters
LONG = 64  # elements of a row that the wider one should not exceed by much
ENOUGH = 256  # multiplications of each element that take as much longer as a copy takes


def vector(dtype: torch.dtype) -> int:
    """Return the number of elements of a vector access."""
    return VECTOR // dtype.itemsize


def in_vectors(n: int, dtype: torch.dtype) -> int:
    """Round `n` up to whole vectors."""
    return -(-n // vector(dtype)) * vector(dtype)


def pad_strides(graph: LoopGraph) -> LoopGraph:
    """Return `graph` with padded matrices."""
    for kinds, way in ((("arena",), _Padding), (("input", "result"), _Copy)):
        for name in [s.name for s in graph.storages.values() if s.kind in kinds and _is_askew(s)]:
            graph = way(graph, name).run() or graph
    return graph


def _is_askew(s: Storage) -> bool:
    known = s.dtype in KINDS and s.device is None and len(s.size) > 1 and all(type(n) is int for n in s.size)
    askew = known and s.size[-1] % vector(s.dtype) != 0 and s.size[-1] >= LONG and prod(s.size) >= LARGE
    return askew and tuple(s.stride) == row_major(s.size)


class _Wider:
    """One matrix, whose rows of `row` elements are padded to `wide`."""

    def __init__(self, graph: LoopGraph, name: str) -> None:
        self.graph, self.name = graph, name
        self.row, self.dtype = graph.storages[name].size[-1], graph.storages[name].dtype
        self.wide = in_vectors(self.row, self.dtype)

    def view(self, s: Storage) -> Storage | None:
        """Return the same window on the padded matrix: its strides are along rows, or from row to row."""
        if s.dtype.itemsize != self.dtype.itemsize or any(type(n) is not int for n in (*s.size, *s.stride, s.offset)):
            return None
        start = s.offset % self.row
        for size, step in zip(s.size, s.stride):
            if size == 1 or step % self.row == 0:
                continue
            start += (size - 1) * step
        if start >= self.row:  # it goes on from one row to the next
            return None
        stride = tuple(step // self.row * self.wide if step % self.row == 0 else step for step in s.stride)
        return replace(s, stride=stride, offset=s.offset // self.row * self.wide + s.offset % self.row)


class _Copy(_Wider):
    """A matrix from outside, or from an operator, of which products read a padded copy."""

    def run(self) -> LoopGraph | None:
        """Return the graph; None if products do too little work."""
        graph, own = self.graph, self.graph.storages[self.name]
        if sum(self.name in item.writes for item in graph.items) > (own.kind == "result"):
            return None
        storages = dict(graph.storages)
        wide = f"wide_{len(storages)}"
        names = {self.name: wide}
        storages[wide] = Storage(wide, own.dtype, own.size, tuple(row_major((*own.size[:-1], self.wide))), "arena")
        for s in graph.storages.values():
            view = self.view(s) if s.base == self.name else None
            if view is not None:
                names[s.name] = f"wide_{len(storages)}"
                storages[names[s.name]] = replace(view, name=names[s.name], base=wide)
        readers = [k for k, item in enumerate(graph.items) if isinstance(item, Call) and self._gains(item, names)]
        if sum(_others(graph.items[k], graph.storages) for k in readers) < ENOUGH:
            return None
        items = list(graph.items)
        for k in readers:
            call = renamed(items[k], names)  # type: ignore[arg-type]
            items[k] = replace(call, reads=call.reads - {self.name} | {wide})
        items.insert(readers[0], copied(own, storages[wide], items[readers[0]]))
        return replace(graph, storages=storages, items=items)

    def _gains(self, call: Call, names: Mapping[str, str]) -> bool:
        """Return whether a product reads the matrix, in windows of known form."""
        refs = [a.name for a in call.args if type(a) is Ref]
        own = [n for n in refs if n == self.name or self.graph.storages[n].base == self.name]
        return (call.target in PRODUCTS and bool(own) and all(n in names for n in own)
                and len(self.graph.storages[own[0]].size) > 1)


def copied(own: Storage, wide: Storage, reader: Item) -> Compute:
    """Return a nest that copies a matrix, or a window, into one with other rows, for `reader`."""
    axes = [Axis.of(f"c{k}", n) for k, n in enumerate(own.size)]
    index = [a.symbol if n > 1 else 0 for a, n in zip(axes, own.size)]
    b = Builder()
    offset = own.offset if own.base else 0
    b.store(wide.name, flat(index, wide.stride),
            b.load(own.base or own.name, flat(index, own.stride, offset), own.dtype))
    return Compute(tuple([a for a, n in zip(axes, own.size) if n > 1]), (), (), tuple(b.ops), reader.origins)


def renamed(call: Call, names: Mapping[str, str]) -> Call:
    """Return a call with some of its windows replaced, on the same memory."""
    args = tuple(Ref(names[a.name]) if type(a) is Ref and a.name in names else a for a in call.args)
    return replace(call, args=args, outputs=tuple([names.get(o, o) if o else o for o in call.outputs]))


def _others(call: Any, storages: Mapping[str, Storage]) -> int:
    """Return the approximate number of multiplications of each element of an operand."""
    a, b = [storages[x.name].size for x in call.args if type(x) is Ref][-2:]
    return min(a[-2], b[-1])


class _Padding(_Wider):
    """A matrix that the graph computes, and that does not leave it."""

    def run(self) -> LoopGraph | None:
        """Return the graph; None if some reader does not support the layout, or no product reads it."""
        storages, names = dict(self.graph.storages), {self.name}
        base = storages[self.name]
        storages[self.name] = replace(base, stride=tuple(row_major((*base.size[:-1], self.wide))))
        for s in self.graph.storages.values():
            if s.base == self.name:
                view = self.view(s)
                if view is None:
                    return None
                storages[s.name] = view
                names.add(s.name)
        items = [self._item(item) if self.name in item.reads | item.writes else item for item in self.graph.items]
        calls = [item for item in self.graph.items if isinstance(item, Call) and self.name in item.reads | item.writes]
        if None in items or not calls or not all(map(self._takes, calls)):
            return None
        if any(type(o) is Ref and o.name in names for o in self.graph.outputs):
            return None
        return replace(self.graph, storages=storages, items=items)  # type: ignore[arg-type]

    def _takes(self, call: Call) -> bool:
        """Return whether a call supports padded rows. (The library's epilogues require a dense result.)"""
        return call.target in (PLAIN if self.name in call.writes else PRODUCTS) and self.name not in call.mutates

    def _item(self, item: Item) -> Item | None:
        if isinstance(item, Call):
            return item
        if item.contract is not None:
            return None
        moved = _moved(item, lambda buffer, index: self._index(index) if buffer == self.name else index)
        memory: tuple[Load | Store, ...] = (*moved.loads, *moved.stores)
        return None if any(_divides(op.index) for op in memory if op.buffer == self.name) else moved

    def _index(self, e: Expr) -> Expr:
        return e // self.row * self.wide + e % self.row


def _divides(e: Expr) -> bool:
    return type(e) in (FloorDiv, Mod) or any(map(_divides, e.args))


def _moved(c: Compute, index: Callable[[str, Expr], Expr]) -> Compute:
    """Return a nest with other indices in memory."""
    new: dict[Op, Op] = {}

    def again(ops: Sequence[Op]) -> tuple[Op, ...]:
        for op in ops:
            changes: dict[str, Any] = {"args": tuple(new[a] for a in op.args)} if op.args else {}
            if type(op) is Load or type(op) is Store:
                changes["index"] = index(op.buffer, op.index)
            new[op] = replace(op, **changes)  # type: ignore[type-var]
        return tuple(new[op] for op in ops)

    return replace(c, inner=again(c.inner), ops=again(c.ops))
