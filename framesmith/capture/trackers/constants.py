"""Values that never change: numbers, strings, dtypes, devices, enum members, compiled patterns and their like."""

from __future__ import annotations

import enum
import operator
import typing
from typing import Any

import torch

from .base import Tracker

_SEQUENCES = (str, bytes, tuple, range)
_FORMATS = frozenset(("format", "format_map"))
_SINGLE = (type(None), bool, type(...), type(NotImplemented))


_TOLD = frozenset({int, bool, float, complex, str, bytes, type(None), type(...), range, torch.dtype, torch.device})
"""Types whose text is short and runs no code of the program's."""


class Const(Tracker):
    """An immutable value.  If it came from outside, it was guarded when it was read."""

    __slots__ = ("value",)
    constant = True

    def __init__(self, value: Any, source: Any = None) -> None:
        self.value = value
        self.source = source

    def pytype(self) -> type:
        return type(self.value)

    def real(self, cx: Any) -> Any:
        return self.value

    def describe(self) -> str:
        return repr(self.value) if type(self.value) in _TOLD else super().describe()

    def get(self, cx: Any, name: str) -> Tracker:
        return cx.fold(getattr, (self.value, name))

    def set(self, cx: Any, name: str, value: Tracker) -> None:
        if not type(self.value).__dictoffset__ or isinstance(self.value, enum.Enum) and name in ("name", "value"):
            cx.folded(setattr, (self.value, name, None))
        super().set(cx, name, value)

    def call(self, cx: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        origin = getattr(self.value, "__origin__", None)
        if isinstance(origin, type):
            return _generic(self, cx, cx.made(origin).call(cx, args, kwargs))
        if isinstance(self.value, typing.NewType):
            return args[0]
        return cx.fold_call(self.value, args, kwargs)

    def item(self, cx: Any, key: Tracker) -> Tracker:
        sub = cx.index(key, type(self.value).__name__) if isinstance(self.value, _SEQUENCES) and not key.constant else key.real(cx)
        return cx.fold(operator.getitem, (self.value, sub))

    def truth(self, cx: Any) -> bool:
        return bool(self.value)

    def size(self, cx: Any) -> int:
        return cx.fold(len, (self.value,)).value

    def iterate(self, cx: Any) -> Tracker:
        return cx.walk(self, iter)

    def builtin_method(self, cx: Any, name: str, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        if name in _FORMATS and isinstance(self.value, str):
            return cx.fold(getattr(self.value, name), tuple([cx.shown(a) for a in args]), {k: cx.shown(v) for k, v in kwargs.items()})
        if name in CHANGES:  # some constants, as typing's aliases, have attributes that can be set
            getattr(self, "set" if name == "__setattr__" else "delete")(cx, args[0].real(cx), *args[1:])
            return NONE
        found = cx.constant_method(self, name, args, kwargs)
        return cx.fold_call(getattr(self.value, name), args, kwargs) if found is None else found

    def identity(self) -> Any:
        return self.value

    def key(self, cx: Any) -> Any:
        return self.value


CHANGES = ("__setattr__", "__delattr__")


def _generic(alias: Const, cx: Any, made: Tracker) -> Tracker:
    """An instance made by a call of `Class[int]` remembers that."""
    if made.pytype().__dictoffset__ and type(made).__name__ in ("Object", "Module"):
        made.set(cx, "__orig_class__", alias)
    return made


NONE = Const(None)
TRUE = Const(True)
FALSE = Const(False)


def boolean(value: bool) -> Const:
    """The shared constant of a truth value."""
    return TRUE if value else FALSE
