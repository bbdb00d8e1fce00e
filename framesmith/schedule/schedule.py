"""Schedule a loop graph into a program: fuse, emit kernels, plan memory."""

from __future__ import annotations

from framesmith.loops.ir import Buffer, Extern, Kernel, Launch, Program, Step
from framesmith.loops.nest import Compute, LoopGraph
from framesmith.loops.text import kernel_text
from framesmith.loops.uses import named, names_in
from framesmith.schedule.batch import batched, kernels_of
from framesmith.schedule.column_reductions import alone, walks
from framesmith.schedule.emit import emit
from framesmith.schedule.fuse import Group, fuse
from framesmith.schedule.fused_nests import FusedNests
from framesmith.schedule.inplace import in_place
from framesmith.schedule.memory import plan
from framesmith.schedule.repeat import repeated
from framesmith.schedule.split import split_reductions
from framesmith.schedule.target import CPU, MachineModel
from framesmith.symbolic.expr import as_expr


def schedule(
    graph: LoopGraph, fusion: bool = True, vectorize: bool = True, target: MachineModel = CPU,
    scoped_memory: bool = False,
    rounding: bool = False, tight: bool = False,
) -> Program:  # fmt: skip
    """Fuse the nests of `graph` into kernels, order them, and plan memory (`memory.plan`, also for `tight`).
    `fusion=False`: one kernel a nest. `rounding`: values that a nest passes to another in a 16-bit buffer are rounded
    even where the nests are fused."""
    graph, groups = _fused(graph, fusion, target)
    inside = _inside(graph, groups)
    kernels: dict[str, Kernel] = {}
    steps: list[Step] = []
    for group in groups:
        if group.call is not None:
            c = group.call
            steps.append(Extern(c.target, c.args, c.kwargs, c.outputs, c.mutates, c.origins))
            continue
        assert group.cluster is not None
        launch = emit(group.cluster, graph.storages, frozenset(inside.get(group.bit, ())), vectorize, target.tiles,
                      rounding)
        if launch.kernel.body:
            same = kernels.setdefault(kernel_text(launch.kernel), launch.kernel)
            steps.append(Launch(same, launch.args, launch.origins))
    if graph.repeats is not None:
        graph, steps = repeated(graph, steps)
    if fusion:
        steps = batched(steps, graph.storages, target.little)
    if target.in_place:
        graph, steps = in_place(graph, steps)
    return _program(graph, steps, kernels_of(steps), target.large if scoped_memory else None, tight, target.tiles)


def _fused(graph: LoopGraph, fusion: bool, target: MachineModel) -> tuple[LoopGraph, list[Group]]:
    """Return `graph` with long reductions split, and its groups."""
    walked = walks(graph, target) if fusion else {}
    bases: dict[Compute, FusedNests] = {}
    while True:
        parts = split_reductions(graph, target, walked)
        groups = fuse(parts, fusion, target, bases)
        rest = alone(walked, parts, [g.cluster for g in groups if g.cluster is not None])
        if not rest:
            return parts, groups
        walked = {k: count for k, count in walked.items() if k not in rest}


def _inside(graph: LoopGraph, groups: list[Group]) -> dict[int, list[str]]:
    """Return for each group the buffers that no other group uses, and that do not leave the graph."""
    users: dict[str, int | None] = {n: None for n, s in graph.storages.items() if s.kind not in ("arena", "view")}
    users |= {graph.storages[n].base or n: None for n in names_in(graph.outputs)}
    for g in groups:
        if g.call is not None:
            names = g.call.reads | g.call.writes
        else:
            assert g.cluster is not None
            names = frozenset(g.cluster.reads | g.cluster.writes)
        for n in names:
            users[n] = g.bit if users.get(n, g.bit) == g.bit else None
    found: dict[int, list[str]] = {}
    for n, bit in users.items():
        if bit is not None:
            found.setdefault(bit, []).append(n)
    return found


def _program(graph: LoopGraph, steps: list[Step], kernels: list[Kernel], large: int | None, tight: bool,
             visits: bool) -> Program:
    planned, arena = plan(graph, steps, large, tight, visits)
    used = set(names_in(graph.outputs)).union(*map(named, steps))
    used.update([graph.storages[n].base for n in used if graph.storages[n].base])  # type: ignore[misc]
    used.update(n for n in graph.inputs if n is not None)
    buffers = {}
    for name, b in graph.storages.items():
        if name not in used:
            continue
        size, stride = tuple(map(as_expr, b.size)), tuple(map(as_expr, b.stride))
        offset = arena.offset.get(name, 0) if b.kind == "arena" else b.offset
        kind = "scratch" if name in arena.scratch else b.kind
        buffers[name] = Buffer(name, b.dtype, size, stride, kind, b.index, offset, b.base, arena.nbytes.get(name, 0))
    constants = {n: t for n, t in graph.constants.items() if n in used}
    return Program(
        graph.inputs, graph.symbols, buffers, constants, tuple(planned), graph.outputs, arena.size, tuple(kernels)
    )
