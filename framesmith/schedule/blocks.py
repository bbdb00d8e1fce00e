"""Construction of a kernel's body: each operation is placed in the outermost possible loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from framesmith.loops.build import REPLAY, Builder, Replay
from framesmith.loops.contract import Accumulator
from framesmith.loops.ir import Axis, Indirect, Load, Loop, Node, Op, Reduce, Scan, Store
from framesmith.schedule.fused_nests import Member, Substitutes
from framesmith.symbolic.expr import Expr, Substitution, Symbol, as_expr
from framesmith.util.precision import compute_dtype


class Placer(Builder):
    """A builder over a nest that is open: `level` 0 is the body of the kernel, level k the body of the k-th loop of the
    stage."""

    __slots__ = ("_extents", "_levels", "_lists", "_post", "_symbols", "body", "count", "depth", "forward", "par",
                 "phase", "rounded")

    def __init__(self, rounded: Mapping[str, torch.dtype]) -> None:
        super().__init__()
        self.rounded = rounded  # buffers of which later operations get what memory would hold: dtypes
        self.body: list[Node] = []  # of the kernel
        self.count = 0  # indirect symbols given out
        self.forward: dict[tuple[str, Expr], Op] = {}  # what a store in scope wrote
        self._levels: dict[Op, int] = {}
        self._symbols: dict[Symbol, int] = {}
        self._lists: list[list[Node]] = []
        self._post: list[Node] = []
        self._extents: tuple[Any, ...] = ()
        self.par = self.depth = self.phase = 0

    # ------------------------------------------------------------------------------------------------- opening, closing

    def open(self, loops: Sequence[Symbol], par: int) -> None:
        """Start a stage of nested `loops`, the first `par` of them parallel and the others reductions."""
        self.par, self.depth, self.phase = par, len(loops), 0
        self._lists = [[] for _ in range(len(loops) + 1)]
        self._post = []
        self._extents = tuple([(s.lo, s.hi, s.sup) for s in loops[par:]])
        for k, s in enumerate(loops):
            self._symbols[s] = k + 1

    def after_reduction(self) -> None:
        """Place what is built from now on after the reduction loops."""
        if self.depth > self.par:
            self.phase = 1
            self._forget(self.par)

    def close(self, loops: Sequence[Axis], vector: Symbol | None) -> None:
        """End the stage and append it to the body."""
        inner: list[Node] = self._lists[self.depth]
        for k in range(self.depth, 0, -1):
            axis = loops[k - 1]
            block: list[Node] = [Loop(axis, tuple(inner), k > self.par, axis.symbol is vector)] if inner else []
            if k - 1 == self.par:
                block += self._post
            inner = self._lists[k - 1] + block
        self.body += inner
        for axis in loops:
            self._symbols.pop(axis.symbol, None)
        self._forget(0)
        self.depth = self.par = self.phase = 0

    def close_contraction(self, make: Callable[[tuple[Node, ...]], Node], tile: Sequence[Symbol]) -> None:
        """End the stage whose two loops are the tile of a contraction: one block for both."""
        self.body += [*self._lists[0], make(tuple(self._lists[1] + self._lists[2]))]
        for s in tile:
            self._symbols.pop(s, None)
        self._forget(0)
        self.depth = self.par = self.phase = 0

    def _forget(self, above: int) -> None:
        """Operations deeper than `above` go out of scope."""
        levels = self._levels
        self._seen = {k: op for k, op in self._seen.items() if levels[op] <= above}
        self.forward = {k: op for k, op in self.forward.items() if levels[op] <= above}
        self._symbols = {s: n for s, n in self._symbols.items() if n <= above or s.name[0] != "j"}

    # ---------------------------------------------------------------------------------------------------------- placing

    def _emit(self, key: Any, make: Callable[..., Op], *fields: Any) -> Op:
        op = self._seen.get(key)
        if op is None:
            op = make(*fields)
            level = self._level(op)
            if type(op) is Reduce:
                self._lists[self.depth].append(op)
                level = self.par
            else:
                self._put(op, level)
            self._levels[op] = level
            self._seen[key] = op
            if type(op) is Indirect:
                self._symbols[op.symbol] = level
        return op

    def _put(self, op: Op, level: int) -> None:
        if self.phase and level >= self.par:
            self._post.append(op)
        else:
            self._lists[level].append(op)

    def _level(self, op: Op) -> int:
        levels = self._levels
        if type(op) is Accumulator or type(op) is Scan:
            return self.depth
        level = max((levels[a] for a in op.args), default=0)
        for e in op.expressions:
            for s in e.free:
                level = max(level, self._symbols.get(s, 0))
        return level

    def indirect(self, value: Op, symbol: Symbol, size: Expr | int, wrap: bool, check: bool) -> Op:
        size = as_expr(size)
        key = ("indirect", value, size, wrap, check)
        found = self._seen.get(key)
        if found is not None:
            return found
        name = Symbol(f"j{self.count}", symbol.lo, symbol.sup if symbol.sup is not None else symbol.hi)
        self.count += 1
        return self._emit(key, Indirect, (value,), name, size, wrap, check)

    def reduce(self, kind: str, args: tuple[Op, ...], dtype: torch.dtype) -> Op:
        """Reuse a reduction of an earlier stage only if it ran over as many elements: an operand that does not vary
        along the reduction axes does not determine their extents."""
        return self._emit(("reduce", kind, args, self._extents), Reduce, kind, args, compute_dtype(dtype))

    def store(self, buffer: str, index: Expr | int, value: Op, mode: str | None = None, mask: Op | None = None) -> None:
        if mode is None and buffer in self.rounded:
            value = self.cast(value, self.rounded[buffer])
        op = Store(buffer, index, (value,) if mask is None else (value, mask), value.dtype,  # type: ignore[arg-type]
                   mode)
        level = self.par if self.phase else self.depth
        self._put(op, level)
        self._overwritten(buffer, as_expr(index))
        if mode is None and mask is None:
            self.forward[buffer, index] = value  # type: ignore[index]

    def _overwritten(self, buffer: str, index: Expr) -> None:
        """Invalidate the known elements of a buffer, except for those that are certainly not the one at `index`."""

        def stale(name: str, at: Expr | int) -> bool:
            apart = as_expr(at) - index
            return name == buffer and not (apart.is_const and apart.const)

        self.forward = {k: op for k, op in self.forward.items() if not stale(*k)}
        self._seen = {k: op for k, op in self._seen.items() if not (type(op) is Load and stale(op.buffer, op.index))}


REPLAY[Accumulator] = lambda r, op, a: r.b._emit(("accumulator",), Accumulator)


Lookup = Callable[[Member, Load, Expr], Op | None]


class Replayed:
    """One member being built into a `Placer`, with its axes substituted. `again`: provides loaded values that are not
    known."""

    def __init__(self, placer: Placer, member: Member, sub: Substitutes, again: Lookup | None = None) -> None:
        self.member, self.again = member, again
        full = Substitution(sub).composed(member.sub)
        self.replay = Replay(placer, full, {}, self._load)
        self.placer = placer

    def _load(self, op: Load, index: Expr) -> Op | None:
        found = self.placer.forward.get((op.buffer, index))
        return self.again(self.member, op, index) if found is None and self.again is not None else found

    def inner(self) -> None:
        """The part inside the reduction loops (everything, for a member without)."""
        self.replay.run(self.member.compute.inner if self.member.red
                        or self.member.compute.raxes else self.member.compute.ops)

    def post(self) -> None:
        """The part after the reduction loops."""
        self.replay.run(self.member.compute.ops)


