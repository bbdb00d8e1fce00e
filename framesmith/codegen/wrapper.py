"""The function that runs a program: kernels and operators in order, over the arena and the pointers of the call.

    extern "C" int fs_run(char* a, void** p, const i64* n, const Host* h) {
      k0((const float*)p[0], (float*)(a + 4096));
      if (h->call(h->frame, 0)) return 1;
      k1((const float*)(a + 4096), (float*)p[2]);
      return 0;
    }

`a` is the arena, `p` the pointers by value number, `n` the integer table (see `runtime/plan.py`); csrc/graph_frame.h
declares `Host` alike. It returns 0, 1 when an operator or an allocation failed, 2 when a kernel met an index out of
range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from framesmith.codegen.cpp.emit import CppSource, Function, size_parameters
from framesmith.codegen.cpp.index import expr_text, shared
from framesmith.codegen.cpp.types import type_row
from framesmith.codegen.plan import Planner, check_symbols
from framesmith.loops.ir import Allocate, Batch, Extern, Kernel, Launch, Param, Program, Release
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
# Kernels are shared out among translation units, to compile in parallel, when each gets at least so much text.
UNIT_CHARACTERS = 12000
Steps = dict[type, Callable[..., None]]


@dataclass(frozen=True, slots=True)
class Wrapped:
    """`units`: the translation units; `plan`; `constants`: the tensors of the program in the plan's order."""

    units: tuple[str, ...]
    plan: Plan
    constants: tuple[torch.Tensor, ...]


def wrap(program: Program, source: CppSource, *, positions: Sequence[int] | None = None, inputs: int | None = None,
         watched: Sequence[int] = (), jobs: int = 1) -> Wrapped:
    """Print what runs `program`: the function that calls its kernels (`source`).

    Input i of the program is element `positions[i]` (default: i) of the call's tuple of `inputs` elements. `watched`:
    elements of that tuple that the constants were computed from. `jobs`: translation units at most.
    """
    check_symbols(program)
    positions = range(len(program.inputs)) if positions is None else positions
    planner = Planner(program, positions, len(program.inputs) if inputs is None else inputs)
    plan = planner.plan(watched)
    out = Indented()
    functions = dict(zip(program.kernels, source.functions))
    entry(out, program, planner, plan, _STEPS, functions, any(f.checks for f in source.functions))
    plan = replace(plan, steps=tuple(planner.steps))
    return Wrapped(_units(source, program, str(out), jobs), plan, tuple(program.constants.values()))


# --------------------------------------------------------------------------------------------------------- the function


