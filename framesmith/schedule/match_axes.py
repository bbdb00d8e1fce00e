"""Matching of the axes of one nest with those of another: found from two index expressions that run over the same
buffer.

Both expressions are linear; their terms, sorted by stride, are matched in order. Equal stride and extent: the same
axis. Equal stride and an extent that divides the other: the longer axis is split in two. Unmatched axes are private to
their side. Symbolic strides have no order: equal ones match.
"""

from __future__ import annotations

from dataclasses import dataclass

from framesmith.symbolic.expr import Expr, Symbol, coefficient, divides

Extents = dict[Symbol, Expr]


@dataclass(frozen=True, slots=True)
class Split:
    """Axis `symbol` must become `inner * outer + inner part`; `left`: it belongs to the first expression."""

    symbol: Symbol
    inner: Expr
    left: bool


Terms = tuple[list[tuple[int, Symbol]], dict[Expr, Symbol]]


def terms(e: Expr, extents: Extents) -> Terms | None:
    """(stride, axis) sorted by stride, and stride over size symbols -> axis; None when an axis occurs other than
    linearly with a positive stride."""
    plain: list[tuple[int, Symbol]] = []
    symbolic: dict[Expr, Symbol] = {}
    for axis in extents:
        if axis not in e.free:
            continue
        stride = coefficient(e, axis)
        if stride is None or stride.lo is None or stride.lo < stride.is_const or not stride.free.isdisjoint(extents):
            return None
        if stride.is_const:
            plain.append((stride.const, axis))
        else:
            symbolic[stride] = axis
    plain.sort(key=lambda term: term[0])
    return plain, symbolic


def match(left: Expr, right: Expr, left_axes: Extents, right_axes: Extents) -> Split | dict[Symbol, Symbol]:
    """Return the map from axes of `right` to axes of `left` (empty if nothing matches), or a split to make first."""
    lefts, rights = terms(left, left_axes), terms(right, right_axes)
    if lefts is None or rights is None:
        return {}
    (a, far), (b, distant) = lefts, rights
    found: dict[Symbol, Symbol] = {}
    for stride, sb in distant.items():
        if (sa := far.get(stride)) is None:
            continue
        if left_axes[sa] is right_axes[sb]:
            found[sb] = sa
        elif (split := _split(left_axes[sa], right_axes[sb], sa, sb)) is not None:
            return split
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


def _split(na: Expr, nb: Expr, sa: Symbol, sb: Symbol) -> Split | None:
    if any(n.is_const and not n.const for n in (na, nb)):
        return None
    if divides(na, nb):
        return Split(sb, na, False)
    if divides(nb, na):
        return Split(sa, nb, True)
    return None
