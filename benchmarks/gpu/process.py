"""A process that measures a row: what it says, and how it is stopped for a while, hurried and ended, with all that it
has started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import child
from benchmarks.gpu.row import Figures, Row

COMMAND = (sys.executable, "-m", "benchmarks.gpu.contest")
Span = tuple[float, float]
LEAVING, PARTING = 0.5, 20.0
"""Seconds in which a process that was killed should be gone, and one that has said all."""
TELLING, TEXT = 1.0, 400
"""Seconds in which one that hangs says where it stands, and how many characters of its errors are kept; of those some
more."""


def encoded(row: Row) -> str:
    """The first argument of `contest.main`."""
    return json.dumps(asdict(row))


class Process:
    """`found`: the last figures that it said. `late`: the contender that it is compiling beside them, and since when.
    `silent`: it will say nothing more. The compilers' `caches` are below a folder."""

    def __init__(self, row: Row, limits: dict[str, float], device: str, cores: tuple[int, ...], caches: Path) -> None:
        self.row, self.cores, self.caches = row, cores, caches
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed at the end
        self.popen = subprocess.Popen(
            [*COMMAND, encoded(row), json.dumps(limits)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.errors,
            env=os.environ | child.caches(caches) | {"CUDA_VISIBLE_DEVICES": device}, start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip
        self.began = time.monotonic()
        self.found: Figures | None = None
        self.late: tuple[str, float] | None = None
        self.hurried = self.silent = False
        self.stopped_at: float | None = None
        self.stops: list[Span] = []
        self._text = b""

    def age(self) -> float:
        return time.monotonic() - self.began

    def compiles_for(self) -> float:
        """Seconds since the contender began that it is compiling beside its figures."""
        return self._moving(self.late[1],
                            time.monotonic()) if self.late is not None and self.stopped_at is None else 0.0

    def lines(self) -> list[dict[str, Any]]:
        """What it has said since the last time."""
        text = os.read(self.popen.stdout.fileno(), 1 << 20)  # type: ignore[union-attr]
        self.silent = not text
        self._text += text
        *whole, self._text = self._text.split(b"\n")
        said = [json.loads(line) for line in whole]
        for what in said:
            if "begins" in what:
                self.late = (what["begins"], time.monotonic())
            if "figures" in what:
                self.found, self.late = what["figures"], None
        return said

    def go(self) -> None:
        """The device is its own."""
        with contextlib.suppress(BrokenPipeError):
            self.popen.stdin.write(b"go\n")  # type: ignore[union-attr]
            self.popen.stdin.flush()  # type: ignore[union-attr]

    def stop(self) -> None:
        """It stands still, and so does all that it has started."""
        if self.stopped_at is None:
            self.stopped_at = time.monotonic()
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self.stopped_at is not None:
            self.stops.append((self.stopped_at, time.monotonic()))
            self.stopped_at = None
            self._signal(signal.SIGCONT)

    def hurry(self) -> None:
        """Nothing more is to be compiled than what there are no figures without; one that has none yet would not
        understand."""
        if not self.hurried and self.found is not None:
            self.hurried = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.popen.pid, signal.SIGUSR1)

    def end(self, why: str | None = None) -> Figures:
        """Its figures, or why there are none."""
        if why is not None:
            self.kill()
        status = self._status(PARTING if why is None else LEAVING)
        self.kill()  # those that it left behind
        self.errors.seek(0)
        text = self.errors.read().strip()[-TEXT:]
        for file in (self.popen.stdin, self.popen.stdout, self.errors):
            with contextlib.suppress(BrokenPipeError):
                file.close()  # type: ignore[union-attr]
        if self.found is None:
            return {"failed": why or f"ended with status {status}: {text}"}
        return self._settled(self.found, why, status, text)

    def stands(self) -> str:
        """Where each of its threads stands: of one that hangs."""
        self.errors.seek(0, os.SEEK_END)
        begin = self.errors.tell()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.popen.pid, signal.SIGUSR2)
        time.sleep(TELLING)
        self.errors.seek(begin)
        return self.errors.read()[: 10 * TEXT]

    def kill(self) -> None:
        """It and all that it has started."""
        self._signal(signal.SIGKILL)

    def _status(self, patience: float) -> int | None:
        """With which it ended; what holds much of a device's memory may take its time to."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.popen.wait(patience)
        return None

    def _settled(self, found: Figures, why: str | None, status: int | None, text: str) -> Figures:
        """Spans become seconds in which it did not stand still; the contender that it did not come to the end of says
        so."""
        for figures in found.get("peers", {}).values():
            if "span" in figures:
                figures["first"] = self._moving(*figures.pop("span"))
            if "late" in figures:
                figures["late"] = self._moving(*figures["late"])
        if self.late is not None:
            label, since = self.late
            seconds = self._moving(since, time.monotonic())
            found["peers"][label] = ({"late": seconds} if why
                                     or self.hurried else {"failed": f"ended with status {status}: {text}"})
        return {**found, "cores": len(self.cores)}

    def _moving(self, begin: float, end: float) -> float:
        return end - begin - sum(max(0.0, min(end, b) - max(begin, a)) for a, b in self.stops)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, number)
