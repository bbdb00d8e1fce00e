"""Functions that the program may make anew for each call, such as closures, lambdas and what decorators give.

Code that inlines such a function depends on its code, its globals, its defaults and the contents of its cells, so these
are guarded. Its identity is guarded only where something else depends on it (`trackers.Function.value`).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from framesmith.util.marks import DISABLED

from . import trackers as t
from .policy import refused_function, runs_whole
from .registry import BY_NAME, CALLS, CODES, FOLDED
from .sources import Attr, Cell, Guard, Pinned, Source
from .values import WRAP, by_identity


def _may_be_made_anew(fn: FunctionType) -> bool:
    """Return whether the program may make `fn` anew for each call, and capture inlines calls of it: another function
    made it, and no module has it under its name."""
    module = sys.modules.get(fn.__globals__.get("__name__", ""))
    if not fn.__code__.co_flags & inspect.CO_NESTED or getattr(module, "__dict__", None) is not fn.__globals__:
        return False  # an id guard keeps other globals alive
    if fn.__globals__.get(fn.__qualname__) is fn or DISABLED in fn.__dict__:
        return False
    named = f"{fn.__module__}.{fn.__qualname__}" in BY_NAME
    return not (named or fn in CALLS or fn in FOLDED or id(fn.__code__) in CODES or runs_whole(fn)
                or refused_function(fn) is not None)


def _by_parts(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    """Return the tracker of a function; by its parts, if the program may make it anew for each call."""
    found = tracer.seen.get(id(value))
    if type(found) is t.Function and found.guard is not None:
        return tracer.known(value, source)  # type: ignore[no-any-return]
    if found is not None or source is None or isinstance(source, Pinned) or not _may_be_made_anew(value):
        return by_identity(tracer, value, source)
    tracer.guard(source, "type", FunctionType)
    tracer.guard(Attr(source, "__code__"), "id", value.__code__)
    tracer.surroundings.functions.setdefault(id(value.__code__), value)
    tracer.guard(Attr(source, "__globals__"), "id", value.__globals__)
    tracer.guard(source, "not_hasattr", DISABLED)
    return tracer.remember(value, t.Function(  # type: ignore[no-any-return]
        value.__code__, value.__globals__, value=value, source=source, name=value.__name__, qualname=value.__qualname__,
        guard=tracer.guard))


def guard_same_cell(tracer: Any, cell: t.Cell, source: Source | None, of: t.Function | None) -> None:
    """Guard that a cell that was found at two places is there in the next call, too: in two functions, of which at
    least one is guarded by its parts."""
    if Cell in (type(source), type(cell.source)):  # guards see the contents of the frame's own cells alone
        _guard_identities(of, cell.of)
    else:
        here, there = (Pinned(cell.real_cell) if at is None else at for at in (source, cell.source))
        tracer.guard(here, "same", there)


def cells_apart(tracer: Any) -> Iterator[Guard]:
    """Guard that a cell that was written is none of the others that were read, as far as functions guarded by their
    parts have them."""
    functions = [x.of for x in tracer.cells.values() if x.of is not None]
    if not functions or not any(isinstance(x, t.Cell) for x in tracer.mutated.values()):
        return
    places = [Pinned(x.real_cell) if x.source is None else x.source for x in tracer.cells.values()]
    if any(type(place) is Cell for place in places):
        _guard_identities(*functions)
    elif len(places) > 1:
        yield Guard(None, "distinct", tuple(places))


def _guard_identities(*functions: t.Function | None) -> None:
    for fn in functions:
        if fn is not None:
            fn.guard_identity()


WRAP[FunctionType] = _by_parts
