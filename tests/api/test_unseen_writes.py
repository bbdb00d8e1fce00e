"""Writes to weights that leave the version counter as it is: the next call computes with what was written."""

import numpy
import pytest
import torch
from torch import nn
from torch.utils import dlpack

import framesmith
from framesmith import _C

GLOBAL = torch.randn(64, 64)


def in_global(x):
    return x @ GLOBAL.t().contiguous()


def in_closure():
    w = torch.randn(64, 64)
    return (lambda x: nn.functional.linear(x, w)), w, torch.randn(4, 64)


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = [torch.randn(64, 64), torch.randn(64, 64)]
        self.register_buffer("table", torch.randn(64, 64))

    def forward(self, x):
        return nn.functional.linear(x @ self.weights[1].t(), self.table.cos())


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16)
        self.norm.running_mean.normal_(), self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        return self.norm(self.conv(x)).relu()


def linear(n):
    net = nn.Linear(n, n)
    return net, net.weight, torch.randn(4, n)


def listed(name):
    net = Listed()
    return net, net.weights[1] if name == "list" else net.table, torch.randn(4, 64)


def fused(name):
    net = Fused().eval()
    return net, net.get_parameter(name) if name in dict(net.named_parameters()) else net.get_buffer(name), torch.randn(
        2, 8, 9, 9)


PLACES = {
    "linear 64": lambda: linear(64), "linear 1024": lambda: linear(1024), "list": lambda: listed("list"),
    "buffer": lambda: listed("buffer"), "convolution": lambda: fused("conv.weight"),
    "norm": lambda: fused("norm.running_mean"),
    "closure": in_closure, "global": lambda: (in_global, GLOBAL, torch.randn(4, 64)),
}  # fmt: skip


def merge(w):
    rows = w.data.view(len(w), -1)[2:4]
    rows += torch.randn(2, 3) @ torch.randn(3, rows.shape[1])


WRITES = {
    "row": lambda w: w.data[-1].zero_(), "column": lambda w: w.data.view(-1)[7::16].zero_(),
    "element": lambda w: w.data.view(-1)[5].fill_(3), "clamp": lambda w: w.data.clamp_(max=float(w.data.max()) - 0.01),
    "negative": lambda w: w.data[1:3].neg_(), "merge": merge,
    "numpy": lambda w: w.detach().numpy().flat.__setitem__(9, 4),
    "dlpack": lambda w: dlpack.from_dlpack(w.detach()).view(-1)[3].fill_(5),
    "storage": lambda w: w.untyped_storage().__setitem__(4 * 11 + 3, 65),
    "array": lambda w: numpy.asarray(w.detach()).flat.__setitem__(1, 2),
}  # fmt: skip


@pytest.fixture(params=["automatic", "tracking", "digest", "accesses"])
def how(request):
    before = _C.detect_writes_by(request.param)
    yield request.param
    _C.detect_writes_by(before)


def assert_close(got, want, after=""):
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, msg=lambda text: f"{after}: {text}")


@pytest.mark.parametrize("place", PLACES)
@torch.no_grad()
def test_the_next_call_sees_it(how, place):
    program, weight, x = PLACES[place]()
    older = weight.data
    compiled = framesmith.compile(program)
    assert_close(compiled(x), program(x))
    for name, write in WRITES.items():
        write(weight)
        assert_close(compiled(x), program(x), name)
        older.view(-1)[13] += 1
        assert_close(compiled(x), program(x), f"an alias after {name}")
        assert_close(compiled(x), program(x))


@torch.no_grad()
def test_nothing_is_computed_again_without_a_write():
    net = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
    weights = list(net.parameters())
    unwritten = _C.watch(weights)
    for _ in range(20):
        net(torch.randn(3, 256))
        assert unwritten(weights)
