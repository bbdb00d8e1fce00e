"""The host function of a program whose kernels run on a CUDA device: as `wrapper` prints it, with launches in place of
calls.

    { void* x0 = p[0]; int x1 = n[0]; void* x[] = {&x0, &x1, FS_SCRATCH}; if (h->launch(h->frame, 0, n[0], 1, 1, x))
    return 1; }

`a` is the arena's address on the device, possibly from a later step on that allocates it. Steps that do not depend on
sizes are rows of a table (see `step_table.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from framesmith.codegen.host_function import HOST, Steps, Wrapped, entry, integer_text, mark
from framesmith.codegen.launch_table import RUN, launch_row
from framesmith.codegen.plan import Planner, check_symbols
from framesmith.codegen.step_table import Fixed, grouped, print_fixed
from framesmith.codegen.triton.kernel import MOST, PROGRAMS, WIDEST, Printed, programs
from framesmith.codegen.triton.scalar_params import kind_of
from framesmith.codegen.triton.user_kernels import UserKernel
from framesmith.graph.launch import MemoryWindow
from framesmith.loops.ir import Allocate, Batch, Extern, Launch, Param, Program
from framesmith.symbolic.expr import Expr
from framesmith.util.errors import CompileError
from framesmith.util.text import Indented

# What expressions over sizes are printed with.
HEAD = """typedef long i64;
static inline i64 floordiv(i64 a, i64 b) { i64 q = a / b; return q - (a % b != 0 && (a < 0) != (b < 0)); }
static inline i64 mod(i64 a, i64 b) { return a - floordiv(a, b) * b; }
static inline i64 min(i64 a, i64 b) { return a < b ? a : b; }
static inline i64 max(i64 a, i64 b) { return a < b ? b : a; }
// Pointers to scratch memory that Triton's kernels take behind their own parameters, and that ours do not use.
static void* fs_null = 0;
#define FS_SCRATCH &fs_null, &fs_null
// Numbers of the CPU's memory that have 16 bits.
static inline float fs_float(unsigned bits) { float f; __builtin_memcpy(&f, &bits, sizeof f); return f; }
static inline float fs_bf16(const void* p) { return fs_float((unsigned)*(const unsigned short*)p << 16); }
static inline float fs_half(const void* p) {
  unsigned h = *(const unsigned short*)p, sign = (h & 0x8000u) << 16, e = h >> 10 & 31, m = h & 1023;
  if (e == 0) return (sign ? -1.0f : 1.0f) * (float)m / 16777216.0f;
  return fs_float(sign | (e == 31 ? 255 : e + 112) << 23 | m << 13);
}
// A number as a word of a batch's table.
template <typename T> static inline i64 fs_bits(T v) {
  i64 bits = 0;
  __builtin_memcpy(&bits, &v, sizeof v);
  return bits;
}
// For rows of these sizes, the row and the block in it of each program of a batch. Threads that meet here write the
// same.
static inline void fs_programs(int* where, int* filled, const i64* sizes, int rows, i64 block) {
  if (__atomic_load_n(filled, __ATOMIC_ACQUIRE)) return;
  for (int row = 0; row < rows; row++)
    for (i64 k = 0; k * block < sizes[row]; k++) *where++ = row, *where++ = (int)k;
  __atomic_store_n(filled, 1, __ATOMIC_RELEASE);
}
"""
_CTYPES = {"i32": "int", "u32": "unsigned", "i64": "i64", "fp32": "float", "fp64": "double"}
# How a number of the CPU's memory is read from its address.
_READ = {
    torch.bfloat16: "fs_bf16({})",
    torch.float16: "fs_half({})",
    torch.float32: "*(const float*)({})",
    torch.float64: "*(const double*)({})",
    torch.int64: "*(const i64*)({})",
    torch.int32: "*(const int*)({})",
    torch.int16: "*(const short*)({})",
    torch.int8: "*(const signed char*)({})",
    torch.uint8: "*(const unsigned char*)({})",
    torch.bool: "*(const unsigned char*)({})",
}


@dataclass(frozen=True, slots=True)
class Function:
    """Kernel number `number` of the plan's images, `text`; `wide`: the kernel launched instead if a limit of `text` is
    reached."""

    number: int
    text: Any
    wide: Function | None = None


Functions = dict[Any, Function]
"""The function of each kernel, and of each call that is launched as one."""


def wrap_device(
    program: Program, printed: Sequence[Printed], positions: Sequence[int], inputs: int, watched: Sequence[int],
    launched: Mapping[Extern, UserKernel] | None = None, wide: Mapping[int, Printed] | None = None,
) -> Wrapped:
    """Print the function that runs `program` on a device, as `wrapper.wrap` does for the CPU, for kernels `printed`
    (parallel to `program.kernels`); kernel number i of the plan's images is `printed[i]`.

    `launched`: kernels that are launched in place of calls; their images follow. `wide[k]`: kernel k with 64-bit
    indices, for sizes at which `printed[k]` is invalid; their images come last.
    """
    check_symbols(program)
    planner = Planner(program, positions, inputs)
    launched, wide = launched or {}, wide or {}
    plan = planner.plan(watched, aligned=True, launched=launched)
    first = len(printed) + len(launched)
    others = {k: Function(first + i, text) for i, (k, text) in enumerate(wide.items())}
    texts = (*zip(program.kernels, printed, strict=True), *launched.items())
    functions = {key: Function(k, text, others.get(k)) for k, (key, text) in enumerate(texts)}
    out = Indented()
    steps: Steps = {Launch: _launch, Batch: _Batches(), Extern: _user_kernel, Allocate: _arena, Fixed: print_fixed}
    program = replace(program, steps=grouped(program, planner, functions, launch_row))
    entry(out, program, planner, plan, steps, functions)
    plan = replace(plan, steps=tuple(planner.steps))
    return Wrapped((HEAD + HOST + RUN + "\n" + str(out),), plan, tuple(program.constants.values()))


def _launch(out: Indented, step: Launch, program: Program, planner: Planner, functions: Functions) -> None:
    function = functions[step.kernel]
    values = [_given(program, planner, name, param) for name, param in zip(step.args, step.kernel.params, strict=True)]
    mark(out, planner, "kernel", function.number)
    if function.wide is None:
        with out.block("{", "}"):
            _launched(out, function, values)
        return
    limits = " && ".join([f"{integer_text(limit)} < {MOST}" for limit in function.text.limits])
    with out.block(f"if ({limits}) {{", "}"):
        _launched(out, function, values)
    with out.block("else {", "}"):
        _launched(out, function.wide, values)


def _launched(out: Indented, function: Function, values: Sequence[tuple[str, str]]) -> None:
    kernel = function.text
    types = dict(kernel.signature)
    sizes = [(_CTYPES[types[symbol.name]], symbol.name) for symbol in kernel.symbols]
    numbers = [(_CTYPES[n.kind], repr(n.value)) for n in kernel.numbers]
    _call(out, function.number, kernel.grid, [*values, *sizes, *numbers])


def _call(out: Indented, number: int, grid: Sequence[Expr | int], values: Sequence[tuple[str, str]]) -> None:
    for k, (ctype, text) in enumerate(values):
        out.line(f"{ctype} x{k} = ({ctype})({text});")
    taken = "".join(f"&x{k}, " for k in range(len(values)))
    out.line(f"void* x[] = {{{taken}FS_SCRATCH}};")
    sizes = [integer_text(extent) for extent in (*grid, 1, 1, 1)[:3]]
    for extent, most in zip(grid, WIDEST):
        if _known(extent) > most:
            raise CompileError(f"a grid of {extent} programs along one axis")
    out.line(f"if (h->launch(h->frame, {number}, {', '.join(sizes)}, x)) return 1;")


def _user_kernel(out: Indented, step: Extern, program: Program, planner: Planner, functions: Functions) -> None:
    """Print the launch of a kernel of the program's own; other calls are rows of a table."""
    number, kernel = functions[step].number, functions[step].text
    mark(out, planner, "kernel", number)
    with out.block("{", "}"):
        _call(out, number, kernel.grid, [_argument(program, planner, step, a) for a in kernel.arguments])


