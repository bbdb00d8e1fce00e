"""Kernels that are programs over tiles: legality of fusion, and recomputation of values instead of storing them.

    par i0 < rows:                     # a tile has some rows ...
      red i1 < row: max of x           # ... and all loops inside run over the same domain
      red i2 < row: sum of exp(x - max)
      for i3 < row: store exp(x - max) / sum      # exp(x - max) is computed again: no array holds it
"""

from __future__ import annotations

from framesmith.loops.build import Replay
from framesmith.loops.ir import Load, Op, Scan, needed
from framesmith.schedule.blocks import Placer
from framesmith.schedule.fused_nests import FusedNests, Member, Substitutes
from framesmith.symbolic.expr import Expr, Substitution


def is_tile(cluster: FusedNests) -> bool:
    """Return whether the members' private loops have one domain, and members conflict only at equal indices. A member
    that reads a window has none."""
    shared, domain = cluster.shared, None
    windows = any(m.compute.window for m in cluster.members)
    for m in cluster.members:
        private = (frozenset(m.par) | frozenset(m.red)) - shared
        if not private:
            continue
        if windows:
            return False
        if domain is None:
            domain = private
        if private != domain or (m.red and not shared.issuperset(m.par)) or (len(private) > 1 and _scans(m)):
            return False
    return _meets_in_place(cluster)


def _scans(member: Member) -> bool:
    return any(type(op) is Scan for op in member.compute.inner)


def _meets_in_place(cluster: FusedNests) -> bool:
    stored: dict[str, Expr] = {}
    for m in cluster.members:
        for name, index in m.stores:
            if stored.setdefault(name, index) is not index:
                return False
    return all(stored.get(name, index) is index or _alone(cluster, name, m) for m in cluster.members for name, index,
               _ in m.loads)


def _alone(cluster: FusedNests, name: str, member: Member) -> bool:
    """Return whether only `member` writes `name`: it reads only its own stores there."""
    return all(m is member for m in cluster.members if name in m.compute.writes)


class Recompute:
    """Recomputes values of members from an earlier loop where a later loop loads them."""

    def __init__(self, cluster: FusedNests, placer: Placer, to: Substitutes) -> None:
        self.members, self.placer, self.to = cluster.members, placer, to
        self.order = {m: k for k, m in enumerate(cluster.members)}
        self.writers: dict[str, list[Member]] = {}
        for m in cluster.members:
            for name in m.compute.writes:
                self.writers.setdefault(name, []).append(m)
        self._possible: dict[Member, bool] = {}

    def value(self, reader: Member, op: Load, index: Expr) -> Op | None:
        """Return the value that `reader` loads by `op` (at `index` in the kernel), recomputed; None if it must be
        loaded."""
        found = self.placer.forward.get((op.buffer, index))
        if found is not None:
            return found
        writer = self._writer(op.buffer, reader)
        if writer is None or not self._is_possible(writer):
            return None
        store = next(s for s in writer.compute.stores if s.buffer == op.buffer)
        full = Substitution(self.to).composed(writer.sub)
        values: dict[Op, Op] = {}
        ops = writer.compute.ops
        read = needed(ops, store.args)
        Replay(self.placer, full, values, lambda o, i: self.value(writer, o, i)).run([op for op in ops if op in read])
        result = self.placer.forward[op.buffer, index] = values[store.args[0]]
        return result

    def _writer(self, name: str, reader: Member) -> Member | None:
        """Return the only member that writes `name`, if it precedes `reader`."""
        writers = self.writers.get(name, [])
        return writers[0] if len(writers) == 1 and self.order[writers[0]] < self.order[reader] else None

    def _is_possible(self, m: Member) -> bool:
        """Return whether the elements that `m` stores can be recomputed later: its operands are not overwritten."""
        known = self._possible.get(m)
        if known is None:
            plain = not m.compute.raxes and all(s.mode is None and len(s.args) == 1 for s in m.compute.stores)
            known = self._possible[m] = plain and all(self._stays(name, m) for name, _, _ in m.loads)
        return known

    def _stays(self, name: str, m: Member) -> bool:
        writer = self._writer(name, m)
        if writer is None:
            return name not in self.writers
        return bool(writer.compute.raxes) or self._is_possible(writer)

