"""The graphs and programs of collectives, in one process with PyTorch's fake process group."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import framesmith
from framesmith.graph.sink_waits import sink_waits

ops = torch.ops._c10d_functional


@pytest.fixture(autouse=True)
def group():
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def targets(fn, *args):
    """The operators of the one graph of `fn`, by name."""
    found = []

    def backend(graph, examples):
        sink_waits(graph.graph)
        found.append([n.target.__name__.partition(".")[0] for n in graph.graph.nodes if n.op == "call_function"])
        return graph.forward

    framesmith.compile(fn, backend=backend, fullgraph=True)(*args)
    assert len(found) == 1
    return found[0]


def test_waits_stand_before_their_first_reader():
    def program(x):
        y, z = x + 1, x + 2
        dist.all_reduce(y)
        dist.all_reduce(z)
        other = x * 3
        return y.view(-1) + other.view(-1), z

    found = targets(program, torch.ones(2, 3))
    assert [n for n in found if n != "view"] == ["add", "add", "all_reduce", "all_reduce", "mul", "wait_tensor", "add",
                                                 "wait_tensor"]
    assert found[found.index("wait_tensor") + 1] == "view"


def test_equal_and_unread_collectives_stay():
    def program(x):
        for _ in range(2):
            dist.all_reduce(x.clone())
        return x + 1

    assert targets(program, torch.ones(3)).count("all_reduce") == 2


def test_ranks_and_sizes_are_constants():
    assert targets(lambda x: x * dist.get_world_size() + dist.get_rank(), torch.ones(3)) == ["mul", "add"]


def test_gathered_sizes():
    def program(x):
        whole = x.new_empty(8, 3)
        dist.all_gather_into_tensor(whole, x)
        part = x.new_empty(2, 3)
        dist.reduce_scatter_tensor(part, whole)
        return whole, part

    whole, part = framesmith.compile(program, fullgraph=True)(torch.ones(2, 3))
    assert whole.shape == (8, 3) and part.shape == (2, 3)


@pytest.mark.parametrize("call", [
    lambda x: dist.all_reduce(x.t()), lambda x: dist.all_reduce(x + 1j), lambda x: dist.barrier(),
    lambda x: dist.all_gather_into_tensor(x.new_empty(5, 3), x),
    lambda x: dist.all_reduce(x, op=dist._make_nccl_premul_sum(2.0)),
    lambda x: dist.reduce_scatter_tensor(x.new_empty(1, 3), x), lambda x: dist.send(x, 1),
    lambda x: dist.all_gather_object([None] * 4, 1),
], ids=["layout", "complex", "barrier", "size", "factor", "division", "send", "object"])
def test_breaks(call):
    def program(x):
        y = x + 1
        call(y)
        return y

    with pytest.raises(framesmith.exc.Unsupported):
        framesmith.compile(program, fullgraph=True)(torch.ones(2, 3))


def test_import_loads_no_collectives():
    code = "import framesmith, sys; print([m for m in sys.modules if m.startswith('framesmith.distributed')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
