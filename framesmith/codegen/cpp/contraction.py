"""A contraction kernel as C++: panels and blocks of rows among threads, register tiles, and the epilogue over each tile
in L1."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from framesmith.codegen.cpp.index import expr_text
from framesmith.codegen.cpp.loops import block, span
from framesmith.codegen.cpp.operations import STATEMENTS, assign
from framesmith.codegen.cpp.state import State
from framesmith.loops.contract import Accumulator, Contract, ConvolutionWindow
from framesmith.loops.ir import Kernel, Loop, Node, Op

TASKS = 16  # pieces of work wanted for the threads, when there is work enough
PARALLEL_FLOPS = 400_000


@dataclass(frozen=True, slots=True)
class _Shape:
    """Tile counts: whole and rest, of rows and of columns; `block`: rows of a task."""

    rows: int
    rest_rows: int
    vectors: int
    panels: int
    rest_columns: int
    rest_vectors: int
    block: int
    blocks: int


def _shape(kernel: Kernel, c: Contract) -> _Shape:
    m, n = c.m.extent.const, c.n.extent.const
    panels, rest = divmod(n, c.columns)
    outer = prod(a.extent.const for a in kernel.outer)
    tiles = -(-m // c.rows)
    blocks = min(tiles, -(-TASKS // (outer * max(panels, 1))))
    block = -(-tiles // blocks) * c.rows
    return _Shape(c.rows, m % c.rows, c.columns // c.lane, panels, rest, -(-rest // c.lane), block, -(-m // block))


def _before(kernel: Kernel) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Split the operations before the contraction into those that are the same for all outer iterations, and those that
    vary."""
    outer = {a.symbol for a in kernel.outer}
    varying: list[Op] = []
    for op in kernel.body[:-1]:
        assert isinstance(op, Op)
        if any(a in varying for a in op.args) or any(not e.free.isdisjoint(outer) for e in op.expressions):
            varying.append(op)
    return tuple(op for op in kernel.body[:-1] if op not in varying), tuple(varying)


def contraction(s: State, kernel: Kernel, c: Contract) -> None:
    """Print the whole body of `kernel`: `c`, and before it what does not change from tile to tile."""
    fixed, varying = _before(kernel)
    block(s, fixed)
    shape = _shape(kernel, c)
    depth = c.runs[0] * c.runs[1] * c.depth
    if c.window is None:
        strides = [expr_text(x, {}) for x in c.strides]
        s.out.line(f"const Runs runs = {{{c.runs[0]}, {strides[0]}, {c.runs[1]}, {strides[1]}, {c.depth}}};")
    outer = "".join(f"i64 {a.symbol}, " for a in kernel.outer)
    rows = f"{outer}i64 m0, i64 m1, i64 n0, i64 n1, const float* tile, i64 wide"
    # not inlined: the panels' loops would each compile it again
    with s.out.block(f"const auto finish = [&]({rows}) __attribute__((noinline)) {{", "};"):
        block(s, varying)
        _epilogue(s, kernel, c)
    flops = 2 * prod(a.extent.const for a in (*kernel.outer, c.m, c.n)) * depth
    parallel = s.target.threshold is not None and flops >= PARALLEL_FLOPS // (1 if c.window is None else 4)
    if shape.panels:
        _panels(s, kernel, c, shape, depth, parallel, False)
    if shape.rest_columns:
        _panels(s, kernel, c, shape, depth, parallel, True)


def accumulator(s: State, op: Accumulator) -> None:
    """The statement of `Accumulator`: the element of the tile at the current column."""
    assert s.axis is not None
    assign(s, op, True, False, lambda k: f"load(row + ({s.names[s.axis][k]} - n0), {s.live})")  # type: ignore[index]


STATEMENTS[Accumulator] = accumulator  # type: ignore[assignment]


def _epilogue(s: State, kernel: Kernel, c: Contract) -> None:
    """Rows [m0, m1) and columns [n0, n1), from the tile with `wide` columns a row."""
    assert not kernel.locals, "a contraction forwards values between its statements"
    with s.out.block(f"for (i64 {c.m.symbol} = m0; {c.m.symbol} < m1; {c.m.symbol}++) {{", "}"):
        s.out.line(f"const float* const row = tile + ({c.m.symbol} - m0) * wide;")
        span(s, Loop(c.n, c.body, False, True), "n0", "n1")


