"""Namespaces: attributes of classes, Python modules, globals; what was read of each is guarded as a whole, by
identity."""

from __future__ import annotations

import builtins
import enum
import operator
import sys
from collections.abc import Callable
from types import FunctionType, MethodDescriptorType, ModuleType, WrapperDescriptorType
from typing import Any

from framesmith.util.errors import Unsupported

from . import trackers as t
from .class_making import ANSWERS_ITSELF, builtin_part, dict_of, getattr_static
from .instance_dicts import Spaces
from .registry import METHODS
from .sources import MISSING, Attr, Builtin, Global, GlobalOf, Item, Pinned, Source
from .standins import Placeholder
from .trackers.opaque import Opaque
from .values import CONSTANT_TYPES, STATIC_TYPES

_BUILTINS = builtins.__dict__


class ClassInfo:
    """The hooks by which a class overrides those of `object`; None where it has none."""

    __slots__ = ("delattr", "getattr", "getattribute", "setattr")

    def __init__(self, tracer: Any, cls: type) -> None:
        def hook(name: str, default: Any) -> Any:
            raw = tracer.lookup(cls, name)
            if isinstance(raw, FunctionType):
                return None if raw is default else raw
            if raw is MISSING or isinstance(raw, _OF_C) and builtin_part(cls) not in ANSWERS_ITSELF:
                return None
            raise Unsupported(f"{name} of {cls.__qualname__}, which is no function")

        self.getattribute = hook("__getattribute__", object.__getattribute__)
        self.getattr = hook("__getattr__", None)
        self.setattr = hook("__setattr__", object.__setattr__)
        self.delattr = hook("__delattr__", object.__delattr__)


