"""Packed weights, whose elements are written while the C++ compiler runs."""

import pytest
import torch
from torch import fx, nn

import framesmith
from framesmith.graph.freeze import Frozen
from framesmith.lower.contractions.geometry import HOST, begin_pack, pack
from framesmith.pipeline import FrozenValues
from framesmith.runtime import build
from framesmith.runtime.cache import Cache
from framesmith.util.priority import Priority

COLUMNS = 2 * HOST.lanes


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 40)).eval()


def _compiled(model, tmp_path):
    return framesmith.compile(model, options={"cache_dir": str(tmp_path)})


def _packs(monkeypatch):
    """Note when weights are packed, and when the compiler is waited for."""
    order, wait, complete = [], build._wait, FrozenValues.complete

    def completed(self):
        order.extend(["packed"] * bool(self._unfilled))
        return complete(self)

    def waited(process):
        order.append("waited")
        wait(process)

    monkeypatch.setattr(FrozenValues, "complete", completed)
    monkeypatch.setattr(build, "_wait", waited)
    return order


@pytest.mark.parametrize(("depth", "n"), [(7, 5), (64, 200), (1, 1)])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_begun_pack_is_one_of_what_the_weight_was(depth, n, transposed):
    held = nn.Parameter(torch.randn(n, depth) if transposed else torch.randn(depth, n))
    weight = held.t() if transposed else held
    expected = pack(weight.clone(), COLUMNS, HOST.lanes)
    out, fill = begin_pack(weight, COLUMNS, HOST.lanes)
    held.data = torch.zeros(3)  # of other memory and another shape
    fill()
    assert torch.equal(out, expected)


def test_weights_are_packed_while_the_compiler_runs(monkeypatch, tmp_path):
    order = _packs(monkeypatch)
    model, x = _model(), torch.randn(32, 48)
    with torch.no_grad():
        torch.testing.assert_close(_compiled(model, tmp_path)(x), model(x))
    assert order.count("packed") == 1 and order[0] == "packed" and "waited" in order


def test_a_write_during_the_build_is_seen(monkeypatch, tmp_path):
    model, x = _model(), torch.randn(32, 48)
    wait, written = build._wait, []

    def waited(process):
        if not written:
            written.append(model[0].weight.data.mul_(3.0))  # as another thread might
        wait(process)

    monkeypatch.setattr(build, "_wait", waited)
    with torch.no_grad():
        result = _compiled(model, tmp_path)(x)
        assert written
        torch.testing.assert_close(result, model(x))


def test_weights_are_packed_where_the_library_is_there(monkeypatch, tmp_path):
    model, x = _model(), torch.randn(32, 48)
    with torch.no_grad():
        _compiled(model, tmp_path)(x)
        framesmith.reset()
        order = _packs(monkeypatch)
        other = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 40)).eval()
        compiled = framesmith.compile(other, options={"cache_dir": str(tmp_path), "keep_captures": False})
        torch.testing.assert_close(compiled(x), other(x))
    assert order == ["packed"]


def test_an_error_of_packing_is_raised_and_a_later_call_is_right(monkeypatch, tmp_path):
    model, x = _model(), torch.randn(32, 48)
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(FrozenValues, "complete", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            framesmith.compile(model, options={"cache_dir": str(tmp_path)}, fullgraph=True)(x)
    framesmith.reset()
    with torch.no_grad():
        torch.testing.assert_close(_compiled(model, tmp_path)(x), model(x))


def _frozen(read):
    """pack(w), and twice it if it is `read` by another constant."""
    graph = fx.Graph()
    packed = graph.call_function(pack, (graph.placeholder("w"), COLUMNS, HOST.lanes))
    graph.output((packed, graph.call_function(torch.mul, (packed, 2))) if read else (packed,))
    return Frozen(graph, (0,), fx.Graph(), ())


def test_what_another_constant_reads_is_packed_at_once():
    w = torch.randn(16, 64)
    expected = pack(w, COLUMNS, HOST.lanes)
    values = FrozenValues(_frozen(read=True), [w], Cache(enabled=False))
    assert not values._unfilled
    assert torch.equal(values.values[0], expected) and torch.equal(values.values[1], 2 * expected)
    later = FrozenValues(_frozen(read=False), [w], Cache(enabled=False))
    assert len(later._unfilled) == 1
    assert torch.equal(later.complete()[0], expected) and not later._unfilled


def test_in_the_background_weights_are_packed_at_once():
    with Priority(low=False).entered():
        assert not FrozenValues(_frozen(read=False), [torch.randn(16, 64)], Cache(enabled=False))._unfilled


def test_a_first_call_completes_what_is_missing():
    w = torch.randn(16, 64)
    (constant,) = FrozenValues(_frozen(read=False), [w], Cache(enabled=False)).refresh((0,))((w,))
    assert torch.equal(constant, pack(w, COLUMNS, HOST.lanes))
