"""Text of tracked values: CPython's own formatting, over stand-ins that ask the session for the text of their
values."""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable
from typing import Any

from framesmith.symbolic.node import specialised

from . import trackers as t
from .session import Session
from .sources import MISSING


class Shown:
    """Stands for a tracked value in a real container or call whose text is wanted."""

    _cx: Any
    _tracker: t.Tracker

    def __repr__(self) -> str:
        return self._cx.text(self._tracker, "__repr__").real(self._cx)

    def __str__(self) -> str:
        return self._cx.text(self._tracker).real(self._cx)

    def __call__(self, *args: Any) -> Any:
        raise AssertionError("a stand-in is not called")

    def __format__(self, spec: str) -> str:
        return self._cx.format_value(self._tracker, 0, spec).real(self._cx)

    def __getattr__(self, name: str) -> Any:
        return self._cx.shown(self._tracker.get(self._cx, name))


class Refused(t.CapturedError, TypeError):
    """A TypeError of the captured program, which C may replace by one of its own."""


def _told(ask: Callable[[Any, t.Tracker], t.Tracker]) -> Callable[[Shown], Any]:
    def method(self: Shown) -> Any:
        try:
            return ask(self._cx, self._tracker).real(self._cx)
        except t.CapturedError as e:
            raise (Refused(e.tracker) if issubclass(e.tracker.pytype(), TypeError) else e) from None

    return method


def _item(self: Shown, key: Any) -> Any:
    return self._cx.shown(self._tracker.item(self._cx, self._cx.made(key)))


_SPECIAL: dict[str, Callable[..., Any]] = {
    "__int__": _told(lambda tracer, v: tracer.made(int).call(tracer, [v], {})),
    "__float__": _told(lambda tracer, v: tracer.made(float).call(tracer, [v], {})),
    "__index__": _told(lambda tracer, v: tracer.made(operator.index).call(tracer, [v], {})),
    "__bytes__": _told(lambda tracer, v: tracer.call_special(v, "__bytes__", [])),
    "__getitem__": _item,
}
"""The special methods that a stand-in has if the class of the value that it represents has them."""
_BUILTIN = (int, float, str, bytes)
"""Builtin parts that C takes as they are."""


@functools.lru_cache(maxsize=256)
def _class_like(name: str, base: type, special: tuple[str, ...]) -> Any:
    """Return a class of stand-ins whose name errors are to show."""
    return type(name, (Shown, *([] if base is object else [base])), {n: _SPECIAL[n] for n in special})


def stand_in(tracer: Any, v: t.Tracker) -> Shown:
    """Return an object that shows as `v`: its class has the name that C's errors tell, and it has the attributes of `v`
    that C asks for."""
    cls = v.pytype()
    special = tuple([n for n in _SPECIAL if tracer.lookup(cls, n) is not MISSING])
    part = scalar_part(v)
    base: Any = object if part is None else type(part)
    made = _class_like(cls.__name__, base, special)(*[] if part is None else [part])
    made._cx, made._tracker = tracer, v
    return made  # type: ignore[no-any-return]


def scalar_part(v: t.Tracker) -> Any:
    """Return the number or text that an object is by its class, or None."""
    part = v.payload if isinstance(v, t.Object) else None
    return part.value if isinstance(part, t.Const) and type(part.value) in _BUILTIN else None


def bare(v: t.Object) -> Any:
    """Return the builtin part of `v`, of a class that has only the name of the class of `v`."""
    part = scalar_part(v)
    return type(v.cls.__name__, (type(part),), {})(part)


class Showing(Session):
    """The part of the session that makes text."""

    def shown(self, v: t.Tracker) -> Any:
        """Return a real object with the text of `v`."""
        return specialised(v.real(self)) if v.constant or isinstance(v, (t.Static, t.Sym)) else stand_in(self, v)

    def shown_container(self, v: t.Tracker, settled: bool = True) -> Any:
        """Return a real container of stand-ins (`settled`: of which only the repr matters); other values unchanged."""
        v = v.plain()
        if not isinstance(v, (t.Dict, t.Sequence)):
            return v.real(self)
        if any(v is x for x in self.showing):
            return Text(_CYCLES.get(type(v), "[...]"))
        self.showing.append(v)
        show = (lambda x: _once(self.shown(x))) if settled else self.shown
        try:
            if isinstance(v, t.Dict):
                entries = {show(self.unkey(k)): show(x)
                           for k, x in v.open(self).items()}
                return v.like(entries, self.shown(v.factory) if v.factory is not None else None)
            return _SEQUENCES[type(v)](v, [show(x) for x in v.open(self)])
        finally:
            self.showing.pop()


class Text:
    """Has the given repr."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _once(x: Any) -> Any:
    """Return the text of a stand-in, with the enclosing containers known to detect recursion."""
    return Text(repr(x)) if isinstance(x, Shown) else x


_CYCLES = {t.Dict: "{...}", t.Tuple: "(...)"}
_SEQUENCES: dict[type, Callable[[Any, list[Any]], Any]] = {
    t.List: lambda v, items: items,
    t.Tuple: lambda v, items: tuple.__new__(v.cls, items) if t.is_plain_tuple(v.cls) else v.cls(items),
    t.Deque: lambda v, items: collections.deque(items, v.maxlen),
}
