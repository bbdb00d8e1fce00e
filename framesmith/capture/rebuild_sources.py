"""Sources -> expressions of residual code that walk them; no code of the program's runs."""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable
from typing import Any

from .class_making import getattr_static
from .contents import referent
from .eager_fallback import plain_call
from .rebuild_attributes import own_dict
from .sources import (
    Applied,
    Attr,
    Builtin,
    Cell,
    DictAttr,
    DictKey,
    Global,
    GlobalOf,
    Item,
    Local,
    Pinned,
    Slot,
    Source,
    TypeOf,
)


def _local(rebuilder: Any, s: Any) -> str:
    return rebuilder.arg_names[s.name]


def _global(rebuilder: Any, s: Any) -> str:
    return (s.name if s.name not in rebuilder.free
            else f"{rebuilder.namespace(rebuilder.tracer.root_globals)}[{s.name!r}]")


def _pinned(rebuilder: Any, s: Any) -> str:
    """Return the expression of a pinned object: the argument itself if it is one, which residual code does not keep
    alive."""
    at = getattr(rebuilder.tracer.seen.get(id(s.obj)), "source", None)
    return rebuilder.source(at) if at is not None and type(at.chain()[0]) is Local else rebuilder.hold(s.obj)


def _global_of(rebuilder: Any, s: Any) -> str:
    import_name = rebuilder.hold(sys.modules)
    return f"{import_name}[{s.module!r}].__dict__[{s.name!r}]"


def _item(rebuilder: Any, s: Any) -> str:
    """Return a subscript expression; by the raw method if the container's class overrides subscripts, since user code
    must not run."""
    base, key = rebuilder.source(s.base), rebuilder.value(rebuilder.tracer.unkey(s.key))
    cls = rebuilder.type_at(s.base)
    if cls is not None and isinstance(getattr(cls, "__getitem__", None), types.FunctionType):
        raw = next(kind for kind in (dict, list, tuple) if issubclass(cls, kind))
        return f"{rebuilder.hold(raw.__getitem__)}({base}, {key})"
    return f"{base}[{key}]"


def _applied(rebuilder: Any, s: Any) -> str:
    if s.function is not referent:
        return rebuilder.temp(f"{rebuilder.hold(s.function)}({rebuilder.source(s.base)})")
    name = rebuilder.targets.get(s)
    if name is None:
        name = rebuilder.targets[s] = rebuilder.temp(f"{rebuilder.hold(referent)}({rebuilder.source(s.base)})")
        rebuilder.emit(f"if {name} is None: return {plain_call(rebuilder)}")
    return name


def _instance_dict(rebuilder: Any, base: Source) -> str:
    return own_dict(rebuilder, rebuilder.source(base), rebuilder.type_at(base))


def _slot(rebuilder: Any, s: Any) -> str:
    """Return the expression that reads a descriptor; as an attribute if the object's class finds the descriptor
    itself."""
    base, cls = rebuilder.source(s.base), rebuilder.type_at(s.base)
    plain = getattr(cls, "__getattribute__", None) is object.__getattribute__
    if plain and getattr_static(cls, s.name) is vars(s.cls).get(s.name):
        return f"{base}.{s.name}"
    return f"{rebuilder.klass(s.cls)}.__dict__[{s.name!r}].__get__({base})"


SOURCES: dict[type, Callable[[Any, Any], str]] = {
    Local: _local,
    Global: _global,
    Builtin: lambda rebuilder, s: rebuilder.hold(getattr(builtins, s.name)),
    Cell: lambda rebuilder, s: s.name,
    GlobalOf: _global_of,
    Pinned: _pinned,
    Attr: lambda rebuilder,
    s: _instance_dict(rebuilder, s.base) if s.name == "__dict__" else f"{rebuilder.source(s.base)}.{s.name}",
    Slot: _slot,
    DictAttr: lambda rebuilder, s: f"{_instance_dict(rebuilder, s.base)}[{s.name!r}]",
    Item: _item,
    DictKey: lambda rebuilder, s: f"{rebuilder.hold(list)}({rebuilder.source(s.base)})[{s.index}]",
    Applied: _applied,
    TypeOf: lambda rebuilder, s: f"{rebuilder.hold(type)}({rebuilder.source(s.base)})",
}
