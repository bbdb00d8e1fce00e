"""collections.deque."""

from __future__ import annotations

import collections
from typing import Any

from ..contents import elements_of
from ..sources import Item, Source
from .base import Tracker
from .checked import CheckedIter, Way
from .sequences import Sequence


class Deque(Sequence):
    """A deque; `maxlen` bounds it.  One from outside is read whole."""

    __slots__ = ("maxlen", "version")
    cls = kind = collections.deque

    def __init__(self, items: list[Tracker] | None, maxlen: int | None, *, value: Any = None,
                 source: Source | None = None) -> None:
        super().__init__(items, value=value, source=source)
        self.maxlen = maxlen
        self.version = 0
        """How often elements came, went or moved."""

    def open(self, tracer: Any) -> list[Tracker]:
        if self._items is None:
            tracer.reads_whole(self.value)
            tracer.guard(self.source, "len", len(self.value))
            src = None if self.source is None else elements_of(self.source)
            self._items = [tracer.wrap(v, None if src is None else Item(src, i)) for i, v in enumerate(self.value)]
        return self._items

    def peek(self, tracer: Any, index: int) -> Tracker | None:
        items = self.open(tracer)
        return items[index] if index < len(items) else None

    def touch(self, tracer: Any, moved: bool = True) -> list[Tracker]:
        """The elements, about to be changed; `moved`: so that iterators refuse to go on."""
        items = self.open(tracer)
        self.version += moved
        tracer.mutates(self)
        return items

    def bound(self, left: bool) -> None:
        """Drop from the one end what `maxlen` does not allow."""
        items = self.items
        while self.maxlen is not None and len(items) > self.maxlen:
            items.pop(0 if left else -1)

    def real(self, tracer: Any) -> Any:
        return collections.deque([x.real(tracer) for x in self.open(tracer)], self.maxlen)

    def make(self, items: list[Tracker]) -> Tracker:
        made = Deque(items, self.maxlen)
        made.bound(True)
        return made

    def item(self, tracer: Any, key: Tracker) -> Tracker:
        return self.open(tracer)[self.place(tracer, key)]

    def place(self, tracer: Any, key: Tracker) -> int:
        """A subscript."""
        index = tracer.index(key)
        if isinstance(index, slice):
            tracer.raise_(TypeError("sequence index must be integer, not 'slice'"))
        size = len(self.open(tracer))
        if not -size <= index < size:
            tracer.raise_(IndexError("deque index out of range"))
        return index

    def set_item(self, tracer: Any, key: Tracker, value: Tracker) -> None:
        at = self.place(tracer, key)
        self.touch(tracer, False)[at] = value

    def del_item(self, tracer: Any, key: Tracker) -> None:
        at = self.place(tracer, key)
        del self.touch(tracer)[at]

    def iterate(self, tracer: Any) -> Tracker:
        return self.walk(tracer, False)

    def walk(self, tracer: Any, reverse: bool) -> Tracker:
        """iter() or reversed() of it."""
        places = range(len(self.open(tracer)))
        way = Way(collections.deque, reverse=reverse)
        return CheckedIter(self, way, list(reversed(places) if reverse else places), lambda: range(self.version),
                           lambda i: self.items[i])

    def get(self, tracer: Any, name: str) -> Tracker:
        return tracer.made(self.maxlen) if name == "maxlen" else self.builtin_attribute(tracer, name)

    def set(self, tracer: Any, name: str, value: Tracker) -> None:
        if name == "maxlen":
            tracer.raise_(AttributeError("attribute 'maxlen' of 'collections.deque' objects is not writable"))
        tracer.raise_(AttributeError(f"'collections.deque' object has no attribute '{name}'"))
