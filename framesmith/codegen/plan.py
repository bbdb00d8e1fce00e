"""The runtime's plan of a program of the loop IR: buffers become numbered values, operators become calls."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from framesmith.fake.schema import out_variant
from framesmith.graph.purity import communicates
from framesmith.graph.raising import may_draw, may_raise
from framesmith.loops.ir import (
    ARENA,
    EXTENT,
    Allocate,
    Batch,
    Buffer,
    Extern,
    Indirect,
    Launch,
    Program,
    Ref,
    SizeOf,
    walk,
)
from framesmith.loops.uses import rows, uses
from framesmith.runtime import plan as rt
from framesmith.symbolic.expr import Expr, as_expr, max_
from framesmith.symbolic.layout import contiguous_strides
from framesmith.util.errors import CompileError

KINDS = {
    "input": rt.Kind.INPUT,
    "constant": rt.Kind.CONSTANT,
    "output": rt.Kind.OUTPUT,
    "scratch": rt.Kind.OUTPUT,
    "arena": rt.Kind.ARENA,
    "result": rt.Kind.RESULT,
    "view": rt.Kind.VIEW,
}
# Bytes of work in a call from which it releases the GIL.
RELEASE_BYTES = 1 << 20


class Table:
    """The integer table of a call: size symbols, then every other expression that the plan uses."""

    def __init__(self, program: Program) -> None:
        self.entries: dict[Expr, int] = {symbol: k for k, symbol in enumerate(program.symbols)}
        self.symbols = len(self.entries)

    def integer(self, value: Expr | int) -> rt.Integer:
        """Return `value` as an int or as an entry of the table."""
        if type(value) is int:
            return value
        if value.is_const:  # type: ignore[union-attr]
            return value.const  # type: ignore[union-attr]
        return rt.Dyn(self.entries.setdefault(value, len(self.entries)))  # type: ignore[arg-type]

    def integers(self, values: Sequence[Expr | int]) -> tuple[rt.Integer, ...]:
        return tuple(map(self.integer, values))


def _stride(b: Buffer) -> tuple[Expr, ...]:
    """Return the strides of a buffer; for a row-major one that may have a size of 0, eager's, in which such a size
    counts as 1."""
    if b.kind == "input" or all(n.lo for n in b.size) or b.stride != tuple(map(as_expr, contiguous_strides(b.size))):
        return b.stride
    return tuple(map(as_expr, contiguous_strides([max_(n, 1) for n in b.size])))


class Planner:
    """Builds the plan of `program`. `numbers` gives the value of each buffer that has one, `externs` the number of each
    extern step, `names` variables of the host function for expressions over sizes.

    `positions[i]` is the place of the program's input i in the call's tuple of `inputs` elements.
    """

    def __init__(self, program: Program, positions: Sequence[int], inputs: int) -> None:
        self.program, self.positions, self.inputs = program, positions, inputs
        self.table = Table(program)
        self.values: list[rt.PlanValue] = []
        self.numbers: dict[str, int] = {}
        self.names: dict[Any, str] = {}
        self.calls: list[rt.Call] = []
        self.externs: dict[Extern, int] = {}
        self.places: list[tuple[str, int]] = []
        self.kernels = {kernel: k for k, kernel in enumerate(program.kernels)}
        self.steps: list[tuple[str, int]] = []
        self.constants = tuple(program.constants)
        self.written = _written_inputs(program)
        self.late = frozenset([name for step in program.steps if type(step) is Allocate for name in step.names])

    def plan(self, watched: Sequence[int] = (), entry: str = "fs_run", aligned: bool = False,
             launched: Collection[Extern] = ()) -> rt.Plan:
        """Return the plan of the program; also fill `numbers`, `externs` and `table`. `aligned`: kernels require
        aligned inputs. `launched`: calls that are launched as kernels on the device."""
        program = self.program
        in_kernels: dict[bool, set[int]] = {False: set(), True: set()}
        for step in program.steps:
            if type(step) is Extern and step not in launched:
                self.externs[step] = len(self.calls)
                self.calls.append(self._call(step))
                self.places.append((str(step.target), step.origins[0].node if step.origins else -1))
            elif isinstance(step, Launch | Batch | Extern):
                for name, by_value in _arguments(step):
                    name = program.buffers[name].base or name
                    kind = program.buffers[name].kind
                    if kind != "arena":
                        number = self.number(name)
                        in_kernels[by_value].update([number] if kind == "input" else [])
        outputs = tuple(map(self._output, program.outputs))
        # with a size of 0, values have no bytes, but the call path still gives them a place and their sizes
        arena = self.table.integer(program.arena_bytes if type(program.arena_bytes) is int
                                   else max_(program.arena_bytes, 1))
        symbols = tuple(self._symbol(s) for s in program.symbols.values())
        bumped = sorted({self.positions[program.buffers[name].index]
                         for name in self.written if program.buffers[name].kind == "input"})
        table = len(self.table.entries)
        return rt.Plan(
            self.inputs, tuple(self.values), outputs, tuple(self.calls), symbols, table, arena, tuple(bumped),
            tuple(watched),
            self._is_long(), entry, len(self.constants), aligned=tuple(sorted(in_kernels[False])) if aligned else (),
            numbers=tuple(sorted(in_kernels[True])), late=ARENA in self.late, places=tuple(self.places),
            **self._failures(),
        )  # fmt: skip

    def _failures(self) -> dict[str, Any]:
        """Return the fields of the plan for recovery from a failed call: `clean`, `spoilt` and `rewinds`."""
        inputs = {name for name in self.written if self.program.buffers[name].kind == "input"}
        steps = self.program.steps
        first = next((k for k, step in enumerate(steps) if type(step) is Extern and communicates(step.target) or inputs
                      and not inputs.isdisjoint(_written(step, self.program))), len(steps))
        clean = sum(step in self.externs for step in steps[:first] if type(step) is Extern)
        spoilt = any(_checks(step) for step in steps[first:])
        fails = any(_checks(step) or type(step) is Extern and may_raise(step.target) for step in steps)
        return {"clean": clean, "spoilt": spoilt,
                "rewinds": fails and any(type(s) is Extern and may_draw(s.target) for s in steps)}

    def mark(self, what: str, number: int) -> int:
        """Return the number of the mark before the launch of a kernel or the call of an operator."""
        self.steps.append((what, number))
        return len(self.steps) - 1

    def number(self, name: str) -> int:
        """Return the number of buffer `name`'s value."""
        known = self.numbers.get(name)
        if known is None:
            value = self._value(self.program.buffers[name])
            known = self.numbers[name] = len(self.values)
            self.values.append(value)
        return known

    def _value(self, b: Buffer) -> rt.PlanValue:
        table = self.table
        reference = {
            "input": lambda: self.positions[b.index],
            "constant": lambda: self.constants.index(b.name),
            "arena": lambda: table.integer(b.offset),
            "view": lambda: self.number(b.base),  # type: ignore[arg-type]
        }.get(b.kind, int)()
        offset = table.integer(b.offset) if b.kind == "view" else 0
        size, stride = table.integers(b.size), table.integers(_stride(b))
        return rt.PlanValue(KINDS[b.kind], reference, size, stride, b.dtype, offset, b.name in self.written,
                            b.name in self.late)

    def _symbol(self, source: Any) -> rt.Symbol:
        return rt.Symbol(self.positions[source.input], source.dim if isinstance(source, SizeOf) else -1)

    def _output(self, output: Any) -> rt.Output:
        if isinstance(output, Ref):
            return rt.Output(self.number(output.name))
        if isinstance(output, Expr):
            return rt.Output(constant=self.table.integer(output))
        return rt.Output(constant=output)

    # ---------------------------------------------------------------------------------------------------------- externs

    def _argument(self, arg: Any) -> Any:
        if isinstance(arg, Ref):
            return rt.TensorArg(self.number(arg.name))
        if isinstance(arg, Expr):
            return self.table.integer(arg)
        if isinstance(arg, (tuple, list)):
            return tuple(map(self._argument, arg))
        return arg

    def _call(self, e: Extern) -> rt.Call:
        args = tuple(map(self._argument, e.args))
        kwargs = {name: self._argument(value) for name, value in e.kwargs.items()}
        if not isinstance(e.target, torch._ops.OpOverload):
            return rt.Call(e.target, None, args, kwargs, self._results(e))
        names = out_variant(e.target) if e.outputs and all(o is not None and self._is_memory(o)
                                                             for o in e.outputs) else None
        schema = e.target._schema
        if names is None:
            return rt.Call(schema.name, schema.overload_name, args, kwargs, self._results(e))
        overload, formals = names
        kwargs.update({formal: rt.TensorArg(self.number(o)) for formal, o in zip(formals, e.outputs) if o is not None})
        return rt.Call(schema.name, overload, args, kwargs)

    def _is_memory(self, name: str) -> bool:
        return self.program.buffers[name].kind != "result"

    def _results(self, e: Extern) -> tuple[int, ...]:
        return tuple(
            rt.DROPPED if o is None else rt.copied_to(self.number(o)) if self._is_memory(o) else self.number(o)
            for o in e.outputs
        )

    def _is_long(self) -> bool:
        """Return whether a call takes some hundred microseconds or more, by the bytes that it accesses (unknown sizes
        count as long), or communicates: threads of a process group may want the interpreter's lock meanwhile."""
        total = 0
        for step in self.program.steps:
            if type(step) is Extern and communicates(step.target):
                return True
            if type(step) is Launch:
                size, work = step.kernel.bytes, step.kernel.work
                if not (size.is_const and work.is_const):
                    return True
                total += max(size.const, work.const)
            elif type(step) is Batch:
                total += step.work
        for v in self.values:
            total += 4 * _product(v.size)
        return total >= RELEASE_BYTES


