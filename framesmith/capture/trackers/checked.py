"""Iterators over dicts, sets and deques: they read what is there when they come to it, and refuse to go on when the container changed."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from framesmith.util.errors import Unsupported

from .base import Tracker
from .iterators import Iter

_TYPES: dict[str, tuple[type, str]] = {
    "dict": (type(iter({})), "dictionary changed size during iteration"),
    "keys": (type(iter({})), "dictionary changed size during iteration"),
    "values": (type(iter({}.values())), "dictionary changed size during iteration"),
    "items": (type(iter({}.items())), "dictionary changed size during iteration"),
    "deque": (type(iter(collections.deque())), "deque mutated during iteration"),
    "set": (type(iter(set())), "Set changed size during iteration"),
}


class Fixed(Iter):
    """Over known values, as an iterator of class `cls`."""

    __slots__ = ("cls",)

    def __init__(self, values: list[Tracker], cls: type) -> None:
        super().__init__(values)
        self.cls = cls

    def pytype(self) -> type:
        return self.cls


class CheckedIter(Iter):
    """Over the keys that a dict or a set had; `read` gives the value that stands for one now, or None when it is gone."""

    __slots__ = ("kind", "length", "now", "read")

    def __init__(self, kind: str, keys: list[Any], now: Callable[[], Any], read: Callable[[Any], Tracker | None]) -> None:
        super().__init__(keys)
        self.kind = kind
        self.now = now
        self.read = read
        self.length = len(now())

    def pytype(self) -> type:
        return _TYPES[self.kind][0]

    def next(self, cx: Any) -> Tracker | None:
        if self.index < 0:
            return None
        if len(self.now()) != self.length:
            self.length = -1
            cx.raise_(RuntimeError(_TYPES[self.kind][1]))
        if self.index >= len(self.values):
            self.index = -1
            return None
        self.index += 1
        return self.at(self.values[self.index - 1])

    def at(self, key: Any) -> Tracker:
        found = self.read(key)
        if found is None:
            raise Unsupported(f"a {self.kind} whose keys change while it is iterated over")
        return found

    def rest(self, cx: Any) -> list[Tracker]:
        return [] if self.index < 0 else [self.at(k) for k in self.values[self.index:]]
