"""Launches of kernels on a device as rows of the table of steps (see `step_table.py`).

    3, 3, 96, 1, 1, 2, 1, 4, ~1024, 24,  // kernel 3 as 96 programs on value 4, the arena from byte 1024 on, and 24
"""

from __future__ import annotations

import struct
from typing import Any

from framesmith.codegen.host_function import place_text
from framesmith.codegen.plan import Planner
from framesmith.codegen.step_table import KERNEL, Row, run_text
from framesmith.codegen.triton.kernel import WIDEST
from framesmith.codegen.triton.literal_params import Number
from framesmith.loops.ir import Launch, Program
from framesmith.symbolic.expr import Expr, as_expr

MOST = 512  # arguments: more than a kernel's parameters have room for
RUN = run_text(f"""
case {KERNEL}: {{
  // The kernel, its programs along three axes, and how many addresses (see fs_at) and numbers stand behind that.
  // A number of 32 bits is the first half of its word.
  void *memory[{MOST}], *x[{MOST} + 2];
  const i64* head = s;
  int k = 0;
  for (s += 6; k < head[4]; k++) memory[k] = fs_at(a, p, *s++), x[k] = &memory[k];
  for (; k < head[4] + head[5]; k++) x[k] = (void*)s++;
  x[k] = x[k + 1] = &fs_null;
  FS_MARK(mark++);
  if (h->launch(h->frame, (int)head[0], (unsigned)head[1], (unsigned)head[2], (unsigned)head[3], x)) return 1;
  break;
}}
""".strip())


def launch_row(step: Launch, program: Program, planner: Planner, functions: Any) -> Row | None:
    """Return the row of a launch with a known grid and known places, without CPU scalars."""
    number, kernel, names = functions[step.kernel].number, functions[step.kernel].text, step.args
    if functions[step.kernel].wide is not None or kernel.symbols or any(param.host for param in step.kernel.params):
        return None
    grid = [as_expr(extent) for extent in (*kernel.grid, 1, 1, 1)[:3]]
    offsets = [program.buffers[name].offset for name in names if program.buffers[name].kind == "arena"]
    fits = all(extent.is_const and extent.const <= most for extent, most in zip(grid, WIDEST))
    if not fits or any(isinstance(offset, Expr) for offset in offsets) or len(names) + len(kernel.numbers) > MOST:
        return None
    places, programs = [place_text(program, planner, name) for name in names], [extent.const for extent in grid]
    words = number, *programs, len(names), len(kernel.numbers), *places, *map(_word, kernel.numbers)
    return Row((KERNEL, *words), mark=("kernel", number))


def _word(number: Number) -> int:
    """Return the low 32 bits of a number."""
    return struct.unpack("<I", struct.pack({"fp32": "<f", "i32": "<i", "u32": "<I"}[number.kind], number.value))[0]
