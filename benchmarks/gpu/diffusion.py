"""The U-Net of latent diffusion (Rombach et al. 2022), of Stable Diffusion's size: 320 channels, four levels, 860
million parameters."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def waves(times: Tensor, width: int) -> Tensor:
    """[n] -> [n, width]: cosines and sines of geometrically spaced frequencies."""
    rates = torch.exp(torch.arange(width // 2, device=times.device) * (-math.log(10_000) / (width // 2)))
    angles = times[:, None].float() * rates
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class Residual(nn.Module):
    def __init__(self, wide_in: int, wide_out: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, wide_in), nn.Conv2d(wide_in, wide_out, 3, padding=1)
        self.time = nn.Linear(time, wide_out)
        self.norm2, self.conv2 = nn.GroupNorm(32, wide_out), nn.Conv2d(wide_out, wide_out, 3, padding=1)
        self.skip = nn.Conv2d(wide_in, wide_out, 1) if wide_in != wide_out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class Attention(nn.Module):
    def __init__(self, width: int, context: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(context, width, bias=False) for _ in range(2))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for t in (self.q(x), self.k(context), self.v(context)))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """Pixels attend to each other and to the text; then a gated perceptron."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.norm, self.enter, self.leave = nn.GroupNorm(32, width), nn.Conv2d(width, width, 1), nn.Conv2d(width, width,
                                                                                                           1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.cross = Attention(width, width), Attention(width, context)
        self.wide, self.narrow = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        h = self.enter(self.norm(x))
        y = h.flatten(2).transpose(1, 2)
        z = self.norms[0](y)
        y = y + self.own(z, z)
        y = y + self.cross(self.norms[1](y), text)
        value, gate = self.wide(self.norms[2](y)).chunk(2, dim=-1)
        y = y + self.narrow(value * F.gelu(gate))
        return x + self.leave(y.transpose(1, 2).unflatten(2, h.shape[2:]))


class Resample(nn.Module):
    def __init__(self, width: int, up: bool) -> None:
        super().__init__()
        self.up, self.conv = up, nn.Conv2d(width, width, 3, stride=1 if up else 2, padding=1)

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest") if self.up else x)


class DiffusionUNet(nn.Module):
    """Each level has two residual blocks (three on the way up), those of `attending` levels with a transformer behind
    each."""

    def __init__(
        self, channels: int = 4, width: int = 320, levels: tuple[int, ...] = (1, 2, 4, 4), attending: int = 3,
        context: int = 768
    ) -> None:
        super().__init__()
        self.width, time = width, 4 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(channels, width, 3, padding=1)
        self.down, self.up, skips, here = nn.ModuleList(), nn.ModuleList(), [width], width

        def step(wide_in: int, wide_out: int, level: int, *more: nn.Module) -> nn.ModuleList:
            transformer = [Transformer(wide_out, context)] if level < attending else []
            return nn.ModuleList([Residual(wide_in, wide_out, time), *transformer, *more])

        for level, factor in enumerate(levels):
            for _ in range(2):
                self.down.append(step(here, width * factor, level))
                here = width * factor
                skips.append(here)
            if level < len(levels) - 1:
                self.down.append(nn.ModuleList([Resample(here, up=False)]))
                skips.append(here)
        self.middle = nn.ModuleList([Residual(here, here, time), Transformer(here, context),
                                     Residual(here, here, time)])
        for level, factor in reversed(list(enumerate(levels))):
            for k in range(3):
                more = [Resample(width * factor, up=True)] if level and k == 2 else []
                self.up.append(step(here + skips.pop(), width * factor, level, *more))
                here = width * factor
        self.norm, self.leave = nn.GroupNorm(32, here), nn.Conv2d(here, channels, 3, padding=1)

    def forward(self, x: Tensor, times: Tensor, text: Tensor) -> Tensor:
        """[n, channels, h, w], [n], [n, words, context] -> [n, channels, h, w]"""
        time = self.time(waves(times, self.width).to(x.dtype))
        x = self.enter(x)
        skips = [x]
        for blocks in self.down:
            for block in blocks:
                x = block(x, time, text)
            skips.append(x)
        for block in self.middle:
            x = block(x, time, text)
        for blocks in self.up:
            x = torch.cat([x, skips.pop()], dim=1)
            for block in blocks:
                x = block(x, time, text)
        return self.leave(F.silu(self.norm(x)))
