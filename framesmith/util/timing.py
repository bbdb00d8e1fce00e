"""Seconds spent in each stage of compilation, per thread, for `explain` and for the benchmark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class _Clock(threading.local):
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}


_clock = _Clock()


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Add the time of the `with` body to `name`'s account (nested stages count in both)."""
    start = time.perf_counter()
    try:
        yield
    finally:
        add(name, time.perf_counter() - start)


def add(name: str, seconds: float) -> None:
    """Add `seconds` to `name`'s account."""
    _clock.seconds[name] = _clock.seconds.get(name, 0.0) + seconds


def stages() -> dict[str, float]:
    """A copy of this thread's accounts, in order of first use."""
    return dict(_clock.seconds)


def reset() -> None:
    """Empty this thread's accounts."""
    _clock.seconds.clear()
