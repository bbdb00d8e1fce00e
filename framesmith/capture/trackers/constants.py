"""Immutable values: numbers, strings, dtypes, devices, enum members, compiled patterns and so on."""

from __future__ import annotations

import enum
import operator
import typing
from typing import Any

import torch

from .base import Tracker

_SEQUENCES = (str, bytes, tuple, range)
_FORMATS = frozenset(("format", "format_map"))


_TOLD = frozenset({int, bool, float, complex, str, bytes, type(None), type(...), range, torch.dtype, torch.device})
"""Types whose repr is short and runs no code of the program's."""


class Const(Tracker):
    """An immutable value.  If it came from outside, it was guarded when it was read."""

    __slots__ = ("source", "value")
    constant = True

    def __init__(self, value: Any, source: Any = None) -> None:
        self.value = value
        self.source = source

    def pytype(self) -> type:
        return type(self.value)

    def real(self, tracer: Any) -> Any:
        return self.value

    def describe(self) -> str:
        return repr(self.value) if type(self.value) in _TOLD else super().describe()

    def get(self, tracer: Any, name: str) -> Tracker:
        return tracer.fold(getattr, (self.value, name))

    def set(self, tracer: Any, name: str, value: Tracker) -> None:
        if not type(self.value).__dictoffset__ or isinstance(self.value, enum.Enum) and name in ("name", "value"):
            tracer.folded(setattr, (self.value, name, None))
        super().set(tracer, name, value)

    def call(self, tracer: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        origin = getattr(self.value, "__origin__", None)
        if isinstance(origin, type):
            return _generic(self, tracer, tracer.made(origin).call(tracer, args, kwargs))
        if isinstance(self.value, typing.NewType):
            return args[0]
        return tracer.fold_call(self.value, args, kwargs)

    def item(self, tracer: Any, key: Tracker) -> Tracker:
        sub = (tracer.index(key, type(self.value).__name__) if isinstance(self.value, _SEQUENCES)
               and not key.constant else key.real(tracer))
        return tracer.fold(operator.getitem, (self.value, sub))

    def truth(self, tracer: Any) -> bool:
        return bool(self.value)

    def size(self, tracer: Any) -> int:
        return tracer.fold(len, (self.value,)).value

    def iterate(self, tracer: Any) -> Tracker:
        return tracer.walk(self, iter)

    def builtin_method(self, tracer: Any, name: str, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        if name in _FORMATS and isinstance(self.value, str):
            return tracer.fold(getattr(self.value, name), tuple([tracer.shown(a) for a in args]),
                               {k: tracer.shown(v) for k, v in kwargs.items()})
        if name in CHANGES:  # some constants, as typing's aliases, have attributes that can be set
            getattr(self, "set" if name == "__setattr__" else "delete")(tracer, args[0].real(tracer), *args[1:])
            return NONE
        found = tracer.constant_method(self, name, args, kwargs)
        return tracer.fold_call(getattr(self.value, name), args, kwargs) if found is None else found

    def identity(self) -> Any:
        return self.value

    def key(self, tracer: Any) -> Any:
        return self.value


CHANGES = ("__setattr__", "__delattr__")


def _generic(alias: Const, tracer: Any, made: Tracker) -> Tracker:
    """Set `__orig_class__` of an instance made by a call of `Class[int]`."""
    if made.pytype().__dictoffset__ and type(made).__name__ in ("Object", "Module"):
        made.set(tracer, "__orig_class__", alias)
    return made


NONE = Const(None)
TRUE = Const(True)
FALSE = Const(False)


def boolean(value: bool) -> Const:
    """Return the shared constant of a truth value."""
    return TRUE if value else FALSE
