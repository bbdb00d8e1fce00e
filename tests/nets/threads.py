"""The threads net: many threads call, compile, train, break, reset and drop the same and different models at once.

    python -m tests.nets.threads --seconds 300 [--threads 6] [--seed 0] [--no-fork]

Each thread does random actions (`ACTIONS`), on models that all threads have in common and on models of its own, and
compares every result with eager's. Threads are switched a thousand times as often as usual. A thread that ends no
action within `PATIENCE` seconds in which this process runs is a deadlock: the stacks of all threads are printed.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import gc
import os
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import framesmith
from tests.nets.soak import BATCH, KINDS, WIDTHS, new_model

PATIENCE = 120.0
PAUSE = 0.02
"""Seconds between two looks. Pauses are counted, not time: the machine may stop the process for a while."""
SWITCH_INTERVAL = 5e-6
"""Seconds after which a thread hands on the interpreter; by default 5 ms."""
PURE = ("layers", "norms", "attention", "images", "broken", "raising")
"""Kinds of models that write no state, so that eager is an oracle beside other threads' calls."""
BACKENDS = ("native", "native", "eager")


@dataclass(slots=True)
class Pair:
    """A model, what `compile` made of it, and the shape of its inputs without the batch."""

    eager: Any
    compiled: Any
    shape: tuple[int, ...]
    training: Any = None
    """A copy of the model that eager trains beside it, if the model is one thread's own."""


def new_pair(rng: random.Random, kinds: tuple[str, ...] = PURE) -> Pair:
    """A model whose code nobody has called yet."""
    kind, widths = rng.choice(kinds), rng.choice(WIDTHS)
    eager = new_model(kind, widths).eval()
    compiled = framesmith.compile(eager, backend=rng.choice(BACKENDS), options=OPTIONS)
    return Pair(eager, compiled, (3, widths[0]) if kind == "attention" else (widths[0],))


OPTIONS = {"compiler_flags": "-O0"}


# Functions that all threads have in common. Numbers, modes and sizes make variants of them.


def polynomial(x: Any, degree: int) -> Any:
    """A loop that is unrolled: one variant for each degree."""
    for i in range(degree):
        x = x * 2 + i
    return x


def broken(x: Any, flag: bool) -> Any:
    """A graph break in the middle, in a `try` block, and a frame that waits for it."""
    try:
        y = _breaks(x.sin())
        if flag:
            raise KeyError(y.shape[0])
    except KeyError as error:
        y = x.cos() * error.args[0]
    return y + 1


def _breaks(x: Any) -> Any:
    framesmith.graph_break()
    return x * 3


def raising(x: Any, limit: int) -> Any:
    """An exception that the caller sees."""
    y = x.exp()
    if x.shape[0] > limit:
        raise ValueError(f"{x.shape[0]} rows")
    return y


def counting(x: Any, seen: list[int]) -> Any:
    """A side effect on an object of the caller's."""
    seen.append(x.shape[0])
    return x.relu() + len(seen)


FUNCTIONS = (polynomial, broken, raising)


@dataclass(slots=True)
class Common:
    """What all threads share."""

    models: list[Pair]
    functions: list[tuple[Callable[..., Any], Any]]
    end: float
    forks: bool
    done: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


class Worker(threading.Thread):
    """One thread of the net."""

    def __init__(self, number: int, seed: int, common: Common) -> None:
        super().__init__(name=f"worker {number}", daemon=True)
        self.rng = random.Random(seed * 1000 + number)
        self.common = common
        self.own: Pair | None = None
        self.action, self.ended = "", 0

    def run(self) -> None:
        while time.monotonic() < self.common.end:
            names, weights = zip(*[(name, weight) for name, (_, weight) in ACTIONS.items()])
            self.action = self.rng.choices(names, weights)[0]
            try:
                ACTIONS[self.action][0](self)
            except BaseException:  # handed to the main thread
                self.common.differences.append(f"{self.action} in {self.name}: {traceback.format_exc()}")
            self.common.done[self.action] += 1
            self.ended += 1

    def input(self, shape: tuple[int, ...]) -> Any:
        """Of a batch size that was seen, most times."""
        batch = BATCH if self.rng.random() < 0.7 else self.rng.randint(1, 9)
        return torch.randn(batch, *shape)


