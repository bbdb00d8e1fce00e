"""Threads that call and compile at once, interrupts, limits, and the collector at work in the middle of a capture."""

import gc
import signal
import sys
import threading
import time
import warnings

import pytest
import torch

import framesmith
from framesmith.testing import CompileCounter
from tests.api.nets import Net, X, assert_close


def in_threads(work, count=6):
    """Run `work(number)` in so many threads at once; raises what one of them raised."""
    problems = []
    start = threading.Barrier(count)

    def body(number):
        try:
            start.wait()
            with torch.no_grad():
                work(number)
        except BaseException as problem:  # handed to the test
            problems.append(problem)

    threads = [threading.Thread(target=body, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not any(t.is_alive() for t in threads)
    if problems:
        raise problems[0]


def poly(x, n):
    for i in range(n):
        x = x * 2 + i
    return x


def test_one_function_compiled_by_many_threads():
    counter = CompileCounter()
    compiled = framesmith.compile(poly, backend=counter)

    def work(number):
        for n in (1, 2, 3):
            for _ in range(20):
                assert torch.equal(compiled(X, n), poly(X, n))

    in_threads(work)
    assert counter.frame_count == 3


def test_one_model_called_by_many_threads():
    net = Net().eval()
    compiled = framesmith.compile(net)
    expected = net(X)

    def work(number):
        for _ in range(30):
            assert_close(compiled(X), expected)

    in_threads(work)


def test_threads_with_models_of_their_own():
    def work(number):
        net = Net().eval()
        compiled = framesmith.compile(net, backend="eager")
        for size in (2, 3, 4):
            x = torch.randn(size, *X.shape[1:])
            assert_close(compiled(x), net(x))

    in_threads(work)


def test_a_thread_outside_sees_no_hook():
    seen = []

    def backend(gm, inputs):
        other = threading.Thread(target=lambda: seen.append((framesmith._C.get_callback(), poly(X, 1))))
        other.start()
        other.join()
        return gm.forward

    framesmith.compile(lambda x: x + 1, backend=backend)(X)
    assert seen[0][0] is None and torch.equal(seen[0][1], poly(X, 1))


def test_grad_mode_is_each_threads_own():
    net = Net().eval()
    compiled = framesmith.compile(net, backend="eager")

    def work(number):
        with torch.set_grad_enabled(number % 2 == 0), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(10):
                assert compiled(X).requires_grad == (number % 2 == 0)

    in_threads(work)


class Interrupting:
    """A back end that is interrupted the first time."""

    def __init__(self, kind):
        self.kind = kind
        self.calls = 0

    def __call__(self, gm, inputs):
        self.calls += 1
        if self.calls == 1:
            if self.kind == "signal":
                signal.raise_signal(signal.SIGINT)
                time.sleep(0.01)
            raise self.kind("stop")
        return gm.forward


@pytest.fixture
def interruptible():
    """Processes in the background are started with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, "signal"])
def test_an_interrupt_during_compilation_leaves_and_the_next_call_compiles(kind, interruptible):
    backend = Interrupting(kind)
    compiled = framesmith.compile(poly, backend=backend)
    with pytest.raises(KeyboardInterrupt if kind == "signal" else kind):
        compiled(X, 2)
    assert framesmith._C.get_callback() is None and torch.is_grad_enabled() is False
    assert torch.equal(compiled(X, 2), poly(X, 2))
    assert backend.calls == 2


def test_an_error_in_a_back_end_is_told_and_the_program_runs():
    backend = Interrupting(ValueError)
    compiled = framesmith.compile(poly, backend=backend)
    with pytest.warns(UserWarning, match="ValueError: stop"):
        assert torch.equal(compiled(X, 2), poly(X, 2))
    assert torch.equal(compiled(X, 2), poly(X, 2))


def test_handlers_of_signals_run_between_calls():
    got = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: got.append(number))
    try:
        compiled = framesmith.compile(poly, backend="eager")
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        until = time.monotonic() + 0.3
        n = 0
        while time.monotonic() < until:
            n = n % 6 + 1
            assert torch.equal(compiled(X, n), poly(X, n))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert got


def nested(x, depth):
    return x if depth == 0 else nested(x + 1, depth - 1)


def test_recursion_limit():
    compiled = framesmith.compile(nested, backend="eager")
    limit = sys.getrecursionlimit()
    assert torch.equal(compiled(X, 30), nested(X, 30))
    with pytest.raises(RecursionError):
        compiled(X, 10 ** 6)
    assert sys.getrecursionlimit() == limit

    def near_the_limit(depth):
        if depth:
            return near_the_limit(depth - 1)
        return compiled(X, 3)

    assert torch.equal(near_the_limit(limit - len_of_stack() - 120), nested(X, 3))
    with pytest.raises(RecursionError):
        near_the_limit(limit)


def len_of_stack():
    frame, depth = sys._getframe(), 0
    while frame:
        frame, depth = frame.f_back, depth + 1
    return depth


def test_collection_in_the_middle_of_a_capture():
    class Finalised:
        def __del__(self):
            deaths.append(framesmith.is_compiling())

    deaths = []

    def backend(gm, inputs):
        gc.collect()
        return gm.forward

    def work(x):
        a, b = Finalised(), Finalised()
        a.other, b.other = b, a
        return x + 1

    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        compiled = framesmith.compile(work, backend=backend)
        for _ in range(3):
            assert torch.equal(compiled(X), X + 1)
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert len(deaths) >= 2 and not any(deaths)
