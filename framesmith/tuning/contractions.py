"""The choice of the contractions of a graph that our own kernels compute, and of their configurations: by the time that
the whole program takes with and without them.

A library's call leaves its epilogue to another kernel, which may do much else besides; our own kernel takes the
epilogue in. So programs are compared: one with the library's calls, and a few others, in each of which every
contraction is computed in one of its ways. The difference of two programs is split into independent changes, each with
its own kernels and calls on both sides:

    call addmm, kernel [gelu]       ->  kernel [product, gelu]
    call mm, kernel [+ b, norm]     ->  kernel [product, + b], kernel [norm]

These are timed on the device, except for those that could not win if they did nothing but move their bytes and
multiply.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import torch

from framesmith.loops.ir import Buffer, Extern, Kernel, Program, Ref
from framesmith.loops.nest import LoopGraph
from framesmith.lower.contractions.template_heuristics import without_measurement
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
    """A call of a contraction in a library: its operator, (memory, size, stride) of each tensor argument or else a
    plain value, and what is given by name."""

    target: Any
    args: tuple[Any, ...]
    named: tuple[tuple[str, Any], ...]


Step = Case | Library
Ways = Mapping[int, str]
"""The ways of contractions, by their places among the items of the graph."""


@dataclass(frozen=True, slots=True)
class Use:
    """A step in its program: the buffers that it accesses, and those of them that it writes."""

    step: Step
    touched: tuple[str, ...]
    written: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Ways for some contractions that depend on each other, and the change in the number of each step."""

    ways: Ways
    steps: Counter[Step]


def own_contractions(graph: LoopGraph, schedule: Schedule, tuner: Tuner, sizes: Sizes, tf32: bool) -> LoopGraph:
    """`graph` with each contraction computed in the way that is the fastest for the program; itself where the libraries
    are. `schedule` leaves each value its name: by names, programs are compared."""
    found = {k: c for k, item in enumerate(graph.items) if (c := contraction_of(item, graph.storages)) is not None}
    if not found:
        return graph
    race = _Race(graph, schedule, tuner, sizes, tf32, found)
    return race.run()


