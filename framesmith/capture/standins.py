"""Classes that a captured frame makes.

During capture such a class is a stand-in: a real class of the right bases, whose attributes are stand-ins of their
values. Residual code creates the class itself, by the same two functions. No hook of the user's runs in either
(`__init_subclass__`, `__set_name__`, metaclass methods): capture follows those symbolically, and what they changed is
part of the class's state.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CellType, FunctionType
from typing import Any

from framesmith.util.errors import Unsupported

AT_CREATION = ("__module__", "__qualname__", "__doc__", "__slots__")
"""Names that `type.__new__` must be given; the others are set afterwards."""


class Placeholder:
    """A stand-in for a value that has none of its own type."""

    __slots__ = ("__weakref__",)


class _Silent:
    """A first base whose `__init_subclass__` does nothing."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass


class _SilentSlots:
    """The same, before bases without an instance dict."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass


def bare_class(meta: type, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> type:
    """`type.__new__` without the hook `__init_subclass__`."""
    if all("__init_subclass__" not in vars(c) for base in bases for c in base.__mro__ if c is not object):
        return type.__new__(meta, name, bases, space)
    for silent in _silent_bases(bases):
        cls: Any = type.__new__(meta, name, (silent, *bases), dict(space))
        try:
            cls.__bases__ = bases
        except TypeError:
            continue
        return cls
    raise Unsupported(f"class {name}, whose base has __init_subclass__ and a layout of its own")


def _silent_bases(bases: tuple[type, ...]) -> Iterator[type]:
    """Yield silent base classes, one of which has the layout of the bases, so that it can be removed from them
    afterwards."""
    yield _Silent
    yield _SilentSlots
    for base in bases:
        slots = {"__slots__": vars(base)["__slots__"]} if "__slots__" in vars(base) else {}
        yield bare_class(type(base), "_Silent", base.__bases__,
                         {"__init_subclass__": vars(_Silent)["__init_subclass__"], **slots})


def fill_class(cls: type, items: dict[str, Any]) -> None:
    """Set the namespace of the class body, as `type.__new__` would."""
    if "__eq__" in items and "__hash__" not in items:
        type.__setattr__(cls, "__hash__", None)
    for name, value in items.items():
        type.__setattr__(cls, name, attribute_of(name, value))


def attribute_of(name: str, value: Any) -> Any:
    """Wrap the functions that a class implicitly makes static or class methods."""
    if isinstance(value, FunctionType):
        if name == "__new__":
            return staticmethod(value)
        if name in ("__init_subclass__", "__class_getitem__"):
            return classmethod(value)
    return value


def stand_in_function(code: Any, space: dict[str, Any], name: str, qualname: str) -> FunctionType:
    """Return a function with empty cells, for its place in a stand-in class."""
    fn = FunctionType(code, space, name, None, tuple(CellType() for _ in code.co_freevars))
    fn.__qualname__ = qualname
    return fn
