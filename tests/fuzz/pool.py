"""Runs many programs in forked processes, so that one that crashes the interpreter, or never ends, is a finding like
the others."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

import torch

from tests.fuzz.runner import Verdict

BATCH = 40
"""Programs that one process runs."""
SECONDS = 90.0
"""After so long without a verdict a process is ended, on a machine that has a core for each that runs."""

Job = Callable[[Any], Verdict]


def patience() -> float:
    """`SECONDS`, longer by as much as the machine is overloaded."""
    return SECONDS * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Worker:
    """A forked process that gives a verdict on each of some items, in order."""

    def __init__(self, job: Job, items: list[Any]) -> None:
        self.items = items
        self.done = 0
        self.last = time.monotonic()
        ours, theirs = multiprocessing.Pipe(duplex=False)
        self.pipe: Connection = ours
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _work(job, items, theirs)
        theirs.close()

    def verdicts(self) -> Iterator[tuple[Any, Verdict]]:
        """What has come in since; a process that ended too early gives the verdict on the item that it was at."""
        while self.done < len(self.items) and self.pipe.poll():
            try:
                verdict = self.pipe.recv()
            except EOFError:
                yield self._lost(f"ended by {self._status()}")
                return
            yield self._next(verdict)
        if self.done < len(self.items) and time.monotonic() - self.last > patience():
            os.kill(self.pid, signal.SIGKILL)
            self._status()
            yield self._lost(f"no answer in {time.monotonic() - self.last:.0f} s")
        elif self.done == len(self.items):
            self._status()

    def _next(self, verdict: Verdict) -> tuple[Any, Verdict]:
        item = self.items[self.done]
        self.done += 1
        self.last = time.monotonic()
        return item, verdict

    def _lost(self, why: str) -> tuple[Any, Verdict]:
        """The item at hand is lost; those after it are left for another process."""
        found = self._next(Verdict("crash", why))
        self.items, self.rest = self.items[:self.done], self.items[self.done:]
        return found

    rest: list[Any] = []

    def _status(self) -> str:
        self.pipe.close()
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def _work(job: Job, items: list[Any], pipe: Connection) -> None:
    """The child: never returns."""
    try:
        faulthandler.enable()
        torch.set_num_threads(1)
        for item in items:
            pipe.send(job(item))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(0)


def run_all(job: Job, items: Iterable[Any], jobs: int = 1, batch: int = BATCH) -> Iterator[tuple[Any, Verdict]]:
    """(item, verdict) of each item, as they come; an item is drawn when a process is there to run it."""
    drawn = iter(items)
    left: list[list[Any]] = []
    workers: list[Worker] = []
    while True:
        while len(workers) < jobs and (few := left.pop() if left else list(islice(drawn, batch))):
            workers.append(Worker(job, few))
        if not workers:
            return
        select.select([w.pipe for w in workers], [], [], 1.0)
        for worker in list(workers):
            yield from worker.verdicts()
            if worker.done == len(worker.items):
                workers.remove(worker)
                if worker.rest:
                    left.append(worker.rest)
