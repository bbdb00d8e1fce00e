"""Fusion: nests are merged, in order, with the cluster that saves them the most bytes of memory traffic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate
from typing import Any

from framesmith.loops.nest import Call, Compute, Item, LoopGraph
from framesmith.schedule.axes import collapse
from framesmith.schedule.column_reductions import along, fits
from framesmith.schedule.fused_nests import FusedNests, Member, joined
from framesmith.schedule.memory import lasts
from framesmith.schedule.target import MachineModel
from framesmith.schedule.tiles import is_tile
from framesmith.symbolic.expr import Symbol, typical

SHORT_RUN, LONG_RUN = 8, 16  # elements side by side: fewer than a vector's, and a vector full
UNKNOWN = 1 << 20  # stand-in for a symbolic number of elements
CANDIDATES = 6
MEMBERS = 48
COMBINED = 1 << 16  # element steps of a sum of pieces: as many as `split` makes of it


@dataclass(slots=True, eq=False)
class Group:
    """A node of the graph of future kernels: a cluster or a call. `before`: bit mask of the groups that must run first
    (transitively)."""

    bit: int
    cluster: FusedNests | None
    call: Call | None
    before: int = 0
    last: int = 0  # position of its last item in the loop graph
    items: list[int] = field(default_factory=list)


class Fusion:
    """One run over one loop graph. `bases`: the cluster of each nest alone, as far as it is known."""

    def __init__(self, graph: LoopGraph, enabled: bool, target: MachineModel, bases: dict[Compute, FusedNests]) -> None:
        self.graph = graph
        self.enabled = enabled
        self.target = target
        self.groups: list[Group] = []
        self.writers: dict[str, list[Group]] = {}
        self.readers: dict[str, list[Group]] = {}
        self.bases = bases
        self.inputs = frozenset(name for name, s in graph.storages.items() if s.kind == "input")
        self.raising: list[Group] = []
        self.finishing: list[Group] = []
        """Groups that write inputs: they run after all groups that may raise, as far as dependences allow."""
        self.positions = {id(item): k for k, item in enumerate(graph.items)}
        self.contractions = [*accumulate((isinstance(i, Call) or i.contract is not None for i in graph.items),
                                         initial=0)]

    def run(self) -> list[Group]:
        """Fuse, and return the groups in an executable order."""
        for position, item in enumerate(self.graph.items):
            if isinstance(item, Call):
                self._add_call(item, position)
            else:
                self._add_compute(item, position)
        return self._ordered()

    # ------------------------------------------------------------------------------------------------------ dependences

    def _predecessors(self, reads: frozenset[str], writes: frozenset[str]) -> list[Group]:
        """Groups that must run before an item with these reads and writes."""
        found: dict[int, Group] = {}
        for name in reads | writes:
            for group in self.writers.get(name, ()):
                found[group.bit] = group
        for name in writes:
            for group in self.readers.get(name, ()):
                found[group.bit] = group
        return list(found.values())

    def _predecessors_of(self, item: Item) -> list[Group]:
        found = self._predecessors(item.reads, item.writes)
        if self._finishes(item):
            found += [g for g in self.raising if g.items and g not in found]
        return found

    def _finishes(self, item: Item | FusedNests) -> bool:
        return not self.inputs.isdisjoint(item.writes)

    def _raises(self, item: Item | FusedNests) -> bool:
        """Return whether an item may raise; on a GPU an index out of range is fatal, as in eager."""
        return item.raises and not (self.target.tiles and not isinstance(item, Call))

    def _apart(self, a: Item | FusedNests, b: Item | FusedNests) -> bool:
        """Return whether one may raise, so that the other, which writes inputs, must run after it."""
        return self._raises(a) and self._finishes(b) or self._finishes(a) and self._raises(b)

    def _register(self, group: Group, item: Item) -> None:
        self._note_users(group, item.reads, item.writes)
        if self._finishes(item) and group not in self.finishing:
            self.finishing.append(group)
        if self._raises(item) and group not in self.raising:
            self.raising.append(group)
        if group in self.raising:
            for other in self.finishing:
                self._put_behind(other, group)

    def _put_behind(self, group: Group, first: Group) -> None:
        """Order `group` after `first`, unless `first` depends on it."""
        bit = 1 << group.bit
        if group is first or not group.items or first.before & bit:
            return
        group.before |= first.before | (1 << first.bit)
        for other in self.groups:
            if other.before & bit:
                other.before |= group.before

    def _note_users(self, group: Group, reads: frozenset[str], writes: frozenset[str]) -> None:
        for table, names in ((self.readers, reads), (self.writers, writes)):
            for name in names:
                users = table.setdefault(name, [])
                if group not in users:
                    users.append(group)

    def _closed(self, groups: list[Group]) -> int:
        mask = 0
        for g in groups:
            mask |= g.before | (1 << g.bit)
        return mask

    def _new(self, cluster: FusedNests | None, call: Call | None, preds: list[Group], position: int) -> Group:
        group = Group(len(self.groups), cluster, call, self._closed(preds), position, [position])
        self.groups.append(group)
        return group

    def _add_call(self, call: Call, position: int) -> None:
        self._register(self._new(None, call, self._predecessors_of(call), position), call)

    def _add_compute(self, compute: Compute, position: int) -> None:
        preds = self._predecessors_of(compute)
        may = self.enabled and (self.target.fused is None or position < self.target.fused)
        group = self._best(compute, preds) if may else None
        if group is None:
            group = self._new(self._base(compute), None, preds, position)
        else:
            self._extend(group, preds, position)
            self._absorb(group, preds)
        self._register(group, compute)

    def _extend(self, group: Group, preds: list[Group], position: int) -> None:
        added = self._closed([p for p in preds if p is not group]) & ~(1 << group.bit)
        group.before |= added
        group.last = position
        group.items.append(position)
        bit = 1 << group.bit
        for other in self.groups:
            if other.before & bit:
                other.before |= group.before

    def _can_join(self, group: Group, preds: list[Group]) -> bool:
        """Return whether no other predecessor runs after `group`."""
        bit = 1 << group.bit
        return all(p is group or not p.before & bit for p in preds)

    # ----------------------------------------------------------------------------------------------------------- choice

    def _best(self, compute: Compute, preds: list[Group]) -> Group | None:
        scores: dict[int, int] = {}
        for name in compute.reads:
            bytes_ = self._bytes(name)
            for group in self.writers.get(name, ()):
                if group.cluster is not None:
                    scores[group.bit] = scores.get(group.bit, 0) + 2 * bytes_ + 1
            for group in self.readers.get(name, ()):
                if group.cluster is not None:
                    scores[group.bit] = scores.get(group.bit, 0) + bytes_
        for name in compute.writes:
            for group in self.writers.get(name, ()):
                if group.cluster is not None:
                    scores[group.bit] = scores.get(group.bit, 0) + 1
        siblings = {group.bit for group in self._siblings(compute)}.difference(scores)
        scores.update(dict.fromkeys(siblings, 0))
        ranked = sorted(scores, key=lambda bit: (-scores[bit], -bit))[:CANDIDATES]
        for bit in ranked:
            group = self.groups[bit]
            cluster = group.cluster
            if cluster is None or len(cluster.members) >= MEMBERS or not self._can_join(group, preds):
                continue
            if self._apart(cluster, compute):
                continue
            merged = joined(cluster, compute, self._base(compute), bit in siblings)
            if merged is not None and self._is_kernel(merged) and self._pays(cluster, merged, compute, group,
                                                                             bit in siblings):
                group.cluster = merged
                return group
        return None

    def _siblings(self, compute: Compute) -> Iterable[Group]:
        """Yield the groups that read other results of a kernel that `compute` reads, if both are small: this fuses
        reductions that combine the parts of several sums."""
        if not self.target.tiles or not compute.raxes:
            return
        small = _work(self._base(compute).members[0], self._base(compute)) <= COMBINED
        for writer in {g for name in compute.reads for g in self.writers.get(name, ()) if g.cluster is not None}:
            assert writer.cluster is not None
            if not small and not any(m.compute.parts for m in writer.cluster.members):
                continue
            for name in sorted(writer.cluster.writes - compute.reads):
                yield from (g for g in self.readers.get(name, ()) if g.cluster is not None and g is not writer)

    def _base(self, compute: Compute) -> FusedNests:
        """Return the cluster of the compute alone, with its axes merged."""
        found = self.bases.get(compute)
        if found is None:
            found = self.bases[compute] = collapse(FusedNests.of(compute))
        return found

    def _bytes(self, name: str) -> int:
        storage = self.graph.storages[name]
        count: Any = 1
        for size in storage.size:
            count = count * size if type(size) is int else UNKNOWN
        return count * storage.dtype.itemsize

    def _is_kernel(self, cluster: FusedNests) -> bool:
        return not self.target.tiles or (is_tile(cluster) and fits(cluster))

    def _pays(self, old: FusedNests, new: FusedNests, compute: Compute, group: Group, apart: bool) -> bool:
        last = new.members[-1]
        feeds = bool(old.writes & compute.reads)
        if any(m.compute.parts for m in new.members):
            return feeds or (_meets(new) and (along(new) or all(m.compute.parts for m in new.members)))
        before, after, own = _estimate(old.shared, old), _estimate(new.shared, new), _estimate(last.par, new)
        work = max(_work(m, new) for m in new.members)
        parallel = after == before == own and (_meets(new) or not self._waits(compute, group))
        if work <= self.target.small_work:
            return feeds or bool(old.writes & compute.writes) or parallel
        if not feeds:
            return parallel and any(_same_loops(m, last) for m in (old.members if apart else old.members[-1:]))
        if self.target.tiles:
            return self._keeps_busy(new, after, max(before, own))
        if after < self.target.enough_trips and after < min(before, own):
            return False
        if after < before or after < own:
            return _row_bytes(new, self) <= self.target.row_bytes and not self._chopped(new)
        return True

    def _waits(self, compute: Compute, group: Group) -> bool:
        """Return whether the result of `compute` would be live during calls or contractions between it and `group`: too
        long a lifetime for one launch saved."""
        storages, little = self.graph.storages, self.target.little
        calls = self.contractions[self._position(compute)] - self.contractions[group.last]
        return calls > 0 and not all(lasts(storages[name], little) for name in compute.writes)

    def _keeps_busy(self, cluster: FusedNests, trips: int, before: int) -> bool:
        """Return whether tiles of the cluster occupy the machine as well as its parts did, or each has little work."""
        return trips >= min(before, self.target.enough_trips) or _row_bytes(cluster, self) <= self.target.row_bytes

    def _absorb(self, group: Group, preds: list[Group]) -> None:
        """Merge other producer clusters entirely into the group just extended."""
        for other in preds:
            if other is group or other.cluster is None or group.cluster is None or not other.items:
                continue
            if len(other.cluster.members) + len(group.cluster.members) > MEMBERS or not self._can_merge(other, group):
                continue
            if self._apart(other.cluster, group.cluster):
                continue
            merged = self._merged(other.cluster, group)
            if merged is None:
                continue
            self._replace(other, group, merged)

    def _can_merge(self, a: Group, b: Group) -> bool:
        """Return whether no path between the two goes through a third group."""
        bit_a, bit_b = 1 << a.bit, 1 << b.bit
        for g in self.groups:
            if g is a or g is b or not g.items:
                continue
            if (g.before & bit_a and b.before & (1 << g.bit)) or (g.before & bit_b and a.before & (1 << g.bit)):
                return False
        return True

    def _merged(self, other: FusedNests, group: Group) -> FusedNests | None:
        assert group.cluster is not None
        order = sorted(
            [*(m.compute for m in other.members), *(m.compute for m in group.cluster.members)], key=self._position
        )
        if self.target.tiles:
            order = _connected(order)
        cluster = self._base(order[0])
        for compute in order[1:]:
            bigger = joined(cluster, compute, self._base(compute))
            if bigger is None or not self._is_kernel(bigger):
                return None
            feeds = bool(cluster.writes & compute.reads) or not cluster.reads.isdisjoint(compute.reads)
            if not feeds:
                return None
            cluster = bigger
        after = _estimate(cluster.shared, cluster)
        before = [_estimate(c.shared, c) for c in (other, group.cluster)]
        work = max(_work(m, cluster) for m in cluster.members)
        target = self.target
        if work <= target.small_work:
            return cluster
        if target.tiles:
            return cluster if self._keeps_busy(cluster, after, max(before)) else None
        if after < min(target.enough_trips,
                       *before) or _row_bytes(cluster, self) > target.row_bytes or self._chopped(cluster):
            return None
        return cluster

    def _chopped(self, cluster: FusedNests) -> bool:
        """Return whether a member with much work would get contiguous runs shorter than a vector, but has longer ones
        alone."""
        if cluster.contract is not None:
            return False
        for m in cluster.members:
            if _work(m, cluster) > self.target.small_work and _run(m, cluster) < SHORT_RUN:
                base = self._base(m.compute)
                if _run(base.members[0], base) >= LONG_RUN:
                    return True
        return False

    def _position(self, compute: Compute) -> int:
        return self.positions[id(compute)]

    def _replace(self, other: Group, group: Group, merged: FusedNests) -> None:
        group.cluster = merged
        group.items = sorted(group.items + other.items)
        bit, gone = 1 << group.bit, 1 << other.bit
        group.before = (group.before | other.before) & ~bit & ~gone
        other.items = []
        for g in self.groups:
            if g.before & (bit | gone) and g is not group:
                g.before = (g.before | group.before | bit) & ~gone
        for users in (self.raising, self.finishing):
            if other in users:
                users[:] = [*(u for u in users if u is not other and u is not group), group]
        for table in (self.readers, self.writers):
            for name, users in table.items():
                if other in users:
                    table[name] = [*(u for u in users if u is not other and u is not group), group]

    # ------------------------------------------------------------------------------------------------------------ order

    def _ordered(self) -> list[Group]:
        """Order groups topologically; among ready ones, the first in the program, so that a result is used soon and
        does not stay live longer than necessary."""
        live = [g for g in self.groups if g.items]
        known = 0
        for g in live:
            known |= 1 << g.bit
        done, out = 0, []
        ready: list[tuple[int, int]] = []
        waiting: dict[int, list[Group]] = {}  # by one of those that each waits for
        fresh = live
        while fresh or ready:
            for g in fresh:
                if missing := g.before & known & ~done & ~(1 << g.bit):
                    waiting.setdefault(missing.bit_length() - 1, []).append(g)
                else:
                    heappush(ready, (g.items[0], g.bit))
            assert ready, "cycle among kernels"
            bit = heappop(ready)[1]
            done |= 1 << bit
            out.append(self.groups[bit])
            fresh = waiting.pop(bit, [])
        assert not waiting, "cycle among kernels"
        return out


def _estimate(axes: Iterable[Symbol], cluster: FusedNests) -> int:
    """Return the number of iterations over `axes`, with a typical value for symbolic extents."""
    total = 1
    for s in axes:
        total *= typical(cluster.axes[s])
    return total


def _work(m: Member, cluster: FusedNests) -> int:
    return _estimate((*m.par, *m.red), cluster)


def _run(m: Member, cluster: FusedNests) -> int:
    """Return the longest contiguous run of one of a member's loops."""
    indices = [*(index for _, index, _ in m.loads), *(index for _, index in m.stores)]
    return max((_estimate((s,), cluster) for s in (*m.par, *m.red) if any(index.coeff(s) == 1 for index in indices)),
               default=1)


