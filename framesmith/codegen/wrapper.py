"""The host function of a program whose kernels are C++ functions, and the translation units with both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from framesmith.codegen.cpp.emit import CppSource, Function, size_parameters
from framesmith.codegen.cpp.header import header_for
from framesmith.codegen.cpp.types import type_row
from framesmith.codegen.host_function import HOST, Steps, Wrapped, comment, entry, integer_text, mark, place_text
from framesmith.codegen.plan import Planner, check_symbols
from framesmith.codegen.step_table import KERNEL, Fixed, Row, grouped, print_fixed, run_text
from framesmith.loops.ir import EXTENT, Allocate, Batch, Extern, Kernel, Launch, Param, Program, Release
from framesmith.symbolic.expr import Expr
from framesmith.util.text import Indented

# Kernels are distributed to translation units, to compile in parallel, if each gets at least so much text.
UNIT_CHARACTERS = 6000
# The maximal number of steps that are written out; more of them compile more slowly than a table.
WRITTEN_OUT = 64


def wrap(program: Program, source: CppSource, *, positions: Sequence[int] | None = None, inputs: int | None = None,
         watched: Sequence[int] = (), jobs: int = 1) -> Wrapped:
    """Print the host function of `program`, which calls its kernels (`source`).

    Input i of the program is element `positions[i]` (default: i) of the call's tuple of `inputs` elements. `watched`:
    elements of that tuple that the constants were computed from. `jobs`: translation units at most.
    """
    check_symbols(program)
    positions = range(len(program.inputs)) if positions is None else positions
    planner = Planner(program, positions, len(program.inputs) if inputs is None else inputs)
    plan = planner.plan(watched)
    out = Indented()
    functions: dict[object, Function] = dict(zip(program.kernels, source.functions))
    if len(program.steps) > WRITTEN_OUT:
        program = replace(program, steps=grouped(program, planner, functions, _launch_row))
        out.lines(run_text(_cases(program, planner, functions)))
    entry(out, program, planner, plan, _STEPS, functions, any(f.checks for f in source.functions))
    plan = replace(plan, steps=tuple(planner.steps))
    return Wrapped(_units(source, program, str(out), jobs), plan, tuple(program.constants.values()))


# --------------------------------------------------------------------------------------------------------------- steps


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


def _extern(out: Indented, step: Extern, program: Program, planner: Planner, functions: dict[object, Function]) -> None:
    mark(out, planner, "call", planner.externs[step])
    out.line(f"if (h->call(h->frame, {planner.externs[step]})) return 1;  // {comment(step)}")


def _allocate(out: Indented, step: Allocate, program: Program, planner: Planner,
              functions: dict[object, Function]) -> None:
    for name in step.names:
        out.line(f"if (h->allocate(h->frame, {planner.number(name)})) return 1;")


def _release(out: Indented, step: Release, program: Program, planner: Planner,
             functions: dict[object, Function]) -> None:
    for name in step.names:
        out.line(f"h->release(h->frame, {planner.number(name)});")


def _batch(out: Indented, step: Batch, program: Program, planner: Planner, functions: dict[object, Function]) -> None:
    """Print a batch: a table of the rows' addresses and sizes. Each thread runs an equal share of all elements, row
    after row."""
    function, params = functions[step.kernel], step.kernel.params
    mark(out, planner, "kernel", planner.kernels[step.kernel])
    with out.block("{", "}"):
        with out.block(f"static const i64 rows[][{len(params) + 1}] = {{", "};"):
            for row, size in zip(step.rows, step.sizes, strict=True):
                out.line(f"{{{', '.join([place_text(program, planner, name) for name in row])}, {size}}},")
        pointers = [_memory(f"row[{k}]", param) for k, param in enumerate(params)]
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


_STEPS: Steps = {Launch: _launch, Batch: _batch, Extern: _extern, Allocate: _allocate, Release: _release,
                 Fixed: print_fixed}


def _launch_row(step: Launch, program: Program, planner: Planner, functions: dict[object, Function]) -> Row | None:
    """Return the row of a launch on memory whose place does not depend on sizes."""
    buffers = [program.buffers[name] for name in step.args]
    if any(b.kind == "arena" and isinstance(b.offset, Expr) for b in buffers):
        return None
    number = planner.kernels[step.kernel]
    return Row((KERNEL + number, *[place_text(program, planner, b.name) for b in buffers]), mark=("kernel", number))


def _cases(program: Program, planner: Planner, functions: dict[object, Function]) -> str:
    """Return the cases of a switch over kernels, each of which runs a row: see `run_text`."""
    symbols, out = {symbol: f"n[{k}]" for k, symbol in enumerate(program.symbols)}, Indented()
    for kernel, number in planner.kernels.items():
        if kernel.symbols == (EXTENT,):
            continue
        function = functions[kernel]
        args = [_memory(f"s[{k}]", param) for k, param in enumerate(kernel.params)]
        args += [symbols[symbol] for symbol in kernel.symbols] + ["&error"] * function.checks
        with out.block(f"case {KERNEL + number}: {{", "}"):
            if function.checks:
                out.line("i64 error = 0;")
            out.line("FS_MARK(mark++);")
            out.line(f"{function.name}({', '.join(args)});")
            if function.checks:
                out.line("if (error) return 2;")
            out.line(f"s += {len(kernel.params)};")
            out.line("break;")
    return str(out)


def _memory(place: str, param: Param) -> str:
    """Return a pointer to the memory at a place of a table."""
    return f"({'const ' if param.mode == 'r' else ''}{type_row(param.dtype).storage}*)fs_at(a, p, {place})"


def _pointer(program: Program, planner: Planner, name: str, param: Param) -> str:
    buffer = program.buffers[name]
    cast = f"({'const ' if param.mode == 'r' else ''}{type_row(param.dtype).storage}*)"
    if buffer.kind == "arena":
        return f"{cast}(a + {integer_text(buffer.offset, planner.names)})"
    return f"{cast}p[{planner.number(name)}]"


# ---------------------------------------------------------------------------------------------------- translation units


def _units(source: CppSource, program: Program, entry: str, jobs: int) -> tuple[str, ...]:
    """Return the kernels in at most `jobs` units of about equal length, the entry function in the last."""
    total = sum(len(f.text) for f in source.functions)
    count = max(1, min(jobs, total // UNIT_CHARACTERS, len(source.functions)))
    groups: list[list[int]] = [[] for _ in range(count)]
    filled = [0] * count
    for i in sorted(range(len(source.functions)), key=lambda i: -len(source.functions[i].text)):
        lightest = filled.index(min(filled))
        groups[lightest].append(i)
        filled[lightest] += len(source.functions[i].text)
    units = ["".join("\n" + source.functions[i].text for i in sorted(group)) for group in groups]
    elsewhere = sorted(i for group in groups[:-1] for i in group)
    declared = "".join(_prototype(source.functions[i], program.kernels[i]) for i in elsewhere)
    units[-1] += HOST + declared + "\n" + entry
    return tuple([header_for(unit) + source.check + unit for unit in units])


def _prototype(function: Function, kernel: Kernel) -> str:
    types = [f"{'const ' if p.mode == 'r' else ''}{type_row(p.dtype).storage}*" for p in kernel.params]
    types += ["i64"] * len(size_parameters(kernel))
    if function.checks:
        types.append("i64*")
    return f'extern "C" void {function.name}({", ".join(types)});\n'

