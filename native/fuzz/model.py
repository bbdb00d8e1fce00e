"""Writes a small package with all that a reader looks at: model.py PATH. It has constants, a size that varies, and
buffers that calls write, of zeros and of others."""

import sys

import torch

import framesmith


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.register_buffer("zeros", torch.zeros(3))
        self.register_buffer("others", torch.arange(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.others.add_(1)
        self.zeros.add_(self.others)
        return self.layer(x) + self.zeros


if __name__ == "__main__":
    framesmith.package(Model(), (torch.ones(2, 4),), path=sys.argv[1], targets=["x86-64"],
                       dynamic_shapes=[{0: framesmith.Dim("batch", max=64)}])
