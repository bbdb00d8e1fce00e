"""Python's cyclic garbage collector during a compilation: what it would walk again and again is alive."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_before: list[bool] = []
"""Whether it was on as each pause began."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """No cyclic collection within; afterwards the collector is as it was."""
    _before.append(gc.isenabled())
    gc.disable()
    try:
        yield
    finally:
        if _before.pop():
            gc.enable()


@contextmanager
def collector_resumed() -> Iterator[None]:
    """Within a pause, have the collector as it was before."""
    paused = bool(_before) and _before[0] and not gc.isenabled()
    if paused:
        promote()
        gc.enable()
    try:
        yield
    finally:
        if paused:
            gc.disable()


def promote() -> None:
    """Move what is alive to the oldest generation unseen. What a compilation leaves would have the collector walk all
    that the program holds soon, for tenths of a second in which no thread runs."""
    if not gc.get_freeze_count():  # the program's own freezing stays as it is
        gc.freeze()
        gc.unfreeze()
