"""dict, OrderedDict, defaultdict: constructors and methods."""

from __future__ import annotations

import collections
import types
from collections.abc import Iterable, Iterator
from typing import Any

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..registry import calls, method
from ..sources import MISSING
from .builtin import callable_

Args = list[t.Tracker]
Kwargs = dict[str, t.Tracker]


def entries_of(cx: Any, source: t.Tracker) -> Iterable[tuple[Any, t.Tracker]]:
    """The keys and values of a mapping or of an iterable of pairs; of the latter, each pair is read when it is asked for."""
    if isinstance(source, t.Dict):
        return list(source.open(cx).items())
    if cx.lookup(source.pytype(), "keys") is not MISSING:
        return cx.mapping_items(source)
    return _pairs(cx, source)


def _pairs(cx: Any, source: t.Tracker) -> Iterator[tuple[Any, t.Tracker]]:
    for i, pair in enumerate(cx.each(source)):
        if cx.lookup(pair.pytype(), "__iter__") is MISSING and cx.lookup(pair.pytype(), "__getitem__") is MISSING:
            cx.raise_(TypeError(f"cannot convert dictionary update sequence element #{i} to a sequence"))
        parts = cx.sequence(pair)
        if len(parts) != 2:
            cx.raise_(ValueError(f"dictionary update sequence element #{i} has length {len(parts)}; 2 is required"))
        yield parts[0].key(cx), parts[1]


def _fill(cx: Any, kind: Any, args: Args, kwargs: Kwargs) -> dict[Any, t.Tracker]:
    """What the constructor `kind` puts into a new dict."""
    if len(args) > 1:
        cx.folded(kind, (None,) * len(args))
    entries = dict(entries_of(cx, args[0])) if args else {}
    entries.update(kwargs)
    return entries


