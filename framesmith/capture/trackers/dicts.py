"""Dicts (ordered and default ones too) and their views.

Keys are stored as hashables (`Tracker.key`): the Python value of a constant, or a tracker that stands for its identity.
"""

from __future__ import annotations

import collections
from types import MappingProxyType
from typing import Any

from framesmith.util.errors import Unsupported

from ..contents import in_order, values_of
from ..sources import DictAttr, DictKey, Item, Source
from .base import Holder, Tracker, has_member
from .checked import CheckedIter, Way
from .keys import Hashed, lasts
from .sequences import Sequence, Tuple


class Dict(Holder):
    """A dict.  One from outside is read key by key; `complete` once all keys were guarded and read."""

    __slots__ = ("absent", "attrs", "cleared", "cls", "complete", "entries", "factory", "first", "popped", "value")

    def __init__(self, entries: dict[Any, Tracker] | None, *, cls: type = dict, value: Any = None,
                 source: Source | None = None) -> None:
        self.entries: dict[Any, Tracker] = {} if entries is None else entries
        self.complete = entries is not None
        self.cls = cls
        self.value = value
        self.source = source
        self.first: dict[Any, Tracker] = {}
        """The values that were read of the dict from outside."""
        self.absent: set[Any] | None = None
        self.cleared = False
        """All earlier entries were removed at once."""
        self.popped = 0
        """The number of entries that `popitem` took from the end."""
        self.factory: Tracker | None = None
        self.attrs: dict[str, Tracker] | None = None
        """The attributes that the program has set on an OrderedDict."""

    @property
    def base(self) -> type:
        """The builtin kind, as far as its iterators and views differ."""
        return collections.OrderedDict if issubclass(self.cls, collections.OrderedDict) else dict

    @property
    def viewed(self) -> type:
        """The builtin class whose methods give the views of the real one."""
        return MappingProxyType if issubclass(self.cls, MappingProxyType) else self.base

    def real(self, tracer: Any) -> Any:
        if any(isinstance(k, (Tracker, Hashed)) for k in self.open(tracer)):
            return super().real(tracer)
        out = {k: v.real(tracer) for k, v in self.open(tracer).items()}
        return self.like(out, None if self.factory is None else self.factory.real(tracer))

    def like(self, entries: dict[Any, Any], factory: Any) -> Any:
        """Return a real dict of the same class."""
        if issubclass(self.cls, collections.defaultdict):
            return self.cls(factory, entries)  # type: ignore[call-arg]
        return entries if self.cls is dict else self.cls(entries)  # type: ignore[call-arg]

    def open(self, tracer: Any) -> dict[Any, Tracker]:
        """Return all entries; guard the keys of a dict from outside."""
        if not self.complete:
            value, src = self.value, self.source
            tracer.reads_whole(value)
            kind: Any = collections.OrderedDict if self.cls is collections.OrderedDict else dict
            try:
                keys: tuple[Any, ...] = tuple(kind.keys(value))
            except KeyError as e:
                raise Unsupported("an OrderedDict in which keys do not find themselves") from e
            if self.cls is collections.OrderedDict:
                tracer.guard(src, "callable", SameOrder(keys))  # its order is kept beside the dict's own
            else:
                tracer.guard(src, "keys", keys)
            old = self.entries
            self.entries = {}
            values = in_order(value, keys)
            for i, (k, v, stored) in enumerate(zip(keys, values, tracer.stored_keys(keys, value))):
                known = old.get(k) if stored is k else None
                if src is not None and kind is dict and not lasts(k):
                    tracer.wrap(k, DictKey(src, i))
                if known is None:
                    at = (None if src is None else Item(src, k) if stored is k
                          and lasts(k) else Item(values_of(src, kind is not dict), i))
                    known = tracer.wrap(v, at)
                self.entries[stored] = known
                self.first.setdefault(stored, known)
            self.complete = True
        return self.entries

    def lookup(self, tracer: Any, key: Any) -> Tracker | None:
        """Return the value under `key`, or None."""
        found = self.entries.get(key)
        if found is not None or self.complete:
            return found
        # another object may be equal, or this one be a key
        if isinstance(key, Hashed) or getattr(key, "source", None) is not None:
            return self.open(tracer).get(key)
        if self.absent is not None and key in self.absent:
            return None
        if not isinstance(key, Tracker) and dict.__contains__(self.value, key):
            v = tracer.wrap(dict.__getitem__(self.value, key), Item(self.source, key) if self.source else None)
            self.entries[key] = self.first[key] = v
            return v
        if not isinstance(key, Tracker):
            tracer.guard(self.source, "not_contains", key)
        self.absent = {*(self.absent or ()), key}
        return None

    def has(self, tracer: Any, key: Any) -> bool:
        """`key in d`; assumes nothing of the value."""
        if (self.complete or key in self.entries or isinstance(key, (Tracker, Hashed))
            or not dict.__contains__(self.value, key)):
            return self.lookup(tracer, key) is not None
        tracer.guard(self.source, "contains", key)
        return True

    def touch(self, tracer: Any) -> dict[Any, Tracker]:
        """Return all entries, about to be changed."""
        if self.cls is MappingProxyType:
            raise Unsupported("a change of a mapping proxy")
        entries = self.open(tracer)
        tracer.mutates(self)
        return entries

    def truth(self, tracer: Any) -> bool:
        if self.complete:
            return bool(self.entries)
        tracer.guard(self.source, "bool", bool(self.value))
        return len(self.value) > 0

    def size(self, tracer: Any) -> int:
        if not self.complete:
            tracer.guard(self.source, "len", len(self.value))
            return len(self.value)
        return len(self.entries)

    def item(self, tracer: Any, key: Tracker) -> Tracker:
        k = key.key(tracer)
        found = self.lookup(tracer, k)
        if found is not None:
            return found
        if self.factory is not None:
            made = self.factory.call(tracer, [], {})
            self.touch(tracer)[k] = made
            return made
        return tracer.fail(KeyError, key)

    def set_item(self, tracer: Any, key: Tracker, value: Tracker) -> None:
        if self.cls is MappingProxyType:
            tracer.raise_(TypeError("'mappingproxy' object does not support item assignment"))
        k = key.key(tracer)
        self.touch(tracer)[k] = value

    def del_item(self, tracer: Any, key: Tracker) -> None:
        k = key.key(tracer)
        entries = self.touch(tracer)
        if k not in entries:
            tracer.fail(KeyError, key)
        del entries[k]

    def iterate(self, tracer: Any) -> Tracker:
        return DictView(self, "keys").iterate(tracer)

    def get(self, tracer: Any, name: str) -> Tracker:
        if name == "default_factory" and issubclass(self.cls, collections.defaultdict):
            return self.factory if self.factory is not None else tracer.made(None)
        if self.attrs is not None and name in self.attrs:
            return self.attrs[name]
        return self.builtin_attribute(tracer, name) if has_member(self.cls, name) else self.own(tracer, name)

    def own(self, tracer: Any, name: str) -> Tracker:
        """Return an entry of the instance dict of an OrderedDict from outside."""
        if self.cls is collections.OrderedDict and self.value is not None:
            if name in self.value.__dict__:
                return tracer.wrap(self.value.__dict__[name],
                                   None if self.source is None else DictAttr(self.source, name))
            tracer.guard(self.source, "not_hasattr", name)
        return tracer.no_attribute(self, name)

    def set(self, tracer: Any, name: str, value: Tracker) -> None:
        if self.cls is not collections.OrderedDict or has_member(self.cls, name):
            super().set(tracer, name, value)
        self.attrs = {**(self.attrs or {}), name: value}
        tracer.mutates(self)


