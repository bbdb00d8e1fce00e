"""dict, OrderedDict, defaultdict: constructors and methods."""

from __future__ import annotations

import collections
import types
from collections.abc import Iterable, Iterator
from typing import Any

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..registry import METHODS, calls, method
from ..sources import MISSING
from ..trackers import Args, Kwargs
from .builtin import callable_


def entries_of(tracer: Any, source: t.Tracker) -> Iterable[tuple[Any, t.Tracker]]:
    """Return the keys and values of a mapping or of an iterable of pairs; of the latter, each pair is read when it is
    asked for."""
    if isinstance(source, t.Dict):
        return list(source.open(tracer).items())
    if tracer.lookup(source.pytype(), "keys") is not MISSING:
        return tracer.mapping_items(source)
    return _pairs(tracer, source)


def _pairs(tracer: Any, source: t.Tracker) -> Iterator[tuple[Any, t.Tracker]]:
    for i, pair in enumerate(tracer.each(source)):
        if tracer.lookup(pair.pytype(), "__iter__") is MISSING and tracer.lookup(pair.pytype(),
                                                                                 "__getitem__") is MISSING:
            tracer.raise_(TypeError(f"cannot convert dictionary update sequence element #{i} to a sequence"))
        parts = tracer.sequence(pair)
        if len(parts) != 2:
            tracer.raise_(ValueError(f"dictionary update sequence element #{i} has length {len(parts)}; 2 is required"))
        yield parts[0].key(tracer), parts[1]


def _fill(tracer: Any, kind: Any, args: Args, kwargs: Kwargs) -> dict[Any, t.Tracker]:
    """Return the entries that the constructor `kind` puts into a new dict."""
    if len(args) > 1:
        tracer.folded(kind, (None,) * len(args))
    entries = dict(entries_of(tracer, args[0])) if args else {}
    entries.update(kwargs)
    return entries