@calls(dict)
def _dict(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.Dict(_fill(cx, dict, args, kwargs))


@calls(collections.OrderedDict)
def _ordered_dict(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.Dict(_fill(cx, collections.OrderedDict, args, kwargs), cls=collections.OrderedDict)


@calls(collections.defaultdict)
def _defaultdict(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if args and args[0] is not t.NONE and not callable_(cx, args[0]):
        cx.raise_(TypeError("first argument must be callable or None"))
    d = t.Dict(_fill(cx, dict, args[1:], kwargs), cls=collections.defaultdict)
    if args and not (isinstance(args[0], t.Const) and args[0].value is None):
        d.factory = args[0]
    return d


@calls(types.MappingProxyType)
def _proxy(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if not isinstance(args[0], t.Dict):
        raise Unsupported("a mapping proxy of what is no dict")
    return t.Proxy(args[0])


@calls(dict.fromkeys)
def _fromkeys(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    value = args[1] if len(args) > 1 else t.NONE
    return t.Dict({k.key(cx): value for k in cx.each(args[0])})


@method(t.Dict, "__init__", "update")
def _update(cx: Any, self: t.Dict, *args: t.Tracker, **kwargs: t.Tracker) -> t.Tracker:
    if len(args) > 1:
        return cx.misfit(self.base, "update", args, kwargs)
    for source in args:
        for k, v in entries_of(cx, source):
            self.set_item(cx, cx.unkey(k), v)
    for name, v in kwargs.items():
        self.set_item(cx, t.Const(name), v)
    return t.NONE


@method(t.Dict, "__ior__")
def _ior(cx: Any, self: t.Dict, other: t.Tracker) -> t.Tracker:
    _update(cx, self, other)
    return self


def _dict_entries(cx: Any, x: t.Tracker) -> dict[Any, t.Tracker] | None:
    """The entries of a dict or of an instance of a subclass; None of anything else."""
    x = x.payload if isinstance(x, t.Object) and x.payload is not None else x
    return x.open(cx) if isinstance(x, t.Dict) else None


def _union(cx: Any, self: t.Dict, left: t.Tracker, right: t.Tracker) -> t.Tracker | None:
    a, b = _dict_entries(cx, left), _dict_entries(cx, right)
    if a is None or b is None:
        return None
    out = t.Dict({**a, **b}, cls=self.cls)
    out.factory = self.factory
    return out


@method(t.Dict, "__or__")
def _or(cx: Any, self: t.Dict, other: t.Tracker) -> t.Tracker | None:
    return _union(cx, self, self, other)


@method(t.Dict, "__ror__")
def _ror(cx: Any, self: t.Dict, other: t.Tracker) -> t.Tracker | None:
    return _union(cx, self, other, self)


@method(t.Dict, "__reversed__")
def _reversed(cx: Any, self: t.Dict) -> t.Tracker:
    return t.DictView(self, "keys").walk(cx, True)


@method(t.Dict, "__lt__", "__le__", "__gt__", "__ge__")
def _unordered(cx: Any, self: t.Dict, other: t.Tracker) -> None:
    """Dicts have no order."""


@method(t.Dict, "__missing__")
def _missing(cx: Any, self: t.Dict, key: t.Tracker) -> t.Tracker:
    return self.item(cx, key) if self.factory is not None else cx.raise_(KeyError(key.key(cx)))


@method(t.Dict, "get")
def _get(cx: Any, self: t.Dict, key: t.Tracker, default: t.Tracker = t.NONE) -> t.Tracker:
    found = self.lookup(cx, key.key(cx))
    return default if found is None else found


@method(t.Dict, "__getitem__")
def _getitem(cx: Any, self: t.Dict, key: t.Tracker) -> t.Tracker:
    return self.item(cx, key)


@method(t.Dict, "__setitem__")
def _setitem(cx: Any, self: t.Dict, key: t.Tracker, value: t.Tracker) -> t.Tracker:
    self.set_item(cx, key, value)
    return t.NONE


@method(t.Dict, "__delitem__")
def _delitem(cx: Any, self: t.Dict, key: t.Tracker) -> t.Tracker:
    self.del_item(cx, key)
    return t.NONE


@method(t.Dict, "__contains__")
def _contains(cx: Any, self: t.Dict, key: t.Tracker) -> t.Tracker:
    return t.boolean(self.has(cx, key.key(cx)))


@method(t.Dict, "__len__")
def _len(cx: Any, self: t.Dict) -> t.Tracker:
    return t.Const(self.size(cx))


@method(t.Dict, "__iter__")
def _iter(cx: Any, self: t.Dict) -> t.Tracker:
    return self.iterate(cx)


@method(t.Dict, "keys")
def _keys(cx: Any, self: t.Dict) -> t.Tracker:
    return t.DictView(self, "keys")


@method(t.Dict, "values")
def _values(cx: Any, self: t.Dict) -> t.Tracker:
    return t.DictView(self, "values")


@method(t.Dict, "items")
def _items(cx: Any, self: t.Dict) -> t.Tracker:
    return t.DictView(self, "items")


@method(t.Dict, "pop")
def _pop(cx: Any, self: t.Dict, key: t.Tracker, *default: t.Tracker) -> t.Tracker:
    k = key.key(cx)
    if self.lookup(cx, k) is None:
        return default[0] if default else cx.fail(KeyError, key)
    return self.touch(cx).pop(k)


@method(t.Dict, "popitem")
def _popitem(cx: Any, self: t.Dict, *args: t.Tracker, **kwargs: t.Tracker) -> t.Tracker:
    ordered = self.base is collections.OrderedDict
    given = dict(zip(("last",), args), **kwargs) if ordered else {}
    if len(given) < len(args) + len(kwargs) or given.keys() - {"last"}:
        return cx.misfit(self.base, "popitem", args, kwargs)
    entries = self.touch(cx)
    if not entries:
        cx.folded(self.base().popitem, ())
    last = given.get("last", t.TRUE).truth(cx)
    self.popped += last
    k = next(reversed(entries)) if last else next(iter(entries))
    return cx.tuple([cx.unkey(k), entries.pop(k)])


@method(t.Dict, "setdefault")
def _setdefault(cx: Any, self: t.Dict, key: t.Tracker, default: t.Tracker = t.NONE) -> t.Tracker:
    k = key.key(cx)
    found = self.lookup(cx, k)
    if found is None:
        self.touch(cx)[k] = default
        return default
    return found


@method(t.Dict, "copy", "__copy__")
def _copy(cx: Any, self: t.Dict) -> t.Tracker:
    d = t.Dict(dict(self.open(cx)), cls=self.cls)
    d.factory = self.factory
    return d


@method(t.Dict, "clear")
def _clear(cx: Any, self: t.Dict) -> t.Tracker:
    self.touch(cx).clear()
    self.cleared = True
    return t.NONE


@method(t.Dict, "move_to_end")
def _move_to_end(cx: Any, self: t.Dict, key: t.Tracker, last: t.Tracker = t.TRUE) -> t.Tracker:
    entries = self.touch(cx)
    k = key.key(cx)
    if k not in entries:
        cx.fail(KeyError, key)
    v = entries.pop(k)
    if last.truth(cx):
        entries[k] = v
    else:
        rest = dict(entries)
        entries.clear()
        entries[k] = v
        entries.update(rest)
    return t.NONE


@method(t.Dict, "__eq__")
def _eq(cx: Any, self: t.Dict, other: t.Tracker) -> t.Tracker | None:
    if isinstance(other, t.Object) and isinstance(other.payload, t.Dict):
        other = other.payload
    if not isinstance(other, t.Dict):
        return None
    a, b = self.open(cx), other.open(cx)
    if self.cls is other.cls is collections.OrderedDict and list(a) != list(b):
        return t.FALSE
    return t.boolean(len(a) == len(b) and all(k in b and cx.equal(v, b[k]) for k, v in a.items()))
