"""What a signal handler raises in the middle of a compile reaches the caller, and leaves nothing behind."""

import contextlib
import itertools
import signal
import threading

import pytest
import torch
from torch import nn

import framesmith
from framesmith import _C, compiler, pipeline
from framesmith.autograd import node
from framesmith.capture import entry
from framesmith.fake import recorder
from framesmith.runtime import build, cache, entries, memory
from framesmith.util import interrupts

PLACES = {"capture": (entry, "finish"), "decompose": (pipeline, "decompose"), "lower": (pipeline, "lower"),
          "build": (build, "_wait"),
          "seal": (entries, "seal_library"), "store": (cache, "serialize"), "load": (pipeline, "load"),
          "guards": (compiler, "compile_guards"), "sizes": (memory.Path, "read_bytes")}  # fmt: skip


class Handler:
    """Raises what it is told."""

    error: BaseException
    raised = False

    def __call__(self, number, frame):
        self.raised = True
        raise self.error


@contextlib.contextmanager
def handling(handler, number=signal.SIGUSR1):
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        assert signal.signal(number, before) is handler


def once(monkeypatch, module, name, act):
    """`act()` in the middle of the first call of a function."""
    original, left = getattr(module, name), [1]

    def instead(*args, **kwargs):
        if left:
            left.clear()
            act()
            for _ in range(3):
                pass
        return original(*args, **kwargs)

    monkeypatch.setattr(module, name, instead)
    return left


WIDTHS = itertools.count(401)


def model():
    """Of sizes of its own: what a process has measured once it does not measure again."""
    width = next(WIDTHS)
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 8)).eval()


def is_as_it_was(compiled, eager, x):
    """The thread's hook is off, the compile lock is free, and the next call is compiled and right."""
    assert _C.get_callback() is None
    other = threading.Thread(target=lambda: framesmith.compile(lambda x: x.sin() + 1)(torch.ones(3)))
    other.start()
    other.join(120)
    assert not other.is_alive()
    torch.testing.assert_close(compiled(x), eager(x))
    hits = _C.hits()
    compiled(x)
    assert _C.hits() == hits + 1


