"""set and frozenset: constructors and methods, run by CPython's own on the keys."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from .. import trackers as t
from ..registry import calls, method

Args = list[t.Tracker]
Kwargs = dict[str, t.Tracker]


def keys_of(cx: Any, source: t.Tracker) -> Any:
    """What a method of a real set takes in place of `source`: a set, a dict, or a list of keys."""
    if isinstance(source, t.Object) and isinstance(source.payload, t.Set):
        source = source.payload
    if isinstance(source, t.Set):
        return source.open(cx)
    if isinstance(source, t.Dict):
        return dict.fromkeys(map(cx.as_element, source.open(cx)))
    return [v.element(cx) for v in cx.each(source)]


@calls(set)
def _set(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return loosened(t.Set(set(keys_of(cx, args[0])) if args else set()), args)


@calls(frozenset)
def _frozenset(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if args and isinstance(args[0], t.Set) and args[0].cls is frozenset:
        return args[0]
    return loosened(t.Set(frozenset(keys_of(cx, args[0])) if args else frozenset(), cls=frozenset), args)


def loosened(made: Any, sources: Iterable[t.Tracker]) -> Any:
    """A set made of others: with one from outside, its order is not known."""
    if isinstance(made, t.Set):
        made.loose = any(isinstance(x, t.Set) and (x.loose or x.value is not None) for x in sources)
    return made


@method(t.Set, "__init__")
def _init(cx: Any, self: t.Set, *args: t.Tracker) -> t.Tracker:
    if self.base is set:
        self.change(cx, "__init__", *[keys_of(cx, a) for a in args])
    return t.NONE


def _result(cx: Any, value: Any) -> t.Tracker | None:
    """What a real set's method gave."""
    if value is NotImplemented:
        return None
    return t.Set(value, cls=type(value)) if isinstance(value, (set, frozenset)) else cx.unkey(value)


def _combining(name: str) -> None:
    @method(t.Set, name)
    def row(cx: Any, self: t.Set, *others: t.Tracker) -> t.Tracker | None:
        return loosened(_result(cx, cx.folded(getattr(self.open(cx), name), tuple([keys_of(cx, o) for o in others]))), (self, *others))


@method(t.Set, "isdisjoint")
def _isdisjoint(cx: Any, self: t.Set, other: t.Tracker) -> t.Tracker:
    """Of all methods only this one walks over an instance of a subclass of set."""
    keys = [v.element(cx) for v in cx.each(other)] if isinstance(other, t.Object) else keys_of(cx, other)
    return t.boolean(self.open(cx).isdisjoint(keys))


def _operating(name: str) -> None:
    """Operators take sets only."""

    @method(t.Set, name)
    def row(cx: Any, self: t.Set, other: t.Tracker) -> t.Tracker | None:
        if isinstance(other, t.Object) and other.payload is not None:
            other = other.payload
        if not isinstance(other, t.Set):
            return None
        return loosened(_result(cx, getattr(self.open(cx), name)(other.open(cx))), (self, other))


for _name in ("union", "intersection", "difference", "symmetric_difference", "issubset", "issuperset", "copy"):
    _combining(_name)
for _name in ("and", "or", "xor", "sub"):
    _operating(f"__{_name}__")
    _operating(f"__r{_name}__")
for _name in ("__le__", "__lt__", "__ge__", "__gt__", "__eq__", "__ne__"):
    _operating(_name)


def _changing(name: str, plain: bool) -> None:
    """Methods that change the set: `plain` ones take an element, others iterables."""

    @method(t.Set, name)
    def row(cx: Any, self: t.Set, *args: t.Tracker) -> t.Tracker:
        self.change(cx, name, *[a.element(cx) if plain else keys_of(cx, a) for a in args])
        self.loose |= any(isinstance(a, t.Set) and (a.loose or a.value is not None) for a in args)
        return t.NONE


for _name in ("add", "discard", "remove", "clear"):
    _changing(_name, True)
for _name in ("update", "intersection_update", "difference_update", "symmetric_difference_update"):
    _changing(_name, False)


def _in_place(name: str) -> None:
    @method(t.Set, f"__{name}__")
    def row(cx: Any, self: t.Set, other: t.Tracker) -> t.Tracker | None:
        other = other.payload if isinstance(other, t.Object) and other.payload is not None else other
        if self.base is frozenset or not isinstance(other, (t.Set, t.DictView)):
            return None
        self.change(cx, _UPDATES[name], keys_of(cx, other))
        return self


