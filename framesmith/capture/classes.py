"""Namespaces: attributes of classes, Python modules, globals; what was read of each is guarded as a whole, by identity."""

from __future__ import annotations

import builtins
import operator
import sys
from collections.abc import Callable
from types import FunctionType, MappingProxyType
from typing import Any

from framesmith.util.errors import Unsupported

from . import trackers as t
from .registry import DESCRIPTORS, METHODS
from .sources import MISSING, Attr, Builtin, Global, GlobalOf, Item, Pinned, Source
from .values import STATIC_TYPES

_BUILTINS = builtins.__dict__


class ClassInfo:
    """The hooks of a class that replace object's own; None where it has none."""

    __slots__ = ("delattr", "getattr", "getattribute", "setattr")

    def __init__(self, cx: Any, cls: type) -> None:
        def hook(name: str, default: Any) -> Any:
            raw = cx.lookup(cls, name)
            return None if raw is default or raw is MISSING or not isinstance(raw, FunctionType) else raw

        self.getattribute = hook("__getattribute__", object.__getattribute__)
        self.getattr = hook("__getattr__", None)
        self.setattr = hook("__setattr__", object.__setattr__)
        self.delattr = hook("__delattr__", object.__delattr__)


class Namespaces:
    """The part of the session that reads classes, modules and globals."""

    guard: Callable[..., None]
    wrap: Callable[..., t.Tracker]
    made: Callable[..., t.Tracker]
    static: Callable[..., t.Tracker]
    wrap_static: Callable[..., t.Tracker]
    raise_: Callable[..., t.Tracker]
    fold: Callable[..., t.Tracker]
    seen: dict[int, t.Tracker]
    root_globals: dict[str, Any]

    def __init__(self) -> None:
        self.namespaces: dict[int, tuple[Any, dict[str, Any]]] = {}
        self.class_cache: dict[type, dict[str, Any]] = {}
        self.infos: dict[type, ClassInfo] = {}
        self.global_values: dict[int, dict[str, t.Tracker]] = {}
        self.global_writes: dict[tuple[int, str], tuple[dict[str, Any], t.Tracker]] = {}

    # --- namespaces ---------------------------------------------------------------------------------------------------
    def note(self, space: Any, name: str, value: Any) -> None:
        """`space` (a dict or a class) was seen to hold `value` under `name` (MISSING: nothing)."""
        entry = self.namespaces.get(id(space))
        if entry is None:
            entry = self.namespaces[id(space)] = (space, {})
        entry[1][name] = value

    def note_class(self, cls: type, name: str, value: Any) -> None:
        self.note(cls, name, value)

    # --- classes ------------------------------------------------------------------------------------------------------
    def lookup(self, cls: type, name: str) -> Any:
        """The raw attribute of a class by its mro, or MISSING."""
        cache = self.class_cache.get(cls)
        if cache is None:
            cache = self.class_cache[cls] = {}
        try:
            return cache[name]
        except KeyError:
            pass
        raw = MISSING
        for base in cls.__mro__:
            if name in base.__dict__:
                raw = base.__dict__[name]
                break
        cache[name] = raw
        self.note(cls, name, raw)
        return raw

    def class_info(self, cls: type) -> ClassInfo:
        info = self.infos.get(cls)
        if info is None:
            info = self.infos[cls] = ClassInfo(self, cls)
        return info

    def class_function(self, raw: Any) -> t.Tracker:
        """The tracker of a callable found in a class."""
        found = self.seen.get(id(raw))
        return found if found is not None else self.wrap_static(raw, Pinned(raw))

    def class_value(self, cls: type, name: str, raw: Any) -> t.Tracker:
        """A plain value in a class."""
        return self.wrap_static(raw, Pinned(raw) if hasattr(type(raw), "__get__") else Attr(Pinned(cls), name))

    def class_attr(self, klass: t.Class, name: str) -> t.Tracker:
        """`cls.name`"""
        cls = klass.value
        row = _CLASS_ATTRS.get(name)
        if row is not None:
            return row(self, cls)
        meta = type(cls)
        meta_raw = MISSING if meta is type else self.lookup(meta, name)
        if isinstance(meta_raw, property):
            return self.class_function(meta_raw.fget).call(self, [klass], {})
        raw = self.lookup(cls, name)
        if raw is MISSING:
            return self._metaclass_attr(klass, name, meta_raw)
        if isinstance(raw, classmethod):
            return t.Method(self.class_function(raw.__func__), klass)
        if isinstance(raw, staticmethod):
            return self.class_function(raw.__func__)
        if isinstance(raw, STATIC_TYPES) and not hasattr(type(raw), "__set__") and type(raw).__name__ != "classmethod_descriptor":
            return self.class_value(cls, name, raw)
        if not hasattr(type(raw), "__get__"):
            return self.class_value(cls, name, raw)
        return self.made(getattr(cls, name))

    def _metaclass_attr(self, klass: t.Class, name: str, meta_raw: Any) -> t.Tracker:
        cls = klass.value
        if isinstance(meta_raw, FunctionType):
            return t.Method(self.class_function(meta_raw), klass)
        hook = self.lookup(type(cls), "__getattr__") if type(cls) is not type else MISSING
        if isinstance(hook, FunctionType) and meta_raw is MISSING and not hasattr(type, name):
            try:
                return self.made(getattr(cls, name))
            except AttributeError as e:
                return self.raise_(e)
        try:
            return self.made(getattr(cls, name))
        except AttributeError as e:
            return self.raise_(e)

    def class_item(self, klass: t.Class, key: t.Tracker) -> t.Tracker:
        """`cls[key]`: generics, enum members by name, __class_getitem__."""
        return self.fold(operator.getitem, (klass.value, key.real(self)))

    def methods(self, family: type, name: str) -> Any:
        """The handler of a builtin type's method, looked up over the family's bases."""
        for base in family.__mro__:
            row = METHODS.get(base, {}).get(name)
            if row is not None:
                return row
        return None

    def descriptor_row(self, kind: type) -> Any:
        return DESCRIPTORS.get(kind)

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
            return self.made(value) if issubclass(type(value), STATIC_TYPES) else self.wrap_static(value, Attr(Pinned(module), name))
        return self.read_global(space, name)

    def globals_source(self, space: dict[str, Any]) -> Source:
        """The source of a globals dict as an object."""
        return Pinned(space)

    def global_source(self, space: dict[str, Any], name: str) -> Source:
        """The source of one name in a globals dict."""
        if space is self.root_globals:
            return Global(name)
        owner = space.get("__name__")
        if isinstance(owner, str) and getattr(sys.modules.get(owner), "__dict__", None) is space:
            return GlobalOf(owner, name)
        return Item(Pinned(space), name)

    def globals_of(self, space: dict[str, Any]) -> dict[str, t.Tracker]:
        """The cache of what was read of (or written to) a globals dict."""
        cache = self.global_values.get(id(space))
        if cache is None:
            cache = self.global_values[id(space)] = {}
        return cache

    def read_global(self, space: dict[str, Any], name: str) -> t.Tracker:
        """The global `name`, or the builtin of that name, or NameError."""
        cache = self.globals_of(space)
        found = cache.get(name)
        if found is not None:
            if found is t.DELETED:
                return self.raise_(NameError(f"name '{name}' is not defined", name=name))
            return found
        value = space.get(name, MISSING)
        if value is MISSING:
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
        cache[name] = tracker
        return tracker

    def store_global(self, space: dict[str, Any], name: str, value: t.Tracker) -> None:
        """`global name; name = value`"""
        self.globals_of(space)[name] = value
        self.global_writes[(id(space), name)] = (space, value)


def _class_dict(cx: Any, cls: type) -> t.Tracker:
    return cx.made(MappingProxyType(dict(cls.__dict__)))


_CLASS_ATTRS: dict[str, Callable[[Any, type], t.Tracker]] = {
    "__name__": lambda cx, cls: t.Const(cls.__name__),
    "__qualname__": lambda cx, cls: t.Const(cls.__qualname__),
    "__module__": lambda cx, cls: t.Const(cls.__module__),
    "__mro__": lambda cx, cls: cx.made(cls.__mro__),
    "__bases__": lambda cx, cls: cx.made(cls.__bases__),
    "__base__": lambda cx, cls: cx.made(cls.__base__),
    "__class__": lambda cx, cls: cx.made(type(cls)),
    "__dict__": _class_dict,
    "__doc__": lambda cx, cls: cx.made(cls.__doc__),
}

__all__ = ["ClassInfo", "Namespaces", "Unsupported"]
