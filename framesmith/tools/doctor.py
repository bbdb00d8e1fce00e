"""`python -m framesmith doctor`: is this machine fit to compile on, and what to do where it is not.

Each check is a row of `CHECKS`: a function that returns a finding.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from framesmith.config import Config
from framesmith.runtime.build import build
from framesmith.runtime.toolchain import find, openmp_library
from framesmith.util.cores import cores
from framesmith.util.errors import BuildError, CompilerMissing

GOOD, NOTE, BROKEN = "good", "note", "broken"
_COLOURS = {GOOD: "green", NOTE: "yellow", BROKEN: "red"}
_LEAST_TORCH, _PYTHONS = (2, 11), ((3, 11), (3, 12))
_LEAST_ROOM, _LITTLE_ROOM = 50 << 20, 1 << 30
_COUNTING = 1.0
"""The time limit for counting files, in seconds."""
_PROBE = """#include <omp.h>
extern "C" __attribute__((visibility("default"))) int probe(int n) {
  int sum = 0;
  #pragma omp parallel for reduction(+ : sum)
  for (int i = 0; i < n; i++) sum += i;
  return sum;
}
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: `state` is one of good, note, broken; `remedy`: what to do."""

    name: str
    state: str
    found: str
    remedy: str = ""


def _python() -> Finding:
    here = sys.version_info[:2]
    text = sys.version.split()[0]
    if here in _PYTHONS:
        return Finding("Python", GOOD, text)
    return Finding("Python", BROKEN, text, "framesmith captures the bytecode of Python 3.11 and 3.12: use one of them")


def _torch() -> Finding:
    version = torch.__version__
    if tuple(int(part) for part in version.split(".")[:2]) >= _LEAST_TORCH:
        return Finding("PyTorch", GOOD, version)
    return Finding("PyTorch", BROKEN, version, "install torch 2.11 or later, and framesmith again for it")


def _core() -> Finding:
    """Check that the C++ core was built for this version of Python and of PyTorch."""
    folder = Path(__file__).parents[1]
    try:
        version = importlib.metadata.version("framesmith")
    except importlib.metadata.PackageNotFoundError:
        version = "not installed as a package"
    try:
        importlib.import_module("framesmith._C")
    except ImportError as error:
        return Finding("framesmith", BROKEN, f"{version}; {folder}; its core cannot be loaded: {error}",
                       "install framesmith again for this Python and PyTorch: pip install --no-build-isolation .")
    return Finding("framesmith", GOOD, f"{version}; {folder}")


def _compiler() -> Finding:
    config = Config.from_env()
    try:
        toolchain = find(config.compiler, config.compiler_flags)
    except CompilerMissing as error:
        return Finding("C++ compiler", BROKEN, "none", str(error))
    with tempfile.TemporaryDirectory() as folder:
        library, start = Path(folder) / "probe.so", time.perf_counter()
        try:
            build([_PROBE], toolchain, library, lambda path: None)
            right = ctypes.CDLL(str(library)).probe(100) == 4950
        except (BuildError, OSError) as error:
            return Finding("C++ compiler", BROKEN, toolchain.compiler,
                           f"a small program cannot be built or loaded: {str(error).strip()[-300:]}")
        seconds = time.perf_counter() - start
    if not right:
        return Finding("C++ compiler", BROKEN, toolchain.compiler, "a loop in parallel gives a wrong sum")
    return Finding("C++ compiler", GOOD, f"{toolchain.compiler}; builds in {seconds:.2f} s")


def _openmp() -> Finding:
    library = openmp_library()
    threads = f"{torch.get_num_threads()} threads on {cores()} cores"
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()
              if "/" in line and os.path.basename(line.split()[-1]).startswith(("libgomp", "libiomp", "libomp"))}
    if library == "-lgomp":
        return Finding("OpenMP", NOTE, f"the system's; {threads}",
                       "PyTorch brings no libgomp here: two OpenMP runtimes in a process may slow each other down")
    if len(loaded) > 1:
        return Finding("OpenMP", NOTE, f"{', '.join(sorted(loaded))}; {threads}",
                       "several OpenMP runtimes are loaded: import torch first, and see who loads the other")
    return Finding("OpenMP", GOOD, f"{library}; {threads}")


def _vectors() -> Finding:
    lanes = importlib.import_module("framesmith._C").LANES
    names = {16: "AVX-512", 8: "AVX2", 4: "128-bit vectors"}
    text = f"{names.get(lanes, 'vectors')}: {lanes} float32 lanes; PyTorch: {torch.backends.cpu.get_cpu_capability()}"
    if lanes >= 8:
        return Finding("Vector units", GOOD, text)
    return Finding("Vector units", NOTE, text, "kernels are right, but slower than with AVX2 or AVX-512")


def _cache() -> Finding:
    folder = Path(Config.from_env().cache_dir or os.environ.get("FRAMESMITH_CACHE_DIR")
                  or platformdirs.user_cache_dir("framesmith"))
    remedy = "choose a folder of your own: FRAMESMITH_CACHE_DIR=/some/folder; until then nothing outlives the process"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        return Finding("Cache folder", BROKEN, f"{folder}: {error.strerror}", remedy)
    if found.st_uid != os.geteuid():
        return Finding("Cache folder", BROKEN, f"{folder} belongs to another user", remedy)
    if stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
        return Finding("Cache folder", BROKEN, f"{folder} can be written by others, so nothing is loaded from it",
                       f"chmod go-w {folder}, after a look at what is in it")
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding("Cache folder", BROKEN, f"{folder} cannot be written", remedy)
    free = shutil.disk_usage(folder).free
    text = f"{folder}: {_size(folder)}; {free / 2**30:.1f} GiB free"
    if free < _LITTLE_ROOM:
        return Finding("Cache folder", BROKEN if free < _LEAST_ROOM else NOTE, text,
                       "make room on the disk, or choose another by FRAMESMITH_CACHE_DIR")
    return Finding("Cache folder", GOOD, text)


def _size(folder: Path) -> str:
    """Return the number and size of the files in a folder, as far as they can be counted in a short time."""
    end, files, size = time.monotonic() + _COUNTING, 0, 0
    for entry in folder.rglob("*"):
        files, size = files + 1, size + entry.lstat().st_size
        if time.monotonic() > end:
            return f"more than {files} files, {size / 2**20:.0f} MiB"
    return f"{files} files, {size / 2**20:.0f} MiB"


def _temporary() -> Finding:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    text = f"{folder}: {free / 2**30:.1f} GiB free"
    if free < _LEAST_ROOM:
        return Finding("Temporary files", BROKEN, text, "make room, or set TMPDIR to another folder")
    return Finding("Temporary files", GOOD, text)


def _cuda() -> Finding:
    if torch.version.cuda is None:
        return Finding("CUDA", GOOD, "this PyTorch is built for CPUs")
    if not torch.cuda.is_available():
        return Finding("CUDA", NOTE, f"PyTorch is built for CUDA {torch.version.cuda}, and sees no device",
                       "if there is one: check nvidia-smi, CUDA_VISIBLE_DEVICES, and that the driver is new enough")
    names = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    try:
        right = float(torch.ones(8, device="cuda").sum()) == 8.0
    except RuntimeError as error:
        return Finding("CUDA", BROKEN, ", ".join(names), f"a small sum fails: {str(error).splitlines()[0]}")
    return Finding("CUDA", GOOD if right else BROKEN, f"CUDA {torch.version.cuda}: {', '.join(names)}")


def _triton() -> Finding:
    there = importlib.util.find_spec("triton") is not None
    version = importlib.metadata.version("triton") if there else "not installed"
    if there or not torch.cuda.is_available():
        return Finding("Triton", GOOD, version if there else "not installed; needed for CUDA devices alone")
    return Finding("Triton", BROKEN, version, "kernels for CUDA devices are Triton programs: pip install triton")


def _end_to_end() -> Finding:
    """Run one call, compiled by a `FrameCompiler` as `compile` makes it."""
    start = time.perf_counter()
    code = ("import torch, framesmith; f = framesmith.compile(lambda x: (x * 2).sum(1), fullgraph=True, "
            "options={'cache': False}); x = torch.ones(3, 5); assert f(x).tolist() == [10.0] * 3")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    if done.returncode == 0:
        return Finding("A compiled call", GOOD, f"right; {time.perf_counter() - start:.1f} s with the start of Python")
    last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
    return Finding("A compiled call", BROKEN, last[0][:200],
                   "see the rows above; if all are good, report it with this message")


CHECKS: tuple[Callable[[], Finding], ...] = (
    _python, _torch, _core, _compiler, _openmp, _vectors, _cache, _temporary, _cuda, _triton, _end_to_end,
)
"""The checks, in order."""


def examine() -> list[Finding]:
    """Return all findings. A check that fails itself is one that is broken."""
    found = []
    for check in CHECKS:
        try:
            found.append(check())
        except Exception as error:  # whatever is odd about a machine is to be shown
            name = check.__name__.strip("_").replace("_", " ")
            found.append(Finding(name, BROKEN, f"{type(error).__name__}: {error}"))
    return found


def table(findings: list[Finding]) -> Table:
    """Return the findings as `rich` prints them."""
    made = Table(title="framesmith doctor")
    for name in ("", "state", "found", "what to do"):
        made.add_column(name, overflow="fold")
    for f in findings:
        colour = _COLOURS[f.state]
        made.add_row(f.name, f"[{colour}]{f.state}[/]", escape(f.found), escape(f.remedy))
    return made


def main(arguments: list[str]) -> int:
    """Print the table; 1 if something is broken."""
    parser = argparse.ArgumentParser(prog="python -m framesmith doctor",
                                     description="Check the machine, and say what to do.")
    parser.parse_args(arguments)
    findings = examine()
    Console().print(table(findings))
    return int(any(f.state == BROKEN for f in findings))
