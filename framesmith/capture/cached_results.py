"""Results of functions wrapped by lru_cache, and the guard that the cache still holds them."""

from __future__ import annotations

import gc
import itertools
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_NUMBERS = (int, float, complex, str, bytes, bool)
_PLAIN = (*_NUMBERS, type(None), type, types.FunctionType, types.BuiltinFunctionType)


@dataclass(frozen=True, slots=True)
class SameResult:
    """The cache of a function holds `result` for these arguments: the same object, or an equal number or text. Where it
    holds none, a guard may not call the function, whose code would run too early. `seen`: CPython shows what it holds.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any
    seen: bool

    @classmethod
    def of(cls, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> SameResult:
        """Return the condition for a result that `fn` has just given."""
        return cls(args, kwargs, result, keeps(fn, args, kwargs))

    def __call__(self, fn: Callable[..., Any]) -> bool:
        if self.seen and not keeps(fn, self.args, self.kwargs):
            return False
        now = fn(*self.args, **self.kwargs)
        return now is self.result or (type(now) is type(self.result) and isinstance(now, _NUMBERS)
                                      and repr(now) == repr(self.result))


def is_plain(result: Any) -> bool:
    """Return whether another process can have the same result."""
    return isinstance(result, _PLAIN)


def keeps(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether the cache holds a result for these arguments, so that a call runs no code of the program's; False
    where CPython hides it."""
    held = gc.get_referents(fn)
    # cache, fn, mark
    at = next((i for i in range(len(held) - 3, -1, -1) if type(held[i]) is dict and type(held[i + 2]) is object), None)
    if at is None or not hasattr(fn, "cache_parameters"):
        return False
    key: Any = [*args, *((held[at + 2], *itertools.chain(*kwargs.items())) if kwargs else ())]
    if fn.cache_parameters()["typed"]:
        key += map(type, (*args, *kwargs.values()))
    elif len(key) == 1 and type(key[0]) in (int, str):
        key = key[0]
    try:
        return (tuple(key) if type(key) is list else key) in held[at]
    except TypeError:
        return False


__all__ = ["SameResult", "is_plain", "keeps"]
