"""Programs of the language: a captured function, without a break, gives and changes what the plain one gives and
changes."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from framesmith.config import Config
from tests.capture.driver import Compiled

X = torch.linspace(-1, 1, 12).reshape(3, 4)
_PLAIN = (int, float, complex, str, bytes, bool, type(None), type(...), type(NotImplemented), range, slice)


def check(fn: Callable[..., Any], make: Callable[[], Any] | None = None, x: torch.Tensor = X) -> None:
    """Run `fn` plainly and captured, with sizes as numbers and as symbols, each on its own state; results and states
    must be equal."""
    for symbols in (False, True):
        mine, theirs = (x,), (x,)
        if make is not None:
            mine, theirs = (x, make()), (x, make())  # type: ignore[assignment]
        want = fn(*mine)
        got = Compiled(fn, Config(fullgraph=True), symbols)(*theirs)
        assert alike(got, want, {}), difference(got, want)
        assert alike(theirs, mine, {}), "left behind: " + difference(theirs, mine)


def difference(a: Any, b: Any) -> str:
    """The innermost parts that differ."""
    if isinstance(a, (list, tuple)) and type(a) is type(b) and len(a) == len(b):
        return "; ".join(f"[{i}] {difference(x, y)}" for i,
                         (x, y) in enumerate(zip(a, b)) if not alike(x, y, {})) or "sharing"
    return f"{a!r} is not {b!r}"


def alike(a: Any, b: Any, memo: dict[int, Any]) -> bool:
    """Equal in structure: types by name, instances by their state, sharing and cycles included."""
    if isinstance(a, type):
        return isinstance(b, type) and (a is b or a.__qualname__ == b.__qualname__)
    if type(a) is not type(b) and type(a).__qualname__ != type(b).__qualname__:
        return False
    if isinstance(a, _PLAIN):
        return a == b or a != a and b != b
    if not isinstance(a, tuple):
        if id(a) in memo:
            return memo[id(a)][1] is b
        memo[id(a)] = (a, b)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a, b, atol=1e-6, equal_nan=True)
    return all(row(a, b, memo) for kind, row in _PARTS if isinstance(a, kind))


def _sequence(a: Any, b: Any, memo: dict[int, Any]) -> bool:
    return len(a) == len(b) and all(alike(x, y, memo) for x,
                                    y in zip(list.__iter__(a) if isinstance(a, list) else tuple.__iter__(a), b))


def _mapping(a: Any, b: Any, memo: dict[int, Any]) -> bool:
    return alike(list(dict.keys(a)), list(dict.keys(b)), memo) and alike(list(dict.values(a)), list(dict.values(b)),
                                                                         memo)


def _error(a: Any, b: Any, memo: dict[int, Any]) -> bool:
    parts = ("args", "__cause__", "__context__", "__suppress_context__")
    return str(a) == str(b) and all(alike(getattr(a, p), getattr(b, p), memo) for p in parts)


def _function(a: Any, b: Any, memo: dict[int, Any]) -> bool:
    return a is b or a.__qualname__ == b.__qualname__ and alike(a.__dict__, b.__dict__, memo)


def _state(a: Any, b: Any, memo: dict[int, Any]) -> bool:
    slots = [n for c in type(a).__mro__ for n in _slots(c)]
    return all(alike(getattr(a, n, None), getattr(b, n, None), memo) for n in slots) and \
        alike(getattr(a, "__dict__", None), getattr(b, "__dict__", None), memo)


def _slots(cls: type) -> tuple[str, ...]:
    raw = cls.__dict__.get("__slots__", ())
    return (raw,) if isinstance(raw, str) else tuple(n for n in raw if n not in ("__dict__", "__weakref__"))


_PARTS: list[tuple[Any, Any]] = [
    ((list, tuple), _sequence), (dict, _mapping), ((set, frozenset), lambda a, b, memo: a == b),
    (BaseException, _error),
    (types.FunctionType, _function), (types.MethodType, lambda a, b, memo: alike(a.__func__, b.__func__, memo)),
    (object, _state),
]