class SameOrder:
    """An ordered dict still has these keys in this order."""

    __slots__ = ("keys", "types")

    def __init__(self, keys: tuple[Any, ...]) -> None:
        self.keys = keys
        self.types = tuple(map(type, keys))

    def __call__(self, value: Any) -> bool:
        now = tuple(collections.OrderedDict.__iter__(value))
        return now == self.keys and tuple(map(type, now)) == self.types


class Proxy(Dict):
    """A mapping proxy of a dict, whose entries it shows."""

    __slots__ = ("of",)

    def __init__(self, of: Dict) -> None:
        super().__init__({}, cls=MappingProxyType)
        self.of = of

    def open(self, tracer: Any) -> dict[Any, Tracker]:
        return self.of.open(tracer)

    def lookup(self, tracer: Any, key: Any) -> Tracker | None:
        return self.of.lookup(tracer, key)

    def truth(self, tracer: Any) -> bool:
        return self.of.truth(tracer)

    def size(self, tracer: Any) -> int:
        return self.of.size(tracer)


class ClassDict(Dict):
    """`__dict__` of a class: a new proxy at each reading."""

    __slots__ = ("of",)

    def __init__(self, entries: dict[Any, Tracker], of: type) -> None:
        super().__init__(entries, cls=MappingProxyType)
        self.of = of


