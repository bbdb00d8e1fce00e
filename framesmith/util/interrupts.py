"""Exceptions that the program's signal handlers raise in the middle of our work: they are the program's, whatever we
were about to do."""

from __future__ import annotations

import _signal
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

_SIGNALS = tuple(map(int, signal.valid_signals()))


def _handlers() -> dict[int, Callable[[int, FrameType | None], Any]]:
    """The program's handlers in Python, by signal."""
    found = {number: _own(_signal.getsignal(number)) for number in _SIGNALS}
    return {n: h for n, h in found.items() if callable(h) and h is not signal.default_int_handler}


def _own(handler: Any) -> Any:
    """The program's handler, where one of ours was left in its place: it raised while it was to be taken back."""
    while hasattr(handler, "raised"):
        handler = handler.own
    return handler


def _code_of(handler: Any) -> CodeType | None:
    while hasattr(handler, "func"):  # functools.partial
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    return getattr(function, "__code__", None) or getattr(vars(type(handler)).get("__call__"), "__code__", None)


def raised_by_handler(error: BaseException) -> bool:
    """Return whether a signal handler raised the exception: one is among the frames that it came through."""
    # by identity: a compiled frame's constants have no hash
    codes = {id(_code_of(handler)) for handler in _handlers().values()}
    trace = error.__traceback__ if codes else None
    while trace is not None:
        if id(trace.tb_frame.f_code) in codes:
            return True
        trace = trace.tb_next
    return False


@contextmanager
def handlers_heard() -> Iterator[None]:
    """Raise at the end of the block what a signal handler raised within it, if any code on the way has caught it."""
    own = _handlers() if threading.current_thread() is threading.main_thread() else {}
    if not own:
        yield
        return
    raised: list[BaseException] = []
    for number, handler in own.items():
        signal.signal(number, _hearing(handler, raised))
    try:
        yield
    finally:
        for number, handler in own.items():
            if getattr(signal.getsignal(number), "raised", None) is raised:  # the program may have set another
                signal.signal(number, handler)
        if raised:
            raise raised[-1]


def _hearing(handler: Callable[[int, FrameType | None], Any],
             raised: list[BaseException]) -> Callable[[int, FrameType | None], None]:
    def heard(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except BaseException as error:
            raised.append(error)
            raise

    heard.raised, heard.own = raised, handler  # type: ignore[attr-defined]
    return heard
