"""Judges the architectures of a suite in child processes, so that a crash or an endless loop costs one architecture."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Report = Callable[[str, dict[str, Any]], None]
MODELS_PER_PROCESS = 40


class _Child:
    """One worker; `judge` returns None where it died or took longer than `limit` seconds."""

    def __init__(self, arguments: Sequence[str], limit: float) -> None:
        command = [sys.executable, "-m", "benchmarks.breadth.worker", *arguments]
        # tiny models gain nothing by threads, and their spinning keeps others from working
        alone = {"OMP_NUM_THREADS": "1", **os.environ}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=subprocess.DEVNULL, text=True,
                                         env=alone, start_new_session=True)
        self._limit = limit
        self.answered = 0

    def judge(self, name: str) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        late = threading.Event()
        timer = threading.Timer(self._limit, lambda: (late.set(), self._end()))
        timer.start()
        try:
            self._process.stdin.write(name + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        self.answered += 1
        if line:
            return json.loads(line)
        if late.is_set():
            self._process.wait()
            return {"status": "time", "reason": f"longer than {self._limit:.0f} s"}
        return {"status": "crash", "reason": f"the process ended with {self._process.wait()}"}

    def _end(self) -> None:
        """Kill the worker, and the compilers that it has started."""
        os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def usable(self) -> bool:
        return self.answered < MODELS_PER_PROCESS and self._process.poll() is None

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def judged(arguments: Sequence[str], names: list[str], limit: float,
           jobs: int = 1) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, outcome) of each, as they come, by workers with these arguments; a child serves `MODELS_PER_PROCESS`
    names, fewer if one kills it."""
    waiting, done = queue.SimpleQueue[str](), queue.SimpleQueue[tuple[str, dict[str, Any]]]()
    for name in names:
        waiting.put(name)

    def work() -> None:
        child = _Child(arguments, limit)
        with contextlib.suppress(queue.Empty):
            while True:
                name = waiting.get_nowait()
                if not child.usable:
                    child.close()
                    child = _Child(arguments, limit)
                done.put((name, child.judge(name)))
        child.close()

    for _ in range(jobs):
        threading.Thread(target=work, daemon=True).start()
    for _ in names:
        yield done.get()
