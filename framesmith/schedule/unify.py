"""Which axes of one nest are which axes of another: found from two index expressions that run over the same buffer.

Both expressions are linear; their terms, sorted by stride, are walked together. Equal stride and extent: the same axis. Equal stride and
an extent that divides the other: the longer axis is split in two. What is left over on either side is private to its side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from framesmith.symbolic.expr import Expr, Symbol, linear

Extents = dict[Symbol, Expr]


@dataclass(frozen=True, slots=True)
class Split:
    """Axis `symbol` must become `inner * outer + inner part`; `left`: it belongs to the first expression."""

    symbol: Symbol
    inner: int
    left: bool


def terms(e: Expr, extents: Extents) -> list[tuple[int, Symbol]] | None:
    """(stride, axis) sorted by stride; None when an axis occurs other than linearly with a positive stride."""
    out = []
    for atom, k in linear(e)[0]:
        if type(atom) is Symbol:
            if atom in extents:
                if k <= 0:
                    return None
                out.append((k, atom))
        elif not extents.keys().isdisjoint(atom.free):
            return None
    out.sort(key=_stride)
    return out


def _stride(term: tuple[int, Symbol]) -> int:
    return term[0]


def match(left: Expr, right: Expr, left_axes: Extents, right_axes: Extents) -> Split | dict[Symbol, Symbol]:
    """Axes of `right` to axes of `left` (empty when nothing matches), or a split to make first."""
    a, b = terms(left, left_axes), terms(right, right_axes)
    found: dict[Symbol, Symbol] = {}
    if a is None or b is None:
        return found
    i = j = 0
    while i < len(a) and j < len(b):
        (ka, sa), (kb, sb) = a[i], b[j]
        if ka != kb:
            if ka < kb:
                i += 1
            else:
                j += 1
            continue
        na, nb = left_axes[sa], right_axes[sb]
        if na is nb:
            found[sb] = sa
            i, j = i + 1, j + 1
            continue
        split = _split(na, nb, sa, sb)
        if split is None:
            i, j = i + 1, j + 1
            continue
        return split
    return found


def _split(na: Any, nb: Any, sa: Symbol, sb: Symbol) -> Split | None:
    if not (na.is_const and nb.is_const) or not na.const or not nb.const:
        return None
    if nb.const % na.const == 0:
        return Split(sb, na.const, False)
    if na.const % nb.const == 0:
        return Split(sa, nb.const, True)
    return None
