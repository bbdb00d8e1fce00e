"""Meshes of two dimensions: DTensors with a placement for each, and tensor parallel blocks under FSDP2."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import framesmith
from framesmith.util import events

from .world import World

WIDTH, STEPS = 8, 6


@pytest.fixture(scope="module")
def four():
    made = World(4)
    yield made
    made.close()


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu() * 2)


def mesh():
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))


def program(x, w, v):
    y = (x @ w).redistribute(placements=[Shard(0), Replicate()]).relu() @ v
    return y.softmax(-1), y.redistribute(placements=[Replicate(), Shard(1)]).sum(0)


def results(call):
    torch.manual_seed(0)
    two = mesh()
    given = [distribute_tensor(torch.randn(*shape, dtype=torch.float64), two, places).requires_grad_()
             for shape, places in (((4, 8), [Shard(0), Shard(1)]), ((8, 6), [Replicate(), Shard(0)]),
                                   ((6, 6), [Replicate(), Shard(1)]))]
    a, b = call(program)(*given)
    found = a, b, *torch.autograd.grad(a.full_tensor().sin().sum() + b.full_tensor().sum(), given)
    return [x.full_tensor() for x in found], [x.placements for x in found]


def same_results():
    expected, placements = results(lambda f: f)
    found, those = results(lambda f: framesmith.compile(f, fullgraph=True))
    assert those == placements
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_placements_of_two_dimensions(four):
    four.run(same_results)


def train(wrap, sharded):
    torch.manual_seed(0)
    two, net = mesh(), nn.Sequential(Feed(), Feed(), nn.Linear(WIDTH, 3)).double()
    for block in net[:2]:
        parallelize_module(block, two["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    for part in (*net[:2], net) if sharded else ():
        fully_shard(part, mesh=two["data"])
    call, optimiser, found = wrap(net), torch.optim.AdamW(net.parameters(), lr=0.05, foreach=False), []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(10 * step + two["data"].get_local_rank())
        loss = call(torch.randn(4, WIDTH, generator=generator, dtype=torch.float64)).square().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        found.append(loss.detach())
    return [*found, *[p.full_tensor() if isinstance(p, DTensor) else p for p in net.parameters()]]


def same_training(sharded):
    seen = []
    with events.on_event(seen.append):
        found = train(framesmith.compile, sharded)
    torch.testing.assert_close(found, train(lambda net: net, sharded), rtol=1e-9, atol=1e-12)
    dist.barrier()
    reasons = {e.reason for e in seen if isinstance(e, (events.Fallback, events.GraphBreak))}
    return sum(isinstance(e, events.GraphCompiled) for e in seen), sorted(reasons)


def test_tensor_parallel_blocks_are_one_graph(four):
    assert four.run(same_training, False) == [(2, [])] * 4, "forward and backward"


def test_tensor_parallel_blocks_under_fsdp2(four):
    """Blocks share their code; what calls a sharded module is a break."""
    for graphs, reasons in four.run(same_training, True):
        assert graphs == 6 and all("hooks of fully_shard" in reason for reason in reasons)
