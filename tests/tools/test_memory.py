"""`memory`: the constants of compiled graphs by name, and the blocks of a snapshot that they are."""

import gc
from dataclasses import replace

import pytest
import torch
from torch import nn

import framesmith
from framesmith.tools.memory import Constant, GraphMemory, Memory


@pytest.fixture
def model():
    framesmith.reset()
    gc.collect()
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).eval()


def test_constants_have_names_and_bytes_and_go_with_the_graph(model):
    compiled, before = framesmith.compile(model), framesmith.memory()
    with torch.no_grad():
        compiled(torch.randn(32, 64))
    found = framesmith.memory()
    graph = found.graphs[-1]
    assert len(found.graphs) == len(before.graphs) + 1
    assert "Sequential" in graph.name and graph.device == "cpu" and graph.place[0]
    names = [c.name for c in graph.constants]
    assert sum(name.endswith(("[0].weight)", "[2].weight)")) for name in names) == 2, names
    assert graph.bytes == sum(c.bytes for c in graph.constants) >= 2 * 64 * 256 * 4
    assert all(c.name in str(found) for c in graph.constants)
    framesmith.reset()
    gc.collect()
    assert len(framesmith.memory().graphs) == len(before.graphs)


def test_a_graph_that_keeps_nothing(model):
    compiled = framesmith.compile(lambda x: x.sin() + 1)
    compiled(torch.randn(3))
    assert framesmith.memory().graphs[-1].constants == ()


def test_blocks_of_a_snapshot_are_named():
    constant = Constant("pack(weight)", 4096 + 512, 1024)
    graph = GraphMemory(3, "framesmith graph 3: f (f.py:7)", ("f.py", 7), "cuda:0", (constant,), 0)
    user = {"name": "f", "filename": "f.py", "line": 8}
    snapshot = {"segments": [{"address": 4096, "blocks": [
        {"size": 512, "frames": [user]}, {"size": 1024, "frames": [user]}, {"size": 512}]}]}
    elsewhere = replace(graph, device="cpu", constants=(replace(constant, address=4096),))
    named = Memory((graph, elsewhere), 0).named(snapshot)
    first, second, third = named["segments"][0]["blocks"]
    assert first["frames"] == [user] and third["frames"] == []
    assert second["frames"] == [
        {"name": "pack(weight), constant of framesmith graph 3: f (f.py:7)", "filename": "f.py", "line": 7}, user]
    assert "frames" not in snapshot["segments"][0]["blocks"][2]
