"""Partial column sums: a program iterates over the rows of a part and accumulates a sum for each column
(`Kernel.parts`).

    first = ipart * 64
    v8s = tl.full([XBLOCK, RBLOCK], 0, tl.float32)
    for start in range(first, first + 64, XBLOCK):
        ...
        v8s += v7
    v8 = tl.sum(v8s, 0, keep_dims=True)
    tl.store(p5 + (768*ipart + i1), v8, r_live)

Row-invariant values, such as weights, are computed before the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from framesmith.codegen.triton.reductions import spread
from framesmith.codegen.triton.state import State
from framesmith.codegen.triton.statements import place
from framesmith.codegen.triton.steps import Barrier
from framesmith.codegen.triton.tile_shape import Dim
from framesmith.codegen.triton.types import type_row
from framesmith.loops.ir import Indirect, Load, Op, Store, part_symbol
from framesmith.symbolic.expr import Symbol, as_expr, ceildiv


def sums(ops: Sequence[Op]) -> list[Store]:
    """Return those of `ops` that sum over the rows of a part."""
    return [op for op in ops if type(op) is Store and op.mode == "sum"]


def steady(s: State, ops: Sequence[Op]) -> set[Op]:
    """Return the row-invariant ones of `ops`."""
    moving = {a.symbol for d in s.form.grid for a in d.axes}
    written = {op.buffer for op in ops if type(op) is Store}
    found: set[Op] = set()
    for op in ops:
        free: set[Symbol] = {x for e in op.expressions for x in e.free}
        stays = type(op) not in (Store, Barrier) and not (type(op) is Load and op.buffer in written)
        if stays and moving.isdisjoint(free) and found.issuperset(op.args):
            found.add(op)
        elif type(op) is Indirect:
            moving.add(op.symbol)
    return found


@contextmanager
def loop(s: State, x: Dim, ops: Sequence[Op]) -> Iterator[None]:
    """Return the loop over the rows of a part in tiles from `start`; all parts except the last have equally many whole
    tiles. Loads are not prefetched if some of `ops` read memory that others write."""
    parts, block = s.form.kernel.parts, s.block("x")
    part = part_symbol(parts)
    each = ceildiv(ceildiv(x.extent, parts), block) * block
    s.extents[part] = as_expr(parts)
    s.out.line(f"first = {part} * {s.expr(each)}")
    whole = each.is_const and x.extent.is_const and each.const * parts == x.extent.const
    last = f"first + {s.expr(each)}"
    end = last if whole else f"min({last}, {s.expr(x.extent)})"
    with s.out.block(f"for start in {s.steps('first', end, block, not any(type(op) is Barrier for op in ops))}:"):
        yield


def declare(s: State, op: Store) -> None:
    """Print the initial sums."""
    s.out.line(f"{s.name(op)}s = tl.full({s.shape(s.active)}, 0, {type_row(op.dtype).name})")


def accumulate(s: State, op: Store) -> None:
    """Print the update by some rows."""
    name, live = s.values[op], s.live.get("x")
    value = spread(s, op.args[0], frozenset(s.active))
    s.out.line(f"{name}s += {f'tl.where({live}, {value}, 0)' if live else value}")


def finish(s: State, op: Store) -> None:
    """Print the sums of a part, after its rows."""
    name, dims = s.values[op], frozenset("r")
    if "x" in s.active:
        s.out.line(f"{name}s = tl.sum({name}s, 0, keep_dims=True)")
    mask = s.mask(dims)
    s.out.line(f"tl.store({place(s, op.buffer, op.index)}, {name}s{f', {mask}' if mask else ''})")