def entry(out: Indented, program: Program, planner: Planner, plan: Plan, steps: Steps, functions: Any,
          checks: bool = False) -> None:
    """The function that runs `program` (and the one that computes sizes): a row of `steps` prints a step, given the
    kernels' `functions`.

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
    """Variables for what several of these expressions share, so that the text does not grow with how deep they are."""
    names: dict[Any, str] = {}
    for e in shared([value for value in values if isinstance(value, Expr)]):
        text = expr_text(e, names)
        names[e] = f"z{len(names)}"
        out.line(f"[[maybe_unused]] const i64 {names[e]} = {text};")
    return names


def _launch(out: Indented, step: Launch, program: Program, planner: Planner, functions: dict[object, Function]) -> None:
    function = functions[step.kernel]
    args = [_pointer(program, planner, name, param) for name, param in zip(step.args, step.kernel.params)]
    args += [str(symbol) for symbol in step.kernel.symbols]
    if function.checks:
        args.append("&error")
    mark(out, planner, "kernel", planner.kernels[step.kernel])
    out.line(f"{function.name}({', '.join(args)});")
    if function.checks:
        out.line("if (error) return 2;")


def _batch(out: Indented, step: Batch, program: Program, planner: Planner, functions: dict[object, Function]) -> None:
    """A table of the rows: where their memory is, and sizes. Each thread runs an equal share of all elements, one row
    after the other."""
    function, params = functions[step.kernel], step.kernel.params
    mark(out, planner, "kernel", planner.kernels[step.kernel])
    with out.block("{", "}"):
        with out.block(f"static const i64 rows[][{len(params) + 1}] = {{", "};"):
            for row, size in zip(step.rows, step.sizes, strict=True):
                out.line(f"{{{', '.join([place_text(program, planner, name) for name in row])}, {size}}},")
        pointers = [f"({'const ' if p.mode == 'r' else ''}{type_row(p.dtype).storage}*)fs_at(a, p, row[{k}])" for k,
                    p in enumerate(params)]
        args, size_of = ", ".join(pointers), f"row[{len(params)}]"
        if not step.kernel.symbols:
            out.line(f"for (const auto& row : rows) {function.name}({args});")
            return
        if function.threshold is not None and step.work >= function.threshold:
            out.line("#pragma omp parallel")
        with out.block("{", "}"):
            out.line(f"const i64 total = {sum(step.sizes)}, threads = omp_get_num_threads(), me = "
                     "omp_get_thread_num();")
            out.line("i64 from = total * me / threads, to = total * (me + 1) / threads;")
            with out.block("for (const auto& row : rows) {", "}"):
                out.line(f"const i64 first = fs_cut(from, {size_of}), last = fs_cut(to, {size_of});")
                out.line(f"if (first < last) {function.name}({args}, first, last);")
                out.line(f"from -= {size_of}, to -= {size_of};")


def place_text(program: Program, planner: Planner, name: str) -> str:
    """Return the place of a buffer for `fs_at`: the number of its value, or the offset in the arena with all bits
    inverted."""
    buffer = program.buffers[name]
    return f"~{integer_text(buffer.offset, planner.names)}" if buffer.kind == "arena" else str(planner.number(name))


def _pointer(program: Program, planner: Planner, name: str, param: Param) -> str:
    buffer = program.buffers[name]
    cast = f"({'const ' if param.mode == 'r' else ''}{type_row(param.dtype).storage}*)"
    if buffer.kind == "arena":
        return f"{cast}(a + {integer_text(buffer.offset, planner.names)})"
    return f"{cast}p[{planner.number(name)}]"


def integer_text(value: Expr | int, names: Mapping[Any, str] = MappingProxyType({})) -> str:
    """An int, or an expression over size symbols, as the host function writes it."""
    return str(value) if type(value) is int else expr_text(value, names)  # type: ignore[arg-type]


def _extern(out: Indented, step: Extern, program: Program, planner: Planner, functions: dict[object, Function]) -> None:
    mark(out, planner, "call", planner.externs[step])
    out.line(f"if (h->call(h->frame, {planner.externs[step]})) return 1;  // {comment(step)}")


def mark(out: Indented, planner: Planner, what: str, number: int) -> None:
    """Tell who watches the call that kernel or call `number` comes next."""
    out.line(f"FS_MARK({planner.mark(what, number)});")


def comment(step: Extern) -> str:
    """Return the comment on a call: the operators that it computes."""
    return "; ".join(dict.fromkeys(o.op for o in step.origins)) or str(step.target)


def _allocate(out: Indented, step: Allocate, program: Program, planner: Planner,
              functions: dict[object, Function]) -> None:
    for name in step.names:
        out.line(f"if (h->allocate(h->frame, {planner.number(name)})) return 1;")


def _release(out: Indented, step: Release, program: Program, planner: Planner,
             functions: dict[object, Function]) -> None:
    for name in step.names:
        out.line(f"h->release(h->frame, {planner.number(name)});")


_STEPS: Steps = {Launch: _launch, Batch: _batch, Extern: _extern, Allocate: _allocate, Release: _release}


# ---------------------------------------------------------------------------------------------------- translation units


def _units(source: CppSource, program: Program, entry: str, jobs: int) -> tuple[str, ...]:
    """The kernels in at most `jobs` units of about equal length, the entry function in the last."""
    total = sum(len(f.text) for f in source.functions)
    count = max(1, min(jobs, total // UNIT_CHARACTERS, len(source.functions)))
    groups: list[list[int]] = [[] for _ in range(count)]
    filled = [0] * count
    for i in sorted(range(len(source.functions)), key=lambda i: -len(source.functions[i].text)):
        lightest = filled.index(min(filled))
        groups[lightest].append(i)
        filled[lightest] += len(source.functions[i].text)
    head = source.header
    units = [head + "".join("\n" + source.functions[i].text for i in sorted(group)) for group in groups]
    elsewhere = sorted(i for group in groups[:-1] for i in group)
    declared = "".join(_prototype(source.functions[i], program.kernels[i]) for i in elsewhere)
    units[-1] += HOST + declared + "\n" + entry
    return tuple(units)


def _prototype(function: Function, kernel: Kernel) -> str:
    types = [f"{'const ' if p.mode == 'r' else ''}{type_row(p.dtype).storage}*" for p in kernel.params]
    types += ["i64"] * len(size_parameters(kernel))
    if function.checks:
        types.append("i64*")
    return f'extern "C" void {function.name}({", ".join(types)});\n'

