"""Kernels of a program as one C++ source: `emit_kernels(program, target) -> Source`."""

from __future__ import annotations

from dataclasses import dataclass

from framesmith.codegen.cpp.contraction import contraction
from framesmith.codegen.cpp.index import expr_text
from framesmith.codegen.cpp.loops import block, rows, span
from framesmith.codegen.cpp.scatter_threads import owners, sharing
from framesmith.codegen.cpp.state import State, VectorTarget
from framesmith.codegen.cpp.tiles import tiled_pair
from framesmith.codegen.cpp.types import type_row
from framesmith.loops.contract import Contract
from framesmith.loops.ir import EXTENT, Indirect, Kernel, Origin, Param, Program
from framesmith.loops.text import operators_by_place, origins_of
from framesmith.util.text import Indented


@dataclass(frozen=True, slots=True)
class Function:
    """A printed kernel: `extern "C" void name(pointer of each parameter..., i64 of each size symbol..., i64* error)`.

    The last parameter is there only if `checks`: the kernel sets `*error` to 1 when an index was out of range.
    `origins`: the operators that it computes. `threshold`: work from which threads share a batch of it.
    """

    name: str
    text: str
    checks: bool
    origins: tuple[Origin, ...] = ()
    threshold: int | None = None


@dataclass(frozen=True, slots=True)
class CppSource:
    """`functions` are parallel to `Program.kernels`. A translation unit with some of them begins with the header (see
    `header_for`) and with `check`."""

    check: str
    functions: tuple[Function, ...]


def emit_kernels(program: Program, target: VectorTarget) -> CppSource:
    """Print every distinct kernel of `program` as a function k0, k1, ... The text compiles only for the target's vector
    width."""
    origins = origins_of(program)
    functions = tuple([emit_kernel(kernel, f"k{i}", target, origins.get(kernel, ()))
                       for i, kernel in enumerate(program.kernels)])
    return CppSource(f'static_assert(W == {target.width}, "vectors that kernels are not printed for");\n', functions)


def emit_kernel(kernel: Kernel, name: str, target: VectorTarget, origins: tuple[Origin, ...] = ()) -> Function:
    """Print one kernel as function `name`; a comment names the operators and lines that it computes."""
    out = Indented()
    s = State(kernel, target, out, {p.name: p for p in kernel.params})
    s.parallel = target.threshold is not None and not (kernel.work.is_const and kernel.work.const < target.threshold)
    s.condition = "" if kernel.work.is_const else f" if ({expr_text(kernel.work, {})} >= {target.threshold})"
    flat = kernel.symbols == (EXTENT,)
    with out.indent():
        if flat:
            _part(s, kernel)
        else:
            _nest(s, kernel)
    head = [_comment(line) for line in operators_by_place((o.place, o.op) for o in origins)]
    params = [_parameter(p) for p in kernel.params] + [f"i64 {name}" for name in size_parameters(kernel)]
    if s.checks:
        params.append("i64* error")
    head.append(f'extern "C" void {name}({", ".join(params)}) {{')
    return Function(name, "\n".join(head) + "\n" + str(out) + "}\n", s.checks, origins, target.threshold)


def size_parameters(kernel: Kernel) -> tuple[str, ...]:
    """Return the integer parameters of a kernel, which follow its pointers: size symbols, or the range of a row's loop
    to run."""
    return ("first", "last") if kernel.symbols == (EXTENT,) else tuple(map(str, kernel.symbols))


def _part(s: State, kernel: Kernel) -> None:
    """Print a kernel of a batch: elements [first, last) of a row, `first` a multiple of the vector's width."""
    *head, loop = kernel.body
    block(s, tuple(head))
    s.parallel = False
    span(s, loop, "first", "last")  # type: ignore[arg-type]


def _comment(line: tuple[str, str]) -> str:
    place, ops = line
    return f"// {ops}" + (f"  {place}" if place else "")


def _parameter(p: Param) -> str:
    const = "const " if p.mode == "r" else ""
    return f"{const}{type_row(p.dtype).storage}* {'__restrict ' if p.restrict else ''}{p.name}"


def _nest(s: State, kernel: Kernel) -> None:
    """Print the outer loops, shared among threads if there is enough work, and the body."""
    last = kernel.body[-1] if kernel.body else None
    if type(last) is Contract:
        contraction(s, kernel, last)
        return
    how = sharing(kernel) if s.parallel else None
    if how is not None and how.owned is not None:
        _by_owners(s, kernel, how.owned)
        return
    if s.parallel and kernel.outer:
        depth = how.depth if how is not None else len(kernel.outer)
        s.out.line("#pragma omp parallel for" + (f" collapse({depth})" if depth > 1
                                                 else "") + " schedule(static)" + s.condition)
    s.disjoint_adds = how is not None
    s.top = not kernel.outer
    _axes(s, kernel, 0)


def _by_owners(s: State, kernel: Kernel, owned: Indirect) -> None:
    """Print loops that each thread runs in full, and in which it adds only at indices that it owns."""
    s.disjoint_adds, s.owned = True, owned.symbol
    s.out.line("#pragma omp parallel" + s.condition)
    head, bounds = owners(owned)
    with s.out.block(head, "}"):
        s.out.line(bounds)
        _axes(s, kernel, 0)


def _axes(s: State, kernel: Kernel, depth: int) -> None:
    if depth == len(kernel.outer):
        for local in kernel.locals:
            s.out.line(f"alignas(64) {type_row(local.dtype).storage} {local.name}[{local.size}];")
        block(s, kernel.body)
        return
    axis = kernel.outer[depth]
    last = depth == len(kernel.outer) - 1
    tiled = tiled_pair(s, kernel.body, axis.symbol) if last and not kernel.locals else None
    if tiled is not None:
        rows(s, axis, tiled, "0", expr_text(axis.extent, {}))
        return
    with s.out.block(f"for (i64 {axis.symbol} = 0; {axis.symbol} < {expr_text(axis.extent, {})}; {axis.symbol}++) {{",
                     "}"):
        _axes(s, kernel, depth + 1)
