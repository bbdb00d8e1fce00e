"""Python's builtin functions that inspect values: isinstance, getattr, type, len, the constructors of scalars, …"""

from __future__ import annotations

import builtins
import operator
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from framesmith.util.errors import FrameSeen, Unsupported

from .. import data
from .. import trackers as t
from ..identity import same_object
from ..operators import BINARY, COMPARE
from ..registry import by_position, calls, refuses
from ..settings import read_setting
from ..sources import MISSING
from ..trackers import Args, Kwargs


@calls(len)
def _len(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return (tracer.made(args[0].size(tracer)) if not isinstance(args[0], t.Object)
            or args[0].payload is None else _object_len(tracer, args[0]))


def _object_len(tracer: Any, obj: t.Object) -> t.Tracker:
    raw = tracer.lookup(obj.cls, "__len__")
    if isinstance(raw, FunctionType):
        return tracer.made(obj.size(tracer))
    return tracer.made(obj.payload.size(tracer))  # type: ignore[union-attr]


@calls(getattr)
def _getattr(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    name = args[1].real(tracer)
    try:
        return args[0].get(tracer, name)
    except t.CapturedError as e:
        if len(args) > 2 and issubclass(e.tracker.pytype(), AttributeError):
            return args[2]
        tracer.set_error_context(e.tracker, args[0], name)
        raise


def callable_(tracer: Any, x: t.Tracker) -> bool:
    """callable(x)"""
    if isinstance(x, (t.Const, t.Static)):
        return callable(x.value)
    if isinstance(x, (t.Function, t.Method, t.Partial, t.Bound, t.TensorMethod)):
        return True
    return tracer.lookup(x.pytype(), "__call__") is not MISSING


@calls(id)
def _id(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    value = getattr(args[0], "value", None)
    source = getattr(args[0], "source", None)
    if value is None or source is None:
        return t.Address(args[0])
    tracer.guard(source, "id", value)
    tracer.surroundings.bind("the address of an object")
    return t.Const(id(value))


def _hash(tracer: Any, x: t.Tracker) -> t.Tracker:
    if isinstance(x, t.Tensor) and tracer.lookup(x.pytype(), "__hash__") is torch.Tensor.__hash__:
        return _id(tracer, [x], {})
    if x.pytype() not in (int, bool, float):
        tracer.surroundings.bind("the hash of an object")
    return t.Const(tracer.hash_of(x))


@calls(threading.get_ident)
def _thread(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return read_setting(tracer, threading.get_ident, args, kwargs)


@calls(super)
def _super(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.super_of(tracer, args[0], args[1]) if args else _super_here(tracer, tracer.frames[-1])


def _super_here(tracer: Any, frame: Any) -> t.Tracker:
    """`super()`: of the class around the function and the function's first argument."""
    code = frame.code
    if not code.co_argcount:
        return tracer.raise_(RuntimeError("super(): no arguments"))
    first = frame.locals[0]
    if first is None and frame is tracer.frames[0] and 0 in tracer.pending:
        first = tracer.unset_local(frame, 0)
    if isinstance(first, t.Cell) and code.co_varnames[0] in code.co_cellvars:
        first = tracer.cell_value(first)
    if first is None:
        return tracer.raise_(RuntimeError("super(): arg[0] deleted"))
    if "__class__" not in code.co_freevars:
        return tracer.raise_(RuntimeError("super(): __class__ cell not found"))
    klass = tracer.cell_value(frame.locals[frame.dec.localsplus.index("__class__")])
    if klass is None:
        return tracer.raise_(RuntimeError("super(): empty __class__ cell"))
    if not isinstance(klass, t.Class):
        return tracer.raise_(RuntimeError(f"super(): __class__ is not a type ({klass.pytype().__name__})"))
    return t.super_of(tracer, klass, first)


@calls(bool)
def _bool(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return data.truth(tracer, args[0]) if args else t.FALSE


@calls(str)
def _str(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if not args:
        return t.Const("")
    return tracer.text(args[0]) if len(args) == 1 else tracer.fold_call(str, args, kwargs)


@calls(operator.index)
def _index(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    x = args[0]
    if x.constant or isinstance(x, t.Slice):
        return x if x.pytype() is int else tracer.fold(operator.index, (x.real(tracer),))
    return tracer.made(tracer.index(x))


@calls(builtins.abs, operator.abs)
def _abs(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if isinstance(args[0], (t.Tensor, t.Sym)):
        return tracer.torch_function(abs, args, kwargs)
    if type(args[0]) is t.Data and (found := data.computed(operator.abs, args[0])) is not None:
        return found
    return tracer.fold_call(abs, args, kwargs) if args[0].constant else tracer.call_special(args[0], "__abs__", [])


@calls(builtins.pow)
def _pow(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if len(args) == 3 and isinstance(args[0], t.Object) and args[0].payload is None:
        return tracer.call_special(args[0], "__pow__", args[1:])
    return tracer.binary("pow", args[0], args[1]) if len(args) == 2 else tracer.fold_call(pow, args, kwargs)


@calls(builtins.divmod)
def _divmod(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    a, b = args
    if isinstance(a, t.Object) or isinstance(b, t.Object):
        return tracer.by_dunder("divmod", a, b, "divmod()")
    return tracer.fold_call(divmod, args, kwargs)


@calls(builtins.round)
def _round(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if isinstance(args[0], t.Tensor):
        return tracer.torch_function(round, args, kwargs)
    if isinstance(args[0], t.Object) and args[0].payload is None:
        if tracer.lookup(args[0].cls, "__round__") is MISSING:
            tracer.raise_(TypeError(f"type {args[0].cls.__name__} doesn't define __round__ method"))
        return tracer.call_special(args[0], "__round__", args[1:], kwargs)
    return tracer.fold_call(round, args, kwargs)


@calls(vars)
def _vars(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if not args:
        raise FrameSeen("vars()")
    if not args[0].pytype().__dictoffset__:
        tracer.raise_(TypeError("vars() argument must have __dict__ attribute"))
    return args[0].get(tracer, "__dict__")


@calls(dir)
def _dir(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if args and isinstance(args[0], (t.Static, t.Const)):
        return tracer.fold(dir, (args[0].value,))
    if not args:
        raise FrameSeen("dir()")
    raise Unsupported("dir() of an instance")


@calls(slice)
def _slice(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if len(args) == 1:
        args = [t.NONE, args[0]]
    return t.Slice(args if len(args) == 3 else [*args, t.NONE])


@calls(object)
def _object(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    tracer.takes_nothing(object, "__new__", bool(args or kwargs))
    return t.Object(object)


@calls(range)
def _range(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if any(type(a) is t.Sym or type(a) is t.SymbolicNumber and tracer.may_be_size(a) for a in args):
        return t.Range(args)
    return tracer.fold(range, tuple([tracer.index(a) for a in args]))


def _changed(how: str) -> Callable[..., t.Tracker]:
    """Make the row of a function that mutates its first argument by that method."""

    def row(tracer: Any, x: t.Tracker, key: t.Tracker, *value: t.Tracker) -> t.Tracker:
        getattr(x, how)(tracer, key if how.endswith("_item") else key.real(tracer), *value)
        return t.NONE

    return row


by_position({
    **{getattr(operator, n): lambda tracer, a, b, n=n: tracer.binary(n, a, b) for n in BINARY},
    **{getattr(operator, n): lambda tracer, a, b, n=n: tracer.inplace(n, a, b)
       for n in ["i" + name.rstrip("_") for name in BINARY]},
    **{fn: lambda tracer, a, b, n=n: tracer.compare(n, a, b) for n, fn in COMPARE.items()},
    **{getattr(operator, n): lambda tracer, x, n=n: tracer.unary(n, x) for n in ("neg", "pos", "invert")},
    operator.inv: lambda tracer, x: tracer.unary("invert", x),
    operator.not_: data.negated,
    operator.truth: data.truth,
    operator.is_: lambda tracer, a, b: t.boolean(same_object(tracer, a, b)),
    operator.is_not: lambda tracer, a, b: t.boolean(not same_object(tracer, a, b)),
    operator.contains: lambda tracer, a, b: t.boolean(tracer.contains(a, b)),
    operator.getitem: lambda tracer, a, b: a.item(tracer, b),
    operator.setitem: _changed("set_item"),
    setattr: _changed("set"),
    delattr: _changed("delete"),
    hasattr: lambda tracer, x, name: t.boolean(tracer.has_attr(x, name.real(tracer))),
    callable: lambda tracer, x: t.boolean(callable_(tracer, x)),
    repr: lambda tracer, x: tracer.text(x, "__repr__"),
    ascii: lambda tracer, x: tracer.format_value(x, 3, ""),
    format: lambda tracer, x, *spec: tracer.formatted(x, spec[0].real(tracer) if spec else ""),
    hash: _hash,
})
refuses(Unsupported, "a call with an effect outside of the program (open, exec, …)", input, open, compile)
