"""Captures that end in a break are kept: another process loads what stands before it, and each continuation."""

import contextlib
import threading
import time

import pytest
import torch
from torch import nn

import framesmith
from framesmith.capture_cache.entries import CaptureCache
from framesmith.util import events

LEVEL = [2.0]


def kept(folder):
    return {"cache_dir": str(folder / "cache"), "keep_captures": True}


@pytest.fixture
def outcomes(tmp_path):
    """Calls a function as a new process would, compares it with eager, and tells how its frames were compiled, and
    where they broke."""

    def call(fn, *args):
        framesmith.reset()
        seen = []
        with events.on_event(seen.append), torch.no_grad():
            compiled = framesmith.compile(fn, options=kept(tmp_path))
            for _ in range(2):
                torch.testing.assert_close(compiled(*args), fn(*args), rtol=1e-6, atol=1e-6)
        assert not any(isinstance(e, events.Fallback) for e in seen)
        return ([e.outcome for e in seen if isinstance(e, events.CompileEnded)],
                [(e.line, e.reason) for e in seen if isinstance(e, events.GraphBreak)])

    return call


def in_the_middle(x):
    y = x * LEVEL[0]
    time.sleep(0)
    return y.sin() + x


def waits_below(x, shift=1.0, *, scale=2.0):
    y = x + shift
    time.sleep(0)
    return y * scale


def in_a_callee(x):
    y = waits_below(x * 2, scale=3.0)
    return y.cos() + waits_below(y, 2.0)


def in_a_loop(x):
    out = []
    for k in range(3):
        x = x * (k + 1)
        time.sleep(0)
        out.append(x + k)
    return out


def in_a_handler(x):
    y = x + 1
    try:
        y = y * 2
        int("none")
    except ValueError as error:
        y = y * len(str(error))
        time.sleep(0)
        y = y - len(error.args)
    finally:
        y = y.abs()
        time.sleep(0)
    return y.sin()


def in_a_with_block(x):
    with contextlib.suppress(KeyError):
        y = x * 2
        time.sleep(0)
        x = y + 1
        {}["none"]
    return x.cos()


def with_cells(x):
    count = 1

    def add(y):
        nonlocal count
        count += 1
        return y + count

    y = add(x)
    time.sleep(0)
    return add(y) * count


def sleepy(factor):
    def decorated(fn):
        def wrapper(x):
            y = fn(x) * factor
            time.sleep(0)
            return y + factor
        return wrapper
    return decorated


@sleepy(2.0)
@sleepy(3.0)
def decorated(x):
    return x - 1


def in_a_wrapper(x):
    return decorated(x).sin()


def at_the_end(x):
    y = x * 3
    return y, time.sleep(0)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        time.sleep(0)
        return y * 2


class Derived(Base):
    def forward(self, x):
        return super().forward(x + 1).relu() + super().forward(x)


PROGRAMS = [in_the_middle, in_a_callee, in_a_loop, in_a_handler, in_a_with_block, in_a_wrapper, at_the_end, Base(),
            Derived()]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: getattr(fn, "__name__", type(fn).__name__))
def test_nothing_is_captured_again(outcomes, fn):
    made, breaks = outcomes(fn, torch.randn(3, 4))
    loaded, told = outcomes(fn, torch.randn(3, 4))
    assert len(made) > 1 and {*made} == {"compiled"} and {*loaded} == {"loaded"}, (made, loaded)
    assert breaks and breaks == told


def test_a_function_of_the_frame_that_a_continuation_takes_has_no_name(outcomes):
    x = torch.randn(4)
    assert [[*dict.fromkeys(outcomes(with_cells, x)[0])] for _ in range(2)] == [["compiled"], ["loaded", "compiled"]]


def another(x, shift=1.0, *, scale=2.0):
    y = x - shift
    time.sleep(0)
    return y / scale


def test_what_the_continuation_reads_is_compared(outcomes, monkeypatch):
    x = torch.randn(4)
    outcomes(in_a_callee, x)
    monkeypatch.setattr(f"{__name__}.waits_below", another)
    assert outcomes(in_a_callee, x)[0][0] == "compiled"
    monkeypatch.undo()
    assert {*outcomes(in_a_callee, x)[0]} == {"loaded"}
    monkeypatch.setattr(waits_below, "__code__", another.__code__)
    assert outcomes(in_a_callee, x)[0][0] == "compiled"


def trained(x):
    y = (x * 2).sin()
    time.sleep(0)
    return (y * x).sum()


def test_gradients_go_through_loaded_continuations(outcomes, tmp_path):
    found = []
    for _ in range(2):
        framesmith.reset()
        x = torch.linspace(-1, 1, 5, requires_grad=True)
        seen = []
        with events.on_event(seen.append):
            framesmith.compile(trained, options=kept(tmp_path))(x).backward()
        found.append(({e.outcome for e in seen if isinstance(e, events.CompileEnded) and e.function == "trained"},
                      x.grad))
    assert [outcome for outcome, _ in found] == [{"compiled"}, {"loaded"}]
    y = torch.linspace(-1, 1, 5, requires_grad=True)
    trained(y).backward()
    for _, grad in found:
        torch.testing.assert_close(grad, y.grad)


def doubled(x):
    return x * 2


def halved(x):
    return x / 2


def test_other_threads_compile_while_a_call_waits_for_another_process(tmp_path, monkeypatch):
    """Another process of the world captures the same call: the program's other threads do not wait with it."""
    monkeypatch.setattr("framesmith.compiler.world_size", lambda: 2)
    options, waiting, got = kept(tmp_path), [], []
    x = torch.ones(4)

    @contextlib.contextmanager
    def waits(self, *args):
        if not waiting:
            waiting.append(True)
            other = threading.Thread(target=lambda: got.append(framesmith.compile(halved, options=options)(x)),
                                     daemon=True)
            other.start()
            other.join(60)
            assert got, "it waits"
        yield True

    monkeypatch.setattr(CaptureCache, "single_capture", waits)
    torch.testing.assert_close(framesmith.compile(doubled, options=options)(x), x * 2)
    torch.testing.assert_close(got[0], x / 2)
