"""match statements."""

from __future__ import annotations

import sys
from typing import Any

from .. import trackers as t
from ..frame import Frame
from ..registry import CALLS, op

_SEQUENCE, _MAPPING, _ITSELF = 1 << 5, 1 << 6, 1 << 22
"""Flags of types: instances match sequence or mapping patterns; a single positional sub-pattern matches the instance
itself."""


@op("MATCH_SEQUENCE")
def _sequence(f: Frame, arg: Any) -> None:
    f.stack.append(t.boolean(bool(f.stack[-1].pytype().__flags__ & _SEQUENCE)))


@op("MATCH_MAPPING")
def _mapping(f: Frame, arg: Any) -> None:
    f.stack.append(t.boolean(bool(f.stack[-1].pytype().__flags__ & _MAPPING)))


@op("MATCH_KEYS")
def _keys(f: Frame, arg: Any) -> None:
    tracer = f.tracer
    subject = f.stack[-2]
    seen: list[t.Tracker] = []
    values: list[t.Tracker] = []
    for key in f.stack[-1].items_list(tracer):
        if any(tracer.equal(key, other) for other in seen):
            tracer.raise_(ValueError(f"mapping pattern checks duplicate key ({tracer.repr_text(key)})"))
        seen.append(key)
        value = _value_at(tracer, subject, key)
        if value is None:
            f.stack.append(t.NONE)
            return
        values.append(value)
    f.stack.append(t.Tuple(values))


def _value_at(tracer: Any, subject: t.Tracker, key: t.Tracker) -> t.Tracker | None:
    """Return the value under `key` by the mapping's `get`, which adds no entry."""
    if type(subject) is t.Dict:
        return subject.lookup(tracer, key.key(tracer))
    absent = t.Object(object)
    found = subject.get(tracer, "get").call(tracer, [key, absent], {})
    return None if found is absent else found


@op("MATCH_CLASS")
def _class(f: Frame, n: int) -> None:
    s = f.stack
    names = s.pop().items_list(f.tracer)
    klass = s.pop()
    found = _attributes(f.tracer, s[-1], klass, n, names)
    s[-1] = t.NONE if found is None else t.Tuple(found)


_NOT_A_CLASS = ("called match pattern must be a class" if sys.version_info >= (3, 12)
                else "called match pattern must be a type")


def _attributes(tracer: Any, subject: t.Tracker, klass: t.Tracker, n: int,
                names: list[t.Tracker]) -> list[t.Tracker] | None:
    """Return the values that the sub-patterns of a class pattern are matched with: of `n` positional ones, then of
    `names`. None if the pattern does not match."""
    if not isinstance(klass, t.Class):
        return tracer.raise_(TypeError(_NOT_A_CLASS))
    if not CALLS[isinstance](tracer, [subject, klass], {}).truth(tracer):
        return None
    cls = klass.value
    seen: set[str] = set()
    out: list[t.Tracker] = []
    if n:
        match_args = _match_args(tracer, klass)
        allowed = 1 if match_args is None else len(match_args)
        if allowed < n:
            plural = "" if allowed == 1 else "s"
            tracer.raise_(TypeError(f"{cls.__name__}() accepts {allowed} positional sub-pattern{plural} ({n} given)"))
        if match_args is None:
            out.append(subject)
        else:
            names = [*match_args[:n], *names]
    for name in names:
        value = _attribute(tracer, subject, cls, name, seen)
        if value is None:
            return None
        out.append(value)
    return out


def _match_args(tracer: Any, klass: t.Class) -> list[t.Tracker] | None:
    """`__match_args__` of a class; None if its instances match one positional sub-pattern themselves."""
    if not tracer.has_attr(klass, "__match_args__"):
        return None if klass.value.__flags__ & _ITSELF else []
    given = klass.get(tracer, "__match_args__")
    if not isinstance(given, t.Tuple):
        return tracer.raise_(TypeError(f"{klass.value.__name__}.__match_args__ must be a tuple (got "
                                       f"{given.pytype().__name__})"))
    return given.open(tracer)


def _attribute(tracer: Any, subject: t.Tracker, cls: type, name: t.Tracker, seen: set[str]) -> t.Tracker | None:
    if not issubclass(name.pytype(), str):
        tracer.raise_(TypeError(f"__match_args__ elements must be strings (got {name.pytype().__name__})"))
    text = name.real(tracer)
    if text in seen:
        tracer.raise_(TypeError(f"{cls.__name__}() got multiple sub-patterns for attribute {text!r}"))
    seen.add(text)
    return tracer.none_if_raised(AttributeError, subject.get, tracer, text)
