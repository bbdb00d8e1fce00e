"""DistributedDataParallel: its reducer is handed gradients while the compiled backward runs."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import framesmith
from framesmith.autograd import segments

LAYERS, WIDTH = 6, 256


def model():
    torch.manual_seed(1)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 4)).double()


def wrapped(net, how):
    options = {"bucket_cap_mb": 0.5}
    if how == "eager":
        return DistributedDataParallel(net, **options)
    if how == "compiled inside":
        return DistributedDataParallel(framesmith.compile(net), **options)
    return framesmith.compile(DistributedDataParallel(net, **options))


def data(step):
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(16, WIDTH, generator=generator, dtype=torch.float64)


def train(net, how, steps):
    ddp = wrapped(net, how)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        loss = (ddp(data(step)) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return losses


def same_training(how):
    first, second = model(), copy.deepcopy(model())
    torch.testing.assert_close(train(first, how, 50), train(second, "eager", 50), rtol=1e-9, atol=1e-12)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


HOW = pytest.mark.parametrize("how", ["compiled inside", "compiled around"])


@HOW
def test_training_is_eagers(world, how):
    world.run(same_training, how)


def order_of_events(how):
    """When parts of the backward run, and when gradients are accumulated."""
    events = []
    run = segments.Segments.run

    def told(self, given, compile):
        for gradients in run(self, given, compile):
            events.append("part")
            yield gradients

    segments.Segments.run = told
    try:
        net = model()
        ddp = wrapped(net, how)
        for name, parameter in net.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: events.append(name))
        for step in range(3):
            events.clear()
            ddp(data(step)).sum().backward()
    finally:
        segments.Segments.run = run
    return events


@HOW
def test_gradients_are_accumulated_between_parts(world, how):
    for events in world.run(order_of_events, how):
        parts = [k for k, event in enumerate(events) if event == "part"]
        assert len(parts) >= 3 and parts[0] == 0
        assert all(b - a > 1 for a, b in zip(parts, [*parts[1:], len(events)]))
        names = [event for event in events if event != "part"]
        assert names[0].startswith(f"{LAYERS}.") and names[-1].startswith("0.0.")
        assert len(names) == 2 * (LAYERS + 1)


OPTIONS = {
    "views of buckets": {"gradient_as_bucket_view": True}, "unused parameters": {"find_unused_parameters": True},
    "static graph": {"static_graph": True},
}


def with_options(name):
    def train(how):
        net = model()
        ddp = DistributedDataParallel(net if how == "eager" else framesmith.compile(net), bucket_cap_mb=0.5,
                                      **OPTIONS[name])
        for step in range(6):
            net.zero_grad()
            if name != "static graph":
                with ddp.no_sync():
                    ddp(data(step + 50)).sum().backward()
            ddp(data(step)).sum().backward()
        return [p.grad for p in net.parameters()]

    torch.testing.assert_close(train("compiled"), train("eager"), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", OPTIONS)
def test_options(world, name):
    world.run(with_options, name)


def asked_for_some():
    """Gradients of some inputs, retained graphs and gradients of gradients, where a reducer's hooks are there."""
    net = model()
    compiled, x = framesmith.compile(net), data(0).requires_grad_()
    DistributedDataParallel(net)
    first = net[0][0].weight

    def results(fn):
        y = (fn(x) ** 2).sum()
        some = torch.autograd.grad(y, [first, x], retain_graph=True)
        again = torch.autograd.grad(y, [*net.parameters(), x], retain_graph=True)
        (second,) = torch.autograd.grad(y, [x], create_graph=True)
        return [*some, *again, *torch.autograd.grad(second.sum(), [first])]

    torch.testing.assert_close(results(compiled), results(net), rtol=1e-9, atol=1e-12)


def test_gradients_of_some_inputs(world):
    world.run(asked_for_some)
