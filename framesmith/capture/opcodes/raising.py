"""Exceptions."""

from __future__ import annotations

from typing import Any

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..frame import Frame
from ..registry import op


@op("RAISE_VARARGS")
def _raise(f: Frame, n: int) -> None:
    s = f.stack
    if n == 0:
        if not f.cx.handled:
            f.cx.raise_(RuntimeError("No active exception to reraise"))
        raise t.CapturedError(f.cx.handled[-1])
    cause = s.pop() if n == 2 else None
    exc = s.pop()
    if isinstance(exc, t.Class):
        exc = exc.call(f.cx, [], {})
    if not issubclass(exc.pytype(), BaseException):
        f.cx.raise_(TypeError("exceptions must derive from BaseException"))
    if cause is not None and isinstance(exc, t.Object):
        exc.attrs["__cause__"] = cause
    raise t.CapturedError(exc)


@op("RERAISE")
def _reraise(f: Frame, arg: int) -> None:
    exc = f.stack.pop()
    if arg:
        # the instruction that first raised, for the traceback
        pass
    raise t.CapturedError(exc)


@op("PUSH_EXC_INFO")
def _push_exc(f: Frame, arg: Any) -> None:
    s = f.stack
    exc = s[-1]
    s[-1] = f.cx.handled[-1] if f.cx.handled else t.NONE
    s.append(exc)
    f.cx.handled.append(exc)


@op("POP_EXCEPT")
def _pop_except(f: Frame, arg: Any) -> None:
    f.stack.pop()
    if f.cx.handled:
        f.cx.handled.pop()


@op("CHECK_EXC_MATCH")
def _match(f: Frame, arg: Any) -> None:
    s = f.stack
    want = s.pop().real(f.cx)
    try:
        s.append(t.boolean(issubclass(s[-1].pytype(), want)))
    except TypeError as e:
        f.cx.raise_(e)


@op("CHECK_EG_MATCH", "PREP_RERAISE_STAR")
def _group(f: Frame, arg: Any) -> None:
    raise Unsupported("exception groups")


@op("CLEANUP_THROW")
def _cleanup_throw(f: Frame, arg: Any) -> None:
    raise Unsupported("a throw into a delegating generator")
