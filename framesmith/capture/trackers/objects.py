"""Instances of user classes (and of builtin types that no other family takes).

`Object.get` is Python's generic attribute lookup over the real class and the tracked instance dict.  Reads of an
instance that came from outside are guarded as they happen; writes stay in `attrs` and are replayed at the exit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
from typing import Any

import torch

from framesmith import _C
from framesmith.util.errors import Unsupported

from .. import registry
from ..sources import MISSING, DictAttr, Slot, Source
from .base import Bound, CapturedError, Holder, Tracker
from .dicts import Dict
from .functions import Method
from .keys import Hashed
from .sequences import Tuple


class Deleted(Tracker):
    """A marker in `attrs`: the name was deleted from the instance dict."""

    __slots__ = ()


DELETED = Deleted()


def namespace_of(value: Any) -> dict[str, Any]:
    """Return the real instance dict, even if the class overrides `__dict__`; empty if there is none, without creating
    one, which programs can observe."""
    return _C.instance_dict(value) or {}


class Object(Holder):
    """An instance of `cls`.  `value` is the real one, None for an instance made in the frame.

    `payload` is the builtin part of an instance of a subclass of dict, list, tuple or set.
    """

    __slots__ = ("attrs", "before", "cls", "init_args", "own", "payload", "value")

    def __init__(self, cls: type, *, value: Any = None, source: Source | None = None) -> None:
        self.cls = cls
        self.value = value
        self.source = source
        self.attrs: dict[Any, Tracker] = {}
        """The entries of the instance dict that were read or written, by name, and of the slots, by descriptor."""
        self.before: dict[Any, Any] | None = None
        self.payload: Tracker | None = None
        self.init_args: list[Tracker] | None = None
        self.own: dict[str, Any] = {}
        """The entries of the real instance dict that the frame has not deleted: an entry that is added again comes
        last."""
        if value is not None:
            self.own = namespace_of(value)

    def real(self, tracer: Any) -> Any:
        if self.value is not None and tracer.is_passable(self):
            return self.value
        if self.payload is not None and self.payload.constant and not any(map(_speaks, self.cls.__mro__)):
            return self.payload.value  # type: ignore[attr-defined]
        raise Unsupported(f"{self.describe()} as an argument of a function that cannot be followed")

    def plain(self) -> Tracker:
        return self if self.payload is None else self.payload

    def own_attr(self, tracer: Any, name: str) -> Tracker | None:
        """Return the entry of the instance dict, or None; guard what it reads."""
        found = self.attrs.get(name)
        if found is not None:
            return None if found is DELETED else found
        if self.value is None:
            return None
        if name in self.own:
            t = tracer.wrap(self.own[name], None if self.source is None else DictAttr(self.source, name))
            self.attrs[name] = t
            return t
        if self.source is not None:
            tracer.guard(self.source, "not_hasattr", name)
        return None

    def get(self, tracer: Any, name: str) -> Tracker:
        info = tracer.class_info(self.cls)
        if info.getattribute is not None:
            asked = Method(tracer.class_function(info.getattribute), self)
            return _told(tracer, self, name, info, lambda: asked.call(tracer, [tracer.made(name)], {}))
        return self.generic_get(tracer, name, info)

    def generic_get(self, tracer: Any, name: str, info: Any = None) -> Tracker:
        """object.__getattribute__, then __getattr__ unless `info` is None."""
        raw = tracer.lookup(self.cls, name)
        if raw is MISSING:
            found = self.own_attr(tracer, name)
            if found is not None:
                return found
            if name == "__dict__" and self.cls.__dictoffset__:
                return tracer.instance_dict(self)
            return self.missing(tracer, name, info)
        row = DESCRIPTORS.get(type(raw))
        if row is not None:
            return row(tracer, self, raw, name, info)
        return _other(tracer, self, raw, name, info)

    def missing(self, tracer: Any, name: str, info: Any) -> Tracker:
        """Handle a failed generic lookup: call __getattr__, or raise."""
        if info is not None and info.getattr is not None:
            return Method(tracer.class_function(info.getattr), self).call(tracer, [tracer.made(name)], {})
        return tracer.no_attribute(self, name)

    def set(self, tracer: Any, name: str, value: Tracker) -> None:
        info = tracer.class_info(self.cls)
        if info.setattr is not None:
            Method(tracer.class_function(info.setattr), self).call(tracer, [tracer.made(name), value], {})
            return
        self.generic_set(tracer, name, value)

    def generic_set(self, tracer: Any, name: str, value: Tracker) -> None:
        """object.__setattr__"""
        raw = tracer.lookup(self.cls, name)
        if isinstance(raw, property):
            tracer.call_property(raw, "fset", [self, value])
            return
        if raw is not MISSING and not isinstance(raw, MemberDescriptorType) and hasattr(type(raw), "__set__"):
            if isinstance(raw, GetSetDescriptorType):
                raise Unsupported(f"assignment to {name!r} of {self.describe()}")
            tracer.call_special(tracer.wrap_static(raw, None), "__set__", [self, value])
            return
        if not isinstance(raw, MemberDescriptorType):
            self.needs_dict(tracer, name, raw)
        self.put(tracer, raw if isinstance(raw, MemberDescriptorType) else name, value)

    def needs_dict(self, tracer: Any, name: str, raw: Any) -> None:
        """Raise if there is no instance dict to set or delete `name` in; `raw` is the class's attribute of that
        name."""
        if not self.cls.__dictoffset__:
            tracer.no_change(self, name, None if raw is MISSING
                             else f"'{self.cls.__name__}' object attribute '{name}' is read-only")

    def put(self, tracer: Any, key: Any, value: Tracker | None) -> None:
        """Set or delete an entry of the instance dict, or a slot."""
        tracer.touch(self)
        self.note(tracer, key)
        if value is not None:
            if self.attrs.get(key) is DELETED:
                del self.attrs[key]
                self.before[key] = self.before.pop(key)  # type: ignore[index, union-attr]
            self.attrs[key] = value
        elif self.value is None:
            del self.attrs[key]
        else:
            self.attrs[key] = DELETED
            if type(key) is str:
                tracer.guard(self.source,
                             "not_hasattr" if self.before[key] is MISSING else "hasattr",  # type: ignore[index]
                             key)
                self.own = {k: v for k, v in self.own.items() if k != key}

    def note(self, tracer: Any, key: Any) -> None:
        """Record the value of `attrs` under `key`, which is about to change."""
        if self.value is None:
            return
        if self.before is None:
            self.before = {}
        if key not in self.before:
            if isinstance(key, MemberDescriptorType):
                found = _slot(tracer, self, key)  # what was there is guarded
                self.before[key] = MISSING if found is None else key.__get__(self.value)
            else:
                self.before[key] = self.own.get(key, MISSING)
        tracer.mutates(self)

    def delete(self, tracer: Any, name: str) -> None:
        info = tracer.class_info(self.cls)
        if info.delattr is not None:
            Method(tracer.class_function(info.delattr), self).call(tracer, [tracer.made(name)], {})
            return
        self.generic_delete(tracer, name)

    def generic_delete(self, tracer: Any, name: str) -> None:
        """object.__delattr__"""
        raw = tracer.lookup(self.cls, name)
        if isinstance(raw, property):
            tracer.call_property(raw, "fdel", [self])
            return
        if isinstance(raw, MemberDescriptorType):
            if _slot(tracer, self, raw) is None:
                tracer.no_change(self, name, name)
            self.put(tracer, raw, None)
            return
        if raw is not MISSING and hasattr(type(raw), "__delete__"):
            tracer.call_special(tracer.wrap_static(raw, None), "__delete__", [self])
            return
        self.needs_dict(tracer, name, raw)
        if self.own_attr(tracer, name) is None:
            tracer.no_change(self, name)
        self.put(tracer, name, None)

    def truth(self, tracer: Any) -> bool:
        raw = tracer.lookup(self.cls, "__bool__")
        if raw is not MISSING:
            return self.checked(tracer, "__bool__", bool)
        if tracer.lookup(self.cls, "__len__") is not MISSING:
            return self.size(tracer) != 0
        return True

    def size(self, tracer: Any) -> Any:
        return self.checked(tracer, "__len__", len)

    def checked(self, tracer: Any, name: str, of: Any) -> Any:
        """Return a special method's result, as checked by the builtin that calls it."""
        result = tracer.call_special(self, name, []).real(tracer)
        if (type(result) is bool and of is bool or type(result) is int and of is len and result >= 0
            or isinstance(result, torch.SymInt)):
            return result
        return tracer.folded(of, (type(self.cls.__name__, (), {name: lambda _: result})(),))

    def iterate(self, tracer: Any) -> Tracker:
        raw = tracer.lookup(self.cls, "__iter__")
        if raw is MISSING and tracer.lookup(self.cls, "__getitem__") is not MISSING:
            return tracer.by_index(self)
        it = tracer.call_special(self, "__iter__", [])
        if tracer.lookup(it.pytype(), "__next__") is MISSING:
            tracer.raise_(TypeError(f"iter() returned non-iterator of type '{it.pytype().__name__}'"))
        return it

    def next(self, tracer: Any) -> Tracker | None:
        if tracer.lookup(self.cls, "__next__") is MISSING:
            return tracer.not_iterator(self)
        return tracer.none_if_raised(StopIteration, tracer.call_special, self, "__next__", [])

    def key(self, tracer: Any) -> Any:
        raw = tracer.lookup(self.cls, "__hash__")
        if raw is object.__hash__ and tracer.lookup(self.cls, "__eq__") is object.__eq__:
            if self.value is None:
                return self
            tracer.guard(self.source, "id", self.value)
            return self.value
        return Hashed(tracer, self, tracer.key_hash(self))

    def element(self, tracer: Any) -> Any:
        """Return the key of an element; of objects compared by identity, only which ones are the same is guarded: see
        `kept_apart`."""
        if self.value is None or self.source is None or tracer.lookup(self.cls, "__hash__") is not object.__hash__ \
                or tracer.lookup(self.cls, "__eq__") is not object.__eq__:
            return self.key(tracer)
        tracer.keyed[id(self)] = self
        return self

    def absent(self, tracer: Any, key: Tracker) -> Tracker:
        """`d[key]` of a subclass of dict without the key: `__missing__`, or an error."""
        if tracer.lookup(self.cls, "__missing__") is MISSING:
            return tracer.fail(KeyError, key)
        return tracer.call_special(self, "__missing__", [key])

    def builtin_method(self, tracer: Any, name: str, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        if name == "__getitem__" and isinstance(self.payload, Dict) and self.payload.factory is None:
            found = self.payload.lookup(tracer, args[0].key(tracer))
            return found if found is not None else self.absent(tracer, args[0])
        row = tracer.methods(Object, name)
        if row is not None:
            return row(tracer, self, *args, **kwargs)
        if self.payload is not None and not _of_object(self.payload.pytype(), name):
            if name == "__getitem__" and isinstance(self.payload,
                                                    Dict) and self.payload.lookup(tracer, args[0].key(tracer)) is None:
                missing = tracer.lookup(self.cls, "__missing__")
                if isinstance(missing, FunctionType):
                    return tracer.class_function(missing).call(tracer, [self, *args], kwargs)
            made = self.payload.builtin_method(tracer, name, args, kwargs)
            if self.value is None and hasattr(made, "owner"):
                made.owner = self
            return made
        return tracer.opaque_method(self, name, args, kwargs)


def _of_object(cls: type, name: str) -> bool:
    """Call a method that a class inherits from `object`: it depends on the class of the object, not on its builtin
    part."""
    return next((base for base in cls.__mro__ if name in base.__dict__), None) is object


def _speaks(cls: type) -> bool:
    """Return whether a class defines special methods, which a function run for real would call."""
    return cls.__module__ != "builtins" and any(isinstance(vars(cls).get(n), FunctionType) for n in _SAID)


_SAID = ("__index__", "__int__", "__float__", "__str__", "__repr__", "__format__", "__hash__", "__eq__", "__len__",
         "__getitem__",
         "__iter__")


def _function(tracer: Any, self: Object, raw: Any, name: str, info: Any) -> Tracker:
    if name in self.attrs or name in self.own:
        found = self.own_attr(tracer, name)
        if found is not None:
            return found
    elif self.source is not None:
        tracer.guard(self.source, "not_hasattr", name)
    return Method(tracer.class_function(raw), self)


def _property(tracer: Any, self: Object, raw: Any, name: str, info: Any) -> Tracker:
    return _told(tracer, self, name, info, lambda: tracer.call_property(raw, "fget", [self]))


def _told(tracer: Any, self: Object, name: str, info: Any, ask: Callable[[], Tracker]) -> Tracker:
    """Return the result of a descriptor's code; after an AttributeError, call `__getattr__`."""
    try:
        return ask()
    except CapturedError as e:
        if info is None or info.getattr is None or not issubclass(e.tracker.pytype(), AttributeError):
            raise
        return self.missing(tracer, name, info)


def _classmethod(tracer: Any, self: Object, raw: Any, name: str, info: Any) -> Tracker:
    found = self.own_attr(tracer, name)
    return found if found is not None else Method(tracer.class_function(raw.__func__), tracer.made(self.cls))


def _staticmethod(tracer: Any, self: Object, raw: Any, name: str, info: Any) -> Tracker:
    found = self.own_attr(tracer, name)
    return found if found is not None else tracer.class_function(raw.__func__)


@dataclass(frozen=True, slots=True)
class EmptySlot:
    """A slot of the object is empty."""

    slot: Any

    def __call__(self, obj: Any) -> bool:
        try:
            self.slot.__get__(obj)
        except AttributeError:
            return True
        return False


def _slot_source(self: Object, raw: Any) -> Source | None:
    return None if self.source is None else Slot(self.source, raw.__objclass__, raw.__name__)


def _slot(tracer: Any, self: Object, raw: Any) -> Tracker | None:
    """Return the value that a slot holds, or None."""
    found = self.attrs.get(raw)
    if found is None and self.value is not None:
        try:
            found = tracer.wrap(raw.__get__(self.value), _slot_source(self, raw))
        except AttributeError:
            if self.source is not None:
                tracer.guard(self.source, "callable", EmptySlot(raw))
            return None
        self.attrs[raw] = found
    return None if found is DELETED else found


def _member(tracer: Any, self: Object, raw: Any, name: str, info: Any) -> Tracker:
    if name == "__dict__":
        return tracer.instance_dict(self)
    found = _slot(tracer, self, raw)
    return found if found is not None else self.missing(tracer, name, info)


def _getset(tracer: Any, self: Object, raw: Any, name: str, info: Any) -> Tracker:
    if name == "__dict__":
        return tracer.instance_dict(self)
    if name == "__class__":
        return tracer.made(self.cls)
    if self.value is not None:
        return tracer.wrap(raw.__get__(self.value), _slot_source(self, raw))
    if name == "args" and issubclass(self.cls, BaseException):
        found = self.attrs.get("args")
        return found if found is not None else Tuple(self.init_args or [])
    found = self.attrs.get(name)
    if found is not None:
        return found
    if issubclass(self.cls, BaseException):
        return tracer.made(None)
    raise Unsupported(f"attribute {name!r} of {self.describe()}")


def _builtin(tracer: Any, self: Object, raw: Any, name: str, info: Any) -> Tracker:
    found = self.own_attr(tracer, name) if name in self.attrs or name in self.own else None
    return found if found is not None else Bound(self, name, raw)


def _other(tracer: Any, self: Object, raw: Any, name: str, info: Any) -> Tracker:
    """Return a class attribute of another kind: a descriptor of the user's, or a plain value."""
    kind = type(raw)
    for base in kind.__mro__:
        if base in DESCRIPTORS and base.__get__ is kind.__get__:  # type: ignore[attr-defined]
            return DESCRIPTORS[base](tracer, self, raw, name, info)
    if not hasattr(kind, "__get__"):
        found = self.own_attr(tracer, name)
        return found if found is not None else tracer.class_value(self.cls, name, raw)
    if not hasattr(kind, "__set__"):
        found = self.own_attr(tracer, name)
        if found is not None:
            return found
    row = registry.DESCRIPTORS.get(kind)
    if row is not None:
        return row(tracer, self, raw, name)
    return _told(tracer, self, name, info,
                 lambda: tracer.call_special(tracer.class_value(self.cls, name, raw), "__get__",
                                             [self, tracer.made(self.cls)]))


DESCRIPTORS = {
    FunctionType: _function,
    property: _property,
    classmethod: _classmethod,
    staticmethod: _staticmethod,
    MemberDescriptorType: _member,
    GetSetDescriptorType: _getset,
    MethodDescriptorType: _builtin,
    WrapperDescriptorType: _builtin,
    ClassMethodDescriptorType: _builtin,
    BuiltinFunctionType: lambda tracer, self, raw, name, info: tracer.class_value(self.cls, name, raw),
}
