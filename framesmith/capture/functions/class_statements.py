"""`__build_class__`, `type(...)`, property and its kin, and the decorators and metaclasses of the standard library."""

from __future__ import annotations

import abc
import builtins
import dataclasses
import enum
import typing
from typing import Any

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..registry import calls, method
from ..standins import Placeholder

Args = list[t.Tracker]
Kwargs = dict[str, t.Tracker]


@calls(builtins.__build_class__)
def _build_class(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    body, name = args[0], args[1]
    kwargs = dict(kwargs)
    originals = args[2:]
    bases = _entries(cx, originals)
    meta = kwargs.pop("metaclass", None)
    if meta is None:
        meta = cx.made(bases[0].pytype()) if bases else cx.made(type)
    if isinstance(meta, t.Class):
        meta = cx.made(_winner(cx, meta.value, bases))
    space = _prepare(cx, meta, name, bases, kwargs)
    cell = cx.run_class_body(body, space)
    if bases != originals:
        space.set_item(cx, t.Const("__orig_bases__"), t.Tuple(originals))
    made = meta.call(cx, [name, t.Tuple(bases), space], kwargs)
    if isinstance(made, t.Class) and isinstance(cell, t.Cell) and cell.content is not made:
        raise Unsupported("a metaclass that does not hand on __classcell__")
    return made


def _entries(cx: Any, originals: Args) -> Args:
    """The bases, with `__mro_entries__` of those that are no classes."""
    out: Args = []
    for base in originals:
        if isinstance(base, t.Class) or base.constant and not hasattr(base.value, "__mro_entries__"):  # type: ignore[attr-defined]
            out.append(base)
        elif base.constant:
            real = tuple(b.real(cx) for b in originals)
            out.extend(cx.made(b) for b in cx.folded(base.value.__mro_entries__, (real,)))  # type: ignore[attr-defined]
        else:
            raise Unsupported(f"{base.describe()} as a base class")
    return out


def _winner(cx: Any, meta: type, bases: Args) -> type:
    for base in bases:
        kind = base.pytype()
        if issubclass(meta, kind):
            continue
        if not issubclass(kind, meta):
            cx.raise_(TypeError("metaclass conflict: the metaclass of a derived class must be a (non-strict) subclass of the metaclasses "
                                "of all its bases"))
        meta = kind
    return meta


def _prepare(cx: Any, meta: t.Tracker, name: t.Tracker, bases: Args, kwargs: Kwargs) -> t.Tracker:
    if isinstance(meta, t.Class) and cx.lookup(meta.value, "__prepare__") is _TYPE_PREPARE:
        return t.Dict({})
    if isinstance(meta, t.Class) and issubclass(meta.value, enum.EnumMeta):
        raise Unsupported("an enum made inside a function", hint="move it out of the function")
    if isinstance(meta, (t.Function, t.Method)):
        return t.Dict({})
    return meta.get(cx, "__prepare__").call(cx, [name, t.Tuple(bases)], kwargs)


_TYPE_PREPARE = type.__dict__["__prepare__"]


@calls(type.__new__)
def _type_new(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    meta, name, bases, space = args
    entries = dict(cx.mapping(space))
    if not all(isinstance(k, str) for k in entries):
        raise Unsupported("a class with names that are no strings")
    entries.setdefault("__module__", t.Const(cx.frames[-1].globals.get("__name__")))
    return cx.new_class(meta, name.real(cx), bases.items_list(cx), entries, kwargs)


@calls(type.__init__)
def _type_init(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.NONE


@calls(type.__call__)
def _type_call(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return cx.instantiate(args[0], args[1:], kwargs, plain=True)


@calls(type.__setattr__)
def _type_setattr(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    cx.put_class_attr(args[0], args[1].real(cx), args[2])
    return t.NONE


@calls(type.__delattr__)
def _type_delattr(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    cx.put_class_attr(args[0], args[1].real(cx), None)
    return t.NONE


@calls(type)
def _type(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if len(args) == 1:
        return cx.made(args[0].pytype())
    if len(args) != 3:
        cx.raise_(TypeError("type() takes 1 or 3 arguments"))
    bases = args[1].items_list(cx)
    meta = _winner(cx, type, bases)
    if meta is not type:
        return cx.made(meta).call(cx, args, kwargs)
    return _type_new(cx, [cx.made(type), *args], kwargs)


# --- descriptors ----------------------------------------------------------------------------------------------------------
@calls(property)
def _property(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    parts = dict(zip(("fget", "fset", "fdel", "__doc__"), args))
    parts.update({"__doc__" if k == "doc" else k: v for k, v in kwargs.items()})
    full = {k: parts.get(k, t.NONE) for k in ("fget", "fset", "fdel")}
    if "__doc__" in parts:
        full["__doc__"] = parts["__doc__"]
    return cx.wrapped(property, full)


def _method_kind(kind: Any) -> Any:
    return lambda cx, args, kwargs: cx.wrapped(kind, {"__func__": args[0]})


for _kind in (classmethod, staticmethod):
    calls(_kind)(_method_kind(_kind))


# --- abc, dataclasses -------------------------------------------------------------------------------------------------------
_abc_init: Any = getattr(abc, "_abc_init")  # noqa: B009


@calls(_abc_init)
def _init_abstract(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    made = args[0]
    if not isinstance(made, t.MadeClass):
        raise Unsupported("a class becomes abstract")
    _abc_init(made.value)
    made.after.append(_abc_init)
    return t.NONE


@calls(dataclasses.dataclass)
def _dataclass(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if not args or args[0] is t.NONE:
        return t.ByRow(lambda cx, inner, _: _dataclass(cx, inner, kwargs))
    made = args[0]
    options = {k: v.real(cx) for k, v in kwargs.items()}
    if not isinstance(made, t.MadeClass) or options.get("slots") or made.taken:
        raise Unsupported(f"{made.describe()} becomes a dataclass")
    if any(isinstance(vars(made.value).get(name), Placeholder) for name in made.value.__dict__.get("__annotations__", ())):
        raise Unsupported(f"{made.describe()} becomes a dataclass with a default that only the frame knows")
    cx.folded(dataclasses.dataclass(**options), (made.value,))
    cx.parts.update(map(id, vars(made.value)["__dataclass_fields__"].values()))
    made.after.append(dataclasses.dataclass(**options))
    made.taken = True
    cx.class_changed(made.value)
    return made


# Python up to 3.11; what C calls from 3.12 on
_INIT_SUBCLASS = getattr(typing.Generic.__init_subclass__, "__func__", None) or typing._generic_init_subclass  # type: ignore[attr-defined]


@calls(_INIT_SUBCLASS)
def _generic(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """It does nothing but set the class's type parameters."""
    made = args[0]
    mro = made.pytype().__mro__ if not isinstance(made, t.Class) else made.value.__mro__
    if not isinstance(made, t.MadeClass) or kwargs or any("__init_subclass__" in vars(c) for c in mro[mro.index(typing.Generic) + 1:-1]):
        raise Unsupported(f"{made.describe()} becomes generic")
    cx.folded(_INIT_SUBCLASS, (made.value,))
    made.put(cx, "__parameters__", cx.made(made.value.__parameters__))  # type: ignore[attr-defined]
    return t.NONE


@calls(dataclasses.field)
def _field(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    made = cx.folded(dataclasses.field, (), {k: v.real(cx) if k == "metadata" else cx.stand_in(v) for k, v in kwargs.items()})
    cx.fields[id(made)] = kwargs
    cx.keep.append(made)
    return t.Const(made)



# --- bound methods ----------------------------------------------------------------------------------------------------------
@method(t.Method, "__eq__")
def _same_method(cx: Any, self: t.Method, other: t.Tracker) -> t.Tracker:
    if not isinstance(other, t.Method):
        return t.Const(NotImplemented)
    return t.boolean(self.obj.identity() is other.obj.identity() and self.func.identity() is other.func.identity())