def _arena(out: Indented, step: Allocate, *_: Any) -> None:
    """Print the allocation of a late arena; other memory is in rows of a table."""
    out.line("if (h->scratch(h->frame, &a)) return 1;")


def _argument(program: Program, planner: Planner, step: Extern,
              argument: MemoryWindow | tuple[str, str]) -> tuple[str, str]:
    """Return the C type and text of an argument."""
    if not isinstance(argument, MemoryWindow):
        return argument
    buffer = program.buffers[step.args[argument.memory].name]
    offset = (buffer.offset if buffer.kind == "view" else 0) + argument.offset
    base = _pointer(program, planner, buffer.base or buffer.name)
    return "void*", f"(char*)({base}) + ({integer_text(offset)}) * {buffer.dtype.itemsize}" if offset != 0 else base


class _Batches:
    """Prints a batch: tables of addresses and of programs, which the host keeps on the device as long as they do not
    change."""

    def __init__(self) -> None:
        self.slots = 0

    def __call__(self, out: Indented, step: Batch, program: Program, planner: Planner, functions: Functions) -> None:
        number, kernel = functions[step.kernel].number, functions[step.kernel].text
        assert kernel.batch is not None
        count, params = programs(step.sizes, kernel.batch), step.kernel.params
        table, places, self.slots = self.slots, self.slots + 1, self.slots + 2
        mark(out, planner, "kernel", number)
        with out.block("{", "}"):
            with out.block("i64 rows[] = {", "};"):
                for row, size in zip(step.rows, step.sizes, strict=True):
                    words = [_word(*_given(program, planner, name, p)) for name, p in zip(row, params, strict=True)]
                    out.line(", ".join([*words, str(size)]) + ",")
            with out.block("static const i64 sizes[] = {", "};"):
                for start in range(0, len(step.sizes), 16):
                    out.line(" ".join([f"{size}," for size in step.sizes[start : start + 16]]))
            out.line(f"static int where[{2 * count}];")
            out.line(f"static int filled; fs_programs(where, &filled, sizes, {len(step.sizes)}, {kernel.batch});")
            out.line(f"void *t = h->upload(h->frame, {table}, rows, sizeof rows), *w = h->upload(h->frame, {places}, "
                     "where, sizeof where);")
            out.line("if (!t || !w) return 1;")
            extents = [count if extent is PROGRAMS else extent for extent in kernel.grid]
            _call(out, number, extents, [("void*", "t"), ("void*", "w")])


def _word(ctype: str, text: str) -> str:
    """Return an argument as a word of a table."""
    return f"(i64)({text})" if ctype == "void*" else f"fs_bits(({ctype})({text}))"


def _given(program: Program, planner: Planner, name: str, param: Param) -> tuple[str, str]:
    """Return type and text of a kernel's argument for a buffer."""
    pointer = _pointer(program, planner, name)
    return (_CTYPES[kind_of(param.dtype)], _READ[param.dtype].format(pointer)) if param.host else ("void*", pointer)


def _pointer(program: Program, planner: Planner, name: str) -> str:
    buffer = program.buffers[name]
    return f"a + {integer_text(buffer.offset)}" if buffer.kind == "arena" else f"p[{planner.number(name)}]"


def _known(value: Expr | int) -> int:
    return value if isinstance(value, int) else value.const if value.is_const else 0
