"""Steps of a host function that do not depend on sizes, as a table that is interpreted: it compiles a hundred times as
fast as the same calls written out, which make up nearly all of a deep model's function.

    static const i64 steps[] = {
      1, 5,  // allocate value 5
      3, 4, ~1024,  // kernel 0 on value 4 and the arena from byte 1024 on
      0, 0,  // call operator 0
      2, 4,  // release value 4
    };
    if (int failed = fs_steps(a, p, n, h, steps, steps + 9, 0)) return failed;

The last number is that of the first mark. Words after `KERNEL` are specific to the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from framesmith.codegen.host_function import comment
from framesmith.codegen.plan import Planner
from framesmith.loops.ir import ARENA, Allocate, Extern, Launch, Program, Release
from framesmith.util.text import Indented

CALL, ALLOCATE, RELEASE, KERNEL = range(4)


@dataclass(frozen=True, slots=True)
class Row:
    """The words of a step, its comment, and the mark before it: "kernel" or "call", and its number."""

    words: tuple[int | str, ...]
    said: str = ""
    mark: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Fixed:
    """Consecutive steps whose rows form one table."""

    rows: tuple[Row, ...]


LaunchRow = Callable[[Any, Program, Planner, Any], Row | None]
"""A function that returns the row of a launch, given the kernels' functions; None: the launch is written out."""


def run_text(kernels: str) -> str:
    """Return the function that interprets a table. `kernels`: the cases of its switch that run a kernel, on operands
    that begin at `s`, and advance `s` past them."""
    out = Indented()
    out.line("// `mark`: the number of the first mark.")
    given = "char* a, void** p, const i64* n, const Host* h, const i64* s, const i64* end, int mark"
    with out.block(f"static int fs_steps({given}) {{", "}"):
        with out.block("while (s < end) switch (*s++) {", "}"):
            for kind, run in _COMMON.items():
                out.line(f"case {kind}: {run} break;")
            out.lines(kernels)
        out.line("return 0;")
    return str(out)


_COMMON = {
    CALL: "FS_MARK(mark++); if (h->call(h->frame, (int)*s++)) return 1;",
    ALLOCATE: "if (h->allocate(h->frame, (int)*s++)) return 1;",
    RELEASE: "h->release(h->frame, (int)*s++);",
}


def grouped(program: Program, planner: Planner, functions: Any, launch: LaunchRow) -> tuple[Any, ...]:
    """Return the steps of `program`, with those of one table grouped as a `Fixed`. `functions`: of each kernel, and of
    each call that is launched as one."""
    found: list[Any] = []
    rows: list[Row] = []
    for step in program.steps:
        made = _rows(step, program, planner, functions, launch)
        if made is not None:
            rows += made
            continue
        found += [*([Fixed(tuple(rows))] if rows else []), step]
        rows = []
    return (*found, Fixed(tuple(rows))) if rows else tuple(found)


def print_fixed(out: Indented, step: Fixed, program: Program, planner: Planner, functions: Any) -> None:
    """Print a table, and the call that interprets it."""
    first = len(planner.steps)
    for row in step.rows:
        if row.mark is not None:
            planner.mark(*row.mark)
    with out.block("{", "}"):
        with out.block("static const i64 steps[] = {", "};"):
            for row in step.rows:
                out.line(f"{', '.join(map(str, row.words))},{f'  // {row.said}' if row.said else ''}")
        count = sum(len(row.words) for row in step.rows)
        out.line(f"if (int failed = fs_steps(a, p, n, h, steps, steps + {count}, {first})) return failed;")


def _rows(step: Any, program: Program, planner: Planner, functions: Any, launch: LaunchRow) -> Iterable[Row] | None:
    kind = type(step)
    if kind is Extern and step not in functions:
        number = planner.externs[step]
        return [Row((CALL, number), comment(step), ("call", number))]
    if kind is Allocate and ARENA not in step.names:
        return [Row((ALLOCATE, planner.number(name))) for name in step.names]
    if kind is Release:
        return [Row((RELEASE, -1 if name == ARENA else planner.number(name))) for name in step.names]
    row = launch(step, program, planner, functions) if kind is Launch else None
    return None if row is None else [row]
