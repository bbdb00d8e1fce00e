"""Debuggers, coverage, tracers and profilers at work around compiled code."""

import bdb
import io
import pdb
import subprocess
import sys
import threading

import pytest
import torch

import framesmith
from tests.api.nets import Net, X, assert_close


def work(x):
    y = x + 1
    z = inner(y)
    return z * 2


def inner(y):
    return y.relu() - 1


def broken(x):
    y = x + 1
    framesmith.graph_break()
    return y * 2


class Tracer:
    """Counts events by function; `local`: trace lines too."""

    def __init__(self, local):
        self.events = []
        self.local = local

    def __call__(self, frame, event, arg):
        self.events.append((event, frame.f_code.co_name))
        return self if self.local else None


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("fn", [work, broken])
def test_settrace(fn, local):
    compiled = framesmith.compile(fn, backend="eager")
    tracer = Tracer(local)
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        first = compiled(X)
        second = compiled(X)
    finally:
        sys.settrace(before)
    assert torch.equal(first, fn(X)) and torch.equal(second, fn(X))
    assert ("call", fn.__name__) in tracer.events
    if local:
        assert ("line", fn.__name__) in tracer.events and ("return", fn.__name__) in tracer.events
    assert torch.equal(compiled(X), fn(X))


def test_setprofile_and_threads():
    events = []
    compiled = framesmith.compile(work, backend="eager")

    def profiler(frame, event, arg):
        events.append((event, frame.f_code.co_name))

    threading.setprofile(profiler)
    sys.setprofile(profiler)
    try:
        assert torch.equal(compiled(X), work(X))
        found = []

        def in_thread():
            with torch.no_grad():
                found.append(compiled(X))

        t = threading.Thread(target=in_thread)
        t.start()
        t.join()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert torch.equal(found[0], work(X))
    assert ("call", "work") in events and ("return", "work") in events


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in Python 3.12")
def test_monitoring():
    seen = []
    tool = sys.monitoring.PROFILER_ID
    sys.monitoring.use_tool_id(tool, "test")
    try:
        sys.monitoring.register_callback(tool, sys.monitoring.events.PY_START, lambda code,
                                         offset: seen.append(code.co_name))
        sys.monitoring.set_events(tool, sys.monitoring.events.PY_START)
        compiled = framesmith.compile(work, backend="eager")
        assert torch.equal(compiled(X), work(X)) and torch.equal(compiled(X), work(X))
    finally:
        sys.monitoring.set_events(tool, 0)
        sys.monitoring.free_tool_id(tool)
    assert "work" in seen


class Debugger(bdb.Bdb):
    """Notes the lines at which it stops."""

    def __init__(self):
        super().__init__()
        self.stops = []

    def user_line(self, frame):
        self.stops.append((frame.f_code.co_name, frame.f_lineno))
        self.set_continue()


def test_a_breakpoint_outside_of_compiled_code_is_hit():
    compiled = framesmith.compile(work, backend="eager")

    def outside(x):
        y = compiled(x)
        return y + 1

    debugger = Debugger()
    line = outside.__code__.co_firstlineno + 2
    assert debugger.set_break(__file__, line) is None
    before = sys.gettrace()
    try:
        result = debugger.runcall(outside, X)
    finally:
        sys.settrace(before)
    assert torch.equal(result, work(X) + 1) and ("outside", line) in debugger.stops


def test_breakpoint_in_compiled_code_stops_there(monkeypatch):
    stops = []

    def hook():
        frame = sys._getframe(1)
        stops.append((frame.f_code.co_name, frame.f_locals["y"].clone()))

    def stopping(x):
        y = x + 1
        breakpoint()
        return y * 2

    monkeypatch.setattr(sys, "breakpointhook", hook)
    compiled = framesmith.compile(stopping, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(X), (X + 1) * 2)
    assert [name for name, _ in stops] == ["stopping"] * 2 and all(torch.equal(y, X + 1) for _, y in stops)


def test_pdb_steps_over_a_compiled_call():
    compiled = framesmith.compile(work, backend="eager")

    def program(x):
        y = compiled(x)
        return y + 1

    out = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("n\nn\np y.shape\nc\n"), stdout=out, nosigint=True, readrc=False)
    before = sys.gettrace()
    try:
        result = debugger.runcall(program, X)
    finally:
        sys.settrace(before)
    assert torch.equal(result, work(X) + 1) and str(X.shape) in out.getvalue()


PROGRAM = """
import sys, torch, framesmith
def work(x):
    y = x + 1
    if y.sum() > 1e9:
        return y
    return y * 2
def lines(frame, event, arg):
    seen.add((frame.f_code.co_name, event))
    return lines
seen = set()
sys.settrace(lines)
compiled = framesmith.compile(work, backend="native")
with torch.no_grad():
    for n in (2, 3, 2):
        x = torch.ones(n, 4)
        assert torch.equal(compiled(x), (x + 1) * 2)
sys.settrace(None)
assert ("work", "call") in seen
print("fine")
"""


def test_compilation_itself_under_a_tracer_of_lines():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, timeout=500,
                          check=False)
    assert done.stdout.strip() == "fine", done.stderr[-2000:]


def test_coverage_of_what_is_not_compiled(tmp_path):
    coverage = pytest.importorskip("coverage")
    measured = coverage.Coverage(data_file=None, include=[__file__])
    net = Net().eval()
    measured.start()
    try:
        assert_close(framesmith.compile(net)(X), net(X))
    finally:
        measured.stop()
