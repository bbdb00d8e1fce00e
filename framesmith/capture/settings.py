"""Settings of the process that a program reads: read during capture, and guarded by reading them again."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from framesmith.util.errors import Unsupported

from . import trackers as t
from .sources import Pinned
from .values import CONSTANT_TYPES

_READERS = re.compile(r"_?(?:get|is|has|are)_\w+|_(?:cuda|mps)_(?:get|is|has)\w*")

_OWNERS = ("torch", "torch._C")


def reads_setting(fn: Any) -> bool:
    """Return whether `fn` is a builtin of torch that, by its name, reads a setting."""
    return (isinstance(fn, types.BuiltinFunctionType) and fn.__module__ in _OWNERS
            and _READERS.fullmatch(fn.__name__) is not None)


def read_setting(tracer: Any, fn: Any, args: list[t.Tracker], kwargs: dict[str, t.Tracker]) -> t.Tracker:
    """Return the value of a call of `fn`, guarded to stay the same."""
    given = tuple([a.real(tracer) for a in args])
    written = tracer.settings.get((fn, given))
    if written is not None and not kwargs:
        return tracer.made(written.now)
    if kwargs or (fn, given) not in tracer.readings:
        value = tracer.folded(fn, given, {k: v.real(tracer) for k, v in kwargs.items()})
        if type(value) not in CONSTANT_TYPES or kwargs:
            raise Unsupported(f"call of torch._C.{fn.__name__}")
        tracer.guard(Pinned(fn), "callable", Unchanged(given, value))
        tracer.readings[fn, given] = value
    return tracer.made(tracer.readings[fn, given])


@dataclass(slots=True)
class Written:
    """A setting that the program has changed, for real during capture: no captured call depends on it, so residual code
    sets its final value."""

    setter: Callable[..., Any]
    before: Any
    now: Any


def write_setting(tracer: Any, setter: Any, getter: Any, args: list[t.Tracker]) -> t.Tracker:
    """`setter(*args)`, the last of which is the value that `getter` of the others will give."""
    if any(x.value.device.type != "cpu" for x in tracer.inputs):
        raise Unsupported(f"call of torch._C.{setter.__name__}")
    *where, now = [a.real(tracer) for a in args]
    key = (getter, tuple(where))
    if key in tracer.settings:
        tracer.settings[key].now = now
    else:
        tracer.settings[key] = Written(setter, read_setting(tracer, getter, args[:-1], {}).real(tracer), now)
    tracer.folded(setter, (*where, now))
    return t.NONE


def undo(settings: dict[Any, Written]) -> None:
    """Restore the settings that were changed during capture."""
    for (_, where), written in settings.items():
        written.setter(*where, written.before)


def restoring(hold: Callable[[Any], str], settings: dict[Any, Written]) -> list[str]:
    """Return the statements that leave the settings as the program does."""
    return [f"{hold(w.setter)}({', '.join(map(repr, (*where, w.now)))})" for (_, where),
            w in settings.items() if w.now != w.before]


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A function still gives this value."""

    args: tuple[Any, ...]
    value: Any

    def __call__(self, fn: Callable[..., Any]) -> bool:
        return bool(fn(*self.args) == self.value)
