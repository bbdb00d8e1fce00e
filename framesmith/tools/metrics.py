"""Counters of compilations since the process began, for monitoring by the program, and for Prometheus.

They are counted from events, so calls that find their code cost nothing; uses of variants are read from the core on
demand.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from framesmith.compiler import FrameCompiler
from framesmith.util import events

ROWS: tuple[tuple[str, str, str], ...] = (
    ("compiles", "outcome", "Compiles of frames and backwards"),
    ("compile_seconds", "stage", "Seconds of compiling; a stage includes those within it"),
    ("background_compiles", "outcome", "Compiles while eager served"),
    ("graphs", "part", "Graphs that were given code"),
    ("kernels", "", "Kernels of these graphs"),
    ("constant_bytes", "", "Bytes of packed and folded constants of these graphs"),
    ("graph_breaks", "reason", "Graph breaks"),
    ("unrolled_loops", "reason", "Loops whose number of rounds varies, of which each number is a variant"),
    ("recompiles", "guard", "Calls that no variant took, by kind of the guard that failed"),
    ("fallbacks", "internal", "What runs in eager instead"),
    ("cache_lookups", "result", "Lookups in the disk cache"),
)
"""Of each counter: its name, its label, and what it counts."""

Compilers = Callable[[], Iterable[FrameCompiler]]


def snapshot(compilers: Iterable[FrameCompiler]) -> dict[str, Any]:
    """Return the counters by name (labelled ones as dicts), and the number of live `variants` with their
    `variant_uses`."""
    out: dict[str, Any] = {}
    for name, label, _ in ROWS:
        found = events.counted(name)
        out[name] = dict(found) if label else found.get("", 0)
    uses = [use for compiler in compilers for use in compiler.uses() if use.alive]
    return out | {"variants": len(uses), "variant_uses": sum(use.uses for use in uses)}


class Collector:
    """A collector for a registry of `prometheus_client`, which asks it when it is scraped."""

    def __init__(self, compilers: Compilers) -> None:
        self._compilers = compilers
        self._core = importlib.import_module("prometheus_client.core")

    def collect(self) -> Iterator[Any]:
        """Yield each counter and gauge with its present values."""
        now = snapshot(tuple(self._compilers()))
        for name, label, said in ROWS:
            family = self._core.CounterMetricFamily(f"framesmith_{name}", said, labels=[label] if label else None)
            for value, count in (now[name].items() if label else [("", now[name])]):
                family.add_metric([str(value)] if label else [], count)
            yield family
        for name, said in (("variants", "Variants that are alive"), ("variant_uses", "Calls that these have taken")):
            yield self._core.GaugeMetricFamily(f"framesmith_{name}", said, value=now[name])


def prometheus(compilers: Compilers, registry: Any = None) -> Collector:
    """Register the counters with `registry` (default: that of the process). Raises ImportError without
    `prometheus_client`."""
    client = importlib.import_module("prometheus_client")
    collector = Collector(compilers)
    (client.REGISTRY if registry is None else registry).register(collector)
    return collector
