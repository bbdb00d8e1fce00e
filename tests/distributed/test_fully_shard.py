"""`fully_shard` (FSDP2): the forwards and backwards between its hooks are compiled; all else is eager's."""

import functools
import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

import framesmith
from framesmith.util import events

from .world import World

STEPS, WIDTH = 20, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


class Net(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.embed, self.head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def sharded(module, **options):
    """Shard over CPUs, also on a machine with GPUs, whose tensors gloo cannot scatter."""
    return fully_shard(module, mesh=init_device_mesh("cpu", (dist.get_world_size(),)), **options)


def shard(net, **options):
    for block in net.blocks:
        sharded(block, **options)
    return sharded(net, **options)


def compile_blocks(net):
    for k, block in enumerate(net.blocks):
        net.blocks[k] = framesmith.compile(block)
    return net


def shard_compiled_blocks(net, **options):
    for k, block in enumerate(net.blocks):
        net.blocks[k] = framesmith.compile(sharded(block, **options))
    return sharded(net, **options)


HOW = {
    "eager": shard,
    "whole": lambda net, **options: framesmith.compile(shard(net, **options)),
    "compiled, then sharded": lambda net, **options: shard(framesmith.compile(net), **options),
    "blocks": lambda net, **options: compile_blocks(shard(net, **options)),
    "compiled blocks, then sharded": lambda net, **options: shard(compile_blocks(net), **options),
    "sharded blocks in a root": shard_compiled_blocks,
}
COMPILED = pytest.mark.parametrize("how", [how for how in HOW if how != "eager"])


def made(how, blocks=3, **options):
    torch.manual_seed(1)
    return HOW[how](Net(blocks).double(), **options)


def data(step):
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(6, 8, generator=generator, dtype=torch.float64)


def full(x):
    return x.full_tensor() if isinstance(x, DTensor) else x


def train(how, steps=STEPS, every=1, clip=None, evaluate=False, **options):
    """Losses, norms and at the end parameters. `every`: gradients are accumulated over so many steps."""
    return train_net(made(how, **options), steps, every, clip, evaluate)


def train_net(net, steps=STEPS, every=1, clip=None, evaluate=False):
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    found = []
    for step in range(steps):
        last = step % every == every - 1
        net.set_requires_gradient_sync(last)
        loss = (net(data(step)) ** 2).mean()
        loss.backward()
        found.append(loss.detach())
        if clip is not None:
            found.append(full(nn.utils.clip_grad_norm_(net.parameters(), clip)))
        if last:
            optimiser.step()
            optimiser.zero_grad()
        if evaluate:
            for mode in (torch.no_grad, torch.inference_mode):
                with mode():
                    found.append(net(data(step)).clone())
    return [*found, *[full(p.detach()) for p in net.parameters()]]


def same_training(how, tolerance, arguments):
    seen = []
    with events.on_event(seen.append):
        found = train(how, **arguments)
    for a, b in zip(found, train("eager", **arguments), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance / 10)
    assert not [e for e in seen if isinstance(e, events.Fallback)]
    return sum(isinstance(e, events.Recompile) for e in seen)


OPTIONS = {
    "plain": {}, "kept after the forward": {"reshard_after_forward": False}, "clipped": {"clip": 0.1},
    "accumulated": {"every": 3}, "evaluated": {"steps": 4, "evaluate": True},
    "offloaded": {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
}


@COMPILED
def test_training_is_eagers(world, how):
    recompiled = world.run(same_training, how, 1e-9, {})
    assert max(recompiled) <= 1, "the loop over the blocks has two variants: one calls a block, one ends"


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options(world, options):
    world.run(same_training, "whole", 1e-9, options)


def recomputed(how):
    """A checkpoint within each sharded module."""
    torch.manual_seed(1)
    net = Net(3).double()
    for k, block in enumerate(net.blocks):
        net.blocks[k] = checkpoint_wrapper(block)
    return train_net(HOW[how](net))


def same_recomputed():
    seen = []
    with events.on_event(seen.append):
        found = recomputed("whole")
    torch.testing.assert_close(found, recomputed("eager"), rtol=1e-9, atol=1e-10)
    assert any("CheckpointWrapper.forward" in e.function for e in seen if isinstance(e, events.CompileEnded))


def test_checkpoints_within_sharded_modules(world):
    world.run(same_recomputed)


def test_mixed_precision(world):
    """Parameters and sums within the compiled code are of float32."""
    policy = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float64)
    world.run(same_training, "whole", 1e-5, {"mp_policy": policy})


def graphs_of(blocks):
    seen = []
    with events.on_event(seen.append):
        train("whole", steps=3, blocks=blocks)
    assert not [e for e in seen if isinstance(e, events.Fallback)]
    return sum(isinstance(event, events.GraphCompiled) for event in seen)


def test_blocks_share_one_forward_and_one_backward(world):
    assert world.run(graphs_of, 12) == world.run(graphs_of, 3)


# --- checkpoints ------------------------------------------------------------------------------------------------------
def step(net, optimiser, number):
    loss = (net(data(0) * (1 + number)) ** 2).mean()
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()
    return loss.detach()


def save_in_the_middle(how, folder):
    net = made(how)
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for number in range(3):
        step(net, optimiser, number)
    model, state = get_state_dict(net, optimiser)
    checkpoint.save({"model": model, "optimiser": state}, checkpoint_id=folder)
    return sorted(model)


def resume(how, folder):
    net = made(how)
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-3)
    model, state = get_state_dict(net, optimiser)
    checkpoint.load({"model": model, "optimiser": state}, checkpoint_id=folder)
    set_state_dict(net, optimiser, model_state_dict=model, optim_state_dict=state)
    return [step(net, optimiser, number) for number in range(3, 6)], [full(p.detach()) for p in net.parameters()]


def test_a_checkpoint_of_two_processes_is_resumed_in_one(world, tmp_path):
    keys = [world.run(save_in_the_middle, how, os.fspath(tmp_path / how))[0] for how in ("whole", "eager")]
    assert keys[0] == keys[1]
    alone = World(size=1)
    try:
        run = functools.partial(alone.run, resume)
        (found,), (expected,) = run("whole", os.fspath(tmp_path / "whole")), run("eager", os.fspath(tmp_path / "eager"))
    finally:
        alone.close()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
