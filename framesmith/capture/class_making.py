"""Class statements: stand-ins for the values that a class body defined, the class itself, and changes of existing
classes."""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, cast

from framesmith.util.errors import Unsupported

from . import trackers as t
from .session import Session
from .sources import MISSING, Pinned, Source
from .standins import AT_CREATION, Placeholder, attribute_of, bare_class, fill_class, stand_in_function

ONLY_CAPTURED: weakref.WeakSet[type] = weakref.WeakSet()
"""Classes that stand for those of a captured program: `__subclasses__` of their bases lists them, too."""


class ClassMaking(Session):
    """The part of the session that makes and changes classes."""

    # --- stand-ins ----------------------------------------------------------------------------------------------------
    def stand_in(self, x: t.Tracker) -> Any:
        """Return a real object of the type of `x`, which maps back to `x` when it is found in a class."""
        if x.constant or isinstance(x, t.Static):
            return x.value  # type: ignore[attr-defined]
        value = getattr(x, "value", None)
        if value is not None:
            return value
        if type(x) is t.Tuple and x.cls is tuple:
            return tuple([self.stand_in(v) for v in x.items])
        row = _STAND_INS.get(type(x))
        real = row(self, x) if row is not None else Placeholder()
        self.remember(real, x)
        return real

    def mentions_made(self, value: Any, depth: int = 8) -> bool:
        """Return whether a constant is an instance of a stand-in, or a type expression or signature that has one in
        it."""
        if type(value) in self.made_classes or issubclass(type(value), type) and value in self.made_classes:
            return True
        if depth and type(value) in (tuple, list):
            return any(self.mentions_made(v, depth - 1) for v in value)
        if not depth or type(value).__module__ not in _NAMING:
            return False
        return any(self.mentions_made(getattr(value, name, None), depth - 1) for name in _PARTS)

    def of_stand_in(self, source: Source | None) -> bool:
        """Return whether the path begins at a stand-in, or at a function in one: nothing of it exists in another
        call."""
        while source is not None and source.base is not None:
            source = source.base
        if not isinstance(source, Pinned):
            return False
        return id(source.obj) in self.of_made or issubclass(type(source.obj), type) and source.obj in self.made_classes

    def wrapped(self, kind: Any, parts: dict[str, t.Tracker]) -> t.Wrapped:
        """`property(...)`, `classmethod(f)`, `staticmethod(f)` of trackers."""
        real = kind(*[self.stand_in(p) for p in parts.values()])
        made = t.Wrapped(real, parts)
        self.remember(real, made)
        return made

    def wrapped_setter(self, x: t.Wrapped, part: str) -> t.Tracker:
        """`prop.setter`, `prop.getter` and `prop.deleter`."""

        def row(tracer: Any, args: list[t.Tracker], kwargs: dict[str, t.Tracker]) -> t.Tracker:
            made = tracer.wrapped(property, {**x.parts, part: args[0]})
            if x.name is not None:
                made.set_name(x.name)
            return made

        return t.ByRow(row)

    # --- class statements ---------------------------------------------------------------------------------------------
    def new_class(self, meta: t.Tracker, name: str, bases: list[t.Tracker], entries: dict[str, t.Tracker],
                  kwargs: dict[str, t.Tracker]) -> t.Tracker:
        """type.__new__: the class, then `__set_name__` of its attributes, then `__init_subclass__` of its bases."""
        if not all(isinstance(b, t.Class) for b in bases):
            self.raise_(TypeError("bases must be types"))
        reals = tuple(b.value for b in bases)  # type: ignore[attr-defined]
        self.meta_is_plain(meta.value)  # type: ignore[attr-defined]
        if self.lookup(meta.value, "mro") is not type.__dict__["mro"]:  # type: ignore[attr-defined]
            raise Unsupported(f"class {name}, whose metaclass has an mro() of its own")
        if kept := next((n for n in entries if n not in _ASSIGNED and hasattr(type(type.__dict__.get(n)), "__set__")),
                        None):
            raise Unsupported(f"class {name} with an attribute {kept}, which `type` keeps itself")
        cell = entries.pop("__classcell__", None)
        if cell is not None and not isinstance(cell, t.Cell):
            self.folded(type, ("", (), {"__classcell__": self.stand_in(cell)}))
        head = {n: self._given(n, entries[n]) for n in AT_CREATION if n in entries}
        try:
            cls = bare_class(meta.value, name, reals or (object,), head)  # type: ignore[attr-defined]
            ONLY_CAPTURED.add(cls)
        except TypeError as e:
            return self.raise_(e)
        made = t.MadeClass(cls, meta, bases, dict(entries))
        self.made_classes.add(cls)
        self.remember(cls, made)
        fill_class(cls, {n: self.stand_in(v) for n, v in entries.items() if n not in AT_CREATION})
        if isinstance(cell, t.Cell):
            self.store_cell(cell, made)
        for key, v in entries.items():
            self._set_name(made, key, v)
        t.Super(cls, made, cls).get(self, "__init_subclass__").call(self, [], kwargs)
        return made

    def _given(self, name: str, x: t.Tracker) -> Any:
        """Return what `type.__new__` is given under `name`: a stand-in, or for the slots, which it reads, a container
        with the names in it."""
        if name != "__slots__" or not isinstance(x, (t.List, t.Set)):
            return self.stand_in(x)
        real = x.real(cast(Any, self))
        self.remember(real, x)
        return real

    def no_hook(self, cls: type) -> t.Tracker:
        """object.__init_subclass__ of a class."""
        def row(tracer: Any, args: list[t.Tracker], kwargs: dict[str, t.Tracker]) -> t.Tracker:
            if args or kwargs:
                self.raise_(TypeError(f"{cls.__name__}.__init_subclass__() takes no keyword arguments"))
            return t.NONE

        return t.ByRow(row)

    def _set_name(self, owner: t.Tracker, name: str, v: t.Tracker) -> None:
        if isinstance(v, t.Wrapped):
            v.set_name(name)
            return
        hook = self.lookup(v.pytype(), "__set_name__")
        if isinstance(hook, types.FunctionType):
            self.class_function(hook).call(self, [v, owner, t.Const(name)], {})
        elif hook is not MISSING:
            raise Unsupported(f"__set_name__ of {v.describe()}")

    # --- changes of classes -------------------------------------------------------------------------------------------
    def put_class_attr(self, klass: t.Class, name: str, value: t.Tracker | None) -> None:
        """type.__setattr__, or type.__delattr__ for None."""
        if isinstance(klass, t.MadeClass):
            slot = type.__dict__.get(name)
            if hasattr(type(slot), "__set__") and (value is None or name not in AT_CREATION and name != "__name__"):
                if value is None:
                    self.folded(type.__delattr__, (klass.value, name))
                raise Unsupported(f"a change of {name} of class {klass.value.__name__}")
            if name == "__new__" and value is None:
                raise Unsupported("a class loses its __new__")
            if klass.taken and name not in klass.space:
                raise Unsupported(f"a change of the finished class {klass.value.__name__}")
            self.touch(klass)
            klass.put(self, name, value)
            return
        cls = klass.value
        if cls.__mro__ is None:
            raise Unsupported("a class whose mro is being made")
        if not cls.__flags__ & _HEAP or cls.__flags__ & _IMMUTABLE:
            self.raise_(TypeError(f"cannot set {name!r} attribute of immutable type '{cls.__name__}'"))
        if name.startswith("__") and name.endswith("__"):
            raise Unsupported(f"assignment to {name} of class {cls.__name__}")
        now = self.own_raw(cls, name)
        self.note_class(cls, name)
        if value is None and now is MISSING:
            self.no_attribute(klass, name, f"type object '{cls.__name__}' has no attribute '{name}'")
        self.touch(cls)
        self.overlay.setdefault(cls, {})[name] = MISSING if value is None else attribute_of(name, self.stand_in(value))
        self.class_writes.setdefault(cls, {})[name] = value
        self.class_changed(cls)

    def own_raw(self, base: type, name: str) -> Any:
        """Return the entry of a class's own dict as the captured program sees it now, or MISSING."""
        written = self.overlay.get(base)
        if written is not None and name in written:
            return written[name]
        return dict_of(base).get(name, MISSING)

    def class_changed(self, cls: type) -> None:
        """Invalidate cached lookups in a class and its subclasses."""
        for cache in (self.class_cache, self.infos):
            for known in [c for c in cache if issubclass_real(c, cls)]:  # type: ignore[attr-defined]
                del cache[known]  # type: ignore[attr-defined]