class Namespaces(Spaces):
    """The part of the session that reads classes, modules and globals."""

    def __init__(self) -> None:
        super().__init__()
        self.namespaces: dict[int, tuple[Any, dict[str, Any]]] = {}
        self.class_cache: dict[type, dict[str, Any]] = {}
        self.infos: dict[type, ClassInfo] = {}
        self.plainly_named: set[type] = set()
        self.read_whole: set[type] = set()
        """Classes whose dict was looked at: their names are guarded."""
        self.plain_metas: set[type] = {type}
        self.made_classes: set[type] = set()
        """Stand-ins of the classes that the frame made."""
        self.fields: dict[int, dict[str, t.Tracker]] = {}
        """Fields of dataclasses that the frame made, by address, and what they were made with: each call of the frame
        makes its own."""
        self.of_made: dict[int, tuple[type, str] | None] = {}
        """Functions of stand-ins that no tracker represents, by address, and their place: the library's decorator that
        made them makes them again in the class. None: they cannot be reached."""
        self.repeating: list[tuple[t.Tracker, Any]] = []
        """Objects whose `__repr__`, guarded against recursion by a set of running ones, is running."""
        self.parts: set[int] = set()
        """Fields of stand-ins: outside of the class statement residual code has no name for them."""
        self.overlay: dict[type, dict[str, Any]] = {}
        """The frame's writes to existing classes: raw attributes, stand-ins or MISSING."""
        self.class_writes: dict[type, dict[str, t.Tracker | None]] = {}
        self.global_values: dict[int, dict[str, t.Tracker]] = {}
        self.global_writes: dict[tuple[int, str], tuple[dict[str, Any], t.Tracker]] = {}

    # --- namespaces ---------------------------------------------------------------------------------------------------
    def note(self, space: Any, name: str, value: Any) -> None:
        """`space` (a dict or a class) was seen to hold `value` under `name` (MISSING: nothing)."""
        entry = self.namespaces.get(id(space))
        if entry is None:
            entry = self.namespaces[id(space)] = (space, {})
        entry[1][name] = value

    def note_class(self, cls: type, name: str) -> None:
        """Assume what a class has under `name` (by its mro)."""
        if cls not in self.made_classes:
            self.note(cls, name, getattr_static(cls, name))

    # --- classes ------------------------------------------------------------------------------------------------------
    def lookup(self, cls: type, name: str) -> Any:
        """Return the raw attribute of a class by its mro, or MISSING."""
        cache = self.class_cache.get(cls)
        if cache is None:
            cache = self.class_cache[cls] = {}
        try:
            return cache[name]
        except KeyError:
            pass
        raw = MISSING
        if type(cls) not in self.plain_metas:
            self.meta_is_plain(type(cls))
        if cls.__mro__ is None:
            raise Unsupported("a class whose mro is being made")
        for base in cls.__mro__:
            if base not in self.plainly_named:
                self.names_are_plain(base)
            if cls in self.made_classes:
                self.note_class(base, name)
            raw = self.own_raw(base, name)
            if raw is not MISSING:
                break
        if isinstance(raw, FunctionType) and base in self.made_classes and id(raw) not in self.seen:
            self.of_made[id(raw)] = (base, name)
        cache[name] = raw
        self.note_class(cls, name)
        return raw

    def meta_is_plain(self, meta: type) -> None:
        """Return whether a lookup of an attribute in a class of this metaclass runs no code of the program's."""
        if isinstance(getattr_static(meta, "__getattribute__"), FunctionType):
            raise Unsupported(f"a class of {meta.__qualname__}, which has a __getattribute__")
        self.plain_metas.add(meta)

    def names_are_plain(self, cls: type) -> None:
        """Return whether a lookup in the class runs no code of the program's: its dict has only text as keys."""
        if not all(type(name) is str for name in dict_of(cls)):
            raise Unsupported(f"{cls.__qualname__}, a class with names that are no plain text")
        self.plainly_named.add(cls)

    def class_info(self, cls: type) -> ClassInfo:
        info = self.infos.get(cls)
        if info is None:
            info = self.infos[cls] = ClassInfo(self, cls)
        return info

    def class_function(self, raw: Any) -> t.Tracker:
        """Return the tracker of a callable found in a class."""
        found = self.seen.get(id(raw))
        return found if found is not None and type(found) is not t.Function else self.wrap_static(raw, Pinned(raw))

    def call_property(self, raw: property, part: str, args: list[t.Tracker]) -> t.Tracker:
        """Call the property's function for `part`; without one, raise CPython's own error."""
        fn = getattr(raw, part)
        if fn is not None:
            return self.class_function(fn).call(self, args, {})
        instance = self.stand_in(args[0])
        if isinstance(instance, Placeholder):
            raise Unsupported(f"a property of {args[0].describe()} without {part}")
        return self.made(self.folded(_PROPERTY[part], (raw, instance, None)[:3 if part == "fset" else 2]))

    def class_value(self, cls: type, name: str, raw: Any) -> t.Tracker:
        """Return the tracker of a raw value in a class: a descriptor itself, not the attribute that it computes."""
        return self.wrap_static(raw, Pinned(raw) if hasattr(type(raw), "__get__") else Attr(Pinned(cls), name))

    def class_attr(self, klass: t.Class, name: str) -> t.Tracker:
        """`cls.name`"""
        try:
            return self.found_in_class(klass, name)
        except t.CapturedError as e:
            meta = type(klass.value)
            hook = None if meta is type or issubclass(meta, enum.EnumMeta) else self.lookup(meta, "__getattr__")
            if not isinstance(hook, FunctionType) or not issubclass(e.tracker.pytype(), AttributeError):
                raise
        return self.class_function(hook).call(self, [klass, t.Const(name)], {})

    def found_in_class(self, klass: t.Class, name: str) -> t.Tracker:
        """type.__getattribute__"""
        cls, meta = klass.value, type(klass.value)
        if meta not in self.plain_metas:
            self.meta_is_plain(meta)
        row = _CLASS_ATTRS.get(name)
        if row is not None:
            return row(self, cls)
        meta_raw = MISSING if meta is type else self.lookup(meta, name)
        if isinstance(meta_raw, property):
            return self.call_property(meta_raw, "fget", [klass])
        if isinstance(getattr(type(meta_raw), "__set__", None), FunctionType):
            return self.call_special(self.class_value(meta, name, meta_raw), "__get__", [klass, self.made(meta)])
        raw = self.lookup(cls, name)
        if raw is MISSING:
            return self._metaclass_attr(klass, name, meta_raw)
        if isinstance(raw, classmethod):
            return t.Method(self.class_function(raw.__func__), klass)
        if isinstance(raw, staticmethod):
            return self.class_function(raw.__func__)
        if (isinstance(raw, STATIC_TYPES) and not hasattr(type(raw), "__set__")
            and type(raw).__name__ != "classmethod_descriptor"):
            return self.class_value(cls, name, raw)
        getter = getattr(type(raw), "__get__", None)
        if getter is None or id(raw) in self.seen and isinstance(raw, property):
            return self.class_value(cls, name, raw)
        if isinstance(getter, FunctionType):
            return self.call_special(self.class_value(cls, name, raw), "__get__", [t.NONE, klass])
        return self._real_attr(klass, name)

    def _real_attr(self, klass: t.Class, name: str) -> t.Tracker:
        """Return the attribute that C gives; a builtin method of a class made in the frame is not bound to its
        stand-in."""
        value = self.folded(getattr, (klass.value, name))
        if klass.value in self.made_classes and getattr(value, "__self__", None) is klass.value:
            return t.Bound(klass, name)
        return self.made(value)

    def _metaclass_attr(self, klass: t.Class, name: str, meta_raw: Any) -> t.Tracker:
        meta = type(klass.value)
        if isinstance(meta_raw, (FunctionType, classmethod, staticmethod)):
            return self.bound_special(klass, name, meta_raw)
        if meta_raw is MISSING and meta is not type:
            hook = self.lookup(meta, "__getattr__")
            if isinstance(hook, FunctionType) and not issubclass(meta, enum.EnumMeta):
                return self.no_attribute(klass, name)
        if meta_raw is not MISSING and not hasattr(type(meta_raw), "__get__"):
            return self.class_value(meta, name, meta_raw)
        try:
            return self._real_attr(klass, name)
        except AttributeError as e:
            return self.no_attribute(klass, name, str(e))

    def set_class_attr(self, klass: t.Class, name: str, value: t.Tracker | None) -> None:
        """`cls.name = value`, or `del cls.name` for None, by the metaclass."""
        meta = type(klass.value)
        hook = self.lookup(meta, "__setattr__" if value is not None else "__delattr__")
        if isinstance(hook, FunctionType):
            self.class_function(hook).call(self, [klass, t.Const(name), *([] if value is None else [value])], {})
            return
        raw = MISSING if meta is type else self.lookup(meta, name)
        if isinstance(raw, property):
            self.call_property(raw, "fset" if value is not None else "fdel",
                               [klass, *([] if value is None else [value])])
            return
        self.put_class_attr(klass, name, value)

    def class_item(self, klass: t.Class, key: t.Tracker) -> t.Tracker:
        """`cls[key]`: by the metaclass, enum members by name, __class_getitem__ (generics)."""
        cls, meta = klass.value, type(klass.value)
        if isinstance(self.lookup(meta, "__getitem__"), FunctionType) and not issubclass(meta, enum.EnumMeta):
            return self.call_special(klass, "__getitem__", [key])
        raw = self.lookup(cls, "__class_getitem__")
        if isinstance(raw, classmethod) and isinstance(raw.__func__,
                                                       FunctionType) and raw.__func__.__module__ not in (
                                                           "typing", "torch"):
            return self.class_function(raw.__func__).call(self, [klass, key], {})
        if any(isinstance(k, t.Object) for k in (key.open(self) if isinstance(key, t.Tuple) else [key])):
            raise Unsupported(f"{klass.describe()} of an object")
        return self.fold(operator.getitem, (klass.value, key.real(self)))

    def methods(self, family: type, name: str) -> Any:
        """Return the handler of a builtin type's method, looked up over the family's bases."""
        for base in family.__mro__:
            row = METHODS.get(base, {}).get(name)
            if row is not None:
                return row
        return None

    # --- modules and globals ------------------------------------------------------------------------------------------
    def module_attr(self, module: Any, name: str) -> t.Tracker:
        """`module.name`"""
        space = module.__dict__
        if name not in space:
            values = self.global_values.get(id(space))
            if values is not None and name in values:
                return values[name]
            try:
                value = getattr(module, name)
            except AttributeError as e:
                self.note(space, name, MISSING)
                return self.raise_(e)
            return self.made(value) if issubclass(type(value),
                                                  STATIC_TYPES) else self.wrap_static(value, Attr(Pinned(module), name))
        return self.read_global(space, name)

    def global_source(self, space: dict[str, Any], name: str) -> Source:
        """Return the source of one name in a globals dict."""
        if space is self.root_globals:
            return Global(name)
        owner = space.get("__name__")
        if isinstance(owner, str) and type(module := sys.modules.get(owner)) is ModuleType and vars(module) is space:
            return GlobalOf(owner, name)
        return Item(Pinned(space), name)

    def globals_of(self, space: dict[str, Any]) -> dict[str, t.Tracker]:
        """Return the cache of the values read from (or written to) a globals dict."""
        cache = self.global_values.get(id(space))
        if cache is None:
            if id(self.seen.get(id(space))) in self.mutated:
                raise Unsupported("a name of a namespace that was changed as a dict")
            cache = self.global_values[id(space)] = {}
        return cache

    def read_global(self, space: dict[str, Any], name: str) -> t.Tracker:
        """Return the global `name`, or the builtin of that name, or NameError."""
        cache = self.globals_of(space)
        found = cache.get(name)
        if found is not None and found is not t.DELETED:
            return found
        value = space.get(name, MISSING) if found is None else MISSING
        if value is MISSING:
            if found is None:
                self.note(space, name, MISSING)
            value = _BUILTINS.get(name, MISSING)
            if value is MISSING:
                return self.raise_(NameError(f"name '{name}' is not defined", name=name))
            self.note(_BUILTINS, name, value)
            tracker = self.static(value, Builtin(name)) if issubclass(type(value), STATIC_TYPES) else self.made(value)
        elif issubclass(type(value), STATIC_TYPES):
            self.note(space, name, value)
            tracker = self.static(value, self.global_source(space, name))
        else:
            tracker = self.wrap(value, self.global_source(space, name))
        if found is None:
            cache[name] = tracker
        return tracker

    def store_global(self, space: dict[str, Any], name: str, value: t.Tracker) -> None:
        """`global name; name = value`"""
        if id(space) in self.seen:
            raise Unsupported("assignment to a name of a namespace that is used as a dict, too")
        self.touch(space)
        self.globals_of(space)[name] = value
        self.global_writes[(id(space), name)] = (space, value)


