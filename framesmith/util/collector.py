"""Python's cyclic garbage collector during a compilation: what it would walk again and again is alive."""

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
    """No cyclic collection within; afterwards the collector is as it was. The caller holds the compile lock."""
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
    """Within a pause of this thread, have the collector as it was before. What is alive goes to its oldest generation
    unseen: it would soon walk all that the program holds, for tenths of a second in which no thread runs."""
    paused = threading.get_ident() in _paused_by
    if paused:
        if not gc.get_freeze_count():  # the program's own freezing stays as it is
            gc.freeze()
            gc.unfreeze()
        _paused_by.clear()
        gc.enable()
    try:
        yield
    finally:
        if paused:
            _paused_by.add(threading.get_ident())
            gc.disable()


def _resume() -> None:
    """In a forked child: a thread that compiles in the parent does not end its pause here."""
    if _paused_by - {threading.get_ident()}:
        gc.enable()
        _paused_by.clear()


os.register_at_fork(after_in_child=_resume)
