"""The best configuration of each kernel, by measurement on the device, remembered on disk by text, chip and
versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from types import TracebackType
from typing import Any

import torch

from framesmith.codegen.triton import matmul_configs, tuning
from framesmith.codegen.triton.emit import print_for
from framesmith.codegen.triton.kernel import Printed
from framesmith.codegen.triton.product import product_of
from framesmith.codegen.triton.tile_shape import form
from framesmith.codegen.triton.tuning import Config
from framesmith.loops.ir import Cast, Indirect, Kernel, Launch, Load, Program, walk
from framesmith.loops.text import kernel_text
from framesmith.runtime import trial, triton
from framesmith.runtime.cache import Cache, key_of
from framesmith.runtime.trial import Memory
from framesmith.symbolic.expr import Expr, Symbol
from framesmith.tuning.roofline import Rates, least, measured
from framesmith.util import log

Sizes = Mapping[Symbol, int]
FIRST = 3  # configurations of a contraction that is compared with the library's call; the rest is for what is taken
LEFT = 0.02  # of the program's time: what all kernels that are not tuned could win together, ...
NEAR, MOST = 1.1, 0.15  # ... if each came so near to its least time, but saved no more than this part, as few do


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel as one program launches it: `text` is its canonical text, independent of places in memory, `memory`
    describes its buffers, `sizes` the values of its symbols. Equal cases take equal time."""

    text: str
    memory: tuple[Memory, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Best:
    """The number of a configuration among the kernel's candidates, and the milliseconds it took (None: not
    measured)."""

    number: int
    milliseconds: float | None


def case_of(step: Launch, program: Program, sizes: Sizes) -> Case:
    """Return the launch of `step` of `program` where size symbols have the values `sizes`."""
    below: dict[str, int] = {}
    for op in walk(step.kernel.body):
        if type(op) is Indirect:
            source: Any = op.args[0]
            while type(source) is Cast:
                (source,) = source.args
            if type(source) is Load:
                below[source.buffer] = min(op.size.evaluate(sizes), below.get(source.buffer, 1 << 62))
    memory = []
    for name, param in zip(step.args, step.kernel.params, strict=True):
        b = program.buffers[name]
        span = 1 + sum((n.evaluate(sizes) - 1) * s.evaluate(sizes) for n, s in zip(b.size, b.stride, strict=True))
        memory.append(Memory(span, b.dtype, below.get(param.name)))
    return Case(kernel_text(step.kernel, offsets=False), tuple(memory), tuple(sizes[s] for s in step.kernel.symbols))


def candidates(kernel: Kernel, sizes: Sequence[int] = ()) -> tuple[Config, ...]:
    """Return the configurations that are measured, the one that is taken unmeasured first. `sizes`: the values of the
    kernel's symbols."""
    contraction = product_of(kernel)
    if contraction is not None:
        return matmul_configs.candidates(kernel, contraction)
    return tuning.candidates(form(kernel, sizes=dict(zip(kernel.symbols, sizes))))


def source_of(kernel: Printed) -> triton.TritonSource:
    """Return a printed kernel as Triton's process takes it."""
    return triton.TritonSource(
        kernel.name, kernel.text, kernel.signature, kernel.constants, kernel.divisible, kernel.num_warps,
        kernel.num_stages, kernel.asserts,
        kernel.multiples, kernel.vector,
    )


class Tuner:
    """Measures on `device`, a chip of architecture `arch`; what trials took of it is free at the end of the `with`
    block."""

    def __init__(self, device: torch.device, arch: int, cache: Cache, jobs: int | None) -> None:
        self.device, self.arch, self.cache, self.jobs = device, arch, cache, jobs
        self.memory = cache.memory("tuning")
        self.chip = f"{torch.cuda.get_device_name(device)} sm_{arch} {torch.__version__} {triton.version()}"
        self.known: dict[Case, Best] = {}
        self.trials = trial.Trials(device.index)
        self.warm = False

    def __enter__(self) -> Tuner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.trials.end()
        torch.cuda.empty_cache()  # of the operators that were timed

    def best(self, kernels: Mapping[Case, Kernel], all_of: bool = True) -> dict[Case, Best]:
        """Return the best configuration for each case. `all_of` False: only the first is measured, of contractions the
        first few."""
        todo: list[_Trial] = []
        for case, kernel in kernels.items():
            if case not in self.known:
                configs = candidates(kernel, case.sizes)
                if not all_of:
                    configs = configs[: 1 if product_of(kernel) is None else FIRST]
                symbols = dict(zip(kernel.symbols, case.sizes, strict=True))
                todo.append(_Trial(case, kernel, tuple([print_for(kernel, symbols, config=c) for c in configs])))
        waiting = [t for t in todo if not self._remembered(t)]
        if waiting:
            self._measure(waiting)
        found = {t.case: self._read(t) for t in todo}
        if all_of:
            self.known |= found
        return {case: self.known[case] if case in self.known else found[case] for case in kernels}

    def heed(self, program: Program, sizes: Sizes) -> None:
        """Time what follows as in `program`: whose memory stays in the cache, or does not."""
        self.warm = footprint(program, sizes) <= torch.cuda.get_device_properties(self.device).L2_cache_size

    def least(self, case: Case, kernel: Kernel) -> float:
        """Return a lower bound of a kernel's milliseconds."""
        return least(kernel, case.memory, dict(zip(kernel.symbols, case.sizes, strict=True)), self._rates())

    def _rates(self) -> Rates:
        key = key_of("rates", self.chip)
        if key not in self.memory:
            with torch.cuda.device(self.device), torch.no_grad():
                if not trial.fits([]):
                    return Rates(inf, inf)
                found = measured()
            self.memory[key] = f"{found.bytes:.6g} {found.halves:.6g}"
        return Rates(*map(float, self.memory[key].split()))

    def _key(self, t: _Trial) -> str:
        texts = [(p.text, p.constants, p.num_warps, p.num_stages) for p in t.printed]
        return key_of("kernel", self.chip, texts, t.case.memory, t.case.sizes, self.warm)

    def _remembered(self, t: _Trial) -> bool:
        return self._key(t) in self.memory

    def _read(self, t: _Trial) -> Best:
        number, _, time = self.memory.get(self._key(t), "0 ").partition(" ")
        return Best(int(number), float(time) if time else None)

    def _measure(self, trials: Sequence[_Trial]) -> None:
        with torch.cuda.device(self.device):
            fitting = [t for t in trials if trial.fits(t.case.memory)]
            sources = [source_of(p) for t in fitting for p in t.printed]
            if not fitting:
                return
            self.trials.begin()  # it has the device when there is something to run
            binaries = iter(triton.start(sources, self.arch, self.cache, self.jobs).attempted())
            for t in fitting:
                times = t.run([next(binaries) for _ in t.printed], self.trials, self.warm)
                if not times:
                    continue
                number = min(times, key=times.__getitem__)
                self.memory[self._key(t)] = f"{number} {times[number]:.6f}"
                said = ", ".join(t.said(k, ms) for k, ms in sorted(times.items()))
                log.emit("tuning", f"{t.printed[number].name}: number {number} of {said} us")


@dataclass(frozen=True, slots=True)
class _Trial:
    case: Case
    kernel: Kernel
    printed: tuple[Printed, ...]

    def said(self, number: int, milliseconds: float) -> str:
        p = self.printed[number]
        blocks = "x".join(str(n) for _, n in p.constants)
        return f"{blocks} {p.num_warps} warps {p.num_stages} stages {milliseconds * 1e3:.1f}"

    def run(self, binaries: Sequence[triton.Binary | None], trials: trial.Trials, warm: bool) -> dict[int, float]:
        """Return the milliseconds of each candidate that runs."""
        env = dict(zip(self.kernel.symbols, self.case.sizes, strict=True))
        contenders: dict[int, trial.Contender] = {}
        for k, (p, binary) in enumerate(zip(self.printed, binaries, strict=True)):
            grid = [g if type(g) is int else g.evaluate(env) for g in p.grid]  # type: ignore[union-attr]
            if binary is None or 0 in grid:
                continue
            given = [i if kind.startswith("*") else 1 for i,
                     (_, kind) in enumerate(p.signature[: len(self.case.memory)])]
            given += [env[s] for s in p.symbols]
            arguments = [(kind, value) for (_, kind), value in zip(p.signature, given, strict=True)]
            contenders[k] = trial.Contender(binary, grid, arguments)
        times = trials.milliseconds(list(contenders.values()), self.case.memory, warm)
        return {k: ms for k, ms in zip(contenders, times, strict=True) if ms is not None}


def configured(program: Program, tuner: Tuner, sizes: Sizes) -> dict[Kernel, Config]:
    """Return the best configuration of each kernel that `program` launches; the first few where more could win
    little."""
    tuner.heed(program, sizes)
    cases: dict[Case, dict[Kernel, None]] = {}
    count: Counter[Case] = Counter()
    for step in launches(program):
        case = case_of(step, program, sizes)
        cases.setdefault(case, {})[step.kernel] = None
        count[case] += 1
    kernels = {case: next(iter(found)) for case, found in cases.items()}
    best = tuner.best(kernels, all_of=False)
    wanted = _worth_more(kernels, best, count, tuner)
    best |= tuner.best({case: kernels[case] for case in wanted})
    return {k: candidates(k, case.sizes)[best[case].number] for case, found in reversed(cases.items()) for k in found}


def _worth_more(kernels: Mapping[Case, Kernel], best: Mapping[Case, Best], count: Counter[Case],
                tuner: Tuner) -> list[Case]:
    """Return the kernels that take longer than their lower bound, except for the last of them."""
    times = {case: count[case] * (best[case].milliseconds or 0.0) for case in kernels}
    least = {case: NEAR * count[case] * tuner.least(case, kernels[case]) for case in kernels}
    gains = {case: min(time - least[case], MOST * time) for case, time in times.items()}
    left = LEFT * sum(times.values())
    wanted = []
    for case in sorted(kernels, key=gains.__getitem__):
        left -= max(gains[case], 0.0)
        if left < 0:
            wanted.append(case)
    return wanted


def footprint(program: Program, sizes: Sizes) -> int:
    """Return the approximate bytes that a call accesses: consecutive results of libraries share one place."""

    def of(size: Any) -> int:
        return size.evaluate(sizes) if isinstance(size, Expr) else size

    own = {name: b.dtype.itemsize * prod(map(of, b.size)) for name,
           b in program.buffers.items() if b.kind not in ("arena", "view")}
    returned = [own.pop(name) for name, b in program.buffers.items() if b.kind == "result"]
    return sum(own.values()) + max(returned, default=0) + of(program.arena_bytes)


def launches(program: Program) -> Iterable[Launch]:
    """Return the launches of a program."""
    return [step for step in program.steps if type(step) is Launch]