def _annotations(tracer: Any, cls: type) -> t.Tracker:
    """Return a class's own annotations, never a base's; a class without any gets an empty dict when they are read."""
    raw = tracer.own_raw(cls, "__annotations__")
    if raw is MISSING and cls in tracer.made_classes:
        tracer.put_class_attr(tracer.seen[id(cls)], "__annotations__", t.Dict({}))
        raw = tracer.own_raw(cls, "__annotations__")
    if id(raw) in tracer.seen:
        return tracer.seen[id(raw)]
    return tracer.wrap(tracer.folded(getattr, (cls, "__annotations__")), Attr(Pinned(cls), "__annotations__"))


def _class_dict(tracer: Any, cls: type) -> t.Tracker:
    if cls in tracer.made_classes:
        return t.ClassDict({name: _in_stand_in(tracer, value) for name, value in dict_of(cls).items()}, cls)
    if cls.__flags__ & _HEAP and cls not in tracer.read_whole:
        tracer.read_whole.add(cls)
        for name in dict_of(cls):
            tracer.note_class(cls, name)
        tracer.guard(Pinned(cls), "callable", _SameNames(cls))
    return t.ClassDict({name: tracer.wrap_static(value, None) for name, value in dict_of(cls).items()}, cls)


def _in_stand_in(tracer: Any, value: Any) -> t.Tracker:
    """Return the tracker of a value in a stand-in: the program's, or one that `type` created."""
    found = tracer.seen.get(id(value))
    return found if found is not None else t.Const(value) if type(value) in CONSTANT_TYPES else Opaque(type(value),
                                                                                                       value, None)


