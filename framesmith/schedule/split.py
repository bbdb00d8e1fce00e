"""Split long reductions to few results: one nest reduces pieces, so that there is work for all multiprocessors, and
another combines them. The number of pieces depends on shapes alone, so results are deterministic.

    s[x] = sum over r < 4000 of a[x, r]          part[p, x] = sum over q < 500 of a[x, 500*p + q]
                                                 s[x] = sum over p < 8 of part[p, x]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from framesmith.loops.build import Builder, Replay
from framesmith.loops.ir import Axis, Op, Part, Reduce, Scan, part_symbol
from framesmith.loops.nest import Compute, Item, LoopGraph, Storage
from framesmith.schedule.target import MachineModel
from framesmith.symbolic.expr import Expr, as_expr, prod

LONG = 1 << 15  # elements from which one program takes several times as long as its launch
SHORT = 1 << 13  # elements that make a program worth its launch
WAVES = 8  # programs for each unit
COLUMNS = 32  # columns that a program reduces together, where memory runs along them
UNKNOWN = 1024  # stand-in for a symbolic extent
TILE = 64  # elements of a tile along what is reduced
NONE: Mapping[int, int] = {}
PLAIN = frozenset(("sum", "prod", "max", "min", "any", "all", "argmax", "argmin"))


def split_reductions(graph: LoopGraph, target: MachineModel, along: Mapping[int, int] = NONE) -> LoopGraph:
    """Return `graph` with long reductions split; `graph` itself if the target does not split. `along`: places of column
    sums that are fused into kernels over rows (see `column_reductions`), with their numbers of parts."""
    if not target.units:
        return graph
    storages = dict(graph.storages)
    items: list[Item] = []
    for k, item in enumerate(graph.items):
        if k in along:
            assert isinstance(item, Compute)
            items += _ColumnSums(item, along[k], storages).run()
            continue
        cut = _cut(item, target.units) if isinstance(item, Compute) and item.raxes and item.contract is None else None
        if cut is None:
            items.append(item)
        else:
            assert isinstance(item, Compute)
            items += _Split(item, cut, storages).run()
    return replace(graph, storages=storages, items=items) if len(items) != len(graph.items) else graph


# ------------------------------------------------------------------------------------------------------------- decision


def _cut(c: Compute, units: int) -> list[int] | None:
    """Return the number of pieces of each reduction axis, divisors of the extents; None if splitting is not
    worthwhile."""
    extents = [a.extent for a in (*c.axes, *c.raxes)]
    kinds = [op.kind for op in c.inner if type(op) is Reduce]
    known = all(e.is_const and e.const > 0 for e in extents)
    if not known or any(type(op) is Scan for op in c.inner) or not (PLAIN.issuperset(kinds) or kinds == ["welford"]):
        return None
    results = math.prod(a.extent.const for a in c.axes)
    length = math.prod(a.extent.const for a in c.raxes)
    wide = min(results, COLUMNS) if runs_across(c) else 1
    programs = -(-results // wide)
    if length * wide <= LONG or programs >= units:
        return None
    wanted = min(-(-WAVES * units // programs), length * wide // SHORT)
    cut = []
    for a in c.raxes:
        pieces = _divisor(a.extent.const, wanted)
        cut.append(pieces)
        wanted = max(wanted // pieces, 1)
    return cut if math.prod(cut) > 1 else None


def _divisor(n: int, wanted: int) -> int:
    """Return the divisor of n next to `wanted`, at most twice as much; 1 if there is none. A close one that leaves
    whole tiles is preferred."""
    if n <= wanted:
        return n
    divisors = [d for d in range(1, min(n, 2 * wanted) + 1) if n % d == 0]
    return min(divisors, key=lambda d: (n // d % TILE != 0 or 4 * abs(d - wanted) > wanted, abs(d - wanted)))


def runs_across(c: Compute) -> bool:
    """Return whether most loads are contiguous along the results rather than along the reduced axes."""
    kept, gone = ([a.symbol for a in axes] for axes in (c.axes, c.raxes))
    extents = {a.symbol: a.extent.const if a.extent.is_const else UNKNOWN for a in (*c.axes, *c.raxes)}
    along = across = 0
    for op in c.loads:
        touched = op.dtype.itemsize * math.prod(n for s, n in extents.items() if s in op.index.free)
        if any(op.index.coeff(s) == 1 for s in gone):
            along += touched
        elif any(op.index.coeff(s) == 1 for s in kept):
            across += touched
    return across > along


# --------------------------------------------------------------------------------------------------------- construction


class _InParts:
    """A nest split into parts, and the nest that combines them."""

    def __init__(self, nest: Compute, storages: dict[str, Storage]) -> None:
        self.nest, self.storages = nest, storages
        self.parts: list[Axis] = []
        self.place = as_expr(0)

    def _storage(self, dtype: torch.dtype, axes: Iterable[Axis]) -> str:
        name = f"part_{len(self.storages)}"
        self.storages[name] = Storage(name, dtype, (prod(a.extent for a in axes).const,), (1,), "arena")
        return name

    def _combined(self, b: Builder, op: Reduce, names: Sequence[str]) -> Op:
        return b.reduce(op.kind, tuple(b.load(n, self.place, self.storages[n].dtype) for n in names), op.dtype)

    def _last(self, combine: Builder, results: Mapping[Op, Op]) -> Compute:
        """Return the nest that combines the parts by `combine` and applies this nest's epilogue."""
        after = Builder()
        values: dict[Op, Op] = dict(results)
        Replay(after, {}, values).run([op for op in self.nest.ops if op not in values])
        return Compute(self.nest.axes, tuple(self.parts), tuple(combine.ops), tuple(after.ops), self.nest.origins)


