"""Transposing kernels: square tiles over the axis `a` that some accesses run along, and the vector axis `b` that the
others run along.

    for (a0 in steps of W) for (b0 in steps of W) {
      load_tile: W rows along a, transposed            # accesses that are contiguous along a
      for (a in a0 .. a0 + W) one vector along b       # the body; those accesses use the tile
      store_tile
    }
"""

from __future__ import annotations

from framesmith.codegen.cpp.index import expr_text, lane_step
from framesmith.codegen.cpp.operations import STATEMENTS
from framesmith.codegen.cpp.state import State
from framesmith.codegen.cpp.types import type_row
from framesmith.loops.ir import Axis, Load, Loop, Op, Store
from framesmith.symbolic.expr import Expr, Symbol, as_expr, divides


def tiled_pair(s: State, body: tuple[object, ...], outer: Symbol | None) -> Loop | None:
    """Return the vector loop, if it is all of `body` and the kernel is to be tiled over `outer` and it."""
    if s.kernel.tile is None or outer is not s.kernel.tile[0] or len(body) != 1 or type(body[0]) is not Loop:
        return None
    loop = body[0]
    simple = loop.vector and not loop.reduce and loop.axis.symbol is s.kernel.tile[1] and not any(type(n) is Loop
                                                                                                  for n in loop.body)
    return loop if simple and any(_across(s, n, outer, loop.axis.symbol) is not None  # type: ignore[arg-type]
                                  for n in loop.body) else None


def _across(s: State, op: Op, a: Symbol, b: Symbol) -> Expr | None:
    """Return the stride along `b` of an access that is contiguous along `a`; None for any other access or operation."""
    if (type(op) not in (Load, Store) or len(op.args) > (type(op) is Store)
        or op.buffer not in s.params):  # type: ignore[attr-defined]
        return None
    if type(op) is Store and op.mode is not None:
        return None
    index: Expr = op.index  # type: ignore[attr-defined]
    if not index.free.isdisjoint(s.lane_symbols):
        return None
    along, step = lane_step(index, a, s.target.width), lane_step(index, b, s.target.width)
    if along is None or not along.is_const or along.const != 1 or step is None or (step.is_const
                                                                                   and step.const in (0, 1)):
        return None
    return step if step.free.isdisjoint((a, b)) else None


def tile_block(s: State, a: Axis, loop: Loop, first: str) -> None:
    """Print one block of rows `a` in [first, first + W) over the whole vector loop `loop`."""
    width, b = s.target.width, loop.axis
    ops: list[Op] = [n for n in loop.body if type(n) is not Loop]  # type: ignore[misc]
    across = {n: step for n in ops if (step := _across(s, n, a.symbol, b.symbol)) is not None}
    rows, lanes = f"{b.symbol}_live", f"{a.symbol}_live"
    s.out.line(f"const int {lanes} = {_live(a, first, width)};")
    with s.out.block(f"for (i64 {b.symbol} = 0; {b.symbol} < {expr_text(b.extent, {})}; {b.symbol} += {width}) {{",
                     "}"):
        s.out.line(f"const int {rows} = {_live(b, b.symbol.name, width)};")
        for op, step in across.items():
            row = type_row(op.dtype)
            s.out.line(f"alignas(64) {row.scalar} tile{s.number(op)}[{width * width}];")
            s.tiles[op] = f"tile{s.number(op)} + {width} * ({a.symbol} - {first})"
            if type(op) is Load:
                s.out.line(f"load_tile(tile{s.number(op)}, {_corner(s, op, a, first)}, {expr_text(step, {})}, {rows}, "
                           f"{lanes});")
        whole = divides(as_expr(width), b.extent)
        with (
            s.out.block(f"for (i64 {a.symbol} = {first}; {a.symbol} < {first} + {lanes}; {a.symbol}++) {{", "}"),
            s.vector(b.symbol, 1, "full" if whole else rows),
        ):
            for op in ops:
                STATEMENTS[type(op)](s, op)
        for op, step in across.items():
            if type(op) is Store:
                s.out.line(f"store_tile(tile{s.number(op)}, {_corner(s, op, a, first)}, {expr_text(step, {})}, {rows}, "
                           f"{lanes});")
            del s.tiles[op]


def _live(axis: Axis, first: str, width: int) -> str:
    if divides(as_expr(width), axis.extent):
        return str(width)
    return f"int(min(i64({width}), i64({expr_text(axis.extent, {})}) - {first}))"


def _corner(s: State, op: Op, a: Axis, first: str) -> str:
    names = s.names_of(0) | {a.symbol: first}
    return f"{op.buffer} + {expr_text(op.index, names)}"  # type: ignore[attr-defined]
