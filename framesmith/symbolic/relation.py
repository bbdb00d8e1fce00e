"""Relations between integer expressions: data that guards are made of.

Normal form: `expr <= 0`, `expr == 0`, `expr != 0`, conjunction, disjunction, TRUE and FALSE; hash-consed, so equal
relations are identical. A relation that ranges decide is TRUE or FALSE at construction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd
from typing import Any, ClassVar

from framesmith.symbolic.nodes import Expr, Int, Substitution, Symbol, as_expr, linear, make_sum


class Rel:
    """`op` is "le", "eq", "ne" (of `args[0]` with 0), "and", "or" (of relations), "true" or "false"."""

    __slots__ = ("op", "args")
    op: str
    args: tuple[Any, ...]
    _table: ClassVar[dict[tuple[Any, ...], Rel]] = {}

    def __new__(cls, op: str, *args: Any) -> Rel:
        key = (op, *args)
        node = cls._table.get(key)
        if node is None:
            node = object.__new__(cls)
            node.op = op
            node.args = args
            cls._table[key] = node
        return node

    @property
    def known(self) -> bool | None:
        """Its truth where that is known for every value of the symbols, else None."""
        return {"true": True, "false": False}.get(self.op)

    @property
    def free(self) -> frozenset[Symbol]:
        """The symbols that occur in it."""
        return frozenset().union(*(a.free for a in self.args))

    def evaluate(self, env: Mapping[Any, int]) -> bool:
        """Return its truth when each symbol (or symbol's name) has the value that `env` gives."""
        return _EVALUATE[self.op](self.args, env)

    def subs(self, mapping: Mapping[Expr, Expr | int] | Substitution) -> Rel:
        """Replace atoms by expressions, and decide again."""
        change = mapping if isinstance(mapping, Substitution) else Substitution(mapping)
        if self.op in _COMPARE:
            return _COMPARE[self.op](change(self.args[0]))
        if self.op in _CONNECT:
            return _CONNECT[self.op](*(a.subs(change) for a in self.args))
        return self

    def __bool__(self) -> bool:
        known = self.known
        if known is None:
            raise TypeError(f"the truth of {self} is not known; ask the shape environment to guard on it")
        return known

    def __str__(self) -> str:
        return _PRINT[self.op](self)

    __repr__ = __str__

    def __copy__(self) -> Rel:
        return self

    def __deepcopy__(self, memo: object) -> Rel:
        return self

    def __reduce__(self) -> Any:
        return Rel, (self.op, *self.args)


TRUE = Rel("true")
FALSE = Rel("false")


def truth(value: bool) -> Rel:
    """Return the relation that always, or never, holds."""
    return TRUE if value else FALSE


def _le0(e: Expr) -> Rel:
    if e.hi is not None and e.hi <= 0:
        return TRUE
    if e.lo is not None and e.lo > 0:
        return FALSE
    terms, offset = linear(e)
    g = gcd(*(k for _, k in terms))
    if g > 1:  # g*x + k <= 0  ->  x + ceil(k/g) <= 0
        return _le0(make_sum({t: k // g for t, k in terms}, -(-offset // g)))
    return Rel("le", e)


def _zero(e: Expr) -> bool | Expr:
    """Return whether e == 0 is known; if not, the expression with its content divided out and its sign chosen."""
    if isinstance(e, Int):
        return e.value == 0
    if (e.lo is not None and e.lo > 0) or (e.hi is not None and e.hi < 0):
        return False
    terms, offset = linear(e)
    g = gcd(*(k for _, k in terms))
    if offset % g:
        return False
    if terms[0][1] < 0:
        g = -g
    return e if g == 1 else make_sum({t: k // g for t, k in terms}, offset // g)


def _eq0(e: Expr) -> Rel:
    z = _zero(e)
    return truth(z) if isinstance(z, bool) else Rel("eq", z)


def _ne0(e: Expr) -> Rel:
    z = _zero(e)
    return truth(not z) if isinstance(z, bool) else Rel("ne", z)


def le(a: Expr | int, b: Expr | int) -> Rel:
    """`a <= b`."""
    return _le0(as_expr(a) - b)


def lt(a: Expr | int, b: Expr | int) -> Rel:
    """`a < b`."""
    return _le0(as_expr(a) - b + 1)


def ge(a: Expr | int, b: Expr | int) -> Rel:
    """`a >= b`."""
    return le(b, a)


def gt(a: Expr | int, b: Expr | int) -> Rel:
    """`a > b`."""
    return lt(b, a)


def eq(a: Expr | int, b: Expr | int) -> Rel:
    """`a == b`."""
    return _eq0(as_expr(a) - b)


def ne(a: Expr | int, b: Expr | int) -> Rel:
    """`a != b`."""
    return _ne0(as_expr(a) - b)


def and_(*rels: Rel) -> Rel:
    """Return all of them (TRUE for none)."""
    return _connect("and", FALSE, TRUE, rels)


def or_(*rels: Rel) -> Rel:
    """Any of them (FALSE for none)."""
    return _connect("or", TRUE, FALSE, rels)


def _connect(op: str, absorbing: Rel, neutral: Rel, rels: tuple[Rel, ...]) -> Rel:
    kept: dict[Rel, None] = {}
    for rel in rels:
        for part in rel.args if rel.op == op else (rel,):
            if part is absorbing or not_(part) in kept:
                return absorbing
            if part is not neutral:
                kept[part] = None
    if len(kept) < 2:
        return next(iter(kept), neutral)
    return Rel(op, *sorted(kept, key=str))


def not_(rel: Rel) -> Rel:
    """Return the opposite."""
    return _NEGATE[rel.op](*rel.args)


_NEGATE: dict[str, Callable[..., Rel]] = {
    "true": lambda: FALSE,
    "false": lambda: TRUE,
    "le": lambda e: _le0(1 - e),
    "eq": lambda e: _ne0(e),
    "ne": lambda e: _eq0(e),
    "and": lambda *rels: or_(*map(not_, rels)),
    "or": lambda *rels: and_(*map(not_, rels)),
}
_EVALUATE: dict[str, Callable[[tuple[Any, ...], Mapping[Any, int]], bool]] = {
    "true": lambda args, env: True,
    "false": lambda args, env: False,
    "le": lambda args, env: args[0].evaluate(env) <= 0,
    "eq": lambda args, env: args[0].evaluate(env) == 0,
    "ne": lambda args, env: args[0].evaluate(env) != 0,
    "and": lambda args, env: all(a.evaluate(env) for a in args),
    "or": lambda args, env: any(a.evaluate(env) for a in args),
}
_COMPARE: dict[str, Callable[[Expr], Rel]] = {"le": _le0, "eq": _eq0, "ne": _ne0}
_CONNECT: dict[str, Callable[..., Rel]] = {"and": and_, "or": or_}


def _print_comparison(sign: str, mirrored: str) -> Callable[[Rel], str]:
    def show(rel: Rel) -> str:
        terms, offset = linear(rel.args[0])
        left = make_sum({t: k for t, k in terms if k > 0}, max(offset, 0))
        right = make_sum({t: -k for t, k in terms if k < 0}, max(-offset, 0))
        if left.is_const:
            return f"{_bare(right)} {mirrored} {_bare(left)}"
        return f"{_bare(left)} {sign} {_bare(right)}"

    return show


def _bare(e: Expr) -> str:
    text = e.text
    return text[1:-1] if text[0] == "(" and type(e).__name__ == "Sum" else text


_PRINT: dict[str, Callable[[Rel], str]] = {
    "true": lambda rel: "True",
    "false": lambda rel: "False",
    "le": _print_comparison("<=", ">="),
    "eq": _print_comparison("==", "=="),
    "ne": _print_comparison("!=", "!="),
    "and": lambda rel: "(" + " and ".join(map(str, rel.args)) + ")",
    "or": lambda rel: "(" + " or ".join(map(str, rel.args)) + ")",
}
