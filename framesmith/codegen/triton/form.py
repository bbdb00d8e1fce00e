"""A kernel of the loop IR as a program over tiles.

A tile has up to three dimensions: `y` and `x` for the iterations that are independent (the grid), and `r` for the loops inside, all of
which run over one domain. A kernel whose loops do not fit that is refused; a scheduler that is told to make tiles makes those that do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from framesmith.codegen.triton.columns import columns
from framesmith.loops.ir import Axis, Kernel, Load, Loop, Node, Op, Store
from framesmith.symbolic.expr import Expr, prod
from framesmith.util.errors import CompileError

MANY = 1024.0  # iterations of an axis of unknown extent
ENOUGH = 8  # extent from which a dimension of its own pays for an axis along which memory runs


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension of the tile: axes that are run through as one number, the last the fastest."""

    name: str
    axes: tuple[Axis, ...]

    @property
    def extent(self) -> Expr:
        return prod(a.extent for a in self.axes)


@dataclass(frozen=True, slots=True, eq=False)
class Nest:
    """Loops over the domain `r`, whose axes are `axes` here, and what they do in each iteration."""

    axes: tuple[Axis, ...]
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """`grid`: () for a kernel of one iteration, (x,) or (y, x). `row`: None where there are no loops inside. `body`: in order. `vectors`: x
    is a vector of each thread (see `columns`)."""

    kernel: Kernel
    grid: tuple[Dim, ...]
    row: Dim | None
    body: tuple[Op | Nest, ...]
    vectors: bool = False

    def accesses(self) -> list[tuple[Load | Store, Expr]]:
        """Every load and store with its index, over the axes of the grid and of `row`."""
        found = []
        for node in self.body:
            if type(node) is Nest:
                assert self.row is not None
                sub: dict[Expr, Expr | int] = {a.symbol: b.symbol for a, b in zip(node.axes, self.row.axes, strict=True)}
                found += [(op, op.index.subs(sub)) for op in node.ops if isinstance(op, Load | Store)]
            elif isinstance(node, Load | Store):
                found.append((node, node.index))
        return found


def form(kernel: Kernel, tiling: bool = True) -> Form:
    """The tile program of `kernel`, with at most one dimension beside `row` unless `tiling`; CompileError where it has none."""
    if kernel.locals:
        raise CompileError("a kernel with arrays of its own has no tile program")
    axes, nodes = _grid(kernel)
    body: list[Op | Nest] = []
    row: Dim | None = None
    for node in nodes:
        if isinstance(node, Op):
            body.append(node)
            continue
        nest = _flat(node)
        row = row or Dim("r", nest.axes)
        if [a.extent for a in nest.axes] != [a.extent for a in row.axes]:
            raise CompileError("loops over different domains have no tile program")
        body.append(nest)
    flat = Form(kernel, (), row, tuple(body))
    shared = columns(axes, [op for op in body if isinstance(op, Op)]) if row is None and tiling else None
    if shared is not None:
        points, vector, ops = shared
        return Form(kernel, (Dim("y", points), Dim("x", (vector,))), None, ops, True)
    return replace(flat, grid=_dims(axes, flat, tiling))


def _grid(kernel: Kernel) -> tuple[list[Axis], tuple[Node, ...]]:
    """The independent axes, with those of a loop that is all that the body does."""
    axes, body = list(kernel.outer), kernel.body
    while body:
        *head, loop = body
        if type(loop) is not Loop or loop.reduce or any(type(n) is Store or not isinstance(n, Op) for n in head):
            break
        axes.append(loop.axis)
        body = (*head, *loop.body)
    return axes, body


def _flat(node: Node) -> Nest:
    """A nest, its operations in one block."""
    axes: list[Axis] = []
    ops: list[Op] = []
    kinds: set[bool] = set()

    def visit(at: Node) -> None:
        if not isinstance(at, Loop):
            raise CompileError("a contraction has no tile program")
        kinds.add(at.reduce)
        if len(kinds) > 1 or sum(not isinstance(n, Op) for n in at.body) > 1:
            raise CompileError("loops of several kinds within each other have no tile program")
        axes.append(at.axis)
        for n in at.body:
            if isinstance(n, Op):
                ops.append(n)
            else:
                visit(n)

    visit(node)
    return Nest(tuple(axes), tuple(ops))


# ----------------------------------------------------------------------------------------------------------- dimensions of the grid


def _dims(axes: list[Axis], flat: Form, tiling: bool) -> tuple[Dim, ...]:
    """One dimension, or two where memory runs along one axis here and along another there."""
    if not axes:
        return ()
    if flat.row is not None:
        return (Dim("x", tuple(axes)),)
    accesses = [op for op, _ in flat.accesses()]
    last = _last(axes, accesses)
    first = _across(axes, accesses, last) if tiling and _is_long(last, 3) else None
    rest = tuple(a for a in axes if a is not first and a is not last)
    return (Dim("x", (*rest, last)),) if first is None else (Dim("y", (*rest, first)), Dim("x", (last,)))


def _last(axes: list[Axis], accesses: list[Load | Store]) -> Axis:
    """The axis along which most memory runs; stores count twice."""
    runs = dict.fromkeys(axes, 0.0)
    for op in accesses:
        free = op.index.free
        elements = math.prod([_trips(a) for a in axes if a.symbol in free])
        for a in axes:
            if op.index.coeff(a.symbol) == 1:
                runs[a] += (2.0 if type(op) is Store else 1.0) * elements
    return max(reversed(axes), key=lambda a: runs[a])


def _across(axes: list[Axis], accesses: list[Load | Store], last: Axis) -> Axis | None:
    """Another axis along which memory runs where `last` steps over it."""
    for op in accesses:
        if op.index.coeff(last.symbol) in (0, 1):
            continue
        for a in axes:
            if a is not last and op.index.coeff(a.symbol) == 1 and _is_long(a):
                return a
    return None


def _trips(axis: Axis) -> float:
    return float(axis.extent.const) if axis.extent.is_const else MANY


def _is_long(axis: Axis, enough: int = ENOUGH) -> bool:
    return not axis.extent.is_const or axis.extent.const >= enough


