"""Integer expressions: the public face of the algebra. Python ints mix freely; every result is simplified.

    i, j = Symbol("i", 0, 15), Symbol("j", 0, 7)
    (8*i + j) // 8   # i
    (8*i + j) % 8    # j
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

from framesmith.symbolic import divide as _divide  # noqa: F401  registers // and %
from framesmith.symbolic import ring as _ring  # noqa: F401  registers + and *
from framesmith.symbolic.compound import FloorDiv, Max, Min, Mod, Product
from framesmith.symbolic.extrema import max_, min_
from framesmith.symbolic.nodes import Expr, Int, Substitution, Sum, Symbol, as_expr, linear
from framesmith.symbolic.polynomial import coefficient
from framesmith.symbolic.relation import FALSE, TRUE, Rel, and_, eq, ge, gt, le, lt, ne, not_, or_, truth
from framesmith.symbolic.ring import factors

__all__ = [
    "FALSE", "TRUE", "Expr", "FloorDiv", "Int", "Max", "Min", "Mod", "Product", "Rel", "Substitution", "Sum", "Symbol",
    "and_", "as_expr", "ceildiv", "coefficient", "divides", "eq", "factors", "ge", "gt", "le", "linear", "lt", "max_",
    "min_", "ne", "not_", "or_", "prod", "simplify_int", "sum_", "truth", "typical",
]


def ceildiv(a: Expr | int, b: Expr | int) -> Expr:
    """`a / b` rounded up, for a positive b."""
    return (as_expr(a) + b - 1) // b


def divides(b: Expr, a: Expr) -> bool:
    """Return whether `a` is a multiple of `b`, whatever the values of the symbols."""
    return (a if b.is_const and not b.const else a % b) is Int(0)


def prod(items: Iterable[Expr | int]) -> Expr:
    """Return the product of the items (1 for none)."""
    return reduce(lambda a, b: a * b, items, as_expr(1))  # type: ignore[return-value]


def sum_(items: Iterable[Expr | int]) -> Expr:
    """Return the sum of the items (0 for none)."""
    return reduce(lambda a, b: a + b, items, as_expr(0))  # type: ignore[return-value]


TYPICAL = 64


class _Typical(dict[Any, int]):
    """A mapping of any symbol to a typical size."""

    def __missing__(self, key: Any) -> int:
        return TYPICAL


_SIZES = _Typical()


def typical(e: Expr) -> int:
    """Evaluate an extent or a stride with a typical size for each symbol: an estimate where no numbers are known. A
    divisor may become zero."""
    if e.is_const:
        return e.const
    try:
        return e.evaluate(_SIZES)
    except ZeroDivisionError:
        return TYPICAL


def simplify_int(e: Expr | int) -> Expr | int:
    """Return a plain int where the value is known, the expression where it is not."""
    return e.const if isinstance(e, Expr) and e.is_const else e
