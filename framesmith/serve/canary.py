"""Two versions of a model side by side: a new one is compared with the one that serves, and then promoted or rolled
back by itself.

A share of the requests goes to both. The first answer that differs, or that the new version refuses alone, ends the
trial; so does one that the new version gives more slowly than allowed, on the median.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from framesmith.serve.batcher import UNAVAILABLE
from framesmith.serve.probe import difference
from framesmith.serve.service import Service
from framesmith.util.errors import PackageError, RequestRefused

TRIAL, PROMOTED, ROLLED_BACK = "trial", "promoted", "rolled back"
Answer = dict[str, np.ndarray] | RequestRefused
_log = logging.getLogger("framesmith.serve")


@dataclass(frozen=True)
class Trial:
    """`share` of the requests are compared, and `requests` are enough. `move`: the new version answers these; otherwise
    it is only compared. `slowdown`: what the ratio of the median times may be."""

    share: float = .1
    requests: int = 200
    move: bool = False
    slowdown: float = 1.25


class Canary:
    """Two services behind the interface of one: the state of the trial selects which answers, from the next request on.
    `stable` has served until now."""

    def __init__(self, stable: Service, candidate: Service, trial: Trial) -> None:
        """Raises `PackageError` if they do not take and give the same."""
        if not 0 < trial.share <= 1:
            raise PackageError(f"a share of {trial.share} of the requests cannot be compared")
        one, other = stable.interface, candidate.interface
        if (one.inputs, one.outputs, one.dimensions) != (other.inputs, other.outputs, other.dimensions):
            raise PackageError("the new version has other inputs, outputs or dimensions than the one that serves")
        self.interface = one
        self.state, self.reason = TRIAL, ""
        self._stable, self._candidate, self._trial = stable, candidate, trial
        self._due = 0.0
        self._times: list[tuple[float, float]] = []
        self._compared: set[asyncio.Task[Answer]] = set()

    @property
    def ready(self) -> bool:
        """Both services are ready."""
        return self._stable.ready and self._candidate.ready

    async def start(self) -> None:
        """Start both. Raises `PackageError`, for either."""
        await self._stable.start()
        await self._candidate.start()

    async def infer(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs by name. Raises `RequestRefused`."""
        if self.state != TRIAL:
            return await (self._candidate if self.state == PROMOTED else self._stable).infer(arrays)
        self._due += self._trial.share
        if self._due < 1:
            return await self._stable.infer(arrays)
        self._due -= 1
        first, second = (self._candidate, self._stable) if self._trial.move else (self._stable, self._candidate)
        answer, seconds = await _timed(first, arrays)
        task = asyncio.create_task(self._compare(arrays, answer, seconds, second))
        self._compared.add(task)
        task.add_done_callback(self._compared.discard)
        if self._trial.move and isinstance(answer, RequestRefused):
            answer = await task
        if isinstance(answer, RequestRefused):
            raise answer
        return answer

    async def _compare(self, arrays: Mapping[str, np.ndarray], answer: Answer, seconds: float, second: Service
                       ) -> Answer:
        """Compare both versions' answers, decide the trial once there is enough to judge by, and return the second
        one's."""
        pairs = (answer, seconds), await _timed(second, arrays)
        (expected, stable), (found, candidate) = reversed(pairs) if self._trial.move else pairs
        other = pairs[1][0]
        if self.state != TRIAL or isinstance(expected, RequestRefused):
            return other
        if isinstance(found, RequestRefused):
            if found.status != UNAVAILABLE:
                self.decide(ROLLED_BACK, f"it refuses a request that the other one answers: {found}")
            return other
        if differs := difference(self.interface, list(expected.values()), list(found.values())):
            self.decide(ROLLED_BACK, f"an answer differs: {differs}")
            return other
        self._times.append((stable, candidate))
        if len(self._times) >= self._trial.requests:
            self._decide_by_time()
        return other

    def _decide_by_time(self) -> None:
        stable, candidate = (statistics.median(times) for times in zip(*self._times))
        said = (f"{len(self._times)} answers are the same; the median is {candidate * 1e3:.3g} ms, and "
                f"{stable * 1e3:.3g} ms before")
        if candidate > stable * self._trial.slowdown:
            self.decide(ROLLED_BACK, f"{said}, which is more than {self._trial.slowdown:g} times as long")
        else:
            self.decide(PROMOTED, said)

    def decide(self, state: str, reason: str) -> None:
        """End the trial. The next request is answered accordingly."""
        self.state, self.reason = state, reason
        _log.log(logging.INFO if state == PROMOTED else logging.WARNING, "the new version is %s: %s", state, reason)

    def report(self) -> dict[str, Any]:
        """Return the state of the trial, why it ended, and what was measured."""
        medians = [statistics.median(times) * 1e3 for times in zip(*self._times)] if self._times else [None, None]
        return {"state": self.state, "reason": self.reason, "compared": len(self._times),
                "median_ms": dict(zip(("stable", "candidate"), medians, strict=True)), "trial": asdict(self._trial)}

    async def stop(self) -> None:
        """Answer what was accepted, and end both."""
        await asyncio.gather(self._stable.stop(), self._candidate.stop())
        await asyncio.gather(*self._compared)


async def _timed(service: Service, arrays: Mapping[str, np.ndarray]) -> tuple[Answer, float]:
    begin = time.perf_counter()
    try:
        answer: Answer = await service.infer(arrays)
    except RequestRefused as e:
        answer = e
    return answer, time.perf_counter() - begin
