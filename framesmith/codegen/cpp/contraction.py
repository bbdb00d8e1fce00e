"""Contraction kernels as C++: panels and blocks of rows distributed to threads, register tiles, and the epilogue over
each tile in L1."""

from __future__ import annotations

from dataclasses import dataclass

from framesmith.codegen.cpp.index import expr_text
from framesmith.codegen.cpp.loops import block, span
from framesmith.codegen.cpp.operations import STATEMENTS, assign
from framesmith.codegen.cpp.state import State
from framesmith.loops.contract import Accumulator, Contract, ConvolutionWindow
from framesmith.loops.ir import Kernel, Loop, Node, Op
from framesmith.symbolic.expr import Expr, prod

TASKS = 16  # pieces of work wanted for the threads, when there is work enough
PARALLEL_FLOPS = 400_000
FEW_HEIGHTS = 8


@dataclass(frozen=True, slots=True)
class _Shape:
    """Column tiles, whole and remaining; `heights`: the row counts of tiles, largest first, into which rows are
    divided; `block`: rows of a task, and the number of `blocks`, as texts."""

    heights: tuple[int, ...]
    vectors: int
    panels: int
    rest_columns: int
    rest_vectors: int
    block: str
    blocks: str


def _shape(s: State, kernel: Kernel, c: Contract) -> _Shape:
    """Print the sizes of blocks that are known only at run time."""
    panels, rest = divmod(c.n.extent.const, c.vectors * s.target.width)
    columns = c.vectors, panels, rest, -(-rest // s.target.width)
    outer = prod([a.extent for a in kernel.outer]) * max(panels, 1)
    if not (c.m.extent.is_const and outer.is_const):
        s.out.line(f"const i64 tiles = ({expr_text(c.m.extent, {})} + {c.rows - 1}) / {c.rows};")
        s.out.line(f"const i64 parts = max(min(tiles, {TASKS - 1} / max({_i64(outer)}, i64(1)) + 1), i64(1));")
        s.out.line(f"const i64 most = (tiles + parts - 1) / parts * {c.rows};")
        s.out.line(f"const i64 blocks = most ? ({expr_text(c.m.extent, {})} + most - 1) / most : 0;")
        heights = _heights(c.rows, c.m.extent.const) if c.m.extent.is_const else _any_heights(c.rows)
        return _Shape(heights, *columns, "most", "blocks")
    m = c.m.extent.const
    tiles = -(-m // c.rows)
    blocks = min(tiles, -(-TASKS // outer.const))
    block = -(-tiles // blocks) * c.rows
    return _Shape(_heights(c.rows, m), *columns, str(block), str(-(-m // block)))


def _heights(rows: int, m: int) -> tuple[int, ...]:
    """Return the heights of the tiles that cover `m` rows."""
    return (rows, m % rows) if m > rows and m % rows else (min(m, rows),)


def _any_heights(rows: int) -> tuple[int, ...]:
    """Return heights that cover any number of rows with few tiles: all heights if they are few, else powers of two."""
    return (rows, *(h for h in reversed(range(1, rows)) if rows <= FEW_HEIGHTS or h & (h - 1) == 0))


def _i64(e: Expr) -> str:
    return f"i64({expr_text(e, {})})"


def _before(kernel: Kernel) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Split the operations before the contraction into those invariant over outer iterations, and the others."""
    outer = {a.symbol for a in kernel.outer}
    varying: list[Op] = []
    for op in kernel.body[:-1]:
        assert isinstance(op, Op)
        if any(a in varying for a in op.args) or any(not e.free.isdisjoint(outer) for e in op.expressions):
            varying.append(op)
    return tuple(op for op in kernel.body[:-1] if op not in varying), tuple(varying)


def contraction(s: State, kernel: Kernel, c: Contract) -> None:
    """Print the whole body of `kernel`: `c`, preceded by tile-invariant operations."""
    fixed, varying = _before(kernel)
    block(s, fixed)
    shape = _shape(s, kernel, c)
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
    flops = prod([a.extent for a in (*kernel.outer, c.m, c.n)]) * (2 * depth)
    enough = PARALLEL_FLOPS // (1 if c.window is None else 4)
    parallel = None
    if s.target.threshold is not None and not (flops.is_const and flops.const < enough):
        parallel = "" if flops.is_const else f" if ({expr_text(flops, {})} >= {enough})"
    if shape.panels:
        _panels(s, kernel, c, shape, depth, parallel, False)
    if shape.rest_columns:
        _panels(s, kernel, c, shape, depth, parallel, True)


def accumulator(s: State, op: Accumulator) -> None:
    """Print `Accumulator`: the element of the tile at the current column."""
    assert s.axis is not None
    assign(s, op, True, False, lambda k: f"load(row + ({s.names[s.axis][k]} - n0), {s.live})")  # type: ignore[index]


STATEMENTS[Accumulator] = accumulator  # type: ignore[assignment]


def _epilogue(s: State, kernel: Kernel, c: Contract) -> None:
    """Print the epilogue of rows [m0, m1) and columns [n0, n1), from the tile with `wide` columns a row."""
    assert not kernel.locals, "a contraction forwards values between its statements"
    with s.out.block(f"for (i64 {c.m.symbol} = m0; {c.m.symbol} < m1; {c.m.symbol}++) {{", "}"):
        s.out.line(f"const float* const row = tile + ({c.m.symbol} - m0) * wide;")
        span(s, Loop(c.n, c.body, False, True), "n0", "n1")


def _panels(s: State, kernel: Kernel, c: Contract, shape: _Shape, depth: int, parallel: str | None,
            last: bool) -> None:
    """Print the loops over tasks of the whole panels, or of the `last`, narrower one. `parallel`: the condition under
    which threads share them; None: never."""
    vectors = shape.rest_vectors if last else shape.vectors
    loops = [(f"{a.symbol}", expr_text(a.extent, {})) for a in kernel.outer]
    if not last:
        loops.insert(0, ("panel", str(shape.panels)))
    if shape.blocks != "1":
        loops.append(("block", shape.blocks))
    if parallel is not None and loops:
        s.out.line("#pragma omp parallel for" + (f" collapse({len(loops)})" if len(loops) > 1
                                                 else "") + " schedule(static)" + parallel)
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
    """Print the task of one panel and one block of rows."""
    m, n = expr_text(c.m.extent, {}), c.n.extent.const
    wide = c.vectors * s.target.width
    first = str(shape.panels * wide) if last else f"panel * {wide}"
    end = str(n) if last else f"first + {wide}"
    tile = f"{vectors}" if (c.columns, c.lane) == (wide, s.target.width) else f"{vectors}, {c.columns}"
    start = f"block * {shape.block}" if shape.blocks != "1" else "0"
    stop = f"min(i64(({start}) + {shape.block}), i64({m}))" if shape.blocks != "1" else m
    line = s.out.line
    line(f"alignas(64) float tile[{c.rows} * {vectors} * W];")
    line(f"const i64 first = {first}, end = {end}, stop = {stop};")
    line(f"const float* const b = {c.b} + {expr_text(c.b_index, {})} + first * {depth};")
    args = "".join(f"{a.symbol}, " for a in kernel.outer)
    finish = f"finish({args}{c.m.symbol}, {c.m.symbol} + rows, first, end, tile, {vectors} * W);"
    if c.window is not None:
        live = shape.rest_columns % s.target.width if last else 0
        _window_rows(s, c, c.window, tile, start, str(live) if live else "full", finish)
    else:
        _rows(s, c, shape, tile, start, finish)


def _step(c: Contract) -> str:
    """Return the stride of A between consecutive rows, as text."""
    return expr_text(c.a_index.subs({c.m.symbol: c.m.symbol + 1}) - c.a_index, {})


def _rows(s: State, c: Contract, shape: _Shape, wide: str, start: str, finish: str) -> None:
    """Print tiles in order, each of the largest height that the remaining rows allow. `wide`: their vectors, and the
    columns of a panel where those are others."""
    line, name = s.out.line, c.m.symbol
    *higher, lowest = shape.heights
    with s.out.block(f"for (i64 {name} = {start}, rows; {name} < stop; {name} += rows) {{", "}"):
        line(f"const float* const a = {c.a} + {expr_text(c.a_index, {})};")
        for height in higher:
            with s.out.block(f"{'' if height == shape.heights[0] else 'else '}if (stop - {name} >= {height}) {{", "}"):
                line(f"rows = {height};")
                line(_tile(c, height, wide))
        with s.out.block("else {" if higher else "{", "}"):
            line(f"rows = {lowest};")
            line(_tile(c, lowest, wide))
        line(finish)


def _tile(c: Contract, rows: int, wide: str) -> str:
    return f"contract_tile<{rows}, {wide}>(a, {_step(c)}, runs, b, tile);"


def _window_rows(s: State, c: Contract, w: ConvolutionWindow, wide: str, start: str, live: str, finish: str) -> None:
    """Print whole tiles where every position of the window is inside of the image, and single pixels near its
    borders."""
    line, name = s.out.line, c.m.symbol
    (kh, kw), (dy, dx) = c.runs, w.dilation
    x, width = expr_text(w.x, {}), _i64(w.width)
    reach = expr_text(w.x.subs({name: name + (c.rows - 1)}) - w.x + (kw - 1) * dx, {})
    line(f"const i64 y = {expr_text(w.y, {})};")
    line(f"Taps taps = {{first_tap(y, {dy}), last_tap(y, {dy}, {_i64(w.height)}, {kh}), "
         f"{expr_text(c.strides[0], {})}, 0, {kw}, "
         f"{expr_text(c.strides[1], {})}, {kw}, {kh * kw}}};")
    with s.out.block(f"for (i64 {name} = {start}, rows; {name} < stop; {name} += rows) {{", "}"):
        line(f"const float* const a = {c.a} + ({expr_text(c.a_index, {})} + first);")
        line(f"const i64 x = {x};")
        line(f"const bool inside = x >= 0 && x + {reach} < {width} && stop - {name} >= {c.rows};")
        line(f"rows = inside ? {c.rows} : 1;")
        line(f"taps.q0 = inside ? 0 : first_tap(x, {dx}), taps.q1 = inside ? {kw} : last_tap(x, {dx}, {width}, "
             f"{kw});")
        line(f"if (inside) depthwise_tile<{c.rows}, {wide}>(a, {_step(c)}, taps, b, tile, {live});")
        line(f"else depthwise_tile<1, {wide}>(a, {_step(c)}, taps, b, tile, {live});")
        line(finish)
