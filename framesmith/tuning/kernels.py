"""The best configuration of each kernel, by measurement on the device, remembered on disk by text, chip and versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from framesmith.codegen.triton import products, tuning
from framesmith.codegen.triton.emit import print_for
from framesmith.codegen.triton.form import form
from framesmith.codegen.triton.kernel import Printed
from framesmith.codegen.triton.product import product_of
from framesmith.codegen.triton.tuning import Config
from framesmith.loops.ir import Cast, Indirect, Kernel, Launch, Load, Program, walk
from framesmith.loops.text import kernel_text
from framesmith.runtime import trial, triton
from framesmith.runtime.cache import Cache, key_of
from framesmith.runtime.trial import Memory
from framesmith.symbolic.expr import Symbol
from framesmith.util import log

Sizes = Mapping[Symbol, int]


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel as one program launches it: `text` is its canonical text, `memory` what its pointers point to, `sizes` the values of its
    symbols. Equal cases take equal time."""

    text: str
    memory: tuple[Memory, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Best:
    """The number of a configuration among the kernel's candidates, and the milliseconds it took (None: not measured)."""

    number: int
    milliseconds: float | None


def case_of(step: Launch, program: Program, sizes: Sizes) -> Case:
    """What `step` of `program` launches where size symbols have the values `sizes`."""
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
    return Case(kernel_text(step.kernel), tuple(memory), tuple(sizes[s] for s in step.kernel.symbols))


def candidates(kernel: Kernel, sizes: Sequence[int] = ()) -> tuple[Config, ...]:
    """The configurations that are measured, the one that is taken unmeasured first. `sizes`: the values of the kernel's symbols."""
    contraction = product_of(kernel)
    if contraction is not None:
        return products.candidates(kernel, contraction)
    return tuning.candidates(form(kernel, sizes=dict(zip(kernel.symbols, sizes))))


def source_of(kernel: Printed) -> triton.Source:
    """A printed kernel as Triton's process takes it."""
    return triton.Source(
        kernel.name, kernel.text, kernel.signature, kernel.constants, kernel.divisible, kernel.num_warps, kernel.num_stages, kernel.asserts,
        kernel.multiples, kernel.vector,
    )


class Tuner:
    """Measures on `device`, a chip of architecture `arch`."""

    def __init__(self, device: torch.device, arch: int, cache: Cache, jobs: int | None) -> None:
        self.device, self.arch, self.cache, self.jobs = device, arch, cache, jobs
        self.memory = cache.memory("tuning")
        self.chip = f"{torch.cuda.get_device_name(device)} sm_{arch} {torch.__version__} {triton.version()}"
        self.known: dict[Case, Best] = {}

    def best(self, kernels: Mapping[Case, Kernel], all_of: bool = True) -> dict[Case, Best]:
        """The best configuration for each case. `all_of` False: of kernels that are no contractions only the first is measured."""
        todo: list[_Trial] = []
        for case, kernel in kernels.items():
            if case not in self.known:
                configs = candidates(kernel, case.sizes)
                if not all_of and product_of(kernel) is None:
                    configs = configs[:1]
                symbols = dict(zip(kernel.symbols, case.sizes, strict=True))
                todo.append(_Trial(case, kernel, tuple([print_for(kernel, symbols, config=c) for c in configs])))
        waiting = [t for t in todo if not self._remembered(t)]
        if waiting:
            self._measure(waiting)
        found = {t.case: self._read(t) for t in todo}
        if all_of:
            self.known |= found
        return {case: self.known[case] if case in self.known else found[case] for case in kernels}

    def _key(self, t: _Trial) -> str:
        texts = [(p.text, p.constants, p.num_warps, p.num_stages) for p in t.printed]
        return key_of("kernel", self.chip, texts, t.case.memory, t.case.sizes)

    def _remembered(self, t: _Trial) -> bool:
        return self._key(t) in self.memory

    def _read(self, t: _Trial) -> Best:
        number, _, time = self.memory.get(self._key(t), "0 ").partition(" ")
        return Best(int(number), float(time) if time else None)

    def _measure(self, trials: Sequence[_Trial]) -> None:
        with torch.cuda.device(self.device):
            fitting = [t for t in trials if trial.fits(t.case.memory)]
            sources = [source_of(p) for t in fitting for p in t.printed]
            binaries = iter(triton.start(sources, self.arch, self.cache, self.jobs).attempted())
            for t in fitting:
                times = t.run([next(binaries) for _ in t.printed])
                if not times:
                    continue
                number = min(times, key=times.__getitem__)
                self.memory[self._key(t)] = f"{number} {times[number]:.6f}"
                said = ", ".join(t.said(k, ms) for k, ms in sorted(times.items()))
                log.emit("tuning", f"{t.printed[number].name}: number {number} of {said} us")
            torch.cuda.empty_cache()  # what trials took is not the program's


@dataclass(frozen=True, slots=True)
class _Trial:
    case: Case
    kernel: Kernel
    printed: tuple[Printed, ...]

    def said(self, number: int, milliseconds: float) -> str:
        p = self.printed[number]
        blocks = "x".join(str(n) for _, n in p.constants)
        return f"{blocks} {p.num_warps} warps {p.num_stages} stages {milliseconds * 1e3:.1f}"

    def run(self, binaries: Sequence[triton.Binary | None]) -> dict[int, float]:
        """Milliseconds of each candidate that runs."""
        memory = [m.make() for m in self.case.memory]
        env = dict(zip(self.kernel.symbols, self.case.sizes, strict=True))
        with ExitStack() as stack:
            runs: dict[str, trial.Run] = {}
            for k, (p, binary) in enumerate(zip(self.printed, binaries, strict=True)):
                grid = [g if type(g) is int else g.evaluate(env) for g in p.grid]  # type: ignore[union-attr]
                if binary is None or 0 in grid:
                    continue
                given = [t if kind.startswith("*") else 1 for (_, kind), t in zip(p.signature, memory)] + [env[s] for s in p.symbols]
                arguments = [(kind, value) for (_, kind), value in zip(p.signature, given, strict=True)]
                try:
                    function = stack.enter_context(trial.loaded(binary))
                except trial.BuildError:  # more registers or shared memory than there are
                    continue
                runs[str(k)] = trial.launcher(function, binary, grid, arguments)
            times = trial.milliseconds(runs) if runs else {}
        return {int(k): ms for k, ms in times.items() if ms < float("inf")}


def configured(program: Program, tuner: Tuner, sizes: Sizes) -> dict[Kernel, Config]:
    """The best configuration of each kernel that `program` launches."""
    cases: dict[Case, Kernel] = {}
    for step in launches(program):
        cases.setdefault(case_of(step, program, sizes), step.kernel)
    best = tuner.best(cases)
    found: dict[Kernel, Config] = {}
    for case, kernel in cases.items():
        found.setdefault(kernel, candidates(kernel, case.sizes)[best[case].number])
    return found


def launches(program: Program) -> Iterable[Launch]:
    """The launches of a program."""
    return [step for step in program.steps if type(step) is Launch]


__all__ = ["Best", "Case", "Sizes", "Tuner", "case_of", "configured", "launches", "source_of"]
