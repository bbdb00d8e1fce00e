"""Pauses of Python's cyclic garbage collector during a compilation, whose objects are mostly alive."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_paused_by: set[int] = set()
"""The thread that compiles, if the collector worked before."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Disable cyclic collection within the block. In the pause of another thread it has no effect of its own."""
    was_enabled = gc.isenabled()
    try:
        if was_enabled:
            _paused_by.add(threading.get_ident())
            gc.disable()
        yield
    finally:
        if was_enabled:
            gc.enable()
            _paused_by.clear()


@contextmanager
def collector_resumed() -> Iterator[None]:
    """Restore the collector within the block, inside a pause of this thread."""
    paused = threading.get_ident() in _paused_by
    if paused:
        promote()
        _paused_by.clear()
        gc.enable()
    try:
        yield
    finally:
        if paused:
            _paused_by.add(threading.get_ident())
            gc.disable()


def promote() -> None:
    """Move live objects to the collector's oldest generation, so that it does not begin by looking at them: a full
    collection over the program's objects would stop all threads for tenths of a second."""
    if not gc.get_freeze_count():  # the program's own freezing stays as it is
        gc.freeze()
        gc.unfreeze()


def _resume() -> None:
    """End the pause in a forked child, where the compiling thread does not exist."""
    if _paused_by - {threading.get_ident()}:
        gc.enable()
        _paused_by.clear()


os.register_at_fork(after_in_child=_resume)
