"""The function that runs a program whose kernels are on a CUDA device: as `wrapper` prints it, with launches in place of calls.

    { void* x0 = p[0]; int x1 = n[0]; void* x[] = {&x0, &x1, FS_SCRATCH}; if (h->launch(h->frame, 0, n[0], 1, 1, x)) return 1; }

`a` is then the arena's address on the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from framesmith.codegen.plan import Planner, check_symbols
from framesmith.codegen.triton.brought import Brought
from framesmith.codegen.triton.kernel import PROGRAMS, Printed, programs
from framesmith.codegen.wrapper import HOST, OTHERS, Wrapped, entry, integer_text
from framesmith.graph.launch import Window
from framesmith.loops.ir import Batch, Extern, Launch, Program
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
"""
_CTYPES = {"i32": "int", "i64": "i64"}
WIDEST = (2**31 - 1, 65535, 65535)


def wrap_device(
    program: Program, printed: Sequence[Printed], positions: Sequence[int], inputs: int, watched: Sequence[int],
    brought: Mapping[Extern, Brought] | None = None,
) -> Wrapped:
    """As `wrapper.wrap`, for kernels `printed` (parallel to `program.kernels`); kernel number i of the plan's images is `printed[i]`.

    `brought`: kernels that are launched in the place of calls; their images stand behind those.
    """
    check_symbols(program)
    planner = Planner(program, positions, inputs)
    brought = brought or {}
    plan = planner.plan(watched, aligned=True, launched=brought)
    texts = (*zip(program.kernels, printed, strict=True), *brought.items())
    functions = {key: (number, text) for number, (key, text) in enumerate(texts)}
    out = Indented()
    entry(out, program, planner, plan, {**OTHERS, Launch: _launch, Batch: _Batches(), Extern: _extern}, functions)
    return Wrapped((HEAD + HOST + "\n" + str(out),), plan, tuple(program.constants.values()))


Functions = dict[Any, tuple[int, Any]]
"""The number and the text of each kernel, and of each call that is one."""


def _launch(out: Indented, step: Launch, program: Program, planner: Planner, functions: Functions) -> None:
    number, kernel = functions[step.kernel]
    pointers = [_pointer(program, planner, name) for name in step.args]
    values = [*zip(["void*"] * len(pointers), pointers)]
    types = dict(kernel.signature)
    values += [(_CTYPES[types[symbol.name]], symbol.name) for symbol in kernel.symbols]
    with out.block("{", "}"):
        _call(out, number, kernel.grid, values)


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


def _extern(out: Indented, step: Extern, program: Program, planner: Planner, functions: Functions) -> None:
    """A call, or the launch of a kernel that the program brings."""
    if step not in functions:
        OTHERS[Extern](out, step, program, planner, functions)
        return
    number, kernel = functions[step]
    with out.block("{", "}"):
        _call(out, number, kernel.grid, [_argument(program, planner, step, a) for a in kernel.arguments])


def _argument(program: Program, planner: Planner, step: Extern, argument: Window | tuple[str, str]) -> tuple[str, str]:
    """The C type and text of an argument."""
    if not isinstance(argument, Window):
        return argument
    buffer = program.buffers[step.args[argument.memory].name]
    offset = (buffer.offset if buffer.kind == "view" else 0) + argument.offset
    base = _pointer(program, planner, buffer.base or buffer.name)
    return "void*", f"(char*)({base}) + ({integer_text(offset)}) * {buffer.dtype.itemsize}" if offset != 0 else base


class _Batches:
    """Prints a batch: tables of addresses and of programs, which the host keeps on the device as long as they stay the same."""

    def __init__(self) -> None:
        self.slots = 0

    def __call__(self, out: Indented, step: Batch, program: Program, planner: Planner, functions: Functions) -> None:
        number, kernel = functions[step.kernel]
        assert kernel.batch is not None
        where = programs(step.sizes, kernel.batch)
        table, places, self.slots = self.slots, self.slots + 1, self.slots + 2
        with out.block("{", "}"):
            with out.block("i64 rows[] = {", "};"):
                for row, size in zip(step.rows, step.sizes, strict=True):
                    out.line(", ".join([f"(i64)({_pointer(program, planner, name)})" for name in row] + [str(size)]) + ",")
            with out.block("static const int where[] = {", "};"):
                for start in range(0, len(where), 16):
                    out.line(" ".join(f"{row}, {block}," for row, block in where[start : start + 16]))
            out.line(f"void *t = h->upload(h->frame, {table}, rows, sizeof rows), *w = h->upload(h->frame, {places}, where, sizeof where);")
            out.line("if (!t || !w) return 1;")
            extents = [len(where) if extent is PROGRAMS else extent for extent in kernel.grid]
            _call(out, number, extents, [("void*", "t"), ("void*", "w")])


def _pointer(program: Program, planner: Planner, name: str) -> str:
    buffer = program.buffers[name]
    return f"a + {integer_text(buffer.offset)}" if buffer.kind == "arena" else f"p[{planner.number(name)}]"


def _known(value: Expr | int) -> int:
    return value if isinstance(value, int) else value.const if value.is_const else 0


__all__ = ["wrap_device"]
