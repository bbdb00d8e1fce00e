"""Integer expressions as Triton text, and the bounds that decide whether 32 bits hold them."""

from __future__ import annotations

from collections.abc import Mapping

from framesmith.codegen.term_order import Digits, Names, Syntax
from framesmith.symbolic.expr import Expr, FloorDiv, Max, Min, Mod, Product, Sum, Symbol, as_expr, linear

LIMIT = (1 << 31) - (1 << 16)  # of the numbers of 32 bits, less what tiles may reach beyond the end
_SYNTAX = Syntax(str, {FloorDiv: "//", Mod: "%"},
                 {FloorDiv: "floor_divide", Mod: "remainder", Min: "tl.minimum", Max: "tl.maximum"})


def expr_text(e: Expr, names: Names, digits: Digits = str) -> str:
    """Return `e` in Python's syntax, binding at least as tightly as a product; `names` overrides symbols' names,
    `digits` prints numbers, except divisors."""
    return _SYNTAX.text(e, names, digits)


def functions_in(e: Expr) -> set[str]:
    """Return the functions of `functions.tl` that the text of `e` may call."""
    return {"floor_divide", "remainder"} if any(type(a) in (FloorDiv, Mod) for a in parts(e)) else set()


def parts(e: Expr) -> list[Expr]:
    """Return `e`, its subexpressions, and the intermediate products of coefficients and terms."""
    found = [e]
    for a in e.args:
        found += parts(a)
    if type(e) is Sum:
        found += [t * k for t, k in linear(e)[0]]
    return found


def fits(e: Expr) -> bool | None:
    """Return whether `e` and its intermediate values fit into 32 bits: True, False, or None if that depends on size
    symbols."""
    sure = True
    for p in parts(e):
        if p.lo is not None and p.lo >= LIMIT or p.hi is not None and p.hi < -LIMIT:
            return False
        if p.hi is not None and p.hi >= LIMIT or p.lo is not None and p.lo < -LIMIT:
            return False
        sure = sure and p.lo is not None and p.hi is not None
    return True if sure else None


def greatest(e: Expr, extents: Mapping[Symbol, Expr]) -> Expr:
    """Return an upper bound of all intermediate values of `e`, over size symbols; `extents` of its loop axes and loaded
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