_NAMING = frozenset({"typing", "types", "inspect", "collections.abc"})
_PARTS = ("__origin__", "__args__", "__metadata__", "__bound__", "__constraints__", "__supertype__", "annotation",
          "return_annotation",
          "default")


def issubclass_real(cls: type, base: type) -> bool:
    """Return whether one class is in the other's mro; no `__subclasscheck__` is called."""
    return base in cls.__mro__


def builtin_part(cls: type) -> type:
    """Return the nearest class of C in the mro."""
    return next(base for base in cls.__mro__ if not base.__flags__ & _HEAP)


ANSWERS_ITSELF: frozenset[type] = frozenset({types.ModuleType, super, threading.local, types.MethodType,
                                             types.GenericAlias,
                                             *weakref.ProxyTypes})
"""Classes written in C whose instances do not use `object`'s lookup of attributes."""


dict_of = type.__dict__["__dict__"].__get__
"""Return the real dict of a class, even if its metaclass defines `__dict__`."""


def getattr_static(cls: type, name: str) -> Any:
    """Return the raw attribute of a class by its mro, or MISSING."""
    for base in cls.__mro__:
        space = dict_of(base)
        if name in space:
            return space[name]
    return MISSING


_ASSIGNED = frozenset({*AT_CREATION, "__annotations__", "__abstractmethods__"})
"""Attributes that `type` keeps itself and that a class may be given afterwards, or is given at its creation."""


def _function(tracer: Any, x: t.Function) -> Any:
    fn = stand_in_function(x.code, x.globals, x.name, x.qualname)
    for name, value in (x.attrs or {}).items():
        if value.constant:
            fn.__dict__[name] = value.value  # type: ignore[attr-defined]
    return fn


def _object(tracer: Any, x: t.Object) -> Any:
    if x.payload is not None or x.cls.__flags__ & _ABSTRACT:
        return Placeholder()
    return object.__new__(x.cls) if x.cls.__new__ is object.__new__ or isinstance(x.cls.__new__,
                                                                                  types.FunctionType) else Placeholder()


def _dict(tracer: Any, x: t.Dict) -> Any:
    real = x.cls()
    for key, value in x.entries.items():
        if isinstance(key, str):
            real[key] = tracer.stand_in(value)
    return real


_STAND_INS: dict[type, Callable[[Any, Any], Any]] = {
    t.Function: _function, t.Object: _object, t.Dict: _dict, t.List: lambda tracer, x: [], t.Set: lambda tracer,
    x: x.base(),
}
_HEAP, _IMMUTABLE, _ABSTRACT = 1 << 9, 1 << 8, 1 << 20
