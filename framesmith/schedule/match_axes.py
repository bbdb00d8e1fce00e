"""Matching of the axes of one nest with those of another: found from two index expressions that run over the same
buffer.

Both expressions are linear; their terms, sorted by stride, are walked together. Equal stride and extent: the same axis.
Equal stride and an extent that divides the other: the longer axis is split in two. What is left over on either side is
private to its side. Strides of size symbols have no order: axes of equal stride and extent are the same, and none is
split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from framesmith.symbolic.expr import Expr, Product, Symbol, linear, prod

Extents = dict[Symbol, Expr]


@dataclass(frozen=True, slots=True)
class Split:
    """Axis `symbol` must become `inner * outer + inner part`; `left`: it belongs to the first expression."""

    symbol: Symbol
    inner: int
    left: bool


Terms = tuple[list[tuple[int, Symbol]], dict[tuple[Expr, Expr], Symbol]]


def terms(e: Expr, extents: Extents) -> Terms | None:
    """(stride, axis) sorted by stride, and (stride over size symbols, extent) -> axis; None when an axis occurs other
    than linearly with a positive stride."""
    plain: list[tuple[int, Symbol]] = []
    symbolic: dict[tuple[Expr, Expr], Symbol] = {}
    met: set[Symbol] = set()
    for atom, k in linear(e)[0]:
        axes = [s for s in extents if s in atom.free]
        if not axes:
            continue
        stride = _stride_along(atom, axes[0]) if len(axes) == 1 and k > 0 else None
        if stride is None or axes[0] in met:
            return None
        met.add(axes[0])
        if stride.is_const:
            plain.append((k, axes[0]))
        else:
            symbolic[stride * k, extents[axes[0]]] = axes[0]
    plain.sort(key=lambda term: term[0])
    return plain, symbolic


def _stride_along(atom: Expr, axis: Symbol) -> Expr | None:
    """`atom` over `axis`, which it contains; None where that is not a product of sizes."""
    factors = atom.args if type(atom) is Product else (atom,)
    rest = [f for f in factors if f is not axis]
    return prod(rest) if len(rest) == len(factors) - 1 and all(type(f) is Symbol for f in rest) else None


def match(left: Expr, right: Expr, left_axes: Extents, right_axes: Extents) -> Split | dict[Symbol, Symbol]:
    """Axes of `right` to axes of `left` (empty when nothing matches), or a split to make first."""
    lefts, rights = terms(left, left_axes), terms(right, right_axes)
    if lefts is None or rights is None:
        return {}
    (a, far), (b, distant) = lefts, rights
    found = {axis: far[key] for key, axis in distant.items() if key in far}
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
