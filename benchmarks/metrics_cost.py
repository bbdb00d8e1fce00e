"""What being watched costs a call: events, logging, Prometheus and a scrape between calls, against nobody watching.

    python -m benchmarks.metrics_cost [--rounds 200] [--out FILE]

A call of a function of two small tensors and its guards alone are timed in turns, unwatched and watched; a figure is
the median of the means of all rounds, and `noise` is what the medians of the even and the odd unwatched rounds differ
by. Under a profiler a call has its ranges, which is timed as well.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import torch
from rich.console import Console

import framesmith
from benchmarks import machine
from benchmarks.capture_cost import Ours, add

RESULTS = Path(__file__).parent / "results"
CALLS = 500
"""Calls in a round."""
AIM = 1.0
"""Microseconds that watching may add to a call."""


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Nobody listens."""
    yield


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """A callback, a handler of logging and a registry of Prometheus, which is scraped at the end."""
    seen: list[Any] = []
    logger, handler = logging.getLogger("framesmith"), logging.NullHandler()
    level = logger.level
    registry = prometheus_client.CollectorRegistry()
    collector = framesmith.prometheus(registry)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with framesmith.on_event(seen.append):
            yield
        prometheus_client.generate_latest(registry)
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        registry.unregister(collector)


@contextlib.contextmanager
def profiled() -> Iterator[None]:
    """Under torch.profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        yield


WAYS = {"unwatched": unwatched, "watched": watched, "profiled": profiled}


def mean(call: Callable[[], Any], way: Callable[[], contextlib.AbstractContextManager[None]]) -> float:
    """Microseconds of a call in one round."""
    with way():
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        return (time.perf_counter() - start) / CALLS * 1e6


def measured(call: Callable[[], Any], rounds: int) -> dict[str, float]:
    """Medians by way, and the noise of the unwatched ones."""
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for k in range(rounds):
        for name, way in WAYS.items():
            if name != "profiled" or k % 10 == 0:
                times[name].append(mean(call, way))
    first, second = (statistics.median(times["unwatched"][k::2]) for k in (0, 1))
    found = {name: statistics.median(each) for name, each in times.items()}
    return found | {"noise": abs(first - second), "added": found["watched"] - found["unwatched"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path, default=RESULTS / "metrics-cost.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    a, b = torch.randn(4), torch.randn(4)
    with torch.no_grad():
        compiled = framesmith.compile(add)
        compiled(a, b)
        guards = Ours().guards(compiled, add, (a, b), {})
        rows = {"call (us)": measured(lambda: compiled(a, b), given.rounds),
                "guards (us)": measured(guards, given.rounds)}
    result = {"date": time.strftime("%Y-%m-%d"), "machine": machine.describe(), "load": os.getloadavg()[0],
              "command": f"python -m benchmarks.metrics_cost --rounds {given.rounds}", "aim": AIM, "figures": rows}
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    Console().print(rows)


if __name__ == "__main__":
    main()
