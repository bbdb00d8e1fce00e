"""Lengths that are no multiple of a vector: whole tiles have no mask, so that they are moved in vectors; the rest is a
separate tile.

    for start in range(0, whole, RBLOCK): ...          # from the first element of the row that is aligned
    for start in range(0, n - whole, RBLOCK): ...      # what stands before it, and what is left; masked

A row of a matrix with such rows begins at any alignment: `lead` elements precede the first aligned position.

A row of halves that is one tile begins `lead` elements after the tile, at `origin`. Its first and last vectors, which
it shares with its neighbours, are read whole, always within the sixteen bytes of its own elements; they are written
element by element.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from framesmith.codegen.triton.state import Aligned, State
from framesmith.codegen.triton.tile_shape import Dim, Nest
from framesmith.codegen.triton.tuning import STEP
from framesmith.loops.ir import Scan
from framesmith.symbolic.expr import Expr, linear

VECTOR = 16  # bytes that a thread moves at once
HALVES = 8  # elements of a vector from which moving them one by one takes longer


def range_text(s: State) -> str:
    """Return the positions in a tile along the row."""
    return f"tl.arange(0, RBLOCK){s.slots('r')}{'.to(tl.int64)' if s.wide else ''}"


def is_ragged(s: State, d: Dim) -> bool:
    """Return whether some tiles along `d` are whole, and the last is not."""
    if d.name not in s.active or len(d.axes) > 1 or s.covers(d) or _in_order(s):
        return False
    return not d.extent.is_const or d.extent.const > s.block(d.name)


def _in_order(s: State) -> bool:
    return any(type(op) is Scan for node in s.form.body if type(node) is Nest for op in node.ops)


def hinders_vectors(d: Dim) -> bool:
    """Return whether a mask along `d` prevents vector accesses."""
    return not _is_multiple(d.extent, STEP)


def _askew(s: State, row: Dim) -> tuple[Expr, int] | None:
    """Return the base of most accesses along `row`, by bytes, and the width of a vector there, in elements; None if
    that base is known to be aligned, or does not follow from size symbols and the grid's axes."""
    symbol, found = row.axes[0].symbol, dict[Expr, int]()
    kinds = {p.name: p.dtype.itemsize for p in s.form.kernel.params}
    accesses = [(op, index - symbol) for op, index in s.form.accesses() if index.coeff(symbol) == 1]
    for op, base in accesses:
        found[base] = found.get(base, 0) + kinds[op.buffer]
    if not found:
        return None
    base = max(found, key=found.__getitem__)
    width = max(VECTOR // kinds[op.buffer] for op, other in accesses if other is base)
    axes = {a.symbol for d in s.form.grid for a in d.axes}
    known = base.free - axes <= set(s.form.kernel.symbols)
    return (base, width) if width > 1 and not _is_multiple(base, width) and known else None


def lead_in(s: State, row: Dim) -> None:
    """Print the beginning of the first whole tile of the row, `lead`, and the number of elements that whole tiles cover
    from there, `whole`."""
    extent, lead = s.end(row), ""
    skew = _askew(s, row) if s.active == ("r",) else None
    if skew is not None:
        base, width = skew
        s.aligned = Aligned(row.axes[0].symbol, base, width)
        lead = " - lead"
        s.out.line(f"lead = (-{s.expr(base)} & {width - 1}){'' if s.wide else '.to(tl.int32)'}")
    rest = f"({extent}{lead})" if row.extent.is_const else f"tl.maximum({extent}{lead}, 0)"
    s.out.line(f"whole = {rest} // RBLOCK * RBLOCK")


def shift(s: State, row: Dim) -> bool:
    """Print the positions of a tile that is a row of halves and may begin within a vector; which are the row's
    (`r_live`), and which vectors hold any (`r_near`) or only (`r_inner`) elements of it. Return False if it cannot, or
    there is no room before it."""
    if s.active != ("r",) or len(row.axes) > 1 or not row.extent.is_const or _in_order(s):
        return False
    skew = _askew(s, row)
    if skew is None or skew[1] < HALVES or row.extent.const + skew[1] - 1 > s.block("r"):
        return False
    base, width = skew
    s.shifted = Aligned(row.axes[0].symbol, base, width)
    s.out.line(f"lead = ({s.expr(base)} & {width - 1}){'' if s.wide else '.to(tl.int32)'}")
    s.out.line(f"origin = tl.multiple_of({s.expr(base)} - lead, {width})")
    s.out.line(f"at = {range_text(s)}")
    s.out.line(f"{row.axes[0].symbol} = at - lead")
    s.out.line(f"vector = at // {width}")
    s.out.line(f"end = lead + {s.end(row)}")
    s.out.line("r_live = (at >= lead) & (at < end)")
    s.out.line(f"r_near = vector < (end + {width - 1}) // {width}")
    s.out.line(f"r_inner = (vector >= (lead + {width - 1}) // {width}) & (vector < end // {width})")
    s.live["r"] = "r_live"
    return True


def _is_multiple(e: Expr, width: int) -> bool:
    terms, offset = linear(e)
    return offset % width == 0 and all(k % width == 0 for _, k in terms)


@contextmanager
def whole_tiles(s: State, row: Dim) -> Iterator[None]:
    """Print the loop over the whole tiles of the row."""
    with s.out.block(f"for start in {s.steps(0, 'whole', 'RBLOCK')}:"):
        s.out.line(f"{row.axes[0].symbol} = start + {'lead + ' if s.aligned else ''}{range_text(s)}")
        s.vector = s.aligned
        yield
        s.vector = None


@contextmanager
def other_elements(s: State, row: Dim) -> Iterator[None]:
    """Print the loop over the elements of the row outside whole tiles."""
    symbol, extent = row.axes[0].symbol, s.end(row)
    with s.out.block(f"for start in range({'0' if s.aligned else 'whole'}, {extent}{' - whole' if s.aligned else ''}, "
                     "RBLOCK):"):
        s.live["r"] = "r_live"
        if s.aligned:
            s.out.line(f"at = start + {range_text(s)}")
            s.out.line(f"r_live = at < {extent} - whole")
            s.out.line(f"{symbol} = tl.where(at < lead, at, at + whole)")
        else:
            s.out.line(f"{symbol} = start + {range_text(s)}")
            s.out.line(f"r_live = {symbol} < {extent}")
        yield
        del s.live["r"]
