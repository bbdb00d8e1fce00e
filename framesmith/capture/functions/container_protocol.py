"""Special methods of containers that are called by name: `x.__len__()` is what `len(x)` is."""

from __future__ import annotations

from typing import Any

from .. import trackers as t
from ..registry import method


@method(t.Sequence, "__len__")
@method(t.Dict, "__len__")
@method(t.Set, "__len__")
@method(t.DictView, "__len__")
def _len(tracer: Any, self: Any) -> t.Tracker:
    return t.Const(self.size(tracer))


@method(t.Sequence, "__iter__")
@method(t.Dict, "__iter__")
@method(t.Set, "__iter__")
@method(t.DictView, "__iter__")
def _iter(tracer: Any, self: t.Tracker) -> t.Tracker:
    return self.iterate(tracer)


@method(t.Set, "__contains__")
@method(t.DictView, "__contains__")
def _contains(tracer: Any, self: Any, item: t.Tracker) -> t.Tracker:
    return t.boolean(self.contains(tracer, item))


@method(t.Sequence, "__getitem__")
@method(t.Dict, "__getitem__")
def _getitem(tracer: Any, self: t.Tracker, key: t.Tracker) -> t.Tracker:
    return self.item(tracer, key)


@method(t.List, "__setitem__")
@method(t.Dict, "__setitem__")
def _setitem(tracer: Any, self: t.Tracker, key: t.Tracker, value: t.Tracker) -> t.Tracker:
    self.set_item(tracer, key, value)
    return t.NONE


@method(t.List, "__delitem__")
@method(t.Dict, "__delitem__")
def _delitem(tracer: Any, self: t.Tracker, key: t.Tracker) -> t.Tracker:
    self.del_item(tracer, key)
    return t.NONE


@method(t.List, "clear")
@method(t.Deque, "clear")
def _clear(tracer: Any, self: Any) -> t.Tracker:
    self.touch(tracer).clear()
    return t.NONE
