"""Record a function, take it through decomposition, lowering and scheduling, and run the program with the slow evaluator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framesmith.loops.evaluate import run_program
from framesmith.loops.ir import Program
from framesmith.loops.verify import verify
from framesmith.lower.lower import lower
from framesmith.prims.decompose import decompose
from framesmith.schedule.schedule import schedule
from framesmith.schedule.target import CPU, Target
from tests.fake.harness import record, same_strides


def program_of(fn: Callable[..., Any], *inputs: Any, fusion: bool = True, target: Target = CPU) -> Program:
    graph, _ = record(fn, list(inputs))
    program = schedule(lower(decompose(graph)), fusion, target=target)
    verify(program)
    return program


def check(fn: Callable[..., Any], *inputs: Any, rtol: float = 1e-5, atol: float = 1e-6, target: Target = CPU) -> Program:
    """Fused and unfused programs give what eager gives, with eager's strides, and write what eager writes into the inputs."""
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