class DictView(Tracker):
    """keys(), values() or items() of a dict: `kind` says which."""

    __slots__ = ("dict", "kind", "owner")

    def __init__(self, of: Dict, kind: str) -> None:
        self.owner: Tracker | None = None
        """The object made in the frame that the dict belongs to."""
        self.dict = of
        self.kind = kind

    def pytype(self) -> type:
        return type(getattr(self.dict.base(), self.kind)())

    def values(self, tracer: Any) -> list[Tracker]:
        """Return the elements."""
        entries = self.dict.open(tracer)
        if self.kind == "keys":
            return [tracer.unkey(k) for k in entries]
        if self.kind == "values":
            return list(entries.values())
        return [Tuple([tracer.unkey(k), v]) for k, v in entries.items()]

    def iterate(self, tracer: Any) -> Tracker:
        return self.walk(tracer, False)

    def walk(self, tracer: Any, reverse: bool) -> Tracker:
        """iter() or reversed() of the view."""
        of = self.dict

        def read(key: Any) -> Tracker | None:
            value = of.open(tracer).get(key)
            if value is None or self.kind == "values":
                return value
            return tracer.unkey(key) if self.kind == "keys" else Tuple([tracer.unkey(key), value])

        keys = list(of.open(tracer))
        made = CheckedIter(of, Way(of.base, self.kind, reverse, of.viewed), keys[::-1] if reverse else keys,
                           lambda: of.open(tracer), read)
        made.owner = self.owner
        return made

    def size(self, tracer: Any) -> int:
        return self.dict.size(tracer)

    def truth(self, tracer: Any) -> bool:
        return self.dict.truth(tracer)

    def real(self, tracer: Any) -> Any:
        return getattr(self.dict.real(tracer), self.kind)()

    def contains(self, tracer: Any, key: Tracker) -> bool:
        """`key in view`"""
        if self.kind == "keys":
            return self.dict.lookup(tracer, key.key(tracer)) is not None
        if self.kind == "values":
            return any(tracer.equal(v, key) for v in self.values(tracer))
        key = key.payload if isinstance(getattr(key, "payload", None), Sequence) else key  # type: ignore[attr-defined]
        parts = key.open(tracer) if isinstance(key, Sequence) and issubclass(key.pytype(), tuple) else []
        found = self.dict.lookup(tracer, parts[0].key(tracer)) if len(parts) == 2 else None
        return found is not None and tracer.equal(found, parts[1])

    def keys_view(self, tracer: Any) -> Any:
        """Return a real view of the keys, or of the pairs of keys, for a set operation."""
        entries = self.dict.open(tracer)
        keys = list(map(tracer.as_element, entries))
        return (dict.fromkeys(keys).keys() if self.kind == "keys"
                else dict(zip(keys, [v.element(tracer) for v in entries.values()])).items())

    def get(self, tracer: Any, name: str) -> Tracker:
        if name == "mapping":
            raise Unsupported("the mapping of a view")
        return self.builtin_attribute(tracer, name)
