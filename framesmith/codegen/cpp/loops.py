"""Loops as C++: the vector loop with its whole vectors, its rest and its tail; threads; values hoisted out of inner loops."""

from __future__ import annotations

from framesmith.codegen.cpp import reductions
from framesmith.codegen.cpp.index import expr_text
from framesmith.codegen.cpp.operations import STATEMENTS
from framesmith.codegen.cpp.state import State
from framesmith.codegen.cpp.tiles import tile_block, tiled_pair
from framesmith.loops.ir import Axis, Bitcast, Cast, Index, Indirect, Load, Loop, Node, Op, Pred, Reduce, Scalar, Store, walk
from framesmith.symbolic.expr import Expr, Symbol

PARTS = 16  # pieces of a reduction over all of a tensor, whatever the number of threads: results do not depend on it
_MOVABLE = (Scalar, Cast, Bitcast, Index, Pred, Load, Indirect)


def block(s: State, body: tuple[Node, ...]) -> None:
    """Print the statements of a block in order."""
    for node in body:
        if type(node) is Loop:
            _hoist(s, node, set())
            _loop(s, node)
        elif node not in s.values:
            STATEMENTS[type(node)](s, node)  # type: ignore[arg-type]


def _exprs(op: Op) -> tuple[Expr, ...]:
    kind = type(op)
    if kind is Load:
        return (op.index,)  # type: ignore[attr-defined]
    if kind is Index:
        return (op.expr,)  # type: ignore[attr-defined]
    if kind is Pred:
        return (op.lhs, op.rhs)  # type: ignore[attr-defined]
    return (op.size,) if kind is Indirect else ()  # type: ignore[attr-defined]


def _hoist(s: State, loop: Loop, bound: set[Symbol]) -> None:
    """Print before `loop` what does not depend on it (nor on loops in it): values of read-only memory, and arithmetic on them."""
    bound = bound | {loop.axis.symbol}
    for node in loop.body:
        kind = type(node)
        if kind is Loop:
            _hoist(s, node, bound)
            continue
        free = all(a in s.values or not a.args and type(a).__name__ == "Const" for a in node.args)  # type: ignore[union-attr]
        free = free and kind in _MOVABLE and all(e.free.isdisjoint(bound) for e in _exprs(node))  # type: ignore[arg-type]
        if free and kind is Load:
            param = s.params.get(node.buffer)  # type: ignore[union-attr]
            free = param is not None and param.mode == "r" and param.restrict
        if free and node not in s.values:
            STATEMENTS[kind](s, node)  # type: ignore[index, arg-type]
        elif kind is Indirect:
            bound.add(node.symbol)  # type: ignore[union-attr]


def _copies(s: State, loop: Loop) -> int:
    """Vectors in flight: enough for an accumulator's latency, and for whole runs of memory when rows are reduced a column at a time."""
    nested = any(type(n) is Loop for n in loop.body)
    if not (loop.reduce or nested):
        return 1
    cost = reductions.body_cost(loop.body)
    wanted = 4 if cost <= 8 else 2 if cost <= 20 else 1
    extent = loop.axis.extent
    while wanted > 1 and extent.is_const and extent.const < wanted * s.target.width:
        wanted //= 2
    return wanted


def _loop(s: State, loop: Loop) -> None:
    top = s.top and s.parallel
    if loop.reduce and not s.in_chain:
        _chain(s, loop, top)
    elif top and _independent(s, loop):
        _one_loop(s, loop, "0", expr_text(loop.axis.extent, {}), threads=True)
    else:
        _one_loop(s, loop, "0", expr_text(loop.axis.extent, {}))


def _independent(s: State, loop: Loop) -> bool:
    """Whether threads may share the loop: no row-local array is written at places that other iterations write too."""
    symbol = loop.axis.symbol
    stores = [n for n in walk(loop.body) if type(n) is Store and n.buffer not in s.params]
    return not loop.reduce and all(symbol in n.index.free for n in stores)


def _chain(s: State, loop: Loop, top: bool) -> None:
    reduces, vector = reductions.chain(loop)
    copies = _copies(s, vector) if vector is not None and vector.vector and s.axis is None else 1
    known = vector.axis.extent if vector is not None else loop.axis.extent
    ragged = not known.is_const or known.const % s.target.width != 0
    s.in_chain = True
    if top and s.axis is None and reduces:
        _shared_chain(s, loop, reduces, copies)
    else:
        reductions.declare(s, reduces, copies, ragged)
        _one_loop(s, loop, "0", expr_text(loop.axis.extent, {}))
    s.in_chain = False
    reductions.finish(s, reduces)


