"""Record a function, take it through decomposition, lowering and scheduling, and run the program with the slow
evaluator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.fx import Graph

from framesmith.fake.recorder import Recorder
from framesmith.loops.evaluate import run_program
from framesmith.loops.ir import Program
from framesmith.loops.nest import LoopGraph
from framesmith.loops.verify import verify
from framesmith.lower.lower import lower
from framesmith.prims.decompose import decompose
from framesmith.schedule.schedule import schedule
from framesmith.schedule.target import CPU, GPU, MachineModel
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.node import symint
from tests.fake.harness import record, same_strides


def program_of(
    fn: Callable[..., Any], *inputs: Any, fusion: bool = True, target: MachineModel = CPU,
    dynamic: Collection[tuple[int, int]] = (),
    change: Callable[[LoopGraph], LoopGraph] = lambda graph: graph,
) -> Program:
    """`dynamic`: pairs (input, dim) with a size symbol of their own. `change`: applied to the lowered graph."""
    graph = _recorded(fn, inputs, dynamic) if dynamic else record(fn, list(inputs))[0]
    program = schedule(change(lower(decompose(graph))), fusion, target=target)
    verify(program)
    return program


def with_numbers(fn: Callable[..., Any], inputs: Sequence[Any]) -> Program:
    """The program of `fn` for a GPU, as if its inputs of no dimension were in the memory of another device, the
    CPU's."""
    loops = lower(decompose(record(fn, list(inputs))[0]))
    for storage in loops.storages.values():
        if storage.kind == "input" and not storage.size:
            storage.device = torch.device("cpu")
    return schedule(loops, target=GPU)


def _recorded(fn: Callable[..., Any], inputs: Sequence[Any], dynamic: Collection[tuple[int, int]]) -> Graph:
    env = ShapeEnv()
    rec = Recorder(env)
    fakes = []
    for i, t in enumerate(inputs):
        shape = tuple(symint(env.new_symbol(s, (i, d)), env) if (i, d) in dynamic else s for d, s in enumerate(t.shape))
        fakes.append(rec.input(t, f"x{i}", shape=shape))
    with torch.no_grad(), rec:
        leaves = torch.utils._pytree.tree_leaves(fn(*fakes))
    return rec.finish(leaves)


def check(fn: Callable[..., Any], *inputs: Any, rtol: float = 1e-5, atol: float = 1e-6,
          target: MachineModel = CPU) -> Program:
    """Fused and unfused programs give what eager gives, with eager's strides, and write what eager writes into the
    inputs."""
    fused = None
    for fusion in (False, True):
        fused = program_of(fn, *inputs, fusion=fusion, target=target)
        mine, theirs = ([_copy(t) for t in inputs] for _ in range(2))
        with torch.no_grad():
            want = torch.utils._pytree.tree_leaves(fn(*theirs))
        given = [t for t in mine if isinstance(t, torch.Tensor)]
        got = run_program(fused, given)
        assert len(got) == len(want)
        for g, w in zip(got, want):
            assert g.shape == w.shape and g.dtype is w.dtype
            assert same_strides(g.shape, g.stride(), w.stride())
            torch.testing.assert_close(g, w, rtol=rtol, atol=atol, equal_nan=True)
        for g, w in zip(mine, theirs):
            torch.testing.assert_close(g, w, rtol=rtol, atol=atol, equal_nan=True)
    assert fused is not None
    return fused


def _copy(t: Any) -> Any:
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t) if isinstance(t, torch.Tensor) else t