def _panels(s: State, kernel: Kernel, c: Contract, shape: _Shape, depth: int, parallel: bool, last: bool) -> None:
    """The loops over tasks of the whole panels, or of the `last` one, which is narrower."""
    vectors = shape.rest_vectors if last else shape.vectors
    loops = [(f"{a.symbol}", expr_text(a.extent, {})) for a in kernel.outer]
    if not last:
        loops.insert(0, ("panel", str(shape.panels)))
    if shape.blocks > 1:
        loops.append(("block", str(shape.blocks)))
    if parallel and loops:
        s.out.line("#pragma omp parallel for" + (f" collapse({len(loops)})" if len(loops) > 1
                                                 else "") + " schedule(static)")
    closing = []
    for name, extent in loops:
        opened = s.out.block(f"for (i64 {name} = 0; {name} < {extent}; {name}++) {{", "}")
        opened.__enter__()
        closing.append(opened)
    if not loops:
        opened = s.out.block("{", "}")
        opened.__enter__()
        closing.append(opened)
    _task(s, kernel, c, shape, depth, vectors, last)
    for opened in reversed(closing):
        opened.__exit__(None, None, None)


def _task(s: State, kernel: Kernel, c: Contract, shape: _Shape, depth: int, vectors: int, last: bool) -> None:
    """One panel, one block of rows."""
    m, n = c.m.extent.const, c.n.extent.const
    first = str(shape.panels * c.columns) if last else f"panel * {c.columns}"
    end = str(n) if last else f"first + {c.columns}"
    start = f"block * {shape.block}" if shape.blocks > 1 else "0"
    stop = f"min(i64(({start}) + {shape.block}), i64({m}))" if shape.blocks > 1 else str(m)
    line = s.out.line
    line(f"alignas(64) float tile[{shape.rows} * {vectors} * W];")
    line(f"const i64 first = {first}, end = {end}, stop = {stop};")
    line(f"const float* const b = {c.b} + {expr_text(c.b_index, {})} + first * {depth};")
    args = "".join(f"{a.symbol}, " for a in kernel.outer)
    finish = f"finish({args}{c.m.symbol}, {c.m.symbol} + rows, first, end, tile, {vectors} * W);"
    if c.window is not None:
        live = shape.rest_columns % c.lane if last else 0
        _window_rows(s, c, c.window, vectors, start, str(live) if live else "full", finish)
    else:
        _rows(s, c, shape, vectors, start, finish)


def _step(c: Contract) -> str:
    """Return the stride of A between consecutive rows, as text."""
    return expr_text(c.a_index.subs({c.m.symbol: c.m.symbol + 1}) - c.a_index, {})


def _rows(s: State, c: Contract, shape: _Shape, vectors: int, start: str, finish: str) -> None:
    line, name, m = s.out.line, c.m.symbol, c.m.extent.const
    with s.out.block(f"for (i64 {name} = {start}; {name} < stop; {name} += {shape.rows}) {{", "}"):
        line(f"const float* const a = {c.a} + {expr_text(c.a_index, {})};")
        line(f"const i64 rows = min(i64(stop - {name}), i64({shape.rows}));")
        call = f"contract_tile<{{}}, {vectors}>(a, {_step(c)}, runs, b, tile);"
        if shape.rest_rows and m > shape.rows:
            line(f"if (rows == {shape.rows}) {call.format(shape.rows)}")
            line(f"else {call.format(shape.rest_rows)}")
        else:
            line(call.format(min(m, shape.rows)))
        line(finish)


def _window_rows(s: State, c: Contract, w: ConvolutionWindow, vectors: int, start: str, live: str, finish: str) -> None:
    """Whole tiles where every position of the kernel is inside of the image, single pixels near its borders."""
    line, name = s.out.line, c.m.symbol
    (kh, kw), (dy, dx) = c.runs, w.dilation
    x = expr_text(w.x, {})
    reach = expr_text(w.x.subs({name: name + (c.rows - 1)}) - w.x + (kw - 1) * dx, {})
    line(f"const i64 y = {expr_text(w.y, {})};")
    line(f"Taps taps = {{first_tap(y, {dy}), last_tap(y, {dy}, {w.height}, {kh}), "
         f"{expr_text(c.strides[0], {})}, 0, {kw}, "
         f"{expr_text(c.strides[1], {})}, {kw}}};")
    with s.out.block(f"for (i64 {name} = {start}, rows; {name} < stop; {name} += rows) {{", "}"):
        line(f"const float* const a = {c.a} + ({expr_text(c.a_index, {})} + first);")
        line(f"const i64 x = {x};")
        line(f"const bool inside = x >= 0 && x + {reach} < {w.width} && stop - {name} >= {c.rows};")
        line(f"rows = inside ? {c.rows} : 1;")
        line(f"taps.q0 = inside ? 0 : first_tap(x, {dx}), taps.q1 = inside ? {kw} : last_tap(x, {dx}, {w.width}, "
             f"{kw});")
        line(f"if (inside) depthwise_tile<{c.rows}, {vectors}>(a, {_step(c)}, taps, b, tile, {live});")
        line(f"else depthwise_tile<1, {vectors}>(a, {_step(c)}, taps, b, tile, {live});")
        line(finish)
