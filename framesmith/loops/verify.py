"""The verifier of kernels and programs: `verify` raises `VerifyError` at the first violated rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from framesmith.loops.ir import (
    ARENA,
    Allocate,
    Indirect,
    Kernel,
    Load,
    Loop,
    Node,
    Op,
    Program,
    Reduce,
    Release,
    Scan,
    Store,
    part_symbol,
)
from framesmith.loops.product import MatrixProduct
from framesmith.loops.uses import names_in, uses
from framesmith.symbolic.expr import Symbol, as_expr
from framesmith.util.errors import VerifyError


class _Scope:
    """The memory, symbols and values that are defined at a point of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.memory = {p.name: p.mode for p in kernel.params} | {t.name: "rw" for t in kernel.locals}
        self.symbols: set[Symbol] = set(kernel.symbols) | {a.symbol for a in kernel.outer}
        self.part = part_symbol(kernel.parts) if kernel.parts else None
        self.summed = {a.symbol for a in kernel.outer}
        self.values: set[Op] = set()

    def block(self, body: Sequence[Node], in_reduction: bool, vectors: int) -> list[Op]:
        """Check a block; return the reductions that become visible after it."""
        pending: list[Op] = []
        mine: list[Op] = []
        symbols = set(self.symbols)
        for node in body:
            if isinstance(node, Op):
                self.statement(node, in_reduction)
                (pending if type(node) is Reduce else mine).append(node)
                if type(node) is not Reduce:
                    self.values.add(node)
            else:
                inner = self.nest(node, vectors)
                if in_reduction and type(node) is Loop and node.reduce:
                    pending += inner
                else:
                    self.values.update(inner)
                    mine += inner
        self.values.difference_update(mine)
        self.symbols = symbols
        return pending

    def nest(self, node: Any, vectors: int) -> list[Op]:
        vector = type(node) is not Loop or node.vector
        if vector and vectors:
            raise VerifyError("a vector loop inside a vector loop")
        if type(node) is MatrixProduct:
            self.operands(node)
        for a in node.axes:
            if a.symbol in self.symbols:
                raise VerifyError(f"axis {a.symbol} is used twice on one path")
            self.symbols.add(a.symbol)
        saved = set(self.symbols)
        found = self.block(node.body, type(node) is Loop and node.reduce, vectors + vector)
        self.symbols = saved - {a.symbol for a in node.axes}
        return found

    def operands(self, p: MatrixProduct) -> None:
        """Check blocks of operands, each over its own two axes."""
        for block, axis in ((p.left, p.m), (p.right, p.n)):
            saved, values = set(self.symbols), set(self.values)
            self.symbols |= {axis.symbol, p.k.symbol}
            for op in block:
                self.statement(op, False)
                self.values.add(op)
            self.symbols, self.values = saved, values

    def statement(self, op: Op, in_reduction: bool) -> None:
        for a in op.args:
            if a not in self.values:
                raise VerifyError(f"{type(op).__name__} uses {type(a).__name__} {a} out of scope")
        sums = type(op) is Store and op.mode == "sum"
        if sums and (self.part is None or not self.summed.isdisjoint(op.index.free)):  # type: ignore[attr-defined]
            raise VerifyError("a sum over the iterations of a part whose index varies within it, or without parts")
        for e in op.expressions:
            unknown = e.free - self.symbols - ({self.part} if sums else set())
            if unknown:
                raise VerifyError(f"{type(op).__name__} uses unknown symbols {unknown} in {e}")
        if type(op) is Indirect:
            self.symbols.add(op.symbol)
        elif type(op) in (Reduce, Scan) and not in_reduction:
            raise VerifyError("a reduction outside reduction loops")
        elif isinstance(op, (Load, Store)):
            mode = self.memory.get(op.buffer)
            if mode is None or ("r" if type(op) is Load else "w") not in mode:
                raise VerifyError(f"{type(op).__name__} of {op.buffer} with mode {mode}")


def verify_kernel(kernel: Kernel) -> None:
    """Check scopes, symbols, memory and loops of one kernel."""
    scope = _Scope(kernel)
    scope.block(kernel.body, False, 0)


def verify(program: Program) -> None:
    """Check every kernel and name, that nothing is read before it is written or after its memory is reused, and that
    every used buffer has memory."""
    for kernel in program.kernels:
        verify_kernel(kernel)
    buffers = program.buffers
    written = {n for n, b in buffers.items() if b.kind in ("input", "constant") or as_expr(0) in b.size}
    owner: dict[tuple[int, int], str] = {}
    late = {n for s in program.steps if type(s) is Allocate for n in s.names}
    arena = {n for n, b in buffers.items() if b.kind == "arena"}
    absent = {n for n, b in buffers.items() if b.kind == "scratch"} | late | (arena if ARENA in late else set())
    for step in program.steps:
        if type(step) is Release:
            written.difference_update(step.names)
            absent.update(step.names, arena if ARENA in step.names else ())
            continue
        if type(step) is Allocate:
            absent.difference_update(step.names, arena if ARENA in step.names else ())
            continue
        reads, writes = uses(step)
        for name in (*reads, *writes):
            if name not in buffers:
                raise VerifyError(f"unknown buffer {name}")
        reads, writes = ([buffers[n].base or n for n in names] for names in (reads, writes))
        if gone := absent.intersection((*reads, *writes)):
            raise VerifyError(f"{', '.join(sorted(gone))}: used without memory")
        for name in reads:
            if name not in written and name not in writes:
                raise VerifyError(f"{name} is read before it is written, or after its memory was reused")
        for name in writes:
            _take(buffers, name, owner, written)
        written.update(writes)
    for name in names_in(program.outputs):
        if (buffers[name].base or name) not in written:
            raise VerifyError(f"result {name} is never written")


def _take(buffers: Any, name: str, owner: dict[tuple[int, int], str], written: set[str]) -> None:
    """Note a write of `name`, which invalidates other buffers in its part of the arena."""
    b = buffers[name]
    if b.kind != "arena" or type(b.offset) is not int or type(b.nbytes) is not int:
        return
    low, high = b.offset, b.offset + b.nbytes
    for (a, z), other in list(owner.items()):
        if other != name and a < high and low < z:
            written.discard(other)
            del owner[a, z]
    owner[low, high] = name
