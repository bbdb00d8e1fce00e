"""Kernels of their own for sizes that dominate the calls of a graph of varying sizes.

Such a graph stands in residual code behind a `HotSizes`, which counts the sizes of calls. When one dominates a window
of calls, a thread compiles the graph for it and measures both; where the static code is faster, later calls of these
sizes take it. A call reads one table, which is replaced as a whole, so it finds either the one kernel or the other.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from framesmith.config import Config
from framesmith.fake.tensor import FakeTensor, with_sizes
from framesmith.graph.interpreter import evaluate
from framesmith.graph.pieces import is_cut
from framesmith.graph.purity import draws, is_pure
from framesmith.graph.symbols import size_sources
from framesmith.graph.traversal import copy_graph
from framesmith.symbolic.node import SYMBOLIC
from framesmith.util import log
from framesmith.util.dynamo import dynamo_off
from framesmith.util.locks import COMPILE_LOCK

WINDOW = 64
"""Calls after which it is looked which sizes they had."""
SHARE = 0.75
"""The part of them that has equal sizes where one dominates."""
GAIN = 1.05
"""How many times as fast static code must be to be chosen."""
LEAST = 40e-6
"""Seconds of a call below which counting its sizes would be felt: then they are not counted."""
ROUNDS = 15

Compiled = Callable[[Any], Any]
Compile = Callable[[fx.Graph, Sequence[Any]], Compiled]
Sizes = tuple[int, ...]


def has_hot_sizes(graph: fx.Graph, config: Config) -> bool:
    """Return whether calls of a graph may be counted: it has sizes that vary, and calls of it may be made twice."""
    calls = [n for n in graph.nodes if n.op == "call_function"]
    return (config.hot_sizes > 0 and bool(size_sources(graph)) and not is_cut(graph)
            and all(is_pure(n) and not draws(n) for n in calls))


class HotSizes:
    """The code of a graph, and static code for up to `most` of its sizes. `compile` is called in another thread."""

    __slots__ = ("_call", "_compile", "_counts", "_graph", "_left", "_most", "_places", "_refused", "_static", "_uses",
                 "_what", "_worthwhile")

    def __init__(self, graph: fx.Graph, most: int, compile: Compile, what: str) -> None:
        self._graph = copy_graph(graph, lambda value: _fixed(value, None))  # back ends rewrite the other
        self._places = sorted(set(size_sources(graph).values()))
        self._most, self._compile, self._what = most, compile, what
        self._call: Compiled = _missing
        self._static: dict[Sizes, Compiled] = {}
        self._counts: Counter[Sizes] = Counter()
        self._uses: Counter[Sizes] = Counter()
        self._refused: set[Sizes] = set()
        self._left = WINDOW
        self._worthwhile: bool | None = None

    def around(self, call: Compiled) -> Compiled:
        """Return what stands for the code of the graph, `call`."""
        self._call = call
        return self

    def __call__(self, inputs: Any) -> Any:
        if self._worthwhile is False:
            return self._call(inputs)
        sizes = tuple([inputs[place].size(dim) for place, dim in self._places])
        self._counts[sizes] += 1
        self._left -= 1
        if self._left <= 0:
            self._look(inputs)
        return self._static.get(sizes, self._call)(inputs)

    def _look(self, inputs: Sequence[Any]) -> None:
        """A window is over: have static code made for the sizes that dominate it."""
        counts, self._counts, self._left = self._counts, Counter(), WINDOW
        self._uses += counts
        sizes, count = counts.most_common(1)[0]
        now = tuple([inputs[place].size(dim) for place, dim in self._places])
        if count < SHARE * WINDOW or sizes in self._static or sizes in self._refused or now != sizes:
            return
        if len(self._static) >= self._most and self._uses[self._least_used()] >= self._uses[sizes]:
            return
        self._refused.add(sizes)  # until it is known to be worthwhile
        nodes = [n for n in self._graph.nodes if n.op == "placeholder"]
        given = [x if "param" in n.meta else x.detach().clone() for n, x in zip(nodes, inputs, strict=True)]
        _worker.put(lambda: self._admit(sizes, given))

    def _admit(self, sizes: Sizes, given: Sequence[Any]) -> None:
        """Compile for some sizes, and let calls take that if it is faster."""
        symbols = {s: given[place].size(dim) for s, (place, dim) in size_sources(self._graph).items()}
        with COMPILE_LOCK, dynamo_off():
            static = self._compile(copy_graph(self._graph, lambda value: _fixed(value, symbols)), given)
        with torch.no_grad():
            varying, fixed = measured(self._call, static, tuple(given))
        log.emit("recompiles", f"{self._what}: {self._named(sizes)}: {varying * 1e6:.1f} us with code for all sizes, "
                               f"{fixed * 1e6:.1f} with its own")
        if varying < LEAST:
            self._worthwhile = False
        elif varying >= GAIN * fixed:
            kept = dict(self._static)
            if len(kept) >= self._most:
                del kept[least := self._least_used()]
                self._refused.discard(least)
                self._tell(len(self._static), least)
            self._static = {**kept, sizes: static}

    def _least_used(self) -> Sizes:
        return min(self._static, key=self._uses.__getitem__)

    def _tell(self, count: int, least: Sizes) -> None:
        log.warn_once(f"hot:{self._what}:{self._places}",
                      f"framesmith: {self._what} has {count} variants for sizes of their own beside that for all, and "
                      f"another size dominates now: the one for {self._named(least)} goes. options={{'hot_sizes': n}} "
                      "allows more; framesmith.mark_static gives each size of a dimension a variant")

    def _named(self, sizes: Sizes) -> str:
        sources = [n.meta.get("source", n.name) for n in self._graph.nodes if n.op == "placeholder"]
        return ", ".join(f"size {dim} of {sources[place]} = {n}" for n, (place, dim) in zip(sizes, self._places))


def _missing(inputs: Any) -> Any:
    raise RuntimeError("a graph without code")


def measured(varying: Compiled, fixed: Compiled, given: tuple[Any, ...]) -> tuple[float, float]:
    """The least seconds of a call of each, in turn."""
    times: tuple[list[float], list[float]] = [], []
    cuda = any(x.is_cuda for x in given)
    for _ in range(ROUNDS):
        for call, found in zip((varying, fixed), times, strict=True):
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
            call(given)
            if cuda:
                torch.cuda.synchronize()
            found.append(time.perf_counter() - start)
    return min(times[0]), min(times[1])


def _fixed(value: Any, symbols: dict[Any, int] | None) -> Any:
    """A value whose sizes are those that the symbols have; None: of such sizes as it has, without what recorded it."""
    if type(value) in SYMBOLIC:
        return value if symbols is None else evaluate(value, symbols)
    if not isinstance(value, FakeTensor):
        return value
    return with_sizes(value, lambda n: _fixed(n, symbols))


class _Worker:
    """One thread for all, begun with the first of its tasks."""

    def __init__(self) -> None:
        self.tasks: queue.Queue[Callable[[], None]] = queue.Queue()
        self._thread: threading.Thread | None = None

    def put(self, task: Callable[[], None]) -> None:
        self.tasks.put(task)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="framesmith hot sizes", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            task = self.tasks.get()
            try:
                task()
            except Exception as problem:  # the code for all sizes stays
                log.emit("recompiles", f"no code for sizes of their own: {type(problem).__name__}: {problem}")
            finally:
                del task
                self.tasks.task_done()


_worker = _Worker()
os.register_at_fork(after_in_child=lambda: globals().__setitem__("_worker", _Worker()))


def wait() -> None:
    """Return when no code for sizes of their own is being made."""
    _worker.tasks.join()
