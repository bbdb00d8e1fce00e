"""One architecture of a suite, and helpers to build it: random weights that count, nothing downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Case:
    """`build`: the model in eval mode, the same each time; `inputs`: keyword arguments for it, made anew each time.

    Either raises `NoModel` where the architecture has no small model without downloads.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[nn.Module], dict[str, Any]]


class NoModel(Exception):
    """The architecture cannot be built or called here; the message says why. It counts neither way."""


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    """`build()` under a fixed seed, in eval mode; what initialisation leaves constant or next to nothing is made to
    count.

    A zero gate, layer scale or head would hide errors before it.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = build().eval()
        for value in [*module.parameters(), *module.buffers()]:
            _spread(value)
    return module


def _spread(value: torch.Tensor) -> None:
    if not value.is_floating_point() or value.numel() < 2:
        return
    if (value == value.flatten()[0]).all():
        value.data += torch.rand_like(value) * 0.2
    elif value.dim() > 1 and value.std() < 0.005:
        value.data *= 0.05 / value.std()
