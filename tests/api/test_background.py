"""`options={"background": True}`: eager serves while a job compiles, and calls take what it made from then on."""

import os
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch import nn

import framesmith
from framesmith import _C, background
from framesmith.capture import entry
from framesmith.runtime import cache
from framesmith.util import events, priority
from framesmith.util.locks import COMPILE_LOCK


@pytest.fixture(autouse=True)
def settled():
    """No job of one test runs in the next. Threads that a test starts are in grad mode, so it is, too."""
    with torch.enable_grad():
        yield
    assert framesmith.wait(120)
    framesmith.reset()


@pytest.fixture
def held(monkeypatch):
    """Jobs wait for `held.set()` before they capture anything."""
    go = threading.Event()
    real = entry.convert_frame

    def convert(*args, **kwargs):
        assert go.wait(60)
        return real(*args, **kwargs)

    monkeypatch.setattr("framesmith.compiler.convert_frame", convert)
    yield go
    go.set()


@pytest.fixture
def ends():
    """The events of jobs that are over."""
    seen = []
    with framesmith.on_event(lambda e: seen.append(e) if isinstance(e, events.BackgroundCompile) else None):
        yield seen


def compiled(fn, **options):
    return framesmith.compile(fn, fullgraph=options.pop("fullgraph", False), options={"background": True, **options})


def taken(call):
    """Whether a call is one that compiled code takes, and its result."""
    before = _C.hits()
    result = call()
    return _C.hits() > before, result


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


def test_eager_serves_until_the_swap(held, ends):
    model = mlp().eval()
    served, x = compiled(model), torch.randn(3, 8)
    expected = model(x)
    for _ in range(3):
        hit, result = taken(lambda: served(x))
        assert not hit and torch.equal(result, expected)
    held.set()
    assert framesmith.wait(60)
    hit, result = taken(lambda: served(x))
    assert hit
    torch.testing.assert_close(result, expected)
    assert [e.outcome for e in ends] == ["compiled"] and "calls take compiled code" in str(ends[0])


def test_one_job_for_many_calls_and_one_for_another_variant(ends):
    served = compiled(lambda x: torch.sin(x) * 2, dynamic=False)
    for x in (torch.ones(4), torch.ones(4, dtype=torch.float64)):
        for _ in range(3):
            served(x)
        assert framesmith.wait(60)
        assert taken(lambda x=x: served(x))[0]
    assert len(ends) == 2


def test_threads_that_call_meanwhile(held, ends):
    model = mlp().eval()
    served, x = compiled(model), torch.randn(3, 8)
    expected, wrong, stop = model(x), [], threading.Event()

    def client():
        while not stop.is_set():
            if not torch.allclose(served(x), expected, atol=1e-6):
                wrong.append(1)

    clients = [threading.Thread(target=client) for _ in range(4)]
    for one in clients:
        one.start()
    time.sleep(0.1)
    held.set()
    assert framesmith.wait(120)
    time.sleep(0.1)
    stop.set()
    for one in clients:
        one.join()
    assert not wrong and [e.outcome for e in ends] == ["compiled"]
    assert taken(lambda: served(x))[0]


def gradients(model, result):
    result.square().mean().backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return found


def test_training_across_the_swap(held):
    model = mlp()
    served, x = compiled(model), torch.randn(3, 8)
    expected = gradients(model, model(x))
    early = served(x)  # its backward runs after the swap
    held.set()
    assert framesmith.wait(60)
    hit, late = taken(lambda: served(x))
    assert hit
    for found in (gradients(model, early), gradients(model, late)):
        torch.testing.assert_close(found, expected)
    assert framesmith.wait(60)
    torch.testing.assert_close(gradients(model, served(x)), expected)


def test_a_backward_of_some_results_is_compiled_in_the_background(ends):
    """Which of several results have a tangent is known when a backward runs."""
    weight = torch.randn(4, 4, requires_grad=True)

    def two(x):
        y = torch.tanh(x @ weight)
        return y, y.exp() * 3

    served, x = compiled(two), torch.randn(3, 4)

    def grad(fn):
        return torch.autograd.grad(fn(x)[1].sum(), weight)[0]

    expected = grad(two)
    torch.testing.assert_close(grad(served), expected)
    assert framesmith.wait(60)
    torch.testing.assert_close(grad(served), expected)  # by operators
    assert framesmith.wait(60)
    torch.testing.assert_close(grad(served), expected)
    assert [e.outcome for e in ends] == ["compiled", "compiled"]


def test_a_call_waits_until_the_deadline(held):
    served = compiled(lambda x: torch.cos(x) + 1, deadline=0.05)
    x = torch.randn(5)
    start = time.perf_counter()
    assert not taken(lambda: served(x))[0]
    assert 0.05 <= time.perf_counter() - start < 30
    assert not taken(lambda: served(x))[0]
    held.set()
    assert framesmith.wait(60)
    assert taken(lambda: served(x))[0]


def test_a_call_that_the_deadline_suffices_for_is_compiled():
    served = compiled(lambda x: torch.cos(x) - 1, deadline=100.0)
    x = torch.randn(5)
    torch.testing.assert_close(served(x), torch.cos(x) - 1)
    assert taken(lambda: served(x))[0]