def _shared_chain(s: State, loop: Loop, reduces: list[tuple[Reduce, bool]], copies: int) -> None:
    """A reduction over everything: `PARTS` pieces among the threads, merged in order."""
    extent = f"i64({expr_text(loop.axis.extent, {})})"
    grain = copies * s.target.width if loop.vector else 1
    base = len(s.numbers)
    parts, piece = f"parts{base}", f"piece{base}"
    s.out.line(f"const i64 {piece} = ({extent} + {PARTS * grain - 1}) / {PARTS * grain} * {grain};")
    reductions.declare(s, reduces, 1, True)
    accs = [s.accumulators[op] for op, _ in reduces]
    totals = [(acc, name) for acc in accs for name in (acc.names[0], acc.tail) if name]
    for _, name in totals:
        s.out.line(f"decltype({name}) {name}_part[{PARTS}];")
    s.out.line("#pragma omp parallel for schedule(static)")
    with s.out.block(f"for (i64 {parts} = 0; {parts} < {PARTS}; {parts}++) {{", "}"):
        s.top = False
        reductions.declare(s, reduces, copies, True)
        first, last = f"min({parts} * {piece}, {extent})", f"min(({parts} + 1) * {piece}, {extent})"
        _one_loop(s, loop, first, last)
        for op, _ in reduces:
            acc = s.accumulators[op]
            for other in acc.names[1:]:
                s.out.line(reductions.merge(acc, acc.names[0], other))
            for name, total in zip((acc.names[0], acc.tail), (f"r{s.number(op)}", acc.tail), strict=True):
                if name:
                    s.out.line(f"{total}_part[{parts}] = {name};")
        s.top = True
    with s.out.block(f"for (i64 {parts} = 0; {parts} < {PARTS}; {parts}++) {{", "}"):
        for acc, name in totals:
            s.out.line(reductions.merge(acc, name, f"{name}_part[{parts}]"))
            s.accumulators[acc.op] = acc


def _one_loop(s: State, loop: Loop, first: str, last: str, threads: bool = False) -> None:
    """The loop over [first, last): texts of type i64, `first` a multiple of the vectors in flight."""
    outer_top, s.top = s.top, False
    chain, s.in_chain = s.in_chain, s.in_chain and loop.reduce
    if loop.vector and s.axis is None:
        _vector_loop(s, loop, first, last, threads)
    else:
        symbol = loop.axis.symbol
        tiled = tiled_pair(s, loop.body, symbol) if s.axis is None else None
        if threads:
            s.out.line("#pragma omp parallel for schedule(static)")
        if tiled is not None:
            rows(s, loop.axis, tiled, first, last)
        else:
            with s.out.block(f"for (i64 {symbol} = {first}; {symbol} < {last}; {symbol}++) {{", "}"), s.block():
                block(s, loop.body)
    s.top, s.in_chain = outer_top, chain


def rows(s: State, axis: Axis, loop: Loop, first: str, last: str) -> None:
    """The loop over blocks of rows of a tiled pair of loops."""
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
    whole = f"{base} + ({end} - {base}) / {step} * {step}"
    _span(s, loop, base, whole, copies, threads)
    if copies > 1:
        _span(s, loop, whole, f"{end} - {width - 1}", 1, False)
    tail = f"{base} + ({end} - {base}) / {width} * {width}"
    with s.out.block(f"if (const int live = ({end} - {base}) % {width}) {{", "}"):
        _body(s, loop, tail, "live")


def _span(s: State, loop: Loop, first: str, last: str, copies: int, threads: bool) -> None:
    name, step = loop.axis.symbol.name, copies * s.target.width
    if threads:
        s.out.line("#pragma omp parallel for schedule(static)")
    with (
        s.out.block(f"for (i64 {name} = {first}; {name} < {last}; {name} += {step}) {{", "}"),
        s.vector(loop.axis.symbol, copies, "full"),
    ):
        block(s, loop.body)


def _body(s: State, loop: Loop, first: str, live: str) -> None:
    """One vector with `live` lanes, starting at `first`."""
    s.out.line(f"const i64 {loop.axis.symbol} = {first};")
    with s.vector(loop.axis.symbol, 1, live):
        block(s, loop.body)
