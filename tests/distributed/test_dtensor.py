"""Layers of `parallelize_module`, whose parameters are DTensors, run in eager; what is between them is compiled."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as fc
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import framesmith
from framesmith.util import events

WIDTH = 16


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(self.up(x).relu() * 2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.feed = nn.LayerNorm(WIDTH), Feed()

    def forward(self, x):
        return x + self.feed(self.norm(x)).sigmoid()


TENSOR = {"feed.up": ColwiseParallel(), "feed.down": RowwiseParallel()}
SEQUENCE = {"norm": SequenceParallel(), "feed.up": ColwiseParallel(input_layouts=Shard(1)),
            "feed.down": RowwiseParallel(output_layouts=Shard(1))}


def train(plan, wrap):
    torch.manual_seed(0)
    net = parallelize_module(Block().double(), init_device_mesh("cpu", (2,)), plan)
    call, optimiser, losses = wrap(net), torch.optim.SGD(net.parameters(), lr=0.05), []
    for step in range(20):
        x = torch.randn(1, 8, WIDTH, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        if plan is SEQUENCE:
            x = x.chunk(2, 1)[dist.get_rank()].contiguous()
        loss = (call(x) ** 2).mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.detach())
    return [*losses, *[p.full_tensor() if isinstance(p, DTensor) else p for p in net.parameters()]]


def same_training(name):
    seen, plan = [], {"tensor": TENSOR, "sequence": SEQUENCE}[name]
    with events.on_event(seen.append):
        found = train(plan, framesmith.compile)
    torch.testing.assert_close(found, train(plan, lambda net: net), rtol=1e-9, atol=1e-12)
    assert not any(isinstance(e, events.Fallback) and e.internal for e in seen)
    assert {e.function for e in seen if isinstance(e, events.CompileBegan)} <= {
        "Block.forward", "Feed.forward", "Linear.forward", "LayerNorm.forward"}
    assert {e.function for e in seen if isinstance(e, events.GraphBreak)} <= {"forward", "call_module"}
    return sum(isinstance(e, events.GraphCompiled) for e in seen)


@pytest.mark.parametrize("name", ["tensor", "sequence"])
def test_training_is_eagers(world, name):
    assert min(world.run(same_training, name)) >= 6 * (name == "tensor"), "what follows the row-parallel layer, too"


def pending(grad):
    """A functional collective that eager began is an input, with and without gradients."""
    def results(call):
        x = torch.arange(4.0).requires_grad_(grad)
        y = fc.all_reduce(x * (1 + dist.get_rank()), "sum", dist.group.WORLD)
        assert grad or type(y) is fc.AsyncCollectiveTensor
        z = call(y)
        return [z, *(torch.autograd.grad(z.sum(), [x]) if grad else [])]

    compiled = framesmith.compile(lambda y: torch.sin(y) * y, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(results(compiled), results(lambda y: torch.sin(y) * y))


@pytest.mark.parametrize("grad", [False, True])
def test_a_collective_that_eager_began(world, grad):
    world.run(pending, grad)


def operators():
    mesh = init_device_mesh("cpu", (2,))
    x, w = (distribute_tensor(torch.arange(16.0).view(4, 4), mesh, [how]) for how in (Shard(0), Replicate()))
    found = framesmith.compile(lambda x, w: (x @ w).relu() + 1)(x, w)
    torch.testing.assert_close(found.full_tensor(), ((x @ w).relu() + 1).full_tensor())


def test_operators(world):
    world.run(operators)
