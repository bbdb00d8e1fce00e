"""Lists, tuples (named ones and torch.Size too) and slices."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch

from framesmith.util.errors import Unsupported

from ..sources import Item, Source
from .base import Bound, Holder, Tracker, always
from .data import Data
from .symbolic_size import Sym


class Sequence(Holder):
    """The base of list and tuple. `_items` is None until a sequence from outside is opened (its length is guarded
    then); `added`: elements appended to a list that has not been opened."""

    __slots__ = ("_items", "added", "seen", "value")
    kind: Any = list

    def __init__(self, items: Any, *, value: Any = None, source: Source | None = None) -> None:
        self._items: Any = items
        self.added: list[Tracker] = []
        self.seen: dict[int, Tracker] = {}
        self.value = value
        self.source = source

    @property
    def items(self) -> list[Tracker]:
        """The elements of an opened sequence."""
        assert self._items is not None
        return self._items

    def open(self, tracer: Any) -> list[Tracker]:
        """Return the elements; guard the length of a sequence from outside."""
        items = self._items
        if items is None:
            tracer.reads_whole(self.value)
            tracer.guard(self.source, "len", self.kind.__len__(self.value))
            src = self.source
            raw = self.kind.__iter__(self.value)
            items = self._items = [self.seen.get(i) or tracer.wrap(v, None if src is None else Item(src, i)) for i,
                                   v in enumerate(raw)]
            items += self.added
        return items

    def peek(self, tracer: Any, index: int) -> Tracker | None:
        """Return the element at `index` >= 0, or None past the end; of a sequence from outside, only this element is
        read."""
        items = self._items
        if items is not None:
            return items[index] if index < len(items) else None
        found = self.seen.get(index)
        if found is not None:
            return found
        if index >= self.kind.__len__(self.value):
            items = self.open(tracer)
            return items[index] if index < len(items) else None
        raw = self.kind.__getitem__(self.value, index)
        found = self.seen[index] = tracer.wrap(raw, None if self.source is None else Item(self.source, index))
        return found

    def truth(self, tracer: Any) -> bool:
        if self._items is None:
            tracer.guard(self.source, "len", self.kind.__len__(self.value))
            return self.kind.__len__(self.value) + len(self.added) > 0
        return bool(self._items)

    def size(self, tracer: Any) -> int:
        if self._items is None:
            tracer.guard(self.source, "len", self.kind.__len__(self.value))
            return self.kind.__len__(self.value) + len(self.added)
        return len(self._items)

    def iterate(self, tracer: Any) -> Tracker:
        return tracer.list_iterator(self)

    def items_list(self, tracer: Any) -> list[Tracker]:
        return list(self.open(tracer))

    def item(self, tracer: Any, key: Tracker) -> Tracker:
        index = tracer.index(key, self.kind.__name__)
        if type(index) is int and index < 0 and self._items is None:  # from the end: the length need not be known
            if -index <= len(self.added):
                return self.added[index]
            if not self.added and -index <= self.kind.__len__(self.value):
                return tracer.wrap(self.kind.__getitem__(self.value, index),
                                   None if self.source is None else Item(self.source, index))
        if type(index) is int and index >= 0:
            found = self.peek(tracer, index)
            if found is not None:
                return found
        items = self.open(tracer)
        try:
            part: Any = items[index]
        except (IndexError, TypeError, ValueError):
            return tracer.folded(self.kind.__getitem__, (self.kind(items), index))
        return self.make(part) if isinstance(index, slice) else part

    def make(self, items: list[Tracker]) -> Tracker:
        """Return a new sequence of the builtin kind."""
        raise NotImplementedError


class List(Sequence):
    """A list."""

    __slots__ = ()
    cls = list
    get = Sequence.builtin_attribute

    def real(self, tracer: Any) -> Any:
        return [tracer.size_or_real(x) for x in self.open(tracer)]

    def make(self, items: list[Tracker]) -> Tracker:
        return List(items)

    def touch(self, tracer: Any) -> list[Tracker]:
        """Return the elements, about to be changed."""
        items = self.open(tracer)
        tracer.mutates(self)
        return items

    def changed(self, method: str) -> None:
        """Note a mutation by a method; a list's iterators stay valid."""

    def extend(self, tracer: Any, values: list[Tracker]) -> None:
        """Append elements; the list need not be opened."""
        (self.added if self._items is None else self._items).extend(values)
        tracer.mutates(self)

    def set_item(self, tracer: Any, key: Tracker, value: Tracker) -> None:
        index = tracer.index(key, "list")
        if isinstance(index, slice):
            if not isinstance(value, Sequence) and not tracer.is_iterable(value):
                tracer.raise_(TypeError("can only assign an iterable" if index.step is None
                                        else "must assign iterable to extended slice"))
            size = self.size(tracer)
            value = tracer.sequence(value)
            if self.size(tracer) != size:  # the values' own code changed it
                index = _settled(index, size)
        tracer.folded(list.__setitem__, (self.touch(tracer), index, value))

    def del_item(self, tracer: Any, key: Tracker) -> None:
        index = tracer.index(key, "list")
        tracer.folded(list.__delitem__, (self.touch(tracer), index))


