"""DistributedDataParallel: its reducer is handed gradients while the compiled backward runs."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import framesmith
from framesmith import backends, pipeline
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


class Branching(nn.Module):
    """Its second head has no gradient in each other step."""

    def __init__(self):
        super().__init__()
        self.body, self.first, self.second = model()[:2], nn.Linear(WIDTH, 4).double(), nn.Linear(WIDTH, 4).double()

    def forward(self, x, both=True):
        x = self.body(x)
        return self.first(x) + self.second(x) if both else self.first(x)


def compressed(state, bucket):
    """`bf16_compress_hook`, whose own name DDP accepts with NCCL alone."""
    return default_hooks.bf16_compress_hook(state, bucket)


def power_sgd():
    return powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=3)


OPTIONS = {
    "views of buckets": {"gradient_as_bucket_view": True}, "unused parameters": {"find_unused_parameters": True},
    "static graph": {"static_graph": True}, "one bucket": {"bucket_cap_mb": 100},
}
HOOKS = {
    "all-reduce": (lambda: None, default_hooks.allreduce_hook), "bf16": (lambda: None, compressed),
    "PowerSGD": (power_sgd, powerSGD_hook.powerSGD_hook),
}
"""Of PowerSGD, whose hook begins collectives when others end, buckets would mix in gloo: there is one."""


def prepared(net, how, hook=None, **options):
    """The callable to train, and the DDP that it is or compiles."""
    ddp = DistributedDataParallel(framesmith.compile(net) if how == "compiled inside" else net,
                                  **{"bucket_cap_mb": 0.5, **options})
    if hook is not None:
        state, function = HOOKS[hook]
        ddp.register_comm_hook(state(), function)
    return (framesmith.compile(ddp) if how == "compiled around" else ddp), ddp


def train_with(how, kind, accumulate, hook, options):
    """20 steps. `accumulate`: gradients of two batches are added up before they are sent."""
    torch.manual_seed(2)
    net = kind()
    call, ddp = prepared(net, how, hook, **options)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(20):
        more = (step % 2 == 0,) if kind is Branching else ()
        optimiser.zero_grad(set_to_none=step % 3 == 0)
        if accumulate:
            with ddp.no_sync():
                (call(data(step + 50), *more) ** 2).mean().backward()
        loss = (call(data(step), *more) ** 2).mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return [*losses, *[p.detach() for p in net.parameters()]]


def same_with(how, *arguments):
    found, expected = train_with(how, *arguments), train_with("eager", *arguments)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@HOW
@pytest.mark.parametrize("name", OPTIONS)
def test_options(world, how, name):
    kind = Branching if name == "unused parameters" else model
    world.run(same_with, how, kind, name != "static graph", None, OPTIONS[name])


@HOW
@pytest.mark.parametrize("hook", HOOKS)
def test_communication_hooks(world, how, hook):
    if hook == "PowerSGD" and torch.cuda.is_available():
        pytest.skip("its hook waits for a CUDA device, whatever device its tensors are on")
    world.run(same_with, how, model, False, hook, {"bucket_cap_mb": 100} if hook == "PowerSGD" else {})


def joined(how):
    """Rank 1 has four batches more."""
    net = model()
    call, ddp = prepared(net, how)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    with Join([ddp]):
        for step in range(8 + 4 * dist.get_rank()):
            (call(data(step)) ** 2).mean().backward()
            optimiser.step()
            optimiser.zero_grad()
    return [p.detach() for p in net.parameters()]


def same_when_joined(how):
    torch.testing.assert_close(joined(how), joined("eager"), rtol=1e-9, atol=1e-12)


@HOW
def test_uneven_inputs(world, how):
    world.run(same_when_joined, how)


def begun_with_the_forward():
    """How many graphs are begun before the first backward, and how many while it runs."""
    begun, begin = [], pipeline.begin_graph
    backends.begin_graph = lambda *args: begun.append(args) or begin(*args)
    try:
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Softplus()) for _ in range(LAYERS)]
        call = DistributedDataParallel(framesmith.compile(nn.Sequential(*layers).double()))
        loss = call(data(0)).sum()
        before = len(begun)
        loss.backward()
    finally:
        backends.begin_graph = begin
    return before, len(begun) - before


def test_all_segments_are_compiled_with_the_forward(world):
    for before, later in world.run(begun_with_the_forward):
        assert before >= 4 and later == 0


def normalised():
    """SyncBatchNorm trains on accelerators alone; in evaluation it is a batch norm."""
    net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4)).double())
    compiled = framesmith.compile(net)
    for call in (net, compiled):
        with pytest.raises(ValueError, match="SyncBatchNorm expected input tensor to be on"):
            call(data(0))
    net.eval()
    torch.testing.assert_close(compiled(data(0)), net(data(0)), rtol=1e-9, atol=1e-12)


def test_synchronised_batch_norm(world):
    world.run(normalised)


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
