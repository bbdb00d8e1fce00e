"""Symbolic floats: trees over integer expressions, kept exact as ratios where that is possible.

`h / 2`, `h * 0.5` and `1 / (a * b)` are ratios of integer expressions: rounding one gives an integer expression again
and comparing two gives a relation. Any other float is only evaluated.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from framesmith.symbolic.expr import Expr, Int, Rel, Symbol, as_expr, eq, le, lt, ne

_EXACT = 1 << 20


class FloatExpr:
    """`op` over args that are FloatExprs, an integer expression ("int") or a float ("const")."""

    __slots__ = ("op", "args")

    def __init__(self, op: str, *args: Any) -> None:
        self.op = op
        self.args = args

    @property
    def free(self) -> frozenset[Symbol]:
        """The integer symbols that occur in it."""
        return frozenset().union(*(a.free for a in self.args if not isinstance(a, float)))

    def evaluate(self, env: Mapping[Any, int]) -> float:
        """Return its value when each symbol (or symbol's name) has the value that `env` gives."""
        if self.op == "const":
            return self.args[0]
        return OPS[self.op](*(a.evaluate(env) for a in self.args))

    def subs(self, mapping: Mapping[Expr, Expr | int]) -> FloatExpr:
        """Replace integer symbols by expressions."""
        return FloatExpr(self.op, *[a if isinstance(a, float) else a.subs(mapping) for a in self.args])

    def ratio(self) -> tuple[Expr, Expr] | None:
        """`(num, den)` with den > 0 and value num/den, if it has one."""
        row = _RATIOS.get(self.op)
        return None if row is None else row(*self.args)

    def rooted(self, root: Callable[[Expr], Expr | None]) -> FloatExpr:
        """Replace square roots of integers by what `root` gives for them, where it is not None."""
        under = self.args[0] if self.op == "sqrt" or self.op == "pow" and self.args[1].is_half else None
        if under is not None and under.op == "int" and (found := root(under.args[0])) is not None:
            return FloatExpr("int", found)
        return self if self.op in ("const", "int") else FloatExpr(self.op, *[a.rooted(root) for a in self.args])

    @property
    def is_half(self) -> bool:
        return self.op == "const" and self.args[0] == 0.5

    def __str__(self) -> str:
        if self.op in ("const", "int"):
            return str(self.args[0])
        sign = _SIGNS.get(self.op)
        return f"({sign.join(map(str, self.args))})" if sign else f"{self.op}({', '.join(map(str, self.args))})"

    __repr__ = __str__


OPS: dict[str, Callable[..., float]] = {
    "int": float,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "pow": operator.pow,
    "mod": operator.mod,
    "floordiv": operator.floordiv,
    "neg": operator.neg,
    "abs": abs,
    "min": min,
    "max": max,
    "round": round,
    **{name: getattr(math, name) for name in
       ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "exp", "log", "log2")},
}
_SIGNS = {"add": " + ", "sub": " - ", "mul": " * ", "truediv": " / ", "pow": " ** ", "mod": " % ", "floordiv": " // "}


def as_float(x: FloatExpr | Expr | int | float) -> FloatExpr:
    """`x` as a symbolic float."""
    if isinstance(x, FloatExpr):
        return x
    if isinstance(x, float):
        return FloatExpr("const", x)
    return FloatExpr("int", as_expr(x))


def _ratio_const(value: float) -> tuple[Expr, Expr] | None:
    if not math.isfinite(value):
        return None
    num, den = value.as_integer_ratio()
    return (Int(num), Int(den)) if den <= _EXACT and abs(num) <= 1 << 53 else None


def _both(a: FloatExpr, b: FloatExpr) -> tuple[Expr, Expr, Expr, Expr] | None:
    x, y = a.ratio(), b.ratio()
    return None if x is None or y is None else (*x, *y)


def _of_both(rule: Callable[[Expr, Expr, Expr, Expr], tuple[Expr, Expr] | None]) -> Any:
    """Return a rule over numerator and denominator of the first and of the second, where both are ratios."""

    def ratio(a: FloatExpr, b: FloatExpr) -> tuple[Expr, Expr] | None:
        both = _both(a, b)
        return both and rule(*both)

    return ratio


def _ratio_neg(a: FloatExpr) -> tuple[Expr, Expr] | None:
    r = a.ratio()
    return r and (-r[0], r[1])


_RATIOS: dict[str, Callable[..., tuple[Expr, Expr] | None]] = {
    "int": lambda e: (e, Int(1)),
    "const": _ratio_const,
    "mul": _of_both(lambda a, b, c, d: (a * c, b * d)),
    "add": _of_both(lambda a, b, c, d: (a * d + c * b, b * d)),
    "sub": _of_both(lambda a, b, c, d: (a * d - c * b, b * d)),
    "truediv": _of_both(lambda a, b, c, d: (a * d, b * c) if c.lo is not None and c.lo > 0 else None),
    "mod": _of_both(lambda a, b, c, d: (a * d % (b * c), b * d) if c.lo is not None and c.lo > 0 else None),
    "floordiv": _of_both(lambda a, b, c, d: (a * d // (b * c), Int(1)) if c.lo is not None and c.lo > 0 else None),
    "neg": _ratio_neg,
}


def compare(op: str, a: FloatExpr, b: FloatExpr) -> Rel | None:
    """`a op b` for op in lt, le, gt, ge, eq, ne, as a relation between integers; None if it is not one."""
    both = _both(a, b)
    if both is None:
        return None
    left, right = both[0] * both[3], both[2] * both[1]
    return _COMPARE[op](left, right)


_COMPARE: dict[str, Callable[[Expr, Expr], Rel]] = {
    "lt": lt, "le": le, "eq": eq, "ne": ne, "gt": lambda a, b: lt(b, a), "ge": lambda a, b: le(b, a),
}


def floor(a: FloatExpr) -> Expr | None:
    """Return the greatest integer not above `a`, as an expression; None if there is none."""
    r = a.ratio()
    return r and r[0] // r[1]


def ceil(a: FloatExpr) -> Expr | None:
    """Return the least integer not below `a`, as an expression; None if there is none."""
    r = a.ratio()
    return r and (r[0] + r[1] - 1) // r[1]


def trunc(a: FloatExpr) -> Expr | None:
    """`a` without its fraction, as an expression where the sign is known; None if there is none."""
    r = a.ratio()
    return r[0] // r[1] if r and r[0].lo is not None and r[0].lo >= 0 else None
