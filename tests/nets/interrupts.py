"""The interrupts net: a signal's handler raises at a random moment of a first call, and nothing is left behind.

    python -m tests.nets.interrupts --count 2000 [--seed 0]

Each case is a model or function that nothing was compiled for, in inference or in training. A timer raises TimeoutError
or KeyboardInterrupt in it, anywhere between its beginning and its end. The exception must reach the caller; the state
of the process is as it was; the compiler can be used by another thread; and the next calls give eager's results, by
compiled code.
"""

from __future__ import annotations

import argparse
import copy
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

import framesmith
from framesmith import _C
from framesmith.util import events, timing
from framesmith.util.locks import COMPILE_LOCK
from tests.nets.soak import BATCH, KINDS, WIDTHS, Life, new_model
from tests.program_state import snapshot

OPTIONS = {"compiler_flags": "-O0"}
ERRORS = (TimeoutError, KeyboardInterrupt)
FIRST = 0.25
"""Seconds of a first call before any was measured."""


class Handler:
    """Raises what it is told, and remembers where."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error, self.raised = error, ""
        self.in_finaliser = False
        """Of a weak reference, outside of a compile: Python itself loses what is raised there."""

    def __call__(self, number: int, frame: Any) -> None:
        self.raised = "".join(traceback.format_stack(frame))
        self.in_finaliser = "weakref.py" in self.raised and "compiler.py" not in self.raised
        raise self.error("a signal")


def interrupted(call: Callable[[], Any], handler: Handler, after: float) -> bool:
    """Whether the handler ended the call. Raises AssertionError if it raised and the caller did not hear of it."""
    try:
        signal.setitimer(signal.ITIMER_REAL, after)
        call()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except handler.error as error:
        assert str(error) == "a signal", error
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert not handler.raised or handler.in_finaliser, f"{handler.error.__name__} was lost:\n{handler.raised}"
    return False


def is_free() -> bool:
    """Whether another thread can take the compile lock."""
    got: list[bool] = []

    def take() -> None:
        got.append(COMPILE_LOCK.acquire(timeout=10))
        if got[0]:
            COMPILE_LOCK.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return got[0]


def changed(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What differs, as text."""
    return "; ".join(f"{name}: {before[name]} -> {after[name]}" for name in before if before[name] != after[name])


class Net:
    """The cases so far. `lengths`: seconds of the last whole first call, by kind."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lengths: dict[tuple[str, bool], float] = {}
        self.done: Counter[str] = Counter()

    def case(self) -> None:
        """One first call. Raises AssertionError where something is not as it should be."""
        rng = self.rng
        kind, training, widths = rng.choice(list(KINDS)), rng.random() < 0.4, WIDTHS[0]
        model = new_model(kind, widths).eval()
        compiled = framesmith.compile(model, backend=rng.choice(("native", "native", "eager")), options=OPTIONS)
        x = torch.randn(BATCH, 3, widths[0]) if kind == "attention" else torch.randn(BATCH, widths[0])

        def call(f: Any = compiled) -> Any:
            y = f(x)
            if training:
                y.sum().backward()
            return y

        handler, length = Handler(rng.choice(ERRORS)), self.lengths.get((kind, training), FIRST)
        own = signal.signal(signal.SIGALRM, handler)
        try:
            with torch.set_grad_enabled(training):
                before = snapshot()
                began = time.perf_counter()
                cut = interrupted(call, handler, rng.uniform(1e-6, length))
                if not cut:
                    self.lengths[kind, training] = 0.5 * (length + time.perf_counter() - began)
                self.done["interrupted" if cut else "in time"] += 1
                self.check_state(before)
        finally:
            signal.signal(signal.SIGALRM, own)
        model.zero_grad()
        with torch.set_grad_enabled(training):
            for _ in range(2):
                state = copy.deepcopy((model.__dict__.get("k"), model._buffers.get("n")))
                hits, got = _C.hits(), call()
                if state[0] is not None:
                    model.k = state[0]
                if state[1] is not None:
                    model.n = state[1]
                torch.testing.assert_close(got, call(model))
                model.zero_grad()
            if kind != "variants":  # each call has another number of rounds
                assert _C.hits() > hits, "no variant takes the call"

    def check_state(self, before: dict[str, Any]) -> None:
        """Raise AssertionError unless the process is as before."""
        end = time.monotonic() + 5
        while (difference := changed(before, snapshot())).startswith("threads") and time.monotonic() < end:
            time.sleep(0.01)  # of the cache: it prunes a folder while the program goes on
        assert not difference, difference
        assert not events._open.stack and not timing._clock.running, "a stage that has not ended"
        assert not framesmith.is_compiling(), "still compiling"
        assert is_free(), "the compile lock is taken"


def search(count: int, seconds: float, seed: int) -> tuple[Counter[str], list[str]]:
    """What the cases were, and what was wrong."""
    net, wrong, end = Net(seed), [], time.monotonic() + seconds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in KINDS:  # what is imported with the first compile is no state that it leaves
            Life(kind, WIDTHS[0], OPTIONS).use()
        for k in range(count):
            if time.monotonic() > end:
                break
            try:
                net.case()
            except BaseException:  # whatever is raised where nothing should be
                wrong.append(f"case {k}: {traceback.format_exc()}")
    return net.done, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    done, wrong = search(given.count, given.seconds, given.seed)
    print(*wrong, sep="\n")
    print(f"{done.total()} first calls, {done['interrupted']} of them interrupted, {len(wrong)} differences")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
