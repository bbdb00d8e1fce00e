"""Minimum and maximum: flattened, without operands that ranges or differences show to be dominated."""

from __future__ import annotations

from framesmith.symbolic.compound import Compound, Max, Min, make
from framesmith.symbolic.nodes import Expr, as_expr, rule


@rule("min")
def min_(first: Expr | int, *rest: Expr | int) -> Expr:
    """Return the least of the operands."""
    return _extremum(Min, 1, (first, *rest))


@rule("max")
def max_(first: Expr | int, *rest: Expr | int) -> Expr:
    """Return the greatest of the operands."""
    return _extremum(Max, -1, (first, *rest))


def _extremum(cls: type[Compound], sign: int, operands: tuple[Expr | int, ...]) -> Expr:
    """`sign` is 1 for the least and -1 for the greatest."""
    kept: list[Expr] = []
    for operand in operands:
        e = as_expr(operand)
        for x in e.args if isinstance(e, cls) else (e,):
            if any(_known_le(k, x, sign) for k in kept):
                continue
            kept = [k for k in kept if not _known_le(x, k, sign)]
            kept.append(x)
    if len(kept) == 1:
        return kept[0]
    return make(cls, tuple(sorted(kept, key=lambda e: e.uid)))


def _known_le(a: Expr, b: Expr, sign: int) -> bool:
    """Return whether `sign*a <= sign*b` for every value of the symbols."""
    lo = ((b - a) * sign).lo
    return lo is not None and lo >= 0
