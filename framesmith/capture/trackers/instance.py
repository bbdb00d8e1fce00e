"""`obj.__dict__`: a view of an object, whose reads and writes are those of the object."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from framesmith.util.errors import Unsupported

from ..sources import Attr
from .base import Tracker
from .dicts import Dict
from .objects import Object, namespace_of


class InstanceDict(Dict):
    """See the module. `obj` is the object; the view has no state."""

    __slots__ = ("obj",)

    def __init__(self, obj: Object) -> None:
        super().__init__({})
        self.obj = obj

    def open(self, tracer: Any) -> dict[Any, Tracker]:
        obj = self.obj
        if obj.value is not None and obj.source is not None:
            tracer.guard(Attr(obj.source, "__dict__"), "keys", tuple(namespace_of(obj.value)))
        out: dict[Any, Tracker] = {}
        for name in [*obj.own, *[n for n in obj.attrs if type(n) is str and n not in obj.own]]:
            found = obj.own_attr(tracer, name)
            if found is not None:
                out[name] = found
        return out

    def lookup(self, tracer: Any, key: Any) -> Tracker | None:
        return self.obj.own_attr(tracer, key) if isinstance(key, str) else None

    def size(self, tracer: Any) -> int:
        return len(self.open(tracer))

    def truth(self, tracer: Any) -> bool:
        return bool(self.open(tracer))

    def touch(self, tracer: Any) -> Any:
        return Entries(tracer, self)

    def set_item(self, tracer: Any, key: Tracker, value: Tracker) -> None:
        self.touch(tracer)[key.key(tracer)] = value

    def del_item(self, tracer: Any, key: Tracker) -> None:
        name = key.key(tracer)
        if self.obj.own_attr(tracer, name) is None:
            tracer.fail(KeyError, key)
        del self.touch(tracer)[name]


class Entries(MutableMapping[Any, Tracker]):
    """The entries of an instance dict, as a mutable mapping that forwards each change to the object."""

    __slots__ = ("tracer", "view")

    def __init__(self, tracer: Any, view: InstanceDict) -> None:
        self.tracer = tracer
        self.view = view

    def __getitem__(self, name: Any) -> Tracker:
        found = self.view.lookup(self.tracer, name)
        if found is None:
            raise KeyError(name)
        return found

    def __setitem__(self, name: Any, value: Tracker) -> None:
        if type(name) is not str:
            raise Unsupported("a key of an instance dict that is no plain text")
        self.view.obj.put(self.tracer, name, value)

    def __delitem__(self, name: Any) -> None:
        self[name]
        self.view.obj.put(self.tracer, name, None)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.view.open(self.tracer))

    def __len__(self) -> int:
        return self.view.size(self.tracer)
