"""inspect.signature of functions and methods, from their guarded parts."""

from __future__ import annotations

import inspect
import types
from typing import Any

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..registry import calls
from ..sources import Pinned
from ..trackers import Args, Kwargs

_SAYS = ("__wrapped__", "__signature__", "__text_signature__")
"""Attributes by which a function declares another signature."""


class SameAnnotations:
    """A function is annotated with the same objects."""

    __slots__ = ("items",)

    def __init__(self, fn: Any) -> None:
        self.items = tuple(fn.__annotations__.items())

    def __call__(self, fn: Any) -> bool:
        now = tuple(fn.__annotations__.items())
        return len(now) == len(self.items) and all(a == b and x is y for (a, x), (b, y) in zip(now, self.items))


@calls(inspect.signature)
def _signature(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    fn = args[0]
    if isinstance(fn, t.Builtin):
        return tracer.fold_call(inspect.signature, args, kwargs)
    if isinstance(fn, t.Module):
        fn = tracer.bound_special(fn, "__call__", tracer.lookup(fn.cls, "__call__"))
    of = fn.func if isinstance(fn, t.Method) else fn
    if kwargs or not isinstance(of, t.Function) or any(name in (of.attrs or ()) for name in _SAYS):
        raise Unsupported(f"the signature of {fn.describe()}")
    real = _outside(tracer, of) if of.value is not None else _inside(tracer, of)
    return tracer.fold(inspect.signature, (types.MethodType(real, type(None)) if isinstance(fn, t.Method) else real,))


def _outside(tracer: Any, fn: t.Function) -> Any:
    """Return the signature of an existing function; guard its code, defaults and annotations, and that it declares no
    other."""
    value: Any = fn.value
    if id(value) in tracer.of_made or not value.__dict__.keys().isdisjoint(_SAYS):
        raise Unsupported(f"the signature of {fn.describe()}")
    fn.open(tracer)
    base = fn.source if fn.source is not None else Pinned(value)
    for name in _SAYS:
        tracer.guard(base, "not_hasattr", name)
    if (SameAnnotations, (value,)) not in tracer.readings:  # each layer may ask
        tracer.readings[SameAnnotations, (value,)] = None
        tracer.guard(base, "callable", SameAnnotations(value))
    return value


def _inside(tracer: Any, fn: t.Function) -> Any:
    """Return the signature of a function made in the frame, with constants for defaults and annotations."""
    made = types.FunctionType(fn.code, fn.globals, fn.name, tuple([d.real(tracer) for d in fn.defaults or ()]),
                              tuple([types.CellType() for _ in fn.closure or ()]))
    made.__kwdefaults__ = {k: d.real(tracer) for k, d in (fn.kwdefaults or {}).items()}
    notes = fn.get(tracer, "__annotations__")
    made.__annotations__ = {k: v.real(tracer) for k, v in notes.open(tracer).items()}  # type: ignore[attr-defined]
    if any(map(tracer.mentions_made,
               [*made.__annotations__.values(), *(made.__defaults__ or ()), *made.__kwdefaults__.values()])):
        raise Unsupported(f"the signature of {fn.describe()}")
    return made
