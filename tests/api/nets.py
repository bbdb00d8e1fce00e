"""The module that these tests compile, and what they compare."""

import copy

import torch
from torch import nn

import framesmith

X = torch.linspace(-1, 1, 24).reshape(6, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.b = nn.Linear(8, 3)
        self.note = "hi"

    def forward(self, x):
        return self.b(self.drop(self.norm(self.a(x)).relu()))

    def other(self, x):
        return self.a(x) + 1


def compiled_net():
    """A module and its compiled view, called once."""
    net = Net().eval()
    fast = framesmith.compile(net)
    fast(X)
    return net, fast


def assert_close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def assert_same(net, fast, x=X):
    """Results, and the state left behind, are eager's."""
    twin = copy.deepcopy(net)
    torch.manual_seed(3)
    want = twin(x)
    torch.manual_seed(3)
    assert_close(fast(x), want)
    assert_close(dict(net.state_dict()), dict(twin.state_dict()))
