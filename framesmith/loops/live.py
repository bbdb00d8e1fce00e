"""The memory of a program over time: the bytes live in each of its steps, without inputs and constants."""

from __future__ import annotations

from framesmith.loops.ir import Batch, Extern, Launch, Program
from framesmith.loops.uses import named
from framesmith.symbolic.expr import Expr, as_expr, prod, sum_

_GIVEN = ("input", "constant", "view")


def live_bytes(program: Program) -> tuple[Expr, ...]:
    """Return the live bytes at each launch and call of `program`, in order: buffers live from the first use to the
    last, results to the end."""
    steps = [step for step in program.steps if isinstance(step, Launch | Batch | Extern)]
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for k, step in enumerate(steps):
        for name in named(step):
            base = program.buffers[name].base or name
            first.setdefault(base, k)
            last[base] = len(steps) if program.buffers[base].kind == "output" else k
    size = {name: prod(b.size) * b.dtype.itemsize for name in first
            if (b := program.buffers[name]).kind not in _GIVEN}
    change: list[list[Expr]] = [[] for _ in range(len(steps) + 1)]
    for name, bytes_ in size.items():
        change[first[name]].append(as_expr(bytes_))
        if last[name] < len(steps):
            change[last[name] + 1].append(-as_expr(bytes_))
    alive, out = as_expr(0), []
    for k in range(len(steps)):
        alive = sum_([alive, *change[k]])
        out.append(alive)
    return tuple(out)
