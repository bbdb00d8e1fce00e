"""Guards on the outcomes of comparisons of numbers, in place of guards on the numbers' values."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from framesmith.symbolic.expr import Expr, Int, Rel, Symbol, eq, ge, gt, le, lt, ne, not_

from . import trackers as t
from .session import Session
from .sources import Guard, Source

COMPARISONS: dict[Any, Callable[..., Rel]] = {
    operator.lt: lt, operator.le: le, operator.eq: eq, operator.ne: ne, operator.gt: gt, operator.ge: ge,
}
_ARITHMETIC: dict[Any, Callable[..., Any]] = {
    operator.add: operator.add, operator.iadd: operator.add, operator.sub: operator.sub, operator.isub: operator.sub,
    operator.mul: operator.mul, operator.imul: operator.mul, operator.floordiv: operator.floordiv,
    operator.ifloordiv: operator.floordiv, operator.mod: operator.mod, operator.imod: operator.mod,
    operator.neg: operator.neg, operator.pos: operator.pos,
}
_SUMS = frozenset({operator.add, operator.sub})
MOST = 1 << 62
"""The bound on all numbers: guards compute in 64 bits, and fail on overflow."""
MOST_OF_ONE = 8
"""The maximal number of outcomes guarded for one number; with more, one guard on its value is cheaper."""


class _Unfit(Exception):
    """Not an expression of integers that guards compute."""


class Outcomes(Session):
    """The part of the session that assumes outcomes."""

    def __init__(self) -> None:
        self.open_ints: list[t.SymbolicNumber] = []
        """Integers from outside that may be guarded by outcomes alone."""
        self.outcomes: dict[tuple[Rel, tuple[Source, ...]], Guard] = {}

    def open_int(self, value: int, source: Source) -> t.Tracker:
        """Return an integer from outside."""
        if (known := self.guards.get((source, "equals", value))) is not None and type(known.value) is int:
            return t.Const(value, source)
        self.open_ints.append(t.SymbolicNumber(self, value, source, open=True))
        return self.open_ints[-1]

    def outcome(self, x: t.SymbolicNumber) -> bool | None:
        """Return the truth of `x`, assumed from now on; None if no guard can tell."""
        symbols: dict[str, tuple[Source, str, None]] = {}
        try:
            relation = _relation(x, symbols)
        except _Unfit:
            return self.outcome_by_predicate(x)
        uses = [sum(part[0] == source for guard in self.outcomes.values() for part in guard.value[1].values())
                for source, _, _ in symbols.values()]
        if max(uses, default=0) >= MOST_OF_ONE:
            return None
        truth = bool(x.example)
        relation = relation if truth else not_(relation)
        if relation.known is None:
            places = tuple([place[0] for place in symbols.values()])
            self.outcomes.setdefault((relation, places), Guard(None, "shape", (relation, symbols), self.user_place()))
        return truth

    def outcome_by_predicate(self, x: t.SymbolicNumber) -> bool | None:
        """Like `outcome`, for an expression with floats over one dynamic number."""
        sources: set[Source] = set()
        text = None if x.open else _text(x, sources)
        if text is None or len(sources) != 1:
            return None
        source = sources.pop()
        known = [str(g.value) for g in self.guards.values() if g.source == source and g.kind == "callable"]
        if len(known) >= MOST_OF_ONE:
            return None
        found = Outcome(text, bool(x.example))
        if str(found) not in known:
            self.guard(source, "callable", found)
        return found.truth

    def outcome_guards(self) -> list[Guard]:
        """Return the guards on outcomes that no guard on values implies, and guards on the types of the integers
        compared."""
        valued = {source for source, kind, _ in self.guards if kind == "equals"}
        types = [Guard(x.source, "type", int) for x in self.open_ints if x.source not in valued]
        left = [g for g in self.outcomes.values() if not all(place[0] in valued for place in g.value[1].values())]
        return [*types, *left]


class Outcome:
    """A predicate: the expression `text` of a number `x` has this truth."""

    __slots__ = ("test", "text", "truth")

    def __init__(self, text: str, truth: bool) -> None:
        self.text = text
        self.truth = truth
        self.test = eval(f"lambda x: bool({text})", {"inf": math.inf, "nan": math.nan})

    def __call__(self, x: Any) -> bool:
        return self.test(x) is self.truth

    def __str__(self) -> str:
        return f"{self.text} is {self.truth}"


def _text(x: t.Tracker, sources: set[Source]) -> str | None:
    """Return the text of the number `x` as an expression; add its sources to `sources`."""
    if type(x) is not t.SymbolicNumber:
        value = getattr(x, "value", None)
        return f"({value!r})" if type(value) in (int, float, bool) else None
    if x.source is not None:
        sources.add(x.source)
        return "x"
    parts = [_text(part, sources) for part in x.parts]
    return None if x.fn is None or x.write is None or None in parts else x.write(*parts)


def _relation(x: t.SymbolicNumber, symbols: dict[str, tuple[Source, str, None]]) -> Rel:
    compare = COMPARISONS.get(x.fn)
    found = [_expression(part, symbols) for part in x.parts] if compare else [_expression(x, symbols), (Int(0), 1)]
    if sum(size for _, size in found) >= MOST:
        raise _Unfit
    return (compare or ne)(*[expression for expression, _ in found])


def _expression(x: t.Tracker, symbols: dict[str, tuple[Source, str, None]]) -> tuple[Expr, int]:
    """Return an expression, and a bound on all numbers in its computation."""
    value = x.example if type(x) is t.SymbolicNumber else getattr(x, "value", None)
    if type(value) is not int:
        raise _Unfit
    if type(x) is not t.SymbolicNumber:
        return Int(value), max(abs(value), 1)
    if x.source is not None:
        name = next((name for name, place in symbols.items() if place[0] == x.source), f"n{len(symbols)}")
        symbols[name] = x.source, "value", None
        return Symbol(name, None, None), max(abs(value), 1)
    fn = _ARITHMETIC.get(x.fn)
    if fn is None:
        raise _Unfit
    parts = [_expression(part, symbols) for part in x.parts]
    found, sizes = fn(*[expression for expression, _ in parts]), [size for _, size in parts]
    if not isinstance(found, Expr):
        raise _Unfit
    return found, sum(sizes) if fn in _SUMS else math.prod(sizes)
