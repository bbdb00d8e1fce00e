"""Two CUDA devices with NCCL: collectives within a graph, and training under DDP, FSDP2 and with tensor parallel
blocks, give what they give in eager."""

import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

import framesmith
from framesmith.distributed.work import blocks_of
from framesmith.util import events

from .test_collectives import PROGRAMS, compare
from .test_dtensor import PLANS
from .test_fully_shard import full
from .test_models import bert, llama
from .world import World

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")]
STEPS, WORDS = 5, 61


@pytest.fixture(scope="module")
def devices():
    made = World(backend="nccl")
    yield made
    made.close()


@pytest.mark.parametrize("name", PROGRAMS)
def test_collectives(devices, name):
    devices.run(compare, name)


class Convolutions(nn.Module):
    """Residual blocks with batch norms; the squared mean of the last one's result."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(3 if k == 0 else 8, 8, 3, padding=1), nn.BatchNorm2d(8)) for k in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x).relu()
        return (x ** 2).mean()


def words():
    return torch.randint(0, WORDS, (2, 8))


def images():
    return torch.randn(2, 3, 16, 16)


MODELS = {"BERT": (bert, words), "Llama": (llama, words), "convolutions": (Convolutions, images)}


def ddp(net, compiler, around):
    if around:
        return compiler(DistributedDataParallel(net, bucket_cap_mb=0.01))
    return DistributedDataParallel(compiler(net), bucket_cap_mb=0.01)


def sharded(net, compiler, **options):
    for block in blocks_of(net):
        fully_shard(block, **options)
    return compiler(fully_shard(net, **options))


WAYS = {"DDP compiled": functools.partial(ddp, around=True), "DDP of compiled": functools.partial(ddp, around=False),
        "FSDP2": sharded}
HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16)


def trained(net, call, batch):
    """Losses, then parameters. Each rank has batches of its own."""
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, foreach=False)
    losses = []
    for step in range(STEPS):
        torch.manual_seed(100 * step + dist.get_rank())
        loss = call(batch())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return [*losses, *[full(p.detach()).float() for p in net.parameters()]]


def same_training(way, name, tolerance, options):
    build, batch = MODELS[name]
    results, seen = [], []
    with events.on_event(seen.append):
        for compiler in (framesmith.compile, lambda fn: fn):
            torch.manual_seed(0)
            net = build().train()
            for module in net.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
            results.append(trained(net, WAYS[way](net, compiler, **options), batch))
    framesmith.reset()
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)
    assert not [e for e in seen if isinstance(e, events.Fallback)]
    return sum(isinstance(e, events.GraphCompiled) for e in seen)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", WAYS)
def test_training(devices, way, name):
    graphs = devices.run(same_training, way, name, 1e-5, {})
    assert graphs[0] == graphs[1] >= 2


def test_parameters_of_half_precision(devices):
    devices.run(same_training, "FSDP2", "Llama", 2e-2, {"mp_policy": HALF})


def same_blocks(name):
    make, plan = PLANS[name]
    results, seen = [], []
    with events.on_event(seen.append):
        for compiler in (functools.partial(framesmith.compile, fullgraph=True), lambda fn: fn):
            torch.manual_seed(0)
            net = parallelize_module(make(), init_device_mesh(torch.get_default_device().type, (2,)), plan)
            results.append(trained(net, squared(compiler(net)), functools.partial(activations, name)))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
    return sum(isinstance(e, events.GraphCompiled) for e in seen)


def squared(call):
    return lambda x: (call(x) ** 2).mean()


def activations(name):
    """The same in all ranks, or of a sequence the part of one."""
    torch.manual_seed(7)
    x = torch.randn(1, 8, 16)
    return x.chunk(2, 1)[dist.get_rank()].contiguous() if "sequence" in name else x


@pytest.mark.parametrize("name", PLANS)
def test_tensor_parallel_blocks(devices, name):
    assert devices.run(same_blocks, name) == [2, 2], "one graph, forward and backward"
