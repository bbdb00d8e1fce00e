"""The C++ compiler that builds generated kernels, the flags it gets, and what identifies both in cache keys."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from framesmith.util.errors import CompilerMissing

CANDIDATES = ("g++", "c++")
# -fno-math-errno and -fno-trapping-math free the vectoriser without changing any result; -ffast-math would.
# -fno-delete-null-pointer-checks: GCC 12 takes an address that its loop optimiser has written as 0 + index for an
# access to the null pointer, finds the function without effect, and drops calls of it.
COMPILE_FLAGS = (
    "-O2", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fno-math-errno",
    "-fno-trapping-math", "-fno-delete-null-pointer-checks",
    "-fwrapv", "-ffp-contract=fast", "-fvisibility=hidden", "-pipe", "-w", "-x", "c++",
)  # fmt: skip
# No start files and no default libraries: the code has no static constructors, and the C library is in the process
# already.
LINK_FLAGS = ("-shared", "-nostdlib", "-Wl,--as-needed", "-Wl,-z,now")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """`compiler`: path; `compile_flags`, `link_flags`: complete but for file names; `libraries`: (prefix of a symbol,
    name of the library of this process that defines it), needed only by code that has such a symbol; `fingerprint`:
    changes whenever the same source may give other machine code: compiler, flags, processor, PyTorch; the same on
    machines that agree in these, wherever they have them installed."""

    compiler: str
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    libraries: tuple[tuple[str, str], ...]
    fingerprint: str

    def hurried(self) -> Toolchain:
        """Return the same without optimisation, for code that consists only of calls."""
        return replace(self, compile_flags=tuple(["-O0" if flag == "-O2" else flag for flag in self.compile_flags]))


def find(compiler: str | None = None, extra_flags: str = "") -> Toolchain:
    """Return the toolchain with `compiler` (a name or path; None: $CXX, then the first of `CANDIDATES` there is).
    Raises `CompilerMissing`."""
    return _toolchain(compiler or os.environ.get("CXX") or "", extra_flags)


@functools.cache
def _toolchain(wanted: str, extra_flags: str) -> Toolchain:
    path = _locate(wanted)
    return _with(path, extra_flags, _file_identity(path))


def absent(compiler: str | None = None, extra_flags: str = "") -> Toolchain:
    """Return the toolchain that `find` would give for a compiler that is missing; `fingerprint` tells what was asked
    for, and the machine."""
    return _with(compiler or os.environ.get("CXX") or "", extra_flags)


def _with(path: str, extra_flags: str, executable: str = "") -> Toolchain:
    compile_flags = (*COMPILE_FLAGS[:-2], *extra_flags.split(), *COMPILE_FLAGS[-2:])
    # its own OpenMP runtime would be a second one: kernels stay on one thread
    if "clang" in os.path.basename(os.path.realpath(path)):
        compile_flags = tuple("-fopenmp=libgomp" if flag == "-fopenmp" else flag for flag in compile_flags)
    link_flags = (*LINK_FLAGS, openmp_library(), "-lm", "-lgcc", "-Wl,--no-as-needed")
    libraries = (("Sleef_", os.path.basename(os.path.realpath(_torch_folder() / "libtorch_cpu.so"))),)
    identity = (executable or path, compile_flags, tuple(map(os.path.basename, link_flags)), cpu_identity(),
                torch.__version__)
    return Toolchain(path, compile_flags, link_flags, libraries,
                     hashlib.sha256(repr(identity).encode()).hexdigest()[:32])


def _locate(wanted: str) -> str:
    names = (wanted,) if wanted else CANDIDATES
    for name in names:
        if path := shutil.which(name):
            return path
    raise CompilerMissing(
        f"no C++ compiler: looked for {', '.join(names)}; install g++ (Debian: apt-get install g++, Fedora: dnf "
        "install gcc-c++) "
        "or name one with FRAMESMITH_COMPILER"
    )


def _file_identity(path: str) -> str:
    """Return the digest of an executable, which identifies it without a run."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _torch_folder() -> Path:
    return Path(torch.__file__).parent / "lib"


@functools.cache
def openmp_library() -> str:
    """PyTorch's OpenMP runtime, by path: there must be one in the process."""
    folder = _torch_folder()
    for place in (folder, folder.parent.parent / "torch.libs"):
        if found := sorted(place.glob("libgomp*.so*")):
            return str(found[0])
    return "-lgomp"


@functools.cache
def cpu_name() -> str:
    """Return the processor's model, for readers."""
    named = (line.partition(":")[2].strip() for line in cpu_identity().splitlines() if line.startswith("model name"))
    return next(named, platform.machine())


@functools.cache
def cpu_identity() -> str:
    """Processor model and instruction sets, as -march=native sees them."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    lines = text.split("\n\n", 1)[0].splitlines()
    return "\n".join(line for line in lines
                     if line.startswith(("model name", "cpu family", "model\t", "flags", "Features", "CPU part")))
