"""Workers that run batches: a thread of this process, or a separate process, which may die without ending the service.

Each maps the package, so all of them share the pages of its weights.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import forkserver
from typing import Protocol

import numpy as np

from framesmith.package.binding import Model
from framesmith.serve.running import load, run, set_threads

_LEFT_TO_THE_PARENT = (signal.SIGINT, signal.SIGTERM)


class WorkerDied(Exception):
    """A worker's process ended in the middle of a batch."""


class Worker(Protocol):
    """One batch at a time is run by it. `run` raises `RequestRefused`, and `WorkerDied`, after which it must be started
    again."""

    async def start(self) -> None: ...

    async def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]: ...

    async def stop(self) -> None: ...


class ThreadWorker:
    """Runs batches by a function on a thread of this process."""

    def __init__(self, function: Callable[[Sequence[np.ndarray]], list[np.ndarray]]) -> None:
        self._function, self._executor = function, ThreadPoolExecutor(1, "framesmith-worker")

    async def start(self) -> None:
        """There is nothing to be started."""

    async def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of a batch. Raises `RequestRefused`."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._function, inputs)

    async def stop(self) -> None:
        """End it, after the batch that it runs."""
        self._executor.shutdown(wait=False)


class ProcessWorker:
    """Runs batches in a process of its own, on `threads` threads."""

    def __init__(self, path: str, threads: int) -> None:
        self._path, self._threads = path, threads
        self._executor: Executor | None = None

    async def start(self) -> None:
        """Start the process, or another one where it has died, and wait until it has loaded the package. Raises
        `WorkerDied`."""
        await self._answer(lambda: asyncio.to_thread(self._launch))
        await self._call(os.getpid)

    def _launch(self) -> None:
        """Make the process, a fork of one that has imported this module and has no threads."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _LEFT_TO_THE_PARENT)
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._executor = ProcessPoolExecutor(1, context, _begin, (self._path, self._threads))
        self._executor.submit(os.getpid)  # makes the process now, on this thread

    async def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of a batch. Raises `RequestRefused`, and `WorkerDied`, after which it must be started
        again."""
        return await self._call(_run, inputs)

    async def stop(self) -> None:
        """End it, after the batch that it runs."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)

    async def _call(self, function, *args):  # type: ignore[no-untyped-def]
        loop = asyncio.get_running_loop()
        return await self._answer(lambda: loop.run_in_executor(self._executor, function, *args))

    async def _answer(self, begin):  # type: ignore[no-untyped-def]
        try:
            return await begin()  # an executor that knows of the death raises at once
        except (RuntimeError, OSError, EOFError) as e:  # it ended, was shut down or could not be started
            raise WorkerDied(str(e)) from None


_loaded: Model
"""The package of this process, in a worker."""


def _begin(path: str, threads: int) -> None:
    """Set up a worker's process: it leaves signals to the service, and ends with it."""
    global _loaded
    for number in _LEFT_TO_THE_PARENT:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_service, daemon=True).start()
    _loaded = load(path)
    set_threads(threads)


def _end_with_the_service() -> None:
    service = multiprocessing.parent_process()
    if service is not None:
        service.join()
    os._exit(1)


def _run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    return run(_loaded, inputs)