def outcome(call: Callable[..., Any], *args: Any) -> Any:
    """The result of a call, or what it raises, as text."""
    try:
        return call(*args)
    except (ValueError, RuntimeError, IndexError) as error:
        return f"{type(error).__name__}: {error}"


def agree(compiled: Callable[..., Any], eager: Callable[..., Any], *args: Any) -> None:
    """Raise AssertionError unless both calls do the same."""
    got, expected = outcome(compiled, *args), outcome(eager, *args)
    if isinstance(expected, str) or isinstance(got, str):
        assert isinstance(got, str) and got.partition(":")[0] == str(expected).partition(":")[0], (got, expected)
    else:
        torch.testing.assert_close(got, expected)


def call_model(w: Worker) -> None:
    """A model that others call, too."""
    pair = w.rng.choice(w.common.models)
    with torch.set_grad_enabled(w.rng.random() < 0.3):
        agree(pair.compiled, pair.eager, w.input(pair.shape))


def call_function(w: Worker) -> None:
    """A function that others call, too."""
    eager, compiled = w.rng.choice(w.common.functions)
    last = w.rng.randrange(4) if eager is not broken else w.rng.random() < 0.5
    with torch.set_grad_enabled(w.rng.random() < 0.5):
        agree(compiled, eager, w.input((5,)), last)


def call_first(w: Worker) -> None:
    """A model of the thread's own, whose last one dies."""
    w.own = new_pair(w.rng, tuple(KINDS))
    w.own.training = copy.deepcopy(w.own.eager)
    with torch.no_grad():
        x = w.input(w.own.shape)
        agree(w.own.compiled, w.own.training, x)


def replace_model(w: Worker) -> None:
    """Others may still call what stood there."""
    w.common.models[w.rng.randrange(len(w.common.models))] = new_pair(w.rng)


