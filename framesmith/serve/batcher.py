"""Requests in a queue with limits, gathered into batches for workers.

A worker takes the oldest request and those that can be joined with it, so batches grow with the load by themselves. It
waits for at most `delay` while there are fewer requests than when the last batch ended: clients that had their answers
then are about to ask again, and one that is alone waits for nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from framesmith.serve.metrics import Metrics
from framesmith.serve.padding import Group, Padding, Sizes
from framesmith.serve.workers import Worker, WorkerDied
from framesmith.util.errors import RequestRefused

INTERNAL, UNAVAILABLE, TIMED_OUT = 500, 503, 504
_ATTEMPTS = 2
"""Runs of a request whose worker dies, before it is thought to be the reason."""
_RESTART_PAUSE = 1.0
_RECENT = .2
"""The share of the last batch in the moving average of the time that a request takes."""
_log = logging.getLogger("framesmith.serve")


@dataclass(frozen=True)
class Limits:
    """`rows`: of a batch; a larger request is run by itself. `delay`, `wait` and `timeout` are seconds; a request that
    would wait longer than `wait` for a worker is refused."""

    rows: int = 32
    queue: int = 128
    delay: float = .002
    wait: float = 5.0
    timeout: float = 30.0


@dataclass(eq=False, repr=False)
class _Pending:
    inputs: Sequence[np.ndarray]
    sizes: Sizes
    group: Group
    rows: int
    answer: asyncio.Future[list[np.ndarray]]
    arrived: float = field(default_factory=time.perf_counter)
    attempts: int = 0


class Batcher:
    """Of one package; all of it runs on one event loop."""

    def __init__(self, padding: Padding, workers: Sequence[Worker], limits: Limits, metrics: Metrics) -> None:
        self._padding, self._workers, self._limits, self._metrics = padding, workers, limits, metrics
        self._rows = padding.most_rows(limits.rows)
        self._queue: deque[_Pending] = deque()
        metrics.queue.set_function(lambda: len(self._queue))
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self._accepted = 0
        self._expected = self._rows
        self._seconds = 0.0
        self._draining = False

    def start(self) -> None:
        """Let the workers, which have been started, take batches."""
        self._tasks = [asyncio.create_task(self._serve(worker)) for worker in self._workers]

    async def drain(self) -> None:
        """Refuse new requests, and return when all that were accepted have their answer."""
        self._draining = True
        async with self._changed:
            await self._changed.wait_for(lambda: not self._accepted)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def infer(self, inputs: Sequence[np.ndarray], sizes: Sizes) -> list[np.ndarray]:
        """Return the outputs for one request. Raises `RequestRefused`."""
        group = self._padding.group(sizes)
        if self._draining:
            raise RequestRefused(UNAVAILABLE, "the service is shutting down")
        if len(self._queue) >= self._limits.queue:
            raise RequestRefused(UNAVAILABLE, f"the queue is full: {len(self._queue)} requests wait")
        if (wait := self._wait()) > self._limits.wait:
            raise RequestRefused(UNAVAILABLE, f"the queue is full: {len(self._queue)} requests wait, which takes about "
                                              f"{wait:.1f} seconds")
        pending = _Pending(inputs, sizes, group, sizes[self._padding.batch] if self._padding.batch else 1,
                           asyncio.get_running_loop().create_future())
        self._accepted += 1
        self._queue.append(pending)
        try:
            async with self._changed:
                self._changed.notify_all()
            return await asyncio.wait_for(pending.answer, self._limits.timeout)
        except TimeoutError:
            raise RequestRefused(TIMED_OUT, f"no answer within {self._limits.timeout:g} seconds") from None
        finally:
            self._accepted -= 1
            if pending in self._queue:
                self._queue.remove(pending)
            async with self._changed:
                self._changed.notify_all()

    def _wait(self) -> float:
        """Return the seconds that the requests in the queue are expected to take."""
        return len(self._queue) * self._seconds / len(self._workers)

    async def _serve(self, worker: Worker) -> None:
        """Run batches on a worker, for ever; start it again when it dies."""
        self._metrics.workers.inc()
        while True:
            batch = await self._take()
            try:
                await self._answer(worker, batch)
                self._expected = len(batch) + len(self._queue)
            except WorkerDied:
                self._metrics.workers.dec()
                _log.warning("a worker died; it is started again")
                await self._again(batch)
                await self._restart(worker)
                self._metrics.workers.inc()
            except Exception:  # an error of ours: the requests are answered, and the worker goes on
                _log.exception("a batch failed")
                for pending in batch:
                    self._refuse(pending, RequestRefused(INTERNAL, "internal error; the service's log has it"))

    async def _take(self) -> list[_Pending]:
        """Return the oldest request, and those of its group that fit into one batch with it."""
        free = time.perf_counter()
        async with self._changed:
            while True:
                await self._changed.wait_for(lambda: self._queue)
                left = max(free, self._queue[0].arrived) + self._limits.delay - time.perf_counter()
                batch = self._joinable()
                if left <= 0 or len(self._queue) >= self._expected or sum(p.rows for p in batch) >= self._rows:
                    break
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), left)
            for pending in batch:
                self._queue.remove(pending)
        return batch

    def _joinable(self) -> list[_Pending]:
        first, *others = self._queue
        batch, rows = [first], first.rows
        for pending in others:
            if pending.group == first.group and rows + pending.rows <= self._rows:
                batch.append(pending)
                rows += pending.rows
        return batch

    async def _answer(self, worker: Worker, batch: Sequence[_Pending]) -> None:
        """Run a batch and give the answers. Where it is refused, its requests are run one by one, so that the error is
        that of the request which causes it. Raises `WorkerDied`."""
        inputs = self._padding.join([(p.inputs, p.sizes) for p in batch])
        begin = time.perf_counter()
        for pending in batch:
            pending.attempts += 1
            self._metrics.waited.observe(begin - pending.arrived)
        self._metrics.rows.observe(sum(p.rows for p in batch))
        self._metrics.joined.observe(len(batch))
        given = sum(x.size for p in batch for x in p.inputs)
        self._metrics.elements.labels("requests").inc(given)
        self._metrics.elements.labels("padding").inc(max(0, sum(x.size for x in inputs) - given))
        try:
            outputs = await worker.run(inputs)
        except RequestRefused as e:
            if len(batch) == 1:
                self._refuse(batch[0], e)
                return
            self._metrics.fallbacks.labels("refused batch").inc(len(batch))
            for pending in batch:
                await self._answer(worker, [pending])
            return
        seconds = time.perf_counter() - begin
        self._metrics.run.observe(seconds)
        self._seconds += ((seconds / len(batch)) - self._seconds) * (_RECENT if self._seconds else 1)
        for pending, parts in zip(batch, self._padding.split(outputs, [p.sizes for p in batch]), strict=True):
            if not pending.answer.done():
                pending.answer.set_result(parts)

    def _refuse(self, pending: _Pending, error: RequestRefused) -> None:
        if not pending.answer.done():
            pending.answer.set_exception(error)

    async def _again(self, batch: Sequence[_Pending]) -> None:
        """Put the requests of a dead worker back to the head of the queue; refuse those that were there before."""
        async with self._changed:
            for pending in reversed(batch):
                if pending.answer.done():
                    continue
                if pending.attempts < _ATTEMPTS:
                    self._metrics.fallbacks.labels("worker died").inc()
                    self._queue.appendleft(pending)
                else:
                    self._refuse(pending, RequestRefused(
                        INTERNAL, f"{_ATTEMPTS} workers died while they ran the request"))
            self._changed.notify_all()

    async def _restart(self, worker: Worker) -> None:
        while True:
            try:
                self._metrics.restarts.inc()
                return await worker.start()
            except WorkerDied as e:
                _log.error("a worker cannot be started: %s", e)
                await asyncio.sleep(_RESTART_PAUSE)
