"""Integer expressions as Triton text, and the bounds that decide whether 32 bits hold them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from framesmith.codegen.term_order import divisor_text, sum_text
from framesmith.symbolic.expr import Expr, FloorDiv, Int, Max, Min, Mod, Product, Sum, Symbol, as_expr, linear

Names = Mapping[Symbol, str]
LIMIT = (1 << 31) - (1 << 16)  # of the numbers of 32 bits, less what tiles may reach beyond the end


Digits = Callable[[int], str]


def _sum(e: Sum, names: Names, digits: Digits) -> str:
    return sum_text(*linear(e), lambda term: expr_text(term, names, digits), digits)


def _divide(e: Expr, names: Names, digits: Digits) -> str:
    num, den = e.args
    a, b = expr_text(num, names, digits), expr_text(den, names)  # what is divided by stays, where it is a number
    if num.lo is not None and num.lo >= 0 and den.lo is not None and den.lo > 0:
        return f"({a} {'//' if type(e) is FloorDiv else '%'} {divisor_text(den, b)})"
    return f"{'floor_divide' if type(e) is FloorDiv else 'remainder'}({a}, {b})"


def _extreme(e: Expr, names: Names, digits: Digits) -> str:
    first, *rest = (expr_text(a, names, digits) for a in e.args)
    for other in rest:
        first = f"tl.{'minimum' if type(e) is Min else 'maximum'}({first}, {other})"
    return first


_FORMS: dict[type, Callable[..., str]] = {
    Int: lambda e, names, digits: digits(e.value),
    Symbol: lambda e, names, digits: names.get(e, e.name),
    Sum: _sum,
    Product: lambda e, names, digits: "*".join(expr_text(a, names, digits) for a in e.args),
    FloorDiv: _divide,
    Mod: _divide,
    Min: _extreme,
    Max: _extreme,
}


def expr_text(e: Expr, names: Names, digits: Digits = str) -> str:
    """`e` in Python's syntax, binding at least as tightly as a product; `names` overrides symbols' names, `digits`
    prints numbers."""
    return _FORMS[type(e)](e, names, digits)


def functions_in(e: Expr) -> set[str]:
    """Functions of `functions.tl` that the text of `e` may call."""
    return {"floor_divide", "remainder"} if any(type(a) in (FloorDiv, Mod) for a in parts(e)) else set()


def parts(e: Expr) -> list[Expr]:
    """`e`, its subexpressions, and the products of coefficient and term that are formed on the way."""
    found = [e]
    for a in e.args:
        found += parts(a)
    if type(e) is Sum:
        found += [t * k for t, k in linear(e)[0]]
    return found


def fits(e: Expr) -> bool | None:
    """Return whether 32 bits hold `e` and all that it is computed from: True, False, or None where size symbols decide
    it."""
    sure = True
    for p in parts(e):
        if p.lo is not None and p.lo >= LIMIT or p.hi is not None and p.hi < -LIMIT:
            return False
        if p.hi is not None and p.hi >= LIMIT or p.lo is not None and p.lo < -LIMIT:
            return False
        sure = sure and p.lo is not None and p.hi is not None
    return True if sure else None


def greatest(e: Expr, extents: Mapping[Symbol, Expr]) -> Expr:
    """An upper bound of every value met in computing `e`, over size symbols; `extents` of its loop axes and loaded
    indices."""
    if type(e) is Symbol:
        return greatest(extents[e] - 1, extents) if e in extents else e
    if type(e) is Sum:
        terms, offset = linear(e)
        total = as_expr(abs(offset))
        for term, k in terms:
            total = total + greatest(term, extents) * abs(k)
        return total
    args = [greatest(a, extents) for a in e.args]
    total = as_expr(1)
    for a in args:
        total = total * a if type(e) is Product else total + a
    return total if args else e