def _arguments(step: Launch | Batch | Extern) -> list[tuple[str, bool]]:
    """Return the buffers that a kernel is launched on, and whether each is passed by value."""
    if isinstance(step, Extern):
        return [(arg.name, False) for arg in step.args]
    return [(name, param.host) for row in rows(step) for name, param in zip(row, step.kernel.params, strict=True)]


def _product(size: tuple[rt.Integer, ...]) -> int:
    total = 1
    for s in size:
        if isinstance(s, rt.Dyn):
            return RELEASE_BYTES
        total *= s
    return total


def _written(step: Any, program: Program) -> set[str]:
    """Buffers (views resolved to their bases) that a step writes."""
    return {program.buffers[name].base or name for name in uses(step)[1]}


def _checks(step: Any) -> bool:
    """Return whether a step is a kernel that checks indices."""
    return isinstance(step, Launch | Batch) and any(type(node) is Indirect and node.check
                                                    for node in walk(step.kernel.body))


def _written_inputs(program: Program) -> frozenset[str]:
    """Names of input and constant buffers whose memory some step writes."""
    bases = set().union(*[_written(step, program) for step in program.steps])
    return frozenset(name for name in bases if program.buffers[name].kind in ("input", "constant"))


def check_symbols(program: Program) -> None:
    """Raise CompileError unless every size symbol that a kernel takes is read from some input."""
    for kernel in program.kernels:
        for symbol in kernel.symbols:
            if symbol not in program.symbols and symbol is not EXTENT:
                raise CompileError(f"size symbol {symbol} has no source")
