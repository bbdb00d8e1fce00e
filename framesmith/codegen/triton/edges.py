"""Lengths that are no multiple of a vector: whole tiles have no mask, so that they are moved in vectors; the rest is a tile apart.

    for start in range(0, whole, RBLOCK): ...          # whole tiles
    for start in range(whole, n, RBLOCK): ...          # what is left; masked

A row of a matrix whose rows have such a length begins anywhere: `lead` elements after a place that is aligned, its `origin`. It is moved
in vectors from there, though its first and last vectors are not its own alone: these are read whole, which touches no more of memory than
the row does, by what memory is protected and moved in; and their elements are written one by one.

    for start in range(RBLOCK, last, RBLOCK): ...      # whole tiles from `origin` on
    for start in (0, last): ...                        # the first and the last tile; masked
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from framesmith.codegen.triton.form import Dim, Nest
from framesmith.codegen.triton.state import Aligned, State
from framesmith.codegen.triton.tuning import STEP
from framesmith.loops.ir import Scan
from framesmith.symbolic.expr import Expr, linear

VECTOR = 16  # bytes that a thread moves at once


def range_text(s: State) -> str:
    """The places in a tile along the row."""
    return f"tl.arange(0, RBLOCK){s.slots('r')}{'.to(tl.int64)' if s.wide else ''}"


def is_ragged(s: State, d: Dim) -> bool:
    """Whether some tiles along `d` are whole, and the last is not."""
    if d.name not in s.active or len(d.axes) > 1 or s.covers(d) or _in_order(s):
        return False
    return not d.extent.is_const or d.extent.const > s.block(d.name)


def _in_order(s: State) -> bool:
    return any(type(op) is Scan for node in s.form.body if type(node) is Nest for op in node.ops)


def hinders_vectors(d: Dim) -> bool:
    """Whether a mask along `d` keeps vectors from being used."""
    return not _is_multiple(d.extent, STEP)


def askew(s: State, row: Dim) -> tuple[Expr, int] | None:
    """Where rows begin that are moved in vectors although they begin anywhere, by most of what is read and written along `row`, and the
    elements of a vector."""
    if "r" not in s.active or len(row.axes) > 1 or _in_order(s):
        return None
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


def begin(s: State, row: Dim, persistent: bool) -> bool:
    """Print where the tiles of the row lie, as far as that is the same for all of them; whether some are `whole_tiles` and some not."""
    ragged = not persistent and is_ragged(s, row)
    skew = askew(s, row) if persistent or ragged and s.active == ("r",) else None
    if skew is not None and (ragged or _fits_shifted(s, row, skew[1])):
        _lead_in(s, row, *skew)
    if ragged and s.aligned is not None:
        s.out.line(f"last = tl.maximum(lead + {s.end(row)} - 1, 0) // RBLOCK * RBLOCK")
    elif ragged:
        s.out.line(f"whole = {s.end(row)} // RBLOCK * RBLOCK")
    return ragged


def _lead_in(s: State, row: Dim, base: Expr, width: int) -> None:
    """A row that begins at `base`."""
    narrow = "" if s.wide else ".to(tl.int32)"
    s.out.line(f"lead = ({s.expr(base)} & {width - 1}){narrow}")
    hint = f"[{width}, {width}]" if len(s.active) > 1 and s.of(base) else str(width)
    s.out.line(f"origin = tl.multiple_of({s.expr(base)} - lead, {hint})")
    s.aligned = Aligned(row.axes[0].symbol, base, width)


def masked(s: State, row: Dim, start: str = "") -> None:
    """Print the places of a tile in which some elements are not the row's, and which are."""
    assert s.aligned is not None
    width = s.aligned.width
    s.out.line(f"at = {start}{range_text(s)}")
    s.out.line(f"{row.axes[0].symbol} = at - lead")
    s.out.line(f"vector = at // {width}")
    s.out.line(f"end = lead + {s.end(row)}")
    s.out.line("r_live = (at >= lead) & (at < end)")
    s.out.line(f"{Aligned.near} = vector < (end + {width - 1}) // {width}")
    s.out.line(f"{Aligned.inner} = (vector >= (lead + {width - 1}) // {width}) & (vector < end // {width})")
    s.live["r"] = "r_live"


def _fits_shifted(s: State, row: Dim, width: int) -> bool:
    """Whether a tile of the whole row has room for what stands before it in its first vector."""
    return row.extent.is_const and row.extent.const + width - 1 <= s.block(row.name)


def _is_multiple(e: Expr, width: int) -> bool:
    terms, offset = linear(e)
    return offset % width == 0 and all(k % width == 0 for _, k in terms)


@contextmanager
def whole_tiles(s: State, row: Dim) -> Iterator[None]:
    """The loop over the whole tiles of the row."""
    if s.aligned:
        with s.out.block("for start in range(RBLOCK, last, RBLOCK):"):
            s.out.line(f"at = start + {range_text(s)}")
            s.out.line(f"{row.axes[0].symbol} = at - lead")
            yield
        return
    with s.out.block("for start in range(0, whole, RBLOCK):"):
        s.out.line(f"{row.axes[0].symbol} = start + {range_text(s)}")
        yield


@contextmanager
def other_elements(s: State, row: Dim) -> Iterator[None]:
    """The loop over what whole tiles leave of the row: its first and its last vectors, or its end."""
    if s.aligned:
        with s.out.block("for start in range(0, last + 1, tl.maximum(last, RBLOCK)):"):
            masked(s, row, "start + ")
            yield
            del s.live["r"]
        return
    symbol, extent = row.axes[0].symbol, s.end(row)
    with s.out.block(f"for start in range(whole, {extent}, RBLOCK):"):
        s.live["r"] = "r_live"
        s.out.line(f"{symbol} = start + {range_text(s)}")
        s.out.line(f"r_live = {symbol} < {extent}")
        yield
        del s.live["r"]
