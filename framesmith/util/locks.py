"""Locks of the compiler, which are free in a forked child, where the thread that held one does not exist.

They are entered by `with` itself. A signal handler that raises cannot come between the acquisition and the block then,
as it can in a context manager written in Python.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

from framesmith.util.alive import Alive

_locks: Alive[Any] = Alive()


def forkable_lock() -> threading.RLock:  # type: ignore[valid-type]
    """Return a reentrant lock."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _free_others() -> None:
    for lock in _locks:
        if not lock._is_owned():
            lock._at_fork_reinit()


os.register_at_fork(after_in_child=_free_others)

COMPILE_LOCK: Any = forkable_lock()
"""Held where frames are captured and graphs are compiled, one at a time: the recorder, fakes and timers are per
process."""


@contextlib.contextmanager
def released_once(lock: Any) -> Iterator[None]:
    """Release a lock that this thread holds within the block; not if it holds it several times: what is around the
    block is not to be interrupted then."""
    lock.release()
    inner = lock._is_owned()
    if inner:
        lock.acquire()
    try:
        yield
    finally:
        if not inner:
            lock.acquire()


@contextlib.contextmanager
def released(lock: Any) -> Iterator[None]:
    """Release a lock that this thread may hold, however often, and acquire it again at the end."""
    depth = 0
    with contextlib.suppress(RuntimeError):  # it is not this thread's any more
        while True:
            lock.release()
            depth += 1
    try:
        yield
    finally:
        for _ in range(depth):
            lock.acquire()
