"""Classes that the frame made, and what stands in them, in residual code."""

from __future__ import annotations

import dataclasses
from typing import Any

from framesmith.util.errors import Unsupported

from . import trackers as t
from .standins import AT_CREATION, bare_class, fill_class


def tuple_text(items: list[str]) -> str:
    """The display of a tuple."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def made_class(rb: Any, x: t.MadeClass) -> str:
    """A class statement's class: made bare, then filled, then what decorators of the library add."""
    bases = tuple_text(rb.values(x.bases) or [rb.hold(object)])
    head = ", ".join(f"{n!r}: {rb.value(v)}" for n, v in x.space.items() if n in AT_CREATION)
    name = rb.bind(x, f"{rb.hold(bare_class)}({rb.value(x.meta)}, {x.value.__name__!r}, {bases}, {{{head}}})")
    rb.unfinished += 1
    fields = rb.cx.fields
    rest = ", ".join(f"{n!r}: {field(rb, v.value) if isinstance(v, t.Const) and id(v.value) in fields else rb.value(v)}"
                     for n, v in x.space.items() if n not in AT_CREATION)
    rb.emit(f"{rb.hold(fill_class)}({name}, {{{rest}}})")
    rb.unfinished -= 1
    while rb.cells and not rb.unfinished:
        cell = rb.cells.pop()
        if cell.content is not None:
            rb.emit(f"{rb.names[id(cell)]}.cell_contents = {rb.value(cell.content)}")
    for call in x.after:
        rb.emit(f"{rb.hold(call)}({name})")
    return name


def wrapped(rb: Any, x: t.Wrapped) -> str:
    """A property, classmethod or staticmethod."""
    made = rb.temp(f"{rb.hold(type(x.value))}({', '.join(rb.values(list(x.parts.values())))})")
    if x.name is not None:
        rb.emit(f"{made}.__set_name__(None, {x.name!r})")
    return made


def function_of_made(rb: Any, fn: Any) -> str:
    """A function that a decorator of the library put into a class made in the frame."""
    place = rb.cx.of_made[id(fn)]
    if place is None:
        raise Unsupported(f"{fn.__qualname__} of a class made in the frame lives across the end of captured code")
    return rb.temp(f"{rb.klass(place[0])}.__dict__[{place[1]!r}]")


def field(rb: Any, made: Any) -> str:
    """A field of a dataclass, made again."""
    name = rb.names.get(id(made))
    if name is None:
        parts = ", ".join(f"{k}={rb.value(v)}" for k, v in rb.cx.fields[id(made)].items())
        name = rb.names[id(made)] = rb.temp(f"{rb.hold(dataclasses.field)}({parts})")
    return name


__all__ = ["field", "function_of_made", "made_class", "tuple_text", "wrapped"]
