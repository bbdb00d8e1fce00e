"""Many rows in little time: processes compile beside each other, each on cores of its own, and time alone.

A process that has compiled waits; when all have, or the time or the device's memory is short, each times in its turn while nothing else
runs. A process that dies is tried again with its first mode alone. With `warm`, a second process of each row then takes its first calls
with the caches that the first one left.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import child
from benchmarks.gpu.row import Row, encoded

Done = Callable[[Row, dict[str, Any]], None]
COMMAND = (sys.executable, "-m", "benchmarks.gpu.row")
RESERVE = 2.5
"""Seconds that the timing of one row may take."""
WARM = 0.15
"""The part of the time that is kept for the second processes."""
MOST = 16
"""Processes that may wait for their turn."""
ROOM = 48 << 30
"""Bytes of the device's memory that must be free for another process to begin."""


@dataclass(slots=True, eq=False)
class _Job:
    row: Row
    cores: tuple[int, ...]
    process: subprocess.Popen[str]
    errors: Any
    began: float

    def fail(self, why: str) -> dict[str, Any]:
        self.process.kill()
        self.process.wait()
        return {"failed": why}

    def report(self, line: str) -> dict[str, Any]:
        """The figures in `line`, or why there are none."""
        if line.startswith("{"):
            self.process.wait()
            return json.loads(line)
        status = self.process.wait()
        self.errors.seek(0)
        text = self.errors.read().strip()[-400:]
        return {"failed": f"ended with status {status}: {text}"}


class Machine:
    """Runs rows in `slots` processes, until `seconds` are over; then none begins, and those not ready are left out."""

    def __init__(self, slots: int, seconds: float | None, done: Done, say: Callable[[str], None]) -> None:
        cores = sorted(os.sched_getaffinity(0))
        each = max(1, len(cores) // slots)
        self.free = [tuple(cores[k * each : (k + 1) * each]) for k in range(min(slots, len(cores)))]
        self.end = time.monotonic() + seconds if seconds is not None else float("inf")
        self.done, self.say = done, say
        self.folder = tempfile.TemporaryDirectory(prefix="bench-")
        self.selector = selectors.DefaultSelector()
        self.waiting: list[Row] = []
        self.running: set[_Job] = set()
        self.parked: list[_Job] = []

    def run(self, rows: Sequence[Row], warm: bool) -> None:
        """Measure what there is time for; `done` is told of each row."""
        self.waiting, again = list(rows), []
        kept = WARM * (self.end - time.monotonic()) if warm and self.end < float("inf") else 0.0
        self.end -= kept
        while self.waiting or self.running or self.parked:
            while self.waiting and self.free and self._may_begin():
                self._begin(self.waiting.pop(0))
            if self.running and not self._is_late():
                self._listen(min(self.end - RESERVE * (1 + len(self.parked)) - time.monotonic(), 3600.0))
                continue
            for job in list(self.running):
                self._leave(job)
            again += self._time_all()
            if self._is_late():
                break
        if warm:
            self.end += kept
            self._again([row for row in again if row.modes != ("ablation",)])
        self.folder.cleanup()

    def _is_late(self) -> bool:
        return time.monotonic() > self.end - RESERVE * (1 + len(self.parked))

    def _may_begin(self) -> bool:
        if self._is_late() or len(self.running) + len(self.parked) >= MOST:
            return False
        return not (self.running or self.parked) or torch.cuda.mem_get_info()[0] > ROOM

    def _begin(self, row: Row) -> None:
        cores = self.free.pop()
        folder = Path(self.folder.name) / row.key().replace(" ", "-")
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the job
        process = subprocess.Popen(
            [*COMMAND, encoded(row)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            text=True, env=os.environ | child.caches(folder), preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip
        job = _Job(row, cores, process, errors, time.monotonic())
        self.running.add(job)
        self.selector.register(process.stdout, selectors.EVENT_READ, job)  # type: ignore[arg-type]

    def _listen(self, seconds: float) -> None:
        """Until some process says a line, or the time is over."""
        for key, _ in self.selector.select(max(seconds, 0.0)):
            job: _Job = key.data
            line = job.process.stdout.readline()  # type: ignore[union-attr]
            self._leave(job, kill=False)
            if line.strip() == "ready":
                self.parked.append(job)
                self.say(f"{job.row.key()}: ready after {time.monotonic() - job.began:.0f} s")
            else:
                self._tell(job, job.report(line))

    def _leave(self, job: _Job, kill: bool = True) -> None:
        self.selector.unregister(job.process.stdout)  # type: ignore[arg-type]
        self.running.discard(job)
        self.free.append(job.cores)
        if kill:
            job.fail("no time")
            self.say(f"{job.row.key()}: out of time after {time.monotonic() - job.began:.0f} s")

    def _time_all(self) -> list[Row]:
        rows = []
        for job in self.parked:
            job.process.stdin.write("go\n")  # type: ignore[union-attr]
            job.process.stdin.flush()  # type: ignore[union-attr]
            self._tell(job, job.report(job.process.stdout.readline()))  # type: ignore[union-attr]
            rows.append(job.row)
        self.parked.clear()
        return rows

    def _tell(self, job: _Job, found: dict[str, Any]) -> None:
        found["cores"] = len(job.cores)
        job.errors.close()
        if "failed" in found and len(job.row.modes) > 1:
            self.say(f"{job.row.key()}: {found['failed']}")
            self.waiting.append(replace(job.row, modes=job.row.modes[:1]))
            return
        self.done(job.row, found)

    def _again(self, rows: list[Row]) -> None:
        """First calls of framesmith with the caches that are there."""
        self.waiting = [replace(row, warm=True, peers=False, modes=row.modes[:1]) for row in rows]
        while self.waiting or self.running:
            while self.waiting and self.free and time.monotonic() < self.end:
                self._begin(self.waiting.pop(0))
            if time.monotonic() > self.end:
                for job in list(self.running):
                    self._leave(job)
                return
            self._listen(min(self.end - time.monotonic(), 3600.0))


__all__ = ["Machine"]
