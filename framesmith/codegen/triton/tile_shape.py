"""A kernel of the loop IR as a program over tiles.

A tile has up to three dimensions: `y` and `x` for the iterations that are independent (the grid), and `r` for the loops
inside, all of which run over one domain. Kernels with other loops are refused; a scheduler with `tiles` makes only
kernels of this form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from framesmith.codegen.triton.columns import columns, sums
from framesmith.loops.build import Builder, Replay
from framesmith.loops.ir import Axis, Kernel, Load, Loop, Node, Op, Store
from framesmith.symbolic.expr import Expr, Symbol, prod
from framesmith.util.errors import CompileError

MANY = 1024.0  # iterations of an axis of unknown extent
WIDE = 64  # elements of a tile along a dimension beside one along which something is shared, ...
SPARE = 1.125  # ... and how much longer tiles may be than what they cover
SHARED = (8, 128)  # a tile of them
ENOUGH = 8  # extent from which a dimension of its own pays for an axis along which memory runs


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension of the tile: axes flattened to one index, the last one fastest."""

    name: str
    axes: tuple[Axis, ...]

    @property
    def extent(self) -> Expr:
        return prod(a.extent for a in self.axes)


@dataclass(frozen=True, slots=True, eq=False)
class Nest:
    """Loops over the domain `r`, with `axes` as its axes, and their body."""

    axes: tuple[Axis, ...]
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """`grid`: () for a kernel of one iteration, (x,) or (y, x). `row`: None where there are no loops inside. `body`: in
    order. `vectors`: x is a vector of each thread (see `columns`). `shared`: there are two dimensions because some
    loads vary along only one of them. `sizes`: typical values of size symbols, as far as known."""

    kernel: Kernel
    grid: tuple[Dim, ...]
    row: Dim | None
    body: tuple[Op | Nest, ...]
    vectors: bool = False
    shared: bool = False
    sizes: Mapping[Symbol, int] = field(default_factory=dict)

    def accesses(self) -> list[tuple[Load | Store, Expr]]:
        """Return every load and store with its index, over the axes of the grid and of `row`."""
        found = []
        for node in self.body:
            if type(node) is Nest:
                assert self.row is not None
                sub: dict[Expr, Expr | int] = {a.symbol: b.symbol for a,
                                               b in zip(node.axes, self.row.axes, strict=True)}
                found += [(op, op.index.subs(sub)) for op in node.ops if isinstance(op, Load | Store)]
            elif isinstance(node, Load | Store):
                found.append((node, node.index))
        return found


def form(kernel: Kernel, tiling: bool = True, sizes: Mapping[Symbol, int] | None = None) -> Form:
    """Return the tile program of `kernel`, with at most one dimension besides `row` unless `tiling`; raise CompileError
    if it has none."""
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
    if row is not None and tiling:
        row, body = _several_steps(row, body)
    flat = Form(kernel, (), row, tuple(body), sizes=sizes or {})
    found = columns(axes, [op for op in body if isinstance(op, Op)]) if row is None and tiling else None
    if found is not None:
        points, vector, ops = found
        return replace(flat, grid=(Dim("y", points), Dim("x", (vector,))), body=ops, vectors=True)
    grid = _dims(axes, flat, tiling)
    cut = _cut(grid[0].axes, flat) if tiling and row is None and len(grid) == 1 else 0
    if cut:
        grid = Dim("y", grid[0].axes[:cut]), Dim("x", grid[0].axes[cut:])
    return replace(flat, grid=grid, shared=cut > 0)


def _several_steps(row: Dim, body: list[Op | Nest]) -> tuple[Dim, list[Op | Nest]]:
    """Unroll a summing loop whose steps share loads."""
    (place, *others) = [k for k, node in enumerate(body) if type(node) is Nest]
    nest = body[place]
    before, after = ([op for op in part if isinstance(op, Op)] for part in (body[:place], body[place + 1 :]))
    found = sums(nest.axes, nest.ops, before) if type(nest) is Nest and not others else None
    if found is None:
        return row, body
    axes, ops, reductions = found
    b = Builder()
    Replay(b, {}, {op: op for op in before} | reductions).run(after)
    return Dim("r", axes), [*before, Nest(axes, ops), *b.ops]


def _grid(kernel: Kernel) -> tuple[list[Axis], tuple[Node, ...]]:
    """Return the independent axes, including those of a loop that is the whole body."""
    axes, body = list(kernel.outer), kernel.body
    while body:
        *head, loop = body
        if type(loop) is not Loop or loop.reduce or any(type(n) is Store or not isinstance(n, Op) for n in head):
            break
        axes.append(loop.axis)
        body = (*head, *loop.body)
    return axes, body


def _flat(node: Node) -> Nest:
    """Return a nest with its operations in one block."""
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


# ----------------------------------------------------------------------------------------------- dimensions of the grid


def _dims(axes: list[Axis], flat: Form, tiling: bool) -> tuple[Dim, ...]:
    """Return one dimension, or two if accesses are contiguous along different axes."""
    if not axes:
        return ()
    if flat.row is not None:
        return (Dim("x", tuple(axes)),)
    accesses = [op for op, _ in flat.accesses()]
    last = _last(axes, accesses)
    first = _across(axes, accesses, last) if tiling and _is_long(last, 3) else None
    rest = tuple(a for a in axes if a is not first and a is not last)
    return (Dim("x", (*rest, last)),) if first is None else (Dim("y", (*rest, first)), Dim("x", (last,)))


def _cut(axes: tuple[Axis, ...], flat: Form) -> int:
    """Return the number of outer axes that form a separate dimension, so that a tile reads least; 0 if that saves
    nothing, for example because all loads vary along both."""
    loads = [op.index.free for op, _ in flat.accesses() if type(op) is Load]
    every = {a.symbol for a in axes}
    if not all(free <= every for free in loads):
        return 0

    def read(cut: int) -> int:
        sides = [{a.symbol for a in side} for side in (axes[:cut], axes[cut:])]
        return sum(math.prod([n for n, side in zip(SHARED, sides) if free & side]) for free in loads)

    cuts = [k for k in range(1, len(axes)) if _is_wide(Dim("x", axes[k:]).extent)]
    best = min(cuts, key=read, default=0)
    return best if best and read(best) < sum(math.prod(SHARED) for free in loads if free) else 0


def _is_wide(extent: Expr) -> bool:
    """Return whether contiguous runs along an axis are whole vectors, and its tiles have few elements beyond the
    end."""
    return extent.is_const and extent.const % ENOUGH == 0 and -(-extent.const // WIDE) * WIDE <= SPARE * extent.const


def _last(axes: list[Axis], accesses: list[Load | Store]) -> Axis:
    """Return the axis along which most accesses are contiguous; stores count twice."""
    runs = dict.fromkeys(axes, 0.0)
    for op in accesses:
        free = op.index.free
        elements = math.prod([_trips(a) for a in axes if a.symbol in free])
        for a in axes:
            if op.index.coeff(a.symbol) == 1:
                runs[a] += (2.0 if type(op) is Store else 1.0) * elements
    return max(reversed(axes), key=lambda a: runs[a])


def _across(axes: list[Axis], accesses: list[Load | Store], last: Axis) -> Axis | None:
    """Return another axis along which accesses are contiguous that are strided along `last`."""
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