def _connected(computes: list[Compute]) -> list[Compute]:
    """Reorder within dependences so that each nest reads buffers that earlier ones read or write, where possible."""
    order, rest = [computes[0]], computes[1:]
    known = set(computes[0].reads | computes[0].writes)
    while rest:
        free = [c for k, c in enumerate(rest) if not any(_depends(c, other) for other in rest[:k])]
        chosen = next((c for c in free if not known.isdisjoint(c.reads)), free[0])
        rest.remove(chosen)
        order.append(chosen)
        known |= chosen.reads | chosen.writes
    return order


def _depends(later: Compute, earlier: Compute) -> bool:
    return not (earlier.writes.isdisjoint(later.reads | later.writes) and earlier.reads.isdisjoint(later.writes))


def _meets(cluster: FusedNests) -> bool:
    """Return whether the last member reads an element that another member reads."""
    *others, last = cluster.members
    read = {(name, index) for m in others for name, index, _ in m.loads}
    return any((name, index) in read for name, index, _ in last.loads)


def _same_loops(a: Member, b: Member) -> bool:
    return set(a.par) == set(b.par) and set(a.red) == set(b.red)


def _row_bytes(cluster: FusedNests, fusion: Fusion) -> int:
    """Return the bytes that one shared iteration accesses in private loops."""
    widest = 1
    buffers: set[str] = set()
    for m in cluster.members:
        private = [s for s in (*m.par, *m.red) if s not in cluster.shared]
        widest = max(widest, _estimate(private, cluster))
        for name, index, _ in m.loads:
            if not index.free.isdisjoint(private):
                buffers.add(name)
    return widest * 4 * max(1, len(buffers))


def fuse(graph: LoopGraph, enabled: bool, target: MachineModel,
         bases: dict[Compute, FusedNests] | None = None) -> list[Group]:
    """Partition the items of `graph` into kernels and calls, in order. `bases`: shared between graphs with common
    nests."""
    return Fusion(graph, enabled, target, {} if bases is None else bases).run()
