"""Interleaved timing: every contender runs once a round, so that drift of the machine affects all equally, in a
different order each round, so that each follows each other one (caches, the allocator's pages)."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds a call: `median` over rounds, `low` and `high` the extremes, `rounds` their number."""

    median: float
    low: float
    high: float
    rounds: int


def _calls_for(run: Callable[[], object], target: float) -> int:
    """Return the number of calls that take about `target` seconds (at least one)."""
    start = time.perf_counter()
    run()
    once = max(time.perf_counter() - start, 1e-7)
    if once > target:
        return 1
    n = max(1, int(target / once))
    start = time.perf_counter()
    for _ in range(n):
        run()
    return max(1, int(n * target / max(time.perf_counter() - start, 1e-7)))


def interleaved(contenders: dict[str, Callable[[], object]], rounds: int = 15, slice_seconds: float = 0.05,
                rest: float = 0.0) -> dict[str, Timing]:
    """Time each contender for about `slice_seconds` a round, `rounds` times, in turn. `rest`: seconds before each turn,
    in which threads of the one before stop to poll for work."""
    for run in contenders.values():
        for _ in range(3):
            run()
    calls = {name: _calls_for(run, slice_seconds) for name, run in contenders.items()}

    def sample(name: str) -> float:
        run, n = contenders[name], calls[name]
        time.sleep(rest)
        start = time.perf_counter()
        for _ in range(n):
            run()
        return (time.perf_counter() - start) / n

    return in_turn(contenders, rounds, sample)


def in_turn(names: Iterable[str], rounds: int, sample: Callable[[str], float]) -> dict[str, Timing]:
    """`sample` gives the seconds of a call of the contender so named; each is sampled once a round."""
    samples: dict[str, list[float]] = {name: [] for name in names}
    order, chance = list(samples), random.Random(0)
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            chance.shuffle(order)
            for name in order:
                samples[name].append(sample(name))
    finally:
        gc.enable()
    return {name: Timing(statistics.median(s), min(s), max(s), len(s)) for name, s in samples.items()}
