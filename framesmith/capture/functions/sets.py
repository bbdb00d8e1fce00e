"""set and frozenset: constructors and methods, run by CPython's own on the keys."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from .. import trackers as t
from ..registry import calls, method
from ..trackers import Args, Kwargs


def keys_of(tracer: Any, source: t.Tracker) -> Any:
    """Return the argument of a real set's method for `source`: a set, a dict, or a list of keys."""
    if isinstance(source.plain(), t.Set):
        return source.plain().open(tracer)  # type: ignore[attr-defined]
    if isinstance(source, t.Dict):
        return dict.fromkeys(map(tracer.as_element, source.open(tracer)))
    return [v.element(tracer) for v in tracer.each(source)]


@calls(set)
def _set(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return loosened(t.Set(set(keys_of(tracer, args[0])) if args else set()), args)


@calls(frozenset)
def _frozenset(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if args and isinstance(args[0], t.Set) and args[0].cls is frozenset:
        return args[0]
    return loosened(t.Set(frozenset(keys_of(tracer, args[0])) if args else frozenset(), cls=frozenset), args)


def loosened(made: Any, sources: Iterable[t.Tracker]) -> Any:
    """Note that a set made of others has no known order if one of them is from outside."""
    if isinstance(made, t.Set):
        made.loose = any(isinstance(x, t.Set) and (x.loose or x.value is not None) for x in sources)
    return made


@method(t.Set, "__init__")
def _init(tracer: Any, self: t.Set, *args: t.Tracker) -> t.Tracker:
    if self.base is set:
        self.change(tracer, "__init__", *[keys_of(tracer, a) for a in args])
    return t.NONE


def _result(tracer: Any, value: Any) -> t.Tracker | None:
    """Return the tracker of a real set's method's result; None for NotImplemented."""
    if value is NotImplemented:
        return None
    return t.Set(value, cls=type(value)) if isinstance(value, (set, frozenset)) else tracer.unkey(value)


def _combining(name: str) -> None:
    @method(t.Set, name)
    def row(tracer: Any, self: t.Set, *others: t.Tracker) -> t.Tracker | None:
        return loosened(_result(tracer, tracer.folded(getattr(self.open(tracer), name),
                                                      tuple([keys_of(tracer, o) for o in others]))), (self, *others))


@method(t.Set, "isdisjoint")
def _isdisjoint(tracer: Any, self: t.Set, other: t.Tracker) -> t.Tracker:
    """isdisjoint, the one method that iterates over an instance of a subclass of set."""
    keys = [v.element(tracer) for v in tracer.each(other)] if isinstance(other, t.Object) else keys_of(tracer, other)
    return t.boolean(self.open(tracer).isdisjoint(keys))


def _operating(name: str) -> None:
    """Make the row of an operator, which takes sets only."""

    @method(t.Set, name)
    def row(tracer: Any, self: t.Set, other: t.Tracker) -> t.Tracker | None:
        other = other.plain()
        if not isinstance(other, t.Set):
            return None
        return loosened(_result(tracer, getattr(self.open(tracer), name)(other.open(tracer))), (self, other))


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
    def row(tracer: Any, self: t.Set, *args: t.Tracker) -> t.Tracker:
        self.change(tracer, name, *[a.element(tracer) if plain else keys_of(tracer, a) for a in args])
        self.loose |= any(isinstance(a, t.Set) and (a.loose or a.value is not None) for a in args)
        return t.NONE


for _name in ("add", "discard", "remove", "clear"):
    _changing(_name, True)
for _name in ("update", "intersection_update", "difference_update", "symmetric_difference_update"):
    _changing(_name, False)


def _in_place(name: str) -> None:
    @method(t.Set, f"__{name}__")
    def row(tracer: Any, self: t.Set, other: t.Tracker) -> t.Tracker | None:
        other = other.plain()
        if self.base is frozenset or not isinstance(other, (t.Set, t.DictView)):
            return None
        self.change(tracer, _UPDATES[name], keys_of(tracer, other))
        return self


_UPDATES = {"ior": "update", "iand": "intersection_update", "isub": "difference_update",
            "ixor": "symmetric_difference_update"}
for _name in _UPDATES:
    _in_place(_name)


@method(t.Set, "pop")
def _pop(tracer: Any, self: t.Set) -> t.Tracker:
    self.ordered(tracer)
    return tracer.unkey(self.change(tracer, "pop"))


@method(t.DictView, "isdisjoint")
def _view_isdisjoint(tracer: Any, self: t.DictView, other: t.Tracker) -> t.Tracker:
    return t.boolean(self.keys_view(tracer).isdisjoint(keys_of(tracer, other)))


@method(t.DictView, "__reversed__")
def _view_reversed(tracer: Any, self: t.DictView) -> t.Tracker:
    return self.walk(tracer, True)


def _view_operator(name: str, apply: Any) -> None:
    @method(t.DictView, name)
    def row(tracer: Any, self: t.DictView, other: t.Tracker) -> t.Tracker | None:
        if self.kind == "values":
            return None
        if isinstance(other, t.DictView) and other.kind != "values":
            raw: Any = other.keys_view(tracer)
        elif isinstance(other, t.Set) or name.strip("_") in ("and", "or", "sub", "xor", "rand", "ror", "rsub", "rxor"):
            raw = keys_of(tracer, other)
        else:
            return None
        return _result(tracer, tracer.folded(apply, (self.keys_view(tracer), raw)))


for _name, _fn in (("and", operator.and_), ("or", operator.or_), ("sub", operator.sub), ("xor", operator.xor)):
    _view_operator(f"__{_name}__", _fn)
    _view_operator(f"__r{_name}__", lambda a, b, fn=_fn: fn(b, a))


def _within(tracer: Any, inner: t.Tracker, outer: t.Tracker) -> bool:
    """Return whether each element of a set or view is in another."""
    elements = inner.values(tracer) if isinstance(inner, t.DictView) else [tracer.unkey(k)
                                                                           for k in inner.open(tracer)]  # type: ignore[attr-defined]
    return all(tracer.contains(outer, v) for v in elements)


def _view_order(name: str) -> None:
    @method(t.DictView, f"__{name}__")
    def row(tracer: Any, self: t.DictView, other: t.Tracker) -> t.Tracker | None:
        other = other.plain()
        if self.kind == "values" or not isinstance(other, (t.Set, t.DictView)) or getattr(other, "kind",
                                                                                          "") == "values":
            return None
        inner, outer = (other, self) if name in ("gt", "ge") else (self, other)
        sizes = getattr(operator, "eq" if name == "ne" else name)(self.size(tracer), other.size(tracer))
        return t.boolean((sizes and _within(tracer, inner, outer)) is not (name == "ne"))


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _view_order(_name)
