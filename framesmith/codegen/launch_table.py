"""Steps of a device's host function that no size decides, as a table that is gone through: to read it takes a C++
compiler a hundredth of what calls written out take, and these are nearly all that such a function has.

    static const i64 steps[] = {
      2, 5,  // allocate value 5 0, 3, 96, 1, 1, 2, 1, 4, ~1024, 24,  // launch kernel 3 as 96 programs on value 4, the
      arena from byte 1024 on, and the number 24 1, 0,  // call operator 0 3, 4,  // release value 4
    };
    if (fs_steps(a, p, h, steps, steps + 16, 0)) return 1;

The last number is that of the first mark.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from framesmith.codegen.plan import Planner
from framesmith.codegen.triton.kernel import WIDEST
from framesmith.codegen.triton.literal_params import Number
from framesmith.codegen.wrapper import comment, place_text
from framesmith.loops.ir import ARENA, Allocate, Extern, Launch, Program, Release
from framesmith.symbolic.expr import Expr, as_expr
from framesmith.util.text import Indented

LAUNCH, CALL, ALLOCATE, RELEASE = range(4)
MOST = 512  # arguments: more than a kernel's parameters have room for
RUN = f"""// A launch has its kernel, its programs along three axes, and how many addresses (see fs_at) and
// numbers stand behind that.
// A number of 32 bits is the first half of its word.
// `mark`: the number of the first mark.
static int fs_steps(char* a, void** p, const Host* h, const i64* s, const i64* end, int mark) {{
  void *memory[{MOST}], *x[{MOST} + 2];
  while (s < end) {{
    const i64 what = *s++;
    if (what == {CALL}) {{
      FS_MARK(mark++);
      if (h->call(h->frame, (int)*s++)) return 1;
    }} else if (what == {ALLOCATE}) {{
      if (h->allocate(h->frame, (int)*s++)) return 1;
    }} else if (what == {RELEASE}) {{
      h->release(h->frame, (int)*s++);
    }} else {{
      const i64* head = s;
      int k = 0;
      for (s += 6; k < head[4]; k++) memory[k] = fs_at(a, p, *s++), x[k] = &memory[k];
      for (; k < head[4] + head[5]; k++) x[k] = (void*)s++;
      x[k] = x[k + 1] = &fs_null;
      FS_MARK(mark++);
      if (h->launch(h->frame, (int)head[0], (unsigned)head[1], (unsigned)head[2], (unsigned)head[3], x)) return 1;
    }}
  }}
  return 0;
}}
"""
Words = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Fixed:
    """Rows of the table, each with what it says."""

    rows: tuple[tuple[Words, str], ...]


def grouped(program: Program, planner: Planner, functions: Any) -> tuple[Any, ...]:
    """The steps of `program`, those that go into a table together as one `Fixed`. `functions`: see
    `device.Functions`."""
    found: list[Any] = []
    rows: list[tuple[Words, str]] = []
    for step in program.steps:
        row = _ROWS.get(type(step))
        made = row(step, program, planner, functions) if row is not None else None
        if made is not None:
            rows += made
            continue
        found += [*([Fixed(tuple(rows))] if rows else []), step]
        rows = []
    return (*found, Fixed(tuple(rows))) if rows else tuple(found)


_MARKED = {LAUNCH: "kernel", CALL: "call"}


def print_fixed(out: Indented, step: Fixed, program: Program, planner: Planner, functions: Any) -> None:
    """The table, and the loop over it."""
    first = len(planner.steps)
    for words, _ in step.rows:
        if words[0] in _MARKED:
            planner.mark(_MARKED[int(words[0])], int(words[1]))
    with out.block("{", "}"):
        with out.block("static const i64 steps[] = {", "};"):
            for words, said in step.rows:
                out.line(f"{', '.join(map(str, words))},{f'  // {said}' if said else ''}")
        count = sum(len(words) for words, _ in step.rows)
        out.line(f"if (fs_steps(a, p, h, steps, steps + {count}, {first})) return 1;")


def _launch(step: Launch, program: Program, planner: Planner, functions: Any) -> Iterable[tuple[Words, str]] | None:
    """One whose grid and places are known, and that is given no number of the CPU's memory."""
    number, kernel, names = functions[step.kernel].number, functions[step.kernel].text, step.args
    if functions[step.kernel].wide is not None or kernel.symbols or any(param.host for param in step.kernel.params):
        return None
    grid = [as_expr(extent) for extent in (*kernel.grid, 1, 1, 1)[:3]]
    offsets = [program.buffers[name].offset for name in names if program.buffers[name].kind == "arena"]
    fits = all(extent.is_const and extent.const <= most for extent, most in zip(grid, WIDEST))
    if not fits or any(isinstance(offset, Expr) for offset in offsets) or len(names) + len(kernel.numbers) > MOST:
        return None
    places, programs = [place_text(program, planner, name) for name in names], [extent.const for extent in grid]
    return [((LAUNCH, number, *programs, len(names), len(kernel.numbers), *places, *map(_word, kernel.numbers)), "")]


def _word(number: Number) -> int:
    """The bits of a number of 32."""
    return struct.unpack("<I", struct.pack({"fp32": "<f", "i32": "<i", "u32": "<I"}[number.kind], number.value))[0]


def _extern(step: Extern, program: Program, planner: Planner, functions: Any) -> Iterable[tuple[Words, str]] | None:
    return None if step in functions else [((CALL, planner.externs[step]), comment(step))]


def _allocate(step: Allocate, program: Program, planner: Planner, functions: Any) -> Iterable[tuple[Words, str]] | None:
    return None if ARENA in step.names else [((ALLOCATE, planner.number(name)), "") for name in step.names]


def _release(step: Release, program: Program, planner: Planner, functions: Any) -> Iterable[tuple[Words, str]]:
    return [((RELEASE, -1 if name == ARENA else planner.number(name)), "") for name in step.names]


_ROWS: dict[type, Callable[..., Iterable[tuple[Words, str]] | None]] = {
    Launch: _launch, Extern: _extern, Allocate: _allocate, Release: _release,
}  # fmt: skip
