"""Emission of kernels from clusters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from framesmith.loops.contract import Contract
from framesmith.loops.ir import (
    Axis,
    Indirect,
    Kernel,
    Launch,
    Load,
    Local,
    Loop,
    Node,
    Op,
    Param,
    Pred,
    Reduce,
    Scalar,
    Store,
    needed,
    walk,
)
from framesmith.loops.nest import Storage
from framesmith.loops.product import MatrixProduct
from framesmith.prims.scalars import SCALAR_OPS
from framesmith.schedule.axes import collapse, ordered, scores, steps
from framesmith.schedule.blocks import Placer, Replayed
from framesmith.schedule.fused_nests import FusedNests, Substitutes, shared_part, trips
from framesmith.schedule.stages import Stage, stages
from framesmith.schedule.tiles import Recompute
from framesmith.symbolic.expr import Expr, Symbol, as_expr, prod
from framesmith.util.precision import HALF, compute_dtype

LOCAL_BYTES = 1 << 16  # of all local arrays of a kernel
_MEMORY = (Load, Store)
_TYPE_NUMBERS = frozenset((8, 16, 64))  # i8, i16 and i64 are types in generated code, no axes
BREAKS = 3  # segments into which a loop may be cut at conditions on its axis, less one


class Emission:
    """One cluster being turned into a kernel."""

    def __init__(
        self, cluster: FusedNests, storages: dict[str, Storage], inside: frozenset[str], vectorize: bool = True,
        tiles: bool = False,
        rounding: bool = False,
    ) -> None:
        self.cluster = collapse(cluster)
        self.tiles = tiles
        self.storages = storages
        self.inside = inside  # buffers that no other step touches
        self.names = 0
        self.vectorize = vectorize
        self.placer = Placer({n: s.dtype for n, s in storages.items() if s.dtype in HALF} if rounding else {})
        self.outer: list[Symbol] = []
        self.wrap: Symbol | None = None  # a vector axis around all stages
        self.to: Substitutes = {}
        self.again = Recompute(self.cluster, self.placer, self.to).value if tiles else None

    def run(self) -> Launch:
        cluster = self.cluster
        if cluster.contract is not None:
            return self._contraction()
        if self.tiles and any(not cluster.shared.issuperset((*m.par, *m.red)) for m in cluster.members):
            return self._rows()
        vector = self._vector_axis()
        outside = cluster.shared
        if vector is not None and len(plain := stages(cluster, outside)) == 1 and not (plain[0].par or plain[0].red):
            outside = outside - {vector}  # pure pointwise: the vector loop is the inner loop
        elif vector is not None:
            self.wrap = vector
        nest = stages(cluster, outside)
        self.outer = ordered(cluster, cluster.members, [s for s in cluster.axes if s in outside], None)
        tile = self._tile(vector, nest)
        if self.wrap is not None:
            self.outer.remove(self.wrap)
        outer = [self._axis(s) for s in self.outer]
        wrapped = self._axis(self.wrap) if self.wrap is not None else None
        for stage in nest:
            self._stage(stage, vector if self.wrap is None else None, outside)
        body: tuple[Node, ...] = tuple(self.placer.body)
        body, locals_ = self._memory(body)
        if wrapped is not None:
            body = (Loop(wrapped, body, False, True),)
        return self._finish(outer, body, locals_, tile)

    def _rows(self) -> Launch:
        """Emit a tile program: the shared axes, with loops over the same axes in the same order inside."""
        cluster, members = self.cluster, self.cluster.members
        domain = [s for s in cluster.axes if s not in cluster.shared]
        self.outer = ordered(cluster, members, [s for s in cluster.axes if s in cluster.shared], None)
        outer = [self._axis(s) for s in self.outer]
        last = max(domain, key=lambda s: (sum(scores(cluster, m).get(s, 0.0) for m in members), domain.index(s)))
        domain = ordered(cluster, members, domain, last)
        for stage in stages(cluster, cluster.shared):
            loops = [self._axis(s) for s in domain] if stage.par or stage.red else []
            self._emit(stage, loops, 0 if stage.red else len(loops), None)
        body, locals_ = self._memory(tuple(self.placer.body))
        return self._finish(outer, body, locals_, None)

    def _contraction(self) -> Launch:
        """Emit a tile loop whose body is the members in order, the first starting from the accumulator."""
        cluster, placer = self.cluster, self.placer
        first = cluster.members[0]
        m, n = (next(iter(as_expr(first.sub[a.symbol]).free)) for a in first.compute.axes[-2:])
        self.outer = [s for s in cluster.axes if s is not m and s is not n]
        outer = [self._axis(s) for s in self.outer]
        tile = [self._axis(m), self._axis(n)]
        placer.open([a.symbol for a in tile], 2)
        for member in cluster.members:
            Replayed(placer, member, self.to).inner()
        plan = cluster.contract
        placer.close_contraction(
            lambda body: plan.node(*tile, lambda e: e.subs(first.sub).subs(self.to), body), [a.symbol for a in tile]
        )
        body, locals_ = self._memory(tuple(placer.body))
        return self._finish(outer, body, locals_, None)

    # ------------------------------------------------------------------------------------------------------------- axes

    def _axis(self, s: Symbol, extent: Expr | None = None, start: int = 0) -> Axis:
        """Return a fresh canonical symbol for a cluster axis, or for a run of it from `start`."""
        extent = self.cluster.axes[s] if extent is None else extent
        while self.names in _TYPE_NUMBERS:
            self.names += 1
        axis = Axis.of(f"i{self.names}", extent)
        self.names += 1
        self.to[s] = axis.symbol + start
        return axis

    def _vector_axis(self) -> Symbol | None:
        """Return a shared axis if vectorising it is better than vectorising each stage along an axis of its own."""
        cluster = self.cluster
        shared: dict[Symbol, float] = {}
        private = 0.0
        for m in cluster.members:
            best = 0.0
            for s, value in scores(cluster, m).items():
                if s in cluster.shared:
                    shared[s] = shared.get(s, 0.0) + value
                else:
                    best = max(best, value)
            private += best
        if not shared:
            return None
        axis = max(shared, key=lambda s: (shared[s], list(cluster.axes).index(s)))
        return axis if shared[axis] > private else None

    def _stage_vector(self, stage: Stage, loops: Iterable[Symbol]) -> Symbol | None:
        total: dict[Symbol, float] = {}
        loops = list(loops)
        for m in stage.members:
            for s, value in scores(self.cluster, m).items():
                if s in loops:
                    total[s] = total.get(s, 0.0) + value
        return max(total, key=lambda s: (total[s], loops.index(s))) if total else (loops[-1] if loops else None)

    def _tile(self, vector: Symbol | None, nest: list[Stage]) -> tuple[Symbol, Symbol] | None:
        """Return the axis to place just outside the vector loop of a pointwise kernel, some of whose accesses are
        contiguous along it."""
        if vector is None or self.wrap is not None or len(nest) != 1:
            return None
        for m in nest[0].members:
            for _, index, _ in m.loads:
                row = steps(index, [*self.outer, vector])
                for s in self.outer:
                    if row[s] == 1 and row[vector] not in (0, 1, None) and (trips([s], self.cluster.axes) or 8) >= 8:
                        self.outer.remove(s)
                        self.outer.append(s)
                        return s, vector
        return None

    # ----------------------------------------------------------------------------------------------------------- stages

    def _stage(self, stage: Stage, vector: Symbol | None, outside: frozenset[Symbol]) -> None:
        cluster = self.cluster
        loops = [s for s in cluster.axes if s in stage.par or s in stage.red]
        if vector is None and self.wrap is None:
            vector = self._stage_vector(stage, loops)
        members = stage.members
        par = ordered(cluster, members, [s for s in loops if s in stage.par], vector)
        red = ordered(cluster, members, [s for s in loops if s in stage.red], vector)
        cuts = self._cuts(stage, vector) if not red and vector is not None and not self.tiles else []
        if not cuts:
            self._emit(stage, [self._axis(s) for s in (*par, *red)], len(par), vector)
            return
        assert vector is not None
        bounds = [0, *cuts, cluster.axes[vector].const]
        outer = [self._axis(s) for s in par if s is not vector]
        for low, high in zip(bounds, bounds[1:]):
            if low:
                outer = [self._axis(s) for s in par if s is not vector]
            inner = self._axis(vector, as_expr(high - low), low)
            self._emit(stage, [*outer, inner], len(par), vector)

    def _emit(self, stage: Stage, loops: list[Axis], par: int, vector: Symbol | None) -> None:
        placer = self.placer
        symbol = None
        if vector is not None and vector in self.to and self.vectorize:
            own = [a.symbol for a in loops if a.symbol in as_expr(self.to[vector]).free]
            symbol = own[0] if own else None
        placer.open([a.symbol for a in loops], par)
        running = [Replayed(placer, m, self.to, self.again) for m in stage.inner]
        for r in running:
            r.inner()
        placer.after_reduction()
        for r in running:
            if r.member.compute.raxes:
                r.post()
        for m in stage.post:
            Replayed(placer, m, self.to, self.again).inner()
        placer.close(loops, symbol)

    def _cuts(self, stage: Stage, vector: Symbol) -> list[int]:
        """Return the points where conditions on the vector axis alone change, in order: the loop is split there, and no
        part has them. Empty if the extent is symbolic or there are too many."""
        extent = self.cluster.axes[vector]
        if not extent.is_const:
            return []
        found: set[int] = set()
        for m in stage.members:
            for op in (*m.compute.inner, *m.compute.ops):
                if type(op) is not Pred:
                    continue
                difference = (op.rhs - op.lhs).subs(m.sub)
                if difference.free != frozenset((vector,)):
                    continue
                k = difference.coeff(vector)
                if k is None or not k:
                    continue
                c = difference.subs({vector: 0}).const
                found.add(-c // k + 1 if k > 0 else -(-c // -k))
        cuts = sorted(p for p in found if 0 < p < extent.const)
        return cuts if len(cuts) <= BREAKS else []

    # ----------------------------------------------------------------------------------------------------------- memory

    def _memory(self, body: tuple[Node, ...]) -> tuple[tuple[Node, ...], tuple[Local, ...]]:
        """Remove dead stores and dead operations, and place buffers that only this kernel reads in local arrays."""
        written = {op.buffer for op in walk(body) if type(op) is Store and op.mode is None and op.buffer in self.inside}
        body = _live(body, written - {op.buffer for op in walk(body) if type(op) is Load})
        remaining = {op.buffer for op in walk(body) if type(op) is Store} & written
        locals_: list[Local] = []
        free = LOCAL_BYTES
        for name in sorted(remaining, key=lambda n: self._first_store(n)):
            shift = self._local(name, body) if self.wrap is None and not self.tiles else None
            if shift is None:
                continue
            base, size = shift
            dtype = self.storages[name].dtype
            kind = compute_dtype(dtype)
            if size * kind.itemsize > free:
                continue
            free -= size * kind.itemsize
            local = Local(f"t{len(locals_)}", kind, size)
            locals_.append(local)
            for op in walk(body):
                if type(op) in (Load, Store) and op.buffer == name:  # type: ignore[union-attr]
                    op.buffer, op.index = local.name, op.index - base  # type: ignore[union-attr]
        return body, tuple(locals_)

    def _first_store(self, name: str) -> int:
        for k, m in enumerate(self.cluster.members):
            if name in m.compute.writes:
                return k
        return len(self.cluster.members)

    def _local(self, name: str, body: tuple[Node, ...]) -> tuple[Expr, int] | None:
        """Return the offset to subtract from every index of `name` to get the private part, and the size of that part;
        None if accesses have no such common part, or it has no known bounds."""
        cluster = self.cluster
        base: Expr | None = None
        low, high = 0, 0
        for m in cluster.members:
            for buffer, index in [*((n, i) for n, i, _ in m.loads), *m.stores]:
                if buffer != name:
                    continue
                part = shared_part(index, cluster)
                if part is None or (base is not None and part is not base):
                    return None
                base = part
                rest = index - part
                if rest.lo is None or rest.hi is None or not cluster.shared.isdisjoint(rest.free):
                    return None
                low, high = min(low, rest.lo), max(high, rest.hi)
        if base is None or low < 0:
            return None
        return base.subs(self.to), high + 1

    # ----------------------------------------------------------------------------------------------------------- finish

    def _finish(
        self, outer: list[Axis], body: tuple[Node, ...], locals_: tuple[Local, ...], tile: tuple[Symbol, Symbol] | None
    ) -> Launch:
        local_names = {t.name for t in locals_}
        modes: dict[str, set[str]] = {}
        for op in walk(body):
            if type(op) is Load and op.buffer not in local_names:
                modes.setdefault(op.buffer, set()).add("r")
            elif type(op) is Store and op.buffer not in local_names:
                modes.setdefault(op.buffer, set()).update("rw" if op.mode == "add" else "w")
            elif type(op) is Contract:
                modes.setdefault(op.a, set()).add("r")
                modes.setdefault(op.b, set()).add("r")
        rename = {name: f"p{k}" for k, name in enumerate(modes)}
        body = tuple(replace(n, a=rename[n.a], b=rename[n.b]) if type(n) is Contract else n for n in body)
        params = []
        for name, mode in modes.items():
            text = "rw" if len(mode) == 2 else next(iter(mode))
            params.append(Param(rename[name], self.storages[name].dtype, text, host=self.storages[name].is_host_number))
        symbols: dict[Symbol, None] = {}
        for op in walk(body):
            if type(op) in _MEMORY:
                op.buffer = rename.get(op.buffer, op.buffer)  # type: ignore[union-attr]
            for e in op.expressions:
                symbols.update((s, None) for s in sorted(e.free, key=str) if s.name[0] not in "ij")
        for axis in outer:
            symbols.update((s, None) for s in axis.extent.free)
        work, bytes_ = _work(outer, body), _bytes(self.storages, modes)
        pair = None
        if tile is not None:
            ends = [next(iter(as_expr(self.to[s]).free)) for s in tile]
            pair = (ends[0], ends[1])
        parts = max(m.compute.parts for m in self.cluster.members)
        kernel = Kernel(tuple(params), tuple(symbols), locals_, tuple(outer), body, work, bytes_, pair, parts)
        origins = dict.fromkeys(o for m in self.cluster.members for o in m.compute.origins)
        return Launch(kernel, tuple(modes), tuple(origins))


def _live(body: tuple[Node, ...], dead_buffers: set[str]) -> tuple[Node, ...]:
    """Return `body` without stores into `dead_buffers` and without operations that no store needs."""
    every = [n for n in walk(body) if isinstance(n, Op)]
    return _pruned(body, needed(every, [op for op in every if type(op) is Store and op.buffer not in dead_buffers]))


def _pruned(body: tuple[Node, ...], live: set[Op]) -> tuple[Node, ...]:
    out: list[Node] = []
    for node in body:
        if not isinstance(node, Op):
            inner = _pruned(node.body, live)
            if inner or type(node) is not Loop:
                out.append(replace(node, body=inner))
        elif node in live:
            out.append(node)
    return tuple(out)


def _cost(op: Node) -> int:
    if type(op) is Scalar:
        return SCALAR_OPS[op.name].cost
    return 1 if type(op) in (Load, Store, Reduce, Indirect) else 0


def _work(outer: list[Axis], body: tuple[Node, ...]) -> Expr:
    return prod(a.extent for a in outer) * _block_work(body)


def _block_work(body: tuple[Node, ...]) -> Expr:
    total = as_expr(0)
    for node in body:
        if isinstance(node, Op):
            total = total + _cost(node)
            continue
        inner = _block_work(node.body)
        if type(node) is MatrixProduct:
            inner = inner + (_block_work(node.left + node.right) + 1) * node.k.extent
        elif type(node) is Contract:
            inner = inner + node.depth * node.runs[0] * node.runs[1]
        total = total + prod(a.extent for a in node.axes) * inner
    return total


def _bytes(storages: dict[str, Storage], modes: dict[str, set[str]]) -> Expr:
    total = as_expr(0)
    for name, mode in modes.items():
        count = as_expr(storages[name].dtype.itemsize * len(mode))
        for size in storages[name].size:
            count = count * size
        total = total + count
    return total


def emit(
    cluster: FusedNests, storages: dict[str, Storage], inside: frozenset[str], vectorize: bool = True,
    tiles: bool = False,
    rounding: bool = False,
) -> Launch:
    """Return the launch of the kernel that computes the cluster. `inside`: the buffers that no other step accesses;
    `tiles`: see `MachineModel`; `rounding`: see `schedule`."""
    return Emission(cluster, storages, inside, vectorize, tiles, rounding).run()


