"""Arithmetic on numbers that vary from call to call: what cannot fail becomes an expression of residual code."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from . import trackers as t

_SYMBOLS = {operator.add: "+", operator.sub: "-", operator.mul: "*", operator.iadd: "+", operator.isub: "-", operator.imul: "*",
            operator.lt: "<", operator.le: "<=", operator.eq: "==", operator.ne: "!=", operator.gt: ">", operator.ge: ">="}
_DIVISIONS = {operator.truediv: "/", operator.floordiv: "//", operator.mod: "%", operator.itruediv: "/", operator.ifloordiv: "//",
              operator.imod: "%"}
_UNARY = {operator.neg: "-", operator.pos: "+"}
_NUMBERS = (int, float, bool)


def is_late(*values: t.Tracker) -> bool:
    """Whether one of some constants is still to be computed."""
    return any(type(v) is t.Late and not v.settled for v in values)


def computed(cx: Any, fn: Callable[..., Any], args: tuple[t.Tracker, ...]) -> t.Tracker | None:
    """`fn(*args)` as an expression; None if it may fail, or is none of numbers: then the values are to be settled."""
    if not all(type(_known(a)) in _NUMBERS for a in args):
        return None
    if len(args) == 1:
        symbol = _UNARY.get(fn)
        return None if symbol is None else t.late(cx, fn(_known(args[0])), args, lambda a: f"({symbol}{a})")
    symbol = _SYMBOLS.get(fn)
    if symbol is None and type(args[1]) is t.Const and args[1].value != 0:
        symbol = _DIVISIONS.get(fn)
    return None if symbol is None else t.late(cx, fn(*map(_known, args)), args, lambda a, b: f"({a} {symbol} {b})")


def written(cx: Any, v: t.Tracker, spec: str) -> t.Tracker | None:
    """`format(v, spec)` of a number; None if it may fail for another value of the type."""
    if type(v) is not t.Late or type(v.example) not in _NUMBERS or "c" in spec:
        return None
    return t.late(cx, format(v.example, spec), (v,), lambda a: f"{a}.__format__({spec!r})")


def joined(cx: Any, parts: list[t.Tracker]) -> t.Tracker:
    """The parts of an f-string."""
    return t.late(cx, "".join([_known(p) for p in parts]), tuple(parts), lambda *texts: f"''.join([{', '.join(texts)}])")


def _known(v: t.Tracker) -> Any:
    return v.example if type(v) is t.Late else v.value  # type: ignore[attr-defined]