_UPDATES = {"ior": "update", "iand": "intersection_update", "isub": "difference_update", "ixor": "symmetric_difference_update"}
for _name in _UPDATES:
    _in_place(_name)


@method(t.Set, "pop")
def _pop(cx: Any, self: t.Set) -> t.Tracker:
    self.ordered(cx)
    return cx.unkey(self.change(cx, "pop"))


@method(t.Set, "__contains__")
def _contains(cx: Any, self: t.Set, item: t.Tracker) -> t.Tracker:
    return t.boolean(self.contains(cx, item))


@method(t.Set, "__len__")
def _len(cx: Any, self: t.Set) -> t.Tracker:
    return t.Const(self.size(cx))


@method(t.Set, "__iter__")
def _iter(cx: Any, self: t.Set) -> t.Tracker:
    return self.iterate(cx)


@method(t.DictView, "isdisjoint")
def _view_isdisjoint(cx: Any, self: t.DictView, other: t.Tracker) -> t.Tracker:
    return t.boolean(self.keys_view(cx).isdisjoint(keys_of(cx, other)))


@method(t.DictView, "__contains__")
def _view_contains(cx: Any, self: t.DictView, item: t.Tracker) -> t.Tracker:
    return t.boolean(self.contains(cx, item))


@method(t.DictView, "__iter__")
def _view_iter(cx: Any, self: t.DictView) -> t.Tracker:
    return self.iterate(cx)


@method(t.DictView, "__len__")
def _view_len(cx: Any, self: t.DictView) -> t.Tracker:
    return cx.made(self.size(cx))


@method(t.DictView, "__reversed__")
def _view_reversed(cx: Any, self: t.DictView) -> t.Tracker:
    return self.walk(cx, True)


def _view_operator(name: str, apply: Any) -> None:
    @method(t.DictView, name)
    def row(cx: Any, self: t.DictView, other: t.Tracker) -> t.Tracker | None:
        if self.kind == "values":
            return None
        if isinstance(other, t.DictView) and other.kind != "values":
            raw: Any = other.keys_view(cx)
        elif isinstance(other, t.Set) or name.strip("_") in ("and", "or", "sub", "xor", "rand", "ror", "rsub", "rxor"):
            raw = keys_of(cx, other)
        else:
            return None
        return _result(cx, cx.folded(apply, (self.keys_view(cx), raw)))


for _name, _fn in (("and", operator.and_), ("or", operator.or_), ("sub", operator.sub), ("xor", operator.xor)):
    _view_operator(f"__{_name}__", _fn)
    _view_operator(f"__r{_name}__", lambda a, b, fn=_fn: fn(b, a))


def _within(cx: Any, inner: t.Tracker, outer: t.Tracker) -> bool:
    """Whether each element of a set or view is in another."""
    elements = inner.values(cx) if isinstance(inner, t.DictView) else [cx.unkey(k) for k in inner.open(cx)]  # type: ignore[attr-defined]
    return all(cx.contains(outer, v) for v in elements)


_VIEW_ORDERS: dict[str, Any] = {
    "eq": lambda cx, a, b, n, m: n == m and _within(cx, a, b), "ne": lambda cx, a, b, n, m: not (n == m and _within(cx, a, b)),
    "lt": lambda cx, a, b, n, m: n < m and _within(cx, a, b), "le": lambda cx, a, b, n, m: n <= m and _within(cx, a, b),
    "gt": lambda cx, a, b, n, m: n > m and _within(cx, b, a), "ge": lambda cx, a, b, n, m: n >= m and _within(cx, b, a),
}


def _view_order(name: str, answer: Any) -> None:
    @method(t.DictView, f"__{name}__")
    def row(cx: Any, self: t.DictView, other: t.Tracker) -> t.Tracker | None:
        other = other.payload if isinstance(other, t.Object) and other.payload is not None else other
        if self.kind == "values" or not isinstance(other, (t.Set, t.DictView)) or getattr(other, "kind", "") == "values":
            return None
        return t.boolean(answer(cx, self, other, self.size(cx), other.size(cx)))


for _name, _answer in _VIEW_ORDERS.items():
    _view_order(_name, _answer)
