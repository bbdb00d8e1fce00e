"""Dicts (ordered and default ones too), their views, and sets.

Keys are stored as hashables (`Tracker.key`): the Python value of a constant, or a tracker that stands for its identity.
"""

from __future__ import annotations

from typing import Any

from framesmith.util.errors import Unsupported

from ..sources import Item, Source
from .base import Bound, Tracker


class Dict(Tracker):
    """A dict.  One from outside is read key by key; `complete` once all keys were guarded and read."""

    __slots__ = ("absent", "cls", "complete", "entries", "factory", "value")

    def __init__(self, entries: dict[Any, Tracker] | None, *, cls: type = dict, value: Any = None, source: Source | None = None) -> None:
        self.entries: dict[Any, Tracker] = {} if entries is None else entries
        self.complete = entries is not None
        self.cls = cls
        self.value = value
        self.source = source
        self.absent: set[Any] | None = None
        self.factory: Tracker | None = None

    def pytype(self) -> type:
        return self.cls

    def identity(self) -> Any:
        return self.value if self.value is not None else self

    def real(self, cx: Any) -> Any:
        out = {k: v.real(cx) for k, v in self.open(cx).items()}
        if any(isinstance(k, Tracker) for k in out):
            return super().real(cx)
        return out if self.cls is dict else self.cls(out)

    def open(self, cx: Any) -> dict[Any, Tracker]:
        """All entries; guards the keys of a dict from outside."""
        if not self.complete:
            value, src = self.value, self.source
            keys = tuple(value)
            cx.guard(src, "keys", keys)
            old = self.entries
            self.entries = {}
            for k in keys:
                known = old.get(k)
                self.entries[k] = known if known is not None else cx.wrap(dict.__getitem__(value, k), Item(src, k) if src else None)
            self.complete = True
        return self.entries

    def lookup(self, cx: Any, key: Any) -> Tracker | None:
        """The value under `key`, or None."""
        found = self.entries.get(key)
        if found is not None or self.complete:
            return found
        if self.absent is not None and key in self.absent:
            return None
        if not isinstance(key, Tracker) and dict.__contains__(self.value, key):
            v = cx.wrap(dict.__getitem__(self.value, key), Item(self.source, key) if self.source else None)
            self.entries[key] = v
            return v
        if not isinstance(key, Tracker):
            cx.guard(self.source, "not_contains", key)
        self.absent = {*(self.absent or ()), key}
        return None

    def touch(self, cx: Any) -> dict[Any, Tracker]:
        """All entries, about to be changed."""
        entries = self.open(cx)
        cx.mutates(self)
        return entries

    def truth(self, cx: Any) -> bool:
        if self.complete:
            return bool(self.entries)
        cx.guard(self.source, "bool", bool(self.value))
        return len(self.value) > 0

    def size(self, cx: Any) -> int:
        if not self.complete:
            cx.guard(self.source, "len", len(self.value))
            return len(self.value)
        return len(self.entries)

    def item(self, cx: Any, key: Tracker) -> Tracker:
        k = key.key(cx)
        found = self.lookup(cx, k)
        if found is not None:
            return found
        if self.factory is not None:
            made = self.factory.call(cx, [], {})
            self.touch(cx)[k] = made
            return made
        return cx.raise_(KeyError(k))

    def set_item(self, cx: Any, key: Tracker, value: Tracker) -> None:
        k = key.key(cx)
        self.touch(cx)[k] = value

    def del_item(self, cx: Any, key: Tracker) -> None:
        k = key.key(cx)
        entries = self.touch(cx)
        if k not in entries:
            cx.raise_(KeyError(k))
        del entries[k]

    def iterate(self, cx: Any) -> Tracker:
        return cx.iterator([cx.unkey(k) for k in self.open(cx)])

    def get(self, cx: Any, name: str) -> Tracker:
        if name == "__class__":
            return cx.made(self.cls)
        if not hasattr(self.cls, name):
            return cx.raise_(AttributeError(f"'{self.cls.__name__}' object has no attribute '{name}'"))
        return Bound(self, name)

    def builtin_method(self, cx: Any, name: str, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        row = cx.methods(Dict, name)
        if row is None:
            raise Unsupported(f"method {name!r} of {self.describe()}")
        return row(cx, self, *args, **kwargs)


class DictView(Tracker):
    """keys(), values() or items() of a dict: `kind` says which."""

    __slots__ = ("dict", "kind")

    def __init__(self, of: Dict, kind: str) -> None:
        self.source = None
        self.dict = of
        self.kind = kind

    def pytype(self) -> type:
        return type(getattr({}, self.kind)())

    def values(self, cx: Any) -> list[Tracker]:
        """The elements."""
        entries = self.dict.open(cx)
        if self.kind == "keys":
            return [cx.unkey(k) for k in entries]
        if self.kind == "values":
            return list(entries.values())
        return [cx.tuple([cx.unkey(k), v]) for k, v in entries.items()]

    def iterate(self, cx: Any) -> Tracker:
        return cx.iterator(self.values(cx))

    def size(self, cx: Any) -> int:
        return self.dict.size(cx)

    def truth(self, cx: Any) -> bool:
        return self.dict.truth(cx)

    def real(self, cx: Any) -> Any:
        return getattr(self.dict.real(cx), self.kind)()

    def contains(self, cx: Any, key: Tracker) -> bool:
        """`key in view` for the keys view."""
        return self.dict.lookup(cx, key.key(cx)) is not None

    def get(self, cx: Any, name: str) -> Tracker:
        return Bound(self, name)

    def builtin_method(self, cx: Any, name: str, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        if name == "__iter__":
            return self.iterate(cx)
        if name == "__len__":
            return cx.made(self.size(cx))
        return Set({cx.key_of(v): v for v in self.values(cx)}).builtin_method(cx, name, args, kwargs)


class Set(Tracker):
    """A set or frozenset: key -> element."""

    __slots__ = ("_entries", "cls", "value")

    def __init__(self, entries: dict[Any, Tracker] | None, *, cls: type = set, value: Any = None, source: Source | None = None) -> None:
        self._entries = entries
        self.cls = cls
        self.value = value
        self.source = source

    def open(self, cx: Any) -> dict[Any, Tracker]:
        """The elements; a set from outside is guarded whole (it must hold constants only)."""
        if self._entries is None:
            frozen = frozenset(self.value)
            if self.source is not None:
                cx.guard(self.source, "callable", lambda s, frozen=frozen: frozenset(s) == frozen)
            self._entries = {}
            for v in self.value:
                t = cx.wrap_static(v, None)
                self._entries[t.key(cx)] = t
        return self._entries

    def touch(self, cx: Any) -> dict[Any, Tracker]:
        """The elements, about to be changed."""
        entries = self.open(cx)
        cx.mutates(self)
        return entries

    def pytype(self) -> type:
        return self.cls

    def identity(self) -> Any:
        return self.value if self.value is not None else self

    def real(self, cx: Any) -> Any:
        return self.cls([v.real(cx) for v in self.open(cx).values()])

    def key(self, cx: Any) -> Any:
        return frozenset(self.open(cx))

    def truth(self, cx: Any) -> bool:
        return bool(self.open(cx))

    def size(self, cx: Any) -> int:
        return len(self.open(cx))

    def iterate(self, cx: Any) -> Tracker:
        return cx.iterator(list(self.open(cx).values()))

    def get(self, cx: Any, name: str) -> Tracker:
        if not hasattr(self.cls, name):
            return cx.raise_(AttributeError(f"'{self.cls.__name__}' object has no attribute '{name}'"))
        return Bound(self, name)

    def builtin_method(self, cx: Any, name: str, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        row = cx.methods(Set, name)
        if row is None:
            raise Unsupported(f"method {name!r} of {self.describe()}")
        return row(cx, self, *args, **kwargs)