def _settled(index: slice, size: int) -> slice:
    """Return the slice that `index` means in a list of the given size."""
    start, stop, step = index.indices(size)
    if step != 1:
        raise Unsupported("an assignment to an extended slice of a list that changes meanwhile")
    return slice(start, stop)


class Tuple(Sequence):
    """A tuple; `cls` is its class (a namedtuple, a structseq of torch, torch.Size)."""

    __slots__ = ("cls",)
    kind = tuple

    def __init__(self, items: list[Tracker] | None, *, cls: type = tuple, value: Any = None,
                 source: Source | None = None) -> None:
        super().__init__(items, value=value, source=source)
        self.cls = cls

    def identity(self) -> Any:
        return () if self.cls is tuple and self._items == [] else super().identity()

    def real(self, tracer: Any) -> Any:
        values = [tracer.size_or_real(x) for x in self.open(tracer)]
        if self.cls is tuple:
            return tuple(values)
        if is_plain_tuple(self.cls):
            return tuple.__new__(self.cls, values)
        return self.cls(values)

    def make(self, items: list[Tracker]) -> Tracker:
        return Tuple(items, cls=torch.Size if self.cls is torch.Size else tuple)

    def set(self, tracer: Any, name: str, value: Tracker) -> None:
        if name in tracer.tuple_fields(self.cls):
            tracer.raise_(AttributeError("can't set attribute"))
        if self.cls.__dictoffset__:
            super().set(tracer, name, value)
        tracer.raise_(AttributeError(f"'{self.cls.__name__}' object has no attribute '{name}'"))

    def get(self, tracer: Any, name: str) -> Tracker:
        cls = self.cls
        if cls is not tuple:
            fields = tracer.tuple_fields(cls)
            if name in fields:
                return self.open(tracer)[fields[name]]
            return tracer.tuple_attr(self, name)
        return self.builtin_attribute(tracer, name)

    def key(self, tracer: Any) -> Any:
        keys = [x.key(tracer) for x in self.open(tracer)]
        return tuple(keys) if self.cls is tuple else tuple.__new__(self.cls, keys)


def is_plain_tuple(cls: type) -> bool:
    """Return whether a subclass of tuple is written in Python, so that `tuple.__new__` can make its instances."""
    return not hasattr(cls, "n_sequence_fields") and next(base for base in cls.__mro__
                                                          if not base.__flags__ & _HEAP_TYPE) is tuple


def is_own_sequence(cls: type) -> bool:
    """Return whether a subclass of tuple overrides methods of the sequence protocol, so that its elements are not the
    tuple's."""
    return any(type(getattr(cls, name, None)) is FunctionType for name in _ANSWERS)


_HEAP_TYPE = 1 << 9
_ANSWERS = ("__iter__", "__len__", "__getitem__", "__contains__", "__bool__", "__eq__", "__ne__", "__lt__", "__le__",
            "__gt__", "__ge__",
            "__hash__", "__add__", "__radd__", "__mul__", "__rmul__", "__getattribute__")


class Slice(Holder):
    """A slice object."""

    __slots__ = ("parts", "value")
    cls = slice
    truth = always

    def __init__(self, parts: list[Tracker], value: Any = None, source: Source | None = None) -> None:
        self.source = source
        self.value = value
        self.parts = parts

    def real(self, tracer: Any) -> slice:
        parts = [tracer.integer_in(p) for p in self.parts]
        return slice(*[tracer.size_or_real(p) if p.constant or type(p) in (Sym, Data) else tracer.index(p)
                       for p in parts])

    def get(self, tracer: Any, name: str) -> Tracker:
        if name in ("start", "stop", "step"):
            return self.parts[("start", "stop", "step").index(name)]
        if name == "indices":
            return Bound(self, name)
        return super().get(tracer, name)

    def builtin_method(self, tracer: Any, name: str, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        return tracer.fold(self.real(tracer).indices, tuple(a.real(tracer) for a in args))
