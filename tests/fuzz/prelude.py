"""What random programs import: recorders, context managers, decorators, an exception."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import framesmith
from tests.fuzz.snapshot import freeze

RECORDS: list[Any] = []
"""Snapshots of what the program showed at the moment, in order; taken in plain Python."""
EVENTS: list[Any] = []
"""Texts and numbers that the program noted; appended in captured code."""


@framesmith.disable
def record(*values: Any) -> None:
    """Breaks the graph and remembers how the values are now."""
    RECORDS.append((freeze(values), tuple(EVENTS)))


@framesmith.disable
def broken(value: Any) -> Any:
    """Breaks the graph and gives its argument."""
    RECORDS.append(type(value).__name__)
    return value


def note(value: Any) -> None:
    EVENTS.append(value)


class Oops(Exception):
    """A user's own exception."""


class Noted:
    """A context manager that notes how it was left."""

    def __init__(self, name: Any) -> None:
        self.name = name

    def __enter__(self) -> int:
        EVENTS.append(("in", self.name))
        return len(EVENTS)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        EVENTS.append(("out", self.name, None if kind is None else kind.__name__, str(error)))
        return False


class Suppress:
    """A context manager that swallows what it is told to."""

    def __init__(self, *kinds: type) -> None:
        self.kinds = kinds

    def __enter__(self) -> Suppress:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        return kind is not None and issubclass(kind, self.kinds)


@contextlib.contextmanager
def noted(k: int) -> Iterator[int]:
    EVENTS.append(("enter", k))
    try:
        yield k + 1
    except Oops:
        EVENTS.append("oops")
    finally:
        EVENTS.append(("leave", k))


def logged(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        EVENTS.append(fn.__name__)
        return fn(*args, **kwargs)

    return wrapper


def counted(fn: Callable[..., Any]) -> Callable[..., Any]:
    count = 0

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        EVENTS.append(count)
        try:
            return fn(*args, **kwargs)
        finally:
            EVENTS.append(-count)

    return wrapper
