"""Two models that only training has: a small U-Net, and a perceptron so small that its step is all overhead."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def twice(wide_in: int, wide_out: int) -> nn.Sequential:
    """Convolution, batch-norm and relu, two times."""
    layers: list[nn.Module] = []
    for width in (wide_in, wide_out):
        layers += [nn.Conv2d(width, wide_out, 3, padding=1, bias=False), nn.BatchNorm2d(wide_out), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Ronneberger et al. 2015 with padding: four levels down by max-pooling, four up by transposed convolutions, joined
    by skips."""

    def __init__(self, channels: int = 3, classes: int = 2, width: int = 32, levels: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.down = nn.ModuleList(twice(a, b) for a, b in zip([channels, *widths[:-2]], widths[:-1], strict=True))
        self.bottom = twice(widths[-2], widths[-1])
        self.raised = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths[:-1]))
        self.up = nn.ModuleList(twice(2 * w, w) for w in reversed(widths[:-1]))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, h, w] -> [n, classes, h, w]; h and w are multiples of 2 ** levels."""
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = self.pool(x)
        x = self.bottom(x)
        for raise_, block, skip in zip(self.raised, self.up, reversed(skips), strict=True):
            x = block(torch.cat([skip, raise_(x)], dim=1))
        return self.head(x)


def unet() -> tuple[nn.Module, tuple]:
    return UNet(), (torch.randn(1, 3, 128, 128),)


def mlp() -> tuple[nn.Module, tuple]:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), (torch.randn(32, 64),)
