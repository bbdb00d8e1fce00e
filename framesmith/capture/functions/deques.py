"""collections.deque: its constructor and methods."""

from __future__ import annotations

import collections
import operator
from typing import Any

from .. import trackers as t
from ..registry import calls, method
from .containers import present

Args = list[t.Tracker]
Kwargs = dict[str, t.Tracker]


@calls(collections.deque)
def _deque(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    given = dict(zip(("iterable", "maxlen"), args), **kwargs)
    most = given["maxlen"].real(cx) if "maxlen" in given else None
    cx.folded(collections.deque, ((), most))
    made = t.Deque(list(cx.each(given["iterable"])) if "iterable" in given else [], most)
    made.bound(True)
    return made


@method(t.Deque, "append")
def _append(cx: Any, self: t.Deque, item: t.Tracker) -> t.Tracker:
    self.touch(cx).append(item)
    self.bound(True)
    return t.NONE


@method(t.Deque, "appendleft")
def _appendleft(cx: Any, self: t.Deque, item: t.Tracker) -> t.Tracker:
    self.touch(cx).insert(0, item)
    self.bound(False)
    return t.NONE


@method(t.Deque, "extend")
def _extend(cx: Any, self: t.Deque, other: t.Tracker) -> t.Tracker:
    for v in other.items_list(cx) if other is self else cx.each(other):
        _append(cx, self, v)
    return t.NONE


@method(t.Deque, "extendleft")
def _extendleft(cx: Any, self: t.Deque, other: t.Tracker) -> t.Tracker:
    for v in other.items_list(cx) if other is self else cx.each(other):
        _appendleft(cx, self, v)
    return t.NONE


@method(t.Deque, "__iadd__")
def _iadd(cx: Any, self: t.Deque, other: t.Tracker) -> t.Tracker:
    _extend(cx, self, other)
    return self


@method(t.Deque, "__imul__")
def _imul(cx: Any, self: t.Deque, n: t.Tracker) -> t.Tracker:
    items = self.touch(cx)
    items[:] = items * cx.index(n)
    self.bound(True)
    return self


def _taker(name: str, at: int) -> None:
    @method(t.Deque, name)
    def row(cx: Any, self: t.Deque) -> t.Tracker:
        if not self.open(cx):
            cx.raise_(IndexError("pop from an empty deque"))
        return self.touch(cx).pop(at)


_taker("pop", -1)
_taker("popleft", 0)


@method(t.Deque, "insert")
def _insert(cx: Any, self: t.Deque, at: t.Tracker, item: t.Tracker) -> t.Tracker:
    if len(self.open(cx)) == self.maxlen:
        cx.raise_(IndexError("deque already at its maximum size"))
    self.touch(cx).insert(cx.index(at), item)
    return t.NONE


@method(t.Deque, "remove")
def _remove(cx: Any, self: t.Deque, item: t.Tracker) -> t.Tracker:
    for i, v in present(cx, self, "remove"):
        if cx.equal(v, item):
            del self.touch(cx)[i]
            return t.NONE
    return cx.raise_(ValueError(f"{cx.text(item, '__repr__').real(cx)} is not in deque"))


@method(t.Deque, "rotate")
def _rotate(cx: Any, self: t.Deque, n: t.Tracker = t.Const(1)) -> t.Tracker:  # noqa: B008
    items = self.touch(cx)
    if n.constant:
        cx.folded(operator.index, (n.real(cx),))
    if items:
        k = cx.index(n) % len(items)
        items[:] = items[len(items) - k:] + items[:len(items) - k]
    return t.NONE


@method(t.Deque, "clear")
def _clear(cx: Any, self: t.Deque) -> t.Tracker:
    self.touch(cx).clear()
    return t.NONE


@method(t.Deque, "reverse")
def _reverse(cx: Any, self: t.Deque) -> t.Tracker:
    self.touch(cx, False).reverse()
    return t.NONE


@method(t.Deque, "copy", "__copy__")
def _copy(cx: Any, self: t.Deque) -> t.Tracker:
    return self.make(list(self.open(cx)))


@method(t.Deque, "__reversed__")
def _reversed(cx: Any, self: t.Deque) -> t.Tracker:
    return self.walk(cx, True)
