"""Text of tracked values: CPython's own formatting, over stand-ins that ask the session for the text of what they stand for."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from . import trackers as t


class Shown:
    """Stands for a tracked value in a real container or call whose text is wanted."""

    __slots__ = ("_cx", "_tracker")

    def __init__(self, cx: Any, tracker: t.Tracker) -> None:
        self._cx = cx
        self._tracker = tracker

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

    def __getitem__(self, key: Any) -> Any:
        return self._cx.shown(self._tracker.item(self._cx, self._cx.made(key)))


class Showing:
    """The part of the session that makes text."""

    unkey: Callable[..., t.Tracker]
    showing: list[t.Tracker]
    """The containers whose text is being made, outermost first."""

    def shown(self, v: t.Tracker) -> Any:
        """A real object with the text of `v`."""
        return v.real(self) if v.constant or isinstance(v, (t.Static, t.Sym)) else Shown(self, v)

    def shown_container(self, v: t.Tracker, settled: bool = True) -> Any:
        """A real container of stand-ins (`settled`: of which only the repr matters); others as they are."""
        if isinstance(v, t.Object) and v.payload is not None:
            v = v.payload
        if not isinstance(v, (t.Dict, t.Sequence)):
            return v.real(self)
        if any(v is x for x in self.showing):
            return Text(_CYCLES.get(type(v), "[...]"))
        self.showing.append(v)
        try:
            if isinstance(v, t.Dict):
                entries = {self.shown(self.unkey(k)): _once(self.shown(x)) if settled else self.shown(x) for k, x in v.open(self).items()}
                return v.like(entries, self.shown(v.factory) if v.factory is not None else None)
            return _SEQUENCES[type(v)](v, [_once(self.shown(x)) if settled else self.shown(x) for x in v.open(self)])
        finally:
            self.showing.pop()


class Text:
    """Has the given repr."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _once(x: Any) -> Any:
    """The text of a stand-in, asked for while the containers around it are known."""
    return Text(repr(x)) if isinstance(x, Shown) else x


_CYCLES = {t.Dict: "{...}", t.Tuple: "(...)"}
_SEQUENCES: dict[type, Callable[[Any, list[Any]], Any]] = {
    t.List: lambda v, items: items,
    t.Tuple: lambda v, items: tuple.__new__(v.cls, items) if t.is_plain_tuple(v.cls) else v.cls(items),
    t.Deque: lambda v, items: collections.deque(items, v.maxlen),
}
