"""Settings of the process that a program asks for: read while it is captured, and guarded by reading them again."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from typing import Any

from framesmith.util.errors import Unsupported

from . import trackers as t
from .sources import Pinned
from .values import CONSTANT_TYPES

_READERS = re.compile(r"_?(?:get|is|has|are|cuda|mps)_\w+")

_OWNERS = ("torch", "torch._C")


def reads_setting(fn: Any) -> bool:
    """True if `fn` is a builtin of torch that, by its name, tells a setting."""
    return isinstance(fn, types.BuiltinFunctionType) and fn.__module__ in _OWNERS and _READERS.fullmatch(fn.__name__) is not None


def read_setting(cx: Any, fn: Any, args: list[t.Tracker], kwargs: dict[str, t.Tracker]) -> t.Tracker:
    """The value of a call of `fn`, for as long as it stays the same."""
    given = tuple([a.real(cx) for a in args])
    value = cx.folded(fn, given, {k: v.real(cx) for k, v in kwargs.items()})
    if type(value) not in CONSTANT_TYPES or kwargs:
        raise Unsupported(f"call of torch._C.{fn.__name__}")
    cx.guard(Pinned(fn), "callable", Unchanged(given, value))
    return cx.made(value)


class Unchanged:
    """A function still gives this value."""

    __slots__ = ("args", "value")

    def __init__(self, args: tuple[Any, ...], value: Any) -> None:
        self.args = args
        self.value = value

    def __call__(self, fn: Callable[..., Any]) -> bool:
        return bool(fn(*self.args) == self.value)


__all__ = ["read_setting", "reads_setting"]