@calls(dict)
def _dict(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.Dict(_fill(tracer, dict, args, kwargs))


@calls(collections.OrderedDict)
def _ordered_dict(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.Dict(_fill(tracer, collections.OrderedDict, args, kwargs), cls=collections.OrderedDict)


@calls(collections.defaultdict)
def _defaultdict(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if args and args[0] is not t.NONE and not callable_(tracer, args[0]):
        tracer.raise_(TypeError("first argument must be callable or None"))
    d = t.Dict(_fill(tracer, dict, args[1:], kwargs), cls=collections.defaultdict)
    if args and not (isinstance(args[0], t.Const) and args[0].value is None):
        d.factory = args[0]
    return d


@calls(types.MappingProxyType)
def _proxy(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if not isinstance(args[0], t.Dict):
        raise Unsupported("a mapping proxy of an object that is not a dict")
    return t.Proxy(args[0])


@calls(dict.fromkeys)
def _fromkeys(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    value = args[1] if len(args) > 1 else t.NONE
    return t.Dict({k.key(tracer): value for k in tracer.each(args[0])})


@method(t.Dict, "__init__", "update")
def _update(tracer: Any, self: t.Dict, *args: t.Tracker, **kwargs: t.Tracker) -> t.Tracker:
    if len(args) > 1:
        return tracer.raise_misfit(self.base, "update", args, kwargs)
    for source in args:
        for k, v in entries_of(tracer, source):
            self.set_item(tracer, tracer.unkey(k), v)
    for name, v in kwargs.items():
        self.set_item(tracer, t.Const(name), v)
    return t.NONE


@method(t.Dict, "__ior__")
def _ior(tracer: Any, self: t.Dict, other: t.Tracker) -> t.Tracker:
    _update(tracer, self, other)
    return self


def _dict_entries(tracer: Any, x: t.Tracker) -> dict[Any, t.Tracker] | None:
    """Return the entries of a dict or of an instance of a subclass; None of anything else."""
    x = x.plain()
    return x.open(tracer) if isinstance(x, t.Dict) else None


def _union(tracer: Any, self: t.Dict, left: t.Tracker, right: t.Tracker) -> t.Tracker | None:
    a, b = _dict_entries(tracer, left), _dict_entries(tracer, right)
    if a is None or b is None:
        return None
    out = t.Dict({**a, **b}, cls=self.cls)
    out.factory = self.factory
    return out


METHODS[t.Dict]["__or__"] = lambda tracer, self, other: _union(tracer, self, self, other)
METHODS[t.Dict]["__ror__"] = lambda tracer, self, other: _union(tracer, self, other, self)


@method(t.Dict, "__reversed__")
def _reversed(tracer: Any, self: t.Dict) -> t.Tracker:
    return t.DictView(self, "keys").walk(tracer, True)


@method(t.Dict, "__lt__", "__le__", "__gt__", "__ge__")
def _unordered(tracer: Any, self: t.Dict, other: t.Tracker) -> None:
    """Dicts have no order."""


@method(t.Dict, "__missing__")
def _missing(tracer: Any, self: t.Dict, key: t.Tracker) -> t.Tracker:
    return self.item(tracer, key) if self.factory is not None else tracer.raise_(KeyError(key.key(tracer)))


@method(t.Dict, "get")
def _get(tracer: Any, self: t.Dict, key: t.Tracker, default: t.Tracker = t.NONE) -> t.Tracker:
    found = self.lookup(tracer, key.key(tracer))
    return default if found is None else found


@method(t.Dict, "__contains__")
def _contains(tracer: Any, self: t.Dict, key: t.Tracker) -> t.Tracker:
    return t.boolean(self.has(tracer, key.key(tracer)))


for _name in ("keys", "values", "items"):
    METHODS[t.Dict][_name] = lambda tracer, self, kind=_name: t.DictView(self, kind)


@method(t.Dict, "pop")
def _pop(tracer: Any, self: t.Dict, key: t.Tracker, *default: t.Tracker) -> t.Tracker:
    k = key.key(tracer)
    if self.lookup(tracer, k) is None:
        return default[0] if default else tracer.fail(KeyError, key)
    return self.touch(tracer).pop(k)


@method(t.Dict, "popitem")
def _popitem(tracer: Any, self: t.Dict, *args: t.Tracker, **kwargs: t.Tracker) -> t.Tracker:
    ordered = self.base is collections.OrderedDict
    given = dict(zip(("last",), args), **kwargs) if ordered else {}
    if len(given) < len(args) + len(kwargs) or given.keys() - {"last"}:
        return tracer.raise_misfit(self.base, "popitem", args, kwargs)
    entries = self.touch(tracer)
    if not entries:
        tracer.folded(self.base().popitem, ())
    last = given.get("last", t.TRUE).truth(tracer)
    self.popped += last
    k = next(reversed(entries)) if last else next(iter(entries))
    return t.Tuple([tracer.unkey(k), entries.pop(k)])


@method(t.Dict, "setdefault")
def _setdefault(tracer: Any, self: t.Dict, key: t.Tracker, default: t.Tracker = t.NONE) -> t.Tracker:
    k = key.key(tracer)
    found = self.lookup(tracer, k)
    if found is None:
        self.touch(tracer)[k] = default
        return default
    return found


@method(t.Dict, "copy", "__copy__")
def _copy(tracer: Any, self: t.Dict) -> t.Tracker:
    d = t.Dict(dict(self.open(tracer)), cls=self.cls)
    d.factory = self.factory
    return d


@method(t.Dict, "clear")
def _clear(tracer: Any, self: t.Dict) -> t.Tracker:
    self.touch(tracer).clear()
    self.cleared = True
    return t.NONE


@method(t.Dict, "move_to_end")
def _move_to_end(tracer: Any, self: t.Dict, key: t.Tracker, last: t.Tracker = t.TRUE) -> t.Tracker:
    entries = self.touch(tracer)
    ordered = collections.OrderedDict(entries)
    tracer.by_c(ordered.move_to_end, key.key(tracer), last.truth(tracer))
    entries.clear()
    entries.update(ordered)
    return t.NONE


@method(t.Dict, "__eq__")
def _eq(tracer: Any, self: t.Dict, other: t.Tracker) -> t.Tracker | None:
    other = other.plain()
    if not isinstance(other, t.Dict):
        return None
    a, b = self.open(tracer), other.open(tracer)
    if self.cls is other.cls is collections.OrderedDict and list(a) != list(b):
        return t.FALSE
    return t.boolean(len(a) == len(b) and all(k in b and tracer.equal(v, b[k]) for k, v in a.items()))
