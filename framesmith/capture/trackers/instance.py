"""`obj.__dict__`: a view of an object; what is read of it is read of the object, and so is what is written."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from framesmith.util.errors import Unsupported

from ..sources import Attr
from .base import Tracker
from .dicts import Dict
from .objects import Object, namespace_of


class InstanceDict(Dict):
    """See the module.  `obj` is the object; nothing is kept here."""

    __slots__ = ("obj",)

    def __init__(self, obj: Object) -> None:
        super().__init__({})
        self.obj = obj

    def open(self, cx: Any) -> dict[Any, Tracker]:
        obj = self.obj
        if obj.value is not None and obj.source is not None:
            cx.guard(Attr(obj.source, "__dict__"), "keys", tuple(namespace_of(obj.value)))
        out: dict[Any, Tracker] = {}
        for name in [*obj.own, *[n for n in obj.attrs if type(n) is str and n not in obj.own]]:
            found = obj.own_attr(cx, name)
            if found is not None:
                out[name] = found
        return out

    def lookup(self, cx: Any, key: Any) -> Tracker | None:
        return self.obj.own_attr(cx, key) if isinstance(key, str) else None

    def size(self, cx: Any) -> int:
        return len(self.open(cx))

    def truth(self, cx: Any) -> bool:
        return bool(self.open(cx))

    def touch(self, cx: Any) -> Any:
        return Entries(cx, self)

    def set_item(self, cx: Any, key: Tracker, value: Tracker) -> None:
        self.touch(cx)[key.key(cx)] = value

    def del_item(self, cx: Any, key: Tracker) -> None:
        name = key.key(cx)
        if self.obj.own_attr(cx, name) is None:
            cx.fail(KeyError, key)
        del self.touch(cx)[name]


class Entries(MutableMapping[Any, Tracker]):
    """The entries of an instance dict, to be changed: each change goes to the object."""

    __slots__ = ("cx", "view")

    def __init__(self, cx: Any, view: InstanceDict) -> None:
        self.cx = cx
        self.view = view

    def __getitem__(self, name: Any) -> Tracker:
        found = self.view.lookup(self.cx, name)
        if found is None:
            raise KeyError(name)
        return found

    def __setitem__(self, name: Any, value: Tracker) -> None:
        if type(name) is not str:
            raise Unsupported("a key of an instance dict that is no plain text")
        self.view.obj.put(self.cx, name, value)

    def __delitem__(self, name: Any) -> None:
        self[name]
        self.view.obj.put(self.cx, name, None)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.view.open(self.cx))

    def __len__(self) -> int:
        return self.view.size(self.cx)


__all__ = ["InstanceDict"]
