"""Scans along the row: of a tile that holds all of it, or in parts, with a carry from earlier parts."""

from __future__ import annotations

from framesmith.codegen.triton.reductions import axis_text, keep_text, spread
from framesmith.codegen.triton.state import State
from framesmith.codegen.triton.statements import STATEMENTS
from framesmith.codegen.triton.types import type_row
from framesmith.loops.ir import Scan

STEPS = {"sum": ("plus", "0", "+"), "prod": ("product", "1", "*")}


def _text(s: State, op: Scan) -> str:
    function = STEPS[op.kind][0]
    s.functions.add(function)
    return f"tl.associative_scan({spread(s, op.args[0])}, {axis_text(s)}, {function})"


def _scan(s: State, op: Scan) -> None:
    text = _text(s, op)
    s.define(op, s.dims_of(op.args[0]) | {"r"}, text)


def declare(s: State, op: Scan) -> None:
    """Print the initial carry."""
    name, kind = s.name(op), type_row(op.dtype).name
    s.dims[op] = frozenset(s.active)
    shape = s.shape(a for a in s.active if a != "r") if len(s.active) > 1 else "[]"
    s.out.line(f"{name}_before = tl.full({shape}, {STEPS[op.kind][1]}, {kind})")


def accumulate(s: State, op: Scan) -> None:
    """Print the scan of one part, and the carry after it: its last element."""
    name, sign = s.values[op], STEPS[op.kind][2]
    s.out.line(f"{name} = {name}_before {sign} {_text(s, op)}")
    last = f"tl.arange(0, RBLOCK){s.slots('r')} == RBLOCK - 1"
    s.out.line(f"{name}_before = tl.sum(tl.where({last}, {name}, 0), {axis_text(s)}{keep_text(s)})")


def finish(s: State, op: Scan) -> None:
    """Do nothing: scans need no code after the loop."""


STATEMENTS[Scan] = _scan
