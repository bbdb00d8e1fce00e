"""Many rows in little time: each in a process of its own, on one device and on cores of its own; compiling beside each
other, timed alone.

A process that has compiled what is to be timed says so; then all others of its device stand still until it is timed,
and those seconds do not count in their first calls. Devices do not wait for each other. A process says figures as they
become known, so that one that dies or has no more time has its first part. One that has nothing is tried again with
less: alone on the device if memory was short, else in its first mode. With `warm`, a second process then takes the
first calls of its row with the caches that the first one left. A row that is nothing but such calls has two processes,
of which the first fills the caches.
"""

from __future__ import annotations

import os
import selectors
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import ceilings
from benchmarks.gpu.process import Process
from benchmarks.gpu.row import Row

Done = Callable[[Row, dict[str, Any]], None]
CORES = 3
"""Of a slot, if nobody says how many slots there are."""
ROW, AGAIN = 40.0, 20.0
"""Seconds that must be left for a row, or the second process of one, to begin."""
TIMING = 4.0
"""Seconds that the timing of a row may take."""
LONGEST = 60.0
"""Seconds after which a process that has the device for itself is ended: the others stand still."""
ROOM = 40 << 30
"""Bytes of a device's memory that must be free for another process to begin there."""
LOST = "OutOfMemoryError"


@dataclass(slots=True, eq=False)
class Device:
    """`free`: the cores of the slots in which nothing runs. `timed`: the process that has the device for itself,
    `since` when; `ready`: those that wait for it."""

    index: int
    name: str
    limits: dict[str, float]
    free: list[tuple[int, ...]]
    running: list[Process] = field(default_factory=list)
    ready: deque[Process] = field(default_factory=deque)
    timed: Process | None = None
    since: float = 0.0

    def takes(self, row: Row) -> bool:
        """Whether a process of `row` may begin here."""
        if not self.free or any(p.row.alone for p in self.running):
            return False
        return not self.running or (not row.alone and torch.cuda.mem_get_info(self.index)[0] > ROOM)

    def let_time(self) -> None:
        """The next that is ready has the device, if nobody has."""
        if self.timed is not None:
            return
        if not self.ready:
            for each in self.running:
                each.resume()
            return
        self.timed, self.since = self.ready.popleft(), time.monotonic()
        for each in self.running:
            if each is self.timed:
                each.resume()
            elif each not in self.ready:
                each.stop()
        self.timed.go()

    def forget(self, process: Process) -> None:
        """It has been timed, or has ended."""
        if self.timed is process:
            self.timed = None
        if process in self.ready:
            self.ready.remove(process)


