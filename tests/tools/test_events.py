"""Events, and what is made of them: callbacks, logging, counters, Prometheus, ranges in the profiler."""

import json
import logging
import warnings

import pytest
import torch
from torch.profiler import profile

import framesmith
from framesmith.util import events


def scaled(a, b):
    return (a * b).sin() + 1


def kinds(seen):
    return [type(e).__name__ for e in seen]


def test_a_callback_is_told_of_compiles_alone():
    fast, seen = framesmith.compile(lambda a: a * 3 + 1), []
    with framesmith.on_event(seen.append) as told:
        fast(torch.ones(4))
        first = kinds(seen)
        assert first[0] == "CompileBegan" and first[-1] == "CompileEnded" and "GraphCompiled" in first
        assert {e.compile for e in seen} == {seen[0].compile}
        for _ in range(10):
            fast(torch.ones(4))
        assert kinds(seen) == first
        fast(torch.ones(5))
        assert "Recompile" in kinds(seen)
    told.remove()
    count = len(seen)
    fast(torch.ones(4, 4))
    assert len(seen) == count


def test_a_callback_that_raises_is_no_fault_of_the_program():
    def raising(event):
        raise RuntimeError("mine")

    framesmith.reset()
    with framesmith.on_event(raising), pytest.warns(UserWarning, match="on_event raised RuntimeError: mine"):
        assert framesmith.compile(lambda a: a - 7)(torch.ones(2)).tolist() == [-6, -6]
    with pytest.raises(TypeError):
        framesmith.on_event(3)


def test_a_backward_is_a_compile_of_its_own():
    seen = []
    x = torch.ones(3, requires_grad=True)
    with framesmith.on_event(seen.append):
        framesmith.compile(lambda a: (a.sin() * a).sum())(x).backward()
    graphs = [e for e in seen if isinstance(e, events.GraphCompiled)]
    assert [g.part for g in graphs] == ["forward", "backward"]
    assert [e.why for e in seen if isinstance(e, events.CompileBegan)] == ["first call", "backward"]
    assert all(e.outcome == "compiled" for e in seen if isinstance(e, events.CompileEnded))


def test_logging(caplog):
    with caplog.at_level(logging.INFO, logger="framesmith"):
        framesmith.compile(lambda a: (framesmith.graph_break(), a + 2)[1])(torch.ones(3) * 2)
    lines = {r.name: r.getMessage() for r in caplog.records}
    assert "graph_break() was called" in lines["framesmith.graph_break"]
    assert "framesmith.compile_ended" in lines and "framesmith.graph_compiled" in lines


def test_old_events_make_room(monkeypatch):
    monkeypatch.setattr(events, "ROOM", 20)
    framesmith.reset()
    for k in range(8):
        framesmith.compile(lambda a: a + k)(torch.ones(3))  # noqa: B023
    assert sum(e.weight for e in events.recent()) <= 20 and events.dropped() > 0
    framesmith.reset()
    assert not events.recent() and not events.dropped()


def test_counters():
    before = framesmith.metrics()
    fast = framesmith.compile(lambda a: (framesmith.graph_break(), a * 5)[1])
    for n in (3, 3, 4):
        fast(torch.ones(n))
    now = framesmith.metrics()
    assert now["compiles"]["compiled"] > before["compiles"].get("compiled", 0)
    assert now["graph_breaks"]["graph_break() was called"] > 0 and now["recompiles"]["tensor"] > 0
    assert now["compile_seconds"]["total"] > before["compile_seconds"].get("total", 0)
    assert now["variants"] > before["variants"] and now["kernels"] > before["kernels"]


def test_prometheus():
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    framesmith.prometheus(registry)
    framesmith.compile(lambda a: a * 6)(torch.ones(3))
    text = client.generate_latest(registry).decode()
    assert 'framesmith_compiles_total{outcome="compiled"}' in text and "framesmith_variants " in text
    assert 'framesmith_compile_seconds_total{stage="total"}' in text
    assert registry.get_sample_value("framesmith_graphs_total", {"part": "inference"}) >= 1


@pytest.mark.parametrize("grad", [False, True])
def test_ranges_in_the_profiler(tmp_path, grad):
    fast = framesmith.compile(scaled)
    a, b = torch.rand(64, requires_grad=grad), torch.rand(64)
    fast(a, b).sum().backward() if grad else fast(a, b)
    with profile() as watched:
        out = fast(a, b)
        if grad:
            out.sum().backward()
    names = {e.name for e in watched.events()}
    place = f"{__file__}:{scaled.__code__.co_firstlineno}"
    (graph,) = [n for n in names if n.startswith("framesmith graph") and "backward" not in n]
    assert place in graph and any(n.startswith("k0: ") and "aten.sin" in n and f"{__file__}:" in n for n in names)
    assert any("backward of scaled" in n for n in names) == grad
    watched.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = {e["name"]: e for e in trace if e.get("cat") == "user_annotation" and e["ph"] == "X"}
    kernel = next(e for n, e in spans.items() if n.startswith("k0: ") and "aten.sin" in n)
    assert spans[graph]["ts"] <= kernel["ts"]
    assert kernel["ts"] + kernel["dur"] <= spans[graph]["ts"] + spans[graph]["dur"] + 1


def test_an_operator_of_eager_is_a_range():
    fast = framesmith.compile(lambda a: torch.linalg.solve(a, a) * 2)
    a = torch.eye(4)
    fast(a)
    with profile() as watched:
        fast(a)
    assert any(e.name.startswith("call aten.") and "solve" in e.name and __file__ in e.name for e in watched.events())


def test_a_call_that_raises_closes_its_ranges():
    fast = framesmith.compile(lambda table, i: table[i] * 2)
    table = torch.arange(4.0)
    fast(table, torch.tensor([1]))
    with warnings.catch_warnings(), profile() as watched:
        warnings.simplefilter("ignore")
        with pytest.raises(IndexError):
            fast(table, torch.tensor([9]))
        fast(table, torch.tensor([2]))
    assert sum(e.name.startswith("framesmith graph") for e in watched.events()) == 2
