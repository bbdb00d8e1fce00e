"""Sources -> expressions of residual code that walk them; no code of the program's runs."""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable
from typing import Any

from .class_making import getattr_static
from .contents import referent
from .plainly import plain_call
from .rebuild_attributes import own_dict
from .sources import Applied, Attr, Builtin, Cell, DictAttr, DictKey, Global, GlobalOf, Item, Local, Pinned, Slot, Source, TypeOf


def _local(rb: Any, s: Any) -> str:
    return rb.arg_names[s.name]


def _global(rb: Any, s: Any) -> str:
    return s.name if s.name not in rb.free else f"{rb.namespace(rb.cx.root_globals)}[{s.name!r}]"


def _pinned(rb: Any, s: Any) -> str:
    """The object, by its argument if it is one: residual code does not keep those alive."""
    at = getattr(rb.cx.seen.get(id(s.obj)), "source", None)
    return rb.source(at) if at is not None and type(at.chain()[0]) is Local else rb.hold(s.obj)


def _global_of(rb: Any, s: Any) -> str:
    import_name = rb.hold(sys.modules)
    return f"{import_name}[{s.module!r}].__dict__[{s.name!r}]"


def _item(rb: Any, s: Any) -> str:
    """A subscript; by the raw method where the container's class has a subscript of its own, which must not run."""
    base, key = rb.source(s.base), rb.value(rb.cx.unkey(s.key))
    cls = rb.type_at(s.base)
    if cls is not None and isinstance(getattr(cls, "__getitem__", None), types.FunctionType):
        raw = next(kind for kind in (dict, list, tuple) if issubclass(cls, kind))
        return f"{rb.hold(raw.__getitem__)}({base}, {key})"
    return f"{base}[{key}]"


def _applied(rb: Any, s: Any) -> str:
    if s.function is not referent:
        return rb.temp(f"{rb.hold(s.function)}({rb.source(s.base)})")
    name = rb.targets.get(s)
    if name is None:
        name = rb.targets[s] = rb.temp(f"{rb.hold(referent)}({rb.source(s.base)})")
        rb.emit(f"if {name} is None: return {plain_call(rb)}")
    return name


def _instance_dict(rb: Any, base: Source) -> str:
    return own_dict(rb, rb.source(base), rb.type_at(base))


def _slot(rb: Any, s: Any) -> str:
    """A descriptor's reading; as an attribute where the object's class finds the descriptor itself."""
    base, cls = rb.source(s.base), rb.type_at(s.base)
    plain = getattr(cls, "__getattribute__", None) is object.__getattribute__
    if plain and getattr_static(cls, s.name) is vars(s.cls).get(s.name):
        return f"{base}.{s.name}"
    return f"{rb.klass(s.cls)}.__dict__[{s.name!r}].__get__({base})"


SOURCES: dict[type, Callable[[Any, Any], str]] = {
    Local: _local,
    Global: _global,
    Builtin: lambda rb, s: rb.hold(getattr(builtins, s.name)),
    Cell: lambda rb, s: s.name,
    GlobalOf: _global_of,
    Pinned: _pinned,
    Attr: lambda rb, s: _instance_dict(rb, s.base) if s.name == "__dict__" else f"{rb.source(s.base)}.{s.name}",
    Slot: _slot,
    DictAttr: lambda rb, s: f"{_instance_dict(rb, s.base)}[{s.name!r}]",
    Item: _item,
    DictKey: lambda rb, s: f"{rb.hold(list)}({rb.source(s.base)})[{s.index}]",
    Applied: _applied,
    TypeOf: lambda rb, s: f"{rb.hold(type)}({rb.source(s.base)})",
}

__all__ = ["SOURCES"]