def test_code_with_breaks_is_compiled_piece_by_piece():
    def broken(x):
        y = torch.sin(x)
        framesmith.graph_break()
        return torch.cos(y) * 2

    served, x = compiled(broken), torch.randn(6)
    for _ in range(3):
        torch.testing.assert_close(served(x), torch.cos(torch.sin(x)) * 2)
        assert framesmith.wait(60)
    before = _C.hits()
    served(x)
    assert _C.hits() == before + 2


def test_what_fails_stays_in_eager(monkeypatch, ends):
    def fail(*args, **kwargs):
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr("framesmith.compiler.convert_frame", fail)
    served, x = compiled(lambda x: x * 5), torch.ones(2)
    with pytest.warns(UserWarning, match="on purpose"):
        assert torch.equal(served(x), x * 5)
        assert framesmith.wait(60)
    assert torch.equal(served(x), x * 5)
    assert [e.outcome for e in ends] == ["in eager"]


def test_a_compiler_that_is_killed_leaves_the_frame_in_eager(monkeypatch, ends, tmp_path):
    real = priority.start

    def start(command, **options):
        process = real(command, **options)
        process.kill()
        return process

    monkeypatch.setattr("framesmith.runtime.build.start", start)
    served, x = compiled(lambda x: torch.sin(x) * 7, cache_dir=str(tmp_path)), torch.ones(4)
    with pytest.warns(UserWarning, match="running in eager"):
        served(x)
        assert framesmith.wait(60)
    torch.testing.assert_close(served(x), torch.sin(x) * 7)
    assert [e.outcome for e in ends] == ["in eager"]


def test_fullgraph_raises_at_the_call_after():
    def broken(x):
        framesmith.graph_break()
        return x + 1

    served, x = compiled(broken, fullgraph=True), torch.ones(2)
    assert torch.equal(served(x), x + 1)
    assert framesmith.wait(60)
    with pytest.raises(framesmith.exc.Unsupported):
        served(x)


def test_reset_drops_what_a_job_makes(monkeypatch, ends, tmp_path):
    """It comes while machine code is made: at other times it waits for the job."""
    began, go, real = threading.Event(), threading.Event(), cache.build

    def build(*args, **kwargs):
        began.set()
        assert go.wait(60)
        return real(*args, **kwargs)

    monkeypatch.setattr(cache, "build", build)
    served, x = compiled(lambda x: x.exp() + 3, cache_dir=str(tmp_path)), torch.ones(3)
    served(x)
    assert began.wait(60)
    framesmith.reset()
    go.set()
    assert framesmith.wait(60)
    assert [e.outcome for e in ends] == ["compiled"]
    assert not taken(lambda: served(x))[0]


def test_what_a_job_is_in_is_what_the_call_was_in():
    served, x = compiled(mlp().eval()), torch.randn(2, 8)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        before = served(x)
        assert framesmith.wait(60)
        hit, after = taken(lambda: served(x))
        assert hit and after.dtype == before.dtype == torch.bfloat16
    torch.testing.assert_close(after, before, atol=2e-2, rtol=2e-2)
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def test_warm_up_waits():
    served, x = compiled(mlp().eval()), torch.randn(2, 8)
    assert framesmith.warm_up(served, [(x,)]) == 1
    assert taken(lambda: served(x))[0]


def test_the_compile_lock_is_free_while_machine_code_is_made(monkeypatch, tmp_path):
    """A compiler at a low priority may take minutes: calls that wait for their own code do not wait for it."""
    free = []

    def build(*args, **kwargs):
        def look():
            free.append(COMPILE_LOCK.acquire(blocking=False))
            COMPILE_LOCK.release()

        other = threading.Thread(target=look)
        other.start()
        other.join()
        return real(*args, **kwargs)

    real = cache.build
    monkeypatch.setattr(cache, "build", build)
    served = compiled(lambda x: torch.sin(x) * 11, cache_dir=str(tmp_path))
    served(torch.ones(4))
    assert framesmith.wait(60)
    assert free == [True]


def test_nothing_is_left_behind(tmp_path):
    served = compiled(lambda x: torch.sin(x) * 13, cache_dir=str(tmp_path))
    served(torch.ones(4))
    assert framesmith.wait(60)
    assert not background._jobs and "framesmith background" not in {t.name for t in threading.enumerate()}
    assert all(process.returncode is not None for process in priority._processes)


PROGRAM = """
import os, sys, time, torch, framesmith
from framesmith.util import priority
served = framesmith.compile(lambda x: torch.sin(x) * 17, options={"background": True, "cache_dir": sys.argv[1]})
served(torch.ones(4))
while not priority._processes:
    time.sleep(0.001)
print(*[process.pid for process in priority._processes], flush=True)
"""


def test_compilers_end_with_the_program(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for pid in map(int, done.stdout.split()):
        for _ in range(100):
            try:
                os.killpg(pid, 0)
            except ProcessLookupError:
                break
            time.sleep(0.05)
        else:
            pytest.fail("a compiler goes on")
    assert not list(tmp_path.glob("*/build-*"))


@pytest.mark.forks
def test_a_fork_of_the_program_has_jobs_of_its_own(held):
    served, x = compiled(lambda x: torch.sin(x) * 19), torch.ones(4)
    served(x)
    pid = os.fork()
    if pid == 0:
        held.set()
        served(x)
        good = framesmith.wait(60) and taken(lambda: served(x))[0]
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
