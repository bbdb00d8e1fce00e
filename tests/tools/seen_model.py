"""A model with three kinds of break; two calls make it recompile, and a function of it stays in eager."""

import sys

import torch
from torch import nn

import framesmith


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)

    def forward(self, x):
        h = torch.relu(self.up(x))
        framesmith.graph_break()  # BREAK marked
        h = h * 2
        count = int(h.argmax())  # data
        h = h + [count][0] % 2  # BREAK data
        sys.stdout.isatty()  # BREAK call
        return h.softmax(-1)


def looks(x):
    frame = sys._getframe()  # FALLBACK
    return x * frame.f_lineno


def run():
    torch.manual_seed(0)
    net, fn = framesmith.compile(Net().eval()), framesmith.compile(looks)
    x = torch.randn(4, 8)
    with torch.no_grad():
        for _ in range(3):
            net(x)
        net(x[:3])  # RECOMPILE size
    net(x)  # RECOMPILE grad mode
    fn(x)
    return net, x


if __name__ == "__main__":
    run()
