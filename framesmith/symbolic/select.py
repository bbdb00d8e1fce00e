"""One expression in place of two, of which a relation chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.expr import Expr, FloorDiv, Int, Mod, Rel, as_expr, eq, max_, min_, not_, prod


def selected(env: ShapeEnv, rel: Rel, a: Expr | int, b: Expr | int) -> Expr | None:
    """Return an expression that equals `a` where `rel` holds, and `b` elsewhere; None if one of them may divide by
    zero where it is not chosen."""
    a, b = as_expr(a), as_expr(b)
    if not all(map(_is_total, (a, b))):
        return None
    yes, no = _simplified(env, rel, a), _simplified(env, not_(rel), b)
    for value, known, holds, other in ((a, yes, rel, b), (b, no, not_(rel), a)):
        if _agree(env, not_(holds), value, other):
            return value
        for den in _divisors(rel):
            if known % den is known and _agree(env, not_(holds), _simplified(env, not_(holds), value) % den, other):
                return value % den  # the remainder of what is less than the divisor
    yes, no = (short if short.is_const else long for short, long in ((yes, a), (no, b)))
    return no + indicator(rel) * (yes - no)


def indicator(rel: Rel) -> Expr:
    """Return 1 where the relation holds, and 0 elsewhere."""
    return _INDICATORS[rel.op](*rel.args)


def _unequal(e: Expr) -> Expr:
    return min_(max_(e, 0) + max_(-e, 0), 1)


_INDICATORS: dict[str, Callable[..., Expr]] = {
    "true": lambda: Int(1),
    "false": lambda: Int(0),
    "le": lambda e: min_(max_(1 - e, 0), 1),
    "ne": _unequal,
    "eq": lambda e: 1 - _unequal(e),
    "and": lambda *rels: prod(map(indicator, rels)),
    "or": lambda *rels: 1 - prod(1 - indicator(rel) for rel in rels),
}


def _simplified(env: ShapeEnv, rel: Rel, e: Expr) -> Expr:
    with env.supposing(rel):
        return env.simplify(e)


def _agree(env: ShapeEnv, rel: Rel, a: Expr, b: Expr) -> bool:
    """Return whether two expressions are equal where a relation holds."""
    with env.supposing(rel):
        return env.known(eq(a, b)) is True


def _parts(e: Expr | Rel) -> Iterator[Expr]:
    for part in e.args:
        yield part
        yield from _parts(part)


def _divisors(rel: Rel) -> set[Expr]:
    return {e.den for e in _parts(rel) if isinstance(e, Mod) and e.den.is_const and e.den.const > 1}


def _is_total(e: Expr) -> bool:
    return all(x.den.lo is not None and x.den.lo > 0 for x in (e, *_parts(e)) if isinstance(x, FloorDiv | Mod))


__all__ = ["indicator", "selected"]
