"""`__build_class__`, `type(...)`, property and similar descriptors, and the standard library's decorators and
metaclasses."""

from __future__ import annotations

import abc
import builtins
import dataclasses
import enum
import typing
from typing import Any

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..registry import by_position, calls
from ..standins import Placeholder
from ..trackers import Args, Kwargs


@calls(builtins.__build_class__)
def _build_class(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    body, name = args[0], args[1]
    kwargs = dict(kwargs)
    originals = args[2:]
    bases = _entries(tracer, originals)
    meta = kwargs.pop("metaclass", None)
    if meta is None:
        meta = tracer.made(bases[0].pytype()) if bases else tracer.made(type)
    if isinstance(meta, t.Class):
        meta = tracer.made(_winner(tracer, meta.value, bases))
    space = _prepare(tracer, meta, name, bases, kwargs)
    cell = tracer.run_class_body(body, space)
    if bases != originals:
        space.set_item(tracer, t.Const("__orig_bases__"), t.Tuple(originals))
    made = meta.call(tracer, [name, t.Tuple(bases), space], kwargs)
    if isinstance(made, t.Class) and isinstance(cell, t.Cell) and cell.content is not made:
        raise Unsupported("a metaclass that does not hand on __classcell__")
    return made


def _entries(tracer: Any, originals: Args) -> Args:
    """Return the bases, with `__mro_entries__` of those that are not classes."""
    out: Args = []
    for base in originals:
        if (isinstance(base, t.Class) or base.constant
            and not hasattr(base.value, "__mro_entries__")):  # type: ignore[attr-defined]
            out.append(base)
        elif base.constant:
            real = tuple(b.real(tracer) for b in originals)
            out.extend(tracer.made(b)
                       for b in tracer.folded(base.value.__mro_entries__, (real,)))  # type: ignore[attr-defined]
        else:
            raise Unsupported(f"{base.describe()} as a base class")
    return out


def _winner(tracer: Any, meta: type, bases: Args) -> type:
    for base in bases:
        kind = base.pytype()
        if issubclass(meta, kind):
            continue
        if not issubclass(kind, meta):
            tracer.raise_(TypeError("metaclass conflict: the metaclass of a derived class must be a (non-strict) "
                                    "subclass of the metaclasses "
                                "of all its bases"))
        meta = kind
    return meta


def _prepare(tracer: Any, meta: t.Tracker, name: t.Tracker, bases: Args, kwargs: Kwargs) -> t.Tracker:
    if isinstance(meta, t.Class) and tracer.lookup(meta.value, "__prepare__") is _TYPE_PREPARE:
        return t.Dict({})
    if isinstance(meta, t.Class) and issubclass(meta.value, enum.EnumMeta):
        raise Unsupported("an enum made inside a function", hint="move it out of the function")
    if isinstance(meta, (t.Function, t.Method)):
        return t.Dict({})
    return meta.get(tracer, "__prepare__").call(tracer, [name, t.Tuple(bases)], kwargs)


_TYPE_PREPARE = type.__dict__["__prepare__"]


@calls(type.__new__)
def _type_new(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    meta, name, bases, space = args
    entries = dict(tracer.mapping(space))
    if not all(isinstance(k, str) for k in entries):
        raise Unsupported("a class with names that are no strings")
    entries.setdefault("__module__", t.Const(tracer.frames[-1].globals.get("__name__")))
    return tracer.new_class(meta, name.real(tracer), bases.items_list(tracer), entries, kwargs)


@calls(type)
def _type(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if len(args) == 1:
        return tracer.made(args[0].pytype())
    if len(args) != 3:
        tracer.raise_(TypeError("type() takes 1 or 3 arguments"))
    bases = args[1].items_list(tracer)
    meta = _winner(tracer, type, bases)
    if meta is not type:
        return tracer.made(meta).call(tracer, args, kwargs)
    return _type_new(tracer, [tracer.made(type), *args], kwargs)


# --- descriptors ------------------------------------------------------------------------------------------------------
@calls(property)
def _property(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    parts = dict(zip(("fget", "fset", "fdel", "__doc__"), args))
    parts.update({"__doc__" if k == "doc" else k: v for k, v in kwargs.items()})
    full = {k: parts.get(k, t.NONE) for k in ("fget", "fset", "fdel")}
    if "__doc__" in parts:
        full["__doc__"] = parts["__doc__"]
    return tracer.wrapped(property, full)


by_position({
    type.__init__: lambda tracer, *args, **kwargs: t.NONE,
    type.__call__: lambda tracer, cls, *args, **kwargs: tracer.instantiate(cls, list(args), kwargs, plain=True),
    type.__setattr__: lambda tracer, cls, name, value: _put(tracer, cls, name, value),
    type.__delattr__: lambda tracer, cls, name: _put(tracer, cls, name, None),
    classmethod: lambda tracer, fn: tracer.wrapped(classmethod, {"__func__": fn}),
    staticmethod: lambda tracer, fn: tracer.wrapped(staticmethod, {"__func__": fn}),
})


def _put(tracer: Any, cls: Any, name: t.Tracker, value: t.Tracker | None) -> t.Tracker:
    tracer.put_class_attr(cls, name.real(tracer), value)
    return t.NONE


# --- abc, dataclasses -------------------------------------------------------------------------------------------------
_abc_init: Any = getattr(abc, "_abc_init")  # noqa: B009


@calls(_abc_init)
def _init_abstract(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    made = args[0]
    if not isinstance(made, t.MadeClass):
        raise Unsupported("a class becomes abstract")
    _abc_init(made.value)
    made.after.append(_abc_init)
    return t.NONE


@calls(dataclasses.dataclass)
def _dataclass(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if not args or args[0] is t.NONE:
        return t.ByRow(lambda tracer, inner, _: _dataclass(tracer, inner, kwargs))
    made = args[0]
    options = {k: v.real(tracer) for k, v in kwargs.items()}
    if not isinstance(made, t.MadeClass) or options.get("slots") or made.taken:
        raise Unsupported(f"{made.describe()} becomes a dataclass")
    if any(isinstance(vars(made.value).get(name), Placeholder)
           for name in made.value.__dict__.get("__annotations__", ())):
        raise Unsupported(f"{made.describe()} becomes a dataclass with a default that only the frame knows")
    tracer.folded(dataclasses.dataclass(**options), (made.value,))
    tracer.parts.update(map(id, vars(made.value)["__dataclass_fields__"].values()))
    made.after.append(dataclasses.dataclass(**options))
    made.taken = True
    tracer.class_changed(made.value)
    return made


# Python up to 3.11; what C calls from 3.12 on
_INIT_SUBCLASS = getattr(typing.Generic.__init_subclass__, "__func__",
                         None) or typing._generic_init_subclass  # type: ignore[attr-defined]


@calls(_INIT_SUBCLASS)
def _generic(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Set the class's type parameters, the only effect of the original."""
    made = args[0]
    mro = made.pytype().__mro__ if not isinstance(made, t.Class) else made.value.__mro__
    if not isinstance(made, t.MadeClass) or kwargs or any("__init_subclass__" in vars(c)
                                                          for c in mro[mro.index(typing.Generic) + 1:-1]):
        raise Unsupported(f"{made.describe()} becomes generic")
    tracer.folded(_INIT_SUBCLASS, (made.value,))
    made.put(tracer, "__parameters__", tracer.made(made.value.__parameters__))  # type: ignore[attr-defined]
    return t.NONE


@calls(dataclasses.field)
def _field(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    made = tracer.folded(dataclasses.field, (),
                         {k: v.real(tracer) if k == "metadata" else tracer.stand_in(v) for k, v in kwargs.items()})
    tracer.fields[id(made)] = kwargs
    tracer.keep.append(made)
    return t.Const(made)
