"""The priority of a compilation: all of the machine, or what threads that serve calls leave idle.

In the second case the thread that compiles works for short times, with rests between them (see csrc/pace.h): it may
hold the GIL, which each operator of an eager call takes again, so a low priority of the system's would have others
wait for it. The C++ compilers that it starts have such a priority. (Threads of OpenMP wait for each other: a process
that may have a tenth of a core slows a model of many small operators by half, one of the lowest priority by nothing
that is seen.)
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from framesmith import _C
from framesmith.util.collector import collector_resumed
from framesmith.util.locks import COMPILE_LOCK, released

NICENESS = 19


class Priority:
    """The priority of one compilation. `low`: others come first."""

    def __init__(self, low: bool) -> None:
        self.low = low
        self._pace = _C.Pace()
        self._running: set[subprocess.Popen[Any]] = set()
        if low:
            self.lower()

    def lower(self) -> None:
        """From now on, take what is left."""
        self.low = True
        self._pace.gives_way = True
        for process in tuple(self._running):
            with contextlib.suppress(OSError):  # it has ended; or a system without priorities
                os.setpriority(os.PRIO_PGRP, process.pid, NICENESS)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Let this thread work at the priority within the block."""
        before, _mine.priority = _mine.priority, self
        try:
            with self._pace:
                yield
        finally:
            _mine.priority = before

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a process at the priority, in a group of its own: what it starts is part of it, and a signal of the
        program's terminal is not for it."""
        command = [*(["nice", "-n", str(NICENESS)] if self.low and shutil.which("nice") else []), *command]
        process = subprocess.Popen(command, process_group=0, **options)
        self._running = {other for other in self._running if other.returncode is None} | {process}
        _processes.add(process)
        return process


_processes: weakref.WeakSet[subprocess.Popen[Any]] = weakref.WeakSet()


@atexit.register
def end_processes() -> None:
    """End all processes of compilations, as at the program's exit."""
    for process in tuple(_processes):
        if process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)


os.register_at_fork(after_in_child=_processes.clear)  # they are the parent's


class _Mine(threading.local):
    priority: Priority | None = None


_mine = _Mine()


def has_priority() -> bool:
    """Return whether this thread compiles in the background, at its own priority."""
    return _mine.priority is not None


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Within, a thread at a priority of its own waits for processes: it does not hold the compile lock, nor has it
    OpenMP threads, which would make those that serve calls wait less briskly for their work."""
    if _mine.priority is None:
        yield
        return
    _C.end_team()
    with collector_resumed(), released(COMPILE_LOCK):
        yield


def lower_thread() -> None:
    """Give this thread the system's lowest priority, where threads have their own."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a system that forbids it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Start a process at the priority of this thread."""
    return (subprocess.Popen(command, **options) if _mine.priority is None
            else _mine.priority.start(command, **options))