def train(w: Worker) -> None:
    """A step on the own model, beside eager's on a copy."""
    if w.own is None:
        call_first(w)
    pair = w.own
    assert pair is not None
    x, seed = w.input(pair.shape), w.rng.random()
    with torch.enable_grad():
        for model, call in ((pair.eager, pair.compiled), (pair.training, pair.training)):
            y = outcome(call, x)
            if not isinstance(y, str):
                weighted(y, seed).backward()
                _descend(model)
    for a, b in zip(pair.eager.parameters(), pair.training.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def weighted(y: Any, seed: float) -> Any:
    """A loss whose gradients are no differences of equal terms, as those of the sum of what a norm gives are."""
    return (y * torch.linspace(1, 10, y.numel()).add(seed).sin().reshape(y.shape)).sum()


@torch.no_grad()
def _descend(model: Any) -> None:
    """A step of SGD. (`torch.optim` imports a module in each call, and a fork meanwhile leaves the lock of that module
    taken in the child.)"""
    for p in model.parameters():
        if p.grad is not None:
            p -= 0.01 * p.grad
    model.zero_grad()


def differentiate(w: Worker) -> None:
    """Gradients of a model that others call, too."""
    pair, seed = w.rng.choice(w.common.models), w.rng.random()
    x = w.input(pair.shape).requires_grad_()

    def gradients(call: Callable[..., Any]) -> Any:
        return torch.autograd.grad(weighted(call(x), seed), [x, *pair.eager.parameters()], allow_unused=True)

    with torch.enable_grad():
        agree(lambda: gradients(pair.compiled), lambda: gradients(pair.eager))


def compile_again(w: Worker) -> None:
    """The same function once more, with variants in common."""
    k = w.rng.randrange(len(w.common.functions))
    eager = w.common.functions[k][0]
    w.common.functions[k] = eager, framesmith.compile(eager, backend=w.rng.choice(BACKENDS), options=OPTIONS)


def count_calls(w: Worker) -> None:
    """A side effect on a list of the thread's own."""
    compiled, got, expected = framesmith.compile(counting, backend="eager"), [], []
    for _ in range(3):
        x = w.input((5,))
        assert torch.equal(compiled(x, got), counting(x, expected))
    assert got == expected


def reset(w: Worker) -> None:
    """In the midst of the others' calls and compiles."""
    framesmith.reset()


def look(w: Worker) -> None:
    """What others compile, while they do."""
    framesmith.metrics()
    str(framesmith.report())


def explain(w: Worker) -> None:
    """A compile apart from the program's."""
    pair = w.rng.choice(w.common.models)
    with torch.no_grad():
        str(framesmith.explain(pair.compiled)(torch.randn(BATCH, *pair.shape)))


def collect(w: Worker) -> None:
    """The cyclic collector."""
    gc.collect()


def fork(w: Worker) -> None:
    """A child that calls and compiles, of a process whose other threads do, too."""
    if not w.common.forks:
        return
    child = os.fork()
    if not child:
        _be_child(w)
    for _ in range(int(PATIENCE / 2 / PAUSE)):
        if (found := os.waitpid(child, os.WNOHANG)) != (0, 0):
            break
        time.sleep(PAUSE)
    else:
        os.kill(child, signal.SIGUSR1)  # prints its stack
        time.sleep(1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise TimeoutError("the child does not end")
    assert os.waitstatus_to_exitcode(found[1]) == 0, f"the child ended with {os.waitstatus_to_exitcode(found[1])}"


def _be_child(w: Worker) -> None:
    status = 1
    try:
        faulthandler.register(signal.SIGUSR1)
        torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
        assert gc.isenabled()
        call_model(w)
        call_function(w)
        call_first(w)
        train(w)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


ACTIONS: dict[str, tuple[Callable[[Worker], None], int]] = {
    "call": (call_model, 40), "function": (call_function, 40), "train": (train, 15), "gradients": (differentiate, 15),
    "first call": (call_first, 6), "replace": (replace_model, 2), "compile again": (compile_again, 4),
    "side effect": (count_calls, 6), "reset": (reset, 2), "report": (look, 1), "explain": (explain, 1),
    "collect": (collect, 1), "fork": (fork, 1),
}  # fmt: skip
"""What a thread does, and how often."""


def stress(seconds: float, threads: int, seed: int, forks: bool = True) -> tuple[Counter[str], list[str]]:
    """How often each action was done, and what differed from eager."""
    rng = random.Random(seed)
    common = Common([new_pair(rng) for _ in range(4)],
                    [(f, framesmith.compile(f, backend=b, options=OPTIONS)) for f in FUNCTIONS for b in ("native",
                                                                                                         "eager")],
                    time.monotonic() + seconds, forks)
    workers = [Worker(k, seed, common) for k in range(threads)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for w in workers:
                w.start()
            if (stuck := _stuck(workers)) is not None:
                faulthandler.dump_traceback()
                common.differences.append(f"{stuck.name} does not end its action {stuck.action!r}")
    finally:
        sys.setswitchinterval(interval)
    return common.done, common.differences


def _stuck(workers: list[Worker]) -> Worker | None:
    """Wait for all; the first that ends nothing any more, if one does."""
    waited = dict.fromkeys(workers, (0, 0))  # actions ended, pauses since
    while alive := [w for w in workers if w.is_alive()]:
        time.sleep(PAUSE)
        for w in alive:
            ended, pauses = waited[w]
            waited[w] = (w.ended, 0) if w.ended != ended else (ended, pauses + 1)
            if pauses * PAUSE > PATIENCE:
                return w
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-fork", action="store_true", help="for a sanitizer, which does not follow threads' forks")
    given = parser.parse_args()
    done, differences = stress(given.seconds, given.threads, given.seed, not given.no_fork)
    print(*differences, sep="\n")
    print(", ".join([f"{n} × {name}" for name, n in done.most_common()]))
    print(f"{done.total()} actions, {len(differences)} differences")
    sys.stdout.flush()
    os._exit(bool(differences))  # threads that hang do not keep the process


if __name__ == "__main__":
    main()
