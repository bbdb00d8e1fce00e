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


def _resume() -> None:
    """In a forked child: a thread that compiles in the parent does not end its pause here."""
    if _paused_by - {threading.get_ident()}:
        gc.enable()
        _paused_by.clear()


os.register_at_fork(after_in_child=_resume)
