"""The printer's state at a point of a kernel: the values in scope, the vector axis and the number of vectors in
flight."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from framesmith.codegen.cpp.types import literal, type_row
from framesmith.loops.ir import Axis, Const, Kernel, Op, Param
from framesmith.symbolic.expr import Expr, Symbol
from framesmith.util.text import Indented


@dataclass(frozen=True, slots=True)
class VectorTarget:
    """The machine that code is printed for.

    `width`: lanes of float32 in a vector (the header's W: 16 with AVX-512F, else 8). `threshold`: work (see
    `Kernel.work`) from which a kernel is shared among threads; None: never.
    """

    width: int
    threshold: int | None = 32768


@dataclass(frozen=True, slots=True)
class CppValue:
    """A printed value: one text, or one for each vector in flight; `lanes`: it is a vector."""

    texts: tuple[str, ...]
    lanes: bool

    def text(self, copy: int) -> str:
        return self.texts[copy if len(self.texts) > 1 else 0]


@dataclass(slots=True)
class State:
    """The printer's state; `scope` lists what to forget at the end of the block that is being printed.

    `axis`: the vector axis when inside of a vector loop; `copies`: vectors in flight there; `live`: text of the count
    of live lanes. `names`: texts of symbols that differ from their names, one a copy. `lane_symbols`: symbols with one
    value a lane, as texts a copy. `accumulators`: of reductions under way; `parts`: structures that hold results with
    several parts. `checks`: some index is checked. `tiles`: accesses that go to a row of a tile instead of memory.
    `columns`: the axis of the top-level loop that threads share, while inside of it. `disjoint_adds`: no two threads
    add to one element; `owned`: the index whose range is divided among threads, if any. `parallel`: work is shared
    among threads, under a `condition` on sizes; `top`: outside of all loops; `in_chain`: in a chain of reduction loops.
    """

    kernel: Kernel
    target: VectorTarget
    out: Indented
    params: dict[str, Param]
    values: dict[Op, CppValue] = field(default_factory=dict)
    numbers: dict[Op, int] = field(default_factory=dict)
    scope: list[Op] = field(default_factory=list)
    axis: Symbol | None = None
    copies: int = 1
    live: str = "full"
    names: dict[Symbol, tuple[str, ...]] = field(default_factory=dict)
    lane_symbols: dict[Symbol, tuple[str, ...]] = field(default_factory=dict)
    accumulators: dict[Op, Any] = field(default_factory=dict)
    parts: dict[Op, tuple[tuple[str, ...], bool]] = field(default_factory=dict)
    tiles: dict[Op, str] = field(default_factory=dict)
    columns: Axis | None = None
    disjoint_adds: bool = False
    owned: Symbol | None = None
    checks: bool = False
    parallel: bool = False
    condition: str = ""
    top: bool = False
    in_chain: bool = False

    def number(self, op: Op) -> int:
        """Return the number in the name of `op`, in order of first printing."""
        return self.numbers.setdefault(op, len(self.numbers))

    def define(self, op: Op, texts: tuple[str, ...], lanes: bool) -> None:
        self.values[op] = CppValue(texts, lanes)
        self.scope.append(op)

    def names_of(self, copy: int) -> dict[Symbol, str]:
        return {s: t[copy if len(t) > 1 else 0] for s, t in self.names.items()}

    def lanes_of(self, copy: int) -> dict[Symbol, str]:
        """Symbols that differ from lane to lane, with their vectors."""
        found = {s: t[copy if len(t) > 1 else 0] for s, t in self.lane_symbols.items()}
        if self.axis is not None:
            found[self.axis] = f"iota({self.names[self.axis][copy]})"
        return found

    def near_lanes_of(self, copy: int) -> dict[Symbol, str]:
        """Return the same, of any integer type."""
        found = self.lanes_of(copy)
        if self.axis is not None:
            found[self.axis] = f"(splat(int({self.names[self.axis][copy]})) + iota32())"
        return found

    def moves(self, e: Expr) -> bool:
        """Return whether `e` differs from one vector to the next (or inside one)."""
        free = e.free
        if self.axis is not None and self.axis in free:
            return True
        return any(len(self.names.get(s, ())) > 1 or s in self.lane_symbols for s in free)

    def operand(self, op: Op, copy: int, lanes: bool) -> str:
        """Return the text of `op`'s value, as a vector where `lanes`."""
        if type(op) is Const:
            text = literal(op.value, op.dtype)
            return f"splat({text})" if lanes else text
        value = self.values[op]
        return f"splat({value.text(copy)})" if lanes and not value.lanes else value.text(copy)

    def is_vector(self, op: Op) -> bool:
        return type(op) is not Const and self.values[op].lanes

    def is_single(self, op: Op) -> bool:
        return type(op) is Const or len(self.values[op].texts) == 1

    def ctype(self, op: Op, lanes: bool) -> str:
        row = type_row(op.dtype)
        return row.vector if lanes else row.scalar

    @contextmanager
    def block(self) -> Iterator[None]:
        """Open a scope: values printed inside go out of scope at its end."""
        outer, self.scope = self.scope, []
        try:
            yield
        finally:
            for op in self.scope:
                self.values.pop(op, None)
            self.scope = outer

    @contextmanager
    def vector(self, axis: Symbol, copies: int, live: str) -> Iterator[None]:
        """Enter a vector loop: within, `copies` vectors along `axis` are in flight, from the C++ variable of the axis's
        name."""
        width = self.target.width
        saved = (self.axis, self.copies, self.live)
        self.axis, self.copies, self.live = axis, copies, live
        self.names[axis] = tuple(axis.name if k == 0 else f"({axis.name} + {k * width})" for k in range(copies))
        try:
            with self.block():
                yield
        finally:
            self.axis, self.copies, self.live = saved
            del self.names[axis]
