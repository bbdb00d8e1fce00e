"""Globals, attributes, imports."""

from __future__ import annotations

from typing import Any

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..frame import Frame
from ..registry import op


@op("LOAD_GLOBAL")
def _global(f: Frame, name: str) -> None:
    v = f.gvalues.get(name)
    if v is None or v is t.DELETED:
        v = f.cx.read_global(f.globals, name)
    f.stack.append(v)


@op("LOAD_GLOBAL_NULL")
def _global_null(f: Frame, name: str) -> None:
    v = f.gvalues.get(name)
    if v is None or v is t.DELETED:
        v = f.cx.read_global(f.globals, name)
    f.stack.append(t.NULL)
    f.stack.append(v)


@op("STORE_GLOBAL")
def _store_global(f: Frame, name: str) -> None:
    f.cx.store_global(f.globals, name, f.stack.pop())


@op("DELETE_GLOBAL")
def _delete_global(f: Frame, name: str) -> None:
    f.cx.read_global(f.globals, name)
    f.cx.store_global(f.globals, name, t.DELETED)


@op("LOAD_ATTR")
def _attr(f: Frame, name: str) -> None:
    s = f.stack
    s[-1] = s[-1].get(f.cx, name)


@op("LOAD_METHOD")
def _method(f: Frame, name: str) -> None:
    s = f.stack
    obj = s.pop()
    m = obj.get(f.cx, name)
    s.append(t.NULL)
    s.append(m)


@op("LOAD_SUPER_ATTR")
def _super_attr(f: Frame, arg: tuple[str, bool, bool]) -> None:
    name, wants_method, _ = arg
    s = f.stack
    obj = s.pop()
    cls = s.pop()
    fn = s.pop()
    if not (isinstance(fn, t.Static) and fn.value is super and isinstance(cls, t.Class)):
        raise Unsupported("super is shadowed")
    v = t.Super(cls.value, obj).get(f.cx, name)
    if wants_method:
        s.append(t.NULL)
    s.append(v)


@op("STORE_ATTR")
def _store_attr(f: Frame, name: str) -> None:
    obj = f.stack.pop()
    value = f.stack.pop()
    obj.set(f.cx, name, value)


@op("DELETE_ATTR")
def _delete_attr(f: Frame, name: str) -> None:
    f.stack.pop().delete(f.cx, name)


@op("IMPORT_NAME")
def _import(f: Frame, name: str) -> None:
    fromlist = f.stack.pop()
    level = f.stack.pop()
    names = fromlist.real(f.cx)
    depth = level.real(f.cx)
    space: dict[str, Any] = {k: f.globals.get(k) for k in ("__package__", "__name__", "__path__", "__spec__") if k in f.globals}
    f.stack.append(f.cx.made(f.cx.folded(__import__, (name, space, None, names, depth))))


@op("IMPORT_FROM")
def _import_from(f: Frame, name: str) -> None:
    f.stack.append(f.stack[-1].get(f.cx, name))
