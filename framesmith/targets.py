"""The differences between kinds of devices in the pipeline: a row of `TARGETS` by the device's type.

A target schedules for its devices, and prints kernels and the function that calls them. Which passes run for it stands
in `pipeline.PASSES`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from framesmith.codegen.cpp.emit import emit_kernels
from framesmith.codegen.cpp.header import END
from framesmith.codegen.cpp.state import VectorTarget as Machine
from framesmith.codegen.device import wrap_device
from framesmith.codegen.host_function import Wrapped
from framesmith.codegen.printed import KernelFacts
from framesmith.codegen.triton.emit import is_narrow, print_kernels
from framesmith.codegen.triton.kernel import Printed
from framesmith.codegen.triton.kernel_dedup import shared
from framesmith.codegen.triton.product import product_of
from framesmith.codegen.triton.tuning import Config as Tiles
from framesmith.codegen.triton.user_kernels import UserKernel, user_kernels
from framesmith.codegen.wrapper import wrap
from framesmith.config import Config
from framesmith.loops.ir import Extern, Kernel, Program
from framesmith.loops.nest import LoopGraph
from framesmith.loops.text import kernel_text
from framesmith.lower.contractions.choice import Chooser, OwnKernels
from framesmith.lower.contractions.fuse_conv_relu import Layer
from framesmith.lower.contractions.geometry import HOST, VectorUnit
from framesmith.lower.contractions.pack_linear import Choose
from framesmith.lower.contractions.template_heuristics import unmeasured
from framesmith.runtime import triton
from framesmith.runtime.cache import Cache, key_of, package_identity
from framesmith.runtime.plan import Image
from framesmith.runtime.toolchain import Toolchain
from framesmith.schedule import target as machines
from framesmith.schedule.schedule import schedule
from framesmith.tuning.contractions import own_contractions
from framesmith.tuning.conv_relu import Rectified
from framesmith.tuning.kernels import Sizes, Tuner, configured, source_of
from framesmith.util import log
from framesmith.util.cores import cores
from framesmith.util.errors import BuildError
from framesmith.util.precision import CONVOLUTIONS, PRODUCTS, in_tf32

SHARED = {80: 163 << 10, 87: 163 << 10, 90: 227 << 10, 100: 227 << 10, 103: 227 << 10}
"""Bytes of shared memory that a block may have, by architecture."""
LEAST_SHARED = 99 << 10
Work = tuple[KernelFacts, ...]
"""(place, operators) of each kernel."""
Draft = Callable[[], tuple[Wrapped, Work]]


@dataclass(frozen=True, slots=True)
class Target:
    """The CPU: kernels in C++, own templates for contractions, constants packed for them."""

    config: Config
    toolchain: Toolchain
    cache: Cache
    device: torch.device
    unit: VectorUnit = HOST
    machine: ClassVar[machines.MachineModel] = machines.CPU
    aside: ClassVar[bool] = False
    """Kernels are compiled by another process, while this one goes on."""

    def identity(self) -> str:
        """Return the properties besides the options that change generated code, for cache keys."""
        return ""

    def prepare(self) -> None:
        """Begin slow preparations for code that will be generated."""

    @property
    def tf32(self) -> bool:
        """Return whether products of float32 may be rounded, on units that do that."""
        return False

    def chooser(self) -> Choose:
        """Return the chooser of each contraction's kernel, which measures where rules do not decide."""
        return Chooser(self.config, self.cache.memory("choices"))

    def schedule(self, loops: LoopGraph, sizes: Sizes) -> Program:
        """Schedule nests into fused kernels. `sizes`: the values of size symbols in the call that is compiled for."""
        c = self.config
        machine = replace(self.machine, fused=c.fusion_limit)
        return schedule(loops, c.fusion, c.vectorize, machine, c.scoped_memory, c.rounding)

    def print(self, program: Program, positions: Sequence[int], inputs: int, watched: Sequence[int],
              sizes: Sizes) -> Draft:
        """Print code by `codegen.wrapper.wrap`, with the work of each kernel; the returned function gives both when
        they are ready."""
        source = emit_kernels(program, Machine(self.unit.lanes, self.config.parallel_threshold))
        jobs = self.config.build_jobs or cores()
        wrapped = wrap(program, source, positions=positions, inputs=inputs, watched=watched, jobs=jobs)
        work = tuple([KernelFacts(f.name, f.text, k.bytes, k.work, f.origins)
                      for f, k in zip(source.functions, program.kernels, strict=True)])
        return lambda: (wrapped, work)

    def text(self, units: Sequence[str]) -> str:
        """Return the generated code for readers."""
        return "\n".join(["// kernel.h\n" + unit.partition(END)[2] for unit in units])


class PortableTarget(Target):
    """A CPU that need not be this one: no kernel of a library is chosen, and code is made for the vectors of `unit`."""

    __slots__ = ()

    def identity(self) -> str:
        return f"portable {self.unit}"

    def chooser(self) -> Choose:
        return OwnKernels(self.unit)


