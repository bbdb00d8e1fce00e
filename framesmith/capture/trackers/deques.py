"""collections.deque: a real one of trackers, on which CPython's own methods run."""

from __future__ import annotations

import collections
import operator
from collections.abc import Iterable
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

    def __init__(self, items: Iterable[Tracker] | None, maxlen: int | None, *, value: Any = None,
                 source: Source | None = None) -> None:
        super().__init__(None if items is None else collections.deque(items, maxlen), value=value, source=source)
        self.maxlen = maxlen
        self.version = 0
        """The number of times that elements were added, removed or moved."""

    def open(self, tracer: Any) -> Any:
        if self._items is None:
            tracer.reads_whole(self.value)
            tracer.guard(self.source, "len", len(self.value))
            src = None if self.source is None else elements_of(self.source)
            self._items = collections.deque([tracer.wrap(v, None if src is None else Item(src, i))
                                             for i, v in enumerate(self.value)], self.maxlen)
        return self._items

    def peek(self, tracer: Any, index: int) -> Tracker | None:
        items = self.open(tracer)
        return items[index] if index < len(items) else None

    def touch(self, tracer: Any) -> Any:
        """Return the elements, about to be changed."""
        items = self.open(tracer)
        tracer.mutates(self)
        return items

    def changed(self, method: str) -> None:
        """Note a mutation by a method; most invalidate iterators."""
        self.version += method != "reverse"

    def real(self, tracer: Any) -> Any:
        return collections.deque([x.real(tracer) for x in self.open(tracer)], self.maxlen)

    def make(self, items: Iterable[Tracker]) -> Tracker:
        return Deque(items, self.maxlen)

    def item(self, tracer: Any, key: Tracker) -> Tracker:
        return tracer.folded(operator.getitem, (self.open(tracer), tracer.index(key)))

    def set_item(self, tracer: Any, key: Tracker, value: Tracker) -> None:
        tracer.folded(operator.setitem, (self.touch(tracer), tracer.index(key), value))

    def del_item(self, tracer: Any, key: Tracker) -> None:
        tracer.folded(operator.delitem, (self.touch(tracer), tracer.index(key)))
        self.version += 1

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