@pytest.mark.parametrize("error", [TimeoutError("late"), ValueError("no"), SystemExit(3), GeneratorExit(),
                                   KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("place", PLACES)
def test_what_a_handler_raises_in_a_compile_reaches_the_caller(place, error, tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    handler = Handler()
    handler.error = error
    eager, x = model(), torch.randn(40, 64)
    compiled = framesmith.compile(eager)
    with handling(handler):
        left = once(monkeypatch, *PLACES[place], lambda: signal.raise_signal(signal.SIGUSR1))
        with pytest.raises(type(error)) as raised:
            compiled(x)
        assert raised.value is error and not left
        is_as_it_was(compiled, eager, x)


def test_what_a_handler_raises_in_the_compile_of_a_backward_reaches_the_caller(tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    handler = Handler()
    handler.error = TimeoutError("late")
    eager, x = model(), torch.randn(40, 64)
    compiled = framesmith.compile(eager)
    with torch.enable_grad():
        y = compiled(x).sum()
        left = once(monkeypatch, node, "CompiledFunction", lambda: signal.raise_signal(signal.SIGUSR1))
        with handling(handler), pytest.raises(TimeoutError):
            y.backward()
        assert handler.raised and not left
        compiled(x).sum().backward()
    got = [p.grad for p in eager.parameters()]
    eager.zero_grad()
    with torch.enable_grad():
        eager(x).sum().backward()
    for a, p in zip(got, eager.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)


def test_a_context_manager_that_an_interrupt_keeps_from_being_left_ends_before_the_caller_hears_of_it():
    held = []

    @contextlib.contextmanager
    def holding():
        held.append(1)
        try:
            yield
        finally:
            held.pop()

    def body():
        manager = holding()
        manager.__enter__()
        signal.raise_signal(signal.SIGUSR1)

    handler = Handler()
    handler.error = TimeoutError("late")
    with handling(handler):
        try:
            with interrupts.handlers_heard():
                body()
        except TimeoutError:
            assert not held


def test_a_context_manager_is_entered_and_left_whole():
    """Where `__exit__` is cut at its first instruction, nothing else leaves the context manager."""
    left = []

    class Cut:
        def __enter__(self):
            left.append("entered")
            signal.raise_signal(signal.SIGUSR1)

        def __exit__(self, *error):
            signal.raise_signal(signal.SIGUSR1)
            left.append("left")

    @contextlib.contextmanager
    def cut():
        left.append("entered")
        signal.raise_signal(signal.SIGUSR1)
        try:
            yield
        finally:
            signal.raise_signal(signal.SIGUSR1)
            left.append("left")

    for manager in (Cut, cut):
        left.clear()
        handler = Handler()
        handler.error = TimeoutError("late")
        with handling(handler), pytest.raises(TimeoutError), interrupts.handlers_heard():
            with manager():
                left.append("within")
            left.append("after")
        assert left == ["entered", "within", "left", "after"]


def test_the_interrupt_key_in_a_compile(tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    eager, x = model(), torch.randn(40, 64)
    compiled = framesmith.compile(eager)
    once(monkeypatch, build, "_wait", lambda: signal.raise_signal(signal.SIGINT))
    # in a process of the background, the shell has it ignored
    with handling(signal.default_int_handler, signal.SIGINT), pytest.raises(KeyboardInterrupt):
        compiled(x)
    is_as_it_was(compiled, eager, x)


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_a_compile_without_room_leaves_the_call_to_eager(error, tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    def refuse():
        raise error

    eager, x = model(), torch.randn(40, 64)
    compiled = framesmith.compile(eager)
    left = once(monkeypatch, entry, "finish", refuse)
    torch.testing.assert_close(compiled(x), eager(x))
    assert not left
    is_as_it_was(compiled, eager, x)


def test_a_handler_that_raises_nothing_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    seen = []
    eager, x = model(), torch.randn(40, 64)
    compiled = framesmith.compile(eager)
    once(monkeypatch, pipeline, "lower", lambda: signal.raise_signal(signal.SIGUSR1))
    with handling(lambda number, frame: seen.append(number)):
        torch.testing.assert_close(compiled(x), eager(x))
    assert seen == [signal.SIGUSR1]


def test_a_handler_may_set_another(tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    handler = Handler()
    handler.error = TimeoutError()
    eager, x = model(), torch.randn(40, 64)
    compiled = framesmith.compile(eager)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: signal.signal(number, handler))
    once(monkeypatch, pipeline, "lower", lambda: signal.raise_signal(signal.SIGUSR1))
    try:
        compiled(x)
        assert signal.getsignal(signal.SIGUSR1) is handler
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_alarm_at_any_moment(tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    handler = Handler()
    handler.error = TimeoutError("alarm")
    eager, x = nn.Sequential(nn.Linear(7, 9), nn.Tanh()).eval(), torch.randn(5, 7)
    compiled, outcomes = framesmith.compile(eager), set()
    with handling(handler, signal.SIGALRM):
        for k in range(12):
            framesmith.reset()
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.001 + 0.009 * k)
                compiled(x)
                signal.setitimer(signal.ITIMER_REAL, 0)
                outcomes.add("done")
            except TimeoutError:
                outcomes.add("alarm")
            signal.setitimer(signal.ITIMER_REAL, 0)
            torch.testing.assert_close(compiled(x), eager(x))
    assert "alarm" in outcomes and _C.get_callback() is None


@pytest.mark.parametrize("where", ("entering", "dispatching"))
def test_a_mode_that_was_pushed_when_a_handler_raised_is_popped(where, monkeypatch):
    """The handler runs behind the call that pushes, before anything else of ours."""
    pushed = []

    def push(mode):
        torch._C._push_on_torch_dispatch_stack(mode)
        pushed.append(mode)
        if len(pushed) == (1 if where == "entering" else 2):
            signal.raise_signal(signal.SIGUSR1)

    handler = Handler()
    handler.error = TimeoutError("late")
    eager, x = model(), torch.randn(2, 64)
    compiled = framesmith.compile(lambda x: torch.isclose(eager(x), x[:, :8]))
    monkeypatch.setattr(recorder, "_push", push)
    with handling(handler), pytest.raises(TimeoutError):
        compiled(x)
    monkeypatch.undo()
    assert pushed and not torch._C._len_torch_dispatch_stack()
    assert not torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality)
    assert torch.equal(compiled(x), torch.isclose(eager(x), x[:, :8]))


def test_a_handler_that_is_compiled_itself_is_one():
    """It runs under the hook where it comes in a compiled call."""
    def handler(number, frame):
        framesmith.graph_break()
        raise TimeoutError("late")

    def call():
        signal.raise_signal(signal.SIGUSR1)

    compiled = framesmith.compile(call, backend="eager")
    with handling(handler):
        for _ in range(3):
            with pytest.raises(TimeoutError) as raised:
                compiled()
            assert interrupts.raised_by_handler(raised.value)
            with pytest.raises(TimeoutError) as raised:
                framesmith.compile(handler, backend="eager")(0, None)
            assert interrupts.raised_by_handler(raised.value)


def test_an_error_that_came_through_a_compiled_frame_is_no_handlers():
    def fails():
        raise IndexError

    code = fails.__code__.replace(co_consts=(*fails.__code__.co_consts, {}))  # as compiled frames have: no hash
    with handling(lambda number, frame: None):
        with pytest.raises(IndexError) as raised:
            exec(code)
        assert not interrupts.raised_by_handler(raised.value)
