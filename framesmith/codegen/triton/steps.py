"""The body of a tile program as blocks of operations: rebuilt with common subexpressions merged, and the same symbols
in all nests.

Where the whole row is one tile (`persistent`) there is one block, and a row that several nests read is read once. Else
each nest is a block, and only the results of its reductions outlive it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from framesmith.codegen.triton.tile_shape import Form, Nest
from framesmith.loops.build import Builder, Replay
from framesmith.loops.ir import Indirect, Load, Op, Reduce, Store
from framesmith.symbolic.expr import Expr, as_expr

NEUTRAL = {"sum": 0, "prod": 1, "max": -math.inf, "min": math.inf, "any": False, "all": True}


@dataclass(slots=True, eq=False)
class Barrier(Op):
    """A barrier: all threads of the program have finished their writes."""

    args = ()


@dataclass(slots=True, eq=False)
class Block:
    """`loop`: `ops` run for each part of the row. `nested`: stores inside a loop over the row."""

    loop: bool
    ops: list[Op] = field(default_factory=list)
    nested: set[Op] = field(default_factory=set)


class Steps(Builder):
    """Builds the blocks. Stored values are forwarded to later loads; values out of scope are loaded after a barrier."""

    __slots__ = ("blocks", "forward", "inside", "written")

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[Block] = []
        self.forward: dict[tuple[str, Expr], Op] = {}
        self.written: set[str] = set()
        self.inside = False

    def open(self, loop: bool) -> None:
        """Open a new block for the following operations."""
        self.blocks.append(Block(loop))
        self.ops = self.blocks[-1].ops

    def close(self) -> None:
        """Close a loop: of its values, only reductions stay in scope."""
        gone = {op for op in self.ops if type(op) is not Reduce}
        self._seen = {k: v for k, v in self._seen.items() if v not in gone}
        self.forward = {k: v for k, v in self.forward.items() if v not in gone}

    def known(self, op: Load, index: Expr) -> Op | None:
        """Return the value of a load if it was stored here; else insert a barrier if needed, so that it sees earlier
        writes."""
        found = self.forward.get((op.buffer, index))
        if found is None and op.buffer in self.written:
            if self.blocks[-1].loop:
                self.blocks.insert(-1, Block(False, [Barrier()]))
            else:
                self.ops.append(Barrier())
            self.written.clear()
        return found

    def store(self, buffer: str, index: Expr | int, value: Op, mode: str | None = None, mask: Op | None = None) -> None:
        super().store(buffer, index, value, mode, mask)
        if self.inside:
            self.blocks[-1].nested.add(self.ops[-1])
        self.written.add(buffer)
        self._seen = {k: v for k, v in self._seen.items() if not (type(v) is Load and v.buffer == buffer)}
        self.forward = {k: v for k, v in self.forward.items() if k[0] != buffer}
        if mode is None and mask is None:
            self.forward[buffer, as_expr(index)] = value


def blocks(form: Form, persistent: bool) -> list[Block]:
    """Return the blocks of `form`."""
    steps = Steps()
    values: dict[Op, Op] = {}
    replay = Replay(steps, {}, values, steps.known)
    steps.open(False)
    for node in form.body:
        if type(node) is not Nest:
            if steps.blocks[-1].loop:
                steps.open(False)
            replay.run((node,))  # type: ignore[arg-type]
            continue
        assert form.row is not None
        renamed: dict[Expr, Expr | int] = {a.symbol: b.symbol for a, b in zip(node.axes, form.row.axes, strict=True)}
        outer, replay.sub = replay.sub, {**replay.sub, **renamed}
        if any(a.extent.is_const and not a.extent.const for a in node.axes):
            values.update((op, steps.const(NEUTRAL.get(op.kind, math.nan), op.dtype))
                          for op in node.ops if type(op) is Reduce)
            continue
        if not persistent:
            steps.open(True)
        steps.inside = True
        replay.run(node.ops)
        steps.inside = False
        if not persistent:
            steps.close()
        replay.sub = {k: v for k, v in replay.sub.items() if k not in renamed} | outer
    _drop_dead(steps.blocks)
    return [b for b in steps.blocks if b.ops]


def _drop_dead(blocks: list[Block]) -> None:
    """Remove operations that no effect needs."""
    needed: set[Op] = set()
    symbols: set[Expr] = set()
    for block in reversed(blocks):
        kept = []
        for op in reversed(block.ops):
            checks = type(op) is Indirect and (op.check or op.symbol in symbols)
            if op in needed or checks or type(op) is Store or type(op) is Barrier:
                kept.append(op)
                needed.update(op.args)
                symbols.update(s for e in op.expressions for s in e.free)
        block.ops[:] = reversed(kept)
