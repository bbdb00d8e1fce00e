"""Sets and frozensets.

A `Set` holds a real set of keys (`Tracker.key`), on which CPython's own methods run, so the order is CPython's.
"""

from __future__ import annotations

import weakref
from types import FunctionType
from typing import Any

import torch

from framesmith._C import stored_hashes
from framesmith.util.errors import Unsupported

from ..sources import Source
from .base import Holder, Tracker
from .checked import CheckedIter, Way
from .keys import Hashed
from .objects import Object


class Set(Holder):
    """A set or frozenset.  One from outside is read by membership, or whole; its changes are kept as calls, replayed as
    they were."""

    __slots__ = ("_keys", "changes", "cls", "first", "loose", "value")
    get = Holder.builtin_attribute

    def __init__(self, keys: Any, *, cls: type = set, value: Any = None, source: Source | None = None) -> None:
        self._keys: Any = keys
        self.cls = cls
        self.value = value
        self.source = source
        self.changes: list[tuple[str, tuple[Any, ...]]] = []
        self.first: list[Any] | None = None
        """The keys before the first change."""
        self.loose = False
        """The order of `_keys` may differ from that of the program's set, because it depends on the history of sets
        from outside."""

    @classmethod
    def of(cls, tracer: Any, items: list[Tracker], kind: type = set) -> Set:
        """Return a new set, with the elements inserted in order."""
        return cls(kind([v.element(tracer) for v in items]), cls=kind)

    def open(self, tracer: Any) -> Any:
        """Return the set of keys; guard the elements of a set from outside, and their order."""
        if self._keys is None:
            tracer.reads_whole(self.value)
            if self.source is not None:
                if any(map(_holds_objects, self.base.__iter__(self.value))):
                    raise Unsupported("a set of tuples with objects that guards would keep alive")
                tracer.guard(self.source, "callable", SameElements(self.value))
            raw = list(self.base.__iter__(self.value))
            numbers = stored_hashes(self.value)
            keys = [_key(tracer, v, numbers[id(v)]) for v in raw]
            self.loose = any(k is not v for k, v in zip(keys, raw))
            self._keys = self.base(keys) if self.loose else self.value
        return self._keys

    @property
    def base(self) -> Any:
        """The builtin kind."""
        return set if issubclass(self.cls, set) else frozenset

    def contains(self, tracer: Any, item: Tracker) -> bool:
        """`item in x`"""
        if isinstance(item, Set) and item.cls is set:
            key: Any = item.frozen(tracer)
        elif self._keys is not None:
            key = item.element(tracer)
        else:
            key = item.key(tracer)
        if self._keys is not None or isinstance(key, (Tracker, Hashed)):
            return key in self.open(tracer)
        found = self.base.__contains__(self.value, key)
        tracer.guard(self.source, "contains" if found else "not_contains", key)
        return found

    def change(self, tracer: Any, method: str, *args: Any) -> Any:
        """Run a method that changes the set, on keys."""
        keys = self.open(tracer)
        args = tuple([a.copy() if isinstance(a, set) else a for a in args])  # what is replayed is how they are now
        if self.first is None:
            self.first = list(keys)
            if keys is self.value:
                keys = self._keys = set(keys)
        out = tracer.folded(getattr(keys, method), args)
        self.changes.append((method, args))
        if self.value is not None:
            self.loose = True
            tracer.mutates(self)
        return out

    def ordered(self, tracer: Any) -> list[Any]:
        """Return the keys in iteration order; refuse where that depends only on addresses of objects."""
        keys = self.open(tracer)
        if len(keys) > 1 and (self.loose or any(_by_address(tracer, k) for k in keys)):
            raise Unsupported("the order of a set that depends on addresses or on what it held before",
                              hint="sort it, or use a dict")
        tracer.surroundings.note_order(keys)
        return list(keys)

    def items_list(self, tracer: Any) -> list[Tracker]:
        return [tracer.unkey(k) for k in self.ordered(tracer)]

    def real(self, tracer: Any) -> Any:
        keys = self.open(tracer)
        if any(isinstance(k, (Tracker, Hashed)) for k in keys):
            return super().real(tracer)
        self.ordered(tracer)
        return keys

    def key(self, tracer: Any) -> Any:
        return tracer.no_key(self) if self.base is set else self.frozen(tracer)

    def frozen(self, tracer: Any) -> frozenset[Any]:
        """Return the keys as one key."""
        return frozenset([k.key(tracer) if isinstance(k, Tracker) else k for k in self.open(tracer)])

    def truth(self, tracer: Any) -> bool:
        return self.size(tracer) > 0

    def size(self, tracer: Any) -> int:
        if self._keys is None:
            tracer.guard(self.source, "len", len(self.value))
            return len(self.value)
        return len(self._keys)

    def iterate(self, tracer: Any) -> Tracker:
        def read(key: Any) -> Tracker | None:
            return tracer.unkey(key) if key in self.open(tracer) else None

        return CheckedIter(self, Way(self.base), self.ordered(tracer), lambda: self.open(tracer), read)


def _key(tracer: Any, value: Any, number: int) -> Any:
    """Return the key that stands for an element of a real set; its hash is known."""
    x = tracer.wrap_static(value, None)
    return Hashed(tracer, x, number) if isinstance(x, Object) and tracer.has_own_hash(value) else x.element(tracer)


class SameElements:
    """A set still has these elements, of these types, in this order. Elements known by identity are not kept alive."""

    __slots__ = ("elements", "types")

    def __init__(self, value: Any) -> None:
        self.types = tuple(map(type, value))
        self.elements = [weakref.ref(x) if _by_identity(x) else x for x in value]

    def __call__(self, value: Any) -> bool:
        return tuple(map(type, value)) == self.types and all(
            x() is now if type(x) is weakref.ReferenceType else x == now for x,
            now in zip(self.elements, value, strict=True))


def _holds_objects(x: Any) -> bool:
    """Return whether a key is a tuple that holds objects of the program's with their own hash: it would have to be held
    as a whole."""
    return type(x) is tuple and any(
        isinstance(type(y).__hash__, FunctionType) and not issubclass(type(y), (torch.Tensor, torch.nn.Module))
        for y in x)


def _by_identity(x: Any) -> bool:
    """Return whether an element is compared by identity and can be weakly referenced."""
    return type(x).__eq__ is object.__eq__ and type(x).__weakrefoffset__ != 0 and type(x) is not weakref.ReferenceType


def _by_address(tracer: Any, key: Any) -> bool:
    """Return whether the key's position in a table depends on an address that may differ between calls."""
    if isinstance(key, (tuple, frozenset)):
        return any(_by_address(tracer, k) for k in key)
    return isinstance(key, Tracker) or type(key).__hash__ is object.__hash__ and isinstance(tracer.seen.get(id(key)),
                                                                                            Object)
