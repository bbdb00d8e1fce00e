"""Times of kernels and operators on a CUDA device, for choices by measurement.

Each run begins with a cold L2 cache, or with its operands in it (`warm`), and is timed by the device's events; the runs
of all contenders are interleaved, so that other load on the device affects them equally. The lower quartile counts,
since the device may be shared. Memory is allocated for the trial and filled with random numbers: the user's is never
accessed.

Kernels run in a separate process (`trial_worker.py`), with its own context: a faulty one ends that process, and is
excluded. Operators of libraries run here.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from framesmith.runtime.trial_worker import AHEAD, FLUSHED, REPEATED, RUNS
from framesmith.runtime.triton import Binary
from framesmith.util import log

WORKER = Path(__file__).with_name("trial_worker.py")
CONTEXT = 1 << 30  # bytes of the process, at most
PART = 4  # of the free memory, so much is used
PATIENCE = 60  # seconds that a contender has


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory to allocate: `elements` of `dtype`; random numbers, or indices less than `below`."""

    elements: int
    dtype: torch.dtype
    below: int | None = None

    @property
    def nbytes(self) -> int:
        return self.elements * self.dtype.itemsize

    def make(self) -> torch.Tensor:
        t = torch.empty(max(self.elements, 1), dtype=self.dtype, device="cuda")
        numbers = torch.Generator(t.device)  # the program's own goes on as if nothing had been measured
        if self.below is not None:
            return t.random_(0, max(self.below, 1), generator=numbers)
        return t.normal_(generator=numbers) if self.dtype.is_floating_point else t.zero_()


@dataclass(frozen=True, slots=True)
class Contender:
    """A kernel, its grid, and its arguments: Triton's type of each, and the number of a buffer or a value."""

    binary: Binary
    grid: Sequence[int]
    arguments: Sequence[tuple[str, Any]]

    def job(self) -> dict[str, Any]:
        b = self.binary
        return {
            "image": b.image, "name": b.name, "grid": [*self.grid, 1, 1, 1][:3], "threads": b.threads,
            "shared": b.shared,
            "arguments": [*self.arguments, *[("i64", 0)] * b.scratch],
        }  # fmt: skip


class Trials:
    """The process in which kernels run, on a device, from the first `begin` to the end of the `with` block."""

    def __init__(self, device: int, worker: Sequence[str] = ()) -> None:
        self.command = [*(worker or (sys.executable, "-S", "-P", str(WORKER))), str(device)]
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.end()

    def begin(self) -> subprocess.Popen[bytes]:
        """Start the process if it does not run; it takes a moment to acquire the device."""
        if self.process is None:
            errors = None if log.enabled("tuning") else subprocess.DEVNULL
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        return self.process

    def end(self) -> None:
        """End the process, which frees what it has of the device."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]
            self.process = None

    def milliseconds(self, contenders: Sequence[Contender], memory: Sequence[Memory],
                     warm: bool = False) -> list[float | None]:
        """Return the milliseconds of each contender over `memory`; None for one that the device refuses, or that ends
        the process."""
        left = list(range(len(contenders)))
        found: list[float | None] = [None] * len(contenders)
        while left:
            times, last = self._run([contenders[k] for k in left], memory, warm)
            if times is not None:
                for k, time in zip(left, times, strict=True):
                    found[k] = time
                break
            if last is None:
                break
            log.emit("tuning", f"{contenders[left[last]].binary.name} ended the process that it was timed in")
            left.pop(last)
        return found

    def _run(
        self, contenders: Sequence[Contender], memory: Sequence[Memory], warm: bool
    ) -> tuple[list[float | None] | None, int | None]:
        """Return the times; or else the last contender before the process ended, if any."""
        process = self.begin()
        data = [(str(m.dtype)[6:], m.elements, m.below) for m in memory]
        last = None
        try:
            job = {"memory": data, "contenders": [c.job() for c in contenders], "warm": warm}
            pickle.dump(job, process.stdin)  # type: ignore[arg-type]
            process.stdin.flush()  # type: ignore[union-attr]
            while line := _line(process):
                said = json.loads(line)
                if isinstance(said, list):
                    return said, None
                last = said
        except OSError:
            pass
        self.end()
        return None, last


def _line(process: subprocess.Popen[bytes]) -> bytes:
    """Return the next line from the process; an empty one if it has ended, or does not answer in time and is killed."""
    answered = threading.Event()

    def watch() -> None:
        # a time in which this process stood still is one of them
        if not any(answered.wait(1.0) for _ in range(PATIENCE)):
            process.kill()

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        return process.stdout.readline()  # type: ignore[union-attr]
    finally:
        answered.set()


def milliseconds(run: Callable[[], object], warm: bool = False) -> float:
    """Return the milliseconds of a library's operator, in this process."""
    flushed = torch.empty(FLUSHED, dtype=torch.int8, device="cuda")
    run()
    return sorted([_timed(run, flushed, warm) for _ in range(RUNS)])[RUNS // 4]


def _timed(run: Callable[[], object], flushed: torch.Tensor, warm: bool) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(AHEAD if warm else 1):
        flushed.zero_()
    if warm:
        run()
    first.record()
    for _ in range(count := REPEATED if warm else 1):
        run()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / count


def fits(memory: Sequence[Memory]) -> bool:
    """Return whether that many bytes can be allocated."""
    free, _ = torch.cuda.mem_get_info()
    return PART * (sum(m.nbytes for m in memory) + FLUSHED) + CONTEXT <= free
