"""Compilation in the background: eager serves calls while a job compiles code for later ones.

A job is a thread that captures and compiles as a call would, at a low priority (see `util.priority`): most of its time
passes in C++ compilers, which are processes of their own. It does not fork this one: every page that is written after
a fork is copied, which the next call waits for, and the child holds the program's connections open.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from framesmith.util import events, log
from framesmith.util.priority import Priority, end_processes


class Job:
    """One compilation; `compile` takes the compile lock itself. `waited`: a call waits for it, until `defer` is called.
    `place`: function, file and line."""

    def __init__(self, place: tuple[str, str, int], compile: Callable[[], Any], waited: bool = False) -> None:
        self._place, self._compile = place, compile
        self._priority = Priority(low=not waited)
        self._pid = os.getpid()
        self._over = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None
        _jobs.add(self)
        threading.Thread(target=self._run, name="framesmith background", daemon=True).start()

    @property
    def pending(self) -> bool:
        """Return whether there will be a result. A fork of the program has no thread for it."""
        return not self._over.is_set() and self._pid == os.getpid()

    def wait(self, seconds: float | None = None) -> bool:
        """Return whether it is over, after so many seconds at most."""
        return self._over.wait(seconds)

    def defer(self) -> None:
        """Note that no call waits for it any more."""
        self._priority.lower()

    def result(self) -> Any:
        """Return the result of `compile`, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._result

    def _run(self) -> None:
        began, outcome = time.perf_counter(), "raised"
        try:
            with self._priority.entered():
                self._result = self._compile()
            outcome = "in eager" if self._result is None or isinstance(self._result, str) else "compiled"
        except BaseException as error:
            self._error = error
        finally:
            del self._compile  # the arguments of a call
            event = events.BackgroundCompile(*self._place, outcome, time.perf_counter() - began)
            log.emit("background", str(event))
            events.emit(event)
            self._over.set()
            _jobs.discard(self)


_jobs: set[Job] = set()
os.register_at_fork(after_in_child=_jobs.clear)


class _Foreground(threading.local):
    on = False


_foreground = _Foreground()


def in_foreground() -> bool:
    """Return whether calls of this thread wait for their code, whatever the options say."""
    return _foreground.on


@contextlib.contextmanager
def foreground() -> Iterator[None]:
    """Let calls of this thread wait for their code within the block."""
    before, _foreground.on = _foreground.on, True
    try:
        yield
    finally:
        _foreground.on = before


def wait(timeout: float | None = None) -> bool:
    """Return when nothing is compiled in the background any more; False if that takes longer than `timeout` seconds."""
    end = None if timeout is None else time.monotonic() + timeout
    while jobs := tuple(_jobs):
        for job in jobs:
            if not job.wait(None if end is None else max(0.0, end - time.monotonic())):
                return False
    return True


@atexit.register
def _end() -> None:
    """End the compilers at the program's exit, and let the jobs that wait for them remove their folders."""
    if _jobs:
        end_processes()
        wait(0.5)
