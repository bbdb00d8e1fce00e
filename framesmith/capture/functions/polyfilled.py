"""Functions written in C for which a Python implementation is inlined: ours (`polyfills/`), or the standard library's
own fallback."""

from __future__ import annotations

import _bisect
import _heapq
import builtins
import collections
import functools
import importlib.util
import math
import operator
import types
from types import FunctionType
from typing import Any

from .. import trackers as t
from ..polyfills import functions as py
from ..registry import CONSTANT_METHODS, OPAQUE, calls
from ..trackers import Args, Kwargs


def states(python: Any, *functions: Any) -> None:
    """Let calls of `functions` be calls of `python`, a Python function or class."""

    @calls(*functions)
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        return tracer.made(python).call(tracer, args, kwargs)


def without(name: str, missing: str) -> dict[str, Any]:
    """Return the namespace of a module of the standard library as if its C part `missing` did not exist."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None
    real = builtins.__import__

    def absent(wanted: str, *args: Any, **kwargs: Any) -> Any:
        if wanted == missing:
            raise ImportError(wanted)
        return real(wanted, *args, **kwargs)

    space: dict[str, Any] = {"__name__": name, "__builtins__": {**vars(builtins), "__import__": absent}}
    exec(spec.loader.get_code(name), space)  # type: ignore[attr-defined]
    return space


def _fallbacks(name: str, native: Any) -> None:
    python = without(name, native.__name__)
    for attr, fn in vars(native).items():
        if isinstance(fn, types.BuiltinFunctionType) and isinstance(python.get(attr), FunctionType):
            states(python[attr], fn)


_fallbacks("heapq", _heapq)
_fallbacks("bisect", _bisect)


states(py.count_elements, collections._count_elements)  # type: ignore[attr-defined]
states(py.cmp_to_key, functools.cmp_to_key)
states(py.prod, math.prod)
_operator = without("operator", "_operator")
for _fn in ("delitem", "concat", "iconcat", "countOf", "indexOf", "call", "length_hint"):
    if hasattr(operator, _fn):
        states(_operator[_fn], getattr(operator, _fn))
OPAQUE[(types.SimpleNamespace, "__repr__")] = lambda tracer, self: tracer.made(py.namespace_repr).call(tracer, [self],
                                                                                                       {})


def _fromkeys(tracer: Any, self: t.Const, args: Args, kwargs: Kwargs) -> t.Tracker | None:
    return tracer.made(py.fromkeys).call(tracer, [tracer.made(self.value), *args],
                                         kwargs) if args and issubclass(self.value, dict) else None


CONSTANT_METHODS[(type, "fromkeys")] = _fromkeys
