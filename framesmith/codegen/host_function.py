"""The function that runs a program: kernels and operators in order, over the arena and the pointers of the call.

    extern "C" int fs_run(char* a, void** p, const i64* n, const Host* h) {
      k0((const float*)p[0], (float*)(a + 4096));
      if (h->call(h->frame, 0)) return 1;
      k1((const float*)(a + 4096), (float*)p[2]);
      return 0;
    }

`a` is the arena, `p` the pointers by value number, `n` the integer table (see `runtime/plan.py`); csrc/graph_frame.h
declares `Host` alike. It returns 0 on success, 1 if an operator or an allocation failed, 2 if a kernel found an index
out of range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from framesmith.codegen.cpp.index import expr_text, shared
from framesmith.codegen.plan import Planner
from framesmith.loops.ir import Extern, Program
from framesmith.runtime.plan import Plan
from framesmith.symbolic.expr import Expr
from framesmith.util.text import Indented

HOST = """
struct Host {
  void* frame;
  int (*call)(void* frame, int index);
  int (*allocate)(void* frame, int value);
  void (*release)(void* frame, int value);
  int (*launch)(void* frame, int kernel, unsigned x, unsigned y, unsigned z, void** arguments);
  void* (*upload)(void* frame, int slot, const void* data, i64 bytes);
  int (*scratch)(void* frame, char** arena);
  void (*mark)(void* frame, int step);
};
#define FS_MARK(step) if (__builtin_expect(h->mark != 0, 0)) h->mark(h->frame, step)
#define FS_ENTRY extern "C" __attribute__((visibility("default")))
// The memory of a row of a batch: a value of the call, or a place in the arena.
static inline void* fs_at(char* a, void** p, i64 at) { return at < 0 ? a + ~at : p[at]; }
// The element of a row of n at which one part of a batch ends and the next begins.
static inline i64 fs_cut(i64 at, i64 n) { at = (at + 15) / 16 * 16; return at < 0 ? 0 : at > n ? n : at; }
"""
Steps = dict[type, Callable[..., None]]


@dataclass(frozen=True, slots=True)
class Wrapped:
    """`units`: the translation units; `plan`; `constants`: the tensors of the program in the plan's order."""

    units: tuple[str, ...]
    plan: Plan
    constants: tuple[torch.Tensor, ...]


def entry(out: Indented, program: Program, planner: Planner, plan: Plan, steps: Steps, functions: Any,
          checks: bool = False) -> None:
    """Print the function that runs `program` (and the one that computes sizes): a row of `steps` prints a step, given
    the kernels' `functions`.

    `checks`: some kernel may find an index out of range.
    """
    with out.block(f"FS_ENTRY int {plan.entry}(char* a, void** p, const i64* n, const Host* h) {{", "}"):
        _symbols(out, program, planner)
        planner.names = _variables(out, [b.offset for b in program.buffers.values() if b.kind == "arena"])
        if checks:
            out.line("i64 error = 0;")
        for step in program.steps:
            steps[type(step)](out, step, program, planner, functions)
        out.line("return 0;")
    if plan.table:
        with out.block(f"FS_ENTRY void {plan.entry}_sizes(i64* n) {{", "}"):
            _symbols(out, program, planner)
            entries = list(planner.table.entries.items())[planner.table.symbols :]
            names = _variables(out, [expr for expr, _ in entries])
            for expr, k in entries:
                out.line(f"n[{k}] = {expr_text(expr, names)};")


def _symbols(out: Indented, program: Program, planner: Planner) -> None:
    for k, symbol in enumerate(program.symbols):
        out.line(f"[[maybe_unused]] const i64 {symbol} = n[{k}];")


def _variables(out: Indented, values: Iterable[Expr | int | None]) -> dict[Any, str]:
    """Declare variables for shared subexpressions, so that the text does not grow with the depth of expressions."""
    names: dict[Any, str] = {}
    for e in shared([value for value in values if isinstance(value, Expr)]):
        text = expr_text(e, names)
        names[e] = f"z{len(names)}"
        out.line(f"[[maybe_unused]] const i64 {names[e]} = {text};")
    return names


def place_text(program: Program, planner: Planner, name: str) -> str:
    """Return the place of a buffer for `fs_at`: the number of its value, or the offset in the arena with all bits
    inverted."""
    buffer = program.buffers[name]
    return f"~{integer_text(buffer.offset, planner.names)}" if buffer.kind == "arena" else str(planner.number(name))


def integer_text(value: Expr | int, names: Mapping[Any, str] = MappingProxyType({})) -> str:
    """Return an int, or an expression over size symbols, as the host function writes it."""
    return str(value) if type(value) is int else expr_text(value, names)  # type: ignore[arg-type]


def mark(out: Indented, planner: Planner, what: str, number: int) -> None:
    """Print the mark that tells a profiler that kernel or call `number` comes next."""
    out.line(f"FS_MARK({planner.mark(what, number)});")


def comment(step: Extern) -> str:
    """Return the comment on a call: the operators that it computes."""
    return "; ".join(dict.fromkeys(o.op for o in step.origins)) or str(step.target)