class CudaTarget(Target):
    """A CUDA device: kernels in Triton, contractions in the libraries that eager calls (cuBLAS, cuDNN)."""

    __slots__ = ()
    machine = machines.GPU
    aside = True

    @property
    def arch(self) -> int:
        """The architecture: 90 for sm_90."""
        return _arch(self.device)

    @property
    def tf32(self) -> bool:
        """Return whether products of float32 may be rounded, on units that do that."""
        return in_tf32(PRODUCTS) and self.arch >= 80

    def identity(self) -> str:
        rounded = " ".join([what for what in (PRODUCTS, CONVOLUTIONS) if in_tf32(what)])
        tuned = " tuned" if self.config.autotune else ""
        return f"{self.device} sm_{self.arch} {torch.cuda.get_device_name(self.device)}{tuned} rounded {rounded}"

    def prepare(self) -> None:
        triton.prepare(self.arch)

    def fuses_conv_relu(self) -> Callable[[Layer], bool]:
        """Return the predicate of convolutions that are one call with their ReLU: measured, where there is a device."""
        if not torch.cuda.is_available():
            return lambda layer: True
        measured = functools.cache(lambda: Rectified(self.device, self.cache.memory("rectified")))
        return lambda layer: measured()(layer)

    def tuner(self) -> Tuner:
        """Return the tuner that measures, in the modes that do."""
        return Tuner(self.device, self.arch, self.cache, self.config.build_jobs)

    def schedule(self, loops: LoopGraph, sizes: Sizes, in_place: bool = True) -> Program:
        c = self.config
        machine = replace(self.machine, in_place=in_place, fused=c.fusion_limit)
        return schedule(loops, c.fusion, c.vectorize, machine, True, c.rounding, c.scoped_memory)

    def choose_templates(self, loops: LoopGraph, sizes: Sizes) -> LoopGraph:
        """Choose which contractions are kernels of our own: by rules, or by measurement in the modes that measure."""
        if not self.config.autotune:
            return unmeasured(loops, self.tf32)
        with self.tuner() as tuner:
            plan = functools.partial(self.schedule, sizes=sizes, in_place=False)
            return own_contractions(loops, plan, tuner, sizes, self.tf32)

    def kernels(self, program: Program, sizes: Sizes) -> tuple[tuple[Printed, ...], dict[int, Printed]]:
        """Return the text of the program's kernels; and, by number, of 64-bit versions of those whose index width
        depends on sizes. Raises `CompileError`."""
        configs = self._configured(program, sizes) if self.config.autotune else {}
        printed = print_kernels(program, configs, tiling=self.config.tiling, sizes=sizes)
        if self.config.sharing:
            printed = shared(printed, [self._kind(kernel) for kernel in program.kernels])
        unsure = {k for k, kernel in enumerate(printed) if is_narrow(kernel) is None}
        wide = print_kernels(program, configs, wide=True, tiling=self.config.tiling, sizes=sizes) if unsure else ()
        return printed, {k: wide[k] for k in sorted(unsure)}

    def _configured(self, program: Program, sizes: Sizes) -> dict[Kernel, Tiles]:
        with self.tuner() as tuner:
            return configured(program, tuner, sizes)

    def _kind(self, kernel: Kernel) -> str:
        """Return the kind of a kernel; kernels of one kind may be merged with numbers as arguments: all except
        contractions, which may differ only in places of memory, as all may where kernels are measured."""
        return kernel_text(kernel, offsets=False) if self.config.autotune or product_of(kernel) is not None else ""

    def print(self, program: Program, positions: Sequence[int], inputs: int, watched: Sequence[int],
              sizes: Sizes) -> Draft:
        launched = user_kernels(program, self.device)
        draft = self._draft(program, positions, inputs, watched, sizes, launched)

        def finish() -> tuple[Wrapped, Work]:
            try:
                return draft()
            except BuildError:
                if not launched:
                    raise
                # Triton's own launcher reports the error
                return self._draft(program, positions, inputs, watched, sizes, {})()

        return finish

    def _draft(
        self, program: Program, positions: Sequence[int], inputs: int, watched: Sequence[int], sizes: Sizes,
        launched: Mapping[Extern, UserKernel],
    ) -> Draft:
        printed, wide = self.kernels(program, sizes)
        sources = [*map(source_of, printed), *[b.source for b in launched.values()], *map(source_of, wide.values())]
        if log.enabled("code"):
            log.emit("code", "\n".join([source.text for source in sources]))
        pending = triton.start(sources, self.arch, self.cache, self.config.build_jobs) if sources else None
        try:
            wrapped = wrap_device(program, printed, positions, inputs, watched, launched, wide)
            # concurrently with Triton; it has no long-running loops
            self.cache.library(wrapped.units, self.toolchain.hurried())
        except BaseException:
            if pending is not None:
                pending.drop()
            raise

        def finish() -> tuple[Wrapped, Work]:
            binaries = pending.wait() if pending is not None else ()
            if any(b.shared > SHARED.get(self.arch, LEAST_SHARED) for b in binaries[len(printed):]):
                raise BuildError("a kernel that needs more shared memory than the device has")
            images = tuple([Image(b.name, b.image, b.threads, b.shared) for b in binaries])
            plan = replace(wrapped.plan, device=self.device.index, images=images)
            work = tuple([KernelFacts(image.name, p.text, k.bytes, k.work, p.origins)
                          for p, k, image in zip(printed, program.kernels, images)])
            return replace(wrapped, plan=plan), work

        return finish

    def text(self, units: Sequence[str]) -> str:
        return "\n".join(units)


def expect(config: Config, place: str) -> None:
    """Begin slow preparations for code at `place`, if a CUDA device is in use and the cache has nothing for the place;
    later its graphs are likely to be found in the cache."""
    if torch.cuda.is_initialized() and not triton.is_prepared() and config.backend == "native":
        cache = Cache(config.cache_dir, config.cache)
        if cache.load(key := key_of("expected", package_identity(), place)) is None:
            cache.store(key, True)
            triton.prepare(_arch(torch.device("cuda", torch.cuda.current_device())))


def _arch(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


TARGETS: dict[str, type[Target]] = {"cpu": Target, "cuda": CudaTarget}