class _Race:
    def __init__(self, graph: LoopGraph, schedule: Schedule, tuner: Tuner, sizes: Sizes, tf32: bool,
                 found: Mapping[int, Contraction]) -> None:
        self.graph, self.schedule, self.tuner = graph, schedule, tuner
        self.sizes, self.tf32, self.found = sizes, tf32, found
        self.plain = schedule(graph)
        self.kernels: dict[Case, Kernel] = {}
        self.times: dict[Step, float] = {}
        self.programs: dict[frozenset[tuple[int, str]], list[Use]] = {}

    def run(self) -> LoopGraph:
        unmeasured, *rounds = self._rounds()
        self.tuner.heed(self.plain, self.sizes)
        best: dict[int, float] = {}
        taken: dict[Change, float] = {}
        for some in ([unmeasured, *rounds[:1]], rounds[1:]):  # what comes later is measured if it may be better still
            changes = [change for ways in some for change in self._changes(ways)]
            self._measure(step for change in changes for step, n in change.steps.items() if n < 0)
            hopeful = [change for change in changes if self._may_save(change.steps) > sum(best.get(k, 0.0)
                                                                                          for k in change.ways)]
            self._measure(step for change in hopeful for step in change.steps)
            self._say(changes, hopeful)
            for change in hopeful:
                if (gain := self._gain(change.steps)) > 0:
                    taken[change] = gain
                    best |= {k: max(gain / len(change.ways), best.get(k, 0.0)) for k in change.ways}
        chosen: dict[int, str] = {}
        for change in sorted(taken, key=taken.__getitem__, reverse=True):
            if chosen.keys().isdisjoint(change.ways):
                chosen |= change.ways
        chosen = self._best([{}, unmeasured, chosen]) if self._measured() else dict(unmeasured)
        return replaced(self.graph, chosen, self.tf32) if chosen else self.graph

    def _measured(self) -> bool:
        """Return whether kernels could be timed at all, where any were to be."""
        times = [time for step, time in self.times.items() if isinstance(step, Case)]
        return not times or any(map(isfinite, times))

    def _rounds(self) -> list[Ways]:
        """Return assignments of ways to all contractions: the unmeasured ones, then each with its first way, with its
        second, ..."""
        own = {k: ways(c, self._size, is_computed(self.graph, k, c, self._size)) for k, c in self.found.items()}
        each = [{k: names[r] for k, names in own.items() if r < len(names)} for r in range(max(map(len, own.values())))]
        return [without_measurement(self.graph, self.tf32), *each]

    def _best(self, options: list[Ways]) -> dict[int, str]:
        """Return the choice with the fastest program; single changes were measured together with others that were not
        all taken."""
        plain = self._uses({})
        changes = [_difference(self._uses(chosen), plain) for chosen in options]
        self._measure(step for change in changes for step in change)
        gains = [self._gain(change) if change else 0.0 for change in changes]
        return dict(options[gains.index(max(gains))])

    def _size(self, size: Any) -> int:
        return size.evaluate(self.sizes) if isinstance(size, Expr) else size

    def _say(self, changes: Iterable[Change], hopeful: Collection[Change]) -> None:
        said: Counter[str] = Counter()
        for change in changes if log.enabled("tuning") else ():
            what = ", ".join(f"{self._said(k)} {way}" for k, way in change.ways.items())
            said[f"{what}: {f'{1e3 * self._gain(change.steps):+.1f} us' if change in hopeful else 'cannot win'}"] += 1
        for text, n in said.items():
            log.emit("tuning", f"{n} of {text}")

    def _said(self, place: int) -> str:
        c = self.found[place]
        return f"{'x'.join(str(self._size(s)) for s in (c.batch, c.m, c.n, c.k))} {str(c.dtype)[6:]}"

    # --------------------------------------------------------------------------------------------------------- programs

    def _uses(self, chosen: Ways) -> list[Use]:
        """Return the kernels and contractions of the program in which `chosen` are kernels of our own."""
        key = frozenset(chosen.items())
        if key not in self.programs:
            program = self.schedule(replaced(self.graph, chosen, self.tf32)) if chosen else self.plain
            self.programs[key] = [*self._launched(program), *self._called(program)]
        return self.programs[key]

    def _launched(self, program: Program) -> Iterable[Use]:
        for launch in launches(program):
            case = case_of(launch, program, self.sizes)
            self.kernels.setdefault(case, launch.kernel)
            written = [a for a, p in zip(launch.args, launch.kernel.params, strict=True) if p.mode != "r"]
            yield Use(case, launch.args, tuple(written))

    def _called(self, program: Program) -> Iterable[Use]:
        base = {name: b.base or name for name, b in program.buffers.items()}
        for step in program.steps:
            if type(step) is Extern and step.target in CONTRACTIONS:
                args = tuple([self._argument(program, a) for a in step.args])
                written = tuple([base[o] for o in step.outputs if o is not None])
                read = tuple([base[a.name] for a in step.args if type(a) is Ref])
                yield Use(Library(step.target, args, tuple(step.kwargs.items())), (*read, *written), written)

    def _changes(self, ways: Ways) -> list[Change]:
        """Return the changes that `ways` make to the program, as independent parts: they share no buffer that they
        write, or that only one of the programs has."""
        old, new = self._uses({}), self._uses(ways)
        gone, come = (_without(a, b) for a, b in ((old, new), (new, old)))
        inner = {b for u in old for b in u.touched} ^ {b for u in new for b in u.touched}
        at = {c.out.buffer: k for k, c in self.found.items() if k in ways}
        changes = []
        for part in _parts([*gone, *come], inner):
            steps: Counter[Step] = Counter()
            for k in part:
                use = gone[k] if k < len(gone) else come[k - len(gone)]
                steps[use.step] += -1 if k < len(gone) else 1
            outputs = [b for k in part if k < len(gone) and isinstance(gone[k].step, Library) for b in gone[k].written]
            places = {at[b]: ways[at[b]] for b in outputs if b in at}
            if places:
                changes.append(Change(places, Counter({step: n for step, n in steps.items() if n})))
        return changes

    def _argument(self, program: Program, arg: Any) -> Any:
        if type(arg) is not Ref:
            return arg
        b: Buffer = program.buffers[arg.name]
        size, stride = (tuple(map(self._size, t)) for t in (b.size, b.stride))
        span = 1 + sum((n - 1) * s for n, s in zip(size, stride))
        return Memory(span, b.dtype), size, stride

    # ------------------------------------------------------------------------------------------------------------ times

    def _measure(self, steps: Iterable[Step]) -> None:
        """Time the steps that are not known yet."""
        if missing := set(steps) - self.times.keys():
            self.times |= self._times(missing)

    def _old(self, change: Counter[Step]) -> float:
        """Return the milliseconds that the new steps may take."""
        return GAIN * sum(-n * self.times[step] for step, n in change.items() if n < 0)

    def _gain(self, change: Counter[Step]) -> float:
        """Return the milliseconds that a change saves; negative if it saves too little, or a step cannot be
        measured."""
        old, new = self._old(change), sum(n * self.times[step] for step, n in change.items() if n > 0)
        return old - new if isfinite(old) else -inf

    def _may_save(self, change: Counter[Step]) -> float:
        """Return the milliseconds saved if the new steps took their lower bounds."""
        return self._old(change) - sum(n * self._least(step) for step, n in change.items() if n > 0)

    def _least(self, step: Step) -> float:
        """Return a lower bound of a step's milliseconds."""
        return self.tuner.least(step, self.kernels[step]) if isinstance(step, Case) else 0.0

    def _times(self, steps: set[Step]) -> dict[Step, float]:
        """Return the milliseconds of each step; infinite if it cannot be measured."""
        cases = {step: self.kernels[step] for step in steps if isinstance(step, Case)}
        best = self.tuner.best(cases, all_of=False)
        times: dict[Step, float] = {step: _endless(best[step].milliseconds) for step in cases}
        for step in steps:
            if isinstance(step, Library):
                times[step] = self._library(step)
        return times

    def _library(self, step: Library) -> float:
        memory = self.tuner.memory
        key = key_of("library", self.tuner.chip, str(step.target), step.args, step.named, self.tf32, self.tuner.warm)
        if key not in memory:
            with torch.cuda.device(self.tuner.device), torch.no_grad():
                memory[key] = f"{_called(step, self.tuner.warm):.6f}"
        return float(memory[key])


