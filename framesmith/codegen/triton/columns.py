"""Pointwise kernels whose results share loads: sums over windows, pooling.

    par h < 56, w < 56, c < 72:                        # a thread has one point, all of v; c = 8*c' + v
      store y[h, w, c] = x[h, w, c] * k[0, c] ...
 -> par h < 56, w < 14, c' < 9, v < 8:
      a, b, ... = x[h, 4*w, c], x[h, 4*w + 1, c], ...
      store y[h, 4*w, c] = a * k[0, c] ...

    red h < 56, w < 56: sum of g[h, w, c] * x[h, w, c]
                        sum of g[h, w, c] * x[h, w + 1, c]
 -> red h < 56, w < 14: sum of g[h, 4*w, c] * a + g[h, 4*w + 1, c] * b ...
                        sum of g[h, 4*w, c] * b + g[h, 4*w + 1, c] * c ...

Adjacent results are computed by one thread, which does shared loads once: equal operations are merged anyway, so the
body is repeated for each of them; the same holds for steps of sums. The innermost axis is split into vectors, and all
others form one dimension of the tile, so that a point's position and the existence of its neighbours are computed once
for each vector.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch

from framesmith.loops.build import Builder, Replay
from framesmith.loops.ir import Axis, Const, Indirect, Load, Op, Reduce, Scan, Store, needed
from framesmith.symbolic.expr import Expr, as_expr

VECTOR = 4  # elements that a thread moves at once: twice as many take too many registers
FEW = 4  # loads of one buffer from which results side by side may share them
MOST = 8  # results of a thread, ...
POSITIONS = 200  # ... and loads of one buffer in all, if fewer results are possible
THREADS = 132 * 256  # that there should be
STEPS = 4  # of sums
WORTH = 0.8  # of the loads of results one by one, that are left


def columns(axes: Sequence[Axis], ops: Sequence[Op]) -> tuple[tuple[Axis, ...], Axis, tuple[Op, ...]] | None:
    """Return the axes of the points, the axis of the vector, and the body over them; None if results share no loads."""
    loads = [op for op in ops if type(op) is Load]
    shared = [name for name, count in Counter(op.buffer for op in loads).items() if count >= FEW]
    last = _last(axes, ops)
    if not shared or last is None or any(type(op) is Indirect for op in ops) or _reads_what_it_wrote(ops):
        return None
    points = math.prod(a.extent.const for a in axes if a.extent.is_const) // VECTOR
    reads = _needed(ops, [op for op in loads if op.buffer in shared])
    way = _way([a for a in axes if a is not last], reads, points // THREADS)
    if way is None and len(reads) == len(loads):
        return None
    return _written(axes, last, way, ops)


def sums(axes: Sequence[Axis], ops: Sequence[Op], outside: Sequence[Op]) -> tuple[tuple[Axis, ...], tuple[Op, ...],
                                                                                  dict[Op, Op]] | None:
    """Return the axes of an unrolled summing loop, its body, and its new reductions; None if steps share no loads.
    `outside`: operations before the loop."""
    loads = [op for op in ops if type(op) is Load]
    shared = [name for name, count in Counter(op.buffer for op in loads).items() if count >= FEW]
    plain = all(op.kind == "sum" if type(op) is Reduce else type(op) not in (Store, Indirect, Scan) for op in ops)
    way = _way(axes, _needed([*outside, *ops], [op for op in loads if op.buffer in shared]),
               STEPS) if shared and plain else None
    if way is None:
        return None
    axis, count = way
    fewer = Axis.of(axis.symbol.name, axis.extent.const // count)
    b = Builder()
    replays = [Replay(b, {axis.symbol: fewer.symbol * count + k}, {op: op for op in outside}) for k in range(count)]
    found: dict[Op, Op] = {}
    for op in ops:
        if type(op) is not Reduce:
            for replay in replays:
                replay.run((op,))
            continue
        total, *rest = (replay.values[op.args[0]] for replay in replays)
        for value in rest:
            total = b.scalar("add", total, value)
        found[op] = b.reduce("sum", (total,), op.dtype)
    return tuple([fewer if a is axis else a for a in axes]), tuple(b.ops), found


def _way(axes: Sequence[Axis], needed: Sequence[Op], most: int) -> tuple[Axis, int] | None:
    """Return the axis along which `needed`, loads and their conditions, are shared, and the best number of results or
    steps (at most `most`). Of two axes the inner one is chosen, along which shared values have short lifetimes."""
    positions = max(Counter(op.buffer for op in needed if type(op) is Load).values(), default=0)
    for a in reversed(axes):
        counts = [n for n in _divisors(a) if n <= most]
        counts = [n for n in counts if n * positions <= POSITIONS] or counts[:1]
        reads = {n: _reads(needed, a, n) for n in counts}
        best = min(reads, key=reads.__getitem__, default=1)
        if best > 1 and reads[best] <= WORTH * _reads(needed, a, 1):
            return a, best
    return None


def _needed(ops: Sequence[Op], loads: Sequence[Load]) -> list[Op]:
    """`loads` and their conditions, in order."""
    found = needed((), loads)
    return [op for op in ops if op in found]


def _last(axes: Sequence[Axis], ops: Sequence[Op]) -> Axis | None:
    """Return the axis along which all results are contiguous, if it is whole vectors."""
    stores = [op for op in ops if type(op) is Store]
    found = [a for a in axes if stores and all(op.mode is None and op.index.coeff(a.symbol) == 1 for op in stores)]
    return found[0] if found and found[0].extent.is_const and found[0].extent.const % VECTOR == 0 else None


def _reads_what_it_wrote(ops: Sequence[Op]) -> bool:
    written: set[str] = set()
    for op in ops:
        if type(op) is Store:
            written.add(op.buffer)
        elif type(op) is Load and op.buffer in written:
            return True
    return False


def _divisors(a: Axis) -> list[int]:
    return [d for d in range(2, MOST + 1) if a.extent.const % d == 0] if a.extent.is_const else []


def _reads(needed: Sequence[Op], axis: Axis, count: int) -> float:
    """Return the number of loads for each result, with `count` results along `axis`."""
    b = Builder()
    symbol = Axis.of(axis.symbol.name, axis.extent.const // count).symbol if axis.extent.is_const else axis.symbol
    for k in range(count):
        Replay(b, {axis.symbol: symbol * count + k}, {}).run(needed)
    return sum(type(op) is Load and not _never(op) for op in b.ops) / count


def _never(op: Load) -> bool:
    return bool(op.args) and type(op.args[0]) is Const and not op.args[0].value


def _written(
    axes: Sequence[Axis], last: Axis, way: tuple[Axis, int] | None, ops: Sequence[Op]
) -> tuple[tuple[Axis, ...], Axis, tuple[Op, ...]]:
    """Return the body repeated for each result of a thread, operation by operation, so that few shared values are live
    at once."""
    side, count = way if way is not None else (None, 1)
    vector = Axis.of("v", VECTOR)
    points: list[Axis] = []
    sub: dict[Expr, Expr | int] = {}
    for a in axes:
        extent = a.extent
        if a is side or a is last:
            extent = as_expr(extent.const // (VECTOR if a is last else count))
        cut = Axis.of(a.symbol.name, extent)
        if not (extent.is_const and extent.const == 1):
            points.append(cut)
        at = cut.symbol if cut in points else as_expr(0)
        sub[a.symbol] = at * VECTOR + vector.symbol if a is last else at * count if a is side else at
    b = Builder()
    replays = []
    for k in range(count):
        own = {**sub, side.symbol: sub[side.symbol] + k} if side is not None else sub
        replays.append(Replay(b, own, {}))
    for op in ops:
        for replay in replays:
            replay.run((op,))
    if not points:
        points.append(Axis.of("u", 1))
    return tuple(points), vector, tuple(_sunk(b.ops))


def _sunk(ops: Sequence[Op]) -> list[Op]:
    """Move conditions to just before their first use, so that few of them are live at once."""
    out: list[Op] = []
    done: set[Op] = set()

    def put(op: Op) -> None:
        if op not in done:
            done.add(op)
            for a in op.args:
                put(a)
            out.append(op)

    for op in ops:
        if type(op) is Store or op.dtype is not torch.bool:
            put(op)
    return out
