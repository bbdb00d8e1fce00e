"""Fuse sums over rows into a kernel that iterates over these rows: each program iterates over the rows of a part,
accumulates a sum for each column, and shared operands are read once. A separate nest combines the parts (`split.py`).

    t[r] = sum over c < 768 of a[r, c]               for each part < 256, for its rows r:
    b[r, c] = a[r, c] - t[r]                           t = sum over c of a[r, c]
    s[c] = sum over r < 16384 of a[r, c]               b[r, c] = a[r, c] - t
                                                       part[part, c] sums up a[r, c]
                                                     s[c] = sum over p < 256 of part[p, c]

Candidates are chosen by their shapes; fusion decides whether a kernel over rows includes them, and the others are
computed separately.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from framesmith.loops.ir import Axis, Reduce
from framesmith.loops.nest import Compute, LoopGraph
from framesmith.schedule.fused_nests import FusedNests
from framesmith.schedule.split import runs_across
from framesmith.schedule.target import MachineModel
from framesmith.symbolic.expr import Expr, prod

PARTS, PARTS_WIDE = 4, 2  # for each unit, and where rows are long, ...
WIDE = 1 << 11  # ... of more columns than so many
FEWEST = 8  # rows of a part ...
EVEN = 4  # ... which are a multiple of so many
ROWS = 1 << 10
COLUMNS = range(128, 4096 + 1, 8)  # rows of a tile, of whole vectors


def walks(graph: LoopGraph, target: MachineModel) -> dict[int, int]:
    """Return the places in `graph` of candidate sums, with their numbers of parts: some nest iterates over as many rows
    of as many columns."""
    if not target.units:
        return {}
    nests = [(k, c) for k, c in enumerate(graph.items) if isinstance(c, Compute) and c.raxes and c.contract is None]
    rows = {(_length(c.axes), _length(c.raxes)) for _, c in nests if not runs_across(c)}
    found = {k: _parts(c, target.units) for k, c in nests if (_length(c.raxes), _length(c.axes)) in rows}
    return {k: parts for k, parts in found.items() if parts}


def _length(axes: Iterable[Axis]) -> Expr:
    return prod(a.extent for a in axes)


def _parts(c: Compute, units: int) -> int:
    """Return the number of parts in which `c` may be fused; 0 if it may not."""
    columns, rows = _length(c.axes), _length(c.raxes)
    sums = all(op.kind == "sum" and op.dtype is torch.float32 for op in c.inner if type(op) is Reduce)
    if not (sums and columns.is_const and columns.const in COLUMNS and runs_across(c)) or c.window or c.opaque:
        return 0
    most = (PARTS_WIDE if columns.const > WIDE else PARTS) * units
    if not rows.is_const:
        return most
    each = max(-(-rows.const // most), FEWEST)
    return -(-rows.const // (-(-each // EVEN) * EVEN)) if rows.const >= ROWS else 0


def fits(cluster: FusedNests) -> bool:
    """Return whether `cluster` can be a tile kernel as far as its column sums are concerned; a cluster without a member
    over rows needs one to join."""
    sums = [m for m in cluster.members if m.compute.parts]
    if len({m.compute.parts for m in sums}) > 1 or any(m.compute.parts and m.red for m in sums):
        return False
    kept = [frozenset(s for s in m.par if any(s in index.free for _, index in m.stores)) for m in sums]
    if not any(m.red for m in cluster.members):
        return all(cluster.shared.issuperset(m.par) for m in sums)
    domain = frozenset(cluster.axes) - cluster.shared
    return all(axes == domain and cluster.shared <= frozenset(m.par) for axes, m in zip(kept, sums, strict=True))


def along(cluster: FusedNests) -> bool:
    """Return whether the cluster has both column sums and members over rows."""
    return any(m.red for m in cluster.members) and fits(cluster)


def alone(walked: Iterable[int], graph: LoopGraph, clusters: Iterable[FusedNests]) -> set[int]:
    """Return those of `walked`, places of `walks`, that no kernel over rows in `clusters`, made of `graph`, includes.
    With an unknown number of rows, also those that share an operand with one of these: otherwise they would be one
    kernel, which is not split."""
    taken = {m.compute for c in clusters if along(c) for m in c.members}
    sums = dict(zip(sorted(walked), [c for c in graph.items if isinstance(c, Compute) and c.parts], strict=True))
    left = {k for k, c in sums.items() if c not in taken}
    read = frozenset().union(*(sums[k].reads for k in left))
    return left | {k for k, c in sums.items() if not (_length(c.axes).is_const or read.isdisjoint(c.reads))}
