"""Exceptions of the program's signal handlers during our work, which must reach the program."""

from __future__ import annotations

import _signal
import inspect
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

_SIGNALS = tuple(map(int, signal.valid_signals()))
_ENTRY_AND_EXIT = ("__enter__", "__exit__")


def _handlers() -> dict[int, Callable[[int, FrameType | None], Any]]:
    """Return the program's Python handlers, by signal."""
    found = {n: handler for n in _SIGNALS if callable(handler := _signal.getsignal(n))}
    return {n: _own(handler) for n, handler in found.items()}


def _own(handler: Any) -> Any:
    """Return the program's handler, or that of a block around this one, where one of ours was left in its place: it
    raised while it was to be taken back."""
    while isinstance(handler, _Hearing) and not handler.heard.open:
        handler = handler.own
    return handler


def _code_of(handler: Any) -> CodeType | None:
    while isinstance(handler, _Hearing):
        handler = handler.own
    while hasattr(handler, "func"):  # functools.partial
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    return getattr(function, "__code__", None) or getattr(vars(type(handler)).get("__call__"), "__code__", None)


def _place(code: CodeType) -> tuple[str, str, int]:
    """Return the place in the source of a function: a handler that is itself compiled runs as another code object."""
    return code.co_filename, code.co_qualname, code.co_firstlineno


def raised_by_handler(error: BaseException) -> bool:
    """Return whether a signal handler raised the exception: one is among the frames that it came through."""
    places = {_place(code) for handler in _handlers().values() if (code := _code_of(handler)) is not None}
    trace = error.__traceback__ if places else None
    while trace is not None:
        if _place(trace.tb_frame.f_code) in places:
            return True
        trace = trace.tb_next
    return False


@contextmanager
def handlers_heard() -> Iterator[None]:
    """Raise at the end of the block an exception that a signal handler raised within it and that was caught on the way,
    by an `except` or a finaliser."""
    own = _handlers() if threading.current_thread() is threading.main_thread() else {}
    if not own:
        yield
        return
    heard = _Heard()
    try:
        for number, handler in own.items():
            _signal.signal(number, _Hearing(handler, heard))
        yield
    finally:
        while heard.open:
            try:
                _put_back(own, heard)
                heard.open = False
            except BaseException as error:  # a handler's, which ran in the midst of it
                heard.errors.append(error)
        if heard.errors:
            # a context manager that it kept from being left ends with the frame that holds it
            traceback.clear_frames(heard.errors[-1].__traceback__)
            raise heard.errors.pop()


def _put_back(own: dict[int, Callable[[int, FrameType | None], Any]], heard: _Heard) -> None:
    """Restore handlers, but for those that the program has set meanwhile."""
    for number, handler in own.items():
        now = _signal.getsignal(number)
        if isinstance(now, _Hearing) and now.heard is heard:
            _signal.signal(number, handler)


def _enters_or_leaves(frame: FrameType | None) -> bool:
    """Return whether a frame is that of an `__enter__` or `__exit__`, or of the generator that one of them resumes."""
    if frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name in _ENTRY_AND_EXIT


class _Heard:
    """Exceptions that handlers have raised in one block, which is open until the handlers are restored."""

    __slots__ = ("errors", "open")

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.open = True


class _Hearing:
    """A handler of the program's, or of a block around this one, that notes what it raises.

    An exception in the midst of `__enter__` or `__exit__` would keep the context manager from being left: there it
    waits for the end of the block.
    """

    __slots__ = ("heard", "own")

    def __init__(self, own: Callable[[int, FrameType | None], Any], heard: _Heard) -> None:
        self.own, self.heard = own, heard

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            self.own(number, frame)
        except BaseException as error:
            self.heard.errors.append(error)
            if not _enters_or_leaves(frame):
                raise
