"""Training over two processes, 50 steps, with collectives in the compiled code: the same losses and parameters as in
eager. Bit for bit where each graph is run by eager's operators; kernels of our own sum in another order."""

import copy
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as fc
from torch.distributed.nn import functional as old

import framesmith

STEPS = 50


def batches(shape):
    generator = torch.Generator().manual_seed(11 + dist.get_rank())
    for _ in range(STEPS):
        yield (torch.randn(shape, generator=generator, dtype=torch.float64),
               torch.randn(shape[0], 4, generator=generator, dtype=torch.float64))


def equal_runs(train, model, backend):
    """`train(model, wrap)` gives tensors; `wrap` is what compiles."""
    model = model.double()
    other = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        found = train(model, lambda fn: framesmith.compile(fn, fullgraph=True, backend=backend))
        expected = train(other, lambda fn: fn)
    found, expected = [*found, *model.state_dict().values()], [*expected, *other.state_dict().values()]
    for a, b in zip(found, expected, strict=True):
        tolerance = {"rtol": 0, "atol": 0} if backend == "aot_eager" else {"rtol": 1e-9, "atol": 1e-12}
        torch.testing.assert_close(a, b, **tolerance)


BACKENDS = pytest.mark.parametrize("backend", ["aot_eager", "native"])


def by_hand(backend):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))

    def train(model, wrap):
        def loss_of(parameters, x, target):
            return ((torch.func.functional_call(model, parameters, x) - target) ** 2).mean()

        def step(x, target):
            parameters = dict(model.named_parameters())
            gradients, loss = torch.func.grad_and_value(loss_of)(parameters, x, target)
            works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients.values()]
            for work, parameter, gradient in zip(works, parameters.values(), gradients.values()):
                work.wait()
                parameter.sub_(gradient / dist.get_world_size(), alpha=0.1)
            return loss

        compiled = wrap(torch.no_grad()(step))
        return [compiled(x, target) for x, target in batches((8, 6))]

    equal_runs(train, model, backend)


@BACKENDS
def test_data_parallel_by_hand(world, backend):
    world.run(by_hand, backend)


class TensorParallel(nn.Module):
    """A column-parallel and a row-parallel layer; each process has its part of both."""

    def __init__(self, copied, summed):
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 4, bias=False)
        self.copied, self.summed = copied, summed

    def forward(self, x):
        return self.summed(self.down(self.up(self.copied(x)).relu()))


class Copied(torch.autograd.Function):
    """The value itself, whose gradient is the sum over the group."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad


def tensor_parallel(kind, backend):
    rows = {
        "functional": (lambda x: x, lambda y: fc.all_reduce(y, "sum", dist.group.WORLD)),
        "nn.functional": (lambda x: x, lambda y: old.all_reduce(y)),
        "gathered": (lambda x: x, lambda y: fc.reduce_scatter_tensor(
            fc.all_gather_tensor(y, 0, dist.group.WORLD), "sum", 0, dist.group.WORLD)),
        "exchanged": (lambda x: fc.all_to_all_single(x, [4, 4], [4, 4], dist.group.WORLD), lambda y: y),
        "functions": (Copied.apply, lambda y: fc.all_reduce(y, "sum", dist.group.WORLD)),
    }
    torch.manual_seed(5 + dist.get_rank())
    model = TensorParallel(*rows[kind])

    def train(model, wrap):
        forward = wrap(lambda x, target: ((model(x) - target) ** 2).mean())
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
        losses = []
        for x, target in batches((8, 6)):
            x.requires_grad_()
            loss = forward(x, target)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses += [loss.detach(), x.grad]
        return losses

    equal_runs(train, model, backend)


@pytest.mark.parametrize("kind", ["functional", "nn.functional", "gathered", "exchanged", "functions"])
@BACKENDS
def test_tensor_parallel(world, kind, backend):
    world.run(tensor_parallel, kind, backend)
