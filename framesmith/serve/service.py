"""A package as a service: all that an engine sees."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from framesmith.serve.batcher import UNAVAILABLE, Batcher, Limits
from framesmith.serve.interface import Interface
from framesmith.serve.metrics import Metrics
from framesmith.serve.padding import Padding
from framesmith.serve.probe import check_joining, example, sizes_for
from framesmith.serve.running import load, run
from framesmith.serve.workers import ProcessWorker, ThreadWorker, Worker, WorkerDied
from framesmith.util.errors import PackageError, RequestRefused

_log = logging.getLogger("framesmith.serve")


@dataclass(frozen=True)
class Options:
    """`workers`: processes; 0 runs batches in this one, `at_once` at the same time. `padded`, `fills`, `buckets`: see
    `Padding`. `warm_up`: sizes of dimensions by name, once for each run; others have their least size."""

    workers: int = 0
    at_once: int = 2
    batching: bool = True
    padded: Sequence[str] = ()
    fills: Mapping[str, float] = field(default_factory=dict)
    buckets: Mapping[str, Sequence[int]] = field(default_factory=dict)
    warm_up: Sequence[Mapping[str, int]] = ()
    limits: Limits = field(default_factory=Limits)


class Service:
    """Requests are NumPy arrays by name, and so are answers. `ready` from the end of the warm-up to the shutdown."""

    def __init__(self, path: str | os.PathLike[str], options: Options, metrics: Metrics,
                 workers: Sequence[Worker] = ()) -> None:
        """`workers` run batches in place of those that `options` ask for. Raises `PackageError` for a file that cannot
        be served so."""
        model = load(path)
        self.interface = Interface.from_manifest(model.manifest)
        self.ready = False
        self._options, self._metrics = options, metrics
        batch = self.interface.batch_dimension() if options.batching else None
        if batch is None:
            _log.warning("requests are run one by one: %s", "no dimension is the first of every input and output"
                         if options.batching else "batching is off")
        self._padding = Padding(self.interface, batch, options.padded, options.fills, options.buckets)
        processors = len(os.sched_getaffinity(0))
        processes = [ProcessWorker(os.fspath(path), max(1, processors // options.workers))
                     for _ in range(options.workers)]
        self._workers: Sequence[Worker] = workers or processes or [
            ThreadWorker(functools.partial(run, model)) for _ in range(min(options.at_once, processors))]
        self._batcher: Batcher | None = None

    async def start(self) -> None:
        """Start the workers, warm them up and check what is joined and padded. Raises `PackageError`."""
        try:
            await asyncio.gather(*[worker.start() for worker in self._workers])
            await self._check()
            await asyncio.gather(*[self._warm_up(worker) for worker in self._workers])
        except RequestRefused as e:
            raise PackageError(f"the warm-up failed: {e}") from None
        except WorkerDied:
            raise PackageError("a worker died in the warm-up") from None
        self._batcher = Batcher(self._padding, self._workers, self._options.limits, self._metrics)
        self._batcher.start()
        self.ready = True

    async def _check(self) -> None:
        given = self._options.warm_up[0] if self._options.warm_up else {}
        await check_joining(self._padding, self._workers[0].run, given)

    async def _warm_up(self, worker: Worker) -> None:
        rows = self._padding.most_rows(self._options.limits.rows)
        for given in self._options.warm_up or ({},):
            sizes = sizes_for(self._padding, given, rows)
            begin = time.perf_counter()
            await worker.run(example(self.interface, sizes))
            _log.info("warmed up %s in %.3f s", sizes, time.perf_counter() - begin)

    async def infer(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs by name. Raises `RequestRefused`, which has HTTP's status and says what is wrong."""
        begin, status = time.perf_counter(), 500
        try:
            if self._batcher is None:
                raise RequestRefused(UNAVAILABLE, "the service is not ready")
            inputs = self.interface.ordered(arrays)
            outputs = await self._batcher.infer(inputs, self.interface.sizes(inputs))
            status = 200
        except RequestRefused as e:
            status = e.status
            raise
        finally:
            self._metrics.requests.labels(str(status)).inc()
            self._metrics.seconds.observe(time.perf_counter() - begin)
        return {tensor.name: x for tensor, x in zip(self.interface.outputs, outputs, strict=True)}

    async def stop(self) -> None:
        """Refuse new requests, answer those that were accepted, and end the workers."""
        self.ready = False
        if self._batcher is not None:
            await self._batcher.drain()
        for worker in self._workers:
            await worker.stop()
