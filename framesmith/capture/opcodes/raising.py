"""Exceptions."""

from __future__ import annotations

from typing import Any

from .. import trackers as t
from ..frame import Frame
from ..functions.errors import is_group, new_error, prep_reraise, split
from ..registry import op

_NOT_CLASSES = "catching classes that do not inherit from BaseException is not allowed"
_GROUP_CLASSES = "catching ExceptionGroup with except* is not allowed. Use except instead."


@op("RAISE_VARARGS")
def _raise(f: Frame, n: int) -> None:
    s = f.stack
    tracer = f.tracer
    if n == 0:
        if not tracer.handled:
            tracer.nothing_handled_outside()
            tracer.raise_(RuntimeError("No active exception to reraise"))
        raise t.CapturedError(tracer.handled[-1])
    cause = s.pop() if n == 2 else None
    exc = instance(tracer, s.pop(), "exceptions must derive from BaseException")
    if cause is not None:
        if cause is not t.NONE:
            cause = instance(tracer, cause, "exception causes must derive from BaseException")
        exc.set_field(tracer, "__cause__", cause)
    tracer.throw_(exc)


def instance(tracer: Any, x: t.Tracker, message: str) -> t.Error:
    """Return the exception that `raise x` raises."""
    if isinstance(x, t.Class) and issubclass(x.value, BaseException):
        made = x.call(tracer, [], {})
        if not isinstance(made, t.Error):
            name = made.pytype().__name__
            tracer.raise_(TypeError(f"calling {x.value!r} should have returned an instance of BaseException, not "
                                    f"<class '{name}'>"))
        x = made
    if not isinstance(x, t.Error):
        tracer.raise_(TypeError(message))
    return x  # type: ignore[return-value]


@op("RERAISE")
def _reraise(f: Frame, arg: int) -> None:
    at = f.stack[-arg - 1]
    f.again = at.index if arg and isinstance(at, t.Lasti) else f.ip - 1
    raise t.CapturedError(f.stack.pop())


@op("PUSH_EXC_INFO")
def _push_exc(f: Frame, arg: Any) -> None:
    s = f.stack
    exc = s[-1]
    s[-1] = t.Handled(exc, f.tracer.handled[-1] if f.tracer.handled else None)
    s.append(exc)
    f.tracer.handled.append(exc)


@op("POP_EXCEPT")
def _pop_except(f: Frame, arg: Any) -> None:
    f.stack.pop()
    if f.tracer.handled:
        f.tracer.handled.pop()


def _classes(tracer: Any, want: t.Tracker) -> tuple[type, ...]:
    """Return the classes of an except clause."""
    kinds = want.open(tracer) if isinstance(want, t.Tuple) else [want]
    if not all(isinstance(k, t.Class) and issubclass(k.value, BaseException) for k in kinds):
        tracer.raise_(TypeError(_NOT_CLASSES))
    return tuple(k.value for k in kinds)  # type: ignore[attr-defined]


def _matches(exc: t.Tracker, kinds: tuple[type, ...]) -> bool:
    # by the mro: __subclasscheck__ has no say
    mro = exc.pytype().__mro__
    return any(k in mro for k in kinds)


@op("CHECK_EXC_MATCH")
def _match(f: Frame, arg: Any) -> None:
    s = f.stack
    kinds = _classes(f.tracer, s.pop())
    s.append(t.boolean(_matches(s[-1], kinds)))


@op("CHECK_EG_MATCH")
def _match_group(f: Frame, arg: Any) -> None:
    s = f.stack
    tracer = f.tracer
    kinds = _classes(tracer, s.pop())
    if any(issubclass(k, BaseExceptionGroup) for k in kinds):
        tracer.raise_(TypeError(_GROUP_CLASSES))
    exc = s[-1]
    match: t.Tracker = t.NONE
    rest = exc
    if exc is not t.NONE:
        if _matches(exc, kinds):
            match, rest = exc if is_group(exc) else new_error(tracer, BaseExceptionGroup,
                                                              [t.Const(""), t.Tuple([exc])]), t.NONE
        elif is_group(exc):
            match, rest = split(tracer, exc, lambda e: _matches(e, kinds))
    s[-1] = rest
    s.append(match)
    if match is not t.NONE:
        tracer.handled[-1] = match


@op("PREP_RERAISE_STAR")
def _prep_reraise(f: Frame, arg: Any) -> None:
    s = f.stack
    raised = s.pop().items_list(f.tracer)
    s[-1] = prep_reraise(f.tracer, s[-1], raised)


@op("CLEANUP_THROW")
def _cleanup_throw(f: Frame, arg: Any) -> None:
    """Handle an exception from the iterator that `yield from` delegates to."""
    s = f.stack
    exc = s[-1]
    if not _matches(exc, (StopIteration,)):
        s.pop()
        raise t.CapturedError(exc)
    del s[-3:]
    s += [t.NONE, exc.get(f.tracer, "value")]