def _without(uses: Iterable[Use], others: Iterable[Use]) -> list[Use]:
    known = set(others)
    return [use for use in uses if use not in known]


def _parts(uses: list[Use], inner: Collection[str]) -> Iterable[list[int]]:
    """Return the places of steps that belong together: that write the same buffer, or touch the same one of `inner`."""
    of: dict[str, int] = {}
    above = list(range(len(uses)))

    def root(k: int) -> int:
        while above[k] != k:
            k = above[k] = above[above[k]]
        return k

    for k, use in enumerate(uses):
        for name in dict.fromkeys([*use.written, *(b for b in use.touched if b in inner)]):
            above[root(k)] = root(of.setdefault(name, k))
    found: dict[int, list[int]] = {}
    for k in range(len(uses)):
        found.setdefault(root(k), []).append(k)
    return found.values()


def _called(step: Library, warm: bool) -> float:
    tensors = [a for a in step.args if isinstance(a, tuple) and a and isinstance(a[0], Memory)]
    if not trial.fits([memory for memory, _, _ in tensors]):
        return 0.0
    args = [torch.as_strided(a[0].make(), a[1], a[2]) if a in tensors else a for a in step.args]
    return trial.milliseconds(lambda: step.target(*args, **dict(step.named)), warm)


def _endless(milliseconds: float | None) -> float:
    return inf if milliseconds is None else milliseconds


def _difference(new: Iterable[Use], old: Iterable[Use]) -> Counter[Step]:
    """Count how many more steps of each kind `new` has than `old`."""
    steps = Counter(use.step for use in new)
    steps.subtract(use.step for use in old)
    return Counter({step: n for step, n in steps.items() if n})
