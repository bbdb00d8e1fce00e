"""The processors that packages have code for."""

from __future__ import annotations

import hashlib
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from framesmith.lower.contractions.geometry import VectorUnit
from framesmith.runtime.toolchain import Toolchain
from framesmith.util.errors import PackageError

SOURCES = Path(__file__).parent.parent
"""The folder that C++ of a package is included from."""


@dataclass(frozen=True, slots=True)
class Machine:
    """`machine`: as `uname -m` has it. `features`: what a processor must have, by the names that
    `__builtin_cpu_supports` takes. `flags`: of the compiler. `unit`: the vectors that code is made for. `prefix`: of
    the name of a cross compiler."""

    name: str
    machine: str
    features: tuple[str, ...]
    flags: tuple[str, ...]
    unit: VectorUnit
    prefix: str

    def toolchain(self, host: Toolchain) -> Toolchain:
        """Return the toolchain that makes code for this machine; `host` makes it for this one. What it links needs
        nothing but the C and C++ libraries. Raises `PackageError` where there is no compiler."""
        compiler = host.compiler
        if self.machine != platform.machine():
            found = shutil.which(f"{self.prefix}-g++")
            if found is None:
                raise PackageError(f"no compiler for {self.name}: {self.prefix}-g++ (Debian: apt-get install "
                                   f"g++-{self.prefix})")
            compiler = found
        flags = [flag for flag in host.compile_flags if flag not in ("-march=native", "-fno-exceptions", "-fno-rtti")]
        flags = [*self.flags, "-DFS_NO_SLEEF", "-fno-gnu-unique", f"-I{SOURCES}",
                 f"-ffile-prefix-map={SOURCES}=framesmith", *flags]
        links = ("-shared", "-static-libgcc", "-Wl,--as-needed", "-Wl,-z,now", "-Wl,-z,defs", "-Wl,-s", "-lm")
        identity = hashlib.sha256(repr((host.fingerprint, compiler, flags, links)).encode()).hexdigest()[:32]
        return replace(host, compiler=compiler, compile_flags=tuple(flags), link_flags=links, libraries=(),
                       fingerprint=identity)


_WIDE, _NARROW = VectorUnit(16, 32, shared=True), VectorUnit(8, 16, shared=True)
_AVX2 = ("avx2", "fma", "bmi", "bmi2")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
MACHINES = {m.name: m for m in (
    Machine("x86-64-v4", "x86_64", _AVX512, ("-march=x86-64-v4", "-mprefer-vector-width=512"), _WIDE,
            "x86-64-linux-gnu"),
    Machine("x86-64-v3", "x86_64", _AVX2, ("-march=x86-64-v3",), _NARROW, "x86-64-linux-gnu"),
    Machine("x86-64", "x86_64", (), ("-march=x86-64",), _NARROW, "x86-64-linux-gnu"),
    Machine("aarch64", "aarch64", ("asimd",), ("-march=armv8-a",), _NARROW, "aarch64-linux-gnu"),
)}
"""By name, the one to be preferred first."""


def machines_of(names: Sequence[str]) -> list[Machine]:
    """Return the machines of these names, in the order in which a runtime tries them. Raises `PackageError`."""
    unknown = [name for name in names if name not in MACHINES]
    if unknown or not names:
        raise PackageError(f"targets are some of {', '.join(MACHINES)}, not {', '.join(unknown) or 'none'}")
    return [machine for name, machine in MACHINES.items() if name in names]
