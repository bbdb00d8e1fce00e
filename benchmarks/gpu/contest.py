"""A row measured, in a process of its own: eager and framesmith first, then torch.compile, so that one that ends early
has its first part.

    python -m benchmarks.gpu.contest ROW LIMITS        # both in JSON; see `main`
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import framesmith
from benchmarks.gpu import kernels, work
from benchmarks.gpu.measure import height, interleaved, living, quiet
from benchmarks.gpu.row import KERNELS, Contenders, Figures, Row, contenders
from benchmarks.gpu.task import Task, compiled, error
from benchmarks.run import failure

Call = Callable[[], Any]


class OutOfTimeError(BaseException):
    """No `Exception`: what is interrupted must not take it for an error of its own."""


class Wire:
    """The process that asks for the row: lines of JSON go out; a line comes in when the device is ours alone.

    SIGUSR1 says that there is no time for more contenders: one that is being compiled `within` is left where it is.
    SIGUSR2 asks where each thread stands.
    """

    def __init__(self) -> None:
        self.answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what a library prints is no answer
        self.hurried = self.inside = False
        signal.signal(signal.SIGUSR1, self._hurry)
        faulthandler.register(signal.SIGUSR2)

    def _hurry(self, *_: object) -> None:
        self.hurried = True
        if self.inside:
            self.inside = False
            raise OutOfTimeError

    def say(self, **what: Any) -> None:
        print(json.dumps(what), file=self.answers, flush=True)

    def ready(self) -> None:
        """Until the device is ours alone."""
        self.say(ready=True)
        sys.stdin.readline()

    @contextmanager
    def within(self, label: str) -> Iterator[None]:
        """What may be left unfinished."""
        self.say(begins=label)
        self.inside = True
        try:
            yield
        finally:
            self.inside = False


@contextmanager
def _said(figures: Figures) -> Iterator[None]:
    """Framesmith's warnings within are noted."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    if found := [str(w.message)[:300] for w in said if "framesmith" in str(w.message)]:
        figures["refused"] = found


def prepare(start: Task, who: tuple[str, str, dict[str, Any]], true: list[torch.Tensor] | None,
            figures: Figures) -> Call:
    """The contender's call, after its first one (`span`: from when to when that was). Without `true` that is all."""
    peer, mode, options = who
    own = start.copy()
    before, idle, others = living(), _idle(), framesmith.cuda_graph_memory(idle=True) if peer == "framesmith" else 0
    began = time.monotonic()
    with _said(figures):
        call = own.step(compiled(peer, mode, own.model, options))
        call()
        torch.cuda.synchronize()
    figures["span"] = [began, time.monotonic()]
    if true is not None:
        figures["error"] = error(own.results(call), true)
        apart = framesmith.cuda_graph_memory(idle=True) - others if peer == "framesmith" else 0
        figures["peak"] = height(call) - before - apart
        figures["held"] = living() - before - apart
        figures["pool"] = max(0, _idle() - idle) + apart
    return call


def _idle() -> int:
    """Bytes that are set aside though nothing is in them: pools of CUDA graphs."""
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


class Contest:
    """The contenders of a row: what is known of each in `peers`, and the calls of those that run."""

    def __init__(self, row: Row, limits: dict[str, float], wire: Wire) -> None:
        self.row, self.limits, self.wire = row, limits, wire
        self.start = Task.named(row.model, row.training, row.precision)
        self.true = None if row.warm else _when_there_is_room(self.start.in_double)
        self.peers: dict[str, Figures] = {}
        self.calls: dict[str, Call] = {}

    def run(self) -> None:
        """All of the row, told as it becomes known."""
        ours = contenders(self.row)
        theirs = {label: ours.pop(label) for label in list(ours) if ours[label][0] == "torch.compile"}
        self.prepare(ours)
        if self.row.warm:
            self.wire.say(figures={"peers": self.peers})
            return
        found = {"ceilings": self.limits, **_tried("work", self.work)}
        self.time(found)
        if "default" in self.row.modes:
            found |= _tried("explained", self.explained)
            self.wire.say(figures={"peers": self.peers, **found})
        if theirs:
            _load_peer()
            self.prepare(theirs)
            if theirs.keys() & self.calls.keys():
                self.time(found)
            else:
                self.wire.say(figures={"peers": self.peers, **found})

    def prepare(self, whom: Contenders) -> None:
        """First calls, errors and memory, until there is no more time."""
        for label, who in whom.items():
            if who[0] == "torch.compile" and self.wire.hurried:
                break
            figures = self.peers[label] = {}
            torch.cuda.empty_cache()
            began = time.monotonic()
            try:
                if who[0] == "torch.compile":
                    with self.wire.within(label):
                        self.calls[label] = prepare(self.start, who, self.true, figures)
                else:
                    self.calls[label] = prepare(self.start, who, self.true, figures)
            except OutOfTimeError:
                self.peers[label] = {"late": [began, time.monotonic()]}
            except Exception as problem:
                figures |= failure(problem)
            if who[1] != self.row.modes[0]:  # kernels of the first mode are there already
                figures.pop("span", None)

    def time(self, found: Figures) -> None:
        """Every contender in turn, on a device that nothing else uses."""
        torch.cuda.empty_cache()
        self.wire.ready()
        found["quiet"] = quiet(self.limits["copy"])
        for label, timing in interleaved(self.calls, self.row.rounds).items():
            self.peers[label] |= {"seconds": timing.median, "low": timing.low, "high": timing.high}
        eager = self.peers["eager"]
        for label in self.calls:
            figures = self.peers[label]
            figures["speedup"] = eager["seconds"] / figures["seconds"]
            figures["memory"] = figures["peak"] / max(eager["peak"], 1)
            figures["errors"] = figures["error"] / max(eager["error"], 1e-12)
        self.wire.say(timed=True, figures={"peers": self.peers, **found})

    def work(self) -> Figures:
        """What a call must do at least."""
        found = work.least(self.start.step(self.start.model), self.start.inputs, self.limits)
        for leaf in self.start.leaves():
            leaf.grad = None
        return {"work": found}

    def explained(self) -> Figures:
        """How many graphs framesmith makes, and how many breaks are between them."""
        gradients, casts = self.start.contexts()
        with gradients, casts:
            found = framesmith.explain(self.start.model)(*self.start.inputs)
        return {"graphs": found.graph_count, "breaks": found.break_count, "in eager": len(found.refusals)}


def _load_peer() -> None:
    """What torch.compile imports at its first use does not count in its first call."""
    import torch._dynamo
    import torch._inductor.compile_fx  # noqa: F401


def _when_there_is_room(make: Callable[[], Any], tries: int = 8) -> Any:
    """What takes most memory takes it for a short time only, here and in the processes beside this one."""
    for _ in range(tries - 1):
        try:
            return make()
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
        time.sleep(4.0)
    return make()


def _tried(name: str, make: Callable[[], Figures]) -> Figures:
    """What `make` makes; of an error its text: it costs the row nothing else."""
    try:
        return make()
    except Exception as problem:
        return {f"{name} failed": failure(problem)["failed"]}


def main(text: str, limits: str) -> None:
    """Say "ready" when what is compiled is to be timed, go on when a line comes in; say figures whenever there are
    more."""
    given, wire = json.loads(text), Wire()
    row, rates = Row(**{**given, "modes": tuple(given["modes"])}), json.loads(limits)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    if row.model == KERNELS:
        wire.say(timed=True, figures={"kernels": kernels.measure(rates["copy"], wire.ready)})
    else:
        Contest(row, rates, wire).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
