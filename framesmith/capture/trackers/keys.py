"""Keys for values in capture's hash tables, with the captured program's hash and equality."""

from __future__ import annotations

import enum
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

from .base import Tracker


def lasts(key: Any) -> bool:
    """Return whether guards and residual code may hold a key from outside: it is a constant, or lives as long as the
    program's modules."""
    if isinstance(key, (tuple, frozenset)):
        return all(map(lasts, key))
    return type(key).__hash__ is not object.__hash__ or issubclass(type(key), _LASTING)


_LASTING = (type, FunctionType, BuiltinFunctionType, ModuleType, torch.Tensor, torch.nn.Module, enum.Enum)


class Hashed:
    """A key whose class defines a hash or equality, or of which more than its value matters."""

    __slots__ = ("tracer", "hash", "tracker")

    def __init__(self, tracer: Any, tracker: Tracker, number: int) -> None:
        self.tracer = tracer
        self.tracker = tracker
        self.hash = number

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        tracer = self.tracer
        return tracer.without_effects(lambda: tracer.equal(self.tracker, tracer.unkey(other)),
                                      f"equality of {self.tracker.describe()}")


class Number:
    """An object with a given hash."""

    __slots__ = ("hash",)

    def __init__(self, number: int) -> None:
        self.hash = number

    def __hash__(self) -> int:
        return self.hash
