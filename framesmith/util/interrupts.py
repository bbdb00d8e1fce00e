"""Exceptions that the program's signal handlers raise in the middle of our work: they are the program's, whatever we
were about to do."""

from __future__ import annotations

import _signal
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

_SIGNALS = tuple(map(int, signal.valid_signals()))


def _handlers() -> dict[int, Callable[[int, FrameType | None], Any]]:
    """The program's handlers in Python, by signal."""
    found = {n: handler for n in _SIGNALS if callable(handler := _signal.getsignal(n))}
    return {n: _own(handler) for n, handler in found.items()}


def _own(handler: Any) -> Any:
    """The program's handler, where one of ours was left in its place: it raised while it was to be taken back."""
    while isinstance(handler, _Hearing):
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
    """Raise at the end of the block what a signal handler raised within it, if anything on the way has caught it: an
    `except`, or a finaliser."""
    own = _handlers() if threading.current_thread() is threading.main_thread() else {}
    if not own:
        yield
        return
    raised: list[BaseException] = []
    try:
        for number, handler in own.items():
            _signal.signal(number, _Hearing(handler, raised))
        yield
    finally:
        while True:
            try:
                _put_back(own, raised)
                break
            except BaseException as error:  # a handler's, which ran in the midst of it
                raised.append(error)
        if raised:
            # a context manager that it kept from being left ends with the frame that holds it
            traceback.clear_frames(raised[-1].__traceback__)
            raise raised.pop()


def _put_back(own: dict[int, Callable[[int, FrameType | None], Any]], raised: list[BaseException]) -> None:
    """Restore handlers, but for those that the program has set meanwhile."""
    for number, handler in own.items():
        now = _signal.getsignal(number)
        if isinstance(now, _Hearing) and now.raised is raised:
            _signal.signal(number, handler)


class _Hearing:
    """A handler of the program's, with what it has raised."""

    __slots__ = ("own", "raised")

    def __init__(self, own: Callable[[int, FrameType | None], Any], raised: list[BaseException]) -> None:
        self.own, self.raised = own, raised

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            self.own(number, frame)
        except BaseException as error:
            self.raised.append(error)
            raise
