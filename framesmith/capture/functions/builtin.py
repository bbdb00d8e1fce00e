"""Python's builtin functions that look at values: isinstance, getattr, type, len, the constructors of scalars, …"""

from __future__ import annotations

import builtins
import operator
import threading
from types import FunctionType
from typing import Any

from framesmith.util.errors import FrameSeen, Unsupported

from .. import data
from .. import trackers as t
from ..identity import same_object
from ..registry import calls
from ..sources import MISSING, Pinned
from ..values import CONSTANT_TYPES

Args = list[t.Tracker]
Kwargs = dict[str, t.Tracker]


@calls(len)
def _len(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return cx.made(args[0].size(cx)) if not isinstance(args[0], t.Object) or args[0].payload is None else _object_len(cx, args[0])


def _object_len(cx: Any, obj: t.Object) -> t.Tracker:
    raw = cx.lookup(obj.cls, "__len__")
    if isinstance(raw, FunctionType):
        return cx.made(obj.size(cx))
    return cx.made(obj.payload.size(cx))  # type: ignore[union-attr]


@calls(getattr)
def _getattr(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    name = args[1].real(cx)
    try:
        return args[0].get(cx, name)
    except t.CapturedError as e:
        if len(args) > 2 and issubclass(e.tracker.pytype(), AttributeError):
            return args[2]
        cx.about(e.tracker, args[0], name)
        raise


@calls(hasattr)
def _hasattr(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    try:
        args[0].get(cx, args[1].real(cx))
    except t.CapturedError as e:
        if issubclass(e.tracker.pytype(), AttributeError):
            return t.FALSE
        raise
    return t.TRUE


@calls(setattr)
def _setattr(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    args[0].set(cx, args[1].real(cx), args[2])
    return t.NONE


@calls(delattr)
def _delattr(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    args[0].delete(cx, args[1].real(cx))
    return t.NONE


@calls(callable)
def _callable(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.boolean(callable_(cx, args[0]))


def callable_(cx: Any, x: t.Tracker) -> bool:
    """callable(x)"""
    if isinstance(x, (t.Const, t.Static)):
        return callable(x.value)
    if isinstance(x, (t.Function, t.Method, t.Partial, t.Bound, t.TensorMethod)):
        return True
    return cx.lookup(x.pytype(), "__call__") is not MISSING


@calls(id)
def _id(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    value = getattr(args[0], "value", None)
    source = getattr(args[0], "source", None)
    if value is None or source is None:
        return t.Address(args[0])
    cx.guard(source, "id", value)
    return t.Const(id(value))


@calls(threading.get_ident)
def _thread(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    cx.guard(Pinned(threading), "callable", _SameThread(threading.get_ident()))
    return t.Const(threading.get_ident())


class _SameThread:
    """The call is one of this thread's."""

    __slots__ = ("ident",)

    def __init__(self, ident: int) -> None:
        self.ident = ident

    def __call__(self, module: Any) -> bool:
        return threading.get_ident() == self.ident


@calls(super)
def _super(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.super_of(cx, args[0], args[1]) if args else _super_here(cx, cx.frames[-1])


def _super_here(cx: Any, frame: Any) -> t.Tracker:
    """`super()`: of the class around the function and the function's first argument."""
    code = frame.code
    if not code.co_argcount:
        return cx.raise_(RuntimeError("super(): no arguments"))
    first = frame.locals[0]
    if first is None and frame is cx.frames[0] and 0 in cx.pending:
        first = cx.unset_local(frame, 0)
    if isinstance(first, t.Cell) and code.co_varnames[0] in code.co_cellvars:
        first = cx.cell_value(first)
    if first is None:
        return cx.raise_(RuntimeError("super(): arg[0] deleted"))
    if "__class__" not in code.co_freevars:
        return cx.raise_(RuntimeError("super(): __class__ cell not found"))
    klass = cx.cell_value(frame.locals[frame.dec.localsplus.index("__class__")])
    if klass is None:
        return cx.raise_(RuntimeError("super(): empty __class__ cell"))
    if not isinstance(klass, t.Class):
        return cx.raise_(RuntimeError(f"super(): __class__ is not a type ({klass.pytype().__name__})"))
    return t.super_of(cx, klass, first)


@calls(bool)
def _bool(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return data.truth(cx, args[0]) if args else t.FALSE


@calls(operator.not_)
def _not(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return data.negated(cx, args[0])


@calls(operator.truth)
def _truth(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return data.truth(cx, args[0])


@calls(str)
def _str(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if not args:
        return t.Const("")
    return cx.text(args[0]) if len(args) == 1 else cx.fold_call(str, args, kwargs)


@calls(repr)
def _repr(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return cx.text(args[0], "__repr__")


@calls(format)
def _format(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return cx.formatted(args[0], args[1].real(cx) if len(args) > 1 else "")


@calls(ascii)
def _ascii(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return cx.format_value(args[0], 3, "")


def _operator(name: str) -> Any:
    def row(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        return cx.binary(name, args[0], args[1])

    return row


for _name in ("add", "and_", "floordiv", "lshift", "matmul", "mul", "mod", "or_", "pow", "rshift", "sub", "truediv", "xor"):
    calls(getattr(operator, _name))(_operator(_name))


def _inplace(name: str) -> Any:
    def row(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        return cx.inplace(name, args[0], args[1])

    return row


for _name in ("iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imul", "imod", "ior", "ipow", "irshift", "isub", "itruediv", "ixor"):
    calls(getattr(operator, _name))(_inplace(_name))


def _comparison(symbol: str) -> Any:
    def row(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        return cx.compare(symbol, args[0], args[1])

    return row


for _symbol, _fn in (("<", operator.lt), ("<=", operator.le), ("==", operator.eq), ("!=", operator.ne), (">", operator.gt),
                     (">=", operator.ge)):
    calls(_fn)(_comparison(_symbol))


def _unary(name: str) -> Any:
    def row(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        return cx.unary(name, args[0])

    return row


for _name in ("neg", "pos", "invert"):
    calls(getattr(operator, _name))(_unary(_name))
calls(operator.inv)(_unary("invert"))


@calls(operator.is_)
def _is(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.boolean(same_object(cx, args[0], args[1]))


@calls(operator.is_not)
def _is_not(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.boolean(not same_object(cx, args[0], args[1]))


@calls(operator.contains)
def _contains(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.boolean(cx.contains(args[0], args[1]))


@calls(operator.getitem)
def _getitem(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return args[0].item(cx, args[1])


@calls(operator.setitem)
def _setitem(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    args[0].set_item(cx, args[1], args[2])
    return t.NONE


@calls(operator.index)
def _index(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    x = args[0]
    if x.constant or isinstance(x, t.Slice):
        return x if x.pytype() is int else cx.fold(operator.index, (x.real(cx),))
    return cx.made(cx.index(x))


@calls(builtins.abs, operator.abs)
def _abs(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if isinstance(args[0], (t.Tensor, t.Sym)):
        return cx.torch_call(abs, args, kwargs)
    return cx.fold_call(abs, args, kwargs) if args[0].constant else cx.call_special(args[0], "__abs__", [])


@calls(builtins.pow)
def _pow(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if len(args) == 3 and isinstance(args[0], t.Object) and args[0].payload is None:
        return cx.call_special(args[0], "__pow__", args[1:])
    return cx.binary("pow", args[0], args[1]) if len(args) == 2 else cx.fold_call(pow, args, kwargs)


@calls(builtins.divmod)
def _divmod(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    a, b = args
    if isinstance(a, t.Object) or isinstance(b, t.Object):
        return cx.by_dunder("divmod", a, b, "divmod()")
    return cx.fold_call(divmod, args, kwargs)


@calls(builtins.round)
def _round(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if isinstance(args[0], t.Tensor):
        return cx.torch_call(round, args, kwargs)
    if isinstance(args[0], t.Object) and args[0].payload is None:
        if cx.lookup(args[0].cls, "__round__") is MISSING:
            cx.raise_(TypeError(f"type {args[0].cls.__name__} doesn't define __round__ method"))
        return cx.call_special(args[0], "__round__", args[1:], kwargs)
    return cx.fold_call(round, args, kwargs)


@calls(hash)
def _hash(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.Const(cx.hash_of(args[0]))


@calls(vars)
def _vars(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if not args:
        raise FrameSeen("vars()")
    if not args[0].pytype().__dictoffset__:
        cx.raise_(TypeError("vars() argument must have __dict__ attribute"))
    return args[0].get(cx, "__dict__")


@calls(input, open, compile)
def _effect(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    raise Unsupported("a call with an effect outside of the program (open, exec, …)")


@calls(dir)
def _dir(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if args and isinstance(args[0], (t.Static, t.Const)):
        return cx.fold(dir, (args[0].value,))
    if not args:
        raise FrameSeen("dir()")
    raise Unsupported("dir() of an instance")


@calls(slice)
def _slice(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if len(args) == 1:
        args = [t.NONE, args[0]]
    return t.Slice(args if len(args) == 3 else [*args, t.NONE])


@calls(object)
def _object(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    cx.takes_nothing(object, "__new__", bool(args or kwargs))
    return t.Object(object)


@calls(range)
def _range(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return cx.fold(range, tuple([cx.index(a) for a in args]))


__all__ = ["CONSTANT_TYPES"]