def devices(number: int, slots: int | None) -> list[Device]:
    """The first `number` devices, with the cores shared evenly."""
    torch.backends.cuda.matmul.allow_tf32 = True
    names = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(number)))
    cores = sorted(os.sched_getaffinity(0))
    slots = max(1, min(slots or len(cores) // (CORES * number), len(cores) // number))
    each = max(1, len(cores) // (number * slots))
    found = []
    for k, name in enumerate(names.split(",")[:number]):
        with torch.cuda.device(k):
            limits = ceilings.measure()
        torch.cuda.empty_cache()
        shares = [tuple(cores[n * each : (n + 1) * each]) for n in range(k * slots, (k + 1) * slots)]
        found.append(Device(k, name, limits, shares))
    return found


class Machine:
    """Runs rows on `devices` until `seconds` are over. A peer's contender that has compiled for `patience` seconds is
    left."""

    def __init__(
        self, devices: list[Device], seconds: float | None, patience: float | None, done: Done,
        say: Callable[[str], None]
    ) -> None:
        self.devices, self.done, self.say = devices, done, say
        self.end = time.monotonic() + (seconds if seconds is not None else float("inf"))
        self.patience = patience if patience is not None else float("inf")
        self.folder = tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)
        self.numbers = count()
        self.selector = selectors.DefaultSelector()
        self.waiting: deque[tuple[Row, Path]] = deque()
        self.filled: set[Path] = set()  # caches that a process has left
        self.warm = False

    def run(self, rows: Sequence[Row], warm: bool) -> None:
        """Measure what there is time for, in this order; `done` is told of each row."""
        self.waiting, self.warm = deque((row, self._empty()) for row in rows), warm
        while True:
            self._begin_all()
            if not any(device.running for device in self.devices):
                break
            self._listen()
            self._look_at_the_clock()
        for row, _ in self.waiting:
            self.say(f"{row}: no time")
        self.folder.cleanup()

    def _empty(self) -> Path:
        return Path(self.folder.name) / str(next(self.numbers))

    def _begin_all(self) -> None:
        for row, caches in list(self.waiting):
            if self.end - time.monotonic() < (AGAIN if row.warm else ROW):
                continue
            takers = [device for device in self.devices if device.takes(row)]
            if takers:
                self.waiting.remove((row, caches))
                self._begin(row, caches, min(takers, key=lambda device: len(device.running)))
            elif not any(device.free for device in self.devices):
                break

    def _begin(self, row: Row, caches: Path, device: Device) -> None:
        process = Process(row, device.limits, device.name, device.free.pop(), caches)
        device.running.append(process)
        self.selector.register(process.popen.stdout, selectors.EVENT_READ, (device, process))  # type: ignore[arg-type]
        if device.timed is not None:
            process.stop()

    def _listen(self) -> None:
        """To what processes say, for half a second at most."""
        for key, _ in self.selector.select(0.5):
            device, process = key.data
            for what in process.lines():
                if "ready" in what:
                    device.ready.append(process)
                    self.say(f"{process.row}: ready after {process.age():.0f} s")
                if "timed" in what:
                    device.forget(process)
            if process.silent:
                self._ended(device, process)
            device.let_time()

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        if now > self.end:  # all at once: then each is told of while the others go
            for process in [process for device in self.devices for process in device.running]:
                process.kill()
        for device in self.devices:
            if device.timed is not None and now > device.since + LONGEST:
                self.say(f"{device.timed.row} hangs: {device.timed.stands()}")
                self._ended(device, device.timed, f"timed for {LONGEST:.0f} s")
            for process in list(device.running):
                if now > self.end:
                    self._ended(device, process, "no time")
                elif now > self.end - TIMING * (1 + len(device.running)) or process.compiles_for() > self.patience:
                    process.hurry()

    def _ended(self, device: Device, process: Process, why: str | None = None) -> None:
        self.selector.unregister(process.popen.stdout)  # type: ignore[arg-type]
        device.running.remove(process)
        device.free.append(process.cores)
        device.forget(process)
        found, row = process.end(why), process.row
        self.say(f"{row}: {found.get('failed', 'ended')} after {process.age():.0f} s")
        less = None if why or row.warm else with_less(row, found)
        first = process.caches not in self.filled
        self.filled.add(process.caches)
        if row.warm and first:  # it filled the caches
            self.waiting.appendleft((row, process.caches))
        elif less is None or "failed" not in found:
            self.done(row, found)
        if less is not None:
            self.waiting.insert(len(self.waiting) if less.alone else 0, (less, self._empty()))
        elif self.warm and row.has_first and "failed" not in found:
            self.waiting.appendleft((replace(row, warm=True, peers=False, modes=row.modes[:1]), process.caches))
        device.let_time()


def with_less(row: Row, found: dict[str, Any]) -> Row | None:
    """What to try after `found`: nothing if that is all there is to know."""
    texts = [figures["failed"] for figures in (found, *found.get("peers", {}).values()) if "failed" in figures]
    if not row.alone and any(LOST in text for text in texts):
        return replace(row, alone=True)
    if "failed" in found and len(row.modes) > 1:
        return replace(row, modes=row.modes[:1])
    return None
