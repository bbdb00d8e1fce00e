"""Seconds spent in each stage of compilation, per thread, for `explain`, the log and the benchmark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from framesmith.util import events, log


class _Clock(threading.local):
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.running: list[str] = []


_clock = _Clock()


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Add the time of the `with` body to `name`'s account. It counts for the stages around it, too, but once where they
    have its name. What the outermost stage and those in it took is logged when it ends."""
    running = _clock.running
    before = stages() if not running and log.enabled("timing") else None
    start = time.perf_counter()
    compile, outer = events.current(), len(running)
    try:  # from here on: a signal handler may raise behind any call
        running.append(name)
        if compile is not None:
            compile.running = running
        yield
    finally:
        del running[outer:]
        if compile is not None:
            began = start - compile.start
            compile.spans.append(events.Span(name, began, time.perf_counter() - start, len(running)))
        if name not in running:
            _clock.seconds[name] = _clock.seconds.get(name, 0.0) + time.perf_counter() - start
        if before is not None:
            spent = {k: s - before.get(k, 0.0) for k, s in stages().items()}
            log.emit("timing", ", ".join(f"{k} {s:.4f} s" for k, s in by_stage(spent).items() if s > 0))


def by_stage(accounts: dict[str, float]) -> dict[str, float]:
    """Return the accounts in the order of the pipeline. `capture` is what the back end's stages leave of the time of a
    whole frame."""
    rest = dict(accounts)
    total, back_end, guards = (rest.pop(name, 0.0) for name in ("total", "back end", "guards"))
    return {"capture": total and total - back_end, "guards": guards, **rest, "total": (total or back_end) + guards}


def stages() -> dict[str, float]:
    """Return a copy of this thread's accounts, in order of first use."""
    return dict(_clock.seconds)


def reset() -> None:
    """Empty this thread's accounts."""
    _clock.seconds.clear()
