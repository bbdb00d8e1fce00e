"""Caches of what is computed once for a code object, for as long as the code object is alive."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

T = TypeVar("T")


def forgetter(table: dict[Any, Any], key: Any) -> Any:
    """Return the callback that removes an entry when the code behind it is gone. (At the interpreter's end the module's
    names are gone too.)"""
    return lambda _: table.pop(key, None)


def kept_with_code(make: Callable[..., T]) -> Callable[..., T]:
    """Memoise a function of a code object (and further hashable arguments) for as long as the code object is alive."""
    table: dict[Any, tuple[weakref.ref[CodeType], T]] = {}

    def kept(code: CodeType, *rest: Any) -> T:
        key = (id(code), *rest)
        hit = table.get(key)
        if hit is None:
            hit = table[key] = (weakref.ref(code, forgetter(table, key)), make(code, *rest))
        return hit[1]

    return functools.update_wrapper(kept, make, updated=())
