"""`__torch_function__` of objects that are no tensors: calls of torch functions on them go where they say."""

from __future__ import annotations

import operator
from types import FunctionType
from typing import Any

from framesmith.util.errors import Unsupported

from . import trackers as t

Args = list[t.Tracker]
Kwargs = dict[str, t.Tracker]


def overriding(cx: Any, args: Args) -> Args:
    """The arguments, also within lists and tuples, whose classes override torch functions; subclasses before their bases."""
    found: Args = []
    for x in args:
        if isinstance(x, t.Sequence) and x._items is not None:
            found.extend(y for y in overriding(cx, x.items) if y not in found)
        elif isinstance(x, t.Object) and _hook(cx, x) is not None and all(x.cls is not y.pytype() for y in found):
            at = next((i for i, y in enumerate(found) if issubclass(x.cls, y.pytype())), len(found))
            found.insert(at, x)
    return found


def _hook(cx: Any, x: t.Object) -> Any:
    raw = cx.lookup(x.cls, "__torch_function__")
    return raw.__func__ if isinstance(raw, classmethod) and isinstance(raw.__func__, FunctionType) else None


def overridden(cx: Any, fn: Any, args: Args, kwargs: Kwargs) -> t.Tracker | None:
    """What the arguments' own `__torch_function__` makes of a call of `fn`; None if none has one."""
    found = overriding(cx, [*args, *kwargs.values()])
    if not found:
        return None
    if getattr(fn, "__module__", None) in (operator.add.__module__, "builtins"):
        raise Unsupported("an operator between a tensor and an object with __torch_function__")
    kinds = cx.tuple([cx.made(x.pytype()) for x in found])
    for x in found:
        assert isinstance(x, t.Object)
        call = t.Method(cx.class_function(_hook(cx, x)), cx.made(x.cls))
        out = call.call(cx, [cx.made(fn), kinds, cx.tuple(args), t.Dict(dict(kwargs))], {})
        if not (isinstance(out, t.Const) and out.value is NotImplemented):
            return out
    raise Unsupported(f"no __torch_function__ takes {getattr(fn, '__name__', fn)}")


__all__ = ["overridden", "overriding"]
