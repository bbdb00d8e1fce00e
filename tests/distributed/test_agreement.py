"""A process that compiles something else than the others is named, with the reason, before it waits in a collective."""

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import framesmith
from framesmith import agreement
from framesmith.exc import DivergedRanks

from .world import World

OPTIONS = {"agreement": 5}


def summed(x, chatty=False, gathered=False, negative=False):
    y = x * 2
    if negative:
        y = -y
    if chatty:
        time.sleep(0)  # a break
    if gathered:
        dist.all_gather_into_tensor(x.new_empty(2 * len(x)), y)
    else:
        dist.all_reduce(y)
    return y


def compiled():
    return framesmith.compile(lambda *args, **kwargs: summed(*args, **kwargs), options=OPTIONS)


def named(call, *args, **kwargs):
    began = time.monotonic()
    with pytest.raises(DivergedRanks) as raised:
        call(*args, **kwargs)
    assert time.monotonic() - began < 5
    return str(raised.value)


def another_size():
    call, x = compiled(), torch.ones(4 + dist.get_rank())
    named(call, x)
    return named(call, x)  # no variant is left that would take it


def test_another_size(world):
    for text in world.run(another_size):
        assert "rank 1 compiled" in text and "unlike rank 0" in text
        assert "torch.float32(5,)" in text.split("and else")[0] and "torch.float32(4,)" in text.split("and else")[1]


def another_break():
    return named(compiled(), torch.ones(4), dist.get_rank() == 1)


def test_another_break(world):
    for text in world.run(another_break):
        there, here = text.split("and else")
        assert "unlike rank 0" in there and "a graph break at test_agreement.py" in there and "sleep" in there
        assert "no graph break" in here


def another(what):
    return named(compiled(), torch.ones(4), **{what: dist.get_rank() == 1})


@pytest.mark.parametrize("what", ["gathered", "negative"])
def test_another_collective_or_branch(world, what):
    for text in world.run(another, what):
        there, here = text.split("and else")
        assert "rank 1 compiled" in there and "unlike rank 0" in there
        assert {"gathered": "all_gather", "negative": "neg"}[what] in there and "all_reduce" in here, text


def started_again():
    """The default group's store has what processes before have published."""
    framesmith.compile(lambda x: x * 2, options=OPTIONS)(torch.ones(4))
    dist.barrier()
    agreement._members.clear()
    time.sleep(dist.get_rank())
    framesmith.compile(lambda x: x * 3, options=OPTIONS)(torch.ones(4))


def test_processes_that_torchrun_has_restarted(world):
    world.run(started_again)


def one_recompiles():
    framesmith.compile(lambda x: x + 1)(torch.ones(4))  # loads the compiler
    dist.barrier()
    fn = framesmith.compile(lambda x: x * 2, options={"agreement": 2, "dynamic": False})
    fn(torch.ones(4))
    if dist.get_rank() == 0:
        fn(torch.ones(4))
        return None
    return named(fn, torch.ones(6))


def test_one_that_compiles_nothing():
    world = World()  # from here on its processes have compiled different numbers of functions
    try:
        _, text = world.run(one_recompiles)
    finally:
        world.close()
    assert "rank 0 has compiled nothing in the 2 s" in text
    assert "again, because" in text and "4" in text and "6" in text


def train():
    torch.manual_seed(0)
    net = DistributedDataParallel(framesmith.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), options=OPTIONS))
    for size in (4, 4, 6):
        net(torch.ones(size, 8) * (1 + dist.get_rank())).sum().backward()
    return [p.grad for p in net.parameters()]


def test_the_same_code_passes(world):
    first, second = world.run(train)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
