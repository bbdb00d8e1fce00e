"""set and frozenset: constructors and methods."""

from __future__ import annotations

from typing import Any

from .. import trackers as t
from ..registry import calls, method

Args = list[t.Tracker]
Kwargs = dict[str, t.Tracker]


def _entries(cx: Any, source: t.Tracker) -> dict[Any, t.Tracker]:
    if isinstance(source, t.Set):
        return source.open(cx)
    return {v.key(cx): v for v in source.items_list(cx)}


@calls(set)
def _set(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.Set(dict(_entries(cx, args[0])) if args else {})


@calls(frozenset)
def _frozenset(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.Set(dict(_entries(cx, args[0])) if args else {}, cls=frozenset)


@method(t.Set, "__init__", "update")
def _update(cx: Any, self: t.Set, *others: t.Tracker) -> t.Tracker:
    mine = self.touch(cx)
    for o in others:
        for k, v in _entries(cx, o).items():
            mine.setdefault(k, v)
    return t.NONE


@method(t.Set, "add")
def _add(cx: Any, self: t.Set, item: t.Tracker) -> t.Tracker:
    self.touch(cx).setdefault(item.key(cx), item)
    return t.NONE


@method(t.Set, "discard")
def _discard(cx: Any, self: t.Set, item: t.Tracker) -> t.Tracker:
    self.touch(cx).pop(item.key(cx), None)
    return t.NONE


@method(t.Set, "remove")
def _remove(cx: Any, self: t.Set, item: t.Tracker) -> t.Tracker:
    k = item.key(cx)
    if k not in self.open(cx):
        cx.raise_(KeyError(k))
    del self.touch(cx)[k]
    return t.NONE


@method(t.Set, "clear")
def _clear(cx: Any, self: t.Set) -> t.Tracker:
    self.touch(cx).clear()
    return t.NONE


@method(t.Set, "copy")
def _copy(cx: Any, self: t.Set) -> t.Tracker:
    return t.Set(dict(self.open(cx)), cls=self.cls)


@method(t.Set, "__contains__")
def _contains(cx: Any, self: t.Set, item: t.Tracker) -> t.Tracker:
    return t.boolean(item.key(cx) in self.open(cx))


@method(t.Set, "__len__")
def _len(cx: Any, self: t.Set) -> t.Tracker:
    return t.Const(self.size(cx))


@method(t.Set, "__iter__")
def _iter(cx: Any, self: t.Set) -> t.Tracker:
    return self.iterate(cx)


@method(t.Set, "union", "__or__", "__ror__")
def _union(cx: Any, self: t.Set, *others: t.Tracker) -> t.Tracker:
    out = dict(self.open(cx))
    for o in others:
        for k, v in _entries(cx, o).items():
            out.setdefault(k, v)
    return t.Set(out, cls=self.cls)


@method(t.Set, "intersection", "__and__", "__rand__")
def _intersection(cx: Any, self: t.Set, *others: t.Tracker) -> t.Tracker:
    out = dict(self.open(cx))
    for o in others:
        there = _entries(cx, o)
        out = {k: v for k, v in out.items() if k in there}
    return t.Set(out, cls=self.cls)


@method(t.Set, "difference", "__sub__")
def _difference(cx: Any, self: t.Set, *others: t.Tracker) -> t.Tracker:
    out = dict(self.open(cx))
    for o in others:
        for k in _entries(cx, o):
            out.pop(k, None)
    return t.Set(out, cls=self.cls)


@method(t.Set, "symmetric_difference", "__xor__")
def _symmetric(cx: Any, self: t.Set, other: t.Tracker) -> t.Tracker:
    a, b = self.open(cx), _entries(cx, other)
    return t.Set({**{k: v for k, v in a.items() if k not in b}, **{k: v for k, v in b.items() if k not in a}}, cls=self.cls)


@method(t.Set, "issubset", "__le__")
def _issubset(cx: Any, self: t.Set, other: t.Tracker) -> t.Tracker:
    there = _entries(cx, other)
    return t.boolean(all(k in there for k in self.open(cx)))


@method(t.Set, "issuperset", "__ge__")
def _issuperset(cx: Any, self: t.Set, other: t.Tracker) -> t.Tracker:
    mine = self.open(cx)
    return t.boolean(all(k in mine for k in _entries(cx, other)))


@method(t.Set, "isdisjoint")
def _isdisjoint(cx: Any, self: t.Set, other: t.Tracker) -> t.Tracker:
    mine = self.open(cx)
    return t.boolean(not any(k in mine for k in _entries(cx, other)))


@method(t.Set, "__eq__")
def _eq(cx: Any, self: t.Set, other: t.Tracker) -> t.Tracker | None:
    return t.boolean(self.open(cx).keys() == other.open(cx).keys()) if isinstance(other, t.Set) else None
