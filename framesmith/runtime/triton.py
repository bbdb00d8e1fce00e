"""Compilation of Triton's text to machine code for an architecture, without a device: from the disk cache, or in
another process.

    pending = start([source, ...], 90, cache)      # begins; returns at once
    binaries = pending.wait()                      # one a source, in their order

Triton itself is never imported into the user's process. The process that compiles is started at the first need (or by
`prepare`, ahead of it) and lives as long as this one.
"""

from __future__ import annotations

import atexit
import functools
import importlib.metadata
import importlib.util
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from framesmith.runtime.cache import Cache, key_of
from framesmith.util import log
from framesmith.util.cores import cores
from framesmith.util.errors import BuildError, TritonMissing
from framesmith.util.locks import forkable_lock
from framesmith.util.serialize import serializable

WORKER = Path(__file__).with_name("triton_worker.py")


@dataclass(frozen=True, slots=True)
class TritonSource:
    """One kernel as text: the source of a file that defines the `@triton.jit` function `name`.

    `signature`: (parameter, Triton's type), `constants`: (parameter, value) of its `tl.constexpr` parameters; a type is
    ("dtype", its name). `divisible`: places among all parameters whose arguments are multiples of 16; `multiples`:
    (place, what the argument is a multiple of). `debug`: it has assertions. `vector`: tiles of two dimensions have so
    many elements along the second, all of one thread; else 0.
    """

    name: str
    text: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...] = ()
    divisible: tuple[int, ...] = ()
    warps: int = 4
    stages: int = 3
    debug: bool = False
    multiples: tuple[tuple[int, int], ...] = ()
    vector: int = 0


@serializable
@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled kernel: a cubin and its entry's name. It takes the arguments of its source's signature in order, then
    `scratch` pointers that may be null. `shared`: bytes of dynamic shared memory; `warps`: of a block."""

    name: str
    image: bytes
    shared: int
    warps: int
    scratch: int

    @property
    def threads(self) -> int:
        return 32 * self.warps


@functools.cache
def version() -> str:
    """Triton's version. Raises `TritonMissing`."""
    if importlib.util.find_spec("triton") is None:
        raise TritonMissing(
            "a tensor is on a CUDA device, and Triton, which compiles kernels for it, is not installed: install the "
            "version that goes with "
            "this PyTorch (pip install triton)"
        )
    return importlib.metadata.version("triton")


def start(sources: Sequence[TritonSource], arch: int, cache: Cache, jobs: int | None = None) -> Pending:
    """Begin to compile `sources` for `arch` (90: sm_90), at most `jobs` at once; cached and equal ones are not compiled
    again.

    Raises `TritonMissing`.
    """
    keys = [key_of("triton", version(), arch, source) for source in sources]
    found: dict[str, Binary] = {}
    missing: dict[str, TritonSource] = {}
    for key, source in zip(keys, sources):
        if key not in found and key not in missing:
            known = cache.load(key)
            if isinstance(known, Binary):
                found[key] = known
            else:
                missing[key] = source
    pending = Pending(keys, found, missing, arch, cache)
    if missing:
        pending.begin(jobs or cores())
    return pending


def prepare(arch: int) -> None:
    """Start the compiling process, if Triton is installed: loading it takes about a second, concurrently with other
    work."""
    if importlib.util.find_spec("triton") is not None:
        with _lock:
            _process(arch)


def is_prepared() -> bool:
    """Return whether the process that compiles runs."""
    return bool(_started) and _started[0].popen.poll() is None


@dataclass(slots=True, eq=False)
class Process:
    """The compiling process. `asked`: for each number of an unanswered kernel, its `Pending` and key."""

    popen: subprocess.Popen[str]
    asked: dict[int, tuple[Pending, str]] = field(default_factory=dict)

    def ask(self, jobs: int, batch: Sequence[dict[str, Any]], folder: str) -> None:
        """Send a batch; earlier ones are compiled first."""
        path = Path(folder) / "batch.json"
        path.write_text(json.dumps(batch))  # the pipe has room for little, and is not read until Triton is loaded
        self.popen.stdin.write(json.dumps([jobs, str(path)]) + "\n")  # type: ignore[union-attr]
        self.popen.stdin.flush()  # type: ignore[union-attr]

    def listen(self) -> None:
        """Receive one answer, for any `Pending`. Raises `BuildError` if there is none."""
        line = self.popen.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise BuildError(f"Triton's process ended with status {self.popen.wait()}")
        number, problem = json.loads(line)
        if number in self.asked:
            owner, key = self.asked.pop(number)
            owner.take(number, key, problem)


