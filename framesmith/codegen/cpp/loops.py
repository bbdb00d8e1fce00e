"""Loops as C++: the vector loop with unrolled vectors, remaining vectors and a tail; threads; hoisting of
loop-invariant values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from framesmith.codegen.cpp import reductions
from framesmith.codegen.cpp.index import expr_text
from framesmith.codegen.cpp.operations import STATEMENTS
from framesmith.codegen.cpp.state import State
from framesmith.codegen.cpp.tiles import tile_block, tiled_pair
from framesmith.loops.ir import (
    Axis,
    Bitcast,
    Cast,
    Index,
    Indirect,
    Load,
    Loop,
    Node,
    Pred,
    Reduce,
    Scalar,
    Store,
    walk,
)
from framesmith.symbolic.expr import Symbol, as_expr, divides

BLOCK = 128  # terms that one accumulator sums before it is added to the total, without error
PARTS = 16  # pieces of a reduction over all of a tensor, whatever the number of threads: results do not depend on it
_MOVABLE = (Scalar, Cast, Bitcast, Index, Pred, Load, Indirect)


def block(s: State, body: tuple[Node, ...]) -> None:
    """Print the statements of a block in order."""
    for node in body:
        if isinstance(node, Loop):
            _hoist(s, node, set())
            _loop(s, node)
        elif node not in s.values:
            STATEMENTS[type(node)](s, node)  # type: ignore[arg-type]


def _hoist(s: State, loop: Loop, bound: set[Symbol]) -> None:
    """Print before `loop` the operations that are invariant in it and its inner loops: loads of read-only memory, and
    arithmetic on them."""
    bound = bound | {loop.axis.symbol}
    for node in loop.body:
        if isinstance(node, Loop):
            _hoist(s, node, bound)
            continue
        kind = type(node)
        free = all(a in s.values or not a.args and type(a).__name__ == "Const"  # type: ignore[union-attr]
                   for a in node.args)
        free = free and kind in _MOVABLE and all(e.free.isdisjoint(bound)  # type: ignore[arg-type]
                                                 for e in node.expressions)
        if free and kind is Load:
            param = s.params.get(node.buffer)  # type: ignore[attr-defined]
            free = param is not None and param.mode == "r" and param.restrict
        if free and node not in s.values:
            STATEMENTS[kind](s, node)  # type: ignore[index, arg-type]
        elif kind is Indirect:
            bound.add(node.symbol)  # type: ignore[attr-defined]


def _copies(s: State, loop: Loop) -> int:
    """Return the number of vectors in flight: enough for an accumulator's latency, and for contiguous runs when rows
    are reduced column by column."""
    nested = any(type(n) is Loop for n in loop.body)
    if not (loop.reduce or nested):
        return 1
    cost = reductions.body_cost(loop.body)
    wanted = 4 if cost <= 8 else 2 if cost <= 20 else 1
    if loop.axis.extent.is_const:
        vectors = loop.axis.extent.const // s.target.width
        while wanted > 1 and (vectors < wanted or (vectors % wanted and vectors < 4 * wanted)):
            wanted //= 2
    return wanted


def _loop(s: State, loop: Loop) -> None:
    top = s.top and s.parallel
    if loop.reduce and not s.in_chain:
        _chain(s, loop, top)
    elif top and s.axis is None and _few_columns(s, loop):
        _one_loop(s, loop, "0", expr_text(loop.axis.extent, {}), keep_top=True)
    elif top and s.axis is None and _independent(s, loop):
        s.columns = loop.axis
        _one_loop(s, loop, "0", expr_text(loop.axis.extent, {}), threads=True)
        s.columns = None
    else:
        _one_loop(s, loop, "0", expr_text(loop.axis.extent, {}))


def _few_columns(s: State, loop: Loop) -> bool:
    """Return whether a loop over columns that reduces rows is better parallelised over rows."""
    columns = loop.axis.extent
    rows = [n.axis.extent for n in loop.body if type(n) is Loop and n.reduce]
    if loop.reduce or not loop.vector or not rows or not columns.is_const or columns.const > PARTS * s.target.width:
        return False
    return not rows[0].is_const or rows[0].const >= 16 * PARTS


def _independent(s: State, loop: Loop) -> bool:
    """Return whether threads may share the loop: no row-local array is written at places that other iterations
    write."""
    symbol = loop.axis.symbol
    stores = [n for n in walk(loop.body) if type(n) is Store and n.buffer not in s.params]
    return not loop.reduce and all(symbol in n.index.free for n in stores)


def _chain(s: State, loop: Loop, top: bool) -> None:
    """Print a chain of reduction loops, with accumulators before it and results after it."""
    reduces, vector = reductions.chain(loop)
    across = vector is not None and s.axis is None
    chain = _Chain(loop, reduces, _copies(s, vector) if across else 1, vector)  # type: ignore[arg-type]
    s.in_chain = True
    first, last = "0", expr_text(loop.axis.extent, {})
    if top and reduces:
        _shared_chain(s, chain, last)
    else:
        _accumulate(s, chain, first, last, "")
    s.in_chain = False
    reductions.finish(s, reduces)


@dataclass(frozen=True, slots=True)
class _Chain:
    """`copies`: vectors in flight in the vector loop `vector`, if that is in the chain."""

    loop: Loop
    reduces: list[tuple[Reduce, bool]]
    copies: int
    vector: Loop | None

    def ragged(self, width: int) -> bool:
        extent = (self.vector or self.loop).axis.extent
        return not divides(as_expr(width), extent)

    def grain(self, width: int) -> int:
        """Return the number of iterations of which pieces of the outermost loop are multiples."""
        return self.copies * width if self.loop.vector else 1

    def block(self, width: int) -> int | None:
        """Return the number of iterations of the outermost loop after which a floating-point sum uses a new
        accumulator, to limit rounding errors."""
        if not any(op.kind == "sum" and op.dtype.is_floating_point for op, _ in self.reduces):
            return None
        extents = [n.axis.extent for n in (self.loop, *walk(self.loop.body)) if type(n) is Loop and n.reduce]
        trips = math.prod(e.const if e.is_const else 1 << 12
                          for e in extents) // (self.copies * width if self.vector is not None else 1)
        if trips <= BLOCK:
            return None
        inner = max(1, trips * self.grain(width) // (extents[0].const if extents[0].is_const else 1 << 12))
        return max(1, BLOCK // inner) * self.grain(width)


def _accumulate(s: State, chain: _Chain, first: str, last: str, suffix: str) -> None:
    """Print accumulators and the chain over [first, last) of its outermost loop, in blocks if sums are long."""
    width = s.target.width
    block = chain.block(width)
    ragged = chain.ragged(width) or first != "0"
    if block is None:
        reductions.declare(s, chain.reduces, chain.copies, ragged, suffix)
        _one_loop(s, chain.loop, first, last)
        return
    totals = reductions.declare(s, chain.reduces, chain.copies, True, suffix)
    carries = {name: kind for total in totals if (kind := reductions.carry_type(total)) for name in total.names}
    for carried, kind in carries.items():
        s.out.line(f"{kind} {carried}_carry = {{}};")
    name = f"{chain.loop.axis.symbol}_block"
    with s.out.block(f"for (i64 {name} = {first}; {name} < {last}; {name} += {block}) {{", "}"):
        partial = reductions.declare(s, chain.reduces, chain.copies, True, suffix + "b")
        _one_loop(s, chain.loop, name, f"min({name} + {block}, i64({last}))")
        for total, part in zip(totals, partial, strict=True):
            for into, value in zip(total.every, part.every, strict=True):
                exact = f"add_exactly({into}, {into}_carry, {value});"
                s.out.line(exact if into in carries else reductions.merge(total, into, value))
    reductions.restore(s, totals)


def _shared_chain(s: State, chain: _Chain, extent: str) -> None:
    """Print a full reduction: `PARTS` pieces distributed to threads, merged in order."""
    grain = chain.grain(s.target.width)
    name = "_".join(str(s.number(op)) for op, _ in chain.reduces)
    part, piece = f"part{name}", f"piece{name}"
    s.out.line(f"const i64 {piece} = (i64({extent}) + {PARTS * grain - 1}) / {PARTS * grain} * {grain};")
    totals = reductions.declare(s, chain.reduces, 1, True, "")
    for total in totals:
        for name in total.every:
            s.out.line(f"decltype({name}) {name}_part[{PARTS}];")
    s.out.line("#pragma omp parallel for schedule(static)" + s.condition)
    with s.out.block(f"for (i64 {part} = 0; {part} < {PARTS}; {part}++) {{", "}"):
        s.top = False
        s.out.line(f"const i64 from = min({part} * {piece}, i64({extent})), to = min(from + {piece}, i64({extent}));")
        _accumulate(s, chain, "from", "to", "p")
        for total in totals:
            acc = reductions.gathered(s, s.accumulators[total.op])
            for name, value in zip(total.every, acc.every, strict=True):
                s.out.line(f"{name}_part[{part}] = {value};")
        s.top = True
    reductions.restore(s, totals)
    with s.out.block(f"for (i64 {part} = 0; {part} < {PARTS}; {part}++) {{", "}"):
        for total in totals:
            for name in total.every:
                s.out.line(reductions.merge(total, name, f"{name}_part[{part}]"))


def _one_loop(s: State, loop: Loop, first: str, last: str, threads: bool = False, keep_top: bool = False) -> None:
    """Print the loop over [first, last): texts of type i64, `first` a multiple of the vectors in flight."""
    outer_top, s.top = s.top, s.top and keep_top
    chain, s.in_chain = s.in_chain, s.in_chain and loop.reduce
    if loop.vector and s.axis is None:
        _vector_loop(s, loop, first, last, threads)
    else:
        symbol = loop.axis.symbol
        tiled = tiled_pair(s, loop.body, symbol) if s.axis is None else None
        if threads:
            s.out.line("#pragma omp parallel for schedule(static)" + s.condition)
        if tiled is not None:
            rows(s, loop.axis, tiled, first, last)
        else:
            with s.out.block(f"for (i64 {symbol} = {first}; {symbol} < {last}; {symbol}++) {{", "}"), s.block():
                block(s, loop.body)
    s.top, s.in_chain = outer_top, chain


def rows(s: State, axis: Axis, loop: Loop, first: str, last: str) -> None:
    """Print the loop over blocks of rows of a tiled pair of loops."""
    name = f"{axis.symbol}_0"
    with s.out.block(f"for (i64 {name} = {first}; {name} < {last}; {name} += {s.target.width}) {{", "}"), s.block():
        tile_block(s, axis, loop, name)


def _vector_loop(s: State, loop: Loop, first: str, last: str, threads: bool) -> None:
    width, copies = s.target.width, _copies(s, loop)
    step = copies * width
    known = loop.axis.extent.const if loop.axis.extent.is_const and first == "0" else None
    if known is None:
        with s.out.block("{", "}"):
            _dynamic_vector_loop(s, loop, first, last, copies, threads)
        return
    whole, vectors = known // step * step, known // width * width
    if whole:
        _span(s, loop, "0", str(whole), copies, threads)
    if vectors > whole:
        _span(s, loop, str(whole), str(vectors), 1, False)
    if known > vectors:
        with s.out.block("{", "}"):
            _body(s, loop, str(vectors), str(known - vectors))


def _dynamic_vector_loop(s: State, loop: Loop, first: str, last: str, copies: int, threads: bool) -> None:
    width, name = s.target.width, loop.axis.symbol.name
    step, base, end = copies * width, f"{name}_first", f"{name}_last"
    s.out.line(f"const i64 {base} = {first}, {end} = {last};")
    exact = divides(as_expr(step), loop.axis.extent)  # both ends are multiples
    whole = end if exact else f"{base} + ({end} - {base}) / {step} * {step}"
    _span(s, loop, base, whole, copies, threads)
    if exact:
        return
    if copies > 1:
        _span(s, loop, whole, f"{end} - {width - 1}", 1, False)
    if divides(as_expr(width), loop.axis.extent):
        return
    tail = f"{base} + ({end} - {base}) / {width} * {width}"
    with s.out.block(f"if (const int live = ({end} - {base}) % {width}) {{", "}"):
        _body(s, loop, tail, "live")


def _span(s: State, loop: Loop, first: str, last: str, copies: int, threads: bool) -> None:
    name, step = loop.axis.symbol.name, copies * s.target.width
    if threads:
        s.out.line("#pragma omp parallel for schedule(static)" + s.condition)
    with (
        s.out.block(f"for (i64 {name} = {first}; {name} < {last}; {name} += {step}) {{", "}"),
        s.vector(loop.axis.symbol, copies, "full"),
    ):
        block(s, loop.body)


def _body(s: State, loop: Loop, first: str, live: str) -> None:
    """Print the body for one vector with `live` lanes, starting at `first`."""
    s.out.line(f"const i64 {loop.axis.symbol} = {first};")
    with s.vector(loop.axis.symbol, 1, live):
        block(s, loop.body)


def span(s: State, loop: Loop, first: str, last: str) -> None:
    """Print `loop` over [first, last), texts of type i64, with loop-invariant operations before it."""
    _hoist(s, loop, set())
    _one_loop(s, loop, first, last)
