"""Globals, attributes, imports."""

from __future__ import annotations

import importlib.util
import sys
from types import FunctionType, ModuleType
from typing import Any

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..frame import Frame
from ..registry import op


@op("LOAD_GLOBAL")
def _global(f: Frame, name: str) -> None:
    v = f.gvalues.get(name)
    if v is None or v is t.DELETED:
        v = f.tracer.read_global(f.globals, name)
    f.stack.append(v)


@op("LOAD_GLOBAL_NULL")
def _global_null(f: Frame, name: str) -> None:
    f.stack.append(t.NULL)
    _global(f, name)


@op("STORE_GLOBAL")
def _store_global(f: Frame, name: str) -> None:
    f.tracer.store_global(f.globals, name, f.stack.pop())


@op("DELETE_GLOBAL")
def _delete_global(f: Frame, name: str) -> None:
    f.tracer.read_global(f.globals, name)
    f.tracer.store_global(f.globals, name, t.DELETED)


@op("LOAD_ATTR")
def _attr(f: Frame, name: str) -> None:
    s = f.stack
    try:
        s[-1] = s[-1].get(f.tracer, name)
    except t.CapturedError as e:
        f.tracer.set_error_context(e.tracker, s[-1], name)
        raise


@op("LOAD_METHOD")
def _method(f: Frame, name: str) -> None:
    _attr(f, name)
    f.stack.insert(-1, t.NULL)


@op("LOAD_SUPER_ATTR")
def _super_attr(f: Frame, arg: tuple[str, bool, bool]) -> None:
    name, wants_method, _ = arg
    s = f.stack
    obj = s.pop()
    cls = s.pop()
    fn = s.pop()
    if not (isinstance(fn, t.Static) and fn.value is super):
        raise Unsupported("super is shadowed")
    v = t.super_of(f.tracer, cls, obj).get(f.tracer, name)
    if wants_method:
        s.append(t.NULL)
    s.append(v)


@op("STORE_ATTR")
def _store_attr(f: Frame, name: str) -> None:
    obj = f.stack.pop()
    value = f.stack.pop()
    obj.set(f.tracer, name, value)


@op("DELETE_ATTR")
def _delete_attr(f: Frame, name: str) -> None:
    f.stack.pop().delete(f.tracer, name)


@op("IMPORT_NAME")
def _import(f: Frame, name: str) -> None:
    tracer = f.tracer
    names = f.stack.pop().real(tracer)
    depth = f.stack.pop().real(tracer)
    space: dict[str, Any] = {k: f.globals.get(k)
                             for k in ("__package__", "__name__", "__path__", "__spec__") if k in f.globals}
    full = name
    if depth:
        package = space.get("__package__") or str(space.get("__name__", "")).rpartition(".")[0]
        full = tracer.folded(importlib.util.resolve_name, ("." * depth + name, package))
    module = sys.modules.get(full)
    if module is not None and (not issubclass(type(module), ModuleType) or isinstance(
            tracer.lookup(type(module), "__getattribute__"), FunctionType)):
        raise Unsupported(f"import from {full}, whose attributes are the program's code")
    if module is None or hasattr(module, "__path__") and any(
            n != "*" and not hasattr(module, n) and f"{full}.{n}" not in sys.modules for n in names or ()):
        raise Unsupported(f"import of {full}, which is not loaded yet", hint="import it before the call")
    f.stack.append(tracer.made(tracer.folded(__import__, (name, space, None, names, depth))))


@op("IMPORT_FROM")
def _import_from(f: Frame, name: str) -> None:
    tracer = f.tracer
    module = f.stack[-1]
    try:
        f.stack.append(module.get(tracer, name))
    except t.CapturedError as e:
        if not isinstance(module, t.PyModule) or not issubclass(e.tracker.pytype(), AttributeError):
            raise
    else:
        return
    package, path = module.value.__name__, getattr(module.value, "__file__", None)
    inner = sys.modules.get(f"{package}.{name}")
    if inner is not None:
        f.stack.append(tracer.made(inner))
        return
    tracer.raise_(ImportError(f"cannot import name {name!r} from {package!r} ({path or 'unknown location'})",
                              name=package, path=path))


# --- class bodies: names in a mapping ---------------------------------------------------------------------------------
def space_of(f: Frame) -> t.Tracker:
    """Return the namespace of a class body."""
    if f.space is None:
        raise Unsupported("code of a module or of exec()")
    return f.space


def _in_space(f: Frame, name: str) -> t.Tracker | None:
    space = space_of(f)
    if type(space) is t.Dict:
        return space.lookup(f.tracer, name)
    return f.tracer.none_if_raised(KeyError, space.item, f.tracer, t.Const(name))


@op("LOAD_NAME")
def _load_name(f: Frame, name: str) -> None:
    v = _in_space(f, name)
    f.stack.append(v if v is not None else f.tracer.read_global(f.globals, name))


@op("STORE_NAME")
def _store_name(f: Frame, name: str) -> None:
    space_of(f).set_item(f.tracer, t.Const(name), f.stack.pop())


@op("DELETE_NAME")
def _delete_name(f: Frame, name: str) -> None:
    if _in_space(f, name) is None:
        f.tracer.raise_(NameError(f"name '{name}' is not defined", name=name))
    space_of(f).del_item(f.tracer, t.Const(name))


@op("SETUP_ANNOTATIONS")
def _setup_annotations(f: Frame, arg: Any) -> None:
    if _in_space(f, "__annotations__") is None:
        space_of(f).set_item(f.tracer, t.Const("__annotations__"), t.Dict({}))


@op("LOAD_CLASSDEREF")
def _class_deref(f: Frame, slot: int) -> None:
    name = f.dec.localsplus[slot]
    v = _in_space(f, name)
    f.stack.append(v if v is not None else f.tracer.load_cell(f.locals[slot], name, f.owns(slot)))


@op("LOAD_LOCALS")
def _load_locals(f: Frame, arg: Any) -> None:
    f.stack.append(space_of(f))


@op("LOAD_FROM_DICT_OR_GLOBALS")
def _from_dict_or_globals(f: Frame, name: str) -> None:
    found = f.stack.pop().lookup(f.tracer, name)  # type: ignore[attr-defined]
    f.stack.append(found if found is not None else f.tracer.read_global(f.globals, name))


@op("LOAD_FROM_DICT_OR_DEREF")
def _from_dict_or_deref(f: Frame, slot: int) -> None:
    name = f.dec.localsplus[slot]
    found = f.stack.pop().lookup(f.tracer, name)  # type: ignore[attr-defined]
    f.stack.append(found if found is not None else f.tracer.load_cell(f.locals[slot], name, f.owns(slot)))