@dataclass(slots=True, eq=False)
class Pending:
    """Kernels being compiled; see `start`. Others may be queued before and after them.

    `owed`: how many the process has yet to answer for.
    """

    keys: list[str]
    found: dict[str, Binary]
    missing: dict[str, TritonSource]
    arch: int
    cache: Cache
    folder: tempfile.TemporaryDirectory[str] | None = field(default=None)
    process: Process | None = field(default=None)
    refused: list[str] = field(default_factory=list)
    jobs: int = 1
    owed: int = 0

    def begin(self, jobs: int) -> None:
        """Hand the missing kernels to the process."""
        self.jobs = jobs
        self.folder = tempfile.TemporaryDirectory(prefix="framesmith-triton-")
        with _lock:
            self.process = _process(self.arch)
            batch = []
            wanted = [(key, source) for key, source in self.missing.items() if key not in self.found]
            for key, source in sorted(wanted, key=lambda item: -len(item[1].text)):  # what takes long begins first
                number = next(_numbers)
                self.process.asked[number] = self, key
                batch.append(self._job(number, source))
            self.owed = len(batch)
            try:
                self.process.ask(jobs, batch, self.folder.name)
            except OSError as error:
                self._leave()
                raise BuildError(f"Triton's process cannot be reached: {error}") from error

    def wait(self) -> tuple[Binary, ...]:
        """Return the binaries. Raises `BuildError` with Triton's words."""
        found = self.attempted()
        if self.refused:
            first = self.refused[0]
            raise BuildError(f"Triton refused generated code ({first.splitlines()[0]}):\n{first}",
                             output="\n".join(self.refused))
        return tuple([binary for binary in found if binary is not None])

    def attempted(self) -> tuple[Binary | None, ...]:
        """Return the binaries; None for what Triton refuses (the words are in `refused`)."""
        # it has ended, or this is a forked child
        if self.process is not None and not (is_prepared() and self.process is _started[0]):
            self.begin(self.jobs)
        with _lock:
            try:
                while self.process is not None and self.owed:
                    self.process.listen()
            finally:
                self._leave()
        return tuple([self.found.get(key) for key in self.keys])

    def drop(self) -> None:
        """Abandon kernels that are no longer needed."""
        with _lock:
            self._leave()

    def take(self, number: int, key: str, problem: str | None) -> None:
        """Handle the process's answer on a kernel: store its binary, or record the error."""
        self.owed -= 1
        source = self.missing[key]
        result = {"error": problem} if problem else pickle.loads(self._out(number).read_bytes())
        if "error" in result:
            self.refused.append(f"{source.name}: {result['error']}\n{source.text}")
            return
        self.found[key] = binary = Binary(**result)
        self.cache.store(key, binary)

    def _job(self, number: int, source: TritonSource) -> dict[str, Any]:
        path = self._out(number).with_suffix(".py")
        path.write_text(source.text)
        return {
            "number": number, "path": str(path), "out": str(self._out(number)), "name": source.name, "arch": self.arch,
            "signature": dict(source.signature), "constants": dict(source.constants), "divisible": source.divisible,
            "warps": source.warps, "stages": source.stages, "debug": source.debug, "multiples": source.multiples,
            "vector": source.vector,
        }  # fmt: skip

    def _out(self, number: int) -> Path:
        assert self.folder is not None
        return Path(self.folder.name) / f"kernel{number}.bin"

    def _leave(self) -> None:
        """Stop waiting for the process."""
        if self.process is not None:
            asked = self.process.asked
            for number in [n for n, (owner, _) in asked.items() if owner is self]:
                del asked[number]
        self.process = None
        if self.folder is not None:
            self.folder.cleanup()
            self.folder = None


# ---------------------------------------------------------------------------------------------------------- the process

_lock: Any = forkable_lock()
_started: list[Process] = []
_numbers = itertools.count()


def _process(arch: int) -> Process:
    """Return the compiling process, warmed up for `arch`, started if there is none or it has died. The caller holds the
    lock."""
    if is_prepared():
        return _started[0]
    _started.clear()
    folder = tempfile.mkdtemp(prefix="framesmith-triton-cache-")
    atexit.register(_remove, folder)
    # -P: this file's folder must not stand before Triton's
    command = [sys.executable, "-P", str(WORKER), str(arch)]
    # lines of generated text are of no use to a profiler: without them binaries are half as large
    own = {"TRITON_CACHE_DIR": folder, "TRITON_DISABLE_LINE_INFO": "1",
           "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment = {**os.environ, **own}
    errors = None if log.enabled("code") else subprocess.DEVNULL
    pipe = subprocess.PIPE
    _started.append(Process(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True,
                                             env=environment)))
    return _started[0]


def _remove(folder: str) -> None:
    for process in _started:
        process.popen.kill()
        process.popen.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _forget() -> None:
    """Forget, in a forked child, the parent's process."""
    _started.clear()


os.register_at_fork(after_in_child=_forget)
