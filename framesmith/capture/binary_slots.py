"""Binary special methods, as the slots of builtin types implement them: they return a result or NotImplemented.

A family of trackers has rows for the operations that it supports. An operation without a row that is not the default of
`object` is refused, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from framesmith.util.errors import Unsupported

from . import trackers as t
from .operators import DUNDER
from .registry import OPAQUE
from .session import Session
from .sources import MISSING
from .values import BY_EQUALITY

NOT_IMPLEMENTED = object()


class Attempts(Session):
    """The part of the session that calls one operand's method."""

    def attempt(self, obj: t.Tracker, name: str, args: list[t.Tracker]) -> Any:
        """Return a special method's result, or NOT_IMPLEMENTED."""
        result = self._answer(obj, name, args)
        if result is None or type(result) is t.Const and result.value is NotImplemented:
            return NOT_IMPLEMENTED
        return result

    def _answer(self, obj: t.Tracker, name: str, args: list[t.Tracker]) -> Any:
        row = None if isinstance(obj, t.Object) else self.methods(type(obj), name)
        if row is not None:
            return row(self, obj, *args)
        raw = self.lookup(obj.pytype(), name)
        if isinstance(raw, FunctionType):
            return self.class_function(raw).call(self, [obj, *args], {})
        if raw is MISSING or raw is None:
            return None
        if raw is getattr(object, name, None):
            return self._unequal(obj, args) if name == "__ne__" else None
        if isinstance(obj, t.Object):
            opaque = OPAQUE.get((getattr(raw, "__objclass__", object), name))
            if opaque is not None:
                return opaque(self, obj, *args)
            if obj.payload is None:
                raise Unsupported(f"{name} of {obj.describe()}")
            return self._answer(obj.payload, name,
                                args if _is_format(obj.payload, name) else [a.plain() for a in args])
        for family, answer in _ANSWERS:
            if isinstance(obj, family):
                return answer(self, obj, raw, name, args)
        raise Unsupported(f"{name} of {obj.describe()}")

    def _unequal(self, obj: t.Tracker, args: list[t.Tracker]) -> Any:
        """`object.__ne__`: the negation of `__eq__`."""
        result = self.attempt(obj, "__eq__", args)
        return None if result is NOT_IMPLEMENTED else t.boolean(not result.truth(self))


def _is_format(obj: t.Tracker, name: str) -> bool:
    return name == "__mod__" and isinstance(obj, t.Const) and isinstance(obj.value, (str, bytes))


def _constant(tracer: Any, obj: Any, raw: Any, name: str, args: list[t.Tracker]) -> Any:
    """Apply a method of an immutable value. Numbers and text support no classes of the program's but their
    subclasses."""
    if _is_format(obj, name):
        return tracer.percent(obj, args[0])
    real = [a.plain() for a in args]
    if all(a.constant or isinstance(a, t.Static) for a in real):
        return tracer.made(tracer.folded(raw, (obj.value, *[a.value for a in real])))  # type: ignore[attr-defined]
    takes_an_index = name in ("__mul__", "__rmul__") and any(tracer.lookup(a.pytype(), "__index__") is not MISSING
                                                             for a in real)
    if (obj.value is None or type(obj.value) in BY_EQUALITY) and not takes_an_index:
        return None
    raise Unsupported(f"{name} of {obj.describe()}")


def _static(tracer: Any, obj: Any, raw: Any, name: str, args: list[t.Tracker]) -> Any:
    other = args[0] if args else None
    if other is None or isinstance(other, t.Static):
        return tracer.made(tracer.folded(raw, (obj.value, *[a.value for a in args])))  # type: ignore[attr-defined]
    return None


def _method(tracer: Any, obj: Any, raw: Any, name: str, args: list[t.Tracker]) -> Any:
    """Two methods are equal if their functions and their objects are the same."""
    other: Any = args[0]
    if name not in ("__eq__", "__ne__") or type(other) is not type(obj):
        return None
    same = obj.obj.identity() is other.obj.identity() and (
        obj.name == other.name if isinstance(obj, t.Bound) else tracer.equal(obj.func, other.func))
    return t.boolean(same is (name == "__eq__"))


_SYMBOLS = {name: symbol for symbol, name in DUNDER.items()}


def _slice(tracer: Any, obj: t.Slice, raw: Any, name: str, args: list[t.Tracker]) -> Any:
    """Slices compare as the tuples of their parts."""
    other = args[0]
    if not isinstance(other, t.Slice):
        return None
    if obj is other:
        return t.boolean(name in ("__eq__", "__le__", "__ge__"))
    return tracer.compare(_SYMBOLS[name], t.Tuple(list(obj.parts)), t.Tuple(list(other.parts)))


def _sequence(tracer: Any, obj: Any, raw: Any, name: str, args: list[t.Tracker]) -> Any:
    """`!=` for families that have a row for `==`."""
    if name != "__ne__":
        raise Unsupported(f"{name} of {obj.describe()}")
    result = tracer.attempt(obj, "__eq__", args)
    if type(result) is t.Sym:  # of sizes that no guard decides
        return tracer.made(torch.sym_not(result.value))
    return None if result is NOT_IMPLEMENTED else t.boolean(not result.truth(tracer))


_ANSWERS: list[tuple[Any, Callable[..., Any]]] = [
    (t.Const, _constant), (t.Static, _static), ((t.Method, t.Bound), _method), (t.Slice, _slice),
    ((t.Sequence, t.Dict, t.DictView, t.Set), _sequence),
]
