"""Calls and with blocks."""

from __future__ import annotations

import builtins
from typing import Any

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..frame import Frame
from ..functions.errors import traceback_of
from ..registry import OPS, op
from .building import iterable, keyword_mapping


@op("KW_NAMES")
def _kw_names(f: Frame, names: tuple[str, ...]) -> None:
    f.kw_names = names


@op("CALL")
def _call(f: Frame, n: int) -> None:
    s = f.stack
    names = f.kw_names
    f.kw_names = ()
    args = s[len(s) - n:]
    fn, first = s[-n - 2], s[-n - 1]
    if fn is t.NULL:
        fn = first
    else:
        args.insert(0, first)
    kwargs: dict[str, t.Tracker] = {}
    if names:
        k = len(names)
        kwargs = dict(zip(names, args[-k:]))
        del args[-k:]
    result = f.tracer.call_direct(fn, args, kwargs)
    del s[-n - 1:]
    s[-1] = result


@op("CALL_FUNCTION_EX")
def _call_ex(f: Frame, flags: int) -> None:
    s = f.stack
    kwargs: dict[str, t.Tracker] = {}
    take = 1
    if flags & 1:
        kwargs = dict(keyword_mapping(f.tracer, s[-1], s[-3]))
        if any(isinstance(k, t.Hashed) and issubclass(k.tracker.pytype(), str) for k in kwargs):
            raise Unsupported("keywords that are instances of a subclass of str")
        if not all(isinstance(k, str) for k in kwargs):
            f.tracer.raise_(TypeError("keywords must be strings"))
        take = 2
    fn = s[-take - 1]
    args = f.tracer.listed(iterable(f.tracer, s[-take], fn))
    result = f.tracer.call_direct(fn, args, kwargs)
    del s[-take - 2:]
    s.append(result)


@op("BEFORE_WITH")
def _before_with(f: Frame, arg: Any) -> None:
    s = f.stack
    manager = s[-1]
    enter = f.tracer.special_method(manager, "__enter__")
    leave = f.tracer.special_method(manager, "__exit__")
    entered = enter.call(f.tracer, [], {})
    s[-1] = leave
    s.append(entered)


@op("WITH_EXCEPT_START")
def _with_except(f: Frame, arg: Any) -> None:
    s = f.stack
    exc = s[-1]
    leave = s[-4]
    s.append(leave.call(f.tracer, [f.tracer.made(exc.pytype()), exc, traceback_of(exc)], {}))


@op("CALL_INTRINSIC_1")
def _intrinsic(f: Frame, kind: int) -> None:
    s = f.stack
    if kind == 5:
        s[-1] = f.tracer.unary("pos", s[-1])
    elif kind == 6:
        s[-1] = t.Tuple(s[-1].items_list(f.tracer))
    elif kind == 3:
        if issubclass(s[-1].pytype(), StopIteration):
            s[-1] = f.tracer.escaped_stop(s[-1])
    else:
        raise Unsupported(f"intrinsic {kind}")


@op("CALL_INTRINSIC_2")
def _intrinsic_2(f: Frame, kind: int) -> None:
    if kind != 1:
        raise Unsupported(f"intrinsic {kind} of two operands")
    OPS["PREP_RERAISE_STAR"](f, 0)


@op("LOAD_ASSERTION_ERROR")
def _assertion(f: Frame, arg: Any) -> None:
    f.stack.append(f.tracer.made(AssertionError))


@op("LOAD_BUILD_CLASS")
def _build_class(f: Frame, arg: Any) -> None:
    f.stack.append(f.tracer.read_global(f.globals, "__build_class__") if "__build_class__" in f.globals
                   else f.tracer.made(builtins.__build_class__))