class _Split(_InParts):
    """One nest split into `cut` pieces of each of its reduction axes."""

    def __init__(self, nest: Compute, cut: Sequence[int], storages: dict[str, Storage]) -> None:
        super().__init__(nest, storages)
        self.reduces = [op for op in nest.inner if type(op) is Reduce]
        self.rest, self.sub = [], {}  # type: tuple[list[Axis], dict[Expr, Expr | int]]
        for k, (a, pieces) in enumerate(zip(nest.raxes, cut, strict=True)):
            each = a.extent.const // pieces
            index: Expr = as_expr(0)
            for axes, name, extent, step in ((self.parts, f"part{k}", pieces, each), (self.rest, f"rest{k}", each, 1)):
                if extent > 1:
                    axes.append(Axis.of(name, extent))
                    index = index + axes[-1].symbol * step
            self.sub[a.symbol] = index
        self.count = math.prod(cut)
        self.length = math.prod(a.extent.const for a in nest.raxes)
        if not self.rest:
            self.rest.append(Axis.of("rest", 1))
        self.place = _flat((*self.parts, *nest.axes))
        self.result = _flat(nest.axes)

    def run(self) -> list[Compute]:
        """Return the nest of pieces, and the nest that combines them."""
        nest = self.nest
        inner, after = Builder(), Builder()
        values: dict[Op, Op] = {}
        Replay(inner, dict(self.sub), values).run(nest.inner)
        kept = [self._keep(after, values[op]) for op in self.reduces]
        place = (*self.parts, *nest.axes)
        first = Compute(place, tuple(self.rest), tuple(inner.ops), tuple(after.ops), nest.origins, window=nest.window)
        if self.reduces[0].kind == "welford":
            return [first, *self._welford(self.reduces[0], kept[0])]
        combine = Builder()
        results: dict[Op, Op] = {op: self._combined(combine, op, names) for op,
                                 names in zip(self.reduces, kept, strict=True)}
        return [first, self._last(combine, results)]

    def _keep(self, b: Builder, reduce: Op) -> list[str]:
        """Store the results of one reduction of pieces, and return the names of the buffers."""
        assert type(reduce) is Reduce
        kept: list[Op] = [reduce]
        if reduce.kind.startswith("arg"):
            kept = [b.part(reduce, 1, reduce.args[0].dtype), reduce]
        elif reduce.kind == "welford":
            kept.append(b.part(reduce, 1, reduce.dtype))
        names = []
        for value in kept:
            names.append(self._storage(value.dtype, (*self.parts, *self.nest.axes)))
            b.store(names[-1], self.place, value)
        return names

    def _welford(self, op: Reduce, names: Sequence[str]) -> list[Compute]:
        """Combine Welford's statistics: the mean of the means of equal pieces, and the squares within and between
        them."""
        kind, (means, squares) = op.dtype, names
        first, after, second = Builder(), Builder(), Builder()
        total = first.reduce("sum", (first.load(means, self.place, kind),), kind)
        mean = self._storage(kind, self.nest.axes)
        after.store(mean, self.result, after.scalar("div", total, after.const(float(self.count), kind)))
        whole = Compute(self.nest.axes, tuple(self.parts), tuple(first.ops), tuple(after.ops), self.nest.origins)
        away = second.scalar("sub", second.load(means, self.place, kind), second.load(mean, self.result, kind))
        between = second.scalar("mul", second.scalar("mul", away, away),
                                second.const(float(self.length // self.count), kind))
        spread = second.reduce("sum", (second.scalar("add", second.load(squares, self.place, kind), between),), kind)
        last = Builder()
        parts: dict[Op, Op] = {op: last.load(mean, self.result, kind)}
        for p in self.nest.ops:
            if type(p) is Part:
                parts[p] = spread if p.part == 1 else last.const(float(self.length), kind)
        Replay(last, {}, parts).run([p for p in self.nest.ops if p not in parts])
        return [whole, Compute(self.nest.axes, tuple(self.parts), tuple(second.ops), tuple(last.ops),
                               self.nest.origins)]


class _ColumnSums(_InParts):
    """Column sums, whose parts are the programs that the iterations over rows are distributed to."""

    def __init__(self, nest: Compute, count: int, storages: dict[str, Storage]) -> None:
        super().__init__(nest, storages)
        self.count = count
        self.parts = [Axis.of("part0", count)]
        self.place = _flat((*self.parts, *nest.axes))

    def run(self) -> list[Compute]:
        """Return the nest to fuse into a kernel over rows, and the nest that combines its parts."""
        nest, b, combine = self.nest, Builder(), Builder()
        replay = Replay(b, {}, {})
        place = self.place.subs({self.parts[0].symbol: part_symbol(self.count)})
        results: dict[Op, Op] = {}
        for op in nest.inner:
            if type(op) is not Reduce:
                replay.run((op,))
                continue
            name = self._storage(op.dtype, (*self.parts, *nest.axes))
            b.store(name, place, replay.values[op.args[0]], "sum")
            results[op] = self._combined(combine, op, [name])
        first = Compute((*nest.raxes, *nest.axes), (), (), tuple(b.ops), nest.origins, parts=self.count)
        return [first, self._last(combine, results)]


def _flat(axes: Sequence[Axis]) -> Expr:
    """Return the row-major position of a point."""
    place = as_expr(0)
    for a in axes:
        place = place * a.extent + a.symbol
    return place
