"""Iterators over dicts, sets and deques: they read each element when they reach it, and raise once the container has
changed."""

from __future__ import annotations

import collections
import copy
import itertools
import types
from collections.abc import Callable
from typing import Any

from framesmith.util.errors import Unsupported

from .base import Tracker
from .iterators import Iter


class Walk(Iter):
    """An iterator over a constant, made by `make` (iter or reversed); values are taken from `real_iter` one by one,
    since a range may be long. Invariant: it has no value before `index` left, or it is made anew."""

    __slots__ = ("make", "of", "real_iter")

    def __init__(self, real_iter: Any, of: Tracker, make: Any) -> None:
        super().__init__([])
        self.of = of
        self.make = make
        self.real_iter: tuple[int, Any] = 0, real_iter
        """The number of values that were taken of it, and the iterator."""

    def _left(self) -> Any:
        """Return the real iterator at `index`, which goes back where another path of a branch is followed."""
        taken, found = self.real_iter
        if taken != self.index:
            found = self.make(self.of.value)  # type: ignore[attr-defined]
            next(itertools.islice(found, self.index, self.index), None)
        return found

    def next(self, tracer: Any) -> Tracker | None:
        left = self._left()
        for value in left:
            self.index += 1
            self.real_iter = self.index, left
            return tracer.made(value)
        return None

    def rest(self, tracer: Any) -> list[Tracker]:
        return [tracer.made(v) for v in copy.copy(self._left())]

    def rest_of_range(self) -> range | None:
        """Return the remaining values of a range, without listing them; None for other constants."""
        value = self.of.value  # type: ignore[attr-defined]
        if type(value) is not range:
            return None
        return (value if self.make is iter else value[::-1])[self.index:]

    def pytype(self) -> type:
        return type(self.make(self.of.value))  # type: ignore[attr-defined]


_ORDERED = collections.OrderedDict
_VIEWS: dict[tuple[type, str], Callable[[Any], Any]] = {
    (kind, name): getattr(kind, name) for kind in (dict, _ORDERED, types.MappingProxyType)
    for name in ("keys", "values", "items")
}
_WORDS: dict[type, str] = {
    dict: "dictionary changed size during iteration", _ORDERED: "OrderedDict mutated during iteration",
    collections.deque: "deque mutated during iteration", set: "Set changed size during iteration",
    frozenset: "Set changed size during iteration",
}


class Way:
    """The way to iterate over a container of the builtin class `kind`: the functions that make the real iterator of it,
    first to last."""

    __slots__ = ("kind", "outer", "steps")

    def __init__(self, kind: Any, view: str = "", reverse: bool = False, viewed: Any = None) -> None:
        self.kind = kind
        self.outer = None if viewed in (None, kind) else viewed
        """The class of the wrapper around the container (a mapping proxy), whose methods give the views; None without
        one."""
        if view:
            self.steps: tuple[Any, ...] = (_VIEWS[viewed or kind, view], reversed if reverse else iter)
        else:
            self.steps = (kind.__reversed__ if reverse else kind.__iter__,)

    def __call__(self, real: Any) -> Any:
        for step in self.steps:
            real = step(real)
        return real

    def gives(self) -> type:
        """Return the class of the real iterator."""
        empty = self.kind()
        return type(self(empty if self.outer is None else self.outer(empty)))


class CheckedIter(Iter):
    """An iterator over the keys that the container `over` had; `read` returns the present value for a key, or None when
    it is gone.

    `now` returns an object whose length changes with the container's. `owner`: the object made in the frame whose part
    `over` is.
    """

    __slots__ = ("length", "now", "over", "owner", "read", "way")

    def __init__(self, over: Tracker, way: Way, keys: list[Any], now: Callable[[], Any],
                 read: Callable[[Any], Tracker | None]) -> None:
        super().__init__(keys)
        self.over = over
        self.owner: Tracker | None = None
        self.way = way
        self.now = now
        self.read = read
        self.length = len(now())

    def pytype(self) -> type:
        return self.way.gives()

    @property
    def changed(self) -> bool:
        """True if the next step raises."""
        return len(self.now()) != self.length

    def next(self, tracer: Any) -> Tracker | None:
        if self.index < 0:
            return None
        if self.changed:
            self.length = -1
            tracer.raise_(RuntimeError(_WORDS[self.way.kind]))
        if self.index >= len(self.values):
            self.index = -1
            return None
        self.index += 1
        return self.at(self.values[self.index - 1])

    def at(self, key: Any) -> Tracker:
        found = self.read(key)
        if found is None:
            raise Unsupported(f"a {self.way.kind.__name__} whose keys change while it is iterated over")
        return found

    def rest(self, tracer: Any) -> list[Tracker]:
        return [] if self.index < 0 or self.changed else [self.at(k) for k in self.values[self.index:]]
