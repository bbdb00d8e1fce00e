"""The atoms over subexpressions: products, divisions, minima and maxima, interned like every node."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from framesmith.symbolic import ranges
from framesmith.symbolic.nodes import RULES, Expr, Sum
from framesmith.util.serialize import serializable


class Compound(Expr):
    """Atoms over a tuple of subexpressions."""

    __slots__ = ("_args",)
    _args: tuple[Expr, ...]
    op: ClassVar[str]

    @property
    def args(self) -> tuple[Expr, ...]:
        return self._args

    def __reduce__(self) -> Any:
        return _compound_of, (self.op, self._args)


class Product(Compound):
    """A product of two or more atoms, ordered by uid, repeated for a power."""

    __slots__ = ()
    op = "mul"

    def evaluate(self, env: Mapping[Any, int]) -> int:
        value = 1
        for a in self._args:
            value *= a.evaluate(env)
        return value

    def rebuild(self, args: tuple[Expr, ...]) -> Expr:
        value = args[0]
        for a in args[1:]:
            value = value * a
        return value

    def _print(self) -> str:
        return "*".join(sorted(a.text for a in self._args))


class _Division(Compound):
    """Of `num` by `den`."""

    __slots__ = ()
    apply: ClassVar[Any]

    @property
    def num(self) -> Expr:
        return self._args[0]

    @property
    def den(self) -> Expr:
        return self._args[1]

    def evaluate(self, env: Mapping[Any, int]) -> int:
        return self.apply(self._args[0].evaluate(env), self._args[1].evaluate(env))  # type: ignore[no-any-return]

    def rebuild(self, args: tuple[Expr, ...]) -> Expr:
        return self.apply(*args)  # type: ignore[no-any-return]


class FloorDiv(_Division):
    """`num // den`, rounded towards minus infinity."""

    __slots__ = ()
    op, apply = "floordiv", operator.floordiv

    def _print(self) -> str:
        return f"({self.num.text} // {_factor(self.den)})"


class Mod(_Division):
    """`num % den`, with the sign of `den`."""

    __slots__ = ()
    op, apply = "mod", operator.mod

    def _print(self) -> str:
        return f"({_factor(self.num)} % {_factor(self.den)})"


class _Extremum(Compound):
    """Of two or more expressions."""

    __slots__ = ()
    choose: ClassVar[Any]

    def evaluate(self, env: Mapping[Any, int]) -> int:
        return self.choose([a.evaluate(env) for a in self._args])

    def rebuild(self, args: tuple[Expr, ...]) -> Expr:
        return RULES[self.op](*args)

    def _print(self) -> str:
        return f"{self.op}({', '.join(sorted(a.text for a in self._args))})"


class Min(_Extremum):
    """The least of two or more expressions."""

    __slots__ = ()
    op, choose = "min", min


class Max(_Extremum):
    """The greatest of two or more expressions."""

    __slots__ = ()
    op, choose = "max", max


def _factor(e: Expr) -> str:
    """Text of `e` that binds as tightly as a factor."""
    return f"({e.text})" if isinstance(e, Product) or (isinstance(e, Sum) and e.text[0] != "(") else e.text


_TABLE: dict[tuple[Any, ...], Compound] = {}
C = TypeVar("C", bound=Compound)


def make(cls: type[C], args: tuple[Expr, ...]) -> C:
    """Return the interned compound node, as it is: no rule is applied."""
    key = (cls, *args)
    node = _TABLE.get(key)
    if node is None:
        node = object.__new__(cls)
        node._args = args
        node._init(*ranges.RULES[cls.op](args))
        _TABLE[key] = node
    return node  # type: ignore[return-value]


_BY_OP: dict[str, type[Compound]] = {cls.op: cls for cls in (Product, FloorDiv, Mod, Min, Max)}


@serializable
def _compound_of(op: str, args: tuple[Expr, ...]) -> Expr:
    return make(_BY_OP[op], args if op in ("floordiv", "mod") else tuple(sorted(args, key=lambda a: a.uid)))