class _SameNames:
    """A class has these names and no others."""

    __slots__ = ("names",)

    def __init__(self, cls: type) -> None:
        self.names = self.of(cls)

    def of(self, cls: type) -> list[str]:
        return [name for name in dict_of(cls) if name != "__annotations__"]  # made when somebody asks

    def __call__(self, cls: type) -> bool:
        return self.of(cls) == self.names


def _slot(name: str, kind: str, told_by: str | None = None) -> Callable[[Any, type], t.Tracker]:
    """Make the row of an attribute that `type` itself keeps. It is guarded where it may be assigned to, by the
    attribute `told_by` if that is given."""

    def row(tracer: Any, cls: type) -> t.Tracker:
        if cls.__flags__ & _HEAP and cls not in tracer.made_classes:
            asked = told_by or name
            tracer.guard(Attr(Pinned(cls), asked), kind, type.__getattribute__(cls, asked))
        return tracer.made(type.__getattribute__(cls, name))

    return row


def _module(tracer: Any, cls: type) -> t.Tracker:
    tracer.note_class(cls, "__module__")
    return tracer.made(cls.__module__)


def _abstract_methods(tracer: Any, cls: type) -> t.Tracker:
    """Return a class's own abstract methods, never a base's."""
    tracer.note_class(cls, "__abstractmethods__")
    return tracer.fold(type.__getattribute__, (cls, "__abstractmethods__"))


_HEAP = 1 << 9
_OF_C = (WrapperDescriptorType, MethodDescriptorType)
_PROPERTY: dict[str, Callable[..., Any]] = {"fget": property.__get__, "fset": property.__set__,
                                            "fdel": property.__delete__}
_CLASS_ATTRS: dict[str, Callable[[Any, type], t.Tracker]] = {
    "__name__": _slot("__name__", "equals"),
    "__qualname__": _slot("__qualname__", "equals"),
    "__module__": _module,
    "__mro__": _slot("__mro__", "id"),
    "__bases__": _slot("__bases__", "id"),
    "__base__": _slot("__base__", "id", "__bases__"),
    "__class__": lambda tracer, cls: tracer.made(type(cls)),
    "__dict__": _class_dict,
    "__doc__": lambda tracer, cls: tracer.made(cls.__doc__),
    "__annotations__": _annotations,
    "__abstractmethods__": _abstract_methods,
}
