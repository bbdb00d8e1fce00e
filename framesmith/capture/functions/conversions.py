"""int() and float(): of numbers, of a tensor's data, and of objects by their special methods."""

from __future__ import annotations

from types import MethodDescriptorType, WrapperDescriptorType
from typing import Any

import torch

from framesmith.fake.size_elements import size_in
from framesmith.util.errors import DataDependent, Unsupported

from .. import data
from .. import trackers as t
from ..registry import calls
from ..sources import MISSING
from ..trackers import Args, Kwargs

_SPECIAL: dict[type, tuple[str, ...]] = {int: ("__int__", "__index__", "__trunc__"), float: ("__float__", "__index__")}
"""The methods that convert, in the order in which they are tried."""
_READ = (str, bytes)
"""Builtin classes of text that both parse."""


def _scalar(kind: type) -> Any:
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        if not args:
            return t.Const(kind())
        x = args[0]
        if isinstance(x, t.Tensor):
            if tracer.asks(x):
                return tracer.torch_function(getattr(torch.Tensor, f"__{kind.__name__}__"), [x], {})
            if kind is int and (size := size_in(tracer.recorder, x.fake)) is not None:
                return tracer.made(size)
            known = x.known(tracer)
            if known is None:
                if (found := data.number(tracer, x, kind)) is not None:
                    return found
                raise DataDependent(f"{kind.__name__}() of a tensor's data")
            return tracer.fold(kind, (known,))
        if kind is int and len(args) == 1 and not kwargs and isinstance(x, t.Sym | t.Data):
            if x.pytype() is int:
                return x
            if type(x) is t.Data and x.kind is bool and x.assumed(tracer) is None:
                return _of_truth(tracer, x)
        if isinstance(x, t.Sym):
            return tracer.made(x.value / 1) if kind is float and type(x.value) is torch.SymInt else tracer.fold(
                kind, (x.value,))
        if isinstance(x, t.Object):
            return _of_object(tracer, kind, x, args[1:], kwargs)
        return tracer.fold_call(kind, args, kwargs)

    return row


def _of_truth(tracer: Any, x: t.Data) -> t.Tracker:
    """Return 1 for a condition on data that is true, else 0, as a number that the graph computes."""
    made = tracer.torch_call(torch.Tensor.to, [data.tensor_of(tracer, x), tracer.made(torch.int64)], {})
    found = data.number(tracer, made)
    if found is None:
        raise DataDependent("int() of a tensor's data")
    return found


def _of_object(tracer: Any, kind: type, x: t.Object, more: Args, kwargs: Kwargs) -> t.Tracker:
    name, raw = next(((n, raw) for n in _SPECIAL[kind] if (raw := tracer.lookup(x.cls, n)) is not MISSING),
                     ("", MISSING))
    if not more and not kwargs and raw is not MISSING and not isinstance(raw, (WrapperDescriptorType,
                                                                               MethodDescriptorType)):
        if raw is None or name == "__trunc__":
            raise Unsupported(f"{kind.__name__}() by {name} of {x.describe()}")
        return _answer(tracer, kind, x, name)
    if x.payload is None and raw is not MISSING:
        raise Unsupported(f"{kind.__name__}() of {x.describe()}, which a method in C answers")
    if x.payload is not None and issubclass(x.payload.pytype(), (int, float)):
        return tracer.fold_call(kind, [x.payload, *more], kwargs)  # type: ignore[no-any-return]
    like = tracer.shown(x) if x.payload is not None and issubclass(x.payload.pytype(), _READ) else type(x.cls.__name__,
                                                                                                        (), {})()
    return tracer.fold(kind, (like, *[a.real(tracer) for a in more]),  # type: ignore[no-any-return]
                       {k: v.real(tracer) for k, v in kwargs.items()})


def _answer(tracer: Any, kind: type, x: t.Object, name: str) -> t.Tracker:
    """Call the conversion method `name` and return its result; one of another class than it should be is converted or
    refused as CPython does."""
    told = tracer.call_special(x, name, [])
    due = float if name == "__float__" else int
    if told.pytype() is due:
        return told if due is kind else tracer.made(kind).call(tracer, [told], {})  # type: ignore[no-any-return]
    if issubclass(told.pytype(), due):
        raise Unsupported(f"{kind.__name__}() of {x.describe()}, whose {name} gives a {told.pytype().__name__}")
    like = type(x.cls.__name__, (), {name: lambda _: told.real(tracer)})()
    return tracer.fold(kind, (like,))  # type: ignore[no-any-return]


for _kind in (int, float):
    calls(_kind)(_scalar(_kind))
