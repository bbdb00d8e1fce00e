"""collections.deque: its constructor and methods."""

from __future__ import annotations

import collections
import operator
from typing import Any

from .. import trackers as t
from ..registry import calls, method
from ..trackers import Args, Kwargs
from .containers import present


@calls(collections.deque)
def _deque(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    given = dict(zip(("iterable", "maxlen"), args), **kwargs)
    most = given["maxlen"].real(tracer) if "maxlen" in given else None
    tracer.folded(collections.deque, ((), most))
    made = t.Deque(list(tracer.each(given["iterable"])) if "iterable" in given else [], most)
    made.bound(True)
    return made


@method(t.Deque, "append")
def _append(tracer: Any, self: t.Deque, item: t.Tracker) -> t.Tracker:
    self.touch(tracer).append(item)
    self.bound(True)
    return t.NONE


@method(t.Deque, "appendleft")
def _appendleft(tracer: Any, self: t.Deque, item: t.Tracker) -> t.Tracker:
    self.touch(tracer).insert(0, item)
    self.bound(False)
    return t.NONE


@method(t.Deque, "extend")
def _extend(tracer: Any, self: t.Deque, other: t.Tracker) -> t.Tracker:
    for v in other.items_list(tracer) if other is self else tracer.each(other):
        _append(tracer, self, v)
    return t.NONE


@method(t.Deque, "extendleft")
def _extendleft(tracer: Any, self: t.Deque, other: t.Tracker) -> t.Tracker:
    for v in other.items_list(tracer) if other is self else tracer.each(other):
        _appendleft(tracer, self, v)
    return t.NONE


@method(t.Deque, "__iadd__")
def _iadd(tracer: Any, self: t.Deque, other: t.Tracker) -> t.Tracker:
    _extend(tracer, self, other)
    return self


@method(t.Deque, "__imul__")
def _imul(tracer: Any, self: t.Deque, n: t.Tracker) -> t.Tracker:
    items = self.touch(tracer)
    items[:] = items * tracer.index(n)
    self.bound(True)
    return self


def _taker(name: str, at: int) -> None:
    @method(t.Deque, name)
    def row(tracer: Any, self: t.Deque) -> t.Tracker:
        if not self.open(tracer):
            tracer.raise_(IndexError("pop from an empty deque"))
        return self.touch(tracer).pop(at)


_taker("pop", -1)
_taker("popleft", 0)


@method(t.Deque, "insert")
def _insert(tracer: Any, self: t.Deque, at: t.Tracker, item: t.Tracker) -> t.Tracker:
    if len(self.open(tracer)) == self.maxlen:
        tracer.raise_(IndexError("deque already at its maximum size"))
    self.touch(tracer).insert(tracer.index(at), item)
    return t.NONE


@method(t.Deque, "remove")
def _remove(tracer: Any, self: t.Deque, item: t.Tracker) -> t.Tracker:
    for i, v in present(tracer, self, "remove"):
        if tracer.equal(v, item):
            del self.touch(tracer)[i]
            return t.NONE
    return tracer.raise_(ValueError(f"{tracer.text(item, '__repr__').real(tracer)} is not in deque"))


@method(t.Deque, "rotate")
def _rotate(tracer: Any, self: t.Deque, n: t.Tracker = t.Const(1)) -> t.Tracker:  # noqa: B008
    items = self.touch(tracer)
    if n.constant:
        tracer.folded(operator.index, (n.real(tracer),))
    if items:
        k = tracer.index(n) % len(items)
        items[:] = items[len(items) - k:] + items[:len(items) - k]
    return t.NONE


@method(t.Deque, "reverse")
def _reverse(tracer: Any, self: t.Deque) -> t.Tracker:
    self.touch(tracer, False).reverse()
    return t.NONE


@method(t.Deque, "copy", "__copy__")
def _copy(tracer: Any, self: t.Deque) -> t.Tracker:
    return self.make(list(self.open(tracer)))


@method(t.Deque, "__reversed__")
def _reversed(tracer: Any, self: t.Deque) -> t.Tracker:
    return self.walk(tracer, True)
