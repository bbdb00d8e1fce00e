"""inspect.signature: of functions and methods, by what of them is guarded."""

from __future__ import annotations

import inspect
import types
from typing import Any

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..registry import calls
from ..sources import Pinned

Args = list[t.Tracker]
Kwargs = dict[str, t.Tracker]

_SAYS = ("__wrapped__", "__signature__", "__text_signature__")
"""Attributes of a function by which it tells another signature."""


class SameAnnotations:
    """A function is annotated with the same objects."""

    __slots__ = ("items",)

    def __init__(self, fn: Any) -> None:
        self.items = tuple(fn.__annotations__.items())

    def __call__(self, fn: Any) -> bool:
        now = tuple(fn.__annotations__.items())
        return len(now) == len(self.items) and all(a == b and x is y for (a, x), (b, y) in zip(now, self.items))


@calls(inspect.signature)
def _signature(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    fn = args[0]
    if isinstance(fn, t.Builtin):
        return cx.fold_call(inspect.signature, args, kwargs)
    if isinstance(fn, t.Module):
        fn = cx.bound_special(fn, "__call__", cx.lookup(fn.cls, "__call__"))
    of = fn.func if isinstance(fn, t.Method) else fn
    if kwargs or not isinstance(of, t.Function) or any(name in (of.attrs or ()) for name in _SAYS):
        raise Unsupported(f"the signature of {fn.describe()}")
    real = _outside(cx, of) if of.value is not None else _inside(cx, of)
    return cx.fold(inspect.signature, (types.MethodType(real, type(None)) if isinstance(fn, t.Method) else real,))


def _outside(cx: Any, fn: t.Function) -> Any:
    """A function that exists: its code and defaults are guarded, its annotations, and that it names no other."""
    value: Any = fn.value
    if id(value) in cx.of_made or not value.__dict__.keys().isdisjoint(_SAYS):
        raise Unsupported(f"the signature of {fn.describe()}")
    fn.open(cx)
    base = fn.source if fn.source is not None else Pinned(value)
    for name in _SAYS:
        cx.guard(base, "not_hasattr", name)
    cx.guard(base, "callable", SameAnnotations(value))
    return value


def _inside(cx: Any, fn: t.Function) -> Any:
    """A function of the frame's, with constants for defaults and annotations."""
    made = types.FunctionType(fn.code, fn.globals, fn.name, tuple([d.real(cx) for d in fn.defaults or ()]),
                              tuple([types.CellType() for _ in fn.closure or ()]))
    made.__kwdefaults__ = {k: d.real(cx) for k, d in (fn.kwdefaults or {}).items()}
    notes = fn.get(cx, "__annotations__")
    made.__annotations__ = {k: v.real(cx) for k, v in notes.open(cx).items()}  # type: ignore[attr-defined]
    if any(map(cx.mentions_made, [*made.__annotations__.values(), *(made.__defaults__ or ()), *made.__kwdefaults__.values()])):
        raise Unsupported(f"the signature of {fn.describe()}")
    return made


__all__ = ["SameAnnotations"]
