"""Residual code of classes that the frame made, and of their attributes."""

from __future__ import annotations

import dataclasses
from typing import Any

from framesmith.util.errors import Unsupported

from . import trackers as t
from .standins import AT_CREATION, bare_class, fill_class


def tuple_text(items: list[str]) -> str:
    """Return the display of a tuple."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def made_class(rebuilder: Any, x: t.MadeClass) -> str:
    """Rebuild the class of a class statement: bare, then filled, then with the additions of the library's
    decorators."""
    bases = tuple_text(rebuilder.values(x.bases) or [rebuilder.hold(object)])
    head = ", ".join(f"{n!r}: {rebuilder.value(v)}" for n, v in x.space.items() if n in AT_CREATION)
    name = rebuilder.bind(x, f"{rebuilder.hold(bare_class)}({rebuilder.value(x.meta)}, {x.value.__name__!r}, {bases}, "
                             f"{{{head}}})")
    rebuilder.unfinished += 1
    fields = rebuilder.tracer.fields

    def text(v: t.Tracker) -> str:
        return field(rebuilder, v.value) if isinstance(v, t.Const) and id(v.value) in fields else rebuilder.value(v)

    rest = ", ".join(f"{n!r}: {text(v)}" for n, v in x.space.items() if n not in AT_CREATION)
    rebuilder.emit(f"{rebuilder.hold(fill_class)}({name}, {{{rest}}})")
    rebuilder.unfinished -= 1
    while rebuilder.cells and not rebuilder.unfinished:
        cell = rebuilder.cells.pop()
        if cell.content is not None:
            rebuilder.emit(f"{rebuilder.names[id(cell)]}.cell_contents = {rebuilder.value(cell.content)}")
    for call in x.after:
        rebuilder.emit(f"{rebuilder.hold(call)}({name})")
    return name


def wrapped(rebuilder: Any, x: t.Wrapped) -> str:
    """Rebuild a property, classmethod or staticmethod."""
    made = rebuilder.temp(f"{rebuilder.hold(type(x.value))}({', '.join(rebuilder.values(list(x.parts.values())))})")
    if x.name is not None:
        rebuilder.emit(f"{made}.__set_name__(None, {x.name!r})")
    return made


def function_of_made(rebuilder: Any, fn: Any) -> str:
    """Return the expression of a function that a library's decorator added to a class made in the frame."""
    place = rebuilder.tracer.of_made[id(fn)]
    if place is None:
        raise Unsupported(f"{fn.__qualname__} of a class made in the frame lives across the end of captured code")
    return rebuilder.temp(f"{rebuilder.klass(place[0])}.__dict__[{place[1]!r}]")


def field(rebuilder: Any, made: Any) -> str:
    """Rebuild a field of a dataclass."""
    name = rebuilder.names.get(id(made))
    if name is None:
        parts = ", ".join(f"{k}={rebuilder.value(v)}" for k, v in rebuilder.tracer.fields[id(made)].items())
        name = rebuilder.names[id(made)] = rebuilder.temp(f"{rebuilder.hold(dataclasses.field)}({parts})")
    return name
