"""NumPy functions of numbers: their results are scalars, and fold."""

from __future__ import annotations

from typing import Any

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..trackers import Args, Kwargs

_PURE = frozenset((
    "prod", "sum", "mean", "std", "var", "max", "min", "amax", "amin", "clip", "round", "around", "argmax", "argmin",
    "dot",
    "isclose", "allclose", "median", "ptp", "floor_divide", "any", "all", "ceil", "floor", "log2", "cumsum", "cumprod",
    "size",
    "ndim", "iscomplexobj", "isrealobj", "real", "imag",
))


def ufunc_of_numbers(tracer: Any, fn: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return _scalar(tracer, fn, tracer.folded(fn, tuple([a.real(tracer) for a in args]),
                                             {k: v.real(tracer) for k, v in kwargs.items()}))


def dispatched_number(tracer: Any, fn: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if fn.__name__ not in _PURE or any(isinstance(a, t.Tensor) for a in [*args, *kwargs.values()]):
        raise Unsupported(f"NumPy function {fn.__name__}", hint="use torch's function")
    return ufunc_of_numbers(tracer, fn, args, kwargs)


def _scalar(tracer: Any, fn: Any, value: Any) -> t.Tracker:
    if type(value).__name__ == "ndarray":
        raise Unsupported(f"NumPy function {fn.__name__} gives an array", hint="use torch's function")
    return tracer.made(value)
