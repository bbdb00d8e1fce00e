"""Attributes of instances in residual code: statements under which no code of the program's runs."""

from __future__ import annotations

from types import GetSetDescriptorType
from typing import Any

from . import trackers as t
from .class_making import getattr_static


def own_dict(rebuilder: Any, text: str, cls: type | None) -> str:
    """Return the expression of an object's `__dict__`, without calling a `__getattribute__` of its class (whose own
    frame this may be)."""
    plain = getattr(cls, "__getattribute__", None) is object.__getattribute__
    return f"{text}.__dict__" if plain else f"{rebuilder.hold(object.__getattribute__)}({text}, '__dict__')"


def assignment(rebuilder: Any, x: t.Object, name: str, key: Any, value: str | None) -> str:
    """Return the statement that sets (or, without a value, deletes) what `x.attrs` has under `key`; no code of the
    program's runs."""
    attribute = key if type(key) is str else key.__name__
    raw = getattr_static(x.cls, attribute)
    if raw is key or type(key) is str and (isinstance(raw, GetSetDescriptorType) or not hasattr(type(raw), "__set__")):
        if value is None:
            return f"{rebuilder.hold(object.__delattr__)}({name}, {attribute!r})"
        return f"{rebuilder.hold(object.__setattr__)}({name}, {attribute!r}, {value})"
    if type(key) is str:
        at = f"{own_dict(rebuilder, name, x.cls)}[{attribute!r}]"
        return f"del {at}" if value is None else f"{at} = {value}"
    slot = f"{rebuilder.klass(key.__objclass__)}.__dict__[{attribute!r}]"
    return f"{slot}.__delete__({name})" if value is None else f"{slot}.__set__({name}, {value})"
