"""Turns of threads at capturing and compiling: the recorder and fakes are per process, so one goes at a time."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from framesmith.util.collector import collector_resumed
from framesmith.util.dynamo import dynamo_off

_locks = [threading.RLock()]
# The thread that held the lock does not exist in a forked child.
os.register_at_fork(after_in_child=lambda: _locks.__setitem__(0, threading.RLock()))


@contextlib.contextmanager
def alone() -> Iterator[bool]:
    """Hold the lock under which frames are captured and compiled; whether it had to be waited for."""
    lock = _locks[0]
    waited = not lock.acquire(blocking=False)
    if waited:
        lock.acquire()
    try:
        with dynamo_off():
            yield waited
    finally:
        lock.release()


@contextlib.contextmanager
def alone_if_free() -> Iterator[bool]:
    """Hold it unless another thread does; whether it is held."""
    lock = _locks[0]
    held = lock.acquire(blocking=False)
    try:
        with dynamo_off():
            yield held
    finally:
        if held:
            lock.release()


@contextlib.contextmanager
def given_up() -> Iterator[None]:
    """Let other threads have the turn that this one may have."""
    lock, depth = _locks[0], 0
    with contextlib.suppress(RuntimeError):  # it is not this thread's any more
        while True:
            lock.release()
            depth += 1
    try:
        with collector_resumed():
            yield
    finally:
        for _ in range(depth):
            lock.acquire()
