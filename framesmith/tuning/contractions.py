"""Which contractions of a graph kernels of our own compute, and how: decided by what the whole program takes with and without.

A library's call leaves its epilogue to another kernel, which may do much else besides; our own kernel takes the epilogue in. So ways are
compared by programs: the graph is scheduled with the library's calls, and once with each way for each class of equal contractions. The
difference of two programs is the kernels and calls that only one of them has; these are timed on the device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import torch

from framesmith.loops.ir import Buffer, Extern, Kernel, Program, Ref
from framesmith.loops.nest import LoopGraph
from framesmith.loops.text import kernel_text
from framesmith.lower.contractions.tiled import CONTRACTIONS, Contraction, contraction_of, is_computed, replaced, ways
from framesmith.runtime import trial
from framesmith.runtime.cache import key_of
from framesmith.runtime.trial import Memory
from framesmith.symbolic.expr import Expr
from framesmith.tuning.kernels import Case, Sizes, Tuner, case_of, launches
from framesmith.util import log

Schedule = Callable[[LoopGraph], Program]
GAIN = 0.96  # what our own may take of the time of what they stand for: trials err by a few hundredths


@dataclass(frozen=True, slots=True)
class Library:
    """A call of a contraction in a library: its operator, (memory, size, stride) of each tensor argument or else a plain value, and what is
    given by name."""

    target: Any
    args: tuple[Any, ...]
    named: tuple[tuple[str, Any], ...]


Step = Case | Library
Places = tuple[int, ...]
"""Of equal contractions among the items of the graph."""


def own_contractions(graph: LoopGraph, schedule: Schedule, tuner: Tuner, sizes: Sizes, tf32: bool) -> LoopGraph:
    """`graph` with each contraction computed in the way that is the fastest for the program; itself where the libraries are."""
    found = {k: c for k, item in enumerate(graph.items) if (c := contraction_of(item, graph.storages)) is not None}
    if not found:
        return graph
    race = _Race(graph, schedule, tuner, sizes, tf32, found)
    return race.run()


class _Race:
    def __init__(self, graph: LoopGraph, schedule: Schedule, tuner: Tuner, sizes: Sizes, tf32: bool,
                 found: Mapping[int, Contraction]) -> None:
        self.graph, self.schedule, self.tuner, self.sizes, self.tf32, self.found = graph, schedule, tuner, sizes, tf32, found
        self.kernels: dict[Case, Kernel] = {}
        self.times: dict[Step, float] = {}

    def run(self) -> LoopGraph:
        plain = self._steps({})
        tried = [(places, way) for places, names in self._classes() for way in names]
        changes = {(places, way): _change(self._steps(dict.fromkeys(places, way)), plain) for places, way in tried}
        self._measure(changes.values())
        gains: dict[Places, dict[str, float]] = {}
        for (places, way), change in changes.items():
            gains.setdefault(places, {})[way] = self._gain(change)
        for places, found in gains.items():
            log.emit("tuning", f"{self._said(places)}: {', '.join(f'{way} {1e3 * gain:+.1f} us' for way, gain in found.items())}")
        chosen: dict[int, str] = {}
        for places in sorted(gains, key=lambda at: -max(gains[at].values())):
            ways_left = [way for way, gain in gains[places].items() if gain > 0]
            best = self._best_beside(chosen, places, ways_left) if ways_left else None
            chosen |= dict.fromkeys(places, best) if best is not None else {}
        return replaced(self.graph, chosen, self.tf32) if chosen else self.graph

    def _best_beside(self, chosen: dict[int, str], places: Places, names: list[str]) -> str | None:
        """The best of some ways, given what others were chosen: two of them may have spared the same kernel."""
        plain = self._steps(chosen)
        changes = {way: _change(self._steps(chosen | dict.fromkeys(places, way)), plain) for way in names}
        self._measure(changes.values())
        best = max(changes, key=lambda way: self._gain(changes[way]))
        return best if self._gain(changes[best]) > 0 else None

    def _classes(self) -> list[tuple[Places, tuple[str, ...]]]:
        """Places of contractions that are equal, epilogue and all, and the ways to try for them."""
        own = {k: ways(c, self._size, is_computed(self.graph, k, c, self._size)) for k, c in self.found.items()}
        program = self.schedule(replaced(self.graph, {k: names[0] for k, names in own.items()}, self.tf32))
        steps = [(frozenset(step.args), kernel_text(step.kernel)) for step in launches(program)]
        classes: dict[Any, list[int]] = {}
        for k, c in self.found.items():
            operands = {c.left.buffer, c.right.buffer}
            fused = next((text for args, text in steps if operands <= args), "")
            shape = tuple(map(self._size, (c.batch, c.m, c.n, c.k)))
            classes.setdefault((shape, own[k], fused), []).append(k)
        return [(tuple(places), own[places[0]]) for places in classes.values()]

    def _size(self, size: Any) -> int:
        return size.evaluate(self.sizes) if isinstance(size, Expr) else size

    def _said(self, places: Places) -> str:
        c = self.found[places[0]]
        return f"{len(places)} of {'x'.join(str(self._size(s)) for s in (c.batch, c.m, c.n, c.k))} {str(c.dtype)[6:]}"

    # ----------------------------------------------------------------------------------------------------------------------- programs

    def _steps(self, chosen: dict[int, str]) -> Counter[Step]:
        """The kernels and contractions of the program in which `chosen` are kernels of our own."""
        program = self.schedule(replaced(self.graph, chosen, self.tf32) if chosen else self.graph)
        steps: Counter[Step] = Counter()
        for launch in launches(program):
            case = case_of(launch, program, self.sizes)
            self.kernels.setdefault(case, launch.kernel)
            steps[case] += 1
        for step in program.steps:
            if type(step) is Extern and step.target in CONTRACTIONS:
                args = tuple([self._argument(program, a) for a in step.args])
                steps[Library(step.target, args, tuple(step.kwargs.items()))] += 1
        return steps

    def _argument(self, program: Program, arg: Any) -> Any:
        if type(arg) is not Ref:
            return arg
        b: Buffer = program.buffers[arg.name]
        size, stride = (tuple(map(self._size, t)) for t in (b.size, b.stride))
        span = 1 + sum((n - 1) * s for n, s in zip(size, stride))
        return Memory(span, b.dtype), size, stride

    def _measure(self, changes: Iterable[Counter[Step]]) -> None:
        """Time the steps that are not known yet."""
        self.times |= self._times({step for change in changes for step in change} - self.times.keys())

    def _gain(self, change: Counter[Step]) -> float:
        """Milliseconds that a change saves; below zero where it saves too little, or something cannot be measured."""
        new = sum(n * self.times[step] for step, n in change.items() if n > 0)
        old = sum(-n * self.times[step] for step, n in change.items() if n < 0)
        return GAIN * old - new if isfinite(old) else -inf

    def _times(self, steps: set[Step]) -> dict[Step, float]:
        """Milliseconds of each step; those that cannot be measured are endless."""
        cases = {step: self.kernels[step] for step in steps if isinstance(step, Case)}
        best = self.tuner.best(cases, all_of=False)
        times: dict[Step, float] = {step: _endless(best[step].milliseconds) for step in cases}
        for step in steps:
            if isinstance(step, Library):
                times[step] = self._library(step)
        return times

    def _library(self, step: Library) -> float:
        memory = self.tuner.memory
        key = key_of("library", self.tuner.chip, str(step.target), step.args, step.named, self.tf32)
        if key not in memory:
            with torch.cuda.device(self.tuner.device), torch.no_grad():
                memory[key] = f"{_called(step):.6f}"
        return float(memory[key])


def _called(step: Library) -> float:
    tensors = [a for a in step.args if isinstance(a, tuple) and a and isinstance(a[0], Memory)]
    if not trial.fits([memory for memory, _, _ in tensors]):
        return 0.0
    args = [torch.as_strided(a[0].make(), a[1], a[2]) if a in tensors else a for a in step.args]
    return trial.milliseconds({"": lambda: step.target(*args, **dict(step.named))})[""]


def _endless(milliseconds: float | None) -> float:
    return inf if milliseconds is None else milliseconds


def _change(new: Counter[Step], old: Counter[Step]) -> Counter[Step]:
    """How many more of each step there are."""
    return Counter({step: new[step] - old[step] for step in new.keys() | old.keys() if new[step] != old[step]})


__all__ = ["own_contractions"]
